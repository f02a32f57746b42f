//! build.toml and variant files in, the whole message out.

use super::*;
use crate::failure::{Class, class};
use crate::plan::policy::Policy;

const PLAIN: &str = r#"edition = 1
[general]
default-variant = "cu130"
[upstream]
natten = "0.21.7"
[section.core]
families = ["reference", "fna"]
cuda-capabilities = ["9.0", { cap = "12.0+PTX", cuda-minver = "12.8" }]
[section.hopper]
families = ["hopper_fna"]
cuda-capabilities = ["9.0a"]
[preset.starter]
families = ["fna"]
capabilities = ["9.0"]
select = ["family=fna,dim=2,dtype=float16,direction=forward"]
"#;

fn read(text: &str) -> anyhow::Result<Config> {
    parse(Path::new("build.toml"), text)
}

/// The message for PLAIN with each `from` replaced by `to`.
fn refused(changes: &[(&str, &str)]) -> String {
    let mut text = PLAIN.to_owned();
    for (from, to) in changes {
        assert!(text.contains(from), "PLAIN holds {from}");
        text = text.replacen(from, to, 1);
    }
    let error = read(&text).expect_err(&text);
    assert_eq!(class(&error), Class::Config, "{error}");
    format!("{error:#}")
}

#[test]
fn a_plain_file_is_read_in_its_order() {
    let config = read(PLAIN).unwrap();
    assert_eq!((config.default_variant.as_str(), config.natten.as_str()), ("cu130", "0.21.7"));
    let names: Vec<&str> = config.sections.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["core", "hopper"]);
    let core = &config.sections[0];
    assert_eq!(core.capabilities[1].request.to_string(), "12.0+PTX");
    assert_eq!(core.capabilities[1].minver, Some(Release::new(12, 8)));
    assert_eq!(core.capabilities[1].at.to_string(), "build.toml:8:37");
    assert!(core.required && core.flags.is_empty());
    let preset = &config.presets["starter"];
    assert_eq!(preset.select[0].to_string(), "family=fna,dim=2,dtype=float16,direction=forward");
    assert_eq!(preset.sections, None);
}

#[test]
fn policies_are_a_default_and_exceptions() {
    let text =
        PLAIN.replace("[section.core]", "[policy]\ndefault = \"balanced\"\nfna = \"fine\"\n[section.core]");
    let policies = read(&text).unwrap().policies;
    assert_eq!(policies.default, Policy::Balanced);
    assert_eq!(policies.families, BTreeMap::from([("fna".to_owned(), Policy::Fine)]));
    assert_eq!(read(PLAIN).unwrap().policies, Policies::default());
}

#[test]
fn other_cutlass_headers_come_with_the_range_of_their_versions() {
    let with = |cutlass: &str| PLAIN.replacen("[upstream]", &format!("[upstream]\ncutlass = {cutlass}"), 1);
    assert!(read(PLAIN).unwrap().cutlass.is_none());
    let found =
        read(&with("{ path = \"../cutlass\", versions = \">=4.3, <4.6\" }")).unwrap().cutlass.unwrap();
    assert!(matches!(found.source, CutlassSource::Path(path) if path == Path::new("../cutlass")));
    assert_eq!(found.versions.to_string(), ">=4.3, <4.6");
    let a = "a".repeat(64);
    let archive = format!("{{ archive = \"c.tar.gz\", sha256 = \"{a}\", versions = \"4.4\" }}");
    let found = read(&with(&archive)).unwrap().cutlass.unwrap();
    assert!(
        matches!(found.source, CutlassSource::Archive { archive, sha256 } if archive == "c.tar.gz" && sha256 == a)
    );
    for (text, message) in [
        ("{ path = \"x\" }", "has no versions"),
        ("{ versions = \"4\" }", "give path, or archive with sha256"),
        ("{ archive = \"x.zip\", versions = \"4\" }", "give path, or archive with sha256"),
        ("{ path = \"x\", archive = \"y\", versions = \"4\" }", "give path, or archive with sha256"),
        ("{ archive = \"x.zip\", sha256 = \"12\", versions = \"4\" }", "64 lowercase hex digits"),
        ("{ path = \"x\", versions = \"newest\" }", "is not a range"),
        ("{ path = \"x\", version = \"4\" }", "did you mean \"versions\"?"),
        ("\"4.4\"", "is a table"),
    ] {
        let error = read(&with(text)).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains(message) && error.contains("build.toml:"), "{text}: {error}");
    }
}

