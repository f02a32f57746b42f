//! The CUTLASS headers that units are compiled against: those inside NATTEN's sources, or others that
//! build.toml names together with the range of versions that they may have.
//!
//! Others are laid over the sources by links, so that every path in a compiler's arguments and in its output
//! is the same as without, and keys follow from the headers' bytes alone.

use crate::config::{Config, Cutlass, CutlassSource};
use crate::execute::Digests;
use crate::execute::cache::Key;
use crate::failure::Failure;
use crate::{fetch, fs};
use std::path::{Path, PathBuf};

/// Where NATTEN's sources have CUTLASS.
const INSIDE: &str = "third_party/cutlass";

/// CUTLASS headers that build.toml names, of a version that it allows.
pub struct Replacement {
    /// The directory that holds `include`.
    root: PathBuf,
    /// Its version.
    pub version: String,
}

/// What build.toml names, if anything: fetched if need be, its version read and checked.
///
/// Fails with class configuration where there is no readable version, or one outside of the declared range.
pub fn replacement(
    config: &Config,
    root: &Path,
    fetching: &fetch::Options,
    progress: &dyn fetch::Progress,
) -> anyhow::Result<Option<Replacement>> {
    let Some(Cutlass { source, versions, at }) = &config.cutlass else { return Ok(None) };
    let (name, directory) = match source {
        CutlassSource::Path(path) => (path.display().to_string(), root.join(path)),
        CutlassSource::Archive { archive, sha256 } => {
            (archive.clone(), fetch::archive(fetching, "cutlass", root, archive, sha256, progress)?.root)
        }
    };
    let wrong = |what: String| {
        Failure::config(format!("{at}: cutlass {name}: {what}")).hint(
            "name a CUTLASS checkout or archive whose include/cutlass/version.h is in the declared range",
        )
    };
    let found = version(&directory.join("include"))
        .map_err(|why| wrong(format!("its version cannot be read, and {versions} is declared: {why}")))?;
    let allowed = semver::Version::parse(&found).is_ok_and(|found| versions.matches(&found));
    if !allowed {
        return Err(wrong(format!("has version {found}, outside of the declared {versions}")).into());
    }
    Ok(Some(Replacement { root: fs::real_path(&directory)?, version: found }))
}

/// `sources` with the replacement in the place of its own CUTLASS, laid out below `build_dir`. Where both have
/// the same bytes, `sources` is returned as it is, and so is every key that follows from it.
pub fn laid_over(
    sources: fetch::Tree,
    replacement: &Replacement,
    build_dir: &Path,
    digests: &dyn Digests,
) -> anyhow::Result<fetch::Tree> {
    let own = sources.root.join(INSIDE);
    let theirs = digest(&replacement.root.join("include"), digests)?;
    if theirs == digest(&own.join("include"), digests)? {
        return Ok(sources);
    }
    let at = fs::real_path(build_dir)?.join("upstream");
    let licence = [&replacement.root, &own].map(|root| root.join("LICENSE.txt"));
    let licence = licence.iter().find(|path| path.is_file()).unwrap_or(&licence[1]);
    for (target, name) in [
        (sources.root.join("csrc"), "csrc".to_owned()),
        (sources.root.join("LICENSE"), "LICENSE".to_owned()),
        (replacement.root.join("include"), format!("{INSIDE}/include")),
        (licence.clone(), format!("{INSIDE}/LICENSE.txt")),
    ] {
        fs::symlink(&fs::real_path(&target)?, &at.join(name))?;
    }
    let mut key = Key::new("sources with another CUTLASS");
    key.add("sources", &sources.digest);
    key.add("cutlass", &theirs);
    Ok(fetch::Tree { root: at, digest: key.finish(), files: sources.files })
}

/// The digest of every header, by path and content.
fn digest(include: &Path, digests: &dyn Digests) -> anyhow::Result<String> {
    let mut key = Key::new("cutlass");
    for entry in walkdir::WalkDir::new(include).follow_links(true).sort_by_file_name() {
        let entry = entry.map_err(|error| {
            Failure::config(format!("{}: cannot be read: {error}", include.display()))
                .hint("repair that directory, or name another in build.toml")
        })?;
        if entry.file_type().is_file() {
            let name = entry.path().strip_prefix(include).unwrap_or(entry.path());
            key.add(&name.display().to_string(), &digests.sha256(entry.path())?);
        }
    }
    Ok(key.finish())
}

