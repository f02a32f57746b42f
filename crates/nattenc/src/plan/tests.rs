//! Plans of small configurations: what is built, shared and left out, and what is said of it.

use super::*;
use crate::catalog;
use crate::config;
use crate::failure::{Class, class};

const HEAD: &str = "edition = 1\n[general]\ndefault-variant = \"cu130\"\n[upstream]\nnatten = \"0.21.7\"\n";

/// A configuration with these sections, and a variant of that name.
fn setting(sections: &str, variant: &str) -> anyhow::Result<(Config, Variant)> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("build.toml");
    crate::fs::write(&file, format!("{HEAD}{sections}").as_bytes()).unwrap();
    let release = format!("{}.{}", &variant[2..4], &variant[4..]);
    let definition = format!("edition = 1\ntoolkit = \"{release}\"\nproviders = [\"installed\"]\n");
    crate::fs::write(&dir.path().join(format!("{variant}.toml")), definition.as_bytes()).unwrap();
    Ok((config::load(&file)?, config::variant(dir.path(), variant)?))
}

fn planned(sections: &str, variant: &str, request: &Request) -> anyhow::Result<Plan> {
    let (config, variant) = setting(sections, variant)?;
    plan(&config, &variant, None, request, catalog::catalog()?)
}

fn core(families: &str, capabilities: &str, share: &[(&str, &str, &str)]) -> String {
    let pairs: Vec<String> = share
        .iter()
        .map(|(cap, from, mode)| format!("{{ cap = \"{cap}\", from = \"{from}\", mode = \"{mode}\" }}"))
        .collect();
    let list = |words: &str| words.split(' ').map(|w| format!("\"{w}\"")).collect::<Vec<_>>().join(", ");
    format!(
        "[section.core]\nfamilies = [{}]\ncuda-capabilities = [{}]\nshare = [{}]\n",
        list(families),
        list(capabilities),
        pairs.join(", ")
    )
}

fn gencodes(unit: &UnitPlan) -> Vec<String> {
    unit.gencodes.iter().map(ToString::to_string).collect()
}

#[test]
fn pairs_share_one_front_end_as_far_as_they_are_allowed() {
    let pairs: &[_] = &[("8.6", "8.0", "identical"), ("9.0", "8.0", "identical"), ("12.0", "10.0", "valid")];
    let own =
        |names: &str| names.split(' ').map(|n| format!("arch=compute_{n},code=sm_{n}")).collect::<Vec<_>>();
    for (capabilities, sharing, expected) in [
        ("8.0 8.6 9.0 10.0 12.0", Sharing::None, own("80 86 90 100 120")),
        (
            "8.0 8.6 9.0 10.0 12.0",
            Sharing::Identical,
            [vec!["arch=compute_80,code=[sm_80,sm_86,sm_90]".to_owned()], own("100 120")].concat(),
        ),
        (
            "12.0 9.0 10.0 8.0",
            Sharing::Valid,
            ["arch=compute_100,code=[sm_100,sm_120]", "arch=compute_80,code=[sm_80,sm_90]"]
                .map(Into::into)
                .into(),
        ),
        // What it would share is not built, or PTX of its own is asked for.
        ("9.0 12.0", Sharing::Valid, own("90 120")),
        (
            "8.0 9.0+PTX",
            Sharing::Valid,
            [own("80"), vec!["arch=compute_90,code=[sm_90,compute_90]".to_owned()]].concat(),
        ),
        ("8.0+PTX 9.0", Sharing::Valid, vec!["arch=compute_80,code=[sm_80,sm_90,compute_80]".to_owned()]),
    ] {
        let request = Request { sharing, ..Request::default() };
        let plan = planned(&core("compute_delta", capabilities, pairs), "cu130", &request).unwrap();
        assert_eq!(gencodes(&plan.units[0]), expected, "{capabilities} {sharing:?}");
        let built: usize = plan.units[0].gencodes.iter().map(|g| g.real.len()).sum();
        assert_eq!(built, capabilities.split(' ').count());
        assert_eq!(plan.counts.pairs - plan.counts.shared_pairs, expected.len());
        // Whatever is shared, the artifact answers for what was asked for.
        let backend = &plan.backends()["compute_delta"];
        let mut asked: Vec<&str> = capabilities.split(' ').collect();
        let mut answers: Vec<&str> = backend.capabilities.iter().map(String::as_str).collect();
        asked.sort_unstable();
        answers.sort_unstable();
        assert_eq!(answers, asked);
    }
}

