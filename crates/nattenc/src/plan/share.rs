//! PTX sharing: which capabilities of a unit are assembled from the PTX of another, so that one front
//! end serves several.

use super::capability::{Capability, CapabilityRequest};
use super::gencode::Gencode;
use super::{CapabilityPlan, Decision};
use crate::catalog::Kernel;
use crate::config::share::{Mode, Share};
use std::collections::BTreeMap;

/// Which pairs of build.toml are used.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// None: every capability has a front end of its own.
    None,
    /// Those whose code is proven to be the same.
    #[default]
    Identical,
    /// Also those whose code may differ.
    Valid,
}

impl Sharing {
    fn allows(self, mode: Mode) -> bool {
        match self {
            Sharing::None => false,
            Sharing::Identical => mode == Mode::Identical,
            Sharing::Valid => true,
        }
    }

    /// The word of the command line.
    pub fn word(self) -> &'static str {
        match self {
            Sharing::None => "none",
            Sharing::Identical => "identical",
            Sharing::Valid => "valid",
        }
    }
}

/// What the capabilities of a section share.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    /// The pairs of build.toml.
    pub pairs: &'a [Share],
    /// Which of them are used.
    pub sharing: Sharing,
    /// Whether a capability that no kernel of a unit runs on is left out of the unit.
    pub prune: bool,
}

/// What becomes of each of `requests` in a unit of `kernels` of `family`, in their order.
///
/// A capability shares by the first pair that is allowed and made for all of its kernels, where those are the
/// kernels of the other: pairs may follow each other (12.1 from
/// 12.0 from 10.0), all are then assembled from the first one's PTX, and the weakest promise counts.
pub fn unit(
    family: &str,
    requests: &[CapabilityRequest],
    kernels: &[&Kernel],
    rules: Rules<'_>,
) -> Vec<CapabilityPlan> {
    let live = |c: Capability| kernels.iter().map(|k| k.live_on(c.number())).collect::<Vec<bool>>();
    let mut rows: Vec<CapabilityPlan> =
        requests.iter().map(|r| CapabilityPlan::new(*r, Decision::Build)).collect();
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|i| rows[*i].request.capability);
    // Whose PTX each capability has, and what is promised of it.
    let mut origin: BTreeMap<Capability, (Capability, Mode)> = BTreeMap::new();
    for index in order {
        let request = rows[index].request;
        let capability = request.capability;
        let lives = live(capability);
        if rules.prune && !lives.contains(&true) {
            rows[index].decision = Decision::Skip("no kernel of the unit runs on it".to_owned());
            continue;
        }
        let declared = || rules.pairs.iter().filter(|p| p.capability == capability);
        let covers = |pair: &Share| {
            kernels
                .iter()
                .filter(|k| !rules.prune || k.live_on(capability.number()))
                .all(|k| pair.covers(&super::traits(family, k)))
        };
        let found = declared()
            .find(|p| covers(p) && rules.sharing.allows(p.mode))
            .or_else(|| declared().find(|p| covers(p)))
            .or_else(|| declared().next());
        let source = found.map(|pair| match origin.get(&pair.from) {
            _ if !covers(pair) => Err(format!("{}'s PTX serves it for {} alone", pair.from, pair.scope())),
            _ if !rules.sharing.allows(pair.mode) => Err(format!(
                "it could be assembled from {}'s PTX ({}), but this build has --share {}",
                pair.from,
                pair.mode,
                rules.sharing.word()
            )),
            _ if request.ptx => Err("PTX of its own is asked for".to_owned()),
            None if !requests.iter().any(|r| r.capability == pair.from) => {
                Err(format!("{}, whose PTX would serve it, is not built", pair.from))
            }
            Some((first, mode)) if live(pair.from) == lives => Ok((*first, pair.mode.max(*mode))),
            _ => Err(format!("the kernels that run on it are not those that run on {}", pair.from)),
        });
        match source {
            Some(Ok((from, mode))) => {
                rows[index].decision = Decision::Share { from, mode };
                origin.insert(capability, (from, mode));
            }
            Some(Err(why)) => {
                rows[index].note = Some(why);
                origin.insert(capability, (capability, Mode::Identical));
            }
            None => {
                origin.insert(capability, (capability, Mode::Identical));
            }
        }
    }
    rows
}

/// The gencodes that compile these rows: one per capability that is built, in order.
pub fn gencodes(rows: &[CapabilityPlan]) -> Vec<Gencode> {
    let mut gencodes: Vec<Gencode> =
        rows.iter().filter(|r| r.decision == Decision::Build).map(|r| Gencode::of(r.request)).collect();
    for row in rows {
        if let Decision::Share { from, .. } = row.decision
            && let Some(gencode) = gencodes.iter_mut().find(|g| g.virtual_arch == from)
        {
            gencode.real.push(row.request.capability);
            gencode.real.sort();
        }
    }
    gencodes
}
