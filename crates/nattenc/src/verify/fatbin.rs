//! Fatbins, the containers of device code: one or more in the `.nv_fatbin` section of an object.
//!
//! NVIDIA documents no format. What is here was found by looking at what `fatbinary` of 12.4, 13.0 and
//! 13.2 writes for each option. All numbers are little-endian.
//!
//! A container: magic, version 1 (u16), header size (u16, 16), bytes of all entries (u64). Its entries
//! follow each other, each a header and a payload:
//!
//! | at   | type | what |
//! |------|------|------|
//! | 0x00 | u16  | kind: 1 PTX, 2 ELF |
//! | 0x04 | u32  | bytes of this header, 64 and more: optional parts follow the fixed one |
//! | 0x08 | u64  | bytes of the payload, padding to 8 included |
//! | 0x10 | u32  | bytes of the payload without padding where it is compressed, else 0 |
//! | 0x1c | u32  | capability times ten |
//! | 0x28 | u64  | flags: 0x2000 LZ4 block, 0x8000 zstd frame, 0x100000 suffix a, 0x200000 suffix f |
//! | 0x38 | u64  | bytes of the image where the payload is compressed, else 0 |
//!
//! `-compress-all` writes LZ4 up to 12.x and zstd in 13.x, `--compress-mode=size` zstd, `speed` LZ4.

use crate::plan::capability::{Capability, Suffix};
use std::borrow::Cow;
use std::fmt;
use std::io::Read;

/// What a container begins with.
pub(super) const MAGIC: u32 = 0xBA55_ED50;

const LZ4: u64 = 0x2000;
const ZSTD: u64 = 0x8000;
const SUFFIX_A: u64 = 0x10_0000;
const SUFFIX_F: u64 = 0x20_0000;

/// Bytes of an entry's fixed header.
const ENTRY: usize = 0x40;

/// No image is larger: a length above this is damage, and memory for it is not asked for.
const LARGEST: u64 = 1 << 32;

/// An image's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Machine code.
    Elf,
    /// Assembly text that a driver compiles.
    Ptx,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Elf => "elf",
            Kind::Ptx => "ptx",
        })
    }
}

/// What an image is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Code {
    pub(super) kind: Kind,
    pub(super) capability: Capability,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.capability)
    }
}

/// How a payload is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stored {
    Plain,
    Lz4,
    Zstd,
}

/// One image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    pub(super) code: Code,
    stored: Stored,
    /// Without padding where it is compressed.
    payload: &'a [u8],
    /// Bytes of the image where it is compressed.
    length: u64,
}

/// One container, and the bytes that it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Container<'a> {
    /// Where it begins in the section.
    pub(super) offset: usize,
    pub(super) bytes: &'a [u8],
    pub(super) entries: Vec<Entry<'a>>,
}

/// Bytes at a place, or which place lacks them.
fn take(data: &[u8], at: usize, count: usize) -> Result<&[u8], String> {
    at.checked_add(count)
        .and_then(|end| data.get(at..end))
        .ok_or_else(|| format!("it ends inside of {count} bytes at {at:#x}"))
}

fn number<const N: usize>(data: &[u8], at: usize) -> Result<u64, String> {
    let mut bytes = [0; 8];
    bytes[..N].copy_from_slice(take(data, at, N)?);
    Ok(u64::from_le_bytes(bytes))
}

fn length<const N: usize>(data: &[u8], at: usize) -> Result<usize, String> {
    let value = number::<N>(data, at)?;
    usize::try_from(value).map_err(|_| format!("{value} bytes at {at:#x} are more than memory has"))
}

/// The containers of a section. Between them is nothing but zeros.
pub(super) fn containers(section: &[u8]) -> Result<Vec<Container<'_>>, String> {
    let mut containers = Vec::new();
    let mut at = 0;
    while let Some(skip) = section[at..].iter().position(|b| *b != 0) {
        // Containers begin at multiples of 8, and their first byte is none of the zeros before.
        at += skip;
        let container = container(section, at)?;
        at += container.bytes.len();
        containers.push(container);
    }
    Ok(containers)
}

fn container(section: &[u8], offset: usize) -> Result<Container<'_>, String> {
    let magic = number::<4>(section, offset)?;
    if magic != u64::from(MAGIC) {
        return Err(format!("no container at {offset:#x}: magic {magic:#x} is not {MAGIC:#x}"));
    }
    let version = number::<2>(section, offset + 4)?;
    if version != 1 {
        return Err(format!("container at {offset:#x}: version {version} is not 1"));
    }
    let header = length::<2>(section, offset + 6)?;
    let size = length::<8>(section, offset + 8)?;
    if header < 16 {
        return Err(format!("container at {offset:#x}: a header of {header} bytes"));
    }
    let whole = header.checked_add(size).ok_or("a container without end")?;
    let bytes = take(section, offset, whole).map_err(|why| format!("container at {offset:#x}: {why}"))?;
    let mut entries = Vec::new();
    let mut at = header;
    while at < bytes.len() {
        let (entry, next) = entry(bytes, at)
            .map_err(|why| format!("entry {} at {:#x}: {why}", entries.len(), offset + at))?;
        entries.push(entry);
        at = next;
    }
    Ok(Container { offset, bytes, entries })
}