#[test]
fn the_repositorys_own_files_are_read() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let config = load(&root.join("build.toml")).unwrap();
    let all = variants(&root.join("variants")).unwrap();
    let names: Vec<&str> = all.iter().map(|v| v.name.as_str()).collect();
    assert_eq!(names, ["cu124", "cu126", "cu128", "cu129", "cu130", "cu132"]);
    for found in &all {
        assert_eq!(found.release.variant(), found.name);
        config.with_variant(found).unwrap();
    }
    assert!(names.contains(&config.default_variant.as_str()));
}

#[test]
fn every_single_mistake_names_its_place_and_what_to_write() {
    for (from, to, message) in [
        (
            "edition = 1",
            "edition = 2",
            "build.toml:1:11: edition 2 is not known to this nattenc, which reads edition 1",
        ),
        (
            "edition = 1",
            "edition = \"1\"",
            "build.toml:1:11: edition: write edition = 1, a number without quotes",
        ),
        ("edition = 1\n", "", "build.toml:1:1: build.toml has no edition; write edition = 1"),
        (
            "default-variant",
            "default-varient",
            "build.toml:3:1: unknown key \"default-varient\" in [general]; did you mean \"default-variant\"? known: default-variant",
        ),
        (
            "[upstream]",
            "[upsteam]",
            "build.toml:4:2: unknown key \"upsteam\" in build.toml; did you mean \"upstream\"? known: edition general upstream policy section preset",
        ),
        (
            "cuda-capabilities = [\"9.0a\"]",
            "cuda_capabilities = [\"9.0a\"]",
            "build.toml:11:1: unknown key \"cuda_capabilities\" in [section.hopper]; did you mean \"cuda-capabilities\"?",
        ),
        (
            "\"0.21.7\"",
            "0.21",
            "build.toml:5:10: natten: 0.21 is a float where a string is wanted; write \"0.21\" in quotes",
        ),
        (
            "\"0.21.7\"",
            "\"latest\"",
            "build.toml:5:10: natten: \"latest\" is not a version; write it as \"0.21.7\"",
        ),
        (
            "[\"9.0\", {",
            "[9.0, {",
            "build.toml:8:22: cuda-capabilities: 9.0 is a float where a string is wanted; write \"9.0\" in quotes",
        ),
        ("[\"9.0\", {", "[10.0, {", "write \"10.0\" in quotes"),
        ("[\"9.0\", {", "[90, {", "90 is an integer where a string is wanted; write \"90\" in quotes"),
        (
            "[\"9.0\", {",
            "[\"8.0a\", {",
            "build.toml:8:22: cuda-capabilities: \"8.0a\": there is no target sm_80a",
        ),
        ("[\"9.0\", {", "[\"sm_90\", {", "\"sm_90\" is not a compute capability; write \"9.0\""),
        (
            "[\"9.0a\"]",
            "\"9.0a\"",
            "build.toml:11:21: cuda-capabilities: a list is wanted; write cuda-capabilities = [\"9.0a\"]",
        ),
        (
            "[section.core]",
            "[policy]\ndefault = \"balance\"\n[section.core]",
            "build.toml:7:11: default: \"balance\" is not a split policy; did you mean \"balanced\"? known: default fine coarse balanced",
        ),
        (
            "[section.core]",
            "[policy]\nfnaa = \"fine\"\n[section.core]",
            "build.toml:7:1: unknown key \"fnaa\" in [policy]; did you mean \"fna\"? known: default reference fna fmha",
        ),
        (
            "[section.core]",
            "[policy]\nfna = 8\n[section.core]",
            "build.toml:7:7: fna: 8 is an integer where a string is wanted; write \"8\" in quotes",
        ),
        ("edition = 1", "edition = 1\npolicy = \"fine\"", "\"policy\" is a table; write it as [policy]"),
        ("[\"9.0a\"]", "[]", "build.toml:11:21: [section.hopper]: cuda-capabilities is empty"),
        (
            "[\"9.0a\"]",
            "[\"9.0a\", \"9.0a\"]",
            "build.toml:11:30: capability \"9.0a\" is already listed at build.toml:11:22",
        ),
        (
            "[\"9.0a\"]",
            "[\"9.0a\", \"9.0a+PTX\"]",
            "build.toml:11:30: capability \"9.0a+PTX\" is also listed as \"9.0a\" at build.toml:11:22; keep \"9.0a+PTX\" alone for both",
        ),
        (
            "cuda-minver = \"12.8\"",
            "cuda-minver = 12.8",
            "build.toml:8:63: cuda-minver: 12.8 is a float where a string is wanted; write \"12.8\" in quotes",
        ),
        (
            "cuda-minver = \"12.8\"",
            "cuda-minver = \"12\"",
            "cuda-minver: \"12\" is not a CUDA release; write it as \"12.8\"",
        ),
        (
            "cuda-minver = \"12.8\"",
            "cuda-minver = \"12.9\", cuda-maxver = \"12.8\"",
            "build.toml:8:63: an entry of cuda-capabilities: cuda-minver \"12.9\" is above cuda-maxver \"12.8\" at build.toml:8:85: no toolkit passes both",
        ),
        (
            "cuda-minver = \"12.8\"",
            "cuda-maxver = \"12.6\"",
            "build.toml:8:37: capability \"12.0+PTX\" can never be built: its own gate wants cuda <= 12.6, the capability exists from cuda 12.8 on",
        ),
        (
            "{ cap = \"12.0+PTX\", cuda-minver = \"12.8\" }",
            "{ cap = \"10.1\", cuda-minver = \"13.0\" }",
            "capability \"10.1\" can never be built: its own gate wants cuda >= 13.0, the capability exists from cuda 12.8 to 12.9; since cuda 13.0 it is called \"11.0\"",
        ),
        (
            "{ cap = \"12.0+PTX\", cuda-minver = \"12.8\" }",
            "{ cuda-minver = \"12.8\" }",
            "build.toml:8:29: an entry of cuda-capabilities has no cap; write cap = \"10.0\"",
        ),
        ("{ cap =", "{ caps =", "unknown key \"caps\" in an entry of cuda-capabilities"),
        (
            "[\"9.0a\"]",
            "[\"9.0a\"]\ncuda-minver = \"13.0\"\ncuda-maxver = \"12.9\"",
            "build.toml:12:15: [section.hopper]: cuda-minver \"13.0\" is above cuda-maxver \"12.9\" at build.toml:13:15: no toolkit passes both",
        ),
        (
            "[\"9.0a\"]",
            "[{ cap = \"9.0a\", cuda-maxver = \"12.6\" }]\ncuda-minver = \"12.8\"",
            "capability \"9.0a\" can never be built: its own gate wants cuda <= 12.6, the section's gate, at build.toml:12:15, wants cuda >= 12.8",
        ),
        (
            "[\"9.0a\"]",
            "[\"9.0a\"]\nrequired = \"no\"",
            "build.toml:12:12: required: write true or false, without quotes",
        ),
        (
            "[\"hopper_fna\"]",
            "[\"hoper_fna\"]",
            "build.toml:10:13: unknown family \"hoper_fna\"; did you mean \"hopper_fna\"? known: reference fna fmha",
        ),
        ("[\"hopper_fna\"]", "[\"Hopper-FNA\"]", "did you mean \"hopper_fna\"?"),
        ("[\"hopper_fna\"]", "[]", "build.toml:10:12: families is empty; list something or leave it out"),
        (
            "[\"hopper_fna\"]",
            "[\"hopper_fna\", \"hopper_fna\"]",
            "family \"hopper_fna\" is already listed at build.toml:10:13",
        ),
        (
            "families = [\"hopper_fna\"]\n",
            "",
            "build.toml:9:10: [section.hopper] has no families; write families = [\"fna\"]",
        ),
        (
            "[section.hopper]",
            "[section.\"Hop per\"]",
            "section \"Hop per\": a name is a lowercase letter, then",
        ),
        (
            "families = [\"fna\"]\ncap",
            "families = [\"fna\", \"fmha\"]\ncap",
            "family \"fmha\" is in none of the sections of [preset.starter]; those have: reference fna hopper_fna",
        ),
        (
            "families = [\"fna\"]\ncap",
            "sections = [\"core\", \"hooper\"]\ncap",
            "unknown section \"hooper\"; did you mean \"hopper\"? known: core hopper",
        ),
        (
            "families = [\"fna\"]\ncap",
            "sections = [\"hopper\"]\ncap",
            "select names family \"fna\", which [preset.starter] does not build",
        ),
        ("capabilities = [\"9.0\"]", "capabilities = []", "build.toml:14:16: capabilities is empty"),
        ("dim=2", "dim=4", "unknown dim \"4\"; known: 1 2 3"),
        ("dtype=float16", "dtype=fp16", "unknown dtype \"fp16\""),
        ("dtype=float16", "dtype=half", "known: float32 float16 bfloat16 e4m3 e5m2"),
        ("direction=", "directon=", "unknown key \"directon\"; did you mean \"direction\"?"),
        ("dim=2", "dim", "\"dim\" is not key=value"),
        ("dim=2", "dim=2,dim=3", "dim is given twice; separate the values with | as in dim=a|b"),
        ("dim=2", "causal=2", "unknown causal \"2\"; known: none all, or a digit per dimension as in 01"),
        ("dim=2", "head-dim=0", "head-dim \"0\" is not a positive number"),
    ] {
        let found = refused(&[(from, to)]);
        assert!(found.contains(message), "{to}\n   found: {found}\nexpected: {message}");
        assert!(!found.contains('\n'), "one mistake is one line: {found}");
    }
}

