//! The command line from outside: what each mistake says and which exit code it has.
#![expect(
    clippy::disallowed_methods,
    reason = "black-box tests start the real binary and lay out real files"
)]

mod support;

use support::Project;

#[test]
fn mistakes_on_the_command_line_name_the_thing_and_the_nearest_one() {
    let project = Project::new();
    for (args, parts) in [
        (&["build", "--variant", "cu13"][..], &["unknown variant \"cu13\"", "cu130"][..]),
        (&["plan", "--variant", "nope"], &["unknown variant \"nope\"", "cu126", "cu132"]),
        (&["build", "--preset", "startr"], &["preset \"startr\"", "did you mean \"starter\"?"]),
        (&["build", "--section", "hoper"], &["section \"hoper\"", "did you mean \"hopper\"?"]),
        (&["build", "--family", "fnaa"], &["family \"fnaa\"", "did you mean \"fna\"?"]),
        (&["plan", "--capability", "90"], &["--capability", "\"90\"", "9.0"]),
        (&["plan", "--capability", "sm_90"], &["--capability", "sm_90"]),
        (&["plan", "--capability", "8.0a"], &["--capability", "8.0a"]),
        (&["plan", "--capability", "9.1"], &["9.1"]),
        (&["plan", "--select", "familly=fna"], &["--select", "familly", "family"]),
        (&["plan", "--select", "family=fna,dtype=fp16"], &["--select", "fp16", "float16"]),
        (&["plan", "--select", "nonsense"], &["--select", "nonsense"]),
        (&["plan", "--policy", "finer"], &["--policy", "finer", "default", "fine", "coarse", "balanced"]),
        (&["build", "-j", "0"], &["-j", "\"0\"", "1 or more"]),
        (&["build", "--memory", "12"], &["--memory", "\"12\"", "12G"]),
        (&["build", "--cache-size", "20GB"], &["--cache-size", "\"20GB\"", "12G"]),
        (&["build", "--unit-timeout", "20"], &["--unit-timeout", "\"20\"", "90m"]),
        (&["build", "--deadline", "17:30"], &["--deadline", "\"17:30\"", "5h30m", "2026-12-01T17:30:00Z"]),
        (&["build", "--reserve", "4"], &["--reserve", "\"4\"", "12G"]),
        (&["build", "--reserve", "900000G"], &["--reserve", "leave nothing of", "--memory"]),
        (&["build", "--reserve", "4G", "--memory", "8G"], &["--reserve", "--memory"]),
        (&["cache", "gc", "--max-size", "many"], &["--max-size", "\"many\"", "12G"]),
        (&["cache", "gc", "--max-age", "1w"], &["--max-age", "\"1w\"", "30d"]),
        (&["cache", "gc"], &["--max-size"]),
        (&["plan", "--config", "absent.toml"], &["absent.toml"]),
        (&["plan", "--capability", "12.0", "--variant", "cu124"], &["12.0", "12.8"]),
        (&["plan", "--capability", "12.1", "--variant", "cu126"], &["--capability: 12.1 needs cuda >= 12.9"]),
        (&["plan", "--toolkit-release", "12"], &["--toolkit-release", "\"12\"", "12.8"]),
        (
            &["plan", "--toolkit-release", "12.6", "--capability", "12.1"],
            &["--capability: 12.1", "found 12.6"],
        ),
        (&["plan", "--share", "identicl"], &["identicl", "identical"]),
        (&["plan", "--share", "valid", "--no-share"], &["--no-share"]),
        (&["plan", "--diff", "cu128", "cu13"], &["unknown variant \"cu13\""]),
        (&["plan", "--diff", "cu128"], &["--diff"]),
        (&["plan", "--diff-config", "absent.toml"], &["absent.toml"]),
        (&["explain", "fnaa"], &["subject \"fnaa\"", "did you mean \"fna\"?"]),
        (&["explain"], &["SUBJECT"]),
        (&["verify"], &["DIR"]),
        (&["verify", "dist/cu130", "--share-ptx"], &["--share-ptx"]),
        (&["verify", "dist/cu130", "--family", "fna"], &["--family"]),
        (&["verify", "dist/cu130", "--pairs", "9.0=8.0"], &["--pairs"]),
        (&["verify", "--pairs", "9.0=8.0"], &["--share-ptx"]),
        (&["verify", "--share-ptx", "--pairs", "9.0"], &["--pairs", "\"9.0\"", "9.0=8.0"]),
        (&["verify", "--share-ptx", "--pairs", "10.3a=10.0a"], &["--pairs", "10.0a alone"]),
        (&["verify", "--share-ptx", "--sample", "0"], &["--sample", "1 or more"]),
        (&["verify", "--share-ptx", "--capability", "9.0"], &["--capability", "--pairs 9.0=8.0"]),
        (&["verify", "--share-ptx", "--unit", "fna_99"], &["unit \"fna_99\""]),
        (&["ci"], &["matrix", "workflow"]),
        (&["ci", "matrix"], &["--event"]),
        (&["ci", "matrix", "--event", "push"], &["push", "release"]),
        (&["ci", "matrix", "--event", "pr", "--variant", "cu13"], &["unknown variant \"cu13\""]),
        (&["ci", "matrix", "--event", "pr", "--runner-memory", "16"], &["--runner-memory: \"16\"", "12G"]),
        (&["ci", "matrix", "--event", "pr", "--runner-cores", "0"], &["without cores", "--runner-cores"]),
        (
            &["ci", "matrix", "--event", "pr", "--max-minutes", "10"],
            &["10 minutes leave nothing", "--overhead-minutes"],
        ),
        (
            &["ci", "matrix", "--event", "pr", "--diff", "nonesuch"],
            &["--diff: git knows no commit nonesuch", "--changed"],
        ),
        (&["ci", "matrix", "--event", "pr", "--diff=--output=x"], &["--diff", "is no commit"]),
        (&["ci", "matrix", "--event", "main", "--changed", "x"], &["--changed are for --event pr"]),
        (&["ci", "matrix", "--event", "pr", "--merges"], &["--json"]),
        (
            &["ci", "matrix", "--event", "release", "--max-minutes", "12"],
            &["units do not fit a job of 12 minutes on 4 cores", "no split policy makes them fit"],
        ),
    ] {
        project.run(args).check(2, parts);
    }
}

