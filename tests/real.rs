//! Builds with a real toolkit: what fails, what is kept, what is the same everywhere. The smallest family
//! stands for all. The first test that runs fetches toolkit and sources, so these are not part of a plain
//! `cargo test`; CI runs them with `--ignored`.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "black-box tests start the real binary and lay out real files; a test may panic"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use support::{Project, store};

const SMALL: &[&str] = &["build", "--variant", "cu130", "--family", "compute_delta", "--capability", "9.0"];

fn small<'a>(more: &[&'a str]) -> Vec<&'a str> {
    SMALL.iter().chain(more).copied().collect()
}

/// A project whose store holds the shared one's downloads and none of its finished work.
fn project() -> Project {
    let project = Project::new();
    project.copy_lock();
    for part in ["blobs", "trees"] {
        let from = store().join(part);
        std::fs::create_dir_all(&from).unwrap();
        std::fs::create_dir_all(project.path("home")).unwrap();
        std::os::unix::fs::symlink(&from, project.path("home").join(part)).unwrap();
    }
    project
}

/// Every file of an artifact, by path.
fn artifact(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    walkdir::WalkDir::new(dir)
        .into_iter()
        .map(Result::unwrap)
        .filter(|e| e.file_type().is_file())
        .map(|e| {
            (e.path().strip_prefix(dir).unwrap().display().to_string(), std::fs::read(e.path()).unwrap())
        })
        .collect()
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[test]
#[ignore = "needs a toolkit: fetches one on first use"]
fn artifact_has_the_same_bytes_in_any_folder_with_any_jobs() {
    let (one, two) = (project(), project());
    one.run(&small(&["-j", "1"])).check(0, &[]);
    two.run(&small(&["-j", "3", "--dist", "some/deeper/place"])).check(0, &[]);
    let (first, second) = (artifact(&one.path("dist/cu130")), artifact(&two.path("some/deeper/place")));
    assert_eq!(first.keys().collect::<Vec<_>>(), second.keys().collect::<Vec<_>>());
    for (path, bytes) in &first {
        assert!(second[path] == *bytes, "{path} differs");
    }
}

#[test]
#[ignore = "needs a toolkit: fetches one on first use"]
fn unchanged_build_runs_nothing_and_a_removed_artifact_comes_back_from_the_cache() {
    let project = project();
    let first = json(&project.run(&small(&["--json"])).stdout);
    assert!(first["ran"].as_u64().unwrap() > 10 && first["unchanged"] == false, "{first}");
    let again = json(&project.run(&small(&["--json"])).stdout);
    assert!(again["ran"] == 0 && again["unchanged"] == true, "{again}");
    let before = artifact(&project.path("dist/cu130"));
    // A byte of the artifact that is not its own is noticed, and so is a file.
    let library = project.path("dist/cu130/lib/libnatten_kernels.so");
    let mut bytes = std::fs::read(&library).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&library, bytes).unwrap();
    let mended = json(&project.run(&small(&["--json"])).stdout);
    assert!(mended["ran"] == 0 && mended["unchanged"] == false, "{mended}");
    assert!(before == artifact(&project.path("dist/cu130")));
    project.write("dist/cu130/lib/foreign", "x");
    project.run(&small(&[])).check(8, &["foreign"]);
    std::fs::remove_file(project.path("dist/cu130/lib/foreign")).unwrap();
    project.run(&["clean", "--variant", "cu130"]).check(0, &[]);
    let back = json(&project.run(&small(&["--json"])).stdout);
    assert!(back["ran"] == 0 && back["unchanged"] == false, "{back}");
    assert!(before == artifact(&project.path("dist/cu130")));
}

#[test]
#[ignore = "needs a toolkit: fetches one on first use"]
fn flag_that_nvcc_does_not_know_is_refused_before_any_unit() {
    let project = project();
    project.edit("build.toml", "[section.core]", "[section.core]\ncuda-flags = [\"--no-such-flag\"]");
    let run = project.run(&small(&[]));
    run.check(2, &["--no-such-flag", "core", "13.0"]);
    assert!(!run.stderr.contains("[1/"), "{}", run.stderr);
}

