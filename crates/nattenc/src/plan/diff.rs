//! What changes from one plan to another: capabilities, families, units and kernels, each with its reason.

use super::{Decision, Plan, UnitPlan};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Raised when a field of the JSON changes its meaning or goes away.
const SCHEMA_VERSION: u32 = 1;

/// A capability or a family of a section that was decided otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// `core/10.3` or `core/fmha`.
    pub what: String,
    /// What was decided before; none where it was not asked for.
    pub before: Option<String>,
    /// What is decided now; none where it is not asked for.
    pub after: Option<String>,
}

/// A unit that is not the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnitChange {
    /// `core/fna_011`.
    pub unit: String,
    /// `added`, `removed` or `changed`.
    pub change: &'static str,
    /// Why it was not there before or is not there now; empty for one that is in both.
    pub reason: String,
    /// Capabilities that were decided otherwise.
    pub capabilities: Vec<Change>,
    /// Kernels that it has now.
    pub kernels_added: Vec<String>,
    /// Kernels that it had before.
    pub kernels_removed: Vec<String>,
}

/// From one plan to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diff {
    /// Raised when a field changes its meaning or goes away.
    pub schema_version: u32,
    /// How the first plan is called.
    pub before: String,
    /// How the second plan is called.
    pub after: String,
    /// Capabilities of sections.
    pub capabilities: Vec<Change>,
    /// Families of sections.
    pub families: Vec<Change>,
    /// Units.
    pub units: Vec<UnitChange>,
}

/// The difference from `before` to `after`, each with what it is called.
pub fn diff(before: (&str, &Plan), after: (&str, &Plan)) -> Diff {
    let capabilities = |plan: &Plan| -> Vec<(String, String)> {
        plan.sections
            .iter()
            .flat_map(|s| {
                s.capabilities.iter().map(move |c| (format!("{}/{}", s.name, c.request), c.sentence()))
            })
            .collect()
    };
    let families = |plan: &Plan| -> Vec<(String, String)> {
        plan.sections
            .iter()
            .flat_map(|s| s.families.iter().map(move |(f, d)| (format!("{}/{f}", s.name), d.to_string())))
            .collect()
    };
    let labels: BTreeSet<String> = before.1.units.iter().chain(&after.1.units).map(UnitPlan::label).collect();
    let find = |plan: &'_ Plan, label: &str| plan.units.iter().position(|u| u.label() == label);
    let units = labels
        .iter()
        .filter_map(|label| {
            let sides = (find(before.1, label), find(after.1, label));
            match sides {
                (Some(a), Some(b)) => changed(&before.1.units[a], &after.1.units[b]),
                (Some(a), None) => Some(one_sided("removed", &before.1.units[a], after)),
                (None, Some(b)) => Some(one_sided("added", &after.1.units[b], before)),
                (None, None) => None,
            }
        })
        .collect();
    Diff {
        schema_version: SCHEMA_VERSION,
        before: before.0.to_owned(),
        after: after.0.to_owned(),
        capabilities: changes(&capabilities(before.1), &capabilities(after.1)),
        families: changes(&families(before.1), &families(after.1)),
        units,
    }
}

/// What is not the same in two lists of (name, sentence), in the order of the second, then of the first.
fn changes(before: &[(String, String)], after: &[(String, String)]) -> Vec<Change> {
    let find = |list: &[(String, String)], what: &str| {
        list.iter().find(|(name, _)| name == what).map(|(_, sentence)| sentence.clone())
    };
    let mut names: Vec<&String> = after.iter().map(|(name, _)| name).collect();
    names.extend(before.iter().map(|(name, _)| name).filter(|name| find(after, name).is_none()));
    names
        .into_iter()
        .map(|what| Change { what: what.clone(), before: find(before, what), after: find(after, what) })
        .filter(|change| change.before != change.after)
        .collect()
}

fn kernels(unit: &UnitPlan) -> Vec<String> {
    unit.kernels.iter().map(|k| k.name.clone()).collect()
}

fn rows(unit: &UnitPlan) -> Vec<(String, String)> {
    unit.capabilities.iter().map(|c| (c.request.to_string(), c.decision.to_string())).collect()
}

fn changed(before: &UnitPlan, after: &UnitPlan) -> Option<UnitChange> {
    let capabilities = changes(&rows(before), &rows(after));
    let (old, new) = (kernels(before), kernels(after));
    let without = |list: &[String], other: &[String]| -> Vec<String> {
        list.iter().filter(|name| !other.contains(name)).cloned().collect()
    };
    let change = UnitChange {
        unit: after.label(),
        change: "changed",
        reason: String::new(),
        capabilities,
        kernels_added: without(&new, &old),
        kernels_removed: without(&old, &new),
    };
    let nothing = change.capabilities.is_empty()
        && change.kernels_added.is_empty()
        && change.kernels_removed.is_empty();
    (!nothing).then_some(change)
}