#[test]
fn unknown_commands_and_options_are_usage_errors() {
    let project = Project::new();
    for args in [&["frobnicate"][..], &["build", "--frobnicate"], &[], &["build", "-j", "x"]] {
        project.run(args).check(2, &[]);
    }
}

#[test]
fn environment_values_are_checked_and_named() {
    let project = Project::new();
    for (value, shown) in [("abc", "\"abc\""), ("0", "\"0\""), ("-1", "\"-1\""), ("1.5", "\"1.5\"")] {
        project
            .run_with(&["build", "--offline"], &[("NATTENC_JOBS", value)])
            .check(2, &["NATTENC_JOBS", shown]);
    }
    project
        .run_with(&["build", "--offline"], &[("NATTENC_CACHE_SIZE", "20")])
        .check(2, &["NATTENC_CACHE_SIZE", "\"20\""]);
    project
        .run_with(&["build", "--offline"], &[("NATTENC_HOME", "relative/store")])
        .check(2, &["NATTENC_HOME", "relative/store"]);
}

#[test]
fn mistakes_in_build_toml_name_file_line_and_the_spelling_to_use() {
    for (from, to, parts) in [
        ("\"9.0\",", "9.0,", &["build.toml:", "\"9.0\""][..]),
        ("[section.core]", "[section.core]\nfamilys = []", &["build.toml:", "familys", "families"]),
        ("edition = 1", "edition = 7", &["build.toml:", "edition", "7"]),
        ("edition = 1", "", &["build.toml", "edition"]),
        ("\"10.0a\"", "\"10.0x\"", &["build.toml:", "10.0x"]),
        ("cuda-minver = \"12.8\"", "cuda-minver = 12.8", &["build.toml:", "\"12.8\""]),
        ("[preset.starter]", "[preset.starter", &["build.toml:"]),
        ("runner-cores = 4", "runner-cores = \"4\"", &["build.toml:", "runner-cores", "without quotes"]),
        ("max-minutes = 330", "max-minutes = 0", &["build.toml:", "max-minutes", "1 or more"]),
        ("runner = \"ubuntu-24.04\"\n", "", &["build.toml:", "[ci] has no runner"]),
        ("\"fna\",", "\"fnaa\",", &["build.toml:", "fnaa", "fna"]),
    ] {
        let project = Project::new();
        project.edit("build.toml", from, to);
        project.run(&["plan"]).check(2, parts);
    }
}

