//! Runs of small graphs whose jobs are shell scripts.

use super::*;
use crate::graph::Input;
use std::path::Path;
use std::sync::Arc;

struct Plain;

impl Digests for Plain {
    fn sha256(&self, path: &Path) -> anyhow::Result<String> {
        crate::fs::sha256(path)
    }
}

/// A reporter that only counts.
#[derive(Default)]
struct Counts {
    alive: Mutex<(usize, usize)>,
    warnings: Mutex<Vec<String>>,
    phases: Mutex<Vec<String>>,
}

impl Reporter for Counts {
    fn phase(&self, text: &str) {
        self.phases.lock().unwrap().push(text.to_owned());
    }
    fn planned(&self, _: usize) {}
    fn started(&self, _: &Job) {
        let mut alive = self.alive.lock().unwrap();
        alive.0 += 1;
        alive.1 = alive.1.max(alive.0);
    }
    fn finished(&self, _: &Job, outcome: Outcome) {
        if outcome != Outcome::Cached {
            self.alive.lock().unwrap().0 -= 1;
        }
    }
    fn tick(&self) {}
    fn left(&self, _: Duration) {}
    fn warning(&self, text: &str) {
        self.warnings.lock().unwrap().push(text.to_owned());
    }
    fn result(&self, _: &str) {}
    fn transfer_begins(&self, _: &str, _: Option<u64>) -> u64 {
        0
    }
    fn transfer_advances(&self, _: u64, _: u64) {}
    fn transfer_ends(&self, _: u64, _: &str) {}
}

struct Bench {
    home: tempfile::TempDir,
    reporter: Counts,
    signal: AtomicUsize,
    memory: u64,
    unit_timeout: Option<Duration>,
    deadline: Option<Instant>,
    patience: Duration,
}

impl Bench {
    fn new() -> Self {
        Bench {
            home: tempfile::tempdir().unwrap(),
            reporter: Counts::default(),
            signal: AtomicUsize::new(0),
            memory: 1 << 40,
            unit_timeout: None,
            deadline: None,
            patience: crate::bounded::PATIENCE,
        }
    }

    fn run_in(
        &self,
        place: &str,
        graph: &Graph,
        jobs: usize,
        on_failure: OnFailure,
    ) -> anyhow::Result<Built> {
        let cache = Cache::patient(self.home.path(), &self.home.path().join(place), self.patience);
        let wanted = &[graph.jobs().len() - 1];
        let setting = Setting {
            home: self.home.path().to_path_buf(),
            scratch: self.home.path().join(place).join("scratch"),
            logs: self.home.path().join(place).join("logs"),
            cache: &cache,
            trees: BTreeMap::new(),
            tools: ["sh", "host"].map(|tool| (tool.to_owned(), "digest".to_owned())).into(),
            env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
            digests: &Plain,
            reporter: &self.reporter,
            signal: &self.signal,
            has: &|_| false,
            may_run: &|job| job.label != "barred",
        };
        let (memory, unit_timeout, deadline) = (self.memory, self.unit_timeout, self.deadline);
        run(graph, wanted, &setting, Limits { jobs, memory, on_failure, unit_timeout, deadline })
    }

    fn run(&self, graph: &Graph) -> anyhow::Result<Built> {
        self.run_in("a", graph, 2, OnFailure::Stop)
    }
}

fn ran(built: &Built) -> Vec<&str> {
    built.records.iter().filter(|r| r.how == How::Ran).map(|r| r.label.as_str()).collect()
}

/// A job that runs a line of sh in the scratch directory `unit`.
fn sh(label: &str, script: &str, inputs: Vec<Input>, output: &str) -> Job {
    Job {
        kind: Kind::Cicc,
        scratch: "unit".to_owned(),
        label: label.to_owned(),
        tool: "sh".to_owned(),
        program: "/bin/sh".to_owned(),
        args: vec!["-c".to_owned(), script.to_owned()],
        inputs,
        outputs: vec![output.to_owned()],
        trees: vec![],
        depfile: None,
        estimate: Cost { cpu: 1.0, memory: 1 << 20 },
    }
}

fn text(name: &str, text: &str) -> Input {
    Input { name: name.to_owned(), source: Source::Text(Arc::from(text)) }
}

fn output(name: &str, job: JobId) -> Input {
    Input { name: name.to_owned(), source: Source::Output(job, 0) }
}

/// upper: `in` to capitals; twice: that, two times over.
fn chain(word: &str) -> Graph {
    let mut graph = Graph::default();
    let first = graph.add(sh("upper", "tr a-z A-Z <in >upper", vec![text("in", word)], "upper"));
    graph.add(sh("twice", "cat upper upper >twice", vec![output("upper", first)], "twice"));
    graph
}

