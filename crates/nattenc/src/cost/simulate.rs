//! How long tasks take side by side: the engine's own rule (`execute`) played without running anything. Of
//! the tasks that are ready the one with the longest way to go starts, of those whose memory fits beside
//! what runs; with nothing running every task fits.

/// One task. Each comes after those that it needs.
#[derive(Debug, Clone)]
pub struct Task {
    /// How long it takes on a core of its own; of one that runs already, how much longer. Seconds.
    pub seconds: f64,
    /// What it holds while it runs, bytes.
    pub memory: u64,
    /// The tasks that must have ended.
    pub needs: Vec<usize>,
    /// Whether it runs already.
    pub running: bool,
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
        let Some(id) = state.end_first() else {
            return Outcome { wall: state.now, peak_memory: state.peak };
        };
        see(state.now, Event::Ended(id));
    }
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
    /// End and task.
    running: Vec<(f64, usize)>,
    now: f64,
    used: u64,
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
            used: 0,
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

    /// Where in the list of ready tasks the next one stands.
    fn next(&self, memory: u64) -> Option<usize> {
        let fits = |id: &usize| self.running.is_empty() || self.used + self.tasks[*id].memory <= memory;
        self.ready.iter().position(fits)
    }

    fn start(&mut self, id: usize) {
        self.running.push((self.now + self.tasks[id].seconds.max(0.0), id));
        self.used += self.tasks[id].memory;
        self.peak = self.peak.max(self.used);
    }

    /// Lets the task that ends first end; `None` where nothing runs.
    fn end_first(&mut self) -> Option<usize> {
        let first = self.running.iter().enumerate().min_by(|a, b| a.1.0.total_cmp(&b.1.0));
        let place = first?.0;
        let (end, id) = self.running.swap_remove(place);
        self.now = end;
        self.used -= self.tasks[id].memory;
        for user in self.users[id].clone() {
            self.waits[user] -= 1;
            if self.waits[user] == 0 {
                self.ready(user);
            }
        }
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(seconds: f64, memory: u64, needs: &[usize]) -> Task {
        Task { seconds, memory, needs: needs.to_vec(), running: false }
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
}
