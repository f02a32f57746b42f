//! Starts processes; the only caller of `std::process`. Each child leads a process group of its own,
//! has no standard input, and is ended with its whole group on interruption.

use super::sampling;
use crate::failure::Failure;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// One command: an argv, never a shell string; `Display` is a line that can be pasted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The whole environment of the child: nothing is inherited.
    pub env: BTreeMap<String, String>,
    /// Working directory.
    pub cwd: PathBuf,
}

/// Quotes a word for a POSIX shell where that is needed.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=+:,@%^".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

impl std::fmt::Display for CommandLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cd {} && env -i", quote(&self.cwd.display().to_string()))?;
        for (key, value) in &self.env {
            write!(f, " {}", quote(&format!("{key}={value}")))?;
        }
        for word in &self.argv {
            write!(f, " {}", quote(word))?;
        }
        Ok(())
    }
}

/// How a child ended.
#[derive(Debug, Clone)]
pub struct Finished {
    /// Exit code; `None` where a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The limit, where it was ended because it ran for longer.
    pub timed_out: Option<Duration>,
    /// Standard output, then standard error as they came, lossily decoded. Separate in [`capture`].
    pub output: String,
    /// Standard output alone.
    pub stdout: String,
    /// Wall time.
    pub wall: Duration,
    /// CPU time, user and system, of the child and those it waited for.
    pub cpu: Duration,
    /// Largest resident set of any one of its processes, bytes. On Linux a child begins with what nattenc itself held
    /// when it started it, in the kernel's count: where the kernel says no more than that, this is the highest that was
    /// seen while it ran, which misses what it took in its last moments.
    pub peak_memory: u64,
}

impl Finished {
    /// Exit code 0.
    pub fn success(&self) -> bool {
        self.code == Some(0)
    }
}

/// How long a command may take that only answers a question.
const ANSWER_TIME: Duration = Duration::from_secs(120);

/// How much of a child's output is kept; a child that prints without end fills no memory.
const OUTPUT_LIMIT: usize = 64 << 20;

/// Runs a command that answers a question to its end, both outputs captured.
/// Fails with class toolchain where the program cannot be started or does not come to an end.
pub fn capture(command: &CommandLine) -> anyhow::Result<Finished> {
    let finished = run(command, Some(ANSWER_TIME), None)?;
    if finished.timed_out.is_some() {
        let program = command.argv.first().map_or("", String::as_str);
        let words: Vec<String> = command.argv.iter().map(|word| quote(word)).collect();
        return Err(Failure::toolchain(format!(
            "{program:?} gave no answer within {} s",
            ANSWER_TIME.as_secs()
        ))
        .hint(format!("check what this does: {}", words.join(" ")))
        .into());
    }
    Ok(finished)
}

/// How long a group that was asked to end may take, and then one that was killed.
const GRACE: Duration = Duration::from_secs(2);

/// Waits for the end of a child that is observed elsewhere; after `limit` it is made to end. Also says whether it was
/// late. Nothing where it does not end even then: it hangs in the kernel, on a mount whose server is gone, or has
/// started others that hold its output.
fn end_of<T>(
    ended: &mpsc::Receiver<T>,
    group: i32,
    limit: Option<Duration>,
    peak: &mut Peak,
) -> (Option<T>, bool) {
    let begin = Instant::now();
    loop {
        let left = limit.map(|limit| limit.saturating_sub(begin.elapsed()));
        let look = peak.next_look(begin.elapsed());
        let end = match [left, look].into_iter().flatten().min() {
            None => return (ended.recv().ok(), false),
            Some(wait) => ended.recv_timeout(wait),
        };
        match end {
            Ok(end) => return (Some(end), false),
            Err(mpsc::RecvTimeoutError::Disconnected) => return (None, false),
            Err(mpsc::RecvTimeoutError::Timeout) if left.is_some_and(|left| left <= look.unwrap_or(left)) => {
                break;
            }
            Err(mpsc::RecvTimeoutError::Timeout) => peak.look(group),
        }
    }
    for signal in [Signal::TERM, Signal::KILL] {
        signal_group(group, signal);
        if let Ok(end) = ended.recv_timeout(GRACE) {
            return (Some(end), true);
        }
    }
    (None, true)
}

/// What is known of the memory that a child and those that it starts hold at most.
#[derive(Debug, Default)]
struct Peak {
    /// What nattenc itself had held at most when the child was started: the kernel's count of the child is no less.
    inherited: u64,
    /// The highest that was seen of any of them.
    seen: u64,
}

impl Peak {
    /// Of a child that was started a moment ago.
    fn of(child: i32) -> Self {
        let own = i32::try_from(std::process::id()).ok().and_then(sampling::high_water);
        let mut peak = Peak { inherited: own.unwrap_or_default(), seen: 0 };
        peak.look(child);
        peak
    }