#[test]
fn unchanged_graph_runs_nothing_and_gives_the_same_bytes() {
    let bench = Bench::new();
    let first = bench.run(&chain("word")).unwrap();
    assert_eq!(ran(&first), ["upper", "twice"]);
    let cache = Cache::new(bench.home.path(), bench.home.path());
    assert_eq!(cache.get(&first.outputs[1][0]).as_deref(), Some(&b"WORDWORD"[..]));
    let second = bench.run(&chain("word")).unwrap();
    assert!(ran(&second).is_empty());
    assert_eq!(first.outputs, second.outputs);
}

#[test]
fn another_directory_with_the_same_cache_runs_nothing() {
    let bench = Bench::new();
    bench.run(&chain("word")).unwrap();
    assert!(ran(&bench.run_in("elsewhere/deep", &chain("word"), 2, OnFailure::Stop).unwrap()).is_empty());
}

#[test]
fn change_that_leaves_an_intermediate_alone_stops_there() {
    let bench = Bench::new();
    bench.run(&chain("word")).unwrap();
    assert_eq!(ran(&bench.run(&chain("WORD")).unwrap()), ["upper"]);
}

#[test]
fn output_that_the_cache_lost_is_made_again() {
    let bench = Bench::new();
    let first = bench.run(&chain("word")).unwrap();
    // The last step's output, so that it must run, and the bytes of its input, damaged.
    let cas = bench.home.path().join("cache/cas");
    let path = |blob: &Blob| cas.join(&blob.sha256[..2]).join(&blob.sha256);
    crate::fs::remove_file(&path(&first.outputs[1][0])).unwrap();
    crate::fs::write(&path(&first.outputs[0][0]), b"damaged").unwrap();
    crate::fs::remove_dir(&bench.home.path().join("a")).unwrap();
    let again = bench.run(&chain("word")).unwrap();
    assert_eq!(ran(&again), ["upper", "twice"]);
    assert_eq!(again.outputs, first.outputs);
    let told = "cicc upper runs again: cicc twice needs its output";
    assert!(bench.reporter.phases.lock().unwrap().iter().any(|text| text.starts_with(told)));
}

/// Where the bytes of an output are in the cache.
fn blob(bench: &Bench, built: &Built, id: JobId, output: usize) -> PathBuf {
    let digest = &built.outputs[id][output].sha256;
    bench.home.path().join("cache/cas").join(&digest[..2]).join(digest)
}

#[test]
fn bytes_that_a_record_no_longer_describes_are_never_mixed_with_those_that_it_did() {
    // What `made` makes depends on something that no key knows.
    let graph = |end: &str| {
        let mut graph = Graph::default();
        let made = graph.add(sh("made", "cat ../../world >made", vec![], "made"));
        let copy = graph.add(sh("copy", "cat made >copy", vec![output("made", made)], "copy"));
        let slow = graph.add(sh(
            "slow",
            "sleep 0.3; cat copy >slow",
            vec![output("copy", copy), text("end", end)],
            "slow",
        ));
        let other =
            graph.add(sh("other", "cat made >other", vec![output("made", made), text("end", end)], "other"));
        let inputs = vec![output("copy", copy), output("slow", slow), output("other", other)];
        graph.add(sh("all", "cat copy slow other >all", inputs, "all"));
        graph
    };
    let bench = Bench::new();
    let world = bench.home.path().join("a/world");
    crate::fs::write(&world, b"old ").unwrap();
    let first = bench.run(&graph("")).unwrap();
    assert_eq!(first.wanted, [b"old old old "]);
    crate::fs::write(&world, b"new ").unwrap();
    crate::fs::remove_file(&blob(&bench, &first, 0, 0)).unwrap();
    crate::fs::remove_dir(&bench.home.path().join("a/scratch")).unwrap();
    // `slow` runs on the old bytes while `other` has `made` made again.
    let again = bench.run(&graph("another end")).unwrap();
    assert_eq!(again.wanted, [b"new new new "]);
    let warnings = bench.reporter.warnings.lock().unwrap();
    assert!(warnings[0].starts_with("cicc made made other bytes than the cache knew"), "{warnings:?}");
}

#[test]
fn job_that_runs_for_its_bytes_waits_for_those_who_read_its_other_outputs() {
    let graph = |end: &str| {
        let mut graph = Graph::default();
        let script = ": >one; : >two; sleep 0.5; echo 1 >one; echo 2 >two";
        let two = vec!["one".to_owned(), "two".to_owned()];
        let both = graph.add(Job { outputs: two, ..sh("both", script, vec![], "") });
        let inputs = vec![output("one", both), text("end", end)];
        let slow = graph.add(sh("slow", "sleep 0.2; cat one >slow", inputs, "slow"));
        let second = Input { name: "two".to_owned(), source: Source::Output(both, 1) };
        let quick = graph.add(sh("quick", "cat two >quick", vec![second, text("end", end)], "quick"));
        let third =
            graph.add(sh("third", "cat one >third", vec![output("one", both), text("end", end)], "third"));
        let inputs = vec![output("slow", slow), output("quick", quick), output("third", third)];
        graph.add(sh("all", "cat slow quick third >all", inputs, "all"));
        graph
    };
    let bench = Bench::new();
    let first = bench.run(&graph("")).unwrap();
    crate::fs::remove_file(&blob(&bench, &first, 0, 1)).unwrap();
    crate::fs::remove_dir(&bench.home.path().join("a")).unwrap();
    let again = bench.run_in("a", &graph("another end"), 3, OnFailure::Stop).unwrap();
    assert_eq!((again.wanted, ran(&first).len()), (vec![b"1\n2\n1\n".to_vec()], 5));
}

