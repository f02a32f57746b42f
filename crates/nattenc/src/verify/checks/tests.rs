//! Every check on artifacts made by hand: one as it should be, and one for each thing that can differ.

use super::*;
use crate::package::manifest::Needs;
use crate::plan::capability::Suffix;
use crate::verify::archive::Fatbin;
use crate::verify::device::Device;
use crate::verify::unit::Registry;
use serde_json::json;

/// An artifact of one unit, fna_011, with kernels `a` and `b` for 9.0, both of which launch a device
/// function of their name, and `old` for 7.0 to 8.0.
struct Artifact {
    manifest: serde_json::Value,
    archive: Archive,
    shared: SharedLibrary,
    exports: Vec<String>,
}

fn code(text: &str) -> Code {
    let (kind, capability) = text.split_once(' ').unwrap();
    let kind = if kind == "elf" { Kind::Elf } else { Kind::Ptx };
    Code { kind, capability: capability.parse().unwrap() }
}

fn image(text: &str, kernels: &[(&str, u64)]) -> Image {
    let code = code(text);
    let size = |size| (code.kind == Kind::Elf).then_some(size);
    let kernels = kernels.iter().map(|(name, bytes)| ((*name).to_owned(), size(*bytes))).collect();
    let device = Device { number: code.capability.number(), suffix: Some(code.capability.suffix), kernels };
    Image { code, size: 100, device: Ok(device) }
}

fn member(name: &str) -> Member {
    Member {
        name: name.to_owned(),
        damage: None,
        defined: BTreeSet::new(),
        undefined: BTreeSet::new(),
        foreign: Vec::new(),
        absolute: Vec::new(),
        fatbins: Vec::new(),
        registered: 0,
        table: None,
        registry: None,
    }
}

fn kernel(name: &str, sm: std::ops::Range<u32>) -> TableKernel {
    TableKernel { name: name.to_owned(), sm, launches: BTreeSet::from([name.to_owned()]) }
}

fn artifact() -> Artifact {
    let backend = |name: &str| match name {
        "fna" => json!({ "built": true, "capabilities": ["9.0"] }),
        _ => json!({ "built": false, "reason": "not selected" }),
    };
    let backends: serde_json::Map<String, serde_json::Value> =
        BACKENDS.iter().map(|(name, _)| ((*name).to_owned(), backend(name))).collect();
    let build = json!({ "variant": "cu130", "backends": backends });
    let info = build.to_string();
    let mut unit = member("fna_011");
    let images = vec![image("elf 9.0", &[("a", 5000), ("b", 6000), ("old", 256)])];
    unit.fatbins.push(Fatbin { sha256: "f0".to_owned(), images });
    unit.registered = 1;
    unit.table = Some(Ok(vec![kernel("a", 80..130), kernel("old", 70..80), kernel("b", 80..130)]));
    unit.defined.insert("natten_unit".to_owned());
    let mut registry = member("host_registry");
    registry.undefined.insert("natten_unit".to_owned());
    let units = BTreeMap::from([("fna_011".to_owned(), vec![code("elf 9.0")])]);
    registry.registry = Some(Ok(Registry { units, build_info: info }));
    let needs = Needs { libraries: vec!["libc.so.6".to_owned()], glibc: "2.34".to_owned() };
    Artifact {
        manifest: json!({
            "variant": "cu130",
            "build": build,
            "sections": [
                { "name": "core", "capabilities": [
                    { "capability": "9.0", "built": true },
                    { "capability": "12.0", "built": false, "reason": "not selected" },
                ] },
            ],
            "units": [{
                "name": "fna_011", "section": "core", "family": "fna",
                "gencodes": ["arch=compute_90,code=sm_90"], "kernels": ["a", "old", "b"],
            }],
            "link": { "static": ["natten_kernels"], "shared": ["natten_kernels"], "system": ["dl"] },
            "needs": needs,
            "files": [],
        }),
        archive: Archive { damage: None, indexed: true, members: vec![unit, registry] },
        shared: SharedLibrary {
            soname: link::SHARED.to_owned(),
            needs,
            search: Vec::new(),
            text_relocations: false,
            executable_stack: false,
            exports: BTreeSet::from(["natten_f".to_owned()]),
            undefined: BTreeSet::from(["memcpy".to_owned()]),
            names: BTreeSet::from(["natten_f".to_owned()]),
            fatbins: BTreeMap::from([("f0".to_owned(), 1)]),
            fatbin_bytes: 100,
            unregistered: 0,
            unfounded: 0,
        },
        exports: vec!["natten_f".to_owned()],
    }
}

