//! `nattenc verify` from outside: on things that are no artifact, on a real one, and on damaged copies of
//! it whose manifest states the digests of the damaged files, so that the digests alone do not tell.
//! Those with a real artifact take the checkout's dist/cu130: CI runs them with `--ignored` after it built.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "black-box tests start the real binary and lay out real files; a test may panic"
)]

mod support;

use serde_json::{Value, json};
use sha2::Digest;
use std::path::{Path, PathBuf};
use support::{Project, Run, root};

const ARCHIVE: &str = "lib/libnatten_kernels.a";
const SHARED: &str = "lib/libnatten_kernels.so";

#[test]
fn directory_without_an_artifact_is_a_usage_error() {
    let project = Project::new();
    project.write("empty/readme", "x");
    project.write("foreign/manifest.json", "{\"manifest_version\": 3}");
    project.write("list/manifest.json", "[]");
    for (path, part) in [
        ("absent", "no manifest.json"),
        ("empty", "no manifest.json"),
        ("foreign", "format_version"),
        ("list", "format_version"),
    ] {
        project.run(&["verify", path]).check(2, &[path, "is no artifact of nattenc", part]);
    }
    project.run(&["verify"]).check(2, &[]);
}

#[test]
fn manifest_that_cannot_be_checked_against_is_refused() {
    let project = Project::new();
    for (text, parts) in [
        (
            "{\"format_version\": 2, \"variant\": \"cu130\"}",
            ["format_version", "found 2", "a nattenc that is as new"],
        ),
        ("{\"format_version\": 0}", ["format_version", "found 0", "a nattenc that is as new"]),
        ("{\"format_version\": 1, \"vari", ["manifest.json", "expected JSON", "build it again"]),
        ("{\"format_version\": 1}", ["manifest.json", "missing field", "build it again"]),
    ] {
        project.write("dist/manifest.json", text);
        project.run(&["verify", "dist"]).check(8, &parts);
        let verdict = json(&project.run(&["verify", "dist", "--json"]));
        assert_eq!(verdict["ok"], false, "{verdict}");
        assert_eq!(verdict["checks"][0]["name"], "manifest", "{verdict}");
    }
}

#[test]
fn artifact_without_libraries_fails_and_leaves_nothing_ok_that_it_did_not_check() {
    let project = Project::new();
    let manifest = json!({
        "format_version": 1, "variant": "cu130", "build": {}, "sections": [], "units": [],
        "link": { "static": ["natten_kernels"], "shared": ["natten_kernels"], "system": [] },
        "files": [{ "path": "../manifest.json", "sha256": "", "size": 0 }],
    });
    project.write("dist/manifest.json", &manifest.to_string());
    let run = project.run(&["verify", "dist", "--json"]);
    run.check(8, &["integrity", "remove it and build it again"]);
    let verdict = json(&run);
    for check in verdict["checks"].as_array().unwrap() {
        assert_eq!(check["outcome"] == "ok", check["name"] == "manifest", "{check}");
    }
    assert!(run.stdout.contains("a path inside of the artifact"), "{}", run.stdout);
}

fn json(run: &Run) -> Value {
    serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{e}: {}", run.stdout))
}

/// A copy of the checkout's artifact.
struct Copy {
    project: Project,
    dist: PathBuf,
}

impl Copy {
    fn new() -> Copy {
        let project = Project::new();
        let (from, dist) = (root().join("dist/cu130"), project.path("dist"));
        assert!(
            from.join("manifest.json").is_file(),
            "build it: nattenc build --variant cu130 --preset starter"
        );
        for entry in walkdir::WalkDir::new(&from) {
            let entry = entry.unwrap();
            let to = dist.join(entry.path().strip_prefix(&from).unwrap());
            if entry.file_type().is_dir() {
                std::fs::create_dir_all(to).unwrap();
            } else {
                std::fs::copy(entry.path(), to).unwrap();
            }
        }
        Copy { project, dist }
    }

    fn verify(&self, args: &[&str]) -> Run {
        self.project.run(&[&["verify", "dist"], args].concat())
    }

    fn read(&self, path: &str) -> Vec<u8> {
        std::fs::read(self.dist.join(path)).unwrap()
    }

    /// Writes a file and its digest.
    fn write(&self, path: &str, bytes: &[u8]) {
        std::fs::write(self.dist.join(path), bytes).unwrap();
        self.manifest(|manifest| {
            for file in manifest["files"].as_array_mut().unwrap() {
                if file["path"] == path {
                    let digest = sha2::Sha256::digest(bytes);
                    let digest: String = digest.iter().map(|b| format!("{b:02x}")).collect();
                    file["sha256"] = json!(digest);
                    file["size"] = json!(bytes.len());
                }
            }
        });
    }

