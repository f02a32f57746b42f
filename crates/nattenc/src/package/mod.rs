//! Libraries to `dist/<variant>/`: staged beside it, then renamed whole. Nothing there is half-written.

pub mod driver;
pub mod manifest;

use crate::failure::Failure;
use crate::fs;
use manifest::{Facts, File, Needs};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The file that makes a directory an artifact.
pub const MANIFEST: &str = "manifest.json";

/// A file to package: its path in the artifact and its bytes.
pub type Contents = BTreeMap<String, Vec<u8>>;

/// What packaging did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packaged {
    /// A new artifact is in place.
    Written,
    /// The artifact there was this very one.
    Unchanged,
}

/// The digest of every file to package, by path.
pub fn files(contents: &Contents) -> Vec<File> {
    contents
        .iter()
        .map(|(path, bytes)| File {
            path: path.clone(),
            sha256: fs::sha256_of(bytes),
            size: bytes.len() as u64,
        })
        .collect()
}

/// The text of `manifest.json`.
pub fn manifest_text(
    plan: &crate::plan::Plan,
    facts: &Facts,
    needs: &Needs,
    files: &[File],
) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(&manifest::manifest(plan, facts, needs, files))? + "\n")
}

/// Whether `dist` holds this very manifest, in the file `name`, and files that all have the digests it states,
/// as `digest` has them.
pub fn is_current(
    dist: &Path,
    name: &str,
    manifest: &str,
    files: &[File],
    digest: &dyn Fn(&Path) -> anyhow::Result<String>,
) -> anyhow::Result<bool> {
    if fs::read_if_exists(&dist.join(name))?.as_deref() != Some(manifest.as_bytes()) {
        return Ok(false);
    }
    for file in files {
        if !holds(dist, file, digest)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether `dist` has this file.
pub fn holds(
    dist: &Path,
    file: &File,
    digest: &dyn Fn(&Path) -> anyhow::Result<String>,
) -> anyhow::Result<bool> {
    let path = dist.join(&file.path);
    Ok(path.is_file() && fs::size(&path)? == file.size && digest(&path)? == file.sha256)
}

/// Whether everything in `dist` is one of these files or the manifest.
pub fn holds_nothing_else(dist: &Path, name: &str, files: &[File]) -> anyhow::Result<bool> {
    for entry in walkdir::WalkDir::new(dist) {
        let entry = entry?;
        let path = entry.path().strip_prefix(dist)?;
        let known = path == Path::new(name) || files.iter().any(|file| Path::new(&file.path) == path);
        if !entry.file_type().is_dir() && !known {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Puts `contents` and the manifest, in the file `manifest_name`, in the place of what `dist` holds of the same
/// kind, once `check` has found nothing wrong with them where they are staged.
///
/// Refuses, with class configuration, to replace a directory that nattenc did not make.
pub fn write(
    dist: &Path,
    manifest_name: &str,
    contents: &Contents,
    manifest: &str,
    check: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let parent = dist.parent().unwrap_or(Path::new("."));
    let name = dist.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    may_replace(dist, manifest_name)?;
    let staged = parent.join(format!(".{name}.new"));
    let old = parent.join(format!(".{name}.old"));
    fs::remove_dir(&staged)?;
    for (path, bytes) in contents {
        fs::write(&staged.join(path), bytes)?;
    }
    fs::write(&staged.join(manifest_name), manifest.as_bytes())?;
    if let Err(error) = check(&staged) {
        fs::remove_dir(&staged)?;
        return Err(error);
    }
    fs::remove_dir(&old)?;
    if dist.exists() {
        fs::rename(dist, &old)?;
    }
    fs::rename(&staged, dist)?;
    fs::remove_dir(&old)
}

/// Fails, with class configuration, where `dist` is something without a manifest of this name by nattenc. An
/// empty directory may be taken.
pub fn may_replace(dist: &Path, manifest_name: &str) -> anyhow::Result<()> {
    let empty = || dist.is_dir() && fs::list(dist).is_ok_and(|entries| entries.is_empty());
    if !dist.exists() || is_ours(dist, manifest_name) || empty() {
        return Ok(());
    }
    Err(Failure::config(format!(
        "{}: is there already and has no {manifest_name} of nattenc",
        dist.display()
    ))
    .hint(format!("move {} away, or give another --dist", dist.display()))
    .into())
}

/// Whether nattenc made the directory, with a manifest of this name, which may therefore be replaced or removed.
pub fn is_ours(dist: &Path, manifest_name: &str) -> bool {
    let text = fs::read_if_exists(&dist.join(manifest_name)).ok().flatten().unwrap_or_default();
    serde_json::from_slice::<serde_json::Value>(&text).is_ok_and(|v| v["format_version"].is_u64())
}

/// The licence texts of everything inside the libraries, by their path in the artifact.
///
/// `sources` is the unpacked sdist, `toolkit` the toolkit's home.
pub fn licences(sources: &Path, toolkit: &Path) -> anyhow::Result<Contents> {
    let mut contents = Contents::new();
    for (from, to) in [
        (sources.join("LICENSE"), "LICENSES/NATTEN.txt"),
        (sources.join("third_party/cutlass/LICENSE.txt"), "LICENSES/CUTLASS.txt"),
    ] {
        contents.insert(to.to_owned(), fs::read(&from)?);
    }
    if let Some(path) = runtime_licence(toolkit)? {
        contents.insert("LICENSES/CUDA-runtime.txt".to_owned(), fs::read(&path)?);
    } else {
        let text = "The libraries here hold parts of NVIDIA's CUDA runtime, under the licence agreement of the\nCUDA toolkit that they were built with. That toolkit came without a copy of it.\n";
        contents.insert("LICENSES/CUDA-runtime.txt".to_owned(), text.as_bytes().to_vec());
    }
    Ok(contents)
}

/// The runtime's licence: inside its wheel's metadata, two levels above a home made of wheels, or at the
/// top of an installed toolkit.
fn runtime_licence(toolkit: &Path) -> anyhow::Result<Option<PathBuf>> {
    if let Some(tree) = toolkit.parent().and_then(Path::parent)
        && tree.join("nvidia").is_dir()
    {
        for entry in fs::list(tree)? {
            let name = entry.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            if name.starts_with("nvidia_cuda_runtime-") && name.ends_with(".dist-info") {
                for candidate in ["licenses/License.txt", "License.txt"] {
                    let path = entry.join(candidate);
                    if path.is_file() {
                        return Ok(Some(path));
                    }
                }
            }
        }
    }
    Ok(["EULA.txt", "LICENSE"].iter().map(|n| toolkit.join(n)).find(|p| p.is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(text: &str) -> Contents {
        Contents::from([("lib/a".to_owned(), text.as_bytes().to_vec())])
    }

    const TEXT: &str = "{\"format_version\": 1}";

    fn fine(_: &Path) -> anyhow::Result<()> {
        Ok(())
    }

    #[test]
    fn artifact_that_fails_its_check_replaces_nothing() {
        let root = tempfile::tempdir().unwrap();
        let dist = root.path().join("dist/cu130");
        write(&dist, MANIFEST, &contents("old"), TEXT, fine).unwrap();
        let check = |staged: &Path| {
            assert_eq!(fs::read_text(&staged.join("lib/a")).unwrap(), "new");
            Err(Failure::integrity("wrong").into())
        };
        let error = write(&dist, MANIFEST, &contents("new"), TEXT, check).unwrap_err();
        assert_eq!(crate::failure::class(&error), crate::failure::Class::Integrity);
        assert_eq!(fs::read_text(&dist.join("lib/a")).unwrap(), "old");
        assert_eq!(fs::list(&root.path().join("dist")).unwrap(), [dist]);
    }

    #[test]
    fn artifact_is_replaced_whole() {
        let root = tempfile::tempdir().unwrap();
        let dist = root.path().join("dist/cu130");
        write(&dist, MANIFEST, &contents("old"), TEXT, fine).unwrap();
        fs::write(&dist.join("lib/stale"), b"x").unwrap();
        write(&dist, MANIFEST, &contents("new"), TEXT, fine).unwrap();
        assert_eq!(fs::read_text(&dist.join("lib/a")).unwrap(), "new");
        assert!(!dist.join("lib/stale").exists());
        assert_eq!(fs::list(&root.path().join("dist")).unwrap(), [dist]);
    }

    #[test]
    fn directory_of_someone_else_is_not_replaced() {
        let root = tempfile::tempdir().unwrap();
        let dist = root.path().join("dist");
        fs::write(&dist.join("precious"), b"x").unwrap();
        let error = write(&dist, MANIFEST, &contents("new"), TEXT, fine).unwrap_err();
        assert_eq!(crate::failure::class(&error), crate::failure::Class::Config);
        assert!(dist.join("precious").exists());
    }

    #[test]
    fn changed_byte_of_a_packaged_file_is_noticed() {
        let root = tempfile::tempdir().unwrap();
        let dist = root.path().join("dist");
        let files = files(&contents("same"));
        write(&dist, MANIFEST, &contents("same"), TEXT, fine).unwrap();
        assert!(is_current(&dist, MANIFEST, TEXT, &files, &fs::sha256).unwrap());
        fs::write(&dist.join("lib/a"), b"sane").unwrap();
        assert!(!is_current(&dist, MANIFEST, TEXT, &files, &fs::sha256).unwrap());
    }
}
