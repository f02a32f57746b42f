//! How long tasks take side by side: the engine's own rule (`execute`) played without running anything. Of
//! the tasks that are ready the one with the longest way to go starts, of those whose memory fits beside
//! what runs ([`super::memory`]); with nothing running every task fits.

use super::memory::{self, Expected, Sample, Seen};
use crate::graph::Cost;

/// One task. Each comes after those that it needs.
#[derive(Debug, Clone)]
pub struct Task {
    /// How long it takes on a core of its own; of one that runs already, how much longer. Seconds.
    pub seconds: f64,
    /// What it holds, bytes, until its peak is over.
    pub memory: u64,
    /// When that is, in seconds from its start, or from now for one that runs already; not before its end where
    /// it is later.
    pub peak_ends: f64,
    /// What it counts for afterwards, bytes.
    pub after: u64,
    /// The tasks that must have ended.
    pub needs: Vec<usize>,
    /// Whether it runs already.
    pub running: bool,
}

impl Task {
    /// One that has not started and is as expected.
    pub fn new(expected: &Expected, needs: Vec<usize>) -> Self {
        let peak_ends = expected.profile.until * expected.cpu;
        let now = Sample { cpu: peak_ends, memory: expected.after() };
        let after = expected.counts_for(Some(Seen { now, highest: expected.peak }));
        Task { seconds: expected.cpu, memory: expected.peak, peak_ends, after, needs, running: false }
    }

    /// One that has run for `elapsed` seconds of those that are expected.
    pub fn running(expected: &Expected, elapsed: f64, needs: Vec<usize>) -> Self {
        let mut task = Task::new(expected, needs);
        task.running = true;
        task.seconds -= elapsed;
        task.peak_ends -= elapsed;
        if task.peak_ends <= 0.0 {
            task.memory = task.after;
        }
        task
    }

    /// One that holds the same all along.
    pub fn flat(cost: Cost, needs: Vec<usize>) -> Self {
        Task::new(&Expected { cpu: cost.cpu, peak: cost.memory, profile: memory::Profile::FLAT }, needs)
    }
}

/// How a simulation went.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Seconds until the last task ended.
    pub wall: f64,
    /// What the tasks that ran at once held, at most, bytes.
    pub peak_memory: u64,
}

/// Something that happens in a simulation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Event {
    /// A task starts.
    Started(usize),
    /// A task ends.
    Ended(usize),
}

/// Plays `tasks` on `cores` within `memory` bytes.
pub fn run(tasks: &[Task], cores: usize, memory: u64) -> Outcome {
    observed(tasks, cores, memory, &mut |_, _| {})
}

/// As [`run`], telling `see` of every event with its time.
pub fn observed(tasks: &[Task], cores: usize, memory: u64, see: &mut dyn FnMut(f64, Event)) -> Outcome {
    let mut state = State::new(tasks);
    for (id, task) in tasks.iter().enumerate() {
        if task.running {
            state.start(id);
        } else if state.waits[id] == 0 {
            state.ready(id);
        }
    }
    loop {
        while state.running.len() < cores.max(1) {
            let Some(place) = state.next(memory) else { break };
            let id = state.ready.remove(place);
            state.start(id);
            see(state.now, Event::Started(id));
        }
        match state.advance() {
            None => return Outcome { wall: state.now, peak_memory: state.peak },
            Some(Next::PeakOver) => {}
            Some(Next::Ended(id)) => see(state.now, Event::Ended(id)),
        }
    }
}

/// What happens next.
enum Next {
    PeakOver,
    Ended(usize),
}

/// A task that runs.
struct Running {
    id: usize,
    end: f64,
    /// While it is to come.
    peak_ends: Option<f64>,
    /// What it counts for.
    memory: u64,
}

struct State<'a> {
    tasks: &'a [Task],
    /// Per task, the seconds from its start to the end of all that need it.
    remaining: Vec<f64>,
    /// Per task, how many of its needs have not ended.
    waits: Vec<usize>,
    users: Vec<Vec<usize>>,
    /// Longest remaining first, the earliest of equals.
    ready: Vec<usize>,
    running: Vec<Running>,
    now: f64,
    peak: u64,
}

impl<'a> State<'a> {
    fn new(tasks: &'a [Task]) -> Self {
        let mut remaining: Vec<f64> = vec![0.0; tasks.len()];
        let mut users = vec![Vec::new(); tasks.len()];
        for (id, task) in tasks.iter().enumerate().rev() {
            remaining[id] += task.seconds;
            for need in &task.needs {
                remaining[*need] = remaining[*need].max(remaining[id]);
                users[*need].push(id);
            }
        }
        State {
            tasks,
            remaining,
            waits: tasks.iter().map(|task| task.needs.len()).collect(),
            users,
            ready: Vec::new(),
            running: Vec::new(),
            now: 0.0,
            peak: 0,
        }
    }

    fn ready(&mut self, id: usize) {
        let before = |other: &usize| {
            let order = self.remaining[*other].total_cmp(&self.remaining[id]);
            order.is_gt() || (order.is_eq() && *other < id)
        };
        let place = self.ready.partition_point(before);
        self.ready.insert(place, id);
    }

