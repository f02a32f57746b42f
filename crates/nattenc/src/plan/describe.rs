//! A plan as text for people and as JSON for scripts.

use super::totals::{Jobs, Totals, holders};
use super::{CapabilityPlan, Decision, Plan, SectionPlan};
use serde_json::{Value, json};
use std::fmt::{self, Write};

/// Raised when a field of the JSON changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 2;

fn decided(decision: &Decision) -> (&'static str, Option<&str>) {
    match decision {
        Decision::Build => ("build", None),
        Decision::Share { .. } => ("share", None),
        Decision::Skip(reason) => ("skip", Some(reason)),
    }
}

/// A capability of a section or a unit.
fn capability(plan: &CapabilityPlan) -> Value {
    let (word, reason) = decided(&plan.decision);
    let mut value = json!({
        "capability": plan.request.to_string(),
        "decision": word,
        "reason": reason,
        "note": plan.note,
    });
    if let Decision::Share { from, mode } = plan.decision {
        value["from"] = json!(from);
        value["mode"] = json!(mode);
    }
    value
}

/// The whole plan.
pub fn json(plan: &Plan) -> Value {
    let family = |(name, decision): &(String, Decision)| {
        let (word, reason) = decided(decision);
        json!({ "family": name, "decision": word, "reason": reason })
    };
    let sections: Vec<Value> = plan
        .sections
        .iter()
        .map(|s| {
            json!({
                "name": s.name,
                "capabilities": s.capabilities.iter().map(capability).collect::<Vec<_>>(),
                "families": s.families.iter().map(family).collect::<Vec<_>>(),
            })
        })
        .collect();
    let units: Vec<Value> = plan
        .units
        .iter()
        .map(|u| {
            json!({
                "name": u.name,
                "section": u.section,
                "family": u.family,
                "capabilities": u.capabilities.iter().map(capability).collect::<Vec<_>>(),
                "gencodes": u.gencodes.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "flags": u.flags,
                "jobs": Jobs::of_unit(u),
                "kernels": u.kernels.iter().map(|k| k.name.as_str()).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({
        "schema_version": SCHEMA_VERSION,
        "variant": plan.variant,
        "release": plan.release.to_string(),
        "natten": plan.natten,
        "scope": plan.scope,
        "share": plan.sharing,
        "pruned": plan.pruned,
        "sections": sections,
        "backends": plan.backends(),
        "units": units,
        "skips": plan.skips.iter().map(|s| json!({ "what": s.what, "reason": s.reason })).collect::<Vec<_>>(),
        "counts": plan.counts,
        "totals": Totals::of(plan),
        "warnings": plan.warnings,
    })
}

/// The plan as a person reads it.
pub fn text(plan: &Plan) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let pruned = if plan.pruned { "" } else { ", --no-prune" };
    let _ = writeln!(
        out,
        "variant {}: cuda {}, natten {}, {}, --share {}{pruned}",
        plan.variant,
        plan.release,
        plan.natten,
        plan.scope,
        plan.sharing.word()
    );
    let _ =
        writeln!(out, "\n{:<10} {:<12} {:>5} {:>6}  decision", "section", "capability", "units", "shared");
    for section in &plan.sections {
        for row in &section.capabilities {
            let (own, shared) = holders(plan.section_units(&section.name), row.request);
            let _ = writeln!(
                out,
                "{:<10} {:<12} {:>5} {:>6}  {}",
                section.name,
                row.request.to_string(),
                own + shared,
                shared,
                row.sentence()
            );
        }
        if section.capabilities.is_empty() {
            let _ = writeln!(
                out,
                "{:<10} {:<12} {:>5} {:>6}  skip: none of its capabilities is selected",
                section.name, "-", 0, 0
            );
        }
    }
    plan.sections.iter().for_each(|section| families(&mut out, plan, section));
    totals(&mut out, plan);
    let built: Vec<String> = plan.backends().into_iter().filter(|(_, b)| b.built).map(|(n, _)| n).collect();
    let _ = writeln!(out, "\nbackends in it: {}", built.join(", "));
    for (name, backend) in plan.backends() {
        if let Some(reason) = backend.reason {
            let _ = writeln!(out, "backend {name} answers with an error: {reason}");
        }
    }
    for warning in &plan.warnings {
        let _ = writeln!(out, "warning: {warning}");
    }
    out
}

/// A section's families by its capabilities: in how many units each is compiled (`25`) or shared (`25s`).
fn families(out: &mut String, plan: &Plan, section: &SectionPlan) {
    let built = section.built();
    let _ = write!(out, "\n{:<29} {:>5} {:>7}", format!("{}: family", section.name), "units", "kernels");
    for request in &built {
        let _ = write!(out, " {:>9}", request.to_string());
    }
    let _ = writeln!(out);
    for (family, decision) in &section.families {
        let units = || plan.section_units(&section.name).filter(|u| u.family == *family);
        let kernels: usize = units().map(|u| u.kernels.len()).sum();
        let _ = write!(out, "{family:<29} {:>5} {kernels:>7}", units().count());
        if let Decision::Skip(reason) = decision {
            let _ = writeln!(out, "  skip: {reason}");
            continue;
        }
        for request in &built {
            let cell = match holders(units(), *request) {
                (0, 0) => "-".to_owned(),
                (own, 0) => own.to_string(),
                (0, shared) => format!("{shared}s"),
                (own, shared) => format!("{own}+{shared}s"),
            };
            let _ = write!(out, " {cell:>9}");
        }
        let _ = writeln!(out);
    }
}

fn totals(out: &mut String, plan: &Plan) {
    let c = plan.counts;
    let _ = writeln!(
        out,
        "\nkernels: {} in {} units; of {} left out: {} not selected, {} that no planned capability runs",
        plan.kernels(),
        plan.units.len(),
        c.canonical_kernels,
        c.unselected,
        if plan.pruned { c.dead } else { 0 }
    );
    let _ = writeln!(
        out,
        "unit-capability pairs: {} in the build, {} of them from another capability's PTX; {} without a live kernel",
        c.pairs, c.shared_pairs, c.dead_pairs
    );
    let totals = Totals::of(plan);
    let _ = writeln!(
        out,
        "\n{:<22} {:>6} {:>9} {:>6} {:>6} {:>6}",
        "compile jobs", "units", "cudafe++", "cicc", "ptxas", "all"
    );
    for (name, amount) in [
        ("as planned", totals.planned),
        ("without sharing", totals.unshared),
        ("everything everywhere", totals.everything),
    ] {
        let _ = writeln!(
            out,
            "{name:<22} {:>6} {:>9} {:>6} {:>6} {:>6}",
            amount.units, amount.jobs.cudafe, amount.jobs.cicc, amount.jobs.ptxas, amount.compile_jobs
        );
    }
}

impl CapabilityPlan {
    /// The decision as a sentence, with its note.
    pub fn sentence(&self) -> String {
        let note = self.note.as_ref().map(|n| format!("; {n}")).unwrap_or_default();
        format!("{}{note}", self.decision)
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Decision::Build => f.write_str("build"),
            Decision::Share { from, mode } => write!(f, "share: {mode}, from {from}"),
            Decision::Skip(reason) => write!(f, "skip: {reason}"),
        }
    }
}
