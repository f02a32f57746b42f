//! Plans of small configurations: what is built, shared and left out, and what is said of it.

use super::*;
use crate::catalog;
use crate::config;

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
        (asked.sort_unstable(), answers.sort_unstable());
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
