//! `manifest.json`: what an artifact holds, what it leaves out and why, and every file's digest.
//!
//! Readers refuse a `format_version` above theirs. Fields may be added without raising it.

use crate::plan::{BackendPlan, Decision, Plan};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Raised when a field changes its meaning or goes away.
pub const FORMAT_VERSION: u32 = 1;

/// One file of an artifact.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct File {
    /// Relative to the artifact, `/` between names.
    pub path: String,
    /// SHA-256, lowercase hex.
    pub sha256: String,
    /// Bytes.
    pub size: u64,
}

/// Facts of a build that the plan does not know.
pub struct Facts {
    /// `x86_64-linux`.
    pub target: String,
    /// nvcc's full version, `13.0.88`.
    pub toolkit: String,
    /// SHA-256 of the natten sdist.
    pub sdist_sha256: String,
    /// Version of the CUTLASS headers inside it.
    pub cutlass: String,
    /// Whether the CUDA runtime is inside the libraries.
    pub static_runtime: bool,
    /// What the fatbins are compressed with.
    pub compression: String,
}

/// The description that is also compiled into the library, `natten_build_info()`.
pub fn build_info(plan: &Plan, toolkit: &str) -> Value {
    let backends: BTreeMap<String, BackendPlan> = plan.backends();
    json!({ "variant": plan.variant, "toolkit": toolkit, "natten": plan.natten, "backends": backends })
}

/// The whole manifest.
pub fn manifest(plan: &Plan, facts: &Facts, files: &[File]) -> Value {
    let decision = |d: &Decision| match d {
        Decision::Build => json!({ "built": true }),
        Decision::Skip(reason) => json!({ "built": false, "reason": reason }),
    };
    let named = |key: &str, name: String, d: &Decision| {
        let mut value = decision(d);
        value[key] = Value::String(name);
        value
    };
    let sections: Vec<Value> = plan
        .sections
        .iter()
        .map(|s| {
            let capabilities: Vec<Value> =
                s.capabilities.iter().map(|(c, d)| named("capability", c.to_string(), d)).collect();
            let families: Vec<Value> =
                s.families.iter().map(|(f, d)| named("family", f.clone(), d)).collect();
            json!({ "name": s.name, "capabilities": capabilities, "families": families })
        })
        .collect();
    let units: Vec<Value> = plan
        .units
        .iter()
        .map(|u| {
            let kernels: Vec<&str> = u.kernels.iter().map(|k| k.name.as_str()).collect();
            let gencodes: Vec<String> = u.gencodes.iter().map(ToString::to_string).collect();
            json!({ "name": u.name, "section": u.section, "family": u.family, "gencodes": gencodes, "kernels": kernels })
        })
        .collect();
    let mut statics = vec!["natten_kernels"];
    let mut system = vec!["stdc++", "dl", "rt", "pthread"];
    if facts.static_runtime {
        statics.push("cudart_static");
    } else {
        system.insert(0, "cudart");
    }
    json!({
        "format_version": FORMAT_VERSION,
        "variant": plan.variant,
        "target": facts.target,
        "scope": plan.scope,
        "build": build_info(plan, &facts.toolkit),
        "toolkit": { "release": plan.release.to_string(), "version": facts.toolkit, "compression": facts.compression },
        "upstream": { "natten": plan.natten, "sdist_sha256": facts.sdist_sha256, "cutlass": facts.cutlass },
        "sections": sections,
        "skips": plan.skips.iter().map(|s| json!({ "what": s.what, "reason": s.reason })).collect::<Vec<_>>(),
        "units": units,
        "link": { "static": statics, "shared": ["natten_kernels"], "system": system },
        "files": files,
    })
}
