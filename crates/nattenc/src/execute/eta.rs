//! How long a run will still take: what is left, played on the same cores and memory
//! ([`crate::cost::simulate`]), with predictions corrected by what the jobs of this run took so far.

use super::history::Ratio;
use crate::cost::memory::{Expected, Profile};
use crate::cost::simulate::{self, Task};
use crate::graph::{Cost, Graph, JobId, Kind, Source};
use std::collections::BTreeMap;

/// Predicted seconds, by which a ratio of this run counts as much as what was believed before.
const FEW: f64 = 5.0;

/// Of a job that takes longer than predicted, this part of its time so far is still to come.
const LATE: f64 = 0.1;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Progress {
    Waiting,
    /// Since when, in seconds of the run.
    Running(f64),
    Done,
}

/// The progress of a run. Knows no clock: times are seconds since the run began.
#[derive(Debug)]
pub struct Eta {
    jobs: Vec<(Kind, Cost, Vec<JobId>)>,
    profiles: Vec<Profile>,
    progress: Vec<Progress>,
    /// Of the finished jobs.
    took: Took,
    cores: usize,
    memory: u64,
}

impl Eta {
    /// Nothing has run yet. The machine is cores and bytes.
    pub fn new(graph: &Graph, predicted: &[Cost], profiles: &[Profile], machine: (usize, u64)) -> Self {
        let needs = |id: JobId| {
            let mut needs: Vec<JobId> = graph.jobs()[id]
                .inputs
                .iter()
                .filter_map(|input| match input.source {
                    Source::Output(from, _) => Some(from),
                    Source::Text(_) => None,
                })
                .collect();
            needs.sort_unstable();
            needs.dedup();
            needs
        };
        let jobs = graph.jobs().iter().enumerate();
        let jobs = jobs.map(|(id, job)| (job.kind, predicted[id], needs(id))).collect();
        Eta { profiles: profiles.to_vec(), ..Eta::of(jobs, machine.0, machine.1) }
    }

    fn of(jobs: Vec<(Kind, Cost, Vec<JobId>)>, cores: usize, memory: u64) -> Self {
        let progress = vec![Progress::Waiting; jobs.len()];
        let profiles = jobs.iter().map(|(kind, ..)| Profile::of_kind(*kind)).collect();
        Eta { jobs, profiles, progress, took: Took::default(), cores, memory }
    }

    /// A job started.
    pub fn started(&mut self, id: JobId, now: f64) {
        self.progress[id] = Progress::Running(now);
    }

    /// A job's outputs were in the cache.
    pub fn settled(&mut self, id: JobId) {
        self.progress[id] = Progress::Done;
    }

    /// A job must run, again or for the first time.
    pub fn back(&mut self, id: JobId) {
        self.progress[id] = Progress::Waiting;
    }

    /// A job that ran is done.
    pub fn finished(&mut self, id: JobId, now: f64) {
        if let Progress::Running(since) = self.progress[id] {
            let (kind, cost, _) = &self.jobs[id];
            self.took.add(*kind, now - since, cost.cpu);
        }
        self.progress[id] = Progress::Done;
    }

    /// How long a job will take that has not started.
    pub fn seconds(&self, id: JobId) -> f64 {
        let (kind, cost, _) = &self.jobs[id];
        cost.cpu * self.took.factor(*kind)
    }

    /// Seconds until everything is done.
    pub fn left(&self, now: f64) -> f64 {
        let took = self.took.with_late_ones(self, now);
        let mut places = BTreeMap::new();
        let mut tasks: Vec<Task> = Vec::new();
        for (id, (kind, cost, needs)) in self.jobs.iter().enumerate() {
            let predicted = cost.cpu * took.factor(*kind);
            let expected = |cpu| Expected { cpu, peak: cost.memory, profile: self.profiles[id] };
            let needs = needs.iter().filter_map(|need| places.get(need).copied()).collect();
            let task = match self.progress[id] {
                Progress::Done => continue,
                Progress::Waiting => Task::new(&expected(predicted), needs),
                Progress::Running(since) => {
                    let elapsed = now - since;
                    let whole = predicted.max((1.0 + LATE) * elapsed);
                    Task::running(&expected(whole), elapsed, needs)
                }
            };
            places.insert(id, tasks.len());
            tasks.push(task);
        }
        simulate::run(&tasks, self.cores, self.memory).wall
    }
}

/// What jobs of this run took, and what they were predicted to take.
#[derive(Debug, Clone, Default)]
struct Took {
    kinds: BTreeMap<Kind, Ratio>,
    all: Ratio,
}

impl Took {
    fn add(&mut self, kind: Kind, took: f64, predicted: f64) {
        self.kinds.entry(kind).or_default().add(took, predicted);
        self.all.add(took, predicted);
    }

    /// How much longer jobs of a kind take than predicted.
    fn factor(&self, kind: Kind) -> f64 {
        self.kinds.get(&kind).copied().unwrap_or_default().value(self.all.value(1.0, FEW), FEW)
    }