#[test]
fn damage_to_every_file_of_the_cache_costs_jobs_and_never_a_byte() {
    use crate::fs;
    type Damage = fn(&Path, Vec<u8>);
    let damages: [(&str, Damage); 6] = [
        ("a flipped bit in the middle", |path, mut bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(path, &bytes).unwrap();
        }),
        ("cut to the half", |path, bytes| fs::write(path, &bytes[..bytes.len() / 2]).unwrap()),
        ("empty", |path, _| fs::write(path, b"").unwrap()),
        ("other digests in records", |path, bytes| {
            let text = String::from_utf8_lossy(&bytes).replace("\"sha256\":\"", "\"sha256\":\"0");
            fs::write(path, text.as_bytes()).unwrap();
        }),
        ("a directory", |path, _| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        }),
        ("a link that leads nowhere", |path, _| fs::symlink(Path::new("/nowhere"), path).unwrap()),
    ];
    let graph = |end: &str| {
        let mut graph = chain("word");
        graph.add(sh("end", "cat twice in >end", vec![output("twice", 1), text("in", end)], "end"));
        graph
    };
    for (name, damage) in damages {
        let bench = Bench::new();
        assert_eq!(bench.run(&graph("!")).unwrap().wanted, [b"WORDWORD!"]);
        for entry in walkdir::WalkDir::new(bench.home.path().join("cache")) {
            let path = entry.unwrap().into_path();
            if path.is_file() && !path.ends_with("lock") {
                damage(&path, fs::read(&path).unwrap());
            }
        }
        // From another directory: nothing is left in a scratch directory.
        for end in ["!", "?", "!"] {
            let built = bench.run_in(end, &graph(end), 2, OnFailure::Stop).unwrap();
            assert_eq!(built.wanted, [[b"WORDWORD", end.as_bytes()].concat()], "{name}");
        }
    }
}

#[test]
fn cache_that_gives_no_answer_costs_its_hits_and_one_warning() {
    let mut bench = Bench::new();
    let first = bench.run(&chain("word")).unwrap();
    let files = walkdir::WalkDir::new(bench.home.path().join("cache")).into_iter().filter_map(Result::ok);
    for file in files.filter(|entry| entry.file_type().is_file()) {
        crate::fs::remove_file(file.path()).unwrap();
        crate::fs::pipe(file.path());
    }
    bench.patience = Duration::from_millis(200);
    let again = bench.run(&chain("word")).unwrap();
    assert_eq!((ran(&again), &again.outputs), (vec!["upper", "twice"], &first.outputs));
    let warnings = bench.reporter.warnings.lock().unwrap().clone();
    assert!(warnings.len() == 1 && warnings[0].contains("the store gives no answer"), "{warnings:?}");
    // What stands in for it has everything the next time.
    assert_eq!(ran(&bench.run(&chain("word")).unwrap()), [""; 0]);
}

#[test]
fn bytes_that_nobody_reads_may_be_gone() {
    let mut graph = Graph::default();
    let mut last = graph.add(sh("0", "echo x >0", vec![], "0"));
    for i in 1..6 {
        let script = format!("cat {} >{i}; echo {i} >>{i}", i - 1);
        let input = output(&(i - 1).to_string(), last);
        last = graph.add(sh(&i.to_string(), &script, vec![input], &i.to_string()));
    }
    // All but the end: nothing runs. The end too, but for one that it can be made from: it begins there.
    // All: the whole chain runs.
    for (gone, again) in [(&[0, 1, 2, 3, 4][..], 0), (&[0, 1, 3, 4, 5], 3), (&[0, 1, 2, 3, 4, 5], 6)] {
        let bench = Bench::new();
        let first = bench.run(&graph).unwrap();
        for id in gone {
            let digest = &first.outputs[*id][0].sha256;
            let cas = bench.home.path().join("cache/cas");
            crate::fs::remove_file(&cas.join(&digest[..2]).join(digest)).unwrap();
        }
        crate::fs::remove_dir(&bench.home.path().join("a")).unwrap();
        let built = bench.run(&graph).unwrap();
        assert_eq!((ran(&built).len(), &built.wanted), (again, &first.wanted), "{gone:?}");
    }
}