#[test]
fn plan_needs_no_toolkit_and_fetches_nothing() {
    let project = Project::new();
    for variant in ["cu126", "cu128", "cu129", "cu130", "cu132"] {
        let run = project.run(&["plan", "--variant", variant]);
        run.check(0, &[]);
        assert!(run.stdout.contains(&format!("variant {variant}: cuda ")), "{}", run.stdout);
    }
    assert!(!project.path("home").exists());
}

#[test]
fn what_a_gate_keeps_out_is_named_with_its_reason() {
    let project = Project::new();
    let matrix = |variant: &str| project.run(&["plan", "--variant", variant]).stdout;
    for (variant, capability, line) in [
        ("cu126", "10.0", "skip: capability 10.0 needs cuda 12.8 or later, variant cu126 has 12.6"),
        ("cu126", "10.3a", "skip: section blackwell needs cuda 12.8 or later, variant cu126 has 12.6"),
        ("cu128", "10.3a", "skip: capability 10.3a needs cuda 12.9 or later, variant cu128 has 12.8"),
        ("cu129", "10.3a", "build"),
        ("cu130", "10.3a", "build"),
    ] {
        let text = matrix(variant);
        let found = text.lines().find(|l| l.split_whitespace().nth(1) == Some(capability)).unwrap();
        assert!(found.ends_with(line), "{variant}: {found}");
    }
}

#[test]
fn capability_that_vanishes_without_a_gate_is_an_error_before_anything_is_fetched() {
    let project = Project::new();
    project.edit("build.toml", "{ cap = \"12.0\", cuda-minver = \"12.8\" }", "\"12.0\"");
    project.run(&["build", "--variant", "cu126"]).check(2, &["build.toml:", "12.0", "12.8", "no gate"]);
    assert!(!project.path("home").exists());
}

#[test]
fn starter_plan_holds_what_its_preset_says() {
    let project = Project::new();
    let run = project.run(&["plan", "--preset", "starter", "--json"]);
    run.check(0, &[]);
    let plan: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(plan["schema_version"], 2);
    let built: Vec<&str> = plan["backends"]
        .as_object()
        .unwrap()
        .iter()
        .filter(|(_, b)| b["built"] == true)
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(built, ["compute_delta", "fna", "merge", "reference", "token_permute"]);
    for unit in plan["units"].as_array().unwrap() {
        assert_eq!(unit["gencodes"], serde_json::json!(["arch=compute_90,code=sm_90"]), "{unit}");
        for kernel in unit["kernels"].as_array().unwrap() {
            let name = kernel.as_str().unwrap();
            assert!(
                unit["family"] != "fna"
                    || (name.starts_with("fna2d_") && name.contains("float16") && name.contains("sm80")),
                "{name}"
            );
        }
    }
    let fna: usize = plan["units"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|u| u["family"] == "fna")
        .map(|u| u["kernels"].as_array().unwrap().len())
        .sum();
    // Four causal masks, twelve tile shapes each.
    assert_eq!(fna, 48);
}

fn json(run: &support::Run) -> serde_json::Value {
    run.check(0, &[]);
    serde_json::from_str(&run.stdout).expect("JSON on stdout")
}

#[test]
fn plan_is_for_the_release_that_is_asked_for() {
    let project = Project::new();
    for (release, variant, line) in [
        ("12.8", "cu128", "skip: capability 10.3a needs cuda 12.9 or later, variant cu128 has 12.8"),
        ("12.7", "cu127", "skip: section blackwell needs cuda 12.8 or later, variant cu127 has 12.7"),
        ("13.9", "cu139", "warning: cuda 13.9 is newer than"),
    ] {
        let run = project.run(&["plan", "--toolkit-release", release]);
        run.check(0, &[]);
        assert!(run.stdout.starts_with(&format!("variant {variant}: cuda {release}")), "{}", run.stdout);
        assert!(run.stdout.contains(line), "{}", run.stdout);
    }
    project.run(&["plan", "--toolkit-release", "14.0"]).check(3, &["cuda 14.0 is not supported"]);
    project.run(&["plan", "--toolkit-release", "11.8"]).check(3, &["cuda 11.8 is not supported"]);
}

