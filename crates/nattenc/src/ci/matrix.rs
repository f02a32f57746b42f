//! The jobs of a run of continuous integration, as its platform's matrix and as people read them.

use super::Event;
use super::choose::{Choice, Chosen};
use super::jobs::{self, Job};
use super::touched::Touch;
use crate::catalog::Catalog;
use crate::config::{Config, Variant};
use crate::cost::Table;
use crate::failure::Failure;
use crate::package::driver::{self, Driver};
use crate::plan::policy::Policy;
use crate::plan::{self, Plan, Request};
use crate::report::bytes;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The most jobs that the platform makes of one matrix.
const MOST_JOBS: usize = 256;

/// What a job may take, and what its machine has.
#[derive(Debug, Clone)]
pub struct Limits {
    /// How long a job may take, minutes.
    pub max_minutes: usize,
    /// What a job does beside compiling, minutes: fetching, restoring and saving the store, passing the shard on.
    pub overhead_minutes: usize,
    /// What predictions are multiplied by.
    pub margin: f64,
    /// Cores, each of which runs a compiler.
    pub cores: usize,
    /// Memory, bytes.
    pub memory: u64,
    /// What compilers may take of it together, bytes.
    pub budget: u64,
}

/// A variant whose shards are built and merged.
#[derive(Debug, Clone)]
pub struct Build {
    /// What is compiled, and why.
    pub choice: Choice,
    /// Its shards.
    pub jobs: Vec<Job>,
    /// The drivers that run the artifact.
    pub driver: Driver,
}

/// All jobs of a run.
#[derive(Debug, Clone)]
pub struct Matrix {
    /// What the run is for.
    pub event: Event,
    /// What every job may take.
    pub limits: Limits,
    /// Changed files, and what each touches.
    pub touches: BTreeMap<String, Touch>,
    /// What there is to know beside the builds.
    pub notes: Vec<String>,
    /// By release.
    pub builds: Vec<Build>,
    /// The split policy that was asked for.
    pub policy: Option<Policy>,
}

/// What plans are made from.
pub struct From<'a> {
    /// build.toml.
    pub config: &'a Config,
    /// The kernels.
    pub catalog: &'static Catalog,
    /// What compiling costs.
    pub table: &'static Table,
    /// The split policy that was asked for.
    pub policy: Option<Policy>,
}

impl From<'_> {
    /// Everything that build.toml has for a variant.
    pub fn plan(&self, config: &Config, variant: &Variant) -> anyhow::Result<Plan> {
        plan::plan(
            config,
            variant,
            None,
            &Request { policy: self.policy, ..Request::default() },
            self.catalog,
        )
    }

    /// A policy under which every unit of these families fits a job.
    fn fitting(
        &self,
        variant: &Variant,
        families: &[&str],
        limits: &Limits,
    ) -> anyhow::Result<Option<&'static str>> {
        for policy in [Policy::Balanced, Policy::Fine] {
            let request = Request {
                families: Some(families.iter().map(|f| (*f).to_owned()).collect()),
                policy: Some(policy),
                ..Request::default()
            };
            let plan = plan::plan(self.config, variant, None, &request, self.catalog)?;
            if plan.units.iter().all(|unit| jobs::fits(&plan, unit, limits, self.table)) {
                return Ok(Some(policy.word()));
            }
        }
        Ok(None)
    }
}

/// Divides what was chosen into jobs.
///
/// Fails, with class configuration, where a unit fits no job, and where there are more jobs than a matrix can have.
pub fn matrix(
    from: &From<'_>,
    event: Event,
    chosen: Chosen,
    touches: BTreeMap<String, Touch>,
    limits: Limits,
) -> anyhow::Result<Matrix> {
    let mut builds = Vec::new();
    for choice in chosen.choices {
        let jobs = match jobs::split(&choice.plan, &limits, from.table) {
            Ok(jobs) => jobs,
            Err(large) => {
                let policy = from.fitting(&choice.variant, &large.families(), &limits)?;
                return Err(large.failure(&choice.variant.name, &limits, policy).into());
            }
        };
        builds.push(Build { driver: driver::driver(&choice.plan), jobs, choice });
    }
    let count: usize = builds.iter().map(|build| build.jobs.len()).sum();
    if count > MOST_JOBS {
        return Err(Failure::config(format!("{count} jobs are more than the {MOST_JOBS} of one matrix"))
            .hint("allow more minutes per job, use larger runners, or name fewer variants")
            .into());
    }
    Ok(Matrix { event, limits, touches, notes: chosen.notes, builds, policy: from.policy })
}

impl Matrix {
    /// The options of `nattenc build` that choose what is compiled, beside the variant.
    fn options(&self, choice: &Choice) -> String {
        let mut words = Vec::new();
        if !choice.whole {
            let names: Vec<&str> = choice.plan.units.iter().map(|unit| unit.name.as_str()).collect();
            words.push(format!("--unit {}", names.join(",")));
        }
        if let Some(policy) = self.policy {
            words.push(format!("--policy {policy}"));
        }
        words.join(" ")
    }