#[test]
fn job_that_must_not_run_is_a_failure_before_anything_runs() {
    let bench = Bench::new();
    let mut graph = Graph::default();
    graph.add(sh("free", "echo x >../free; echo x >free", vec![], "free"));
    graph.add(sh("barred", "echo x >x", vec![], "x"));
    let error = bench.run(&graph).err().unwrap();
    assert_eq!(crate::failure::class(&error), Class::Integrity);
    assert!(error.to_string().contains("cicc barred: not in the cache"), "{error}");
    assert!(!bench.home.path().join("a/scratch/free").exists());
}

#[test]
fn damaged_end_is_made_again_in_the_same_run() {
    let bench = Bench::new();
    let first = bench.run(&chain("word")).unwrap();
    // Every blob is there and empty.
    for entry in walkdir::WalkDir::new(bench.home.path().join("cache/cas")) {
        let entry = entry.unwrap();
        if entry.file_type().is_file() {
            crate::fs::write(entry.path(), b"").unwrap();
        }
    }
    crate::fs::remove_dir(&bench.home.path().join("a")).unwrap();
    let again = bench.run(&chain("word")).unwrap();
    assert_eq!(again.outputs, first.outputs);
    let cache = Cache::new(bench.home.path(), bench.home.path());
    assert_eq!(cache.get(&again.outputs[1][0]).as_deref(), Some(&b"WORDWORD"[..]));
}

#[test]
fn eviction_beside_a_run_costs_it_jobs_and_never_its_end() {
    use upkeep::{Bounds, Upkeep};
    let bench = Bench::new();
    let done = std::sync::atomic::AtomicBool::new(false);
    let mut graph = Graph::default();
    let mut last = graph.add(sh("0", "echo x >0", vec![], "0"));
    for i in 1..30 {
        let from = last;
        let script = format!("sleep 0.01; cat {} >{i}; echo x >>{i}", i - 1);
        last =
            graph.add(sh(&i.to_string(), &script, vec![output(&(i - 1).to_string(), from)], &i.to_string()));
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                Upkeep::new(bench.home.path()).evict(Bounds { size: Some(0), age: None }).unwrap();
                Upkeep::new(bench.home.path()).verify().unwrap();
            }
        });
        let built = bench.run(&graph);
        done.store(true, Ordering::SeqCst);
        assert_eq!(built.unwrap().wanted[0], "x\n".repeat(30).as_bytes());
    });
    Upkeep::new(bench.home.path()).evict(Bounds { size: Some(0), age: None }).unwrap();
    crate::fs::remove_dir(&bench.home.path().join("a")).unwrap();
    assert_eq!(ran(&bench.run(&graph).unwrap()).len(), 30);
}

#[test]
fn failed_job_names_unit_diagnostic_and_log() {
    for (script, class, message, diagnostic) in [
        ("echo 'x.cu(1): error: no' >&2; exit 2", Class::Compile, "exit code 2", "x.cu(1): error: no"),
        ("echo >&2; kill -9 $$", Class::Resource, "signal 9", "none"),
        ("kill -11 $$", Class::Compile, "signal 11", "none"),
        ("echo 'write: No space left on device'; exit 1", Class::Resource, "exit code 1", "No space left"),
        ("true", Class::Compile, "exited 0 but wrote nothing to out", "none"),
    ] {
        let bench = Bench::new();
        let mut graph = Graph::default();
        graph.add(sh("core/unit/sm_90", script, vec![], "out"));
        let error = bench.run(&graph).err().unwrap();
        let failure = error.downcast_ref::<Failure>().unwrap();
        assert_eq!(failure.class, class, "{script}");
        assert!(failure.message.contains(message), "{script}: {}", failure.message);
        assert!(failure.diagnostic.as_deref().unwrap().contains(diagnostic), "{script}: {failure:?}");
        assert_eq!(failure.unit.as_deref(), Some("core/unit/sm_90"));
        assert!(
            crate::fs::read_text(failure.log.as_ref().unwrap())
                .unwrap()
                .contains(script.split('\'').next().unwrap())
        );
    }
}

#[test]
fn failure_is_not_cached_and_mending_it_goes_on() {
    let bench = Bench::new();
    let with = |ok: &str| {
        let mut graph = Graph::default();
        let first = graph.add(sh("first", "echo x >x", vec![], "x"));
        graph.add(sh("second", "test -e ../ok && cat x >y", vec![output("x", first), text("ok", ok)], "y"));
        graph
    };
    assert!(bench.run(&with("")).is_err());
    crate::fs::write(&bench.home.path().join("a/scratch/ok"), b"").unwrap();
    assert_eq!(ran(&bench.run(&with("")).unwrap()), ["second"]);
}

