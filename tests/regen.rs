//! `nattenc regen` from outside: what it writes, what it refuses, and what stays as it was then.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "black-box tests start the real binary and lay out real files; a test may panic"
)]

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use support::{Project, Run, root};

/// A project with this checkout's autogen.lock.
fn project() -> Project {
    let project = Project::new();
    std::fs::copy(root().join("autogen.lock"), project.path("autogen.lock")).unwrap();
    project
}

/// Every file of a project but its store and its writers' locks, by path.
fn snapshot(project: &Project) -> BTreeMap<String, Vec<u8>> {
    let root = project.path("");
    walkdir::WalkDir::new(&root)
        .into_iter()
        .map(Result::unwrap)
        .filter(|e| !e.path().starts_with(root.join("home")))
        .filter(|e| {
            e.file_type().is_file() && e.path().extension().is_none_or(|x| x != "lock" || e.depth() == 1)
        })
        .map(|e| {
            (e.path().strip_prefix(&root).unwrap().display().to_string(), std::fs::read(e.path()).unwrap())
        })
        .collect()
}

fn units(dir: &Path) -> usize {
    let files = walkdir::WalkDir::new(dir).into_iter().map(Result::unwrap);
    files.filter(|e| e.path().extension().is_some_and(|x| x == "cu")).count()
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn the_lock_of_this_checkout_is_up_to_date() {
    let run = project().run(&["regen", "--check"]);
    run.check(0, &[]);
    assert_eq!(run.stdout.trim(), "autogen.lock is up to date");
}

#[test]
fn every_policy_is_counted_and_those_asked_for_are_written() {
    let project = project();
    let run = project.run(&["regen"]);
    run.check(0, &[]);
    let line = |name: &str| {
        let line = run.stdout.lines().find(|line| line.starts_with(name)).unwrap();
        line[name.len()..].split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(line("as upstream's autogen"), ["144", "286", "67"]);
    assert_eq!(line("fna "), ["64", "128", "32"]);
    assert!(run.stdout.contains("autogen.lock: unchanged"), "{}", run.stdout);
    assert_eq!(units(&project.path("build/autogen")), 151);
    let all = project.run(&["regen", "--policy", "all", "--out", "elsewhere", "--json"]);
    all.check(0, &[]);
    let written = json(&all.stdout);
    assert_eq!(written["directories"].as_array().unwrap().len(), 3);
    for (policy, count) in [("default", 151), ("fine", 303), ("coarse", 74)] {
        assert_eq!(units(&project.path("elsewhere").join(policy)), count, "{policy}");
    }
    project.run(&["regen", "--check"]).check(0, &[]);
}

#[test]
fn the_list_in_a_directory_is_one_that_sha256sum_reads() {
    let project = project();
    project.run(&["regen", "--policy", "coarse"]).check(0, &[]);
    let checked = std::process::Command::new("sha256sum")
        .args(["--check", "--strict", "--quiet", ".nattenc-sha256"])
        .current_dir(project.path("build/autogen/coarse"))
        .status()
        .unwrap();
    assert!(checked.success());
}

#[test]
fn a_file_that_was_edited_by_hand_is_named_and_kept_until_forced() {
    let project = project();
    project.run(&["regen"]).check(0, &[]);
    let unit = "build/autogen/default/fna/fna_011.cu";
    let rendered = project.read(unit);
    project.edit(unit, "#include", "// mine\n#include");
    let before = snapshot(&project);
    project.run(&["regen"]).check(8, &["fna/fna_011.cu was edited by hand", "--force"]);
    assert!(snapshot(&project) == before);
    let check = project.run(&["regen", "--check", "--json"]);
    check.check(8, &["differ in 1 place"]);
    let verdict = json(&check.stdout);
    assert_eq!(verdict["directories"][0]["edited"], serde_json::json!(["fna/fna_011.cu"]));
    assert_eq!(verdict["up_to_date"], false);
    assert!(snapshot(&project) == before);
    project.run(&["regen", "--force"]).check(0, &[]);
    assert_eq!(project.read(unit), rendered);
    project.run(&["regen", "--check"]).check(0, &[]);
}

#[test]
fn added_removed_and_changed_files_are_listed_against_the_lock_and_regen_renews_it() {
    let project = project();
    let good = project.read("autogen.lock");
    let line =
        |path: &str| good.lines().find(|line| line.starts_with(&format!("\"{path}\""))).unwrap().to_owned();
    let (gone, other) = (line("fmha/fmha_000.cu"), line("fmha/fmha_001.cu"));
    project.edit("autogen.lock", &format!("{gone}\n"), "\"fmha/fmha_old.cu\" = \"00\"\n");
    project.edit("autogen.lock", &other, "\"fmha/fmha_001.cu\" = \"00\"");
    let before = snapshot(&project);
    let check = project.run(&["regen", "--check"]);
    check.check(8, &["differ in 3 places", "run `nattenc regen`"]);
    let lines: Vec<&str> = check.stdout.lines().collect();
    assert_eq!(
        lines,
        [
            "added     default/fmha/fmha_000.cu",
            "removed   default/fmha/fmha_old.cu",
            "changed   default/fmha/fmha_001.cu",
            "autogen.lock: 3 differences"
        ]
    );
    assert!(snapshot(&project) == before);
    project.run(&["regen"]).check(0, &[]);
    assert_eq!(project.read("autogen.lock"), good);
}

#[test]
fn an_interface_that_breaks_needs_a_new_version_of_the_package() {
    let project = project();
    let good = project.read("autogen.lock");
    for (from, to, sentence) in [
        (
            "[interface.operations]\n",
            "[interface.operations]\nnatten_old = \"int32_t natten_old(void)\"\n",
            "operation natten_old is gone",
        ),
        ("\"int32_t dtype\", ", "", "has `int32_t dtype` where it had"),
        ("\"NATTEN_OK\" = \"0\"", "\"NATTEN_OK\" = \"9\"", "constant NATTEN_OK is `0`, was `9`"),
        ("\"32x128x32, 64x64x32, ", "\"16x16x32, 32x128x32, 64x64x32, ", ": 16x16x32 is gone"),
    ] {
        project.write("autogen.lock", &good.replacen(from, to, 1));
        assert_ne!(project.read("autogen.lock"), good, "{from}");
        let before = snapshot(&project);
        for args in [&["regen", "--check"][..], &["regen"], &["regen", "--force"]] {
            project.run(args).check(8, &[sentence, "[workspace.package]"]);
            assert!(snapshot(&project) == before, "{args:?}");
        }
        // A record of an older version may be followed by one of this.
        let older = project.read("autogen.lock").replacen("package = \"", "package = \"0.0.1-", 1);
        project.write("autogen.lock", &older);
        project.run(&["regen", "--check"]).check(8, &["run `nattenc regen`"]);
        project.run(&["regen"]).check(0, &[]);
        assert_eq!(project.read("autogen.lock"), good);
        project.run(&["regen", "--policy", "coarse", "--out", "coarse"]).check(0, &[]);
        std::fs::remove_dir_all(project.path("build")).unwrap();
        std::fs::remove_dir_all(project.path("coarse")).unwrap();
    }
}

#[test]
fn another_natten_in_build_toml_than_in_the_lock_is_a_bump_that_was_cut_short() {
    let project = project();
    project.edit("build.toml", "natten = \"0.21.7\"", "natten = \"0.21.6\"");
    let before = snapshot(&project);
    project.run(&["regen", "--check"]).check(8, &["differ in 1 place"]);
    project.run(&["regen"]).check(2, &["recorded for natten 0.21.7", "nattenc regen --upstream 0.21.6"]);
    assert!(snapshot(&project) == before);
}

#[test]
fn what_a_killed_run_staged_is_taken_away() {
    let project = project();
    project.run(&["regen"]).check(0, &[]);
    let before = snapshot(&project);
    project.write("build/autogen/.default.new/fna/fna_000.cu", "half");
    let run = project.run(&["regen"]);
    run.check(0, &[]);
    assert!(run.stdout.contains("unchanged, 151 kept"), "{}", run.stdout);
    assert!(snapshot(&project) == before);
}

#[test]
fn a_run_that_is_killed_at_any_moment_leaves_the_old_state_or_the_new_one() {
    let project = project();
    project.run(&["regen", "--policy", "coarse", "--out", "out"]).check(0, &[]);
    let coarse = units(&project.path("out"));
    for delay in [1, 5, 10, 20, 40, 60, 80, 120] {
        let mut child = project.command(&["regen", "--policy", "fine", "--out", "out"]);
        let mut child = child.stdout(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(delay));
        let _ = child.kill();
        child.wait().unwrap();
        // Whatever is there is one rendering whole, by its own list.
        let list = project.read("out/.nattenc-sha256");
        assert!(list.lines().count() == coarse || list.lines().count() == 303, "{delay} ms");
        assert_eq!(units(&project.path("out")), list.lines().count(), "{delay} ms");
        project.run(&["regen", "--policy", "coarse", "--out", "out"]).check(0, &[]);
        assert_eq!(units(&project.path("out")), coarse);
        assert_eq!(
            std::fs::read_dir(project.path(""))
                .unwrap()
                .filter(|e| {
                    let name = e.as_ref().unwrap().file_name().to_string_lossy().into_owned();
                    name == ".out.new" || name == ".out.old"
                })
                .count(),
            0
        );
    }
}

#[test]
fn directories_of_others_and_options_that_exclude_each_other_are_refused() {
    let project = project();
    project.write("mine/precious", "x");
    project.run(&["regen", "--out", "mine", "--force"]).check(2, &["mine", "nattenc did not make it"]);
    assert_eq!(project.read("mine/precious"), "x");
    for args in [
        &["regen", "--check", "--oracle"][..],
        &["regen", "--check", "--force"],
        &["regen", "--upstream", "0.21.6", "--policy", "fine"],
        &["regen", "--natten", "0.21.6"],
        &["regen", "--interface", "0.21.6"],
    ] {
        project.run(args).check(2, &[]);
    }
}

#[test]
fn a_bump_without_sources_changes_nothing() {
    let project = project();
    project.copy_lock();
    let before = snapshot(&project);
    project.run(&["regen", "--upstream", "0.21.6", "--offline"]).check(2, &["offline", "nattenc fetch"]);
    assert!(snapshot(&project) == before);
}

/// The real thing, there and back: fetches two source archives.
#[test]
#[ignore = "needs python3 and the package index"]
fn a_bump_there_and_back_leaves_every_byte_as_it_was() {
    let project = project();
    project.copy_lock();
    let before = snapshot(&project);
    for version in ["0.21.6", "0.21.7"] {
        let run = online(&project, &["regen", "--upstream", version]);
        run.check(0, &[]);
        for part in ["no generated file changes", "written: autogen.lock, nattenc.lock, build.toml"] {
            assert!(run.stdout.contains(part), "{part}: {}", run.stdout);
        }
        project.run(&["regen", "--check"]).check(0, &[]);
        assert!(project.read("build.toml").contains(&format!("natten = \"{version}\"")));
    }
    assert!(snapshot(&project) == before);
    // Tables that do not cover a version: everything is said, nothing is changed.
    let run = online(&project, &["regen", "--upstream", "0.21.5", "--json"]);
    run.check(8, &["do not cover natten 0.21.5", "84 differences", "nothing was changed"]);
    let bump = json(&run.stdout);
    assert_eq!(bump["written"], serde_json::json!([]));
    assert_eq!(bump["oracle"]["differences"].as_array().unwrap().len(), 84);
    assert_eq!(bump["upstream"]["operations"]["changed"].as_array().unwrap().len(), 3);
    assert!(snapshot(&project) == before);
    let run = online(&project, &["regen", "--interface", "0.21.6", "0.21.7"]);
    run.check(0, &[]);
    assert!(run.stdout.contains("operations: 37; 0 added, 0 removed, 0 changed"), "{}", run.stdout);
    assert!(snapshot(&project) == before);
}

/// Runs with what pip is configured with on this machine.
fn online(project: &Project, args: &[&str]) -> Run {
    let wanted = |name: &str| {
        name.starts_with("PIP_") || ["HOME", "SSL_CERT_FILE", "HTTPS_PROXY", "NO_PROXY"].contains(&name)
    };
    let env: Vec<(String, String)> = std::env::vars().filter(|(name, _)| wanted(name)).collect();
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    project.run_with(args, &env)
}