#[test]
#[ignore = "needs a toolkit: fetches one on first use"]
fn unit_that_does_not_compile_is_named_with_its_first_error_and_its_log() {
    let project = project();
    project.edit("build.toml", "[section.core]", "[section.core]\ncuda-flags = [\"-Dcutlass=7\"]");
    let run = project.run(&small(&[]));
    run.check(4, &["unit:       core/compute_delta_000", "error", "log:        /"]);
    let log = run.stderr.lines().find_map(|l| l.trim().strip_prefix("log: ")).unwrap().trim();
    assert!(std::fs::read_to_string(log).unwrap().contains("$ cd "));
    assert!(!project.path("dist/cu130").exists());
    // Mended, it goes on.
    project.edit("build.toml", "cuda-flags = [\"-Dcutlass=7\"]", "");
    project.run(&small(&[])).check(0, &[]);
}

#[test]
#[ignore = "needs a toolkit: fetches one on first use"]
fn build_that_is_stopped_anywhere_goes_on_and_makes_the_same_artifact() {
    let whole = project();
    whole.run(&small(&[])).check(0, &[]);
    for (signal, code) in [("INT", Some(130)), ("TERM", Some(143)), ("KILL", None)] {
        let project = project();
        let mut child = project
            .command(&small(&["-j", "1"]))
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // Stopped once two jobs are done and a third runs.
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        lines.find(|l| l.as_ref().unwrap().starts_with("[2/")).unwrap().unwrap();
        let pid = child.id().to_string();
        assert!(
            std::process::Command::new("kill")
                .args([&format!("-{signal}"), &pid])
                .status()
                .unwrap()
                .success()
        );
        lines.for_each(drop);
        assert_eq!(child.wait().unwrap().code(), code, "{signal}");
        assert!(!project.path("dist/cu130").exists(), "{signal}");
        let resumed = project.run(&small(&["--json"]));
        resumed.check(0, &[]);
        assert!(json(&resumed.stdout)["cached"].as_u64().unwrap() >= 2, "{signal}: {}", resumed.stdout);
        assert!(artifact(&project.path("dist/cu130")) == artifact(&whole.path("dist/cu130")), "{signal}");
    }
}

/// A seed that can be given again: `NATTENC_TEST_SEED`.
fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let given = std::env::var("NATTENC_TEST_SEED").ok().map(|text| text.parse().unwrap());
    given.unwrap_or(u64::from(now.subsec_nanos()))
}

/// Numbers that are random enough.
fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

#[test]
#[ignore = "needs a toolkit: fetches one on first use"]
fn build_that_is_killed_at_five_random_moments_makes_the_same_artifact() {
    let (whole, killed) = (project(), project());
    let begun = std::time::Instant::now();
    whole.run(&small(&["-j", "2"])).check(0, &[]);
    let most = u64::try_from(begun.elapsed().as_millis()).unwrap();
    let seed = seed();
    println!("NATTENC_TEST_SEED={seed}");
    let mut random = random(seed);
    let mut moments = Vec::new();
    while moments.len() < 5 {
        let moment = std::time::Duration::from_millis(random(most));
        let mut child =
            killed.command(&small(&["-j", "2"])).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(moment);
        if child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
            moments.push(moment);
        } else {
            // It came to its end: from the beginning, then.
            killed.run(&["cache", "clear"]).check(0, &[]);
            killed.run(&["clean"]).check(0, &[]);
        }
        child.wait().unwrap();
    }
    println!("killed after {moments:?}");
    killed.run(&small(&["-j", "2"])).check(0, &[]);
    assert!(artifact(&killed.path("dist/cu130")) == artifact(&whole.path("dist/cu130")), "{moments:?}");
    killed.run(&["cache", "verify"]).check(0, &[]);
}

#[test]
#[ignore = "needs a toolkit: fetches one on first use"]
fn second_build_of_the_same_directory_is_told_so() {
    let project = project();
    let mut first =
        project.command(&small(&["-j", "1"])).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(first.stderr.take().unwrap()).lines();
    lines.find(|l| l.as_ref().unwrap().starts_with("building ")).unwrap().unwrap();
    project.run(&small(&[])).check(7, &["another build owns this directory"]);
    lines.for_each(drop);
    assert!(first.wait().unwrap().success());
}

