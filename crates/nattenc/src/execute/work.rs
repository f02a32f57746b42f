//! What a worker does with one job: lays out inputs, runs the command, checks and stores outputs.

use super::cache::{Action, Blob};
use super::process::{self, CommandLine, Finished, quote};
use super::{Ended, Setting, depfile, headers, reproducer};
use crate::failure::{Class, Failure};
use crate::fs;
use crate::graph::{Graph, Job, JobId, Kind, Source};
use crate::report::duration;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

/// One job to run, with the blobs of its inputs (`None` for text).
pub(super) struct Task {
    pub(super) id: JobId,
    pub(super) inputs: Vec<Option<Blob>>,
}

/// The log files of units. A job's lines go into its unit's log in one piece.
pub(super) struct Logs {
    dir: PathBuf,
    begun: Mutex<BTreeSet<PathBuf>>,
}

impl Logs {
    pub(super) fn new(dir: &Path) -> Self {
        Logs { dir: dir.to_path_buf(), begun: Mutex::new(BTreeSet::new()) }
    }

    fn path(&self, job: &Job) -> PathBuf {
        // Devices have directories of their own in the unit's.
        let unit = job.scratch.split('/').next().unwrap_or_default();
        self.dir.join(format!("{unit}.log"))
    }

    fn append(&self, job: &Job, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.path(job);
        let mut begun = self.begun.lock().map_err(|_| anyhow::anyhow!("a worker panicked"))?;
        if begun.insert(path.clone()) {
            fs::remove_file(&path)?;
        }
        fs::open_append(&path)?.write_all(text.as_bytes())?;
        Ok(path)
    }
}

/// Runs a job, for `limit` at most; also says how much memory its process had at most.
pub(super) fn work(
    task: &Task,
    graph: &Graph,
    setting: &Setting<'_>,
    groups: &Mutex<BTreeMap<JobId, i32>>,
    logs: &Logs,
    limit: Option<Duration>,
) -> (Ended, u64) {
    let job = &graph.jobs()[task.id];
    let dir = setting.scratch.join(&job.scratch);
    match lay_out(task, job, &dir, setting) {
        Err(error) => return (Ended::Failed(error), 0),
        Ok(Some(lost)) => return (Ended::Lost(lost), 0),
        Ok(None) => {}
    }
    let command = command(job, &dir, setting);
    let finished = match execute(task.id, &command, setting, groups, limit) {
        Ok(finished) => finished,
        Err(error) => return (Ended::Failed(error), 0),
    };
    let ended = match collect(job, &command, setting, logs, &finished) {
        Ok((action, read)) => Ended::Done { action, read },
        Err(error) => match died_of(job, &finished) {
            Some(signal) if finished.timed_out.is_none() => {
                Ended::Died { signal, peak_memory: finished.peak_memory, error }
            }
            _ => Ended::Failed(error),
        },
    };
    (ended, finished.peak_memory)
}

/// Makes the scratch directory hold the job's inputs and none of its outputs.
/// Returns the producer of an input whose bytes the cache no longer has.
fn lay_out(task: &Task, job: &Job, dir: &Path, setting: &Setting<'_>) -> anyhow::Result<Option<JobId>> {
    fs::create_dir(dir)?;
    for (tree, (root, _)) in &setting.trees {
        let at = dir.join(tree.link());
        fs::symlink(root, &at)?;
    }
    for (input, blob) in job.inputs.iter().zip(&task.inputs) {
        let path = dir.join(&input.name);
        match (&input.source, blob) {
            (Source::Text(text), _) => {
                fs::write_if_changed(&path, text.as_bytes())?;
            }
            (Source::Output(from, _), Some(blob)) => {
                let same_size = fs::stamp_if_exists(&path)?.is_some_and(|stamp| stamp.size == blob.size);
                let there = same_size && fs::sha256(&path)? == blob.sha256;
                if !there && !setting.cache.get_to(blob, &path)? {
                    return Ok(Some(*from));
                }
            }
            (Source::Output(..), None) => anyhow::bail!("{}: input {} has no bytes", job.label, input.name),
        }
    }
    for output in job.outputs.iter().chain(&job.depfile) {
        fs::remove_file(&dir.join(output))?;
    }
    Ok(None)
}

fn command(job: &Job, dir: &Path, setting: &Setting<'_>) -> CommandLine {
    let mut env = setting.env.clone();
    env.insert("TMPDIR".to_owned(), dir.display().to_string());
    let mut argv = vec![job.program.clone()];
    argv.extend(job.args.iter().cloned());
    CommandLine { argv, env, cwd: dir.to_path_buf() }
}

fn execute(
    id: JobId,
    command: &CommandLine,
    setting: &Setting<'_>,
    groups: &Mutex<BTreeMap<JobId, i32>>,
    limit: Option<Duration>,
) -> anyhow::Result<Finished> {
    let track = |pid: i32| {
        if let Ok(mut groups) = groups.lock() {
            groups.insert(id, pid);
        }
        // A signal that came before the child was listed would have missed it.
        if setting.signal.load(std::sync::atomic::Ordering::SeqCst) != 0 {
            process::end_group(pid);
        }
    };
    let finished = process::run(command, limit, Some(&track));
    if let Ok(mut groups) = groups.lock() {
        groups.remove(&id);
    }
    finished
}