#[test]
fn chain_is_assembled_from_its_beginning_and_promises_what_its_weakest_pair_does() {
    let pairs: &[_] = &[("12.0", "10.0", "valid"), ("12.1", "12.0", "identical")];
    for (sharing, code, decision) in [
        (Sharing::Identical, "arch=compute_120,code=[sm_120,sm_121]", ("12.0", Mode::Identical)),
        (Sharing::Valid, "arch=compute_100,code=[sm_100,sm_120,sm_121]", ("10.0", Mode::Valid)),
    ] {
        let request = Request { sharing, ..Request::default() };
        let plan = planned(&core("compute_delta", "10.0 12.0 12.1", pairs), "cu130", &request).unwrap();
        assert_eq!(gencodes(&plan.units[0]).last().unwrap(), code);
        let (from, mode) = decision;
        let expected = Decision::Share { from: from.parse().unwrap(), mode };
        assert_eq!(plan.sections[0].capabilities[2].decision, expected);
    }
}

#[test]
fn pair_is_used_for_the_kernels_that_it_is_promised_of() {
    let pairs = |select: &str| {
        core("fmha", "10.0 12.0", &[("12.0", "10.0", "identical"), ("12.0", "10.0", "valid")])
            .replace("mode = \"identical\"", &format!("mode = \"identical\", select = [\"{select}\"]"))
    };
    let decided = |select: &str, sharing: Sharing| -> Vec<(String, CapabilityPlan)> {
        let request = Request { sharing, ..Request::default() };
        let plan = planned(&pairs(select), "cu130", &request).unwrap();
        plan.units.iter().map(|u| (u.name.clone(), u.capabilities[1].clone())).collect()
    };
    let share = |mode| Decision::Share { from: "10.0".parse().unwrap(), mode };
    // fmha_002 holds forward kernels of every dtype, fmha_005 backward ones.
    for (select, sharing, forward, backward) in [
        ("direction=forward", Sharing::Identical, share(Mode::Identical), Decision::Build),
        ("direction=forward", Sharing::Valid, share(Mode::Identical), share(Mode::Valid)),
        ("direction=forward", Sharing::None, Decision::Build, Decision::Build),
        ("dtype=float32", Sharing::Identical, Decision::Build, Decision::Build),
        ("dtype=float32", Sharing::Valid, share(Mode::Valid), share(Mode::Valid)),
    ] {
        let found = decided(select, sharing);
        let wanted = [("fmha_002", forward), ("fmha_005", backward)];
        for (unit, decision) in wanted {
            let (_, row) = found.iter().find(|(name, _)| name == unit).unwrap();
            assert_eq!(row.decision, decision, "{select} {sharing:?} {unit}");
        }
    }
    let (_, row) = decided("dtype=float32", Sharing::Identical).remove(0);
    assert!(row.note.unwrap().contains("--share identical"));
    let only = core("fmha", "10.0 12.0", &[("12.0", "10.0", "identical")])
        .replace("mode = \"identical\"", "mode = \"identical\", select = [\"dtype=float32\"]");
    let plan = planned(&only, "cu130", &Request::default()).unwrap();
    let note = plan.units[0].capabilities[1].note.clone().unwrap();
    assert_eq!(note, "10.0's PTX serves it for dtype=float32 alone");
}

#[test]
fn unit_shares_only_where_the_same_kernels_run() {
    // Kernels of fna and fmha change at 7.0, 7.5 and 8.0; those of the reference do not.
    let pairs: &[_] = &[("8.0", "7.5", "identical"), ("9.0", "8.0", "identical")];
    let plan = planned(&core("reference fmha", "7.5 8.0 9.0", pairs), "cu130", &Request::default()).unwrap();
    let reference: Vec<_> = plan.units.iter().filter(|u| u.family == "reference").collect();
    assert!(reference.iter().all(|u| gencodes(u) == ["arch=compute_75,code=[sm_75,sm_80,sm_90]"]));
    for unit in plan.units.iter().filter(|u| u.family == "fmha") {
        for code in gencodes(unit) {
            assert!(
                ["arch=compute_75,code=sm_75", "arch=compute_80,code=[sm_80,sm_90]"].contains(&code.as_str())
            );
        }
    }
    let eight = &plan.sections[0].capabilities[1];
    assert!(matches!(eight.decision, Decision::Share { .. }));
    let note = eight.note.as_deref().unwrap();
    assert!(
        note.contains("on their own: the kernels that run on it are not those that run on 7.5"),
        "{note}"
    );
}

