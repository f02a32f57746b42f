//! What is compiled to find out whether capabilities may share PTX: a few kernels of every kind, as units
//! whose gencodes assemble for a capability both its own PTX and another's.

use super::capability::{Capability, CapabilityRequest};
use super::gencode::Gencode;
use super::{Decision, Request, Scope, Skip, UnitPlan, Verdict, verdict};
use crate::catalog::{Catalog, Family, Kernel};
use crate::config::share::{Share, impossible};
use crate::config::{Config, Section, Variant};
use crate::failure::Failure;
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

/// Which kernels are compared.
#[derive(Debug, Clone)]
pub enum Choice {
    /// So many of each family, direction and element type, spread evenly.
    Few(usize),
    /// All kernels of these units.
    Units(Vec<String>),
}

/// A pair of capabilities: the second's PTX is assembled for the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pair {
    /// What is assembled for.
    pub capability: Capability,
    /// Whose PTX is assembled.
    pub from: Capability,
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((capability, from)) = text.split_once('=') else {
            return Err(format!("{text:?} is no pair; write it as 9.0=8.0"));
        };
        Ok(Pair { capability: capability.parse()?, from: from.parse()? })
    }
}

/// What is to be found out.
#[derive(Debug, Clone)]
pub struct Question {
    /// The pairs; those of build.toml where there are none.
    pub pairs: Vec<Pair>,
    /// The kernels that they are compared by.
    pub choice: Choice,
}

/// Kernels that are compiled together, and the pairs that they are compared for.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Compiled for every capability of the pairs, and assembled from both.
    pub unit: UnitPlan,
    /// The pairs.
    pub pairs: Vec<Pair>,
}

/// The samples of a request, and what cannot be compared with the reason.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    /// In order of section, family and kind.
    pub samples: Vec<Sample>,
    /// Pairs that this toolkit or these families have nothing for.
    pub skips: Vec<Skip>,
}

/// What a section declares of a pair for a unit's kernels: the strongest promise that is made of all.
pub fn declared<'a>(section: &'a Section, pair: Pair, unit: &UnitPlan) -> Option<&'a Share> {
    section
        .share
        .iter()
        .filter(|s| s.capability == pair.capability && s.from == pair.from)
        .filter(|s| unit.kernels.iter().all(|k| s.covers(&super::traits(&unit.family, k))))
        .min_by_key(|s| s.mode)
}

/// What to compile to answer a question.
pub fn samples(
    config: &Config,
    variant: &Variant,
    known: Option<&[Capability]>,
    request: &Request,
    question: &Question,
    catalog: &'static Catalog,
) -> anyhow::Result<Samples> {
    let Question { pairs, choice } = question;
    for pair in pairs {
        if let Some(why) = impossible(pair.capability, pair.from) {
            return Err(Failure::config(format!(
                "--pairs: {} cannot share with {}: {why}",
                pair.capability, pair.from
            ))
            .hint("write it as 9.0=8.0: the capability, then the one whose PTX it is assembled from")
            .into());
        }
    }
    let scope = Scope::new(config, request)?;
    let mut found = Samples::default();
    for section in &config.sections {
        if scope.sections.as_ref().is_some_and(|s| !s.contains(&section.name)) {
            continue;
        }
        let own = section.share.iter().map(|s| Pair { capability: s.capability, from: s.from });
        let own: BTreeSet<Pair> = own.collect();
        let asked: Vec<Pair> = if pairs.is_empty() { own.into_iter().collect() } else { pairs.clone() };
        let mut usable = Vec::new();
        for pair in asked {
            let lacking = [pair.capability, pair.from].into_iter().find_map(|c| {
                match verdict(CapabilityRequest::sass(c), variant, known) {
                    Verdict::Vanishes(reason) => Some(reason),
                    Verdict::Build | Verdict::Warn(_) => None,
                }
            });
            match lacking {
                None => usable.push(pair),
                Some(reason) => found.skips.push(Skip {
                    what: format!("{}: {} from {}", section.name, pair.capability, pair.from),
                    reason,
                }),
            }
        }
        for name in &section.families {
            let wanted = scope.families.as_ref().is_none_or(|f| f.contains(name));
            if let (true, Some(family)) = (wanted, catalog.family(name)) {
                add_family(&mut found, section, family, &usable, &scope, choice)?;
            }
        }
    }
    if let Choice::Units(names) = choice {
        super::check_unit_names(names, &scope, catalog.families.iter())?;
    }
    if found.samples.is_empty() {
        let reasons: Vec<String> =
            found.skips.iter().map(|s| format!("\n  {}: {}", s.what, s.reason)).collect();
        return Err(Failure::config(format!(
            "nothing to compare: no selected kernel runs on both capabilities of a pair{}",
            reasons.concat()
        ))
        .hint("name pairs with --pairs, as in --pairs 9.0=8.0, or declare them as `share` of a section in build.toml")
        .into());
    }
    Ok(found)
}