#[test]
fn plan_tells_what_sharing_and_pruning_save() {
    let project = Project::new();
    let plan = |more: &[&str]| {
        json(&project.run(&[&["plan", "--variant", "cu130", "--section", "core", "--json"], more].concat()))
    };
    let (identical, valid, none) = (plan(&[]), plan(&["--share", "valid"]), plan(&["--no-share"]));
    let cicc = |plan: &serde_json::Value, way: &str| plan["totals"][way]["jobs"]["cicc"].as_u64().unwrap();
    assert!(cicc(&valid, "planned") < cicc(&identical, "planned"));
    assert!(cicc(&identical, "planned") < cicc(&none, "planned"));
    assert_eq!(cicc(&identical, "unshared"), cicc(&none, "planned"));
    let whole = plan(&["--no-share", "--no-prune"]);
    assert_eq!(cicc(&whole, "planned"), cicc(&whole, "everything"));
    assert_eq!(cicc(&whole, "planned"), cicc(&identical, "everything"));
    // 64 units of fna, of which 25 hold a kernel that runs on 8.0 or later.
    let fna = |plan: &serde_json::Value| {
        plan["units"].as_array().unwrap().iter().filter(|u| u["family"] == "fna").count()
    };
    assert_eq!((fna(&whole), fna(&identical)), (64, 25));
    let row = |plan: &serde_json::Value, index: usize| plan["sections"][0]["capabilities"][index].clone();
    let nine = row(&identical, 1);
    assert_eq!(
        (&nine["decision"], &nine["from"], &nine["mode"]),
        (&"share".into(), &"8.0".into(), &"identical".into())
    );
    // Some units share as identical, with --share valid all others as valid: the weakest promise is told.
    assert_eq!(row(&identical, 3)["mode"], "identical");
    assert!(row(&identical, 3)["note"].as_str().unwrap().contains("compile it on their own"));
    assert_eq!(row(&valid, 3)["mode"], "valid");
    assert_eq!((valid["share"].as_str(), whole["pruned"].as_bool()), (Some("valid"), Some(false)));
}

#[test]
fn plan_prints_the_command_of_every_unit() {
    let project = Project::new();
    let args = ["plan", "--variant", "cu128", "--family", "fmha", "--commands"];
    let run = project.run(&args);
    run.check(0, &[]);
    for part in ["core/fmha_002\n  nvcc -O3", "'arch=compute_80,code=[sm_80,sm_90]'", "-c unit.cu -o unit.o"]
    {
        assert!(run.stdout.contains(part), "{part}\n{}", run.stdout);
    }
    let plan = json(&project.run(&[&args[..], &["--json"]].concat()));
    for unit in plan["units"].as_array().unwrap() {
        assert!(unit["command"].as_str().unwrap().contains("--compress-mode=size"), "{unit}");
    }
}

#[test]
fn plans_are_compared_by_variant_and_by_file() {
    let project = Project::new();
    let run = project.run(&["plan", "--diff", "cu128", "cu130"]);
    run.check(0, &[]);
    assert!(run.stdout.contains("- skip: capability 10.3a needs cuda 12.9 or later, variant cu128 has 12.8"));
    assert!(run.stdout.contains("blackwell/blackwell_fna_000..027"), "{}", run.stdout);
    let back = json(&project.run(&["plan", "--diff", "cu130", "cu128", "--json"]));
    assert_eq!(
        (&back["before"], &back["capabilities"][0]["what"]),
        (&"cu130".into(), &"blackwell/10.3a".into())
    );
    project.write("before/build.toml", &project.read("build.toml"));
    project.edit("build.toml", "\"fmha\", ", "");
    let run = project.run(&["plan", "--diff-config", "before/build.toml"]);
    run.check(0, &[]);
    assert!(run.stdout.contains("removed: 2 units, +0 -54 kernels"), "{}", run.stdout);
    assert!(run.stdout.contains("section core does not list family fmha"), "{}", run.stdout);
    let same = project.run(&["plan", "--diff", "cu130", "cu130"]);
    assert!(same.stdout.contains("no difference"), "{}", same.stdout);
}