#[test]
fn pairs_that_cannot_share_name_their_places() {
    let share =
        |entries: &str| format!("{{ cap = \"12.0+PTX\", cuda-minver = \"12.8\" }}]\nshare = [{entries}]");
    let change =
        |entries: &str| refused(&[("{ cap = \"12.0+PTX\", cuda-minver = \"12.8\" }]", &share(entries))]);
    let pair = |cap: &str, from: &str| format!("{{ cap = \"{cap}\", from = \"{from}\", mode = \"valid\" }}");
    for (entries, message) in [
        (pair("8.0", "9.0"), "build.toml:9:32: 8.0 cannot share with 9.0: PTX of 9.0 is not older than 8.0"),
        (pair("9.0", "9.0"), "9.0 cannot share with 9.0: PTX of 9.0 is not older"),
        (pair("10.3a", "10.0a"), "10.3a cannot share with 10.0a: PTX of 10.0a is for 10.0a alone"),
        (pair("12.0", "10.0f"), "PTX of 10.0f is for later capabilities of its family, and 12.0 is none"),
        (pair("11.0", "10.0f"), "PTX of 10.0f is for later capabilities of its family, and 11.0 is none"),
        (pair("9.0", "8.1"), "build.toml:9:32: from: capability 8.1 is neither known to nattenc nor in the"),
        (pair("9.9", "8.0"), "build.toml:9:18: cap: capability 9.9 is neither known"),
        (
            pair("9.0+PTX", "8.0"),
            "build.toml:9:18: cap: \"9.0+PTX\": \"+PTX\" has no place here; write \"9.0\"",
        ),
        (pair("sm_90", "8.0"), "cap: \"sm_90\" is not a compute capability; write \"9.0\""),
        (
            [pair("9.0", "8.0"), pair("9.0", "8.6")].join(", "),
            "build.toml:9:65: 9.0 shares already as valid, with 8.0, at build.toml:9:18",
        ),
        ("\"9.0\"".to_owned(), "build.toml:9:10: share: a table is wanted; write { cap = \"9.0\", from"),
        (
            "{ cap = \"9.0\", mode = \"valid\" }".to_owned(),
            "an entry of share has no from; write from = \"8.0\"",
        ),
        (pair("9.0", "8.0").replace("valid", "vald"), "mode: unknown mode \"vald\"; did you mean \"valid\"?"),
        (
            pair("9.0", "8.0").replace("mode", "kind"),
            "unknown key \"kind\" in an entry of share; known: cap from mode",
        ),
        (pair("9.0", "8.0").replace("\"8.0\"", "8.0"), "8.0 is a float where a string is wanted"),
        (pair("9.0", "8.0").replace(" }", ", select = [\"family=fmhaa\"] }"), "family \"fmhaa\""),
    ] {
        let found = change(&entries);
        assert!(found.contains(message), "{entries}\n   found: {found}\nexpected: {message}");
    }
    for (cap, from) in
        [("9.0", "8.0"), ("12.1", "10.0"), ("10.3", "10.0f"), ("10.3f", "10.0f"), ("9.0a", "8.0")]
    {
        let text = PLAIN.replace("{ cap = \"12.0+PTX\", cuda-minver = \"12.8\" }]", &share(&pair(cap, from)));
        let shares = read(&text).unwrap().sections[0].share.clone();
        assert_eq!((shares[0].capability.to_string(), shares[0].from.to_string()), (cap.into(), from.into()));
    }
}