    fn manifest(&self, change: impl FnOnce(&mut Value)) {
        let path = self.dist.join("manifest.json");
        let mut manifest = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        change(&mut manifest);
        std::fs::write(path, manifest.to_string()).unwrap();
    }

    /// Renames a symbol, to another of as many bytes.
    fn rename(&self, path: &str, from: &str, to: &str) {
        let mut bytes = self.read(path);
        let mut count = 0;
        while let Some(at) = bytes.windows(from.len()).position(|w| w == from.as_bytes()) {
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
            count += 1;
        }
        assert!(count > 0, "{from} is not in {path}");
        self.write(path, &bytes);
    }
}

/// Where the first fatbin is, and its bytes after the header.
fn fatbin(bytes: &[u8]) -> (usize, usize) {
    let at = bytes.windows(8).position(|w| *w == [0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0]).unwrap();
    (at, usize::try_from(u64::from_le_bytes(bytes[at + 8..at + 16].try_into().unwrap())).unwrap())
}

/// Runs `ar` on the archive.
fn ar(dist: &Path, args: &[&str]) {
    let status = std::process::Command::new("ar").args(args).current_dir(dist).status().unwrap();
    assert!(status.success());
}

#[test]
#[ignore = "needs the artifact dist/cu130 of this checkout"]
fn good_artifact_passes_every_check() {
    let copy = Copy::new();
    let run = copy.verify(&[]);
    run.check(0, &[]);
    assert!(run.stderr.is_empty(), "{}", run.stderr);
    assert!(run.stdout.lines().any(|l| l.starts_with("core ")), "{}", run.stdout);
    let verdict = json(&copy.verify(&["--json"]));
    assert_eq!((&verdict["schema_version"], &verdict["ok"]), (&json!(1), &json!(true)));
    let checks = verdict["checks"].as_array().unwrap();
    assert!(checks.len() >= 16 && checks.iter().all(|c| c["outcome"] == "ok"), "{verdict}");
    for row in verdict["code"].as_array().unwrap() {
        assert_eq!(row["elf_claimed"], row["elf_found"], "{row}");
        assert!(row["kernels"].as_u64().unwrap() > 0, "{row}");
    }
}

