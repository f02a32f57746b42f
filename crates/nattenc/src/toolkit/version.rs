//! Which release each part of a toolkit is of: from banners, headers and the runtime's own constant.
//! Lines are recognised by their words, never by their number: wrappers print before and after.

use crate::config::Release;
use crate::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// `V13.0.88` of a banner, and its release.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Version {
    /// What gates and agreement go by.
    pub release: Release,
    /// As printed, without the V.
    pub full: String,
}

impl Version {
    /// A version of which only the release is known.
    pub fn of(release: Release) -> Self {
        Version { release, full: release.to_string() }
    }
}

/// The version in the output of a CUDA compiler tool, `… release 13.0, V13.0.88`.
/// A line that gives the full version is believed before one that merely says "release".
pub fn banner(text: &str) -> Option<Version> {
    let mut vague = None;
    for line in text.lines() {
        let mut words = line.split([' ', ',', '\t']).filter(|word| !word.is_empty());
        while let Some(word) = words.next() {
            if word != "release" {
                continue;
            }
            let Some(release) = words.next().and_then(|word| word.parse::<Release>().ok()) else { break };
            // Among bytes, anything may follow the number.
            let number = |word: &'_ str| {
                word.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect::<String>()
            };
            let full = words.next().and_then(|word| word.strip_prefix('V')).map(number);
            match full.filter(|full| full.parse() == Ok(release)) {
                Some(full) => return Some(Version { release, full }),
                None => vague = vague.or(Some(Version::of(release))),
            }
            break;
        }
    }
    vague
}

/// The banner that NVIDIA's tools carry in their bytes; cicc prints it on no request.
pub fn banner_in(path: &Path) -> anyhow::Result<Option<Version>> {
    let mut file = BufReader::with_capacity(1 << 18, fs::open(path)?);
    let mut chunk = Vec::new();
    // The reader looks for single bytes with the speed of memchr, also in debug builds.
    loop {
        chunk.clear();
        if file.read_until(b',', &mut chunk)? == 0 {
            return Ok(None);
        }
        if !chunk.ends_with(b"Cuda compilation tools,") {
            continue;
        }
        chunk.clear();
        file.read_until(b'\n', &mut chunk)?;
        if let Some(version) = banner(&String::from_utf8_lossy(&chunk)) {
            return Ok(Some(version));
        }
    }
}

/// 12080 as a release.
fn packed(value: u32) -> Option<Release> {
    let (major, minor) = (u16::try_from(value / 1000).ok()?, u16::try_from(value % 1000 / 10).ok()?);
    let plausible = (9..100).contains(&major) && value.is_multiple_of(10);
    plausible.then_some(Release::new(major, minor))
}

/// The release of the runtime headers: `#define CUDART_VERSION 12080`.
pub fn headers(cuda_runtime_api: &str) -> Option<Release> {
    cuda_runtime_api.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("#define") && words.next() == Some("CUDART_VERSION")).then_some(())?;
        packed(words.next()?.parse().ok()?)
    })
}

