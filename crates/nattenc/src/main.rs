//! Parses, runs, maps a failure to its exit code; nothing else.
#![forbid(unsafe_code)]

use clap::Parser;
use nattenc::{cli, failure, report};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        // clap prints help and version to stdout, mistakes to stderr.
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { failure::Class::Config.exit_code() } else { 0 });
        }
    };
    match cli::run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report::stderr(&failure::block(&error));
            ExitCode::from(failure::class(&error).exit_code())
        }
    }
}
