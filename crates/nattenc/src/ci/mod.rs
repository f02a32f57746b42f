//! What continuous integration compiles, in which jobs, and the workflows that run them. Pure: from the
//! configuration, plans and predictions; what a change touches is told from the names of its files.

pub mod choose;
pub mod jobs;
pub mod matrix;
pub mod serve;
pub mod touched;
pub mod workflow;

/// What a run of continuous integration is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Event {
    /// A change is proposed: some of every section for every CUDA major, and what the change touches.
    Pr,
    /// A change is in: everything, once for every CUDA major.
    Main,
    /// Everything, once for every toolkit that a release has an artifact of.
    Release,
}

impl Event {
    /// All of them.
    pub const ALL: [Event; 3] = [Event::Pr, Event::Main, Event::Release];

    /// The word that names it.
    pub fn word(self) -> &'static str {
        match self {
            Event::Pr => "pr",
            Event::Main => "main",
            Event::Release => "release",
        }
    }
}
