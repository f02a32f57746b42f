//! The jobs of a build: as few shards as end in time on a runner, by what compiling them is predicted to take.

use super::matrix::Limits;
use crate::cost::{Table, predict};
use crate::failure::Failure;
use crate::plan::shard::{self, Position};
use crate::plan::{Plan, UnitPlan};
use crate::report::bytes;
use std::fmt::Write;

/// One job: a shard, and what it is predicted to take.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Which shard of how many.
    pub shard: Position,
    /// Its units, in the plan's order.
    pub units: Vec<String>,
    /// From its start to its end, the overhead included.
    pub minutes: f64,
    /// Its largest process, bytes.
    pub largest_process: u64,
}

/// Why a plan does not fit a runner.
#[derive(Debug, Clone, PartialEq)]
pub struct TooLarge {
    /// The units that do not fit on their own.
    units: Vec<(String, String, f64, u64)>,
}

/// The plan with these units alone.
fn part(plan: &Plan, keep: impl Fn(&UnitPlan) -> bool) -> Plan {
    let units = plan.units.iter().filter(|unit| keep(unit)).cloned().collect();
    Plan { units, ..plan.clone() }
}

/// How long a job of these units takes in all, minutes.
fn minutes(plan: &Plan, limits: &Limits, table: &Table) -> f64 {
    let wall = predict::of(plan, limits.cores, limits.budget, table).wall_seconds;
    limits.overhead_minutes as f64 + limits.margin * wall / 60.0
}

/// Whether one unit ends in time and has enough memory.
pub fn fits(plan: &Plan, unit: &UnitPlan, limits: &Limits, table: &Table) -> bool {
    let alone = part(plan, |other| other.label() == unit.label());
    minutes(&alone, limits, table) <= limits.max_minutes as f64
        && predict::unit(unit, table).peak_memory <= limits.memory
}

/// As few shards of a plan as end in time, or the units that none can hold.
pub fn split(plan: &Plan, limits: &Limits, table: &Table) -> Result<Vec<Job>, TooLarge> {
    let costs = predict::costs(plan, table);
    let available = (limits.max_minutes - limits.overhead_minutes) as f64 * 60.0 * limits.cores as f64;
    let total: f64 = costs.iter().map(|(_, cost)| cost * limits.margin).sum();
    let mut count = 1;
    while (count as f64) < total / available && count < costs.len() {
        count += 1;
    }
    for count in count..=costs.len() {
        let shards = shard::assign(&costs, count);
        let jobs: Vec<Job> =
            (1..=count).map(|index| job(plan, &shards, Position { index, count }, limits, table)).collect();
        let fits =
            |job: &Job| job.minutes <= limits.max_minutes as f64 && job.largest_process <= limits.memory;
        if jobs.iter().all(fits) {
            return Ok(jobs);
        }
        // More shards do not help a unit that is too large on its own.
        if count == costs.len() || !plan.units.iter().all(|unit| self::fits(plan, unit, limits, table)) {
            break;
        }
    }
    let units = plan.units.iter().filter(|unit| !self::fits(plan, unit, limits, table));
    Err(TooLarge {
        units: units
            .map(|unit| {
                let alone = part(plan, |other| other.label() == unit.label());
                let memory = predict::unit(unit, table).peak_memory;
                (unit.label(), unit.family.clone(), minutes(&alone, limits, table), memory)
            })
            .collect(),
    })
}

fn job(plan: &Plan, shards: &[usize], shard: Position, limits: &Limits, table: &Table) -> Job {
    let labels = plan.units.iter().zip(shards).filter(|(_, s)| **s + 1 == shard.index);
    let units: Vec<String> = labels.map(|(unit, _)| unit.label()).collect();
    let own = part(plan, |unit| units.contains(&unit.label()));
    let memory = own.units.iter().map(|unit| predict::unit(unit, table).peak_memory).max().unwrap_or(0);
    Job { shard, minutes: minutes(&own, limits, table), largest_process: memory, units }
}

/// Minutes that something takes, upwards: where they are more than there are, they read as more.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "minutes, never negative")]
pub fn whole(minutes: f64) -> u64 {
    minutes.ceil() as u64
}

/// The size of something that takes `needed`; where that is more than `available`, it reads as more.
fn more(needed: u64, available: u64) -> String {
    let text = bytes(needed);
    if needed > available && text == bytes(available) {
        return format!("{text}, {} more than there is", bytes(needed - available));
    }
    text
}

impl TooLarge {
    /// The families of the units.
    pub fn families(&self) -> Vec<&str> {
        let mut families: Vec<&str> = self.units.iter().map(|(_, family, ..)| family.as_str()).collect();
        families.dedup();
        families
    }

