//! Why a unit, capability, backend, family, section or kernel is built, shared, left out or stubbed.

use super::totals::{Jobs, holders};
use super::{BACKENDS, Decision, Plan, Request, Scope, UnitPlan, unknown};
use crate::catalog::{Catalog, Family, Kernel};
use crate::config::Config;
use serde::Serialize;
use std::collections::BTreeMap;

/// One thing that the subject names, and what is to say about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// `unit`, `capability`, `backend`, `family`, `section` or `kernel`.
    pub kind: &'static str,
    /// Its full name.
    pub name: String,
    /// `build`, `share` or `skip`.
    pub decision: &'static str,
    /// Sentences.
    pub lines: Vec<String>,
}

/// What to say about `subject`: every thing that has that name.
pub fn explain(
    config: &Config,
    plan: &Plan,
    request: &Request,
    catalog: &'static Catalog,
    subject: &str,
) -> anyhow::Result<Vec<Explanation>> {
    let asked = Asked { config, plan, scope: Scope::new(config, request)?, catalog };
    // `core/fna_011` and `core/9.0` name the section too.
    let (section, name) = match subject.split_once('/') {
        Some((section, name)) => (Some(section), name),
        None => (None, subject),
    };
    let mut found = Vec::new();
    for (index, planned) in plan.sections.iter().enumerate() {
        if section.is_some_and(|s| s != planned.name) {
            continue;
        }
        if subject == planned.name {
            found.push(asked.section(index));
        }
        found.extend(asked.capability(index, name));
        for (family, decision) in &planned.families {
            if family == name {
                found.push(asked.family(index, family, decision)?);
            }
            if let Some(known) = catalog.family(family) {
                for (unit, kernels) in asked.units(known)? {
                    if unit == name {
                        found.push(asked.unit(index, known, name, &kernels));
                    }
                    if let Some(kernel) = kernels.iter().find(|k| k.name == name) {
                        found.push(asked.kernel(index, known, &unit, kernel));
                    }
                }
            }
        }
    }
    if section.is_none() {
        found.extend(
            BACKENDS.iter().filter(|(b, _)| *b == name).map(|(b, families)| asked.backend(b, families)),
        );
    }
    if found.is_empty() {
        let mut known: Vec<String> = Vec::new();
        for planned in &plan.sections {
            known.push(planned.name.clone());
            known.extend(planned.capabilities.iter().map(|c| c.request.to_string()));
            known.extend(planned.families.iter().map(|(f, _)| f.clone()));
        }
        known.extend(BACKENDS.iter().map(|(b, _)| (*b).to_owned()));
        known.sort();
        known.dedup();
        let what = "a unit, capability, backend, family, section or kernel of this plan";
        return Err(unknown("subject", subject, known.iter().map(String::as_str), what));
    }
    Ok(found)
}

fn word(decision: &Decision) -> &'static str {
    match decision {
        Decision::Build => "build",
        Decision::Share { .. } => "share",
        Decision::Skip(_) => "skip",
    }
}

/// `[50,70) 12, [80,130) 12`: kernels by their SM range.
fn ranges<'a>(kernels: impl Iterator<Item = &'a Kernel>) -> String {
    let mut counts: BTreeMap<(u16, u16), usize> = BTreeMap::new();
    for kernel in kernels {
        *counts.entry((kernel.sm_min, kernel.sm_max)).or_default() += 1;
    }
    let list: Vec<String> = counts.iter().map(|((min, max), n)| format!("[{min},{max}) {n}")).collect();
    list.join(", ")
}

struct Asked<'a> {
    config: &'a Config,
    plan: &'a Plan,
    scope: Scope,
    catalog: &'static Catalog,
}

