//! Parses, runs, maps a failure to its exit code; nothing else.
#![forbid(unsafe_code)]

fn main() {}