fn run(artifact: Artifact) -> Found {
    let manifest: Recorded = serde_json::from_value(artifact.manifest).unwrap();
    libraries(&manifest, Some(&artifact.archive), &Ok(artifact.shared), &artifact.exports)
}

#[test]
fn artifact_as_it_should_be_passes_every_check() {
    let Found { checks, code: rows, kernels } = run(artifact());
    for check in checks {
        assert_eq!(check.outcome, Outcome::Ok, "{check:?}");
    }
    let row = &rows[0];
    assert_eq!((row.section.as_str(), row.capability.as_str(), rows.len()), ("core", "9.0", 1));
    assert_eq!((row.elf_claimed, row.elf_found, row.ptx_found, row.kernels), (1, 1, 0, 3));
    let bodies: Vec<_> = kernels.iter().map(|k| (k.kernel.as_str(), k.bytes, k.empty)).collect();
    assert_eq!(bodies, [("a", 5000, false), ("b", 6000, false), ("old", 256, true)]);
}

#[test]
fn every_difference_fails_the_check_that_names_it() {
    type Change = fn(&mut Artifact);
    let rows: &[(&str, &str, Change)] = &[
        ("archive", "fna_011.o: expected a member", |a| drop(a.archive.members.remove(0))),
        ("archive", "expected an ELF object, found cut", |a| {
            a.archive.members[1].damage = Some("cut".to_owned());
        }),
        ("archive", "found after 1 members", |a| a.archive.damage = Some("after 1 members".to_owned())),
        ("archive", "an index of symbols", |a| a.archive.indexed = false),
        ("archive", "one member of that name", |a| a.archive.members.push(member("fna_011"))),
        ("position", "1 absolute addresses, first at .text+0x4", |a| {
            a.archive.members[1].absolute.push(".text+0x4".to_owned());
        }),
        ("code", "core/fna_011: expected elf 9.0, ptx 9.0, found elf 9.0", |a| {
            a.manifest["units"][0]["gencodes"] = json!(["arch=compute_90,code=[sm_90,compute_90]"]);
        }),
        ("code", "core/fna_011: expected elf 9.0, found none", |a| {
            a.archive.members[0].fatbins[0].images.clear();
        }),
        ("code", "expected elf 9.0, found elf 9.0, elf 9.0", |a| {
            a.archive.members[0].fatbins[0].images.push(image("elf 9.0", &[("a", 5000), ("b", 5000)]));
        }),
        ("code", "one fatbin, registered, found 1 fatbins, 0 registered", |a| {
            a.archive.members[0].registered = 0;
        }),
        ("code", "host_registry.o: expected no device code", |a| {
            let images = vec![image("elf 8.0", &[])];
            a.archive.members[1].fatbins.push(Fatbin { sha256: "f0".to_owned(), images });
        }),
        ("code", "gencodes in the manifest", |a| a.manifest["units"][0]["gencodes"] = json!(["sm_90"])),
        ("images", "fna_011.o elf 9.0: expected an image for that capability, found 9.0a", |a| {
            let Ok(device) = &mut a.archive.members[0].fatbins[0].images[0].device else { return };
            device.suffix = Some(Suffix::A);
        }),
        ("images", "an image that can be read, found zstd", |a| {
            a.archive.members[0].fatbins[0].images[0].device = Err("zstd".to_owned());
        }),
        ("kernels", "kernel b in elf 9.0: expected b, found missing", |a| {
            a.archive.members[0].fatbins[0].images[0] = image("elf 9.0", &[("a", 5000)]);
        }),
        ("kernels", "kernel a in elf 9.0: expected a body, found an empty one of 512 bytes", |a| {
            a.archive.members[0].fatbins[0].images[0] =
                image("elf 9.0", &[("a", 512), ("b", 6000), ("old", 256)]);
        }),
        ("kernels", "expected code of its kernels only, found c", |a| {
            a.archive.members[0].fatbins[0].images[0] =
                image("elf 9.0", &[("a", 5000), ("b", 6000), ("c", 6000)]);
        }),
        ("kernels", "device code that its launcher launches, found none", |a| {
            let Some(Ok(table)) = &mut a.archive.members[0].table else { return };
            table[0].launches.clear();
        }),
        ("kernels", "core/fna_011: kernel c: expected present, found missing", |a| {
            a.manifest["units"][0]["kernels"] = json!(["a", "old", "b", "c"]);
        }),
        ("kernels", "core/fna_011: kernel old: expected none of that name", |a| {
            a.manifest["units"][0]["kernels"] = json!(["a", "b"]);
        }),
        ("kernels", "the manifest's order", |a| {
            a.manifest["units"][0]["kernels"] = json!(["b", "old", "a"]);
        }),
        ("kernels", "a table of kernels, found it has no table", |a| {
            a.archive.members[0].table = Some(Err("it has no table".to_owned()));
        }),
        ("claims", "section core: capability 12.0: expected built, found not built: it holds elf 9.0", |a| {
            a.manifest["sections"][0]["capabilities"][1]["built"] = json!(true);
        }),
        ("claims", "capability 9.0+PTX: expected built", |a| {
            a.manifest["sections"][0]["capabilities"][0]["capability"] = json!("9.0+PTX");
        }),
        ("claims", "capability 9.0: expected not built, found built", |a| {
            a.manifest["sections"][0]["capabilities"][0]["built"] = json!(false);
        }),
        ("claims", "section core: expected built capabilities only, found elf 9.0", |a| {
            a.manifest["sections"][0]["capabilities"] = json!([]);
        }),
        ("claims", "backend fna: expected capability 10.0", |a| {
            a.manifest["build"]["backends"]["fna"]["capabilities"] = json!(["9.0", "10.0"]);
        }),
        ("claims", "backend fna: expected 10.0, found elf 9.0", |a| {
            a.manifest["build"]["backends"]["fna"]["capabilities"] = json!(["10.0"]);
        }),
        ("claims", "backend fmha: expected built where there is code, found none", |a| {
            a.manifest["build"]["backends"]["fmha"]["built"] = json!(true);
        }),
        ("registry", "natten_build_info", |a| a.manifest["build"]["toolkit"] = json!("13.0.88")),
        ("registry", "registry: unit fna_012: expected none of that name", |a| {
            let Some(Ok(registry)) = &mut a.archive.members[1].registry else { return };
            registry.units.insert("fna_012".to_owned(), vec![]);
        }),
        ("registry", "registry: core/fna_011: expected elf 9.0, found elf 8.0, elf 9.0", |a| {
            let Some(Ok(registry)) = &mut a.archive.members[1].registry else { return };
            registry.units.insert("fna_011".to_owned(), vec![code("elf 9.0"), code("elf 8.0")]);
        }),
        ("registry", "an object that has it", |a| a.archive.members[1].registry = None),
        ("symbols", "host_registry.o: symbol natten_unit: expected defined", |a| {
            a.archive.members[0].defined.clear();
        }),
        ("symbols", "nothing of PyTorch", |a| {
            a.archive.members[0].foreign.push("_ZN2at6TensorC1Ev".to_owned());
        }),
        ("library", "soname: expected libnatten_kernels.so, found other.so", |a| {
            a.shared.soname = "other.so".to_owned();
        }),
        ("library", "symbol natten_g: expected defined", |a| {
            a.shared.undefined.insert("natten_g".to_owned());
        }),
        ("library", "symbol _ZN3c105ErrorC1Ev", |a| {
            a.shared.names.insert("_ZN3c105ErrorC1Ev".to_owned());
        }),
        ("exports", "exported function natten_g: expected present, found missing", |a| {
            a.exports.push("natten_g".to_owned());
        }),
        ("exports", "exported function std_leak: expected none of that name", |a| {
            a.shared.exports.insert("std_leak".to_owned());
        }),
        ("exports", "declarations of functions", |a| {
            a.exports.clear();
            a.shared.exports.clear();
        }),
        ("needs", "oldest glibc: expected 2.34, found 2.38", |a| {
            a.shared.needs.glibc = "2.38".to_owned();
        }),
        ("needs", "needed libraries: expected libc.so.6, found libc.so.6, libm.so.6", |a| {
            a.shared.needs.libraries.push("libm.so.6".to_owned());
        }),
        ("needs", "one of the system's C library, found libstdc++.so.6", |a| {
            a.shared.needs.libraries.push("libstdc++.so.6".to_owned());
        }),
        ("needs", "one of the system's C library, found libcudart.so.13", |a| {
            a.shared.needs.libraries.push("libcudart.so.13".to_owned());
        }),
        ("needs", "field needs, found none", |a| a.manifest["needs"] = json!(null)),
        ("loading", "RUNPATH: expected none, or below $ORIGIN, found /usr/local/cuda/lib64/stubs", |a| {
            a.shared.search.push("$ORIGIN/../lib:/usr/local/cuda/lib64/stubs".to_owned());
        }),
        ("loading", "text relocations", |a| a.shared.text_relocations = true),
        ("loading", "stack", |a| a.shared.executable_stack = true),
        ("same-code", "fatbin of fna_011.o: expected in the shared library too", |a| {
            a.shared.fatbins.clear();
        }),
        ("same-code", "those of the archive, found 1 others", |a| {
            a.shared.fatbins.insert("f1".to_owned(), 1);
        }),
        ("same-code", "1 unregistered, 2 registrations of nothing", |a| {
            (a.shared.unregistered, a.shared.unfounded) = (1, 2);
        }),
        ("size", "at most 2.0 GB", |a| a.shared.fatbin_bytes = FATBIN_LIMIT + 1),
    ];
    for (name, part, change) in rows {
        let mut artifact = artifact();
        change(&mut artifact);
        let checks = run(artifact).checks;
        let check = checks.iter().find(|c| c.name == *name).unwrap();
        assert_eq!(check.outcome, Outcome::Failed, "{name} {part}: {check:?}");
        let findings: Vec<String> = check.findings.iter().map(ToString::to_string).collect();
        assert!(findings.iter().any(|f| f.contains(part)), "{name}: {part:?} is not in {findings:#?}");
    }
}