#[test]
fn all_problems_come_in_one_failure_in_the_order_of_the_file() {
    let found =
        refused(&[("\"0.21.7\"", "0.21"), ("[\"9.0\", {", "[9.0, \"8.0a\", {"), ("hopper_fna", "hoper_fna")]);
    let places: Vec<&str> = found.lines().map(|l| l.trim_start().split(": ").next().unwrap()).collect();
    assert_eq!(
        places,
        ["build.toml", "build.toml:5:10", "build.toml:8:22", "build.toml:8:27", "build.toml:10:13"]
    );
    assert!(found.starts_with("build.toml: 4 problems\n"), "{found}");
}

#[test]
fn syntax_errors_have_places_too() {
    for (from, to, place) in [
        ("\"cu130\"", "\"cu130", "build.toml:3:"),
        ("[general]", "[general", "build.toml:2:"),
        ("edition = 1", "edition = 1\nedition = 1", "build.toml:2:"),
        ("[section.hopper]", "[section.core]", "build.toml:9:"),
    ] {
        let found = refused(&[(from, to)]);
        assert!(found.contains(place), "{to}: {found}");
    }
    assert!(read("").is_err());
    assert!(read("\u{feff}").is_err());
}

#[test]
fn a_later_edition_is_not_judged_by_todays_keys() {
    let error = read("edition = 7\n[brand-new]\nthing = 1\n").unwrap_err().to_string();
    assert_eq!(error, "build.toml:1:11: edition 7 is not known to this nattenc, which reads edition 1");
}