    /// Whether a count of the kernel's is more than what nattenc held; its counters lag a little.
    fn is_own(&self, memory: u64) -> bool {
        memory > self.inherited + self.inherited / 8
    }

    fn look(&mut self, child: i32) {
        self.seen = self.seen.max(sampling::high_water_of_tree(child));
    }

    /// In what time to look again; never where the kernel's count will do. A process that ends soon is looked at
    /// more often.
    fn next_look(&self, age: Duration) -> Option<Duration> {
        let soon = (age / 8).clamp(Duration::from_millis(1), Duration::from_millis(250));
        (!self.is_own(self.seen)).then_some(soon)
    }

    /// The most that any of them held, by the kernel's count at the end.
    fn value(&self, counted: u64) -> u64 {
        if self.is_own(counted) { counted } else { self.seen.min(counted) }
    }
}

/// Starts a child. A program that was written a moment ago is busy for as long as a child that was forked
/// meanwhile, and has not yet become another program, holds the writer's descriptor: that is waited for.
fn spawn(command: &mut Command) -> std::io::Result<std::process::Child> {
    let begin = Instant::now();
    loop {
        match command.spawn() {
            Err(error)
                if error.kind() == std::io::ErrorKind::ExecutableFileBusy
                    && begin.elapsed() < Duration::from_secs(2) =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

/// Runs a command to its end; after `limit` it is ended with its whole group, and left behind if that does not
/// help. `started` is told the group as soon as the child runs.
#[expect(clippy::disallowed_methods, reason = "the one door to processes")]
pub fn run(
    command: &CommandLine,
    limit: Option<Duration>,
    started: Option<&dyn Fn(i32)>,
) -> anyhow::Result<Finished> {
    let begin = Instant::now();
    let program = command.argv.first().map_or("", String::as_str);
    let mut child = spawn(
        Command::new(program)
            .args(&command.argv[1..])
            .env_clear()
            .envs(&command.env)
            .current_dir(&command.cwd)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0),
    )
    .map_err(|e| {
        Failure::toolchain(format!("cannot start {program:?}: {e}"))
            .hint(format!("check that {program} exists and is executable"))
    })?;
    let group = i32::try_from(child.id())?;
    let mut peak = Peak::of(group);
    if let Some(started) = started {
        started(group);
    }
    let (tell, ended) = mpsc::channel();
    // Both pipes are drained at once: megabytes of noise on one must not block the other.
    let err_pipe = child.stderr.take();
    let reader = std::thread::spawn(move || drain(err_pipe));
    std::thread::spawn(move || {
        let out = drain(child.stdout.take());
        let err = reader.join().unwrap_or_default();
        // Where nobody waits for it any more there is nobody to tell.
        let _ = tell.send((wait4::Wait4::wait4(&mut child), out, err));
    });
    let (end, late) = end_of(&ended, group, limit, &mut peak);
    let wall = begin.elapsed();
    let Some((used, out, err)) = end else {
        let output = format!("process group {group} does not end, though it was killed; it is left behind\n");
        let (none, stdout) = (Duration::ZERO, String::new());
        let timed_out = limit;
        return Ok(Finished {
            code: None,
            signal: None,
            timed_out,
            output,
            stdout,
            wall,
            cpu: none,
            peak_memory: peak.seen,
        });
    };
    let used = used?;
    let late = late && !used.status.success();
    let stdout = String::from_utf8_lossy(&out).into_owned();
    let output = stdout.clone() + &String::from_utf8_lossy(&err);
    Ok(Finished {
        code: used.status.code(),
        signal: used.status.signal(),
        timed_out: limit.filter(|_| late),
        output,
        stdout,
        wall,
        cpu: used.rusage.utime + used.rusage.stime,
        peak_memory: peak.value(used.rusage.maxrss),
    })
}

fn drain<R: Read>(pipe: Option<R>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut buffer = [0u8; 1 << 14];
    if let Some(mut pipe) = pipe {
        // What is over the limit is still read, or the child would block.
        while let Ok(n @ 1..) = pipe.read(&mut buffer) {
            let room = OUTPUT_LIMIT.saturating_sub(bytes.len()).min(n);
            bytes.extend_from_slice(&buffer[..room]);
        }
    }
    bytes
}

/// The file that `name` leads to in the directories of a PATH value, links resolved not.
pub fn search(name: &str, path: &str) -> Option<PathBuf> {
    path.split(':').filter(|d| !d.is_empty()).map(|d| Path::new(d).join(name)).find(|p| p.is_file())
}

/// Ends a process group, at once and without asking: a compiler has nothing to save.
pub fn end_group(leader: i32) {
    signal_group(leader, Signal::KILL);
}

fn signal_group(leader: i32, signal: Signal) {
    if leader > 1
        && let Some(pid) = rustix::process::Pid::from_raw(leader)
    {
        // The group may be gone already, which is what was wanted.
        let _ = rustix::process::kill_process_group(pid, signal);
    }
}