#[test]
fn keep_going_runs_what_does_not_need_the_failed_job() {
    for (on_failure, made) in [(OnFailure::KeepGoing, true), (OnFailure::Stop, false)] {
        let bench = Bench::new();
        let mut graph = Graph::default();
        let bad =
            graph.add(Job { estimate: Cost { cpu: 9.0, memory: 1 }, ..sh("bad", "exit 1", vec![], "bad") });
        graph.add(sh("needs bad", "cat bad >no", vec![output("bad", bad)], "no"));
        graph.add(sh("good", "echo good >good", vec![], "good"));
        let error = bench.run_in("a", &graph, 1, on_failure).err().unwrap();
        assert!(error.to_string().contains("not started"), "{error}");
        assert_eq!(bench.home.path().join("a/scratch/unit/good").exists(), made, "{on_failure:?}");
    }
}

#[test]
fn never_more_processes_than_jobs() {
    let bench = Bench::new();
    let mut graph = Graph::default();
    for i in 0..8 {
        graph.add(sh(&format!("{i}"), &format!("sleep 0.05; echo x >{i}"), vec![], &i.to_string()));
    }
    bench.run_in("a", &graph, 3, OnFailure::Stop).unwrap();
    assert_eq!(bench.reporter.alive.lock().unwrap().1, 3);
}

/// Jobs that each say how much they need, in megabytes.
fn sized(sizes: &[u64]) -> Graph {
    let mut graph = Graph::default();
    for (i, megabytes) in sizes.iter().enumerate() {
        let estimate = Cost { cpu: 1.0, memory: megabytes << 20 };
        let job = sh(&format!("{i}"), &format!("sleep 0.05; echo x >{i}"), vec![], &i.to_string());
        graph.add(Job { estimate, ..job });
    }
    graph
}

#[test]
fn jobs_run_side_by_side_as_far_as_memory_is_predicted_to_go() {
    for (budget, sizes, together) in [
        (10, &[5, 5, 5, 5][..], 2),
        (10, &[4, 4, 4, 4], 2),
        (10, &[1, 1, 1, 1], 4),
        // More than there is: alone, and never a deadlock.
        (1, &[5, 5, 5], 1),
        // The light ones fill the gap beside the heavy one.
        (10, &[9, 1, 9, 1], 2),
    ] {
        let bench = Bench { memory: budget << 20, ..Bench::new() };
        bench.run_in("a", &sized(sizes), 8, OnFailure::Stop).unwrap();
        assert_eq!(bench.reporter.alive.lock().unwrap().1, together, "{budget} MB for {sizes:?}");
    }
}

#[test]
fn job_starts_beside_one_whose_peak_is_over() {
    let bench = Bench { memory: 60 << 20, ..Bench::new() };
    let mut graph = Graph::default();
    // Holds much, then little, and waits for the other, which has no room before.
    let script = "x=$(head -c 40000000 /dev/zero | tr '\\0' x); sleep 1; [ -e ../other ] && exit 3; x=; i=0\n\
                  until [ -e ../other ]; do i=$((i + 1)); [ $i -lt 300 ] || exit 4; sleep 0.1; done; echo x >first";
    let estimate = Cost { cpu: 0.01, memory: 30 << 20 };
    graph.add(Job { estimate, ..sh("first", script, vec![], "first") });
    let estimate = Cost { cpu: 0.001, memory: 40 << 20 };
    graph.add(Job { estimate, ..sh("other", "echo x >../other; echo x >other", vec![], "other") });
    let built = bench.run(&graph).unwrap();
    assert_eq!(ran(&built), ["first", "other"]);
    assert!(built.peak_memory >= 40_000_000, "{}", built.peak_memory);
}

#[test]
fn job_far_above_its_prediction_is_ended_and_runs_again_alone() {
    let bench = Bench { memory: 150 << 20, ..Bench::new() };
    let mut graph = Graph::default();
    // Goes on until the other's first try, which takes more than there is beside it, is over.
    let steady = "x=$(head -c 40000000 /dev/zero | tr '\\0' x); i=0; until [ -e ../big ]; do sleep 0.1; done\n\
                  while kill -0 $(cat ../big); do i=$((i + 1)); [ $i -lt 300 ] || exit 4; sleep 0.1; done; echo x >steady";
    let big = "echo x >>../tries; [ $(wc -l <../tries) = 1 ] || { echo x >big; exit; }\n\
               echo $$ >../big.part; mv ../big.part ../big; x=$(head -c 200000000 /dev/zero | tr '\\0' x); sleep 60";
    graph.add(Job {
        estimate: Cost { cpu: 9.0, memory: 100 << 20 },
        ..sh("steady", steady, vec![], "steady")
    });
    graph.add(Job { estimate: Cost { cpu: 1.0, memory: 30 << 20 }, ..sh("big", big, vec![], "big") });
    let built = bench.run(&graph).unwrap();
    assert_eq!(ran(&built), ["steady", "big"]);
    let warnings = bench.reporter.warnings.lock().unwrap().join("\n");
    assert!(warnings.contains("cicc big: holds") && warnings.contains("runs again, alone"), "{warnings}");
    let tries = crate::fs::read(&bench.home.path().join("a/scratch/tries")).unwrap();
    assert_eq!(tries, b"x\nx\n");
}