#[test]
#[ignore = "needs a toolkit: fetches one on first use"]
fn directory_that_is_no_artifact_is_left_alone() {
    let project = project();
    project.write("dist/cu130/precious", "x");
    project.run(&small(&[])).check(2, &["dist/cu130", "--dist"]);
    assert_eq!(project.read("dist/cu130/precious"), "x");
}

#[test]
#[ignore = "needs a toolkit: fetches one on first use"]
fn selection_is_what_the_library_holds() {
    let project = project();
    project.run(&small(&["--select", "family=compute_delta,dtype=float16"])).check(0, &[]);
    let manifest = json(&project.read("dist/cu130/manifest.json"));
    let kernels: Vec<&str> = manifest["units"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|u| u["kernels"].as_array().unwrap())
        .map(|k| k.as_str().unwrap())
        .collect();
    assert_eq!(kernels.len(), 1, "{kernels:?}");
    assert!(kernels[0].contains("float16"), "{kernels:?}");
    let library = std::fs::read(project.path("dist/cu130/lib/libnatten_kernels.so")).unwrap();
    let holds = |text: &str| library.windows(text.len()).any(|w| w == text.as_bytes());
    assert!(holds(kernels[0]));
    assert!(!holds("compute_delta_bfloat16"));
}

/// (kernel, capability) of the artifact in `dist/cu130` that has a body, and of those that have none.
fn bodies(project: &Project) -> [BTreeSet<(String, String)>; 2] {
    let run = project.run(&["verify", "dist/cu130", "--kernels", "--json"]);
    run.check(0, &[]);
    let mut found = [BTreeSet::new(), BTreeSet::new()];
    for kernel in json(&run.stdout)["kernels"].as_array().unwrap() {
        let name = |key: &str| kernel[key].as_str().unwrap().to_owned();
        found[usize::from(kernel["empty"] == true)].insert((name("kernel"), name("capability")));
    }
    found
}

#[test]
#[ignore = "needs a toolkit: fetches one on first use; compiles for two minutes"]
fn pruning_loses_no_code() {
    // Twelve kernels for each of the SM ranges [50,70), [70,75), [75,80) and [80,130).
    let sample = ["build", "--variant", "cu130", "--family", "fmha", "--capability", "7.5,8.0"];
    let select = ["--select", "family=fmha,dtype=float16,direction=forward"];
    let project = project();
    let mut codes = Vec::new();
    for more in [&[][..], &["--no-prune"]] {
        project.run(&[&sample[..], &select, more].concat()).check(0, &[]);
        codes.push(bodies(&project));
    }
    let [[pruned, _], [whole, empty]] = &codes[..] else { panic!("two builds") };
    assert_eq!(pruned, whole);
    let count = |set: &BTreeSet<(String, String)>, range: &str, capability: &str| {
        set.iter().filter(|(kernel, c)| kernel.contains(range) && c == capability).count()
    };
    for (range, on_75, on_80) in [("_sm50_", 0, 0), ("_sm70_", 0, 0), ("_sm75_", 12, 0), ("_sm80_", 0, 12)] {
        for (capability, live) in [("7.5", on_75), ("8.0", on_80)] {
            let found = (count(whole, range, capability), count(empty, range, capability));
            assert_eq!(found, (live, 12 - live), "{range} {capability}");
        }
    }
}

