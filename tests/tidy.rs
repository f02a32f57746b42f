//! The shape of the tree: what no compiler checks.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "reads the tree as it is; a test may panic"
)]

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the checkout is there")
}

fn files(dir: &str, extension: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = walkdir::WalkDir::new(root().join(dir))
        .sort_by_file_name()
        .into_iter()
        .map(|e| e.unwrap().into_path())
        .filter(|p| p.extension().is_some_and(|e| e == extension))
        .collect();
    found.sort();
    found
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn every_rust_file_says_what_it_is_first() {
    let all: Vec<PathBuf> = ["crates", "tests"].iter().flat_map(|d| files(d, "rs")).collect();
    assert!(all.len() > 20);
    for path in all {
        assert!(text(&path).starts_with("//!"), "{}", path.display());
    }
}

#[test]
fn architecture_names_every_folder_of_nattenc() {
    let map = text(&root().join("ARCHITECTURE.md"));
    for entry in std::fs::read_dir(root().join("crates/nattenc/src")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            let name = format!("crates/nattenc/src/{}/", entry.file_name().to_string_lossy());
            assert!(map.contains(&name), "ARCHITECTURE.md does not name {name}");
        }
    }
}

#[test]
fn every_template_and_every_native_source_is_in_the_binary() {
    let sources: String = files("crates/nattenc/src", "rs").iter().map(|p| text(p)).collect();
    let mut embedded: Vec<PathBuf> = Vec::new();
    for (dir, extensions) in [
        ("templates", &["tera", "toml"][..]),
        ("crates/natten-kernels/csrc", &["h", "cuh", "cpp"]),
        ("crates/natten-kernels/include", &["h"]),
    ] {
        embedded.extend(extensions.iter().flat_map(|e| files(dir, e)));
    }
    assert!(embedded.len() > 10);
    for path in embedded {
        let relative = path.strip_prefix(root()).unwrap().display().to_string();
        // Macros of the generator join the folder; the rest of the path is written out.
        let tail = ["crates/natten-kernels/csrc/", "crates/natten-kernels/", "templates/"]
            .iter()
            .find_map(|folder| relative.strip_prefix(folder))
            .unwrap();
        let quoted = [format!("\"{tail}\""), format!("/{tail}\"")];
        assert!(quoted.iter().any(|q| sources.contains(q)), "{relative} is not embedded");
    }
}

/// What `cargo package` would take of natten-kernels: its `include` list, read as the folders it names.
#[test]
fn the_crate_that_users_add_is_below_a_megabyte() {
    let root = root().join("crates/natten-kernels");
    let manifest: toml::Table = toml::from_str(&text(&root.join("Cargo.toml"))).unwrap();
    let include = manifest["package"]["include"].as_array().unwrap();
    let mut bytes = 0;
    for pattern in include {
        let folder = root.join(pattern.as_str().unwrap().trim_end_matches("/**"));
        let sizes: Vec<u64> = walkdir::WalkDir::new(&folder)
            .into_iter()
            .map(|entry| entry.unwrap().metadata().unwrap())
            .filter(std::fs::Metadata::is_file)
            .map(|metadata| metadata.len())
            .collect();
        assert!(!sizes.is_empty(), "{} is empty", folder.display());
        bytes += sizes.iter().sum::<u64>();
    }
    assert!((100_000..1_000_000).contains(&bytes), "{bytes} bytes before compression");
}

#[test]
fn every_environment_variable_of_the_readme_is_declared() {
    let readme = text(&root().join("README.md"));
    for word in
        readme.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|w| w.starts_with("NATTENC_"))
    {
        assert!(nattenc::env::VARIABLES.iter().any(|v| v.name == word), "{word}");
    }
}