#[test]
fn explain_touches_nothing_and_says_why() {
    let project = Project::new();
    let run = project.run(&["explain", "10.3a", "--variant", "cu126"]);
    run.check(0, &[]);
    assert!(run.stdout.contains("capability blackwell/10.3a: skip"), "{}", run.stdout);
    assert!(run.stdout.contains("section blackwell needs cuda 12.8 or later, variant cu126 has 12.6"));
    let unit = json(&project.run(&["explain", "fna_011", "--json"]));
    assert_eq!((&unit["schema_version"], &unit["found"][0]["kind"]), (&1.into(), &"unit".into()));
    assert!(unit["found"][0]["lines"].to_string().contains("no finished build of cu130 is recorded here"));
    assert!(!project.path("home").exists() && !project.path("build").exists());
}

#[test]
fn unit_option_keeps_one_unit_and_names_unknown_ones() {
    let project = Project::new();
    let plan = project.run(&["plan", "--unit", "fna_063", "--capability", "9.0", "--json"]);
    plan.check(0, &[]);
    let json: serde_json::Value = serde_json::from_str(&plan.stdout).unwrap();
    let units: Vec<&str> =
        json["units"].as_array().unwrap().iter().map(|u| u["name"].as_str().unwrap()).collect();
    assert_eq!(units, ["fna_063"]);
    project.run(&["plan", "--unit", "fna_64"]).check(2, &["--unit", "fna_64", "did you mean \"fna_0"]);
    project.run(&["plan", "--unit", "nothing"]).check(2, &["--unit", "nothing", "nattenc plan --json"]);
}

#[test]
fn plan_predicts_for_the_machine_that_it_is_told_of() {
    let project = Project::new();
    let plan = |more: &[&str]| {
        let run = project.run(&[&["plan", "--variant", "cu130", "--json"], more].concat());
        run.check(0, &[]);
        serde_json::from_str::<serde_json::Value>(&run.stdout).unwrap()
    };
    let [one, many, tight, part] = [
        plan(&["-j", "1", "--memory", "100G"]),
        plan(&["-j", "16", "--memory", "100G"]),
        plan(&["-j", "16", "--memory", "20G"]),
        plan(&["-j", "16", "--memory", "100G", "--family", "fna", "--capability", "9.0"]),
    ];
    let number = |plan: &serde_json::Value, key: &str| plan["prediction"][key].as_f64().unwrap();
    let [wall, cpu] = ["wall_seconds", "cpu_seconds"];
    assert!((number(&one, wall) - number(&one, cpu)).abs() < 1.0);
    assert!(number(&one, cpu) == number(&many, cpu) && number(&many, wall) < number(&one, wall) / 12.0);
    assert!(number(&many, wall) < number(&tight, wall));
    assert!(number(&tight, "peak_memory") <= 20.0 * f64::from(1 << 30));
    assert!(number(&part, cpu) < number(&many, cpu) / 4.0);
    assert!(number(&part, "artifact_bytes") < number(&many, "artifact_bytes") / 2.0);
    let units = part["prediction"]["units"].as_array().unwrap();
    let names = part["units"].as_array().unwrap().iter();
    assert!(
        names
            .zip(units)
            .all(|(u, p)| p["unit"].as_str().unwrap() == format!("core/{}", u["name"].as_str().unwrap()))
    );
    let sum: f64 = units.iter().map(|u| u["cpu_seconds"].as_f64().unwrap()).sum();
    // The rest is the host's own sources and the link.
    assert!((number(&part, cpu) - sum - 3.2).abs() < 0.01, "{sum}");
    let text = project.run(&["plan", "--variant", "cu130", "-j", "16", "--memory", "100G"]);
    text.check(0, &[]);
    assert!(
        text.stdout.contains("predicted: ") && text.stdout.contains("with 16 processes at once in 107.4 GB")
    );
    project.run(&["plan", "--memory", "12"]).check(2, &["--memory", "12G"]);
}