#[test]
fn capability_that_could_share_says_why_it_does_not() {
    let pairs: &[_] = &[("9.0", "8.0", "identical"), ("12.0", "10.0", "valid")];
    for (capabilities, sharing, index, part) in [
        ("9.0", Sharing::Identical, 0, "8.0, whose PTX would serve it, is not built"),
        ("8.0 9.0+PTX", Sharing::Identical, 1, "PTX of its own is asked for"),
        ("8.0 9.0", Sharing::None, 1, "from 8.0's PTX (identical), but this build has --share none"),
        ("10.0 12.0", Sharing::Identical, 1, "from 10.0's PTX (valid), but this build has --share identical"),
    ] {
        let request = Request { sharing, ..Request::default() };
        let plan = planned(&core("compute_delta", capabilities, pairs), "cu130", &request).unwrap();
        let row = &plan.sections[0].capabilities[index];
        assert_eq!(row.decision, Decision::Build);
        assert!(row.note.as_deref().unwrap().contains(part), "{row:?}");
    }
}

#[test]
fn unpruned_plan_has_every_kernel_for_every_capability() {
    let sections = core("fna fmha", "7.5 9.0", &[("9.0", "7.5", "valid")]);
    let plans: Vec<Plan> = [false, true]
        .map(|unpruned| planned(&sections, "cu130", &Request { unpruned, ..Request::default() }).unwrap())
        .into();
    let [pruned, whole] = &plans[..] else { panic!("two plans") };
    assert_eq!((whole.units.len(), whole.kernels()), (70, 2128 + 152));
    assert!(
        whole.units.iter().all(|u| u.gencodes.len() == 2),
        "dead kernels do not make capabilities the same"
    );
    assert!(pruned.units.len() < whole.units.len());
    // The same units, with more in them.
    for unit in &pruned.units {
        let other = whole.units.iter().find(|u| u.name == unit.name).unwrap();
        assert!(unit.kernels.iter().all(|k| other.kernels.iter().any(|o| o.name == k.name)));
    }
    assert_eq!(pruned.counts.live, pruned.kernels());
    assert_eq!(whole.counts.live, pruned.counts.live);
}

#[test]
fn section_says_what_its_units_hold() {
    // fna has no bfloat16 kernel for 7.5.
    let request = Request {
        select: vec!["family=fna,dtype=bfloat16,dim=1".parse().unwrap()],
        families: Some(vec!["fna".to_owned()]),
        ..Request::default()
    };
    let plan = planned(&core("fna fmha", "7.5 8.0", &[]), "cu130", &request).unwrap();
    let rows = &plan.sections[0].capabilities;
    assert!(
        matches!(&rows[0].decision, Decision::Skip(why) if why.contains("no selected kernel runs on it"))
    );
    assert_eq!(rows[1].decision, Decision::Build);
    assert_eq!(plan.sections[0].built().len(), 1);
}