/// The release of a CUDA runtime library of this machine's architecture: the constant that its
/// `cudaRuntimeGetVersion` stores through its argument. `None` where not exactly one such constant is found.
pub fn cudart(library: &[u8]) -> Option<Release> {
    let mut found =
        if cfg!(target_arch = "aarch64") { stored_aarch64(library) } else { stored_x86_64(library) };
    found.sort();
    found.dedup();
    match found.as_slice() {
        [one] => Some(*one),
        _ => None,
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// `mov dword [rdi], imm32`
fn stored_x86_64(code: &[u8]) -> Vec<Release> {
    let stores = code.windows(2).enumerate().filter(|(_, bytes)| *bytes == [0xc7, 0x07]);
    stores.filter_map(|(at, _)| packed(word(code, at + 2)?)).collect()
}

/// `mov wD, #imm16`, and within the next instructions `str wD, [xN]`
fn stored_aarch64(code: &[u8]) -> Vec<Release> {
    let at_even = (0..code.len()).step_by(2);
    let release = |at: usize| {
        let mov = word(code, at).filter(|mov| mov & 0xffe0_0000 == 0x5280_0000)?;
        let store = 0xb900_0000 | (mov & 31);
        let stored = (1..=4).any(|next| word(code, at + 4 * next).is_some_and(|w| w & 0xffff_fc1f == store));
        packed((mov >> 5) & 0xffff).filter(|_| stored)
    };
    at_even.filter_map(release).collect()
}

/// The newest host compilers that a toolkit takes, from its `crt/host_config.h`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Bound {
    /// The last major version of GCC.
    pub gcc: Option<u16>,
    /// The last major version of Clang.
    pub clang: Option<u16>,
}

/// Reads the bounds that lead to "unsupported GNU version" and "unsupported clang version".
pub fn bound(host_config: &str) -> Bound {
    let after = |line: &str, what: &str| -> Option<u16> {
        let rest = &line[line.find(what)? + what.len()..];
        rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    let lines = || {
        host_config.lines().map(str::trim).filter(|line| line.starts_with("#if") || line.starts_with("#elif"))
    };
    Bound {
        gcc: lines().filter(|line| !line.contains("__ICC")).find_map(|line| after(line, "__GNUC__ >")),
        clang: lines()
            .find_map(|line| after(line, "__clang_major__ >="))
            .map(|first| first.saturating_sub(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_banner_is_found_by_the_word_release() {
        let plain = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 12.8, V12.8.93\nBuild cuda_12.8\n";
        for (text, expected) in [
            (plain.to_owned(), Some("12.8.93")),
            (format!("ccache wrapper 4.9\nloading module cuda/12.4\n{plain}"), Some("12.8.93")),
            (format!("{plain}wrapper: release 3.1 of the wrapper done\n"), Some("12.8.93")),
            (format!("wrapper release 9.9 starting\n{plain}"), Some("12.8.93")),
            ("Cuda compilation tools, release 11.8".to_owned(), Some("11.8")),
            ("release 13.0, V13.0.88\0\0junk".to_owned(), Some("13.0.88")),
            ("\x1b[0m release 13.0, V13.0.88 (something)".to_owned(), Some("13.0.88")),
            ("release 12.8, V9.0.1".to_owned(), Some("12.8")),
            (String::new(), None),
            ("release notes".to_owned(), None),
            ("release".to_owned(), None),
            ("nvcc 12.8".to_owned(), None),
        ] {
            assert_eq!(banner(&text).map(|v| v.full).as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn a_banner_is_found_among_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cicc");
        let mut bytes = vec![0u8; 300_000];
        bytes.extend(
            b"a, Cuda compilation tools, of nothing\nCuda compilation tools, release 12.4, V12.4.131\nmore\0",
        );
        bytes.extend(vec![0xff; 300_000]);
        fs::write(&path, &bytes).unwrap();
        assert_eq!(banner_in(&path).unwrap().unwrap().full, "12.4.131");
        fs::write(&path, &bytes[..300_020]).unwrap();
        assert_eq!(banner_in(&path).unwrap(), None);
    }

    #[test]
    fn headers_and_runtime_say_their_release() {
        for (text, expected) in [
            ("/* x */\n#define CUDART_VERSION  13000\n", Some((13, 0))),
            ("#define CUDART_VERSION 12080", Some((12, 8))),
            ("#define CUDART_VERSIONS 12080\n#if CUDART_VERSION > 11000\n", None),
            ("#define CUDART_VERSION banana", None),
            ("", None),
        ] {
            assert_eq!(headers(text), expected.map(|(a, b)| Release::new(a, b)), "{text}");
        }
    }

    #[test]
    fn the_runtimes_constant_is_found_in_its_code() {
        let x86 = |value: u32| [&[0x48, 0xc7, 0x07][..], &value.to_le_bytes(), &[0xc3]].concat();
        let found = |code: &[u8]| stored_x86_64(code);
        assert_eq!(found(&x86(12040)), [Release::new(12, 4)]);
        assert_eq!(found(&[x86(13020), x86(7), x86(12081)].concat()), [Release::new(13, 2)]);
        assert_eq!(found(b"nothing here"), []);
        assert_eq!(found(&[0xc7, 0x07, 1]), []);
        let arm = |value: u32, store: u32| {
            [0x5280_0000 | (value << 5) | 2, 0x5280_0000, store].map(u32::to_le_bytes).concat()
        };
        assert_eq!(stored_aarch64(&arm(13000, 0xb900_0022)), [Release::new(13, 0)]);
        assert_eq!(stored_aarch64(&arm(13000, 0xb900_0023)), [], "another register is stored");
        assert_eq!(cudart(b""), None);
    }

    #[test]
    fn the_bound_on_host_compilers_is_read() {
        let text = "#if !defined(__GNUC__)\n#if defined(__GNUC__)\n#if __GNUC__ > 14\n#error unsupported\n\
            #if (__clang_major__ >= 20) || (__clang_major__ < 3)\n";
        assert_eq!(bound(text), Bound { gcc: Some(14), clang: Some(19) });
        assert_eq!(bound("int x;"), Bound::default());
    }
}