/// The entry at a place of a container, and the place after it.
fn entry(bytes: &[u8], at: usize) -> Result<(Entry<'_>, usize), String> {
    let fixed = take(bytes, at, ENTRY)?;
    let kind = match number::<2>(fixed, 0)? {
        1 => Kind::Ptx,
        2 => Kind::Elf,
        other => return Err(format!("kind {other} is neither PTX nor ELF")),
    };
    let header = length::<4>(fixed, 4)?;
    if header < ENTRY {
        return Err(format!("a header of {header} bytes"));
    }
    let padded = length::<8>(fixed, 8)?;
    let compressed = length::<4>(fixed, 0x10)?;
    let flags = number::<8>(fixed, 0x28)?;
    let begin = at.checked_add(header).ok_or("a header without end")?;
    let mut payload = take(bytes, begin, padded)?;
    let stored = match (flags & LZ4 != 0, flags & ZSTD != 0) {
        (false, false) => Stored::Plain,
        (true, false) => Stored::Lz4,
        (false, true) => Stored::Zstd,
        (true, true) => return Err("it claims two compressions".to_owned()),
    };
    if stored != Stored::Plain {
        payload = take(payload, 0, compressed)?;
    }
    let suffix = match (flags & SUFFIX_A != 0, flags & SUFFIX_F != 0) {
        (false, false) => Suffix::None,
        (true, false) => Suffix::A,
        (false, true) => Suffix::F,
        (true, true) => return Err("it claims suffixes a and f".to_owned()),
    };
    let capability = number::<4>(fixed, 0x1c)?;
    let capability = u16::try_from(capability)
        .ok()
        .filter(|c| *c >= 10)
        .ok_or_else(|| format!("{capability} is no capability"))?;
    let capability = Capability { major: capability / 10, minor: capability % 10, suffix };
    let entry = Entry { code: Code { kind, capability }, stored, payload, length: number::<8>(fixed, 0x38)? };
    Ok((entry, begin + padded))
}

impl<'a> Entry<'a> {
    /// Bytes that it takes in the library.
    pub(super) fn size(&self) -> u64 {
        self.payload.len() as u64
    }

    /// The image as its compiler wrote it.
    pub(super) fn image(&self) -> Result<Cow<'a, [u8]>, String> {
        if self.stored != Stored::Plain && self.length > LARGEST {
            return Err(format!("an image of {} bytes", self.length));
        }
        let image = match self.stored {
            Stored::Plain => return Ok(Cow::Borrowed(self.payload)),
            Stored::Lz4 => {
                // A byte of an LZ4 block stands for at most 255.
                if self.length > 255 * (self.size() + 1) {
                    return Err(format!("{} bytes of LZ4 for {} of an image", self.size(), self.length));
                }
                let length = usize::try_from(self.length).map_err(|e| e.to_string())?;
                lz4_flex::block::decompress(self.payload, length).map_err(|e| format!("LZ4: {e}"))?
            }
            Stored::Zstd => {
                let mut image = Vec::new();
                zstd::Decoder::with_buffer(self.payload)
                    .and_then(|decoder| decoder.take(self.length + 1).read_to_end(&mut image))
                    .map_err(|e| format!("zstd: {e}"))?;
                image
            }
        };
        if image.len() as u64 == self.length {
            Ok(Cow::Owned(image))
        } else {
            Err(format!("it decompresses to {} bytes, its header says {}", image.len(), self.length))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a test container is made of.
    struct Image<'a> {
        kind: u16,
        capability: u32,
        flags: u64,
        /// Bytes of optional header parts.
        extra: usize,
        payload: &'a [u8],
        /// Bytes of the image; 0 where it is not compressed.
        length: u64,
    }

