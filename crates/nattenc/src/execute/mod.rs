//! Runs a graph of jobs.

pub mod process;