#[test]
#[ignore = "needs the artifact dist/cu130 of this checkout"]
fn damaged_artifact_fails_the_check_that_names_the_damage() {
    type Damage = fn(&Copy);
    let rows: &[(&str, Damage, &[&str])] = &[
        (
            "the manifest claims PTX of a unit",
            |copy| {
                copy.manifest(|m| {
                    m["units"][0]["gencodes"] = json!(["arch=compute_90,code=[sm_90,compute_90]"]);
                });
            },
            &["failed     code ", "expected elf 9.0, ptx 9.0, found elf 9.0", "0 of 1"],
        ),
        (
            "the manifest claims a capability of a section",
            |copy| {
                copy.manifest(|m| {
                    let capabilities = m["sections"][0]["capabilities"].as_array_mut().unwrap();
                    capabilities.push(json!({ "capability": "12.0", "built": true }));
                });
            },
            &["failed     claims ", "section core: capability 12.0: expected built, found not built"],
        ),
        (
            "an object's cubin is gone",
            |copy| {
                let mut bytes = copy.read(ARCHIVE);
                let (at, size) = fatbin(&bytes);
                bytes[at + 8..at + 16 + size].fill(0);
                copy.write(ARCHIVE, &bytes);
            },
            &[
                "failed     code ",
                "expected elf 9.0, found none",
                "failed     same-code ",
                "in the shared library too",
                "8 of 9",
            ],
        ),
        (
            "a byte of a cubin is another",
            |copy| {
                let mut bytes = copy.read(ARCHIVE);
                let (at, size) = fatbin(&bytes);
                bytes[at + 16 + size / 2] ^= 0x10;
                copy.write(ARCHIVE, &bytes);
            },
            &["failed     images ", "expected an image that can be read", "failed     same-code "],
        ),
        (
            "a cubin is said to be for another capability",
            |copy| {
                let mut bytes = copy.read(ARCHIVE);
                let (at, _) = fatbin(&bytes);
                assert_eq!(bytes[at + 16 + 0x1c], 90);
                bytes[at + 16 + 0x1c] = 100;
                copy.write(ARCHIVE, &bytes);
            },
            &[
                "failed     code ",
                "found elf 10.0",
                "failed     images ",
                "an image for that capability, found 9.0",
            ],
        ),
        (
            "an object is gone from the archive",
            |copy| {
                ar(&copy.dist, &["dD", ARCHIVE, "fna_011.o"]);
                copy.write(ARCHIVE, &copy.read(ARCHIVE));
            },
            &[
                "fna_011.o: expected a member of the archive, found missing",
                "host_registry.o: symbol _ZN7nattenc12unit_fna_011E: expected defined in the archive, found undefined",
            ],
        ),
        (
            "an exported symbol is missing",
            |copy| copy.rename(SHARED, "\0natten_na2d_forward\0", "\0natten_na2d_forwarx\0"),
            &[
                "failed     exports ",
                "exported function natten_na2d_forward: expected present, found missing",
                "exported function natten_na2d_forwarx: expected none of that name, found present",
            ],
        ),
        (
            "a kernel has another name than the manifest says",
            |copy| copy.rename(ARCHIVE, "\0compute_delta_float32\0", "\0compute_delta_float33\0"),
            &["failed     kernels ", "kernel compute_delta_float32: expected present, found missing"],
        ),
        (
            "a digest is wrong",
            |copy| copy.manifest(|m| m["files"][0]["sha256"] = json!("00".repeat(32))),
            &["failed     files ", "expected sha256 0000", "found sha256 "],
        ),
        (
            "a file is longer",
            |copy| {
                let path = copy.dist.join("LICENSES/NATTEN.txt");
                let text = std::fs::read_to_string(&path).unwrap() + "\n";
                std::fs::write(path, text).unwrap();
            },
            &["failed     files ", "LICENSES/NATTEN.txt: expected", "bytes"],
        ),
        (
            "there is a file more and one less",
            |copy| {
                std::fs::rename(copy.dist.join("LICENSES/NATTEN.txt"), copy.dist.join("lib/copy.txt"))
                    .unwrap();
            },
            &["LICENSES/NATTEN.txt: expected a file, found missing", "lib/copy.txt: expected no such file"],
        ),
        (
            "the archive is cut",
            |copy| {
                let bytes = copy.read(ARCHIVE);
                copy.write(ARCHIVE, &bytes[..bytes.len() * 2 / 3]);
            },
            &[
                "failed     archive ",
                "expected an archive of objects, found after",
                "expected a member of the archive",
            ],
        ),
        (
            "the archive is cut and the manifest has the old digest",
            |copy| {
                let bytes = copy.read(ARCHIVE);
                std::fs::write(copy.dist.join(ARCHIVE), &bytes[..bytes.len() / 2]).unwrap();
            },
            &["failed     files ", "failed     archive "],
        ),
        (
            "the shared library is cut",
            |copy| {
                let bytes = copy.read(SHARED);
                copy.write(SHARED, &bytes[..bytes.len() / 2]);
            },
            &["failed     library ", "unchecked  exports "],
        ),
        (
            "the library needs a newer glibc than the manifest says",
            |copy| copy.manifest(|m| m["needs"]["glibc"] = json!("2.17")),
            &["failed     needs ", "oldest glibc: expected 2.17, found 2."],
        ),
        (
            "the manifest is of a newer format",
            |copy| copy.manifest(|m| m["format_version"] = json!(2)),
            &["failed     manifest ", "found 2"],
        ),
    ];
    for (what, damage, parts) in rows {
        let copy = Copy::new();
        damage(&copy);
        let run = copy.verify(&[]);
        run.check(8, &["is not what its manifest says", "integrity (exit code 8)"]);
        for part in *parts {
            assert!(run.stdout.contains(part), "{what}: {part:?} is not in\n{}", run.stdout);
        }
    }
}

#[test]
#[ignore = "needs the artifact dist/cu130 of this checkout"]
fn no_damage_of_real_libraries_is_a_panic_and_no_cut_passes() {
    let copy = Copy::new();
    // A multiplier spreads the places over code, tables and fatbins.
    for (path, count) in [(ARCHIVE, 24), (SHARED, 8)] {
        let whole = copy.read(path);
        for step in 1..=count {
            let at = (whole.len() / count * step).wrapping_mul(7_919) % whole.len();
            let mut bytes = whole.clone();
            bytes[at..].iter_mut().take(64).for_each(|b| *b ^= 0xff);
            copy.write(path, &bytes);
            let verdict = nattenc::verify::verify(&copy.dist).unwrap();
            // Host code is not looked at but for its relocations, so damage there may pass; the digest
            // in the manifest is what holds it.
            assert!(verdict.checks.len() >= 16, "{path} {at}");
            copy.write(path, &bytes[..at]);
            assert!(!nattenc::verify::verify(&copy.dist).unwrap().ok, "{path} cut at {at}");
        }
        copy.write(path, &whole);
    }
    assert!(nattenc::verify::verify(&copy.dist).unwrap().ok);
}