impl Asked<'_> {
    fn section(&self, index: usize) -> Explanation {
        let section = &self.plan.sections[index];
        let at = self.config.section(&section.name).map_or_else(String::new, |s| s.at.to_string());
        let mut lines = vec![format!("declared at {at}")];
        lines.extend(section.capabilities.iter().map(|c| format!("{}: {}", c.request, c.sentence())));
        lines.extend(section.families.iter().map(|(family, decision)| format!("{family}: {decision}")));
        let built = self.plan.section_units(&section.name).next().is_some();
        Explanation {
            kind: "section",
            name: section.name.clone(),
            decision: if built { "build" } else { "skip" },
            lines,
        }
    }

    fn capability(&self, index: usize, name: &str) -> Option<Explanation> {
        let section = &self.plan.sections[index];
        let plain = |request: super::CapabilityRequest| request.capability.to_string();
        let row = section
            .capabilities
            .iter()
            .find(|c| c.request.to_string() == name || plain(c.request) == name)?;
        let mut lines = Vec::new();
        if let Some(declared) = self.config.section(&section.name) {
            let entry = declared.capabilities.iter().find(|e| e.request.capability == row.request.capability);
            lines.push(entry.map_or_else(
                || format!("asked for by {}; [section.{}] does not list it", self.scope.asker, section.name),
                |e| format!("declared at {}", e.at),
            ));
            let share = declared.share.iter().filter(|s| s.capability == row.request.capability);
            lines.extend(share.map(|s| {
                format!("may share PTX of {} ({}) for {}, declared at {}", s.from, s.mode, s.scope(), s.at)
            }));
        }
        lines.push(row.sentence());
        for (family, _) in section.families.iter().filter(|_| row.built()) {
            let units = || self.plan.section_units(&section.name).filter(|u| u.family == *family);
            let (own, shared) = holders(units(), row.request);
            let all = units().count();
            if all > 0 {
                let without = all - own - shared;
                let dead = if without == 0 {
                    String::new()
                } else {
                    format!(", in {without} none of the unit's kernels runs on it")
                };
                lines.push(format!("{family}: {all} units: {own} compiled, {shared} shared{dead}"));
            }
        }
        Some(Explanation {
            kind: "capability",
            name: format!("{}/{}", section.name, row.request),
            decision: word(&row.decision),
            lines,
        })
    }

    /// The units of a family, as the policy splits it, each with its kernels.
    fn units(&self, family: &'static Family) -> anyhow::Result<Vec<(String, Vec<&'static Kernel>)>> {
        let units = self.scope.policies.of(&family.name).split(family)?;
        let kernels = units.into_iter().map(|unit| unit.iter().flat_map(|g| &g.kernels).collect());
        Ok(kernels.enumerate().map(|(index, kernels)| (family.unit_name(index), kernels)).collect())
    }

    fn family(&self, index: usize, family: &str, decision: &Decision) -> anyhow::Result<Explanation> {
        let section = &self.plan.sections[index];
        let units: Vec<&UnitPlan> =
            self.plan.section_units(&section.name).filter(|u| u.family == family).collect();
        let mut lines = vec![decision.to_string()];
        if let Some(known) = self.catalog.family(family) {
            let all = self.units(known)?;
            let kernels = || all.iter().flat_map(|(unit, kernels)| kernels.iter().map(move |k| (unit, *k)));
            let selected = kernels().filter(|(unit, k)| self.scope.takes(unit, family, k)).count();
            let compiled: usize = units.iter().map(|u| u.kernels.len()).sum();
            lines.push(format!(
                "{} kernels, {selected} selected, {compiled} compiled in {} of {} units",
                kernels().count(),
                units.len(),
                all.len()
            ));
            lines.push(format!("SM ranges: {}", ranges(kernels().map(|(_, k)| k))));
        }
        Ok(Explanation {
            kind: "family",
            name: format!("{}/{family}", section.name),
            decision: word(decision),
            lines,
        })
    }

    fn backend(&self, name: &str, families: &[&str]) -> Explanation {
        let backend = &self.plan.backends()[name];
        let mut lines = vec![format!("made of {}", families.join(" and "))];
        match &backend.reason {
            None => lines.push(format!("built for {}", backend.capabilities.join(", "))),
            Some(reason) => {
                lines.push(format!("not built: {reason}"));
                lines
                    .push("stubbed: its functions are in the library and answer with that reason".to_owned());
            }
        }
        Explanation {
            kind: "backend",
            name: name.to_owned(),
            decision: if backend.built { "build" } else { "skip" },
            lines,
        }
    }

    fn unit(&self, index: usize, family: &Family, name: &str, kernels: &[&'static Kernel]) -> Explanation {
        let section = &self.plan.sections[index];
        let selected: Vec<&Kernel> =
            kernels.iter().copied().filter(|k| self.scope.takes(name, &family.name, k)).collect();
        let mut lines = vec![
            format!("family {}, {} kernels, {} of them selected", family.name, kernels.len(), selected.len()),
            format!("SM ranges: {}", ranges(kernels.iter().copied())),
        ];
        let planned = self.plan.section_units(&section.name).find(|u| u.name == name);
        if let Some(unit) = planned {
            lines.push(format!("{} kernels are compiled", unit.kernels.len()));
            lines.extend(unit.capabilities.iter().map(|c| format!("{}: {}", c.request, c.sentence())));
            lines.extend(unit.gencodes.iter().map(|g| format!("-gencode {g}")));
            let jobs = Jobs::of_unit(unit);
            lines.push(format!("{} jobs, of them {} cicc and {} ptxas", jobs.sum(), jobs.cicc, jobs.ptxas));
        } else {
            let decision = section.families.iter().find(|(f, _)| *f == family.name).map(|(_, d)| d);
            lines.push(match decision {
                Some(Decision::Skip(reason)) => format!("not compiled: {reason}"),
                _ if selected.is_empty() => {
                    format!("not compiled: none of its kernels is selected ({})", self.scope.text)
                }
                _ => {
                    let built: Vec<String> = section.built().iter().map(ToString::to_string).collect();
                    format!("not compiled: none of its selected kernels runs on {}", built.join(", "))
                }
            });
        }
        Explanation {
            kind: "unit",
            name: format!("{}/{name}", section.name),
            decision: if planned.is_some() { "build" } else { "skip" },
            lines,
        }
    }

    fn kernel(&self, index: usize, family: &Family, unit: &str, kernel: &Kernel) -> Explanation {
        let section = &self.plan.sections[index];
        let name = &kernel.name;
        let planned = self
            .plan
            .section_units(&section.name)
            .find(|u| u.name == unit && u.kernels.iter().any(|k| k.name == *name));
        let mut lines = vec![
            format!("in unit {}/{unit}", section.name),
            format!("runs on SM [{},{})", kernel.sm_min, kernel.sm_max),
        ];
        if !self.scope.takes(unit, &family.name, kernel) {
            lines.push(format!("not selected ({})", self.scope.text));
        }
        for request in section.built() {
            if !kernel.live_on(request.capability.number()) {
                lines.push(format!("{request}: it does not run there"));
            } else if planned.is_some() {
                lines.push(format!("{request}: it has code there"));
            }
        }
        Explanation {
            kind: "kernel",
            name: format!("{}/{name}", section.name),
            decision: if planned.is_some() { "build" } else { "skip" },
            lines,
        }
    }
}