#[test]
fn history_replaces_estimates() {
    let bench = Bench { memory: 1 << 30, ..Bench::new() };
    let graph = sized(&[4096, 4096]);
    bench.run_in("a", &graph, 2, OnFailure::Stop).unwrap();
    assert_eq!(bench.reporter.alive.lock().unwrap().1, 1);
    crate::fs::remove_dir(&bench.home.path().join("cache")).unwrap();
    bench.run_in("a", &graph, 2, OnFailure::Stop).unwrap();
    assert_eq!(bench.reporter.alive.lock().unwrap().1, 2);
}

#[test]
fn job_that_died_once_runs_again_alone_and_a_second_death_is_the_end() {
    for signal in [9, 11] {
        let bench = Bench::new();
        let once = format!("if [ -e ../died ]; then echo x >out; else touch ../died; kill -{signal} $$; fi");
        let mut graph = Graph::default();
        graph.add(sh("once", &once, vec![], "out"));
        assert_eq!(ran(&bench.run(&graph).unwrap()), ["once"]);
        let warning = bench.reporter.warnings.lock().unwrap()[0].clone();
        assert!(warning.contains(&format!("signal {signal}")) && warning.contains("alone"), "{warning}");
    }
}

#[test]
fn crash_leaves_a_script_that_repeats_it_alone() {
    let bench = Bench::new();
    let mut graph = Graph::default();
    let script = "echo again >>../tries; echo \"it's $(cat in) $HOME\" >&2; kill -11 $$";
    graph.add(sh("core/unit/sm_90", script, vec![text("in", "input")], "out"));
    let error = bench.run(&graph).err().unwrap();
    let failure = error.downcast_ref::<Failure>().unwrap();
    assert_eq!(failure.class, Class::Compile);
    assert!(failure.message.contains("killed by signal 11, SIGSEGV"), "{}", failure.message);
    let path = bench.home.path().join("a/logs/core/unit/sm_90.cicc.sh");
    assert!(failure.hint.as_ref().unwrap().contains(&path.display().to_string()), "{failure:?}");
    let tries = crate::fs::read_text(&bench.home.path().join("a/scratch/tries")).unwrap();
    assert_eq!(tries, "again\nagain\n");
    // From anywhere, with neither the build's directories nor the environment.
    crate::fs::remove_dir(&bench.home.path().join("a/scratch")).unwrap();
    let moved = bench.home.path().join("moved");
    crate::fs::rename(&bench.home.path().join("a/logs/core/unit"), &moved).unwrap();
    let env = BTreeMap::from([
        ("PATH".to_owned(), "/usr/bin:/bin".to_owned()),
        ("HOME".to_owned(), "somewhere".to_owned()),
        ("TMPDIR".to_owned(), bench.home.path().display().to_string()),
    ]);
    let argv = vec![moved.join("sm_90.cicc.sh").display().to_string()];
    let command = process::CommandLine { argv, env, cwd: "/".into() };
    let finished = process::capture(&command).unwrap();
    assert_eq!((finished.signal, finished.output.as_str()), (Some(11), "it's input \n"));
}

#[test]
fn compiler_that_its_driver_saw_die_is_told_from_one_that_found_an_error() {
    for (said, class, tries) in [
        ("g++: fatal error: Killed signal terminated program cc1plus", Class::Resource, 2),
        ("g++: internal compiler error: Killed (program cc1plus)", Class::Resource, 2),
        ("g++: fatal error: Segmentation fault signal terminated program cc1plus", Class::Compile, 2),
        ("x.cu(1): error: Killed signal terminated program", Class::Compile, 1),
    ] {
        let bench = Bench::new();
        let mut graph = Graph::default();
        let script = format!("echo again >>../tries; echo '{said}' >&2; exit 1");
        graph.add(Job { tool: "host".to_owned(), ..sh("core/unit", &script, vec![], "out") });
        let error = bench.run(&graph).err().unwrap();
        assert_eq!(crate::failure::class(&error), class, "{said}");
        let told = crate::fs::read_text(&bench.home.path().join("a/scratch/tries")).unwrap();
        assert_eq!(told.lines().count(), tries, "{said}");
    }
}

