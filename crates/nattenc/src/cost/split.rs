//! The split policy `balanced`: units by cost instead of by count.
//!
//! Every group of kernels costs what its kernels add to the phases of a unit for one capability, and every
//! unit what its headers cost, both from the shipped table alone, never from what a machine remembers: the
//! units are the same everywhere. With `total` the cost of all families, each as one unit, no unit may cost
//! more than `total / SHARES`, unless it is a single group. A family is split into as few contiguous runs of
//! groups as that allows, and of all ways to do so one whose most expensive unit is cheapest, filled from
//! the front. All in whole milliseconds, so that rounding is the same on every machine.

use super::{PHASES, Table};
use crate::catalog::{Catalog, Family, Group};

/// A unit's target share of the cost of all families is one in this many. For all of build.toml with CUDA
/// 13.0 the table predicts of 96 the CPU time of upstream's default split (10 h), a seventh less memory in the
/// largest process, and on 64 cores 9 min 25 s instead of 15 min 49 s; finer shares only add headers.
pub const SHARES: u64 = 96;

/// What splits need to know of a family.
struct Costs {
    /// Of each group.
    groups: Vec<u64>,
    /// Of a unit without kernels.
    headers: u64,
}

impl Costs {
    fn of(family: &Family, table: &Table) -> Costs {
        let lines = || PHASES.iter().map(|phase| &table.row(&family.name, *phase).cpu);
        let kernels =
            |group: &Group| group.kernels.iter().map(|k| lines().map(|l| l.kernel(k)).sum::<f64>()).sum();
        Costs {
            groups: family.groups.iter().map(|group| milliseconds(kernels(group))).collect(),
            headers: milliseconds(lines().map(|line| line.header).sum()),
        }
    }

    fn whole(&self) -> u64 {
        self.headers + self.groups.iter().sum::<u64>()
    }

    /// The lengths of the runs that `limit` makes, each as long as fits.
    fn runs(&self, limit: u64) -> Vec<usize> {
        let mut runs = Vec::new();
        let (mut length, mut cost) = (0, self.headers);
        for group in &self.groups {
            if length > 0 && cost + group > limit {
                runs.push(length);
                (length, cost) = (0, self.headers);
            }
            length += 1;
            cost += group;
        }
        runs.push(length);
        runs
    }

    /// As few runs as `limit` allows, the most expensive as cheap as it can be with that many.
    fn balanced(&self, limit: u64) -> Vec<usize> {
        let count = self.runs(limit).len();
        let (mut low, mut high) = (0, limit);
        while low < high {
            let middle = low.midpoint(high);
            if self.runs(middle).len() <= count {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        self.runs(high)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a table's numbers are never negative"
)]
fn milliseconds(seconds: f64) -> u64 {
    (seconds * 1000.0).round() as u64
}

/// What a unit may cost, in milliseconds of the table's machine.
pub fn limit(catalog: &Catalog, table: &Table) -> u64 {
    catalog.families.iter().map(|family| Costs::of(family, table).whole()).sum::<u64>() / SHARES
}

/// The groups of each unit of `family`, where a unit may cost `limit` milliseconds.
pub fn balanced<'a>(family: &'a Family, table: &Table, limit: u64) -> Vec<Vec<&'a Group>> {
    let mut groups = family.groups.iter();
    let runs = Costs::of(family, table).balanced(limit);
    runs.into_iter().map(|length| groups.by_ref().take(length).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    #[test]
    fn runs_are_as_few_as_the_limit_allows_and_then_as_even_as_can_be() {
        for (groups, headers, limit, runs) in [
            (&[4, 4, 4, 4][..], 0, 8, &[2, 2][..]),
            // One unit suffices.
            (&[1, 2, 3], 1, 7, &[3]),
            // Filled from the front it would be 9, 9, 3; three units of at most 7 do.
            (&[3, 3, 3, 3, 3, 3, 3], 0, 9, &[3, 3, 1]),
            (&[1, 5, 1, 5, 1, 5], 0, 12, &[3, 3]),
            // Headers count once a unit.
            (&[3, 3], 2, 7, &[1, 1]),
            // A group that is too expensive stands alone.
            (&[1, 20, 1], 0, 10, &[1, 1, 1]),
            (&[], 3, 10, &[0]),
        ] {
            let costs = Costs { groups: groups.to_vec(), headers };
            assert_eq!(costs.balanced(limit), runs, "{groups:?} within {limit}");
        }
    }

    #[test]
    fn no_unit_of_the_shipped_table_exceeds_its_share_and_order_is_kept() {
        let (catalog, table) = (catalog::catalog().unwrap(), super::super::table().unwrap());
        let limit = limit(catalog, table);
        for family in &catalog.families {
            let units = balanced(family, table, limit);
            let groups: Vec<*const Group> =
                units.iter().flatten().map(|group| std::ptr::from_ref(*group)).collect();
            let all: Vec<*const Group> = family.groups.iter().map(std::ptr::from_ref).collect();
            assert_eq!(groups, all, "{}", family.name);
            let costs = Costs::of(family, table);
            let mut at = 0;
            for unit in &units {
                let cost = costs.headers + costs.groups[at..at + unit.len()].iter().sum::<u64>();
                assert!(cost <= limit || unit.len() == 1, "{}: {cost} of {limit} ms", family.name);
                at += unit.len();
            }
        }
    }
}