/// The kernels of a family that may be compiled together, by the name of the unit that they will be.
fn kinds(
    family: &'static Family,
    scope: &Scope,
    choice: &Choice,
) -> anyhow::Result<BTreeMap<String, Vec<&'static Kernel>>> {
    let mut kinds: BTreeMap<String, Vec<&'static Kernel>> = BTreeMap::new();
    for (index, groups) in scope.policies.of(&family.name).split(family)?.into_iter().enumerate() {
        let name = family.unit_name(index);
        if matches!(choice, Choice::Units(names) if !names.contains(&name)) {
            continue;
        }
        for kernel in groups.iter().flat_map(|g| &g.kernels).filter(|k| scope.selects(&family.name, k)) {
            let kind = match choice {
                Choice::Units(_) => name.clone(),
                Choice::Few(_) => format!("{}_{}_{}", family.name, kernel.direction, kernel.dtype),
            };
            kinds.entry(kind).or_default().push(kernel);
        }
    }
    Ok(kinds)
}

fn add_family(
    found: &mut Samples,
    section: &Section,
    family: &'static Family,
    pairs: &[Pair],
    scope: &Scope,
    choice: &Choice,
) -> anyhow::Result<()> {
    for (kind, kernels) in kinds(family, scope, choice)? {
        // Pairs that the same kernels are compared for are compiled together.
        let mut sets: Vec<(Vec<&'static Kernel>, Vec<Pair>)> = Vec::new();
        for pair in pairs {
            let both = |k: &&Kernel| k.live_on(pair.capability.number()) && k.live_on(pair.from.number());
            let live: Vec<&'static Kernel> = kernels.iter().copied().filter(|k| both(k)).collect();
            let taken = match choice {
                Choice::Few(count) => spread(&live, *count),
                Choice::Units(_) => live,
            };
            let names = |set: &[&Kernel]| set.iter().map(|k| k.name.clone()).collect::<Vec<_>>();
            if taken.is_empty() {
                continue;
            }
            match sets.iter_mut().find(|(set, _)| names(set) == names(&taken)) {
                Some((_, pairs)) => pairs.push(*pair),
                None => sets.push((taken, vec![*pair])),
            }
        }
        for (index, (kernels, pairs)) in sets.into_iter().enumerate() {
            let name = if index == 0 { kind.clone() } else { format!("{kind}_{}", index + 1) };
            found.samples.push(Sample { unit: unit(section, family, name, kernels, &pairs), pairs });
        }
    }
    Ok(())
}

/// `count` of `all`, the first and the last among them.
fn spread<'a>(all: &[&'a Kernel], count: usize) -> Vec<&'a Kernel> {
    if count >= all.len() {
        return all.to_vec();
    }
    let last = count.saturating_sub(1).max(1);
    (0..count).map(|i| all[i * (all.len() - 1) / last]).collect()
}

fn unit(
    section: &Section,
    family: &Family,
    name: String,
    kernels: Vec<&'static Kernel>,
    pairs: &[Pair],
) -> UnitPlan {
    let mut codes: BTreeMap<Capability, BTreeSet<Capability>> = BTreeMap::new();
    for pair in pairs {
        codes.entry(pair.from).or_default().insert(pair.capability);
        codes.entry(pair.capability).or_default().insert(pair.capability);
    }
    UnitPlan {
        name,
        section: section.name.clone(),
        family: family.name.clone(),
        kernels,
        capabilities: codes
            .keys()
            .map(|c| super::CapabilityPlan::new(CapabilityRequest::sass(*c), Decision::Build))
            .collect(),
        gencodes: codes
            .into_iter()
            .map(|(from, real)| Gencode { virtual_arch: from, real: real.into_iter().collect(), ptx: false })
            .collect(),
        flags: section.flags.clone(),
    }
}
