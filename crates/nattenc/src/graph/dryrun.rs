//! Reads what `nvcc --dryrun --keep` prints: variables, then one command a line.
//!
//! nvcc is asked with `--keep`, so that every intermediate has a plain name in the working directory
//! (`unit.compute_90.ptx`), the same in every run.

use std::collections::BTreeMap;

/// The commands behind one nvcc call, in nvcc's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DryRun {
    /// nvcc's variables: PATH, LD_LIBRARY_PATH, CICC_PATH, ...
    pub variables: BTreeMap<String, String>,
    /// The phases.
    pub phases: Vec<Phase>,
}

/// One command of a dry run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phase {
    /// Which tool.
    pub tool: Tool,
    /// The program as nvcc wrote it, variables expanded.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
}

/// The tools that nvcc drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool {
    /// The host compiler as preprocessor.
    Preprocess,
    /// cudafe++: splits host code off, writes the module id.
    Cudafe,
    /// cicc: device front end and optimiser, to PTX.
    Cicc,
    /// ptxas: PTX to a cubin.
    Ptxas,
    /// fatbinary: cubins and PTX to one fatbin.
    Fatbinary,
    /// The host compiler.
    HostCompile,
}

/// What a dry run could not be read for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// The line at fault.
    pub line: String,
    /// What was expected of it.
    pub why: &'static str,
}

/// Parses the output of `nvcc --dryrun --keep`. Lines that nvcc did not mark with `#$ ` are noise of a
/// wrapper and passed over.
pub fn parse(output: &str) -> Result<DryRun, Unreadable> {
    let mut variables = BTreeMap::new();
    let mut phases = Vec::new();
    for line in output.lines().filter_map(|l| l.strip_prefix("#$ ")) {
        if let Some((name, value)) = assignment(line) {
            variables.insert(name.to_owned(), value.to_owned());
            continue;
        }
        let words = shlex::split(&expand(line, &variables))
            .ok_or_else(|| Unreadable { line: line.to_owned(), why: "unbalanced quotes" })?;
        let Some((program, args)) = words.split_first() else { continue };
        if program == "rm" || program == "erase" {
            continue;
        }
        let tool = classify(program, args)
            .ok_or_else(|| Unreadable { line: line.to_owned(), why: "a phase that nattenc does not know" })?;
        phases.push(Phase { tool, program: program.clone(), args: args.to_vec() });
    }
    if phases.is_empty() {
        return Err(Unreadable {
            line: output.lines().next().unwrap_or_default().to_owned(),
            why: "no command in the output of nvcc --dryrun",
        });
    }
    Ok(DryRun { variables, phases })
}

fn assignment(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once('=')?;
    let plain =
        !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    plain.then_some((name, value))
}

/// Puts values in the place of `$NAME`, the only expansion that nvcc writes.
fn expand(line: &str, variables: &BTreeMap<String, String>) -> String {
    let mut text = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find('$') {
        text.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let end = after.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(after.len());
        match variables.get(&after[..end]) {
            Some(value) => text.push_str(value),
            None => text.push_str(&rest[at..=at + end]),
        }
        rest = &after[end..];
    }
    text + rest
}

fn classify(program: &str, args: &[String]) -> Option<Tool> {
    let name = program.rsplit('/').next().unwrap_or(program);
    match name {
        "cudafe++" => Some(Tool::Cudafe),
        "cicc" => Some(Tool::Cicc),
        "ptxas" => Some(Tool::Ptxas),
        "fatbinary" => Some(Tool::Fatbinary),
        _ if args.iter().any(|a| a == "-E") => Some(Tool::Preprocess),
        _ if args.iter().any(|a| a == "-c") => Some(Tool::HostCompile),
        _ => None,
    }
}

impl Phase {
    /// The argument after `flag`.
    pub fn after(&self, flag: &str) -> Option<&str> {
        let at = self.args.iter().position(|a| a == flag)?;
        self.args.get(at + 1).map(String::as_str)
    }

    /// The argument at the end: the input of every phase but fatbinary and cicc.
    fn last(&self) -> Option<&str> {
        self.args.last().map(String::as_str)
    }

