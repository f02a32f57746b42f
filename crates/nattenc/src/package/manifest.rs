//! `manifest.json`: what an artifact holds, what it leaves out and why, and every file's digest.
//!
//! Readers refuse a `format_version` above theirs. Fields may be added without raising it.

use super::driver;
use crate::plan::capability::CapabilityRequest;
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

/// What the shared library needs of the machine that loads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    /// File names of libraries, sorted.
    pub libraries: Vec<String>,
    /// The oldest glibc that has every function it calls, `2.34`.
    pub glibc: String,
}

/// Facts of a build that the plan does not know.
pub struct Facts {
    /// `x86_64-linux`.
    pub target: String,
    /// nvcc's full version, `13.0.88`.
    pub toolkit: String,
    /// SHA-256 of the natten sdist.
    pub sdist_sha256: String,
    /// Version of the CUTLASS headers.
    pub cutlass: String,
    /// Where those are not the ones inside the sdist: the digest of the sources together with them.
    pub replaced_cutlass: Option<String>,
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

/// A manifest as it is read back: what can be checked against the files.
#[derive(Debug, Clone, Deserialize)]
pub struct Recorded {
    /// The variant.
    pub variant: String,
    /// What `natten_build_info()` answers.
    pub build: Value,
    /// Sections with what was decided about their capabilities.
    pub sections: Vec<RecordedSection>,
    /// Units.
    pub units: Vec<RecordedUnit>,
    /// What a program links.
    pub link: RecordedLink,
    /// What the shared library needs; not in the manifests of the first builds.
    pub needs: Option<Needs>,
    /// Every file but the manifest.
    pub files: Vec<File>,
}

/// A section of a [`Recorded`] manifest.
#[derive(Debug, Clone, Deserialize)]
pub struct RecordedSection {
    /// Its name in build.toml.
    pub name: String,
    /// Every capability that was asked for.
    pub capabilities: Vec<RecordedCapability>,
}

/// A capability of a [`RecordedSection`].
#[derive(Debug, Clone, Deserialize)]
pub struct RecordedCapability {
    /// The capability, `9.0a` or `12.0+PTX`.
    pub capability: CapabilityRequest,
    /// Whether the libraries hold code for it.
    pub built: bool,
}

/// A unit of a [`Recorded`] manifest.
#[derive(Debug, Clone, Deserialize)]
pub struct RecordedUnit {
    /// `fna_011`.
    pub name: String,
    /// Its section.
    pub section: String,
    /// Its family.
    pub family: String,
    /// What it is compiled for, as nvcc spells it.
    pub gencodes: Vec<String>,
    /// Its kernels, in the order of its table.
    pub kernels: Vec<String>,
}

/// What a program that uses a [`Recorded`] artifact links.
#[derive(Debug, Clone, Deserialize)]
pub struct RecordedLink {
    /// Archives of the artifact.
    #[serde(rename = "static")]
    pub statics: Vec<String>,
    /// Shared libraries of the artifact.
    pub shared: Vec<String>,
    /// Libraries of the system.
    pub system: Vec<String>,
}

/// The whole manifest.
pub fn manifest(plan: &Plan, facts: &Facts, needs: &Needs, files: &[File]) -> Value {
    let named = |key: &str, name: String, decision: &Decision| {
        let mut value = match decision {
            Decision::Build => json!({ "built": true }),
            Decision::Share { from, mode } => {
                json!({ "built": true, "shared": { "from": from, "mode": mode } })
            }
            Decision::Skip(reason) => json!({ "built": false, "reason": reason }),
        };
        value[key] = Value::String(name);
        value
    };
    let mut upstream =
        json!({ "natten": plan.natten, "sdist_sha256": facts.sdist_sha256, "cutlass": facts.cutlass });
    if let Some(digest) = &facts.replaced_cutlass {
        upstream["sources_with_other_cutlass"] = Value::String(digest.clone());
    }
    let sections: Vec<Value> = plan
        .sections
        .iter()
        .map(|s| {
            let capabilities: Vec<Value> = s
                .capabilities
                .iter()
                .map(|c| {
                    let mut value = named("capability", c.request.to_string(), &c.decision);
                    if let Some(note) = &c.note {
                        value["note"] = Value::String(note.clone());
                    }
                    value
                })
                .collect();
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
    let driver = driver::driver(plan);
    json!({
        "format_version": FORMAT_VERSION,
        "variant": plan.variant,
        "target": facts.target,
        "scope": plan.scope,
        "share": plan.sharing,
        "pruned": plan.pruned,
        "build": build_info(plan, &facts.toolkit),
        "toolkit": { "release": plan.release.to_string(), "version": facts.toolkit, "compression": facts.compression },
        "upstream": upstream,
        "sections": sections,
        "skips": plan.skips.iter().map(|s| json!({ "what": s.what, "reason": s.reason })).collect::<Vec<_>>(),
        "units": units,
        "link": { "static": statics, "shared": ["natten_kernels"], "system": system },
        "needs": needs,
        "driver": { "from": driver.floor(), "reason": driver.why() },
        "files": files,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Request;
    use crate::{catalog, config, plan};
    use std::path::Path;

    /// The manifest of what `select` leaves of the families' kernels for `capabilities`.
    fn recorded(families: &[&str], select: &str, capabilities: &[&str]) -> Value {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let config = config::load(&root.join("build.toml")).unwrap();
        let variant = config::variant(&root.join("variants"), "cu130").unwrap();
        let request = Request {
            capabilities: Some(capabilities.iter().map(|c| c.parse().unwrap()).collect()),
            families: Some(families.iter().map(|f| (*f).to_owned()).collect()),
            select: vec![select.parse().unwrap(), "family=reference,dtype=float16".parse().unwrap()],
            ..Request::default()
        };
        let plan = plan::plan(&config, &variant, None, &request, catalog::catalog().unwrap()).unwrap();
        let facts = Facts {
            target: "x86_64-linux".to_owned(),
            toolkit: "13.0.88".to_owned(),
            sdist_sha256: String::new(),
            cutlass: String::new(),
            replaced_cutlass: None,
            static_runtime: true,
            compression: String::new(),
        };
        manifest(&plan, &facts, &Needs { libraries: vec![], glibc: "2.34".to_owned() }, &[])
    }

    #[test]
    fn nothing_is_said_to_be_built_that_no_unit_holds() {
        let of = |manifest: &Value, list: &str, key: &str, name: &str| {
            let entries = manifest["sections"][0][list].as_array().unwrap().clone();
            entries.into_iter().find(|e| e[key] == name).unwrap()
        };
        let select = "family=fna,dtype=bfloat16,dim=1";
        // No kernel of fna is for bfloat16 on 7.5; those of the reference are for every device.
        for (families, capabilities, fna, seven) in [
            (&["fna", "reference"][..], &["7.5", "8.0"][..], true, true),
            (&["fna", "reference"], &["7.5"], false, true),
            (&["fna"], &["7.5", "8.0"], true, false),
        ] {
            let manifest = recorded(families, select, capabilities);
            for (list, key, name, built) in
                [("families", "family", "fna", fna), ("capabilities", "capability", "7.5", seven)]
            {
                let entry = of(&manifest, list, key, name);
                assert_eq!(entry["built"], built, "{families:?} {capabilities:?} {entry}");
                let reason = entry["reason"].as_str().unwrap_or_default();
                assert_eq!(reason.contains("no selected kernel"), !built, "{entry}");
            }
        }
    }

    #[test]
    fn manifest_is_read_back_as_it_was_written() {
        let written = recorded(&["fna"], "family=fna,dtype=float16,dim=2", &["9.0+PTX"]);
        let read: Recorded = serde_json::from_value(written.clone()).unwrap();
        assert_eq!((read.variant.as_str(), read.needs.unwrap().glibc.as_str()), ("cu130", "2.34"));
        assert_eq!(read.units.len(), written["units"].as_array().unwrap().len());
        assert!(read.units.iter().all(|u| u.gencodes == ["arch=compute_90,code=[sm_90,compute_90]"]));
        let core = &read.sections[0];
        assert_eq!(core.capabilities[0].capability.to_string(), "9.0+PTX");
        assert!(core.capabilities[0].built);
        assert_eq!(written["driver"]["from"], "that of cuda 13.0");
    }
}