#[test]
fn gates_that_exclude_each_other_may_list_a_capability_twice() {
    let text = PLAIN.replace(
        "[\"9.0a\"]",
        "[{ cap = \"9.0a\", cuda-maxver = \"12.9\" }, { cap = \"9.0a+PTX\", cuda-minver = \"13.0\" }]",
    );
    assert_eq!(read(&text).unwrap().sections[1].capabilities.len(), 2);
}

#[test]
fn no_kernel_is_built_by_two_sections() {
    let twice = "[section.more]\nfamilies = [\"fna\"]\ncuda-capabilities = [CAP]\n[preset.starter]";
    let found = refused(&[("[preset.starter]", &twice.replace("CAP", "\"8.0\", \"9.0\""))]);
    assert_eq!(
        found,
        "build.toml:13:13: family \"fna\" would be built twice for 9.0: by [section.more] and, at build.toml:7:26, by [section.core]"
    );
    let apart = PLAIN.replace("[preset.starter]", &twice.replace("CAP", "\"8.0\""));
    assert!(read(&apart).is_ok());
}

#[test]
fn flags_that_nattenc_sets_are_refused_each_with_its_reason() {
    for (flag, why) in [
        ("-rdc=true", "separate compilation needs a device link"),
        ("-rdc", "separate compilation"),
        ("-dc", "separate compilation"),
        ("--relocatable-device-code", "separate compilation"),
        ("--relocatable-device-code=true", "separate compilation"),
        ("--device-c", "separate compilation"),
        ("-gencode", "what is compiled for is written in cuda-capabilities"),
        ("-gencode=arch=compute_90,code=sm_90", "cuda-capabilities"),
        ("--generate-code=arch=compute_90,code=sm_90", "cuda-capabilities"),
        ("-arch=sm_90", "cuda-capabilities"),
        ("-arch", "cuda-capabilities"),
        ("--gpu-architecture=sm_90", "cuda-capabilities"),
        ("-code=sm_90", "cuda-capabilities"),
        ("-t", "how many run at once is -j"),
        ("-t8", "how many run at once is -j"),
        ("-t=0", "how many run at once is -j"),
        ("--threads=4", "how many run at once is -j"),
        ("--threads", "how many run at once is -j"),
        ("-o", "nattenc names the outputs"),
        ("--output-file=x.o", "nattenc names the outputs"),
        ("-c", "nattenc chooses the phases"),
        ("--compile", "nattenc chooses the phases"),
        ("-cubin", "nattenc chooses the phases"),
        ("--keep", "nattenc chooses the phases"),
        ("-ccbin", "NVCC_CCBIN"),
        ("-ccbin=g++-12", "NVCC_CCBIN"),
        ("--compiler-bindir=/usr/bin", "NVCC_CCBIN"),
        ("-optf=flags.txt", "hidden from the cache"),
        ("-Xcompiler=-fno-PIC", "position independent"),
        ("-Xptxas -v", "each argument is a string of its own"),
        ("", "it is empty"),
    ] {
        let flags = format!("[\"9.0a\"]\ncuda-flags = [\"-lineinfo\", \"{flag}\"]");
        let found = refused(&[("[\"9.0a\"]", &flags)]);
        assert!(found.starts_with("build.toml:12:28: [section.hopper]: cuda-flags: "), "{flag}: {found}");
        assert!(found.contains(why) && found.contains(&format!("\"{flag}\" is refused")), "{flag}: {found}");
    }
    let fine = [
        "-lineinfo",
        "-rdc=false",
        "-Xptxas",
        "-v",
        "-Xcompiler=-Wall",
        "--maxrregcount=128",
        "-DA=b c",
        "-G",
        "-split-compile=0",
        "--compress-mode=size",
        "-allow-unsupported-compiler",
        "-time=t.csv",
        "-Icommon",
    ];
    let flags = format!("[\"9.0a\"]\ncuda-flags = {fine:?}");
    assert_eq!(read(&PLAIN.replace("[\"9.0a\"]", &flags)).unwrap().sections[1].flags, fine);
}