    /// The matrix of the jobs that build shards.
    pub fn builds_json(&self) -> Value {
        let entry = |build: &Build, job: &Job| {
            json!({
                "name": format!("{} {}", build.choice.variant.name, job.shard),
                "variant": build.choice.variant.name,
                "shard": job.shard.to_string(),
                "index": job.shard.index,
                "count": job.shard.count,
                "options": self.options(&build.choice),
                "units": job.units.len(),
                "predicted-minutes": jobs::whole(job.minutes),
                "max-minutes": self.limits.max_minutes,
                "deadline": format!("{}m", self.limits.max_minutes - self.limits.overhead_minutes),
            })
        };
        let jobs = self.builds.iter().flat_map(|build| build.jobs.iter().map(move |job| entry(build, job)));
        json!({ "include": jobs.collect::<Vec<Value>>() })
    }

    /// The matrix of the jobs that merge a variant's shards.
    pub fn merges_json(&self) -> Value {
        let entry = |build: &Build| {
            json!({
                "variant": build.choice.variant.name,
                "count": build.jobs.len(),
                "serves": build.choice.serves,
                "driver": build.driver.floor(),
            })
        };
        json!({ "include": self.builds.iter().map(entry).collect::<Vec<Value>>() })
    }

    /// The matrix as a person reads it.
    pub fn text(&self) -> String {
        let limits = &self.limits;
        let mut out = format!(
            "event {}: jobs of at most {} min on {} cores with {}, compilers in {}\n  \
             of that {} min beside compiling; predictions times {:.2}\n",
            self.event.word(),
            limits.max_minutes,
            limits.cores,
            bytes(limits.memory),
            bytes(limits.budget),
            limits.overhead_minutes,
            limits.margin,
        );
        // Writing to a String cannot fail.
        for (file, touch) in &self.touches {
            let _ = writeln!(out, "changed {file}: {touch}");
        }
        for build in &self.builds {
            let choice = &build.choice;
            let total: u64 = build.jobs.iter().map(|job| jobs::whole(job.minutes)).sum();
            let _ = writeln!(
                out,
                "\n{} (cuda {}): {} units, jobs: {}, {total} min together",
                choice.variant.name,
                choice.variant.release,
                choice.plan.units.len(),
                build.jobs.len()
            );
            for why in &choice.why {
                let _ = writeln!(out, "  {why}");
            }
            for job in &build.jobs {
                let (units, memory) = (job.units.len(), bytes(job.largest_process));
                let minutes = jobs::whole(job.minutes);
                let _ = writeln!(
                    out,
                    "  {:>7}  {units:>3} units  {minutes:>4} min  largest process {memory}",
                    job.shard.to_string()
                );
            }
            if self.event == Event::Release {
                let _ = writeln!(out, "  serves {}, from {}", choice.serves.join(", "), build.driver);
            }
        }
        if !self.notes.is_empty() {
            out.push('\n');
        }
        for note in &self.notes {
            let _ = writeln!(out, "{note}");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ci::choose;
    use crate::ci::jobs::tests::{config, limits, planned};
    use crate::{catalog, cost};

    fn made(event: Event, policy: Option<Policy>, limits: Limits) -> anyhow::Result<Matrix> {
        let config = config(|text| text);
        let (catalog, table) = (catalog::catalog().unwrap(), cost::table().unwrap());
        let planned = ["cu126", "cu130"].map(planned);
        let chosen = choose::choose(&planned, event, &BTreeMap::new(), table).unwrap();
        matrix(&From { config: &config, catalog, table, policy }, event, chosen, BTreeMap::new(), limits)
    }

    #[test]
    fn json_says_what_to_build_and_what_to_merge() {
        let matrix = made(Event::Release, None, limits(60, 16)).unwrap();
        let builds = matrix.builds_json();
        let jobs = builds["include"].as_array().unwrap();
        let merges = matrix.merges_json();
        for merge in merges["include"].as_array().unwrap() {
            let own: Vec<&Value> = jobs.iter().filter(|job| job["variant"] == merge["variant"]).collect();
            assert_eq!(own.len() as u64, merge["count"].as_u64().unwrap());
            for (place, job) in own.iter().enumerate() {
                assert_eq!(job["shard"], format!("{}/{}", place + 1, own.len()));
                assert_eq!(job["options"], "");
                assert_eq!(job["deadline"], "50m");
                assert!(job["predicted-minutes"].as_u64().unwrap() <= 60);
            }
        }
        assert_eq!(merges["include"][0]["driver"], "525");
        assert!(matrix.text().contains("serves cu126, from driver 525: "), "{}", matrix.text());
    }

    #[test]
    fn units_and_policy_are_options_of_the_build() {
        let matrix = made(Event::Pr, Some(Policy::Fine), limits(60, 16)).unwrap();
        let options = matrix.builds_json()["include"][0]["options"].as_str().unwrap().to_owned();
        assert!(options.starts_with("--unit ") && options.ends_with(" --policy fine"), "{options}");
        assert!(options.contains("hopper_fmha_"), "{options}");
    }

    #[test]
    fn policy_that_helps_is_named_and_none_where_none_does() {
        let error = made(Event::Release, None, limits(330, 8)).unwrap_err();
        assert!(crate::failure::block(&error).contains("--policy balanced"), "{error}");
        let error = made(Event::Release, None, limits(330, 3)).unwrap_err();
        assert!(crate::failure::block(&error).contains("no split policy makes them fit"), "{error}");
    }
}
