//! Split policies: how finely a family's kernels are dealt out to units. The same kernels in the same order,
//! whatever the policy.

use crate::catalog::{self, Family, Group};
use crate::cost::{self, split};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// How finely families are split into units.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Upstream's default.
    #[default]
    Default,
    /// Upstream's finer split: shorter critical path, less memory per compiler, more header parsing.
    Fine,
    /// Upstream's coarser split.
    Coarse,
    /// By the shipped cost table, so that no unit costs more than its share of the whole.
    Balanced,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 4] = [Policy::Default, Policy::Fine, Policy::Coarse, Policy::Balanced];

    /// The word that names it.
    pub fn word(self) -> &'static str {
        match self {
            Policy::Default => "default",
            Policy::Fine => "fine",
            Policy::Coarse => "coarse",
            Policy::Balanced => "balanced",
        }
    }

    /// The groups of each unit of a family. Depends on what ships with nattenc alone, so that units are the
    /// same everywhere. An error is a defect of the embedded tables.
    pub fn split(self, family: &Family) -> anyhow::Result<Vec<Vec<&Group>>> {
        Ok(match self {
            Policy::Default => family.units(family.splits.default),
            Policy::Fine => family.units(family.splits.fine),
            Policy::Coarse => family.units(family.splits.coarse),
            Policy::Balanced => {
                static LIMIT: OnceLock<u64> = OnceLock::new();
                let (catalog, table) = (catalog::catalog()?, cost::table()?);
                split::balanced(family, table, *LIMIT.get_or_init(|| split::limit(catalog, table)))
            }
        })
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Policy::ALL.into_iter().find(|policy| policy.word() == text).ok_or_else(|| {
            let known = Policy::ALL.map(Policy::word);
            let meant = crate::config::nearest(text, known)
                .map_or_else(String::new, |meant| format!("did you mean \"{meant}\"? "));
            format!("\"{text}\" is not a split policy; {meant}known: {}", known.join(" "))
        })
    }
}

/// The policy of every family.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policies {
    /// Of families that have none of their own.
    pub default: Policy,
    /// Of single families, by name.
    pub families: BTreeMap<String, Policy>,
}

impl Policies {
    /// One policy for all families.
    pub fn only(policy: Policy) -> Self {
        Policies { default: policy, families: BTreeMap::new() }
    }

    /// The policy of a family.
    pub fn of(&self, family: &str) -> Policy {
        self.families.get(family).copied().unwrap_or(self.default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_keeps_every_group_in_its_order() {
        for family in &catalog::catalog().unwrap().families {
            for policy in Policy::ALL {
                let units = policy.split(family).unwrap();
                let groups = units.iter().flatten().map(|group| std::ptr::from_ref(*group));
                assert!(
                    groups.eq(family.groups.iter().map(std::ptr::from_ref))
                        && units.iter().all(|u| !u.is_empty()),
                    "{} {policy}",
                    family.name
                );
            }
        }
    }

    #[test]
    fn words_are_read_and_unknown_ones_listed() {
        for policy in Policy::ALL {
            assert_eq!(policy.word().parse(), Ok(policy));
        }
        let error = "balance".parse::<Policy>().unwrap_err();
        assert_eq!(
            error,
            "\"balance\" is not a split policy; did you mean \"balanced\"? known: default fine coarse balanced"
        );
    }

    #[test]
    fn a_family_has_its_own_policy_or_the_default() {
        let families = BTreeMap::from([("fna".to_owned(), Policy::Fine)]);
        let policies = Policies { default: Policy::Balanced, families };
        assert_eq!([policies.of("fna"), policies.of("fmha")], [Policy::Fine, Policy::Balanced]);
        assert_eq!(Policies::only(Policy::Coarse).of("fna"), Policy::Coarse);
    }
}