#[test]
fn policy_option_overrides_build_toml() {
    let project = Project::new();
    let units = |args: &[&str]| {
        let run = project.run(&[&["plan", "--family", "hopper_fmha", "--json"], args].concat());
        run.check(0, &[]);
        let plan: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
        plan["units"].as_array().unwrap().len()
    };
    assert_eq!(units(&[]), 5);
    project.edit("build.toml", "[section.core]", "[policy]\ndefault = \"coarse\"\n\n[section.core]");
    assert_eq!(units(&[]), 1);
    project.edit("build.toml", "default = \"coarse\"", "default = \"coarse\"\nhopper_fmha = \"fine\"");
    assert_eq!(units(&[]), 10);
    assert_eq!(units(&["--policy", "default"]), 5);
}

#[test]
fn capability_option_overrides_the_presets() {
    let project = Project::new();
    let run = project.run(&["plan", "--preset", "starter", "--capability", "8.6", "--json"]);
    run.check(0, &[]);
    assert!(run.stdout.contains("arch=compute_86,code=sm_86"));
    assert!(!run.stdout.contains("compute_90"));
}

#[test]
fn cutlass_outside_of_its_declared_range_is_refused_before_anything_is_fetched() {
    let project = Project::new();
    let line = "[upstream]\ncutlass = { path = \"deps/cutlass\", versions = \">=4.3, <4.6\" }";
    project.edit("build.toml", "[upstream]", line);
    let header = "deps/cutlass/include/cutlass/version.h";
    let both = ["build.toml:", "deps/cutlass", ">=4.3, <4.6"];
    for args in [&["build", "--preset", "starter"][..], &["fetch"]] {
        project.run(args).check(2, &[&both[..], &["version.h: is not there"]].concat());
        project.write(header, "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 1\n");
        project.run(args).check(2, &[&both[..], &["has version 4.2.1, outside of"]].concat());
        std::fs::remove_file(project.path(header)).unwrap();
    }
    assert!(!project.path("home/blobs").exists());
}

#[test]
fn offline_with_an_empty_store_says_what_is_missing_and_how_to_get_it() {
    let project = Project::new();
    project
        .run(&["build", "--variant", "cu130", "--preset", "starter", "--offline"])
        .check(2, &["offline", "nattenc fetch"]);
}

#[test]
fn clean_removes_only_what_is_ours() {
    let project = Project::new();
    project.write("dist/cu130/precious", "x");
    let run = project.run(&["clean", "--variant", "cu130"]);
    run.check(0, &[]);
    assert_eq!(run.stdout.trim(), "nothing to remove");
    assert!(project.path("dist/cu130/precious").exists());
}

#[test]
fn cache_commands_tell_what_they_did_and_fail_by_class() {
    let project = Project::new();
    let digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    let stats = json(&project.run(&["cache", "stats", "--json"]));
    assert_eq!((&stats["schema_version"], &stats["entries"]), (&1.into(), &0.into()));
    project.run(&["cache", "verify"]).check(0, &[]);

    project.write(&format!("home/cache/cas/2c/{digest}"), "not packed, and not hello");
    let gc = json(&project.run(&["cache", "gc", "--max-size", "1G", "--max-age", "30d", "--json"]));
    assert_eq!((&gc["kept"]["count"], &gc["large"]["count"]), (&1.into(), &0.into()));
    assert!(gc["stuck"].is_null() && gc["spared"] == 0, "{gc}");
    let run = project.run(&["cache", "verify"]);
    run.check(8, &["1 files are damaged; they were removed", "integrity"]);
    assert!(run.stdout.contains(digest), "{}", run.stdout);
    project.run(&["cache", "verify"]).check(0, &[]);

    project.write("home/cache/letters/mum.txt", "dear");
    project.run(&["cache", "clear"]).check(2, &["letters", "nothing was removed", "NATTENC_HOME"]);
    assert_eq!(project.read("home/cache/letters/mum.txt"), "dear");
    std::fs::remove_dir_all(project.path("home/cache")).unwrap();
    project.write("home/cache", "a file");
    for args in [&["stats"][..], &["verify"], &["clear"], &["gc", "--max-size", "1G"]] {
        project.run(&[&["cache"], args].concat()).check(2, &["home/cache: is a file"]);
    }
}