#[test]
fn a_selector_speaks_only_of_the_families_it_names() {
    let selectors: Vec<Selector> =
        ["family=fna,dim=2|3,dtype=float16,direction=forward", "family=fna,causal=01,direction=backward"]
            .map(|s| s.parse().unwrap())
            .into();
    let kernel = |family, dim, dtype, direction, causal| Traits {
        family,
        dim: Some(dim),
        dtype: Some(dtype),
        direction: Some(direction),
        causal: Some(causal),
        head_dim: None,
    };
    for (traits, kept) in [
        (kernel("fna", 2, "float16", "forward", &[false, false][..]), true),
        (kernel("fna", 3, "float16", "forward", &[true, true, true]), true),
        (kernel("fna", 1, "float16", "forward", &[false]), false),
        (kernel("fna", 2, "bfloat16", "forward", &[false, false]), false),
        (kernel("fna", 2, "bfloat16", "backward", &[false, true]), true),
        (kernel("fna", 2, "bfloat16", "backward", &[true, false]), false),
        (kernel("reference", 1, "float32", "backward", &[false]), true),
        (Traits { family: "compute_delta", ..Traits::default() }, true),
        (Traits { family: "fna", ..Traits::default() }, true),
    ] {
        assert_eq!(selected(&selectors, &traits), kept, "{traits:?}");
    }
    let everywhere: Vec<Selector> = vec!["dtype=bfloat16,causal=none".parse().unwrap()];
    assert!(!selected(&everywhere, &kernel("reference", 2, "float16", "forward", &[false, false])));
    assert!(!selected(&everywhere, &kernel("reference", 2, "bfloat16", "forward", &[false, true])));
    assert!(selected(&everywhere, &kernel("reference", 2, "bfloat16", "forward", &[false, false])));
    assert!(selected(&[], &kernel("fna", 2, "float16", "forward", &[false, false])));
    for text in ["family=fna|reference,dim=1|2,causal=none|all|010", "dtype=e4m3,head-dim=32|64"] {
        assert_eq!(text.parse::<Selector>().unwrap().to_string(), text);
    }
}

#[test]
fn the_nearest_word_is_found_and_a_far_one_is_not_offered() {
    for (word, meant) in [
        ("hoper", Some("hopper")),
        ("Hopper", Some("hopper")),
        ("blakwell", Some("blackwell")),
        ("xyzzy", None),
        ("", None),
    ] {
        assert_eq!(place::nearest(word, ["core", "hopper", "blackwell"]), meant, "{word}");
    }
}

const VARIANT: &str = r#"edition = 1
toolkit = "13.0"
providers = ["wheels", "installed"]
[wheels]
nvidia-cuda-nvcc = "13.0.88"
nvidia-cuda-runtime = "13.0.96"
"#;