/// A unit that only one plan has; `other` is the one without it.
fn one_sided(change: &'static str, unit: &UnitPlan, other: (&str, &Plan)) -> UnitChange {
    let names = kernels(unit);
    let none = Vec::new();
    let (kernels_added, kernels_removed) = if change == "added" { (names, none) } else { (none, names) };
    UnitChange {
        unit: unit.label(),
        change,
        reason: format!("{}: {}", other.0, absence(unit, other.1)),
        capabilities: Vec::new(),
        kernels_added,
        kernels_removed,
    }
}

/// Why a plan has no such unit.
fn absence(unit: &UnitPlan, plan: &Plan) -> String {
    let Some(section) = plan.sections.iter().find(|s| s.name == unit.section) else {
        return format!("there is no section {}", unit.section);
    };
    match section.families.iter().find(|(family, _)| *family == unit.family) {
        None => format!("section {} does not list family {}", unit.section, unit.family),
        Some((_, Decision::Skip(reason))) => reason.clone(),
        Some(_) => {
            let built: Vec<String> = section.built().iter().map(ToString::to_string).collect();
            format!("no selected kernel of it runs on {}, or the family is split otherwise", built.join(", "))
        }
    }
}

/// `core/fna_003..011 core/fna_020`: names that follow each other as one.
fn spans<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut spans: Vec<(&str, &str, u32)> = Vec::new();
    for name in names {
        let (stem, number) = name.rsplit_once('_').unwrap_or((name, ""));
        let value: u32 = number.parse().unwrap_or(0);
        match spans.last_mut() {
            Some((first, last, end))
                if first.rsplit_once('_').is_some_and(|(s, _)| s == stem) && *end + 1 == value =>
            {
                (*last, *end) = (number, value);
            }
            _ => spans.push((name, "", value)),
        }
    }
    let text = |(first, last, _): &(&str, &str, u32)| match *last {
        "" => (*first).to_owned(),
        last => format!("{first}..{last}"),
    };
    spans.iter().map(text).collect::<Vec<_>>().join(" ")
}

impl Diff {
    /// Whether the plans are the same in all that is compared.
    pub fn is_empty(&self) -> bool {
        self.capabilities.is_empty() && self.families.is_empty() && self.units.is_empty()
    }

    /// As a person reads it.
    pub fn text(&self) -> String {
        let mut out = format!("from {} to {}\n", self.before, self.after);
        if self.is_empty() {
            return out + "no difference";
        }
        // Writing to a String cannot fail.
        for (title, list) in [("capabilities", &self.capabilities), ("families", &self.families)] {
            if !list.is_empty() {
                let _ = writeln!(out, "\n{title}");
            }
            for change in list {
                let side = |text: &Option<String>| text.clone().unwrap_or_else(|| "not asked for".to_owned());
                let _ = writeln!(
                    out,
                    "  {}\n    - {}\n    + {}",
                    change.what,
                    side(&change.before),
                    side(&change.after)
                );
            }
        }
        // Units that changed for the same reason are told in one line.
        let mut groups: BTreeMap<(&str, String), Vec<&UnitChange>> = BTreeMap::new();
        for unit in &self.units {
            let mut why = unit.reason.clone();
            for change in &unit.capabilities {
                let side = |text: &Option<String>| text.clone().unwrap_or_else(|| "not there".to_owned());
                let gap = if why.is_empty() { "" } else { "; " };
                let _ =
                    write!(why, "{gap}{}: {} -> {}", change.what, side(&change.before), side(&change.after));
            }
            groups.entry((unit.change, why)).or_default().push(unit);
        }
        if !groups.is_empty() {
            let _ = writeln!(out, "\nunits");
        }
        for ((change, why), units) in groups {
            let (more, fewer) = units
                .iter()
                .fold((0, 0), |(a, r), u| (a + u.kernels_added.len(), r + u.kernels_removed.len()));
            let _ = writeln!(
                out,
                "  {change}: {} units, +{more} -{fewer} kernels{}\n    {}",
                units.len(),
                if why.is_empty() { String::new() } else { format!("; {why}") },
                spans(units.iter().map(|u| u.unit.as_str()))
            );
        }
        out.trim_end().to_owned()
    }
}