/// The message of a plan that fails with that class.
fn refused(sections: &str, variant: &str, request: &Request, wanted: Class) -> String {
    let error = planned(sections, variant, request).expect_err(sections);
    assert_eq!(class(&error), wanted, "{error:#}");
    // Places without the temporary folder.
    let plain = |word: &str| word.find("build.toml").map_or(word.to_owned(), |at| word[at..].to_owned());
    let line = |line: &str| line.split(' ').map(plain).collect::<Vec<_>>().join(" ");
    format!("{error:#}").lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn what_vanishes_without_a_gate_is_an_error_at_its_place() {
    let section = |name: &str, family: &str, capabilities: &str| {
        format!("[section.{name}]\nfamilies = [\"{family}\"]\ncuda-capabilities = [{capabilities}]\n")
    };
    for (sections, variant, parts) in [
        // P09: an empty effective set.
        (
            section("core", "fna", "\"12.0\""),
            "cu126",
            &["build.toml:8:22: section core: 12.0 needs cuda >= 12.8", "no gate"][..],
        ),
        (
            section("core", "fna", "\"7.0\""),
            "cu130",
            &["build.toml:8:22", "7.0 ends with cuda 12.9, found 13.0"],
        ),
        // P10: known to nobody.
        (
            section("core", "fna", "\"9.0\", \"99.9\""),
            "cu128",
            &["build.toml:8:29", "99.9 is known neither to nvcc 12.8 nor"],
        ),
        // P14: dropped by a newer toolkit.
        (section("core", "fna", "\"7.0\", \"8.0\""), "cu132", &["7.0 ends with cuda 12.9, found 13.2"]),
        // P15: newer than the toolkit, or renamed.
        (
            section("blackwell", "blackwell_fna", "\"10.0a\", \"10.3a\""),
            "cu128",
            &["10.3a needs cuda >= 12.9, found 12.8"],
        ),
        (section("core", "fna", "\"12.1\""), "cu128", &["12.1 needs cuda >= 12.9"]),
        (section("core", "fna", "\"10.1\""), "cu130", &["10.1 ends with cuda 12.9 and is called 11.0 since"]),
        // No kernel runs there, and nothing says so.
        (
            section("hopper", "hopper_fna", "\"9.0a\", \"10.0a\""),
            "cu130",
            &[
                "build.toml:8:30: section hopper: no kernel of its families, at build.toml:6:10, runs on 10.0a: hopper_fna",
            ],
        ),
        (section("hopper", "hopper_fna", "\"8.0\""), "cu130", &["runs on 8.0"]),
    ] {
        let found = refused(&sections, variant, &Request::default(), Class::Config);
        assert!(parts.iter().all(|part| found.contains(part)), "{parts:?}\n{found}");
        // Not required: left out, with the same reason.
        let beside = format!(
            "{sections}required = false\n[section.beside]\nfamilies = [\"compute_delta\"]\ncuda-capabilities = [\"8.0\"]\n"
        );
        let plan = planned(&beside, variant, &Request::default()).unwrap();
        assert!(plan.skips.iter().any(|s| s.what.starts_with("capability ")), "{:?}", plan.skips);
    }
}

#[test]
fn every_problem_of_a_plan_is_told_at_once() {
    let sections = core("fna", "7.0 8.0 12.1 99.9", &[]);
    let found = refused(&sections, "cu128", &Request::default(), Class::Config);
    assert_eq!(found.lines().count(), 2, "{found}");
    let found = refused(&sections, "cu132", &Request::default(), Class::Config);
    assert!(found.contains("7.0 ends") && found.contains("99.9 is known neither"), "{found}");
}

#[test]
fn mistakes_of_an_option_are_reported_at_the_option() {
    let sections = core("fna", "8.0 9.0", &[]) + "[preset.new]\ncapabilities = [\"12.1\"]\n";
    let asking = |capability: &str| Request {
        capabilities: Some(vec![capability.parse().unwrap()]),
        ..Request::default()
    };
    for (request, start) in [
        (asking("12.0"), "--capability: 12.0 needs cuda >= 12.8, found 12.6"),
        (asking("99.9"), "--capability: 99.9 is known neither to nvcc 12.6 nor to nattenc"),
        (asking("9.0a"), "--capability 9.0a: no section of "),
        (
            Request { preset: Some("new".to_owned()), ..Request::default() },
            "build.toml:10:9: capabilities of [preset.new]: 12.1 needs cuda >= 12.9, found 12.6",
        ),
    ] {
        let found = refused(&sections, "cu126", &request, Class::Config);
        assert!(found.starts_with(start), "{start}\n{found}");
    }
}

#[test]
fn toolkits_and_sources_that_nattenc_does_not_know_are_warned_of() {
    let sections = core("compute_delta", "9.0", &[]);
    let warnings =
        |sections: &str, variant: &str| planned(sections, variant, &Request::default()).unwrap().warnings;
    assert!(warnings(&sections, "cu139").iter().any(|w| w.contains("cuda 13.9 is newer than")));
    assert!(!warnings(&sections, "cu130").iter().any(|w| w.contains("is newer than")));
    let found = refused(&sections, "cu140", &Request::default(), Class::Toolchain);
    assert!(found.contains("cuda 14.0 is not supported"), "{found}");
    // A capability that the table lacks may be one of a compiler that is newer than the table, and only then.
    let newer = core("compute_delta", "9.0 13.0", &[]);
    assert!(
        warnings(&newer, "cu139").iter().any(|w| w.starts_with("13.0 is not known to nattenc: nvcc 13.9"))
    );
    assert!(refused(&newer, "cu130", &Request::default(), Class::Config).contains("13.0 is known neither"));
    // A compiler that is there is asked.
    let (config, variant) = setting(&newer, "cu130").unwrap();
    let listed: Vec<Capability> = ["9.0", "13.0"].map(|c| c.parse().unwrap()).into();
    let plan =
        plan(&config, &variant, Some(&listed), &Request::default(), catalog::catalog().unwrap()).unwrap();
    assert_eq!(plan.warnings, ["13.0 is listed by nvcc 13.0 but not known to nattenc"]);
    let (mut config, variant) = setting(&sections, "cu130").unwrap();
    config.natten = "0.21.6".to_owned();
    let plan =
        super::plan(&config, &variant, None, &Request::default(), catalog::catalog().unwrap()).unwrap();
    assert!(
        plan.warnings.iter().any(|w| w.starts_with("natten 0.21.6: the kernel tables")),
        "{:?}",
        plan.warnings
    );
}

#[test]
fn difference_of_two_plans_has_reasons() {
    let gated = "[section.blackwell]\nfamilies = [\"blackwell_fmha\"]\ncuda-capabilities = [\"10.0a\", { cap = \"10.3a\", cuda-minver = \"12.9\" }]\n";
    let before =
        planned(&(core("compute_delta", "8.0 9.0", &[]) + gated), "cu128", &Request::default()).unwrap();
    let pair: &[_] = &[("9.0", "8.0", "identical")];
    let after = planned(&(core("compute_delta fmha", "8.0 9.0", pair) + gated), "cu129", &Request::default())
        .unwrap();
    let found = diff::diff(("cu128", &before), ("cu129", &after));
    let change = |list: &[diff::Change], what: &str| list.iter().find(|c| c.what == what).unwrap().clone();
    let nine = change(&found.capabilities, "core/9.0");
    assert_eq!(
        (nine.before.as_deref(), nine.after.as_deref()),
        (Some("build"), Some("share: identical, from 8.0"))
    );
    let new = change(&found.capabilities, "blackwell/10.3a");
    assert!(new.before.unwrap().contains("needs cuda 12.9 or later, variant cu128 has 12.8"));
    assert_eq!(change(&found.families, "core/fmha").before, None);
    let units: Vec<(&str, &str)> = found.units.iter().map(|u| (u.unit.as_str(), u.change)).collect();
    assert!(
        units.contains(&("core/compute_delta_000", "changed")) && units.contains(&("core/fmha_002", "added")),
        "{units:?}"
    );
    let fmha = found.units.iter().find(|u| u.change == "added").unwrap();
    assert_eq!(fmha.reason, "cu128: section core does not list family fmha");
    assert!(!fmha.kernels_added.is_empty() && fmha.kernels_removed.is_empty());
    let text = found.text();
    assert!(text.contains("changed: 4 units, +0 -0 kernels; 10.3a: not there -> build\n    blackwell/blackwell_fmha_000..003"), "{text}");
    assert!(diff::diff(("a", &after), ("b", &after)).is_empty());
}

#[test]
fn everything_that_a_plan_names_is_explained() {
    let sections = core("fna compute_delta", "7.5 9.0", &[("9.0", "8.0", "identical")])
        + "[section.hopper]\nfamilies = [\"hopper_fmha\"]\ncuda-capabilities = [\"9.0a\"]\ncuda-minver = \"13.0\"\n";
    let (config, variant) = setting(&sections, "cu129").unwrap();
    let catalog = catalog::catalog().unwrap();
    let request = Request::default();
    let plan = super::plan(&config, &variant, None, &request, catalog).unwrap();
    let say = |subject: &str| explain::explain(&config, &plan, &request, catalog, subject);
    for (subject, kind, decision, part) in [
        ("9.0", "capability", "build", "8.0, whose PTX would serve it, is not built"),
        ("core/9.0", "capability", "build", "may share PTX of 8.0 (identical) for all kernels, declared at "),
        ("9.0a", "capability", "skip", "section hopper needs cuda 13.0 or later, variant cu129 has 12.9"),
        ("fna_000", "unit", "skip", "none of its selected kernels runs on 7.5, 9.0"),
        ("core/fna_011", "unit", "build", "9.0: build; 8.0, whose PTX"),
        ("hopper_fmha_000", "unit", "skip", "not compiled: needs cuda 13.0 or later"),
        ("hopper_fmha", "family", "skip", "10 kernels, 10 selected, 0 compiled in 0 of 5 units"),
        (
            "hopper_fmha",
            "backend",
            "skip",
            "stubbed: its functions are in the library and answer with that reason",
        ),
        ("compute_delta", "backend", "build", "built for 7.5, 9.0"),
        ("hopper", "section", "skip", "9.0a: skip: section hopper needs cuda 13.0"),
        ("fna1d_32x128x32_sm50_float32_cm_0", "kernel", "skip", "runs on SM [50,70)"),
        ("fna1d_32x128x32_sm80_float32_cm_0", "kernel", "build", "7.5: it does not run there"),
    ] {
        let found = say(subject).unwrap();
        let one = found.iter().find(|e| e.kind == kind).unwrap_or_else(|| panic!("{subject}: {found:?}"));
        assert_eq!(one.decision, decision, "{one:?}");
        assert!(one.lines.join("\n").contains(part), "{part}\n{one:?}");
    }
    let error = say("fan").unwrap_err();
    assert_eq!(class(&error), Class::Config);
    assert!(say("core/hopper_fmha").is_err());
}

#[test]
fn sample_has_every_kind_of_kernel_and_both_ways_to_each_capability() {
    use sample::{Choice, Pair, Question, samples};
    let sections = core("fmha token_permute", "8.0 9.0 10.0 12.0", &[("9.0", "8.0", "identical")]);
    let (config, variant) = setting(&sections, "cu130").unwrap();
    let catalog = catalog::catalog().unwrap();
    let take = |pairs: &[&str], choice: &Choice| {
        let pairs: Vec<Pair> = pairs.iter().map(|p| p.parse().unwrap()).collect();
        let question = Question { pairs, choice: choice.clone() };
        samples(&config, &variant, None, &Request::default(), &question, catalog)
    };
    // Without pairs, those of build.toml.
    let found = take(&[], &Choice::Few(2)).unwrap();
    let names: Vec<&str> = found.samples.iter().map(|s| s.unit.name.as_str()).collect();
    let types = ["bfloat16", "float16", "float32"];
    for family in ["fmha", "token_permute"] {
        for direction in ["forward", "backward"] {
            for dtype in types {
                assert!(names.contains(&format!("{family}_{direction}_{dtype}").as_str()), "{names:?}");
            }
        }
    }
    assert_eq!(names.len(), 12, "FP8 runs on 10.0 alone: {names:?}");
    for sample in &found.samples {
        assert_eq!(gencodes(&sample.unit), ["arch=compute_80,code=sm_90", "arch=compute_90,code=sm_90"]);
        assert!(sample.unit.kernels.len() == 2 && sample.unit.kernels.iter().all(|k| k.live_on(80)));
    }
    let found = take(&["12.0=10.0", "12.1=12.0"], &Choice::Units(vec!["fmha_002".to_owned()])).unwrap();
    assert_eq!(
        gencodes(&found.samples[0].unit),
        [
            "arch=compute_100,code=sm_120",
            "arch=compute_120,code=[sm_120,sm_121]",
            "arch=compute_121,code=sm_121"
        ]
    );
    for (pairs, choice, part) in [
        (
            &["10.3a=10.0a"][..],
            Choice::Few(1),
            "--pairs: 10.3a cannot share with 10.0a: PTX of 10.0a is for 10.0a alone",
        ),
        (&["8.0=7.0"], Choice::Few(1), "nothing to compare"),
        (&["9.0=8.0"], Choice::Units(vec!["fmha_999".to_owned()]), "unit \"fmha_999\" is not a unit"),
    ] {
        assert!(take(pairs, &choice).unwrap_err().to_string().contains(part), "{part}");
    }
    for text in ["9.0", "9.0:8.0", "90=80", "9.0=8.0=7.0"] {
        assert!(text.parse::<Pair>().is_err(), "{text}");
    }
}
