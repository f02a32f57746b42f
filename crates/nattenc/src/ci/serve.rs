//! Which artifact of a release serves which variants: machine code runs under the drivers of all releases of its
//! CUDA major ([`crate::package::driver`]), which `served-by` in a variant's definition makes use of.

use crate::config::Variant;
use crate::failure::Failure;
use crate::plan::{Plan, SectionPlan};
use std::collections::{BTreeMap, BTreeSet};

/// For each artifact that a release has, the variants that it serves, itself the first.
///
/// Fails, with class configuration, where a variant cannot be served by the one that it names.
pub fn artifacts(variants: &[Variant]) -> anyhow::Result<BTreeMap<String, Vec<String>>> {
    let mut serves: BTreeMap<String, Vec<String>> = variants
        .iter()
        .filter(|variant| variant.served_by.is_none())
        .map(|variant| (variant.name.clone(), vec![variant.name.clone()]))
        .collect();
    let mut problems = Vec::new();
    for variant in variants {
        let Some(name) = &variant.served_by else { continue };
        let wrong = match variants.iter().find(|other| other.name == *name) {
            _ if *name == variant.name => Some("is itself".to_owned()),
            None => Some("is not among the variants of this release".to_owned()),
            Some(server) if server.served_by.is_some() => {
                Some(format!("is itself served by {}", server.served_by.as_deref().unwrap_or_default()))
            }
            Some(server) if server.release.major != variant.release.major => Some(format!(
                "is of cuda {}, this one of {}: drivers are compatible within a major",
                server.release, variant.release
            )),
            // Older toolkits know fewer capabilities, so sections would go missing.
            Some(server) if server.release < variant.release => {
                Some(format!("is of cuda {}, older than this one's {}", server.release, variant.release))
            }
            Some(_) => None,
        };
        match wrong {
            Some(wrong) => {
                problems.push(format!("variants/{}.toml: served-by: {name} {wrong}", variant.name));
            }
            None => serves.entry(name.clone()).or_default().push(variant.name.clone()),
        }
    }
    if problems.is_empty() {
        return Ok(serves);
    }
    Err(Failure::config(problems.join("\n"))
        .hint(
            "name a variant of the same CUDA major, of the same release or a later one, that is built itself",
        )
        .into())
}

/// What is built for the served plan's sections and not for the server's: `core/7.0`.
pub fn lost(served: &Plan, server: &Plan) -> Vec<String> {
    let built = |plan: &Plan| -> BTreeSet<String> {
        let of = |section: &SectionPlan| {
            section.built().into_iter().map(|c| format!("{}/{c}", section.name)).collect::<Vec<String>>()
        };
        plan.sections.iter().flat_map(of).collect()
    };
    built(served).difference(&built(server)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Release;

    fn variant(name: &str, release: Release, served_by: Option<&str>) -> Variant {
        Variant {
            name: name.to_owned(),
            release,
            providers: vec![],
            wheels: BTreeMap::new(),
            redist: None,
            served_by: served_by.map(str::to_owned),
            capabilities: BTreeMap::new(),
        }
    }

    #[test]
    fn one_artifact_serves_the_variants_that_say_so() {
        let all = [
            variant("cu126", Release::new(12, 6), Some("cu128")),
            variant("cu128", Release::new(12, 8), None),
            variant("cu130", Release::new(13, 0), None),
        ];
        let serves = artifacts(&all).unwrap();
        assert_eq!(serves["cu128"], ["cu128", "cu126"]);
        assert_eq!(serves["cu130"], ["cu130"]);
        assert_eq!(serves.len(), 2);
    }

    #[test]
    fn a_variant_that_cannot_serve_is_refused_with_the_reason() {
        for (server, part) in [
            (Some("cu126"), "cu126 is itself"),
            (Some("cu130"), "drivers are compatible within a major"),
            (Some("cu124"), "older than this one's 12.6"),
            (Some("cu129"), "not among the variants"),
            (Some("cu128"), "is itself served by cu130"),
        ] {
            let all = [
                variant("cu124", Release::new(12, 4), None),
                variant("cu126", Release::new(12, 6), server),
                variant("cu128", Release::new(12, 8), Some("cu130")),
                variant("cu130", Release::new(13, 0), None),
            ];
            let error = artifacts(&all).unwrap_err().to_string();
            assert!(error.contains("variants/cu126.toml: served-by: ") && error.contains(part), "{error}");
        }
    }
}