fn collect(
    job: &Job,
    command: &CommandLine,
    setting: &Setting<'_>,
    logs: &Logs,
    finished: &Finished,
) -> anyhow::Result<(Action, Vec<String>)> {
    let dir = &command.cwd;
    let mut line = format!("$ cd {} && {}", quote(&dir.display().to_string()), quote(&job.program));
    for arg in &job.args {
        line += " ";
        line += &quote(arg);
    }
    let text = format!(
        "# {} {}\n{line}\n{}# {}: {:.1} s wall, {:.1} s CPU, {} MB\n\n",
        job.kind.word(),
        job.label,
        finished.output,
        how_it_ended(finished),
        finished.wall.as_secs_f64(),
        finished.cpu.as_secs_f64(),
        finished.peak_memory >> 20,
    );
    let log = logs.append(job, &text)?;
    if !finished.success() {
        let interrupted = setting.signal.load(std::sync::atomic::Ordering::SeqCst) != 0;
        let crashed = died_of(job, finished).is_some_and(|signal| signal != SIGKILL) && !interrupted;
        let script = crashed.then(|| reproducer::write(job, command, &how_it_ended(finished), setting));
        return Err(failure(job, finished, &log, script).into());
    }
    let mut outputs = Vec::with_capacity(job.outputs.len());
    for name in &job.outputs {
        let path = dir.join(name);
        let bytes = fs::beginning(&path, MAGIC)?;
        if !is_output(name, &bytes) {
            let what = if bytes.is_empty() { "wrote nothing to" } else { "wrote no valid" };
            return Err(Failure::new(
                class(job.kind),
                format!("{}: {} exited 0 but {what} {name}", job.label, job.kind.word()),
            )
            .unit(&job.label)
            .diagnostic(first_diagnostic(&finished.output).unwrap_or_else(|| "none".to_owned()))
            .log(&log)
            .hint(
                "check that the tool in the log is the real one and not a wrapper that loses its exit status",
            )
            .into());
        }
        outputs.push(setting.cache.put_file(&path)?);
    }
    reproducer::remove(job, setting)?;
    let (headers, read) = headers(job, dir, setting)?;
    let action = Action {
        kind: job.kind.word().to_owned(),
        outputs,
        headers,
        cpu: finished.cpu.as_secs_f64(),
        wall: finished.wall.as_secs_f64(),
        peak_memory: finished.peak_memory,
    };
    Ok((action, read))
}

/// The headers that a job read outside all trees, with their digests, and the names of those inside.
type Read = (Vec<(String, String)>, Vec<String>);

/// What the job read. The headers outside all trees, the host's own, are part of the action, so that an upgrade of
/// the C++ library is a miss.
fn headers(job: &Job, dir: &Path, setting: &Setting<'_>) -> anyhow::Result<Read> {
    let Some(depfile) = &job.depfile else { return Ok((Vec::new(), Vec::new())) };
    let text = fs::read_text(&dir.join(depfile))?;
    let names: BTreeSet<String> = depfile::parse(&text).into_iter().collect();
    anyhow::ensure!(!names.is_empty(), "{}: the compiler's list of headers, {depfile}, is empty", job.label);
    let (inside, others): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|name| headers::inside(name).is_some());
    // What else is relative is the unit's own.
    let outside = others.into_iter().filter(|name| name.starts_with('/'));
    let outside = outside.map(|path| Ok((path.clone(), setting.digests.sha256(Path::new(&path))?)));
    Ok((outside.collect::<anyhow::Result<_>>()?, inside))
}

/// How many bytes of an output say what it is.
const MAGIC: u64 = 8;

/// Whether a file of this name can begin with these bytes.
fn is_output(name: &str, bytes: &[u8]) -> bool {
    let elf = bytes.starts_with(b"\x7fELF");
    match Path::new(name).extension().and_then(|e| e.to_str()) {
        Some("o" | "cubin" | "so") => elf,
        Some("a") => bytes.starts_with(b"!<arch>\n"),
        _ => !bytes.is_empty(),
    }
}

fn class(kind: Kind) -> Class {
    match kind {
        Kind::Archive | Kind::Link => Class::Link,
        _ => Class::Compile,
    }
}

fn how_it_ended(finished: &Finished) -> String {
    if let Some(limit) = finished.timed_out {
        return format!("ended by nattenc after {}: --unit-timeout", duration(limit));
    }
    match (finished.code, finished.signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}{}", signal_name(signal)),
        (None, None) => "ended".to_owned(),
    }
}

/// SIGKILL, which nothing but the kernel's memory killer (or a person) sends to a compiler.
pub(super) const SIGKILL: i32 = 9;

/// What drivers call the signals that end compilers: theirs are not those of the driver itself.
const SIGNALS: &[(i32, &str, &str)] = &[
    (4, "SIGILL", "Illegal instruction"),
    (6, "SIGABRT", "Aborted"),
    (7, "SIGBUS", "Bus error"),
    (8, "SIGFPE", "Floating point exception"),
    (SIGKILL, "SIGKILL", "Killed"),
    (11, "SIGSEGV", "Segmentation fault"),
];