#[test]
fn runtime_library_is_allowed_where_the_manifest_links_it() {
    let mut artifact = artifact();
    artifact.manifest["link"]["system"] = json!(["cudart", "dl"]);
    artifact.manifest["needs"]["libraries"] = json!(["libc.so.6", "libcudart.so.13"]);
    artifact.shared.needs.libraries.push("libcudart.so.13".to_owned());
    let checks = run(artifact).checks;
    assert!(checks.iter().all(|c| c.outcome == Outcome::Ok), "{checks:?}");
}

#[test]
fn fatbins_near_the_limit_are_a_warning() {
    for (size, outcome) in [
        (FATBIN_WARNING, Outcome::Ok),
        (FATBIN_WARNING + 1, Outcome::Warning),
        (FATBIN_LIMIT, Outcome::Warning),
        (FATBIN_LIMIT + 1, Outcome::Failed),
    ] {
        assert_eq!(fatbin_size(size).outcome, outcome, "{size}");
    }
}

#[test]
fn what_cannot_be_read_leaves_its_checks_unchecked_and_never_ok() {
    let artifact = artifact();
    let manifest: Recorded = serde_json::from_value(artifact.manifest).unwrap();
    let Found { checks, code: rows, .. } = libraries(&manifest, None, &Err("cut".to_owned()), &[]);
    let failed: Vec<&str> = checks.iter().filter(|c| c.outcome == Outcome::Failed).map(|c| c.name).collect();
    assert_eq!(failed, ["archive", "library"]);
    assert!(checks.iter().all(|c| matches!(c.outcome, Outcome::Failed | Outcome::Unchecked)));
    assert!(rows.is_empty());
}