    /// The files that this phase reads, as far as its own argv names them.
    pub fn reads(&self) -> Vec<String> {
        let owned = |s: Option<&str>| s.map(str::to_owned).into_iter();
        match self.tool {
            Tool::Preprocess | Tool::HostCompile => owned(self.before("-o")).collect(),
            Tool::Cudafe => owned(self.last()).collect(),
            Tool::Cicc => {
                owned(self.before("-o")).chain(owned(self.after("--module_id_file_name"))).collect()
            }
            Tool::Ptxas => owned(self.before("-o")).collect(),
            Tool::Fatbinary => {
                self.args.iter().filter_map(|a| a.split_once("file=").map(|(_, f)| f.to_owned())).collect()
            }
        }
    }

    /// The files that this phase writes and a later one reads.
    pub fn writes(&self) -> Vec<String> {
        let owned = |s: Option<&str>| s.map(str::to_owned).into_iter();
        match self.tool {
            Tool::Preprocess | Tool::HostCompile | Tool::Ptxas => owned(self.after("-o")).collect(),
            Tool::Cudafe => owned(self.after("--gen_c_file_name"))
                .chain(owned(self.after("--module_id_file_name")))
                .collect(),
            Tool::Cicc => owned(self.after("-o")).chain(owned(self.after("--stub_file_name"))).collect(),
            Tool::Fatbinary => {
                owned(self.args.iter().find_map(|a| a.strip_prefix("--embedded-fatbin="))).collect()
            }
        }
    }

    fn before(&self, flag: &str) -> Option<&str> {
        let at = self.args.iter().position(|a| a == flag)?;
        self.args.get(at.checked_sub(1)?).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_GENCODES: &str =
        include_str!("../../../../tests/recorded/nvcc-13.0.88/dryrun-keep-two-gencodes.txt");

    #[test]
    fn every_phase_of_a_real_dry_run_is_recognised() {
        let run = parse(TWO_GENCODES).unwrap();
        let tools: Vec<Tool> = run.phases.iter().map(|p| p.tool).collect();
        assert_eq!(
            tools,
            [
                Tool::Preprocess,
                Tool::Cudafe,
                Tool::Preprocess,
                Tool::Cicc,
                Tool::Ptxas,
                Tool::Preprocess,
                Tool::Cicc,
                Tool::Ptxas,
                Tool::Fatbinary,
                Tool::HostCompile
            ]
        );
    }

    #[test]
    fn variables_are_expanded_in_programs() {
        let run = parse(TWO_GENCODES).unwrap();
        let cicc = run.phases.iter().find(|p| p.tool == Tool::Cicc).unwrap();
        assert_eq!(cicc.program, "tk/bin/../nvvm/bin/cicc");
    }

    #[test]
    fn edges_come_from_argv() {
        let run = parse(TWO_GENCODES).unwrap();
        let cicc = run.phases.iter().rfind(|p| p.tool == Tool::Cicc).unwrap();
        assert_eq!(cicc.reads(), ["unit.compute_90.cpp1.ii", "unit.module_id"]);
        assert_eq!(cicc.writes(), ["unit.compute_90.ptx", "unit.compute_90.cudafe1.stub.c"]);
        let fatbinary = run.phases.iter().find(|p| p.tool == Tool::Fatbinary).unwrap();
        assert_eq!(
            fatbinary.reads(),
            ["unit.compute_80.cubin", "unit.compute_90.sm_90.cubin", "unit.compute_90.ptx"]
        );
        assert_eq!(fatbinary.writes(), ["unit.fatbin.c"]);
        let host = run.phases.last().unwrap();
        assert_eq!(
            (host.reads(), host.writes()),
            (vec!["unit.compute_90.cudafe1.cpp".into()], vec!["unit.o".into()])
        );
    }

    #[test]
    fn noise_around_the_dry_run_is_passed_over() {
        let noisy = format!("wrapper: hello\n{TWO_GENCODES}\nwrapper: bye\n");
        assert_eq!(parse(&noisy), parse(TWO_GENCODES));
    }

    #[test]
    fn output_that_is_no_dry_run_is_refused_with_its_first_line() {
        for (output, line) in [("", ""), ("hello\nworld", "hello"), ("#$ frobnicate x", "frobnicate x")] {
            assert_eq!(parse(output).unwrap_err().line, line, "{output:?}");
        }
    }
}