#[test]
fn same_error_of_many_units_is_told_once_and_a_real_one_comes_first() {
    let bench = Bench::new();
    let mut graph = Graph::default();
    let mut add = |label: &str, script: &str| {
        graph.add(sh(label, script, vec![], &label.replace('/', "_")));
    };
    add("core/silent/sm_90", "exit 3");
    for unit in 0..7 {
        for gencode in ["sm_80", "sm_90"] {
            add(&format!("core/fna_{unit}/{gencode}"), "echo 'x.h(7): error: no such thing'; exit 2");
        }
    }
    add("core/other/sm_90", "echo 'y.h(1): error: something else'; exit 2");
    let error = bench.run_in("a", &graph, 1, OnFailure::KeepGoing).err().unwrap();
    let failure = error.downcast_ref::<Failure>().unwrap();
    assert_eq!(failure.diagnostic.as_deref(), Some("x.h(7): error: no such thing"));
    let lines: Vec<&str> = failure.message.lines().map(str::trim).collect();
    assert_eq!(
        lines,
        [
            "core/fna_0/sm_80: cicc failed (exit code 2)",
            "the same in 7 units (core/fna_0, core/fna_1, core/fna_2, core/fna_3, core/fna_4 and 2 more)",
            "also, in 1 units (core/silent): cicc failed (exit code 3)",
            "also, in 1 units (core/other): y.h(1): error: something else",
        ]
    );
    let block = crate::failure::block(&error);
    let last: Vec<&str> = block.lines().rev().take(4).collect();
    assert!(last.iter().any(|line| line.contains("error: no such thing")), "{block}");
}

#[test]
fn ordinary_error_is_tried_once() {
    let bench = Bench::new();
    let mut graph = Graph::default();
    graph.add(sh("bad", "echo again >>../tries; exit 1", vec![], "out"));
    assert!(bench.run(&graph).is_err());
    assert_eq!(crate::fs::read_text(&bench.home.path().join("a/scratch/tries")).unwrap(), "again\n");
}

#[test]
fn hung_process_is_ended_with_its_group_and_named_and_not_tried_again() {
    let bench = Bench { unit_timeout: Some(Duration::from_millis(400)), ..Bench::new() };
    let mut graph = Graph::default();
    graph.add(sh("core/unit/sm_90", "echo again >>../tries; sleep 30 & sleep 30", vec![], "out"));
    graph.add(sh("good", "echo good >good", vec![], "good"));
    let begun = Instant::now();
    let error = bench.run_in("a", &graph, 1, OnFailure::KeepGoing).err().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5));
    let failure = error.downcast_ref::<Failure>().unwrap();
    assert_eq!((failure.class, failure.unit.as_deref()), (Class::Compile, Some("core/unit/sm_90")));
    assert!(failure.message.contains("cicc hung (ended by nattenc after 0.4 s"), "{}", failure.message);
    assert!(failure.hint.as_ref().unwrap().contains("--unit-timeout"));
    let log = crate::fs::read_text(failure.log.as_ref().unwrap()).unwrap();
    assert!(log.contains("ended by nattenc after") && log.contains("sleep 30 & sleep 30"), "{log}");
    let tries = crate::fs::read_text(&bench.home.path().join("a/scratch/tries")).unwrap();
    assert_eq!((tries.as_str(), bench.home.path().join("a/scratch/unit/good").exists()), ("again\n", true));
    // Neither its outputs nor its time are remembered.
    assert!(bench.run_in("a", &graph, 1, OnFailure::Stop).is_err());
}

#[test]
fn small_process_is_not_said_to_take_what_nattenc_holds() {
    let held = vec![1u8; 300 << 20];
    let run = |script: &str| {
        let env = BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]);
        let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        let command = process::CommandLine { argv, env, cwd: PathBuf::from("/") };
        process::run(&command, None, None).unwrap().peak_memory >> 20
    };
    assert!(run("true") < 50);
    assert!((1..50).contains(&run("sleep 0.1")), "what is seen");
    // `tail` holds a line until it has all of it.
    assert!((100..290).contains(&run("(head -c 100M /dev/zero; sleep 0.5) | tail -n 1 >/dev/null")));
    assert!(
        (400..600).contains(&run("head -c 400M /dev/zero | tail -n 1 >/dev/null")),
        "what the kernel counts"
    );
    assert_eq!(held.last(), Some(&1));
}

#[test]
fn process_that_ignores_being_asked_is_killed_and_one_whose_output_stays_open_is_left_behind() {
    for (script, left) in
        [("trap '' TERM; sleep 30 & wait; sleep 30", false), ("setsid sleep 30 & sleep 30", true)]
    {
        let bench = Bench { unit_timeout: Some(Duration::from_millis(200)), ..Bench::new() };
        let mut graph = Graph::default();
        graph.add(sh("core/unit/sm_90", script, vec![], "out"));
        let begun = Instant::now();
        let error = bench.run(&graph).err().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(20), "{script}");
        let failure = error.downcast_ref::<Failure>().unwrap();
        assert!(failure.message.contains("cicc hung (ended by nattenc after 0.2 s"), "{}", failure.message);
        let log = crate::fs::read_text(failure.log.as_ref().unwrap()).unwrap();
        assert_eq!(log.contains("is left behind"), left, "{log}");
    }
}

