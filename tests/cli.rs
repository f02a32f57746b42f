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
        (&["plan", "--config", "absent.toml"], &["absent.toml"]),
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
    assert_eq!(plan["schema_version"], 1);
    let built: Vec<&str> = plan["backends"]
        .as_object()
        .unwrap()
        .iter()
        .filter(|(_, b)| b["built"] == true)
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(built, ["compute_delta", "fna", "reference", "token_permute"]);
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
fn every_command_has_help_with_an_example() {
    let project = Project::new();
    for command in ["build", "plan", "fetch", "variants", "clean", "doctor", "regen"] {
        let run = project.run(&[command, "--help"]);
        run.check(0, &[]);
        assert!(
            run.stdout.contains("Example") && run.stdout.contains(&format!("nattenc {command}")),
            "{}",
            run.stdout
        );
    }
}
