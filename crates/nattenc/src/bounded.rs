//! Work that may never end. A file on a mount whose server is gone blocks whoever asks for it, and no signal ends
//! that. So such work is done on threads that can be left behind, and is waited for only as long as it shows signs
//! of life. A process ends without the threads that it left behind.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

/// How long the store may give no sign of life. Waiting for the disk to have all of a file is the longest step
/// without one: this is enough for the largest, a library of 30 MB packed, at 2 MB a second.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// How often work is looked at in that time: a machine that stood still for all of it must not seem to be a store that
/// did.
const LOOKS: u32 = 4;

/// How work shows that it goes on.
#[derive(Debug, Clone, Default)]
pub struct Pulse(Arc<AtomicU64>);

impl Pulse {
    /// A sign of life.
    pub fn beat(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

type Work = Box<dyn FnOnce() + Send>;

/// Threads for work that may never end; made when they are needed, and used again.
#[derive(Debug)]
pub struct Threads {
    patience: Duration,
    idle: Mutex<Vec<mpsc::Sender<Work>>>,
}

impl Threads {
    /// None yet. Work may give no sign of life for as long as `patience`.
    pub fn new(patience: Duration) -> Self {
        Threads { patience, idle: Mutex::default() }
    }

    /// How long work may give no sign of life.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// What `work` comes to; nothing where it gave no sign of life for too long, or no thread could be had. Work that
    /// was left behind still may go on later: it must not touch anything that others rely on.
    pub fn within<T: Send + 'static>(&self, work: impl FnOnce(&Pulse) -> T + Send + 'static) -> Option<T> {
        let (tell, told) = mpsc::channel();
        let pulse = Pulse::default();
        let own = pulse.clone();
        let thread = self.idle().pop().map_or_else(spawn, Some)?;
        // Where nobody waits for it any more there is nobody to tell.
        thread
            .send(Box::new(move || {
                let _ = tell.send(work(&own));
            }))
            .ok()?;
        let (mut seen, mut silent) = (0, 0);
        while silent < LOOKS {
            match told.recv_timeout(self.patience / LOOKS) {
                Ok(value) => {
                    self.idle().push(thread);
                    return Some(value);
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    silent = if pulse.count() == seen { silent + 1 } else { 0 };
                    seen = pulse.count();
                }
            }
        }
        None
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<mpsc::Sender<Work>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that does what it is sent, until nobody can send it anything.
fn spawn() -> Option<mpsc::Sender<Work>> {
    let (give, take) = mpsc::channel::<Work>();
    let name = "bounded".to_owned();
    std::thread::Builder::new().name(name).spawn(move || take.into_iter().for_each(|work| work())).ok()?;
    Some(give)
}

/// As [`Threads::within`], on a thread for this alone.
pub fn within<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce(&Pulse) -> T + Send + 'static,
) -> Option<T> {
    Threads::new(patience).within(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_without_a_sign_of_life_is_left_behind_and_slow_work_is_not() {
        let threads = Threads::new(Duration::from_millis(300));
        let (release, held) = mpsc::channel::<()>();
        assert_eq!(threads.within(move |_| held.recv()), None);
        assert_eq!(threads.within(|_| 7), Some(7));
        let slow = |pulse: &Pulse| {
            for _ in 0..40 {
                std::thread::sleep(Duration::from_millis(20));
                pulse.beat();
            }
        };
        assert_eq!(threads.within(slow), Some(()));
        assert_eq!(threads.idle().len(), 1, "one thread did what came to an end");
        drop(release);
    }
}