    /// What those that run count for.
    fn counted(&self) -> Vec<u64> {
        self.running.iter().map(|running| running.memory).collect()
    }

    /// Where in the list of ready tasks the next one stands.
    fn next(&self, budget: u64) -> Option<usize> {
        let counted = self.counted();
        self.ready.iter().position(|id| memory::fits(&counted, self.tasks[*id].memory, budget))
    }

    fn start(&mut self, id: usize) {
        let task = &self.tasks[id];
        let end = self.now + task.seconds.max(0.0);
        let over = Some(self.now + task.peak_ends.max(0.0)).filter(|over| *over < end);
        self.running.push(Running { id, end, peak_ends: over, memory: task.memory });
        self.peak = self.peak.max(self.counted().iter().sum());
    }

    /// Lets the next thing happen to what runs; `None` where nothing runs.
    fn advance(&mut self) -> Option<Next> {
        let when = |running: &Running| running.peak_ends.unwrap_or(running.end);
        let first = self.running.iter().enumerate().min_by(|a, b| when(a.1).total_cmp(&when(b.1)));
        let place = first?.0;
        self.now = when(&self.running[place]);
        if self.running[place].peak_ends.take().is_some() {
            self.running[place].memory = self.tasks[self.running[place].id].after;
            return Some(Next::PeakOver);
        }
        let id = self.running.swap_remove(place).id;
        for user in self.users[id].clone() {
            self.waits[user] -= 1;
            if self.waits[user] == 0 {
                self.ready(user);
            }
        }
        Some(Next::Ended(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(seconds: f64, memory: u64, needs: &[usize]) -> Task {
        Task::flat(Cost { cpu: seconds, memory }, needs.to_vec())
    }

    #[test]
    fn wall_and_peak_follow_cores_memory_and_needs() {
        let chain = [task(1.0, 1, &[]), task(2.0, 1, &[0]), task(3.0, 1, &[0])];
        let even = [task(2.0, 4, &[]), task(2.0, 4, &[]), task(2.0, 4, &[])];
        // The long one first, the short ones beside it.
        let mixed = [task(1.0, 1, &[]), task(1.0, 1, &[]), task(1.0, 1, &[]), task(3.0, 1, &[])];
        for (tasks, cores, memory, wall, peak) in [
            (&chain[..], 1, 10, 6.0, 1),
            (&chain, 2, 10, 4.0, 2),
            (&even, 3, 12, 2.0, 12),
            // Memory for two.
            (&even, 3, 11, 4.0, 8),
            // For none: alone, and never a deadlock.
            (&even, 3, 1, 6.0, 4),
            (&mixed, 2, 10, 3.0, 2),
            (&[], 2, 10, 0.0, 0),
        ] {
            assert_eq!(
                run(tasks, cores, memory),
                Outcome { wall, peak_memory: peak },
                "{tasks:?} on {cores}"
            );
        }
    }

    #[test]
    fn what_runs_already_keeps_its_core_and_its_memory() {
        let mut tasks = [task(5.0, 8, &[]), task(2.0, 4, &[]), task(1.0, 4, &[0])];
        tasks[0].running = true;
        // The second has no memory until the first ends; then both others run.
        assert_eq!(run(&tasks, 2, 10), Outcome { wall: 7.0, peak_memory: 8 });
        assert_eq!(run(&tasks, 2, 12), Outcome { wall: 6.0, peak_memory: 12 });
        // More run than there are cores, after a restart with fewer: they still end.
        tasks[1].running = true;
        assert_eq!(run(&tasks, 1, 99), Outcome { wall: 6.0, peak_memory: 12 });
    }

    #[test]
    fn more_run_side_by_side_where_the_peak_is_short_and_never_more_than_there_is() {
        use memory::Profile;
        let expected =
            |until: f64, after: f64| Expected { cpu: 10.0, peak: 1000, profile: Profile { until, after } };
        let tasks = |expected: &Expected| vec![Task::new(expected, vec![]); 6];
        let wall = |tasks: &[Task], budget| {
            let outcome = run(tasks, 4, budget);
            assert!(outcome.peak_memory <= budget, "{outcome:?}");
            outcome.wall
        };
        let (flat, short) = (tasks(&expected(1.0, 1.0)), tasks(&expected(0.5, 0.25)));
        // One at a time by their peaks; by their profiles the next one starts once the peak is over.
        assert_eq!((wall(&flat, 1500), wall(&short, 1500)), (60.0, 35.0));
        // Two peaks and a half, and memory for all.
        assert_eq!((wall(&flat, 2500), wall(&short, 2500)), (30.0, 25.0));
        assert_eq!((wall(&flat, 4000), wall(&short, 4000)), (20.0, 20.0));
        // What runs already and has its peak behind it.
        let mut running = short.clone();
        running[0] = Task { running: true, seconds: 3.0, memory: 250, peak_ends: 9.0, ..running[0].clone() };
        assert_eq!(run(&running[..2], 4, 1300), Outcome { wall: 10.0, peak_memory: 1250 });
    }
}