    fn plain(kind: u16, capability: u32, flags: u64, payload: &[u8]) -> Image<'_> {
        Image { kind, capability, flags, extra: 0, payload, length: 0 }
    }

    /// A container, byte for byte as fatbinary lays it out.
    fn write(images: &[Image<'_>]) -> Vec<u8> {
        let mut entries = Vec::new();
        for image in images {
            let padded = image.payload.len().next_multiple_of(8);
            let compressed = if image.length == 0 { 0 } else { image.payload.len() };
            let (header, compressed) = (ENTRY + image.extra, u32::try_from(compressed).unwrap());
            entries.extend(image.kind.to_le_bytes());
            entries.extend([1, 1]);
            entries.extend(u32::try_from(header).unwrap().to_le_bytes());
            entries.extend((padded as u64).to_le_bytes());
            entries.extend(compressed.to_le_bytes());
            entries.extend([0; 4]);
            entries.extend([8, 0, 1, 0]);
            entries.extend(image.capability.to_le_bytes());
            entries.extend([0; 8]);
            entries.extend((image.flags | 0x11).to_le_bytes());
            entries.extend([0; 8]);
            entries.extend(image.length.to_le_bytes());
            entries.extend(std::iter::repeat_n(0xEE, image.extra));
            entries.extend(image.payload);
            entries.extend(std::iter::repeat_n(0, padded - image.payload.len()));
        }
        let mut container = MAGIC.to_le_bytes().to_vec();
        container.extend([1, 0, 16, 0]);
        container.extend((entries.len() as u64).to_le_bytes());
        container.extend(entries);
        container
    }

    fn sample() -> Vec<u8> {
        let text = b"kernels, kernels, kernels, kernels, kernels, kernels".repeat(9);
        // An LZ4 block by hand: literal "abcd", then 12 bytes from 4 before, then literal "e".
        let lz4 = [0x48, b'a', b'b', b'c', b'd', 4, 0, 0x10, b'e'];
        let zstd = zstd::bulk::compress(&text, 19).unwrap();
        write(&[
            plain(2, 90, 0, b"machine code"),
            Image { kind: 2, capability: 90, flags: LZ4 | SUFFIX_A, extra: 8, payload: &lz4, length: 17 },
            Image {
                kind: 1,
                capability: 103,
                flags: ZSTD | SUFFIX_F,
                extra: 48,
                payload: &zstd,
                length: text.len() as u64,
            },
        ])
    }

    fn read(bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>, String> {
        let mut found = Vec::new();
        for container in containers(bytes)? {
            for entry in container.entries {
                found.push((entry.code.to_string(), entry.image()?.into_owned()));
            }
        }
        Ok(found)
    }

    #[test]
    fn every_kind_suffix_and_compression_is_read() {
        let found = read(&sample()).unwrap();
        let codes: Vec<&str> = found.iter().map(|(code, _)| code.as_str()).collect();
        assert_eq!(codes, ["elf 9.0", "elf 9.0a", "ptx 10.3f"]);
        // What is not compressed keeps its padding: an ELF file and PTX do not mind.
        assert_eq!(found[0].1, b"machine code\0\0\0\0");
        assert_eq!(found[1].1, b"abcdabcdabcdabcde");
        assert!(found[2].1.starts_with(b"kernels, kernels") && found[2].1.len() == 468);
    }

    #[test]
    fn containers_lie_one_after_another_with_zeros_between() {
        let mut section = sample();
        let second = section.len() + 24;
        section.resize(second, 0);
        section.extend(write(&[plain(2, 80, 0, b"")]));
        section.resize(section.len() + 7, 0);
        let found = containers(&section).unwrap();
        let shape: Vec<(usize, usize)> = found.iter().map(|c| (c.offset, c.entries.len())).collect();
        assert_eq!(shape, [(0, 3), (second, 1)]);
        assert_eq!(containers(&[]).unwrap(), []);
        assert_eq!(containers(&[0; 40]).unwrap(), []);
    }

    #[test]
    fn damage_is_named() {
        let change = |at: usize, bytes: &[u8]| {
            let mut sample = sample();
            sample[at..at + bytes.len()].copy_from_slice(bytes);
            read(&sample).unwrap_err()
        };
        for (at, bytes, part) in [
            (0, &[0x51][..], "magic"),
            (4, &[2], "version 2"),
            (6, &[8], "a header of 8 bytes"),
            (8, &[0xff; 8], "without end"),
            (8, &[0xff, 0xff, 0, 0], "it ends inside"),
            (16, &[7], "kind 7"),
            (20, &[63], "a header of 63 bytes"),
            (24, &[0xff; 8], "it ends inside"),
            (16 + 0x1c, &[9], "9 is no capability"),
            (16 + 0x1c, &[0xff, 0xff, 0xff], "is no capability"),
            (16 + 0x29, &[0xa0], "two compressions"),
            (16 + 0x2a, &[0x30], "suffixes a and f"),
            // The image of the LZ4 entry is a byte longer than its header says, then far shorter.
            (96 + 0x38, &[16], "LZ4"),
            (96 + 0x38, &[18], "decompresses to 17 bytes, its header says 18"),
            (96 + 0x38, &[0, 0, 0, 0, 1], "LZ4 for"),
            (96 + 0x38, &[0, 0, 0, 0, 2], "an image of"),
        ] {
            let why = change(at, bytes);
            assert!(why.contains(part), "{at:#x}: {why:?} lacks {part:?}");
        }
    }

    #[test]
    fn no_truncation_and_no_changed_byte_is_a_panic() {
        let sample = sample();
        for end in 0..sample.len() {
            let found = read(&sample[..end]);
            assert_eq!(found.is_ok(), end == 0, "{end}");
        }
        crate::verify::testing::damage(&sample, |damaged| drop(read(damaged)));
    }
}