    /// With those jobs that have run for longer than even the corrected prediction: they will not get faster.
    fn with_late_ones(&self, eta: &Eta, now: f64) -> Took {
        let mut took = self.clone();
        for (progress, (kind, cost, _)) in eta.progress.iter().zip(&eta.jobs) {
            if let Progress::Running(since) = progress
                && now - since > cost.cpu * self.factor(*kind)
            {
                took.add(*kind, now - since, cost.cpu);
            }
        }
        took
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::simulate::Event;

    /// Numbers from 0 to 1, the same in every run.
    struct Noise(u64);

    impl Noise {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as f64 / f64::from(1u32 << 31)
        }
    }

    /// `units` units as a build has them, with what each job is predicted to take.
    fn build(units: usize, noise: &mut Noise) -> Vec<(Kind, Cost, Vec<JobId>)> {
        let mut jobs: Vec<(Kind, Cost, Vec<JobId>)> = Vec::new();
        for unit in 0..units {
            let size = if unit % 5 == 0 { 8.0 } else { 1.0 + 2.0 * noise.next() };
            let first = jobs.len();
            for (kind, cpu, megabytes, needs) in [
                (Kind::Preprocess, 0.6, 100, vec![]),
                (Kind::Cudafe, 2.0 + size, 700, vec![0]),
                (Kind::Preprocess, 0.6, 100, vec![]),
                (Kind::Cicc, 20.0 * size, 1000, vec![1, 2]),
                (Kind::Ptxas, 6.0 * size, 300, vec![3]),
                (Kind::Fatbinary, 0.4, 50, vec![4]),
                (Kind::Host, 2.0 + size, 500, vec![1, 3, 5]),
            ] {
                let needs = needs.into_iter().map(|need| first + need).collect();
                jobs.push((kind, Cost { cpu, memory: megabytes << 20 }, needs));
            }
        }
        jobs
    }

    /// How much longer a job truly takes than predicted, by its kind and a random number.
    type Truth = fn(Kind, f64) -> f64;

    /// The worst error of the estimated end, and of what is left at the tenth, as parts of the truth, where
    /// jobs truly take `truth(kind, noise)` times what is predicted.
    fn worst(units: usize, cores: usize, memory: u64, truth: Truth) -> (f64, f64) {
        let mut noise = Noise(7);
        let jobs = build(units, &mut noise);
        let tasks: Vec<Task> = jobs
            .iter()
            .map(|(kind, cost, needs)| {
                let cpu = cost.cpu * truth(*kind, noise.next());
                let profile = Profile::of_kind(*kind);
                Task::new(&Expected { cpu, peak: cost.memory, profile }, needs.clone())
            })
            .collect();
        let work: f64 = tasks.iter().map(|task| task.seconds).sum();
        let mut eta = Eta::of(jobs, cores, memory);
        let (mut done, mut said) = (0.0, Vec::new());
        let outcome = simulate::observed(&tasks, cores, memory, &mut |now, event| match event {
            Event::Started(id) => eta.started(id, now),
            Event::Ended(id) => {
                eta.finished(id, now);
                done += tasks[id].seconds;
                if done > work / 10.0 {
                    said.push((now, eta.left(now)));
                }
            }
        });
        let end = |(now, left): &(f64, f64)| (now + left - outcome.wall).abs() / outcome.wall;
        let (now, left) = said[0];
        let first = (left - (outcome.wall - now)).abs() / (outcome.wall - now);
        (said.iter().map(end).fold(0.0, f64::max), first)
    }

    #[test]
    fn estimate_is_right_within_a_fifth_after_the_first_tenth_of_the_work() {
        const MUCH: u64 = 1 << 40;
        let cases: [(&str, Truth); 5] = [
            ("as predicted", |_, _| 1.0),
            ("a slow machine", |_, noise| 1.7 * (0.85 + 0.3 * noise)),
            ("a fast machine", |_, noise| 0.4 * (0.85 + 0.3 * noise)),
            ("phases that are off each in its own way", |kind, noise| {
                let phase = match kind {
                    Kind::Cicc => 1.2,
                    Kind::Ptxas => 0.7,
                    _ => 1.0,
                };
                phase * (0.9 + 0.2 * noise)
            }),
            ("jobs that are off each in its own way", |_, noise| 0.6 + 0.8 * noise),
        ];
        for (name, truth) in cases {
            for (units, cores, memory) in [(12, 2, MUCH), (60, 2, MUCH), (60, 16, MUCH), (60, 16, 6 << 30)] {
                let (end, first) = worst(units, cores, memory, truth);
                assert!(end <= 0.2 && first <= 0.2, "{name}, {units} units on {cores}: {end:.2} {first:.2}");
            }
        }
    }

    #[test]
    fn late_jobs_and_finished_ones_change_what_is_left() {
        let cost = Cost { cpu: 10.0, memory: 1 };
        let mut eta = Eta::of(vec![(Kind::Cicc, cost, vec![]), (Kind::Cicc, cost, vec![0])], 2, 10);
        assert_eq!(eta.left(0.0), 20.0);
        eta.started(0, 0.0);
        assert_eq!(eta.left(4.0), 16.0);
        // Twice as long as predicted, and still running: the other will not be quick either.
        assert!(eta.left(20.0) > 2.0 + 14.0, "{}", eta.left(20.0));
        eta.settled(0);
        assert_eq!(eta.left(20.0), 10.0);
        eta.back(0);
        assert_eq!(eta.left(20.0), 20.0);
        eta.settled(0);
        eta.settled(1);
        assert_eq!(eta.left(20.0), 0.0);
    }
}
