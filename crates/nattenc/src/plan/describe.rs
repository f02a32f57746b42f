//! A plan as text for people and as JSON for scripts.

use super::{CapabilityPlan, Decision, Plan};
use serde_json::{Value, json};
use std::fmt::Write;

/// Raised when a field of the JSON changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 1;

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
        "warnings": plan.warnings,
    })
}

/// The plan as a person reads it.
pub fn text(plan: &Plan) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "variant {}: cuda {}, natten {}, {}",
        plan.variant, plan.release, plan.natten, plan.scope
    );
    let _ = writeln!(out, "\n{:<10} {:<12} decision", "section", "capability");
    for section in &plan.sections {
        for row in &section.capabilities {
            let note = row.note.as_ref().map(|n| format!("; {n}")).unwrap_or_default();
            let decision = sentence(&row.decision);
            let _ = writeln!(out, "{:<10} {:<12} {decision}{note}", section.name, row.request.to_string());
        }
        if section.capabilities.is_empty() {
            let _ =
                writeln!(out, "{:<10} {:<12} skip: none of its capabilities is selected", section.name, "-");
        }
    }
    let _ = writeln!(out, "\n{:<10} {:<18} {:>5} {:>8}  decision", "section", "family", "units", "kernels");
    for section in &plan.sections {
        for (family, decision) in &section.families {
            let units: Vec<_> =
                plan.units.iter().filter(|u| u.section == section.name && u.family == *family).collect();
            let kernels: usize = units.iter().map(|u| u.kernels.len()).sum();
            let _ = writeln!(
                out,
                "{:<10} {:<18} {:>5} {:>8}  {}",
                section.name,
                family,
                units.len(),
                kernels,
                sentence(decision)
            );
        }
    }
    let c = plan.counts;
    let _ = writeln!(
        out,
        "\n{} units with {} kernels, {} unit-capability pairs to compile\nleft out of {} units with {} kernels: {} kernels not selected, {} that no planned capability runs, {} pairs without a live kernel",
        plan.units.len(),
        plan.kernels(),
        c.pairs,
        c.canonical_units,
        c.canonical_kernels,
        c.unselected,
        c.dead,
        c.dead_pairs
    );
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

fn sentence(decision: &Decision) -> String {
    match decision {
        Decision::Build => "build".to_owned(),
        Decision::Share { from, mode } => format!("share: {mode}, from {from}"),
        Decision::Skip(reason) => format!("skip: {reason}"),
    }
}