#[test]
#[ignore = "needs a toolkit: fetches one on first use"]
fn capabilities_that_share_ptx_have_code_of_their_own_and_the_manifest_says_so() {
    let project = project();
    let sample =
        ["build", "--variant", "cu130", "--family", "compute_delta", "--capability", "8.0,9.0,10.0,12.0"];
    let mut codes = Vec::new();
    for (more, gencodes) in [
        (&["--no-share"][..], &["arch=compute_80,code=sm_80", "arch=compute_90,code=sm_90"][..]),
        (
            &["--share", "valid"],
            &["arch=compute_80,code=[sm_80,sm_90]", "arch=compute_100,code=[sm_100,sm_120]"],
        ),
    ] {
        project.run(&[&sample[..], more].concat()).check(0, &[]);
        let manifest = json(&project.read("dist/cu130/manifest.json"));
        let unit = manifest["units"][0]["gencodes"].as_array().unwrap();
        assert!(gencodes.iter().all(|g| unit.iter().any(|u| u == g)), "{unit:?}");
        let shared: Vec<String> = manifest["sections"][0]["capabilities"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| format!("{} {}", c["capability"], c["shared"]))
            .collect();
        if more == ["--no-share"] {
            assert!(shared.iter().all(|c| c.ends_with("null")), "{shared:?}");
        } else {
            assert_eq!(shared[1], r#""9.0" {"from":"8.0","mode":"identical"}"#);
            assert_eq!(shared[3], r#""12.0" {"from":"10.0","mode":"identical"}"#);
        }
        codes.push(bodies(&project));
    }
    // Three element types for four capabilities, either way.
    assert_eq!((codes[0][0].len(), &codes[0]), (12, &codes[1]));
}

#[test]
#[ignore = "needs a toolkit: fetches one on first use"]
fn pair_is_identical_only_if_its_code_is() {
    let project = project();
    let proof = ["verify", "--share-ptx", "--variant", "cu130", "--sample", "1", "--json"];
    let same = ["--family", "compute_delta", "--pairs", "9.0=8.0,12.0=10.0"];
    let run = project.run(&[&proof[..], &same].concat());
    run.check(0, &[]);
    let table = json(&run.stdout);
    for row in table["rows"].as_array().unwrap() {
        assert!(row["identical"] == true && row["kernels"] == 3, "{row}");
        assert!(row["code_bytes"].as_u64().unwrap() > 5000, "{row}");
    }
    // What build.toml calls valid may differ; what it calls identical may not.
    let other = ["--pairs", "12.0=10.0", "--select", "family=fna,dim=1,dtype=float16,direction=forward"];
    let fna = [&proof[..], &other, &["--family", "fna"]].concat();
    let run = project.run(&fna);
    run.check(0, &[]);
    let row = json(&run.stdout)["rows"][0].clone();
    assert!(row["identical"] == false && row["declared"] == "valid", "{row}");
    assert!(row["differing"][0].as_str().unwrap().contains("fna1d"), "{row}");
    let narrow = "\"family=fna|fmha,dtype=float32\",\n    ] },\n    { cap = \"12.0\", from = \"10.0\", mode = \"valid\" },";
    project.edit("build.toml", narrow, "\"family=fna|fmha\",\n    ] },");
    let run = project.run(&fna);
    run.check(
        8,
        &["build.toml:", "12.0 from 10.0 is called identical, and is not", "fna", "mode = \"valid\""],
    );
    assert!(json(&run.stdout)["cpu"] == 0.0, "the second time nothing is compiled: {}", run.stdout);
}

#[test]
#[ignore = "needs a toolkit: fetches one on first use"]
fn explain_tells_what_changed_since_the_last_build() {
    let project = project();
    project.run(&small(&[])).check(0, &[]);
    let explain = ["explain", "compute_delta_000", "--capability", "9.0"];
    let say = |more: &[&str], part: &str| {
        let run = project.run(&[&explain[..], more].concat());
        run.check(0, &[]);
        assert!(run.stdout.contains(part), "{part}\n{}", run.stdout);
    };
    say(&[], "nothing that it is compiled from changed since the last build");
    say(&[], "ran: cicc core/compute_delta_000/compute_90");
    say(&["--select", "family=compute_delta,dtype=float16"], "its text, that is its kernels");
    project.edit("build.toml", "[section.core]", "[section.core]\ncuda-flags = [\"-lineinfo\"]");
    say(&[], "added since the last build: -lineinfo");
}

#[test]
#[ignore = "needs a toolkit: fetches one on first use"]
fn cache_that_cannot_be_written_costs_warnings_and_no_build() {
    let project = project();
    // The place of the cache is taken by a file.
    project.write("home/cache", "not a directory");
    let run = project.run(&small(&[]));
    assert!(run.stderr.contains("warning"), "{}", run.stderr);
    run.check(0, &[]);
}

#[test]
#[ignore = "needs a toolkit: fetches one on first use; and to be allowed to mount in a namespace of its own"]
fn cache_that_is_full_or_read_only_costs_warnings_and_no_build() {
    let whole = project();
    whole.run(&small(&[])).check(0, &[]);
    for (options, name) in [("size=96k", "full"), ("ro", "read-only")] {
        let project = project();
        let cache = project.path("home/cache");
        std::fs::create_dir_all(&cache).unwrap();
        let build = project.command(&small(&["-j", "2"]));
        let script = "mount -t tmpfs -o \"$1\" tmpfs \"$2\" || exit 99; shift 2; exec \"$@\"";
        let output = std::process::Command::new("unshare")
            .args(["--map-root-user", "--mount", "sh", "-c", script, "sh", options])
            .arg(&cache)
            .arg(build.get_program())
            .args(build.get_args())
            .current_dir(project.path(""))
            .env_clear()
            .envs(build.get_envs().filter_map(|(key, value)| Some((key, value?))))
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {told}");
        assert_eq!(told.matches("the store cannot be written").count(), 1, "{name}: {told}");
        assert!(artifact(&project.path("dist/cu130")) == artifact(&whole.path("dist/cu130")), "{name}");
    }
}

/// Six units that are quick to compile.
const SIX: &[&str] = &[
    "build",
    "--variant",
    "cu130",
    "--family",
    "compute_delta,token_permute,merge",
    "--capability",
    "9.0",
    "--no-prune",
];

#[test]
#[ignore = "needs a toolkit: fetches one on first use"]
fn shards_of_three_machines_are_the_artifact_of_one_and_others_are_refused() {
    let whole = project();
    whole.run(SIX).check(0, &[]);
    let machines = [project(), project(), project()];
    let mut shards = Vec::new();
    let mut units = BTreeSet::new();
    for (i, machine) in machines.iter().enumerate() {
        let shard = format!("{}/3", i + 1);
        let summary = machine.run(&[SIX, &["--shard", &shard, "--json"]].concat());
        summary.check(0, &[]);
        let dir = machine.path(&format!("dist/cu130.shard-{}-of-3", i + 1));
        let manifest = json(&std::fs::read_to_string(dir.join("shard.json")).unwrap());
        for unit in manifest["units"].as_array().unwrap() {
            assert!(units.insert(unit.as_str().unwrap().to_owned()), "{unit} is in two shards");
        }
        shards.push(dir.display().to_string());
    }
    assert_eq!(
        units.len(),
        json(&whole.run(&[SIX, &["--json"]].concat()).stdout)["units"].as_u64().unwrap() as usize
    );

    let merging = project();
    let merge = |shards: &[&String]| {
        let shards = shards.iter().map(|shard| shard.as_str());
        merging.run(&["merge"].into_iter().chain(shards).chain(["--json"]).collect::<Vec<_>>())
    };
    let [a, b, c] = [&shards[0], &shards[1], &shards[2]];
    merge(&[a, c]).check(2, &["1 of 3 shards are missing: 2/3"]);
    merge(&[a, b, c, b]).check(2, &["shard 2/3 is there twice"]);
    // Of another selection.
    let other = project();
    other.run(&small(&["--shard", "1/1"])).check(0, &[]);
    let other = other.path("dist/cu130.shard-1-of-1").display().to_string();
    merge(&[a, b, &other]).check(2, &["are not of one build", "shard-1-of-1"]);
    // Of other sources than those here: another flag in build.toml.
    let text = merging.read("build.toml");
    merging
        .write("build.toml", &text.replace("[section.core]", "[section.core]\ncuda-flags = [\"-lineinfo\"]"));
    merge(&[a, b, c]).check(2, &["was not built from what is here", "arguments of nvcc"]);
    merging.write("build.toml", &text);
    // With a file that was changed, and one that is gone.
    let object = walkdir::WalkDir::new(c)
        .into_iter()
        .map(Result::unwrap)
        .find(|e| e.path().extension().is_some_and(|x| x == "o"));
    let object = object.unwrap().into_path();
    let bytes = std::fs::read(&object).unwrap();
    std::fs::write(&object, &bytes[1..]).unwrap();
    merge(&[a, b, c]).check(8, &["shard 3/3", "was changed"]);
    std::fs::remove_file(&object).unwrap();
    merge(&[a, b, c]).check(8, &["shard 3/3", "is not there"]);
    std::fs::write(&object, bytes).unwrap();
    assert!(!merging.path("dist/cu130").exists());

    let merged = merge(&[c, a, b]);
    merged.check(0, &[]);
    assert!(artifact(&merging.path("dist/cu130")) == artifact(&whole.path("dist/cu130")));
    // Nothing was compiled but the sources that every artifact has.
    let jobs = json(&merging.read("build/cu130/jobs.json"));
    for job in jobs.as_array().unwrap().iter().filter(|job| job["how"] == "ran") {
        let (kind, label) = (job["kind"].as_str().unwrap(), job["label"].as_str().unwrap());
        assert!(["archive", "link"].contains(&kind) || label.starts_with("host/"), "{kind} {label}");
    }
}

#[test]
#[ignore = "needs a toolkit: fetches one on first use"]
fn build_that_a_deadline_ends_goes_on_and_makes_the_same_artifact() {
    let (whole, late) = (project(), project());
    whole.run(&small(&[])).check(0, &[]);
    late.run(&small(&["--deadline", "5s", "-j", "1"]))
        .check(9, &["jobs are done and kept", "predicted to take"]);
    assert!(!late.path("dist/cu130").exists());
    let stats = json(&late.run(&["cache", "stats", "--json"]).stdout);
    // Each preprocessing has two more, by the headers that it read.
    let done = stats["entries"].as_u64().unwrap() - stats["kinds"]["headers"]["count"].as_u64().unwrap();
    let resumed = late.run(&small(&["--json", "--deadline", "60m", "--cache-size", "0M"]));
    resumed.check(0, &["files evicted", "all together too large"]);
    // The probe and nvcc's dry run are no jobs of the graph.
    assert!(json(&resumed.stdout)["cached"].as_u64().unwrap() + 2 >= done, "{done}: {}", resumed.stdout);
    assert!(artifact(&late.path("dist/cu130")) == artifact(&whole.path("dist/cu130")));
    assert_eq!(json(&late.run(&["cache", "stats", "--json"]).stdout)["entries"], 0);
    late.run(&small(&[])).check(0, &["unchanged"]);
}

/// The fetched toolkit as an installed one, whose ptxas does `what` where a unit is compiled.
fn toolkit_with_ptxas(project: &Project, what: &str) -> String {
    let version = |ptxas: &Path| {
        let output = std::process::Command::new(ptxas).arg("--version").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let fetched = walkdir::WalkDir::new(store().join("trees"))
        .sort_by_file_name()
        .into_iter()
        .map(|entry| entry.unwrap().into_path())
        .find(|path| path.ends_with("bin/ptxas") && version(path).contains("release 13.0"))
        .expect("the toolkit that a test before this one fetched");
    let at = project.path("toolkit");
    let home = fetched.parent().unwrap().parent().unwrap();
    assert!(std::process::Command::new("cp").arg("-rL").args([home, &at]).status().unwrap().success());
    let ptxas = at.join("bin/ptxas");
    std::fs::rename(&ptxas, at.join("bin/ptxas.real")).unwrap();
    let banner: String = version(&fetched).lines().map(|line| format!("# {line}\n")).collect();
    let script = format!(
        "#!/bin/sh\n{banner}case $PWD in */scratch/compute_delta*) {what};; esac\n\
         exec \"$(dirname \"$0\")/ptxas.real\" \"$@\"\n"
    );
    project.write("toolkit/bin/ptxas", &script);
    std::fs::set_permissions(&ptxas, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    at.display().to_string()
}

#[test]
#[ignore = "needs a toolkit: fetches one on first use; copies it"]
fn assembler_that_crashes_or_hangs_is_told_from_one_that_finds_errors() {
    let project = project();
    project.run(&small(&["--deadline", "0s"])).check(9, &[]);
    let toolkit = toolkit_with_ptxas(&project, "kill -SEGV $$");
    let run = project.run(&small(&["--toolkit", &toolkit]));
    run.check(4, &["it runs again, alone", "ptxas failed (killed by signal 11, SIGSEGV)"]);
    // The script runs the real one where its directory is no scratch directory of a build.
    let script = run.stderr.lines().find_map(|line| line.trim().strip_prefix("next step:  run ")).unwrap();
    let script = script.split(',').next().unwrap();
    assert!(script.ends_with("ptxas.sh"), "{script}");
    assert!(std::process::Command::new(script).current_dir("/").status().unwrap().success());

    std::fs::remove_dir_all(project.path("toolkit")).unwrap();
    let toolkit = toolkit_with_ptxas(&project, "sleep 600");
    let run = project.run(&small(&["--toolkit", &toolkit, "--unit-timeout", "45s"]));
    run.check(
        4,
        &["ptxas hung (ended by nattenc after 45.0 s: --unit-timeout)", "core/compute_delta_000/sm_90"],
    );
}

/// The sources' own CUTLASS in the store.
fn own_cutlass(project: &Project) -> std::path::PathBuf {
    let natten =
        json(&project.read("dist/cu130/manifest.json"))["upstream"]["natten"].as_str().unwrap().to_owned();
    let trees = std::fs::read_dir(project.path("home/trees")).unwrap().map(|e| e.unwrap().path());
    let inside = format!("tree/natten-{natten}/third_party/cutlass");
    trees.map(|tree| tree.join(&inside)).find(|path| path.is_dir()).unwrap()
}

#[test]
#[ignore = "needs a toolkit: fetches one on first use"]
fn another_cutlass_with_the_same_bytes_changes_nothing_and_one_out_of_range_is_refused() {
    let project = project();
    project.run(&small(&[])).check(0, &[]);
    let before = artifact(&project.path("dist/cu130"));
    let own = own_cutlass(&project);
    let named = |path: &str, versions: &str| {
        project.write("build.toml", &std::fs::read_to_string(support::root().join("build.toml")).unwrap());
        let line = format!("[upstream]\ncutlass = {{ path = \"{path}\", versions = \"{versions}\" }}");
        project.edit("build.toml", "[upstream]", &line);
    };

    named(own.to_str().unwrap(), ">=4.3, <4.6");
    let run = json(&project.run(&small(&["--json"])).stdout);
    assert!(run["ran"] == 0 && run["unchanged"] == true, "{run}");

    // A copy with another comment in a header that every unit reads: preprocessed anew, compiled never.
    for entry in walkdir::WalkDir::new(&own).into_iter().map(Result::unwrap) {
        let to = project.path("cutlass").join(entry.path().strip_prefix(&own).unwrap());
        if entry.file_type().is_dir() {
            std::fs::create_dir_all(&to).unwrap();
        } else {
            std::fs::copy(entry.path(), &to).unwrap();
        }
    }
    let header = "cutlass/include/cutlass/cutlass.h";
    project.write(header, &(project.read(header) + "// the end\n"));
    named("cutlass", "4.3");
    let run = project.run(&small(&["--json"]));
    run.check(0, &["CUTLASS 4.3"]);
    let run = json(&run.stdout);
    assert!(
        run["ran"].as_u64().unwrap() > 0 && run["cached"].as_u64().unwrap() > run["ran"].as_u64().unwrap(),
        "{run}"
    );
    assert!(run["peak_job"].as_str().unwrap().starts_with("preprocess "), "{run}");
    let (mut same, mut after) = (before.clone(), artifact(&project.path("dist/cu130")));
    let manifests = [&mut same, &mut after].map(|files| files.remove("manifest.json").unwrap());
    assert!(same == after);
    let told = manifests.map(|text| json(&String::from_utf8(text).unwrap())["upstream"].clone());
    assert_eq!(told[0]["cutlass"], told[1]["cutlass"]);
    assert!(
        told[0]["sources_with_other_cutlass"].is_null() && told[1]["sources_with_other_cutlass"].is_string()
    );

    // The same with other code.
    project.write(
        header,
        &project.read(header).replace("// the end", "static_assert(sizeof(int) == 1, \"no\");"),
    );
    project.run(&small(&[])).check(4, &["core/compute_delta_000"]);

    for (versions, part) in [(">=4.5", "has version 4.3"), ("<4", "outside of the declared <4")] {
        named("cutlass", versions);
        let run = project.run(&small(&[]));
        run.check(2, &[part, "build.toml:", "cutlass cutlass"]);
        assert!(!run.stderr.contains("building "), "{}", run.stderr);
    }
    std::fs::remove_file(project.path("cutlass/include/cutlass/version.h")).unwrap();
    project.run(&small(&[])).check(2, &["version.h: is not there", "<4 is declared"]);
    same.insert("manifest.json".to_owned(), std::fs::read(project.path("dist/cu130/manifest.json")).unwrap());
    assert!(same == artifact(&project.path("dist/cu130")));
}