#[test]
fn ci_matrix_is_one_line_of_json_and_a_table_for_people() {
    let project = Project::new();
    project.edit("variants/cu126.toml", "edition = 1", "edition = 1\nserved-by = \"cu128\"");
    let run = project.run(&["ci", "matrix", "--event", "release", "--max-minutes", "60", "--json"]);
    run.check(0, &[]);
    assert_eq!(run.stdout.lines().count(), 1);
    let matrix: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    let jobs = matrix["include"].as_array().unwrap();
    assert!(jobs.len() > 2 && jobs.iter().all(|job| job["predicted-minutes"].as_u64().unwrap() <= 60));
    let run = project.run(&["ci", "matrix", "--event", "release"]);
    run.check(0, &[]);
    for part in [
        "serves cu128, cu126, from driver 550",
        "serves cu130, from driver 580",
        "cu126: not built, the artifact of cu128 serves it (served-by)",
    ] {
        assert!(run.stdout.contains(part), "{part}: {}", run.stdout);
    }
    project.edit("variants/cu126.toml", "cu128", "cu130");
    project
        .run(&["ci", "matrix", "--event", "release"])
        .check(2, &["variants/cu126.toml: served-by: cu130", "within a major"]);
}

#[test]
fn ci_matrix_knows_what_a_commit_changed() {
    let project = Project::new();
    let git = |args: &[&str]| {
        let mut command = std::process::Command::new("git");
        command.current_dir(project.path(".")).args(["-c", "user.name=n", "-c", "user.email=e"]).args(args);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    git(&["init", "-q"]);
    git(&["add", "build.toml", "variants"]);
    git(&["commit", "-q", "-m", "first"]);
    let units = || {
        let run = project.run(&["ci", "matrix", "--event", "pr", "--variant", "cu130", "--diff", "HEAD"]);
        run.check(0, &[]);
        run.stdout
    };
    assert!(units().contains("cu130 (cuda 13.0): 3 units"), "{}", units());
    project.edit(
        "build.toml",
        "cuda-capabilities = [\"9.0a\"]",
        "cuda-capabilities = [\"9.0a\"]\ncuda-flags = [\"-DX\"]",
    );
    assert!(units().contains("21 units: build.toml changes it"), "{}", units());
}

#[test]
fn workflows_are_written_and_drift_is_told() {
    let project = Project::new();
    project
        .run(&["ci", "workflow", "--check"])
        .check(8, &["pr.yml", "main.yml", "release.yml", "nattenc ci workflow"]);
    project.run(&["ci", "workflow"]).check(0, &[]);
    project.run(&["ci", "workflow", "--check"]).check(0, &[]);
    for name in ["pr", "main", "release"] {
        let file = format!(".github/workflows/{name}.yml");
        let committed = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(&file);
        let committed = std::fs::read_to_string(committed).unwrap();
        assert_eq!(project.read(&file), committed, "{file}: run `nattenc ci workflow`");
    }
    project.edit("build.toml", "runner = \"ubuntu-24.04\"", "runner = \"large\"");
    project.run(&["ci", "workflow", "--check"]).check(8, &[".github/workflows/pr.yml"]);
    let run = project.run(&["ci", "workflow"]);
    run.check(0, &[]);
    assert!(project.read(".github/workflows/pr.yml").contains("runs-on: large"));
    project.edit("build.toml", "[ci]", "[cii]");
    project.run(&["ci", "workflow"]).check(2, &["build.toml:", "cii", "ci"]);
}

#[test]
fn every_command_has_help_with_an_example() {
    let project = Project::new();
    for command in [
        "build",
        "plan",
        "explain",
        "verify",
        "fetch",
        "variants",
        "clean",
        "doctor",
        "regen",
        "cache",
        "ci matrix",
        "ci workflow",
    ] {
        let words: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let run = project.run(&words);
        run.check(0, &[]);
        assert!(
            run.stdout.contains("Example") && run.stdout.contains(&format!("nattenc {command}")),
            "{}",
            run.stdout
        );
    }
}
