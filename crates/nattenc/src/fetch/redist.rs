//! NVIDIA's redistributable archives: `redistrib_<release>.json` names, for each component and platform,
//! a path relative to the base URL, a SHA-256 and a size.

use super::Target;
use super::lock::{Key, Kind, Pinned, is_relative_path, is_sha256};
use super::session::{Session, Source, held, source_differs};
use super::url::Url;
use crate::failure::Failure;
use serde_json::Value;
use std::sync::{Arc, Mutex};

/// One release behind a base URL.
pub(super) struct RedistSource<'s, 'a> {
    session: &'s Session<'a>,
    base: Url,
    release: String,
    manifest: Mutex<Option<Arc<Value>>>,
}

/// One file as the manifest states it.
#[derive(Debug, PartialEq, Eq)]
struct Stated {
    file: String,
    sha256: String,
    size: Option<u64>,
}

impl<'s, 'a> RedistSource<'s, 'a> {
    pub(super) fn new(session: &'s Session<'a>, base: &str, release: &str) -> anyhow::Result<Self> {
        let base = Url::parse(base).map_err(|e| {
            Failure::config(format!("redist: the base URL cannot be used: {e}"))
                .hint("give the https URL of the directory that holds redistrib_<release>.json")
        })?;
        if !is_relative_path(&format!("redistrib_{release}.json")) || release.contains('/') {
            return Err(Failure::config(format!("redist: {release:?} is no release"))
                .hint("write it as in \"12.8.1\"")
                .into());
        }
        Ok(RedistSource { session, base, release: release.to_owned(), manifest: Mutex::new(None) })
    }

    fn manifest_url(&self) -> Url {
        self.base.below(&format!("redistrib_{}.json", self.release))
    }

    fn manifest(&self) -> anyhow::Result<Arc<Value>> {
        let mut manifest = held(&self.manifest);
        if let Some(known) = &*manifest {
            return Ok(Arc::clone(known));
        }
        self.session.without_index()?;
        let url = self.manifest_url();
        let Some(bytes) = self.session.page(&url, "application/json, */*;q=0.5")? else {
            return Err(Failure::config(format!("{url}: there is no such manifest"))
                .hint("check release and base URL of the variant's redist provider")
                .into());
        };
        let value: Value = serde_json::from_slice(&bytes).map_err(|e| {
            Failure::config(format!("{url}: not a manifest: {e}"))
                .hint("check the base URL of the redist provider")
        })?;
        let value = Arc::new(value);
        *manifest = Some(Arc::clone(&value));
        Ok(value)
    }
}

impl Source for RedistSource<'_, '_> {
    fn resolve(&self, key: &Key) -> anyhow::Result<Vec<Pinned>> {
        let manifest = self.manifest()?;
        let mut pins = Vec::new();
        for target in Target::ALL {
            let platform = target.redist_platform();
            let stated = match state(&manifest, &key.name, platform) {
                Ok(stated) => stated,
                Err(what) if platform == key.platform => {
                    return Err(Failure::config(format!("{}: {what}", self.manifest_url()))
                        .hint("correct `components` or the release of the variant's redist provider")
                        .into());
                }
                Err(_) => continue,
            };
            let key = Key { platform: platform.to_owned(), ..key.clone() };
            pins.push(Pinned { key, file: stated.file, size: stated.size, sha256: stated.sha256 });
        }
        Ok(pins)
    }

    fn locate(&self, pin: &Pinned) -> anyhow::Result<Url> {
        let manifest = self.manifest()?;
        let url = self.base.below(&pin.file);
        match state(&manifest, &pin.key.name, &pin.key.platform) {
            Ok(stated) if stated.sha256 != pin.sha256 => {
                Err(source_differs(pin, &stated.sha256, &self.base.below(&stated.file)).into())
            }
            // Gone from the manifest: the pinned path may still be served, and its bytes are checked.
            Ok(_) | Err(_) => Ok(url),
        }
    }
}

/// The key of a component.
pub(super) fn key(component: &str, release: &str, target: Target) -> Key {
    Key {
        kind: Kind::Redist,
        name: component.to_owned(),
        version: release.to_owned(),
        platform: target.redist_platform().to_owned(),
    }
}

fn state(manifest: &Value, component: &str, platform: &str) -> Result<Stated, String> {
    let components = manifest.as_object().ok_or("not a manifest: no object")?;
    let Some(found) = components.get(component).and_then(Value::as_object) else {
        let known: Vec<&str> =
            components.iter().filter(|(_, v)| v.is_object()).map(|(k, _)| k.as_str()).collect();
        return Err(format!("no component {component:?}; there are {}", known.join(" ")));
    };
    let Some(file) = found.get(platform).and_then(Value::as_object) else {
        let known: Vec<&str> = found.iter().filter(|(_, v)| v.is_object()).map(|(k, _)| k.as_str()).collect();
        return Err(format!(
            "component {component:?} is not there for {platform:?}; there are {}",
            known.join(" ")
        ));
    };
    let text = |field: &str| file.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (path, sha256) = (text("relative_path"), text("sha256").to_ascii_lowercase());
    if !is_relative_path(&path) || !path.ends_with(".tar.xz") {
        return Err(format!("component {component:?}: {path:?} is no relative path of a .tar.xz archive"));
    }
    if !is_sha256(&sha256) {
        return Err(format!("component {component:?}: {sha256:?} is no SHA-256"));
    }
    // The field is text in NVIDIA's manifests.
    let size = file.get("size").and_then(|s| s.as_u64().or_else(|| s.as_str()?.parse().ok()));
    Ok(Stated { file: path, sha256, size })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_states_path_hash_and_size_or_what_is_wrong() {
        let hash = "ab".repeat(32);
        let file = |path: &str, sha256: &str, size: Value| serde_json::json!({"relative_path": path, "sha256": sha256, "md5": "0", "size": size});
        let manifest = serde_json::json!({
            "release_date": "2025-01-01", "release_label": "12.8.1",
            "cuda_nvcc": {
                "name": "CUDA NVCC", "version": "12.8.93",
                "linux-x86_64": file("cuda_nvcc/linux-x86_64/a.tar.xz", &hash, "123".into()),
                "linux-sbsa": file("cuda_nvcc/linux-sbsa/a.tar.xz", &hash.to_uppercase(), 124.into()),
                "windows-x86_64": file("cuda_nvcc/a.zip", &hash, "1".into()),
                "out": file("../a.tar.xz", &hash, "1".into()),
                "short": file("a.tar.xz", "ab", "1".into()),
            },
        });
        let at = |platform: &str| state(&manifest, "cuda_nvcc", platform);
        let stated =
            |file: &str, size: u64| Stated { file: file.to_owned(), sha256: hash.clone(), size: Some(size) };
        assert_eq!(at("linux-x86_64").unwrap(), stated("cuda_nvcc/linux-x86_64/a.tar.xz", 123));
        assert_eq!(at("linux-sbsa").unwrap(), stated("cuda_nvcc/linux-sbsa/a.tar.xz", 124));
        for (result, message) in [
            (at("windows-x86_64"), "cuda_nvcc/a.zip"),
            (at("out"), "../a.tar.xz"),
            (at("short"), "\"ab\" is no SHA-256"),
            (at("linux-ppc64le"), "there are linux-sbsa linux-x86_64"),
            (state(&manifest, "cuda_nvvm", "linux-x86_64"), "there are cuda_nvcc"),
            (state(&Value::Null, "cuda_nvcc", "linux-x86_64"), "not a manifest"),
        ] {
            let error = result.unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
