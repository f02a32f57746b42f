//! Which artifact the build script of natten-kernels links: the search, over directories made here.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![expect(clippy::disallowed_methods, reason = "the project's doors to files are in another crate")]

#[path = "../crates/natten-kernels/build/find.rs"]
mod find;

use find::{Artifact, Found, Linkage, Vars, find};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

struct Workspace(TempDir);

impl Workspace {
    fn new() -> Workspace {
        Workspace(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// A whole artifact in `dist/<variant>`, with its manifest changed by `edit`.
    fn artifact(&self, variant: &str, edit: impl Fn(String) -> String) -> PathBuf {
        let directory = self.path().join("dist").join(variant);
        std::fs::create_dir_all(directory.join("lib")).unwrap();
        for (name, bytes) in
            [("libnatten_kernels.a", 8), ("libcudart_static.a", 5), ("libnatten_kernels.so", 3)]
        {
            std::fs::write(directory.join("lib").join(name), vec![b'x'; bytes]).unwrap();
        }
        let manifest = format!(
            r#"{{ "format_version": 1, "variant": "{variant}", "target": "x86_64-linux",
                "build": {{ "toolkit": "13.0.88", "backends": {{}} }},
                "link": {{ "static": ["natten_kernels", "cudart_static"], "shared": ["natten_kernels"],
                           "system": ["stdc++", "dl", "rt", "pthread"] }},
                "files": [ {{ "path": "include/natten_kernels.h", "sha256": "00", "size": 1 }},
                           {{ "path": "include/natten_kernels_merge.h", "sha256": "00", "size": 1 }},
                           {{ "path": "lib/libnatten_kernels.a", "sha256": "00", "size": 8 }},
                           {{ "path": "lib/libcudart_static.a", "sha256": "00", "size": 5 }},
                           {{ "path": "lib/libnatten_kernels.so", "sha256": "00", "size": 3 }} ],
                "sections": {{}}, "kernels": [] }}"#
        );
        std::fs::write(directory.join("manifest.json"), edit(manifest)).unwrap();
        directory
    }

    fn vars(&self) -> Vars {
        Vars {
            docs_rs: false,
            variant_dir: None,
            variant: None,
            linkage: Linkage::Static,
            target: "x86_64-linux".into(),
            workspace: self.path().to_owned(),
        }
    }
}

