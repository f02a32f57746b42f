//! Makes one failure of those of many jobs, so that what has to be mended is last on the screen.

use super::work::NO_DIAGNOSTIC;
use crate::failure::Failure;
use std::collections::BTreeSet;
use std::path::Path;

/// The first failure whose compiler said why, else the first, with the others summed up in it, and with how many
/// jobs were `blocked`: not started any more.
pub(super) fn one_of(errors: Vec<anyhow::Error>, blocked: usize, logs: &Path) -> anyhow::Error {
    let mut failures: Vec<Failure> = Vec::new();
    for error in errors {
        match error.downcast::<Failure>() {
            Ok(failure) => failures.push(failure),
            Err(unknown) => return unknown,
        }
    }
    let first = failures.iter().position(has_diagnostic).unwrap_or(0);
    failures[..=first].rotate_right(1);
    let mut lines = sum_up(&failures, logs);
    if blocked > 0 {
        lines.push(format!("{blocked} jobs were not started"));
    }
    let mut failure = failures.remove(0);
    for line in lines {
        failure.message.extend(["\n  ", &line]);
    }
    failure.into()
}

/// So many diagnostics, and units that one of them has, are written out.
const SHOWN: usize = 5;

fn has_diagnostic(failure: &Failure) -> bool {
    failure.diagnostic.as_deref().is_some_and(|text| text != NO_DIAGNOSTIC)
}

/// Lines that say in which units the first failure's diagnostic is, and what other failures there are: each
/// diagnostic once.
fn sum_up(failures: &[Failure], logs: &Path) -> Vec<String> {
    let mut said: Vec<(&str, BTreeSet<String>)> = Vec::new();
    for failure in failures {
        // Without a diagnostic, how it ended is all that is known.
        let end = failure.message.lines().next().and_then(|line| line.rsplit_once(": ")).map(|(_, end)| end);
        let text = match &failure.diagnostic {
            Some(text) if has_diagnostic(failure) => text.as_str(),
            _ => end.unwrap_or("failed"),
        };
        // Gencodes of a unit are not told apart.
        let label = failure.unit.as_deref().unwrap_or("-");
        let unit = label.split('/').take(2).collect::<Vec<_>>().join("/");
        match said.iter_mut().find(|(known, _)| *known == text) {
            Some((_, units)) => {
                units.insert(unit);
            }
            None => said.push((text, BTreeSet::from([unit]))),
        }
    }
    let names = |units: &BTreeSet<String>| {
        let names: Vec<&str> = units.iter().take(SHOWN).map(String::as_str).collect();
        let more = units.len().saturating_sub(SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{} units ({}{more})", units.len(), names.join(", "))
    };
    let mut lines = Vec::new();
    for (index, (diagnostic, units)) in said.iter().enumerate().take(SHOWN) {
        match index {
            0 if units.len() > 1 => lines.push(format!("the same in {}", names(units))),
            0 => {}
            _ => lines.push(format!("also, in {}: {diagnostic}", names(units))),
        }
    }
    if said.len() > SHOWN {
        lines.push(format!("and {} other diagnostics: see {}", said.len() - SHOWN, logs.display()));
    }
    lines
}