fn signal_name(signal: i32) -> String {
    SIGNALS
        .iter()
        .find(|(number, ..)| *number == signal)
        .map_or(String::new(), |(_, name, _)| format!(", {name}"))
}

/// The signal that ended the compiler: of the process itself, or of the one that it drove and tells of.
fn died_of(job: &Job, finished: &Finished) -> Option<i32> {
    if finished.signal.is_some() || finished.success() || !matches!(job.tool.as_str(), "host" | "link") {
        return finished.signal;
    }
    let told = |line: &str, what: &str| {
        line.contains(&format!("fatal error: {what} signal terminated program"))
            || line.contains(&format!("internal compiler error: {what} (program "))
    };
    let mut lines = finished.output.lines();
    lines.find_map(|line| SIGNALS.iter().find(|(.., what)| told(line, what)).map(|(signal, ..)| *signal))
}

fn failure(job: &Job, finished: &Finished, log: &Path, script: Option<anyhow::Result<PathBuf>>) -> Failure {
    let kind = job.kind.word();
    let killed = died_of(job, finished) == Some(SIGKILL);
    let diagnostic = first_diagnostic(&finished.output);
    let verb = if finished.timed_out.is_some() { "hung" } else { "failed" };
    let mut message = format!("{}: {kind} {verb} ({})", job.label, how_it_ended(finished));
    if let Some(Err(error)) = &script {
        message.extend(["\n  no script could be written that repeats it: ", &error.to_string()]);
    }
    let (class, hint) = if finished.timed_out.is_some() {
        let log = log.display();
        (
            class(job.kind),
            format!("if it is only slow, give it more time (--unit-timeout); else run the command in {log}"),
        )
    } else if let Some(Ok(script)) = &script {
        let hint = "which repeats the crash without nattenc, and send it with what lies beside it to the compiler's makers";
        (class(job.kind), format!("run {}, {hint}", script.display()))
    } else if killed {
        let peak = finished.peak_memory >> 20;
        (
            Class::Resource,
            format!("it was killed at {peak} MB, most likely for memory: build with fewer jobs (-j)"),
        )
    } else if diagnostic.as_deref().is_some_and(|d| d.to_lowercase().contains("out of memory")) {
        (
            Class::Resource,
            "give it more memory: a higher limit, fewer jobs (-j), or a finer --policy".to_owned(),
        )
    } else if diagnostic.as_deref().is_some_and(|d| d.contains("No space left on device")) {
        (Class::Resource, "free disk space where the build directory and the store lie".to_owned())
    } else {
        (class(job.kind), format!("read {}; the command in it can be pasted", log.display()))
    };
    let diagnostic = diagnostic.unwrap_or_else(|| NO_DIAGNOSTIC.to_owned());
    Failure::new(class, message).unit(&job.label).diagnostic(diagnostic).log(log).hint(hint)
}

/// Stands for the diagnostic of a tool that printed none.
pub(super) const NO_DIAGNOSTIC: &str = "none: the tool printed no error";

/// The first line that says what is wrong: an error if there is one, else the first line at all.
pub fn first_diagnostic(output: &str) -> Option<String> {
    const MARKS: &[&str] = &[
        "error:",
        "error #",
        "fatal",
        "Error:",
        "undefined reference",
        "multiple definition",
        "out of memory",
        "cannot find",
        "No space left",
    ];
    let mut lines = output.lines().map(str::trim).filter(|l| !l.is_empty());
    let line = lines.clone().find(|l| MARKS.iter().any(|m| l.contains(m))).or_else(|| lines.next())?;
    let end =
        line.char_indices().map(|(i, c)| i + c.len_utf8()).take_while(|e| *e <= 300).last().unwrap_or(0);
    Some(line[..end].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_real_diagnostic_is_found_in_noise() {
        for (output, line) in [
            ("", None),
            (
                "warning: unused\nunit.cu(3): error: identifier \"x\" is undefined\nmore",
                Some("unit.cu(3): error: identifier \"x\" is undefined"),
            ),
            (
                "ptxas fatal   : Unresolved extern function 'f'\n",
                Some("ptxas fatal   : Unresolved extern function 'f'"),
            ),
            ("\n  only noise\n", Some("only noise")),
            (
                "/usr/bin/ld: a.o: undefined reference to `f'",
                Some("/usr/bin/ld: a.o: undefined reference to `f'"),
            ),
        ] {
            assert_eq!(first_diagnostic(output).as_deref(), line, "{output:?}");
        }
    }

    #[test]
    fn outputs_are_checked_by_their_first_bytes() {
        for (name, bytes, good) in [
            ("unit.o", &b"\x7fELF..."[..], true),
            ("unit.o", b"", false),
            ("unit.sm_90.cubin", b"text", false),
            ("unit.ptx", b".version 9.0", true),
            ("lib.a", b"!<arch>\n", true),
            ("lib.a", b"\x7fELF", false),
        ] {
            assert_eq!(is_output(name, bytes), good, "{name} {bytes:?}");
        }
    }
}