/// The version of the CUTLASS headers in `include`, as `4.3.5`; else why it cannot be told.
pub fn version(include: &Path) -> Result<String, String> {
    let path = include.join("cutlass/version.h");
    let bytes = fs::read_if_exists(&path).map_err(|error| error.to_string())?;
    let bytes = bytes.ok_or_else(|| format!("{}: is not there", path.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let mut parts = Vec::new();
    for part in ["CUTLASS_MAJOR", "CUTLASS_MINOR", "CUTLASS_PATCH"] {
        let number = text.lines().find_map(|line| {
            let mut words = line.trim().strip_prefix('#')?.split_whitespace();
            (words.next() == Some("define") && words.next() == Some(part))
                .then(|| words.next()?.parse::<u32>().ok())?
        });
        let number = number.ok_or_else(|| format!("{}: defines no number {part}", path.display()))?;
        parts.push(number.to_string());
    }
    Ok(parts.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Place;
    use crate::failure::{Class, class};

    /// Reads every file.
    struct Reading;

    impl Digests for Reading {
        fn sha256(&self, path: &Path) -> anyhow::Result<String> {
            fs::sha256(path)
        }
    }

    fn version_text(version: [u32; 3]) -> String {
        let [major, minor, patch] = version;
        format!(
            "#define CUTLASS_MAJOR {major}\n# define  CUTLASS_MINOR {minor}\n#define CUTLASS_PATCH {patch}\n"
        )
    }

    /// A CUTLASS with a version and one header.
    fn cutlass(at: &Path, version: [u32; 3], header: &str) {
        fs::write(&at.join("include/cutlass/version.h"), version_text(version).as_bytes()).unwrap();
        fs::write(&at.join("include/cute/tensor.hpp"), header.as_bytes()).unwrap();
        fs::write(&at.join("LICENSE.txt"), b"BSD").unwrap();
    }

    fn find(root: &Path, source: CutlassSource) -> anyhow::Result<Option<Replacement>> {
        let mut config =
            crate::config::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../build.toml")).unwrap();
        let at = Place { file: "build.toml".into(), line: 8, column: 1 };
        config.cutlass = Some(Cutlass { source, versions: ">=4.3, <4.6".parse().unwrap(), at });
        let fetching = fetch::Options {
            home: root.join("home"),
            lock_file: root.join("nattenc.lock"),
            offline: true,
            locked: true,
            python: None,
        };
        replacement(&config, root, &fetching, &fetch::Silent)
    }

    #[test]
    fn the_version_decides_whether_other_headers_may_be_used() {
        let dir = tempfile::tempdir().unwrap();
        for (version, allowed) in
            [([4, 3, 0], true), ([4, 5, 9], true), ([4, 2, 9], false), ([4, 6, 0], false), ([3, 9, 2], false)]
        {
            cutlass(&dir.path().join("deps/cutlass"), version, "");
            let found = find(dir.path(), CutlassSource::Path("deps/cutlass".into()));
            let text = version.map(|n| n.to_string()).join(".");
            match found {
                Ok(found) => assert!(allowed && found.unwrap().version == text),
                Err(error) => {
                    assert!(!allowed);
                    assert_eq!(class(&error), Class::Config);
                    let want = format!(
                        "build.toml:8:1: cutlass deps/cutlass: has version {text}, outside of the declared >=4.3, <4.6"
                    );
                    assert_eq!(error.to_string(), want);
                }
            }
        }
    }

    #[test]
    fn headers_without_a_readable_version_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |part: &str| {
            let error = find(dir.path(), CutlassSource::Path("c".into())).err().unwrap();
            assert_eq!(class(&error), Class::Config);
            assert!(error.to_string().contains(part) && error.to_string().contains(">=4.3, <4.6"), "{error}");
        };
        refused("version.h: is not there");
        fs::write(&dir.path().join("c/include/cutlass/version.h"), b"#define CUTLASS_MAJOR 4\n").unwrap();
        refused("defines no number CUTLASS_MINOR");
    }

    #[test]
    fn the_same_bytes_elsewhere_are_the_same_sources_and_others_are_laid_over_them() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::real_path(dir.path()).unwrap();
        let own = root.join("natten");
        fs::write(&own.join("csrc/include/natten/x.h"), b"x").unwrap();
        fs::write(&own.join("LICENSE"), b"MIT").unwrap();
        cutlass(&own.join(INSIDE), [4, 3, 5], "one");
        cutlass(&root.join("other"), [4, 3, 5], "one");
        let sources = fetch::Tree { root: own, digest: "0".repeat(64), files: vec![] };
        let found = || find(&root, CutlassSource::Path("other".into())).unwrap().unwrap();
        let (build, at) = (root.join("build"), root.join("build/upstream"));
        fs::create_dir(&build).unwrap();
        assert_eq!(laid_over(sources.clone(), &found(), &build, &Reading).unwrap(), sources);
        assert!(!at.exists());

        cutlass(&root.join("other"), [4, 3, 5], "two");
        let over = laid_over(sources.clone(), &found(), &build, &Reading).unwrap();
        assert_eq!(over.root, at);
        assert_ne!(over.digest, sources.digest);
        for (path, text) in [
            ("csrc/include/natten/x.h", "x"),
            ("LICENSE", "MIT"),
            ("third_party/cutlass/include/cute/tensor.hpp", "two"),
            ("third_party/cutlass/LICENSE.txt", "BSD"),
        ] {
            assert_eq!(fs::read_text(&at.join(path)).unwrap(), text);
        }
        assert_eq!(laid_over(sources.clone(), &found(), &build, &Reading).unwrap(), over);
        cutlass(&root.join("other"), [4, 3, 5], "three");
        assert_ne!(laid_over(sources, &found(), &build, &Reading).unwrap().digest, over.digest);
    }

    #[test]
    fn an_archive_is_checked_against_its_hash_and_unpacked_without_its_top_directory() {
        let dir = tempfile::tempdir().unwrap();
        let mut archive =
            tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
        for (name, text) in [
            ("cutlass-4.4.1/include/cutlass/version.h", version_text([4, 4, 1])),
            ("cutlass-4.4.1/LICENSE.txt", "BSD".to_owned()),
        ] {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, name, text.as_bytes()).unwrap();
        }
        let bytes = archive.into_inner().unwrap().finish().unwrap();
        fs::write(&dir.path().join("deps/cutlass.tar.gz"), &bytes).unwrap();
        let of = |sha256: String| CutlassSource::Archive { archive: "deps/cutlass.tar.gz".into(), sha256 };
        let found = find(dir.path(), of(fs::sha256_of(&bytes))).unwrap().unwrap();
        assert_eq!(found.version, "4.4.1");
        assert!(found.root.join("LICENSE.txt").is_file());
        let error = find(dir.path(), of("0".repeat(64))).err().unwrap();
        assert_eq!(class(&error), Class::Integrity, "{error}");
        assert!(error.to_string().contains("cutlass.tar.gz"), "{error}");
    }
}