#[track_caller]
fn taken(vars: &Vars) -> Artifact {
    match find(vars) {
        Ok(Found::Artifact(artifact)) => artifact,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn assert_refused(vars: &Vars, parts: &[&str]) {
    let message = find(vars).unwrap_err();
    for part in parts {
        assert!(message.contains(part), "`{message}` lacks `{part}`");
    }
    assert!(!message.contains('\n'), "cargo::error takes one line: {message}");
}

#[test]
fn the_only_artifact_is_linked_and_its_files_and_dist_are_watched() {
    let workspace = Workspace::new();
    let directory = workspace.artifact("cu130", |manifest| manifest).canonicalize().unwrap();
    let artifact = taken(&workspace.vars());
    assert_eq!((artifact.variant.as_str(), artifact.toolkit.as_str()), ("cu130", "13.0.88"));
    assert_eq!(artifact.libraries, ["natten_kernels", "cudart_static"]);
    assert_eq!(artifact.system, ["stdc++", "dl", "rt", "pthread"]);
    assert_eq!(artifact.search, [directory.join("lib")]);
    let files = ["manifest.json", "lib/libnatten_kernels.a", "lib/libcudart_static.a"];
    let mut watched: Vec<PathBuf> = files.map(|file| directory.join(file)).into();
    watched.push(workspace.path().join("dist"));
    assert_eq!(artifact.watch, watched);
    assert!(artifact.watch.iter().all(|path| path.exists()));

    let shared = taken(&Vars { linkage: Linkage::Shared, ..workspace.vars() });
    assert_eq!((shared.libraries, shared.system), (vec!["natten_kernels".to_owned()], Vec::new()));
}

#[test]
fn an_artifact_without_a_static_runtime_adds_its_search_path() {
    let workspace = Workspace::new();
    let directory = workspace
        .artifact("cu128", |manifest| {
            manifest.replace(
                r#""static": ["natten_kernels", "cudart_static"]"#,
                r#""search": ["/usr/local/cuda-12.8/lib64"], "static": ["natten_kernels"]"#,
            )
        })
        .canonicalize()
        .unwrap();
    assert_eq!(taken(&workspace.vars()).search, [directory.join("lib"), "/usr/local/cuda-12.8/lib64".into()]);
}

#[test]
fn of_several_the_named_one_or_the_default_and_never_a_guess() {
    let workspace = Workspace::new();
    workspace.artifact("cu128", |manifest| manifest);
    workspace.artifact("cu130", |manifest| manifest);
    assert_refused(&workspace.vars(), &["several artifacts (cu128, cu130)", "NATTEN_KERNELS_VARIANT"]);
    let named = Vars { variant: Some("cu128".into()), ..workspace.vars() };
    assert_eq!(taken(&named).variant, "cu128");
    let general = |text: &str| std::fs::write(workspace.path().join("build.toml"), text).unwrap();
    general("edition = 1\n[general]\n# comment\ndefault-variant = \"cu130\" # ours\n[section.core]\n");
    assert_eq!(taken(&workspace.vars()).variant, "cu130");
    general("[general]\ndefault-variant = \"cu126\"\n");
    assert_refused(&workspace.vars(), &["cu128, cu130"]);
    general("[other]\ndefault-variant = \"cu130\"\n");
    assert_refused(&workspace.vars(), &["cu128, cu130"]);
}

#[test]
fn what_is_named_and_cannot_be_had_is_an_error() {
    let workspace = Workspace::new();
    workspace.artifact("cu130", |manifest| manifest);
    assert_refused(
        &Vars { variant: Some("cu128".into()), ..workspace.vars() },
        &["NATTEN_KERNELS_VARIANT is `cu128`", "dist/ holds cu130"],
    );
    let elsewhere = workspace.path().join("nowhere");
    assert_refused(
        &Vars { variant_dir: Some(elsewhere), ..workspace.vars() },
        &["NATTEN_KERNELS_VARIANT_DIR is", "nowhere", "cannot read it"],
    );
    // An explicit directory wins over everything, dist/ included.
    let other = Workspace::new();
    let directory = other.artifact("cu126", |manifest| manifest);
    let vars = Vars { variant_dir: Some(directory), variant: Some("cu130".into()), ..workspace.vars() };
    assert_eq!(taken(&vars).variant, "cu126");
}

#[test]
fn a_bad_artifact_is_refused_with_its_reason() {
    let cases: [(&str, &str, &str); 8] = [
        ("\"format_version\": 1", "\"format_version\": 2", "has format 2, this crate reads 1"),
        ("\"format_version\": 1,", "", "missing field `format_version`"),
        ("\"x86_64-linux\"", "\"aarch64-linux\"", "built for aarch64-linux, the target is x86_64-linux"),
        ("\"size\": 8", "\"size\": 9", "has 8 bytes, its manifest.json says 9"),
        ("natten_kernels_merge.h", "other.h", "so an older nattenc built it"),
        ("lib/libcudart_static.a", "lib/other.a", "libcudart_static.a is not in its manifest.json"),
        ("\"cudart_static\"]", "\"missing\"]", "lib/libmissing.a"),
        ("{ \"format", "[ \"format", "cannot be read"),
    ];
    for (from, to, expected) in cases {
        let workspace = Workspace::new();
        let directory = workspace.artifact("cu130", |manifest| {
            assert!(manifest.contains(from), "{from}");
            manifest.replacen(from, to, 1)
        });
        assert_refused(&Vars { variant_dir: Some(directory), ..workspace.vars() }, &[expected]);
        // Nobody asked for it by name. One of another machine is passed over; anything else is an error.
        match find(&workspace.vars()) {
            Ok(Found::Nothing { warning: Some(message), .. }) if expected.contains("aarch64") => {
                assert!(message.contains("dist/cu130") && message.contains(expected), "{message}");
            }
            Err(message) if !expected.contains("aarch64") => {
                assert!(message.contains("dist/cu130") && message.contains(expected), "{message}");
            }
            other => panic!("{other:?}"),
        }
        // Nor is it passed over for another where it is the default.
        if !expected.contains("aarch64") {
            workspace.artifact("cu128", |manifest| manifest);
            std::fs::write(workspace.path().join("build.toml"), "[general]\ndefault-variant = \"cu130\"\n")
                .unwrap();
            assert_refused(&workspace.vars(), &["dist/cu130", expected]);
        }
    }
}

#[test]
fn nothing_is_one_warning_with_the_command_that_builds_something() {
    let workspace = Workspace::new();
    let nothing = |workspace: &Workspace| match find(&workspace.vars()) {
        Ok(Found::Nothing { warning: Some(warning), watch }) => (warning, watch),
        other => panic!("{other:?}"),
    };
    let (warning, watch) = nothing(&workspace);
    assert!(warning.contains("nattenc build --variant cu130 --preset starter"), "{warning}");
    assert!(watch.is_empty(), "a registry's copy of the crate waits for nothing");
    // In the workspace, dist/ is waited for.
    std::fs::write(workspace.path().join("build.toml"), "").unwrap();
    assert_eq!(nothing(&workspace).1, [workspace.path().join("dist")]);
    // Half-written artifacts are not candidates.
    std::fs::create_dir_all(workspace.path().join("dist/.staging-cu130")).unwrap();
    std::fs::create_dir_all(workspace.path().join("dist/cu130/lib")).unwrap();
    assert!(!nothing(&workspace).0.contains("not taken"));
    // Documentation is built without a word.
    let docs = Vars { docs_rs: true, variant: Some("cu999".into()), ..workspace.vars() };
    assert_eq!(find(&docs), Ok(Found::Nothing { warning: None, watch: Vec::new() }));
}