#[test]
fn script_of_a_crash_goes_once_the_job_ends_well() {
    let bench = Bench::new();
    let graph = || {
        let mut graph = Graph::default();
        graph.add(sh(
            "core/unit/sm_90",
            "[ -e ../mended ] || kill -11 $$; cat in >out",
            vec![text("in", "x")],
            "out",
        ));
        graph
    };
    assert!(bench.run(&graph()).is_err());
    let left =
        ["sh", "inputs"].map(|end| bench.home.path().join(format!("a/logs/core/unit/sm_90.cicc.{end}")));
    assert!(left.iter().all(|path| path.exists()));
    crate::fs::write(&bench.home.path().join("a/scratch/mended"), b"").unwrap();
    bench.run(&graph()).unwrap();
    assert!(left.iter().all(|path| !path.exists()));
}

/// Jobs that each take 0.3 s, and are predicted to.
fn timed(count: usize) -> Graph {
    let mut graph = Graph::default();
    for i in 0..count {
        let job = sh(&format!("core/{i}"), &format!("sleep 0.3; echo x >{i}"), vec![], &i.to_string());
        graph.add(Job { estimate: Cost { cpu: 0.3, memory: 1 }, ..job });
    }
    graph
}

#[test]
fn deadline_starts_nothing_that_ends_later_and_the_next_run_goes_on() {
    let graph = timed(6);
    let mut bench = Bench::new();
    let begun = Instant::now();
    bench.deadline = Some(begun + Duration::from_millis(1100));
    let error = bench.run_in("a", &graph, 1, OnFailure::Stop).err().unwrap();
    assert!(begun.elapsed() < Duration::from_millis(1400), "{:?}", begun.elapsed());
    let failure = error.downcast_ref::<Failure>().unwrap();
    assert_eq!(failure.class.exit_code(), 9);
    for part in ["of 6 jobs are done and kept", "predicted to take", "cicc core/"] {
        assert!(failure.message.contains(part), "{}", failure.message);
    }
    bench.deadline = None;
    let again = bench.run_in("a", &graph, 1, OnFailure::Stop).unwrap();
    let ran = ran(&again).len();
    assert!((1..=4).contains(&ran), "{ran} jobs were left");
    // Passed, and nothing to do: done.
    bench.deadline = Some(Instant::now());
    assert!(bench.run_in("a", &graph, 1, OnFailure::Stop).is_ok());
    assert!(bench.run_in("a", &timed(7), 1, OnFailure::Stop).is_err());
}

#[test]
fn deadline_lets_short_jobs_in_where_long_ones_do_not_fit() {
    let mut graph = timed(3);
    let long = sh("core/long", "sleep 30; echo x >long", vec![], "long");
    graph.add(Job { estimate: Cost { cpu: 600.0, memory: 1 }, ..long });
    let bench = Bench { deadline: Some(Instant::now() + Duration::from_secs(20)), ..Bench::new() };
    let error = bench.run_in("a", &graph, 1, OnFailure::Stop).err().unwrap().to_string();
    assert!(error.contains("3 of 4 jobs are done") && error.contains("is cicc core/long"), "{error}");
}

#[test]
fn failure_counts_more_than_the_deadline() {
    let mut graph = Graph::default();
    graph.add(sh("bad", "exit 1", vec![], "bad"));
    let late = sh("late", "echo x >late", vec![], "late");
    graph.add(Job { estimate: Cost { cpu: 600.0, memory: 1 }, ..late });
    let bench = Bench { deadline: Some(Instant::now() + Duration::from_secs(20)), ..Bench::new() };
    let error = bench.run_in("a", &graph, 1, OnFailure::KeepGoing).err().unwrap();
    assert_eq!(crate::failure::class(&error), Class::Compile);
    assert!(error.to_string().contains("1 jobs were not started"), "{error}");
}

#[test]
fn job_that_needs_more_than_there_is_is_warned_of() {
    let bench = Bench { memory: 1 << 20, ..Bench::new() };
    bench.run_in("a", &sized(&[1, 5]), 1, OnFailure::Stop).unwrap();
    let warnings = bench.reporter.warnings.lock().unwrap().clone();
    assert!(warnings[0].contains("cicc 1, predicted to need 5.2 MB") && warnings[0].contains("alone"));
}

#[test]
fn noise_of_megabytes_does_not_block() {
    let bench = Bench::new();
    let mut graph = Graph::default();
    graph.add(sh(
        "loud",
        "yes noise | head -c 8000000 >&2; yes noise | head -c 8000000; echo x >x",
        vec![],
        "x",
    ));
    assert_eq!(ran(&bench.run(&graph).unwrap()), ["loud"]);
}

#[test]
fn signal_ends_children_with_their_groups_and_says_so() {
    let bench = Bench::new();
    let mut graph = Graph::default();
    graph.add(sh("long", "sleep 30 & sleep 30; echo x >x", vec![], "x"));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            bench.signal.store(15, Ordering::SeqCst);
        });
        let error = bench.run(&graph).err().unwrap();
        assert_eq!(crate::failure::class(&error), Class::Terminated);
    });
    assert!(begun.elapsed() < Duration::from_secs(5));
}