    /// The failure, with class configuration; `policy` is one under which all of them fit.
    pub fn failure(&self, variant: &str, limits: &Limits, policy: Option<&str>) -> Failure {
        let mut text = format!(
            "{variant}: {} units do not fit a job of {} minutes on {} cores with {}",
            self.units.len(),
            limits.max_minutes,
            limits.cores,
            bytes(limits.memory)
        );
        for (unit, _, minutes, memory) in &self.units {
            let (minutes, memory) = (whole(*minutes), more(*memory, limits.memory));
            // Writing to a String cannot fail.
            let _ = write!(text, "\n  {unit}: {minutes} min, largest process {memory}");
        }
        let hint = match policy {
            Some(policy) => format!("split finer with --policy {policy}, or allow more minutes or memory"),
            None => "no split policy makes them fit: allow more minutes, or use a larger runner".to_owned(),
        };
        Failure::config(text).hint(hint)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::catalog;
    use crate::ci::choose::Planned;
    use crate::config::{self, Config};
    use crate::cost;
    use crate::plan::{Request, plan as make};
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    /// The build.toml of this project, changed.
    pub(crate) fn config(change: impl Fn(String) -> String) -> Config {
        let text = crate::fs::read_text(&root().join("build.toml")).unwrap();
        config::parse(Path::new("build.toml"), &change(text)).unwrap()
    }

    /// Everything that a configuration has for one of this project's variants.
    pub(crate) fn plan_of(config: &Config, variant: &str) -> Plan {
        let variant = config::variant(&root().join("variants"), variant).unwrap();
        make(config, &variant, None, &Request::default(), catalog::catalog().unwrap()).unwrap()
    }

    pub(crate) fn plan(variant: &str) -> Plan {
        plan_of(&config(|text| text), variant)
    }

    pub(crate) fn planned(name: &str) -> Planned {
        let variant = config::variant(&root().join("variants"), name).unwrap();
        Planned { variant, plan: plan(name), before: None }
    }

    pub(crate) fn limits(max_minutes: usize, gigabytes: u64) -> Limits {
        let (cores, memory) = (4, gigabytes << 30);
        Limits { max_minutes, overhead_minutes: 10, margin: 1.25, cores, memory, budget: memory - (2 << 30) }
    }

    #[test]
    fn every_unit_is_in_one_job_and_every_job_ends_in_time() {
        let (plan, table) = (plan("cu130"), cost::table().unwrap());
        let mut counts = Vec::new();
        for minutes in [330, 60] {
            let jobs = split(&plan, &limits(minutes, 16), table).unwrap();
            assert!(jobs.iter().all(|job| job.minutes <= minutes as f64), "{jobs:?}");
            let units: Vec<&String> = jobs.iter().flat_map(|job| &job.units).collect();
            assert_eq!(units.len(), plan.units.len());
            assert_eq!(units.iter().collect::<BTreeSet<_>>().len(), plan.units.len());
            counts.push(jobs.len());
            // One shard fewer does not end in time.
            if jobs.len() > 1 {
                let costs = predict::costs(&plan, table);
                let count = jobs.len() - 1;
                let shards = shard::assign(&costs, count);
                let late = (1..=count).any(|index| {
                    job(&plan, &shards, Position { index, count }, &limits(minutes, 16), table).minutes
                        > minutes as f64
                });
                assert!(late, "{count} shards end in {minutes} minutes, too");
            }
        }
        assert!(counts.is_sorted() && counts[0] < counts[1], "{counts:?}");
    }

    #[test]
    fn less_memory_takes_longer_or_more_jobs() {
        let (plan, table) = (plan("cu130"), cost::table().unwrap());
        let large = split(&plan, &limits(330, 64), table).unwrap();
        let small = split(&plan, &limits(330, 12), table).unwrap();
        assert!(small.len() > large.len() || small[0].minutes > large[0].minutes);
    }

    #[test]
    fn units_that_fit_no_job_are_named() {
        let (plan, table) = (plan("cu130"), cost::table().unwrap());
        for (limits, part) in
            [(limits(14, 16), "do not fit a job of 14 minutes"), (limits(330, 8), "with 8.6 GB")]
        {
            let large = split(&plan, &limits, table).unwrap_err();
            assert!(large.families().contains(&"hopper_fna_bwd"), "{large:?}");
            let failure = large.failure("cu130", &limits, Some("fine"));
            assert!(failure.message.contains(part), "{}", failure.message);
            assert!(failure.message.contains("\n  hopper/hopper_fna_bwd_"), "{}", failure.message);
            assert!(failure.hint.unwrap().contains("--policy fine"));
        }
    }

    #[test]
    fn what_is_too_much_reads_as_more_than_there_is() {
        let large = TooLarge {
            units: vec![
                ("core/a".to_owned(), "fna".to_owned(), 12.004, 1),
                ("core/b".to_owned(), "fna".to_owned(), 3.2, (16 << 30) + 4096),
                ("core/c".to_owned(), "fna".to_owned(), 3.0, 18 << 30),
            ],
        };
        let text = large.failure("cu130", &limits(12, 16), None).message;
        let expected = "3 units do not fit a job of 12 minutes on 4 cores with 17.2 GB\n  \
                        core/a: 13 min, largest process 1 B\n  \
                        core/b: 4 min, largest process 17.2 GB, 4.1 kB more than there is\n  \
                        core/c: 3 min, largest process 19.3 GB";
        assert!(text.ends_with(expected), "{text}");
    }
}
