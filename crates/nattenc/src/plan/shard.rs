//! Which units a shard compiles: every unit is in exactly one, all shards cost about the same, and a small change
//! of the plan or of the costs moves few units.

use crate::failure::Failure;
use crate::fs;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A shard may cost this much more than the mean before another one is taken.
const SLACK: f64 = 1.02;

/// Costs are compared in steps of this factor, so that units of about the same cost keep their order.
const STEP: f64 = 1.25;

/// One of `count` shards, `1/3` to `3/3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    /// From 1.
    pub index: usize,
    /// How many there are.
    pub count: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Position {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Position, Failure> {
        let numbers = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match numbers {
            Some((index, count)) if index >= 1 && index <= count => Ok(Position { index, count }),
            _ => Err(Failure::config(format!("--shard: {text:?} is no shard"))
                .hint("write it as i/n, the i-th of n: 1/3, 2/3 and 3/3 are all of three")),
        }
    }
}

/// For each unit, by its label and its predicted CPU seconds, the index (from 0) of its shard, of `count`.
///
/// The dearest first, each goes to the first shard of an order of its own (digests of label and shard) that stays
/// within the mean, or else to the cheapest so far: consistent hashing with bounded loads (Mirrokni, Thorup and
/// Zadimoghaddam, 2018).
pub fn assign(units: &[(String, f64)], count: usize) -> Vec<usize> {
    let step = |cost: f64| (cost.max(1e-3).ln() / STEP.ln()).round();
    let mut order: Vec<usize> = (0..units.len()).collect();
    order.sort_by(|a, b| {
        let ((label_a, cost_a), (label_b, cost_b)) = (&units[*a], &units[*b]);
        step(*cost_b).total_cmp(&step(*cost_a)).then_with(|| label_a.cmp(label_b))
    });
    let bound = SLACK * units.iter().map(|(_, cost)| cost).sum::<f64>() / count as f64;
    let mut loads = vec![0.0_f64; count];
    let mut shards = vec![0; units.len()];
    for unit in order {
        let (label, cost) = &units[unit];
        let mut ranked: Vec<(String, usize)> =
            (0..count).map(|shard| (fs::sha256_of(format!("{shard} {label}").as_bytes()), shard)).collect();
        ranked.sort();
        let free = ranked.iter().map(|(_, shard)| *shard).find(|shard| loads[*shard] + cost <= bound);
        let cheapest = || (0..count).min_by(|a, b| loads[*a].total_cmp(&loads[*b])).unwrap_or(0);
        let shard = free.unwrap_or_else(cheapest);
        loads[shard] += cost;
        shards[unit] = shard;
    }
    shards
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;
    use crate::config;
    use crate::cost::{self, predict};
    use crate::plan::{Request, plan};
    use std::path::Path;

    /// Every unit of the whole build.toml for cu130.
    fn units() -> Vec<(String, f64)> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let config = config::load(&root.join("build.toml")).unwrap();
        let variant = config::variant(&root.join("variants"), "cu130").unwrap();
        let plan = plan(&config, &variant, None, &Request::default(), catalog::catalog().unwrap()).unwrap();
        predict::costs(&plan, cost::table().unwrap())
    }

    #[test]
    fn positions_are_read_and_others_refused() {
        let position: Position = "2/3".parse().unwrap();
        assert_eq!((position.index, position.count, position.to_string().as_str()), (2, 3, "2/3"));
        for wrong in ["", "0/3", "4/3", "1/0", "1", "a/b", "1/3/5", "-1/3", "1.5/3"] {
            let error = wrong.parse::<Position>().unwrap_err();
            assert!(error.message.contains(&format!("{wrong:?}")), "{}", error.message);
        }
    }

    #[test]
    fn shards_cost_about_the_same_whatever_their_number() {
        let units = units();
        for count in [1, 2, 3, 4, 6, 9, 12] {
            let mut loads = vec![0.0; count];
            for ((_, cost), shard) in units.iter().zip(assign(&units, count)) {
                loads[shard] += cost;
            }
            let mean = loads.iter().sum::<f64>() / count as f64;
            let dearest = units.iter().map(|(_, cost)| *cost).fold(0.0, f64::max);
            let largest = loads.iter().copied().fold(0.0, f64::max);
            assert!(largest <= (1.1 * mean).max(dearest), "{count}: {loads:?}");
        }
    }

    #[test]
    fn small_change_moves_few_units() {
        let units = units();
        let before = assign(&units, 6);
        // A unit that goes, and costs that are all a little different.
        let mut without = units.clone();
        let gone = without.remove(40).0;
        let mut other = units.clone();
        for (i, (_, cost)) in other.iter_mut().enumerate() {
            *cost *= 1.0 + 0.002 * (i % 3) as f64;
        }
        for changed in [without, other] {
            let after = assign(&changed, 6);
            let find = |label: &String| units.iter().position(|(l, _)| l == label).unwrap();
            let moved = changed.iter().zip(&after).filter(|((l, _), s)| before[find(l)] != **s).count();
            assert!(moved * 4 <= units.len(), "{moved} of {} moved ({gone})", units.len());
        }
    }

    #[test]
    fn order_of_the_units_does_not_matter() {
        let units = units();
        let mut reversed = units.clone();
        reversed.reverse();
        let mut shards = assign(&reversed, 5);
        shards.reverse();
        assert_eq!(assign(&units, 5), shards);
    }
}
