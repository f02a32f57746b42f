//! Jobs, what they read and what they write. Acyclic by construction: a job may only read what a job
//! before it writes. Pure: no disk, clock, environment or process.

pub mod compile;
pub mod dryrun;

use std::sync::Arc;

/// Index of a job in its [`Graph`].
pub type JobId = usize;

/// What a job does; its name in logs and records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Host compiler, `-E`.
    Preprocess,
    /// cudafe++.
    Cudafe,
    /// cicc, one gencode.
    Cicc,
    /// ptxas, one capability.
    Ptxas,
    /// fatbinary, one unit.
    Fatbinary,
    /// Host compiler, `-c`.
    Host,
    /// ar.
    Archive,
    /// The shared library.
    Link,
}

impl Kind {
    /// The word that names it.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Preprocess => "preprocess",
            Kind::Cudafe => "cudafe++",
            Kind::Cicc => "cicc",
            Kind::Ptxas => "ptxas",
            Kind::Fatbinary => "fatbinary",
            Kind::Host => "host",
            Kind::Archive => "archive",
            Kind::Link => "link",
        }
    }
}

/// Where the bytes of an input come from.
#[derive(Debug, Clone)]
pub enum Source {
    /// An output of an earlier job, by its index in [`Job::outputs`].
    Output(JobId, usize),
    /// Text that nattenc itself rendered.
    Text(Arc<str>),
}

/// A file that a job reads, under the name that its command line uses.
#[derive(Debug, Clone)]
pub struct Input {
    /// Relative to the job's scratch directory.
    pub name: String,
    /// Where it comes from.
    pub source: Source,
}

/// A directory tree that a job reads from, known by its digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tree {
    /// `tk`: the CUDA toolkit.
    Toolkit,
    /// `src`: NATTEN's sdist.
    Sources,
    /// `inc`: nattenc's own headers.
    Support,
}

impl Tree {
    /// All of them.
    pub const ALL: [Tree; 3] = [Tree::Toolkit, Tree::Sources, Tree::Support];

    /// The name of the link to it in every scratch directory.
    pub fn link(self) -> &'static str {
        match self {
            Tree::Toolkit => "tk",
            Tree::Sources => "src",
            Tree::Support => "inc",
        }
    }
}

/// What a job takes.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Cost {
    /// CPU seconds.
    pub cpu: f64,
    /// Largest resident set, bytes.
    pub memory: u64,
}

/// One command with inputs and outputs.
#[derive(Debug, Clone)]
pub struct Job {
    /// What it does.
    pub kind: Kind,
    /// The scratch directory that it runs in, relative; jobs of one unit share it.
    pub scratch: String,
    /// `core/fna_011` or `core/fna_011/sm_90`: how logs and errors name it.
    pub label: String,
    /// The tool's name in the toolchain's digests: `cicc`, `host`, ...
    pub tool: String,
    /// The program to start: absolute, or relative to the scratch directory.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// What it reads.
    pub inputs: Vec<Input>,
    /// What it writes, relative to the scratch directory.
    pub outputs: Vec<String>,
    /// The trees that it may read from.
    pub trees: Vec<Tree>,
    /// Where the compiler lists the headers that it read.
    pub depfile: Option<String>,
    /// What it is expected to cost while there is no record of an earlier run: decides order and how many
    /// jobs run side by side, never an output.
    pub estimate: Cost,
}

/// Jobs in an order in which each comes after those that it reads from.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    jobs: Vec<Job>,
}

impl Graph {
    /// Adds a job. Its inputs must come from jobs that are already there.
    pub fn add(&mut self, job: Job) -> JobId {
        let id = self.jobs.len();
        for input in &job.inputs {
            if let Source::Output(from, output) = input.source {
                assert!(from < id, "{}: input {} comes from a later job", job.label, input.name);
                assert!(output < self.jobs[from].outputs.len(), "{}: no such output", input.name);
            }
        }
        self.jobs.push(job);
        id
    }

    /// All jobs.
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// For every job, the CPU seconds from its start to the end of the last job that needs it, where `cpu`
    /// are those of each.
    pub fn remaining(&self, cpu: &[f64]) -> Vec<f64> {
        let mut longest = vec![0.0f64; self.jobs.len()];
        for id in (0..self.jobs.len()).rev() {
            longest[id] += cpu[id];
            for input in &self.jobs[id].inputs {
                if let Source::Output(from, _) = input.source {
                    longest[from] = longest[from].max(longest[id]);
                }
            }
        }
        longest
    }
}