fn with_file(name: &str, text: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(&dir.path().join(name), text.as_bytes()).unwrap();
    dir
}

#[test]
fn mistakes_in_a_variant_are_named() {
    for (from, to, message) in [
        (
            "\"13.0\"",
            "13.0",
            "cu130.toml:2:11: toolkit: 13.0 is a float where a string is wanted; write \"13.0\" in quotes",
        ),
        ("\"13.0\"", "\"13\"", "toolkit: \"13\" is not a CUDA release; write it as \"12.8\""),
        ("toolkit = \"13.0\"\n", "", "has no toolkit; write toolkit = \"13.0\""),
        (
            "\"installed\"",
            "\"instaled\"",
            "unknown provider \"instaled\"; did you mean \"installed\"? known: installed wheels redist",
        ),
        ("\"installed\"", "\"wheels\"", "cu130.toml:3:24: provider \"wheels\" is already listed at"),
        ("\"installed\"", "\"redist\"", "provider \"redist\" is listed, but there is no [redist]"),
        ("\"wheels\", ", "", "[wheels] has no effect: \"wheels\" is not in providers"),
        ("[\"wheels\", \"installed\"]\n[wheels]", "[]\n[wheels]", "providers is empty"),
        (
            "13.0.88",
            "13.1.80",
            "cu130.toml:5:20: nvidia-cuda-nvcc: \"13.1.80\" is of cuda 13.1, but toolkit is \"13.0\"",
        ),
        ("\"13.0.88\"", "\">=13\"", "\">=13\" is not a version"),
        ("nvidia-cuda-nvcc = \"13.0.88\"\n", "", "[wheels] has no nvidia-cuda-nvcc"),
        (
            "toolkit = \"13.0\"",
            "toolkit = \"13.2\"",
            "cu130.toml:2:11: toolkit is \"13.2\", but the variant is called cu130",
        ),
        ("edition = 1", "edition = 1\nflags = []", "unknown key \"flags\""),
    ] {
        assert!(VARIANT.contains(from), "{from}");
        let dir = with_file("cu130.toml", &VARIANT.replacen(from, to, 1));
        let error = variant(dir.path(), "cu130").expect_err(to);
        assert_eq!(class(&error), Class::Config);
        assert!(error.to_string().contains(message), "{to}\n   found: {error}\nexpected: {message}");
    }
    let redist = "edition = 1\ntoolkit = \"12.8\"\nproviders = [\"redist\"]\n[redist]\nversion = \"12.9.1\"\ncomponents = [\"cuda_cudart\"]\n";
    let dir = with_file("cu128.toml", redist);
    let error = variant(dir.path(), "cu128").unwrap_err().to_string();
    assert!(error.contains("version: \"12.9.1\" is of cuda 12.9, but toolkit is \"12.8\""), "{error}");
    assert!(error.contains("components lacks \"cuda_nvcc\""), "{error}");
}

#[test]
fn an_unknown_variant_lists_the_known_ones() {
    let dir = with_file("cu130.toml", VARIANT);
    let error = variant(dir.path(), "cu13").unwrap_err();
    assert_eq!(error.to_string(), "unknown variant \"cu13\"; did you mean \"cu130\"? known: cu130");
    assert_eq!(class(&error), Class::Config);
    assert!(variant(dir.path(), "../cu130").is_err());
}

#[test]
fn a_variant_replaces_the_capabilities_of_a_section() {
    let config = read(PLAIN).unwrap();
    let dir = with_file("cu130.toml", &format!("{VARIANT}[section.core]\ncuda-capabilities = [\"8.0\"]\n"));
    let changed = config.with_variant(&variant(dir.path(), "cu130").unwrap()).unwrap();
    assert_eq!(changed.sections[0].capabilities[0].request.to_string(), "8.0");
    assert_eq!(changed.sections[1].capabilities, config.sections[1].capabilities);
    let dir = with_file("cu130.toml", &format!("{VARIANT}[section.hoppr]\ncuda-capabilities = [\"9.0a\"]\n"));
    let error = config.with_variant(&variant(dir.path(), "cu130").unwrap()).unwrap_err().to_string();
    assert!(
        error.contains("[section.hoppr], which build.toml does not have; did you mean \"hopper\"?"),
        "{error}"
    );
}
