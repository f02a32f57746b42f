//! Bytes that the cache does not hold any more. A job that is known to the cache without them runs only where a
//! job that runs, or the artifact, needs to read them; then, if its own inputs are gone as well, what made those
//! runs first, and so on.
//!
//! While such a job runs it writes all of its outputs anew, so nobody reads them meanwhile. Where they are other
//! bytes than those on record, everything that was made from the old ones is decided again: an object is never
//! made of both.

use super::{Coordinator, State, producer};
use crate::failure::Failure;
use crate::graph::JobId;
use std::collections::BTreeSet;

/// How often bytes that the cache lost are made again in one run before that is a failure.
const REPAIRS: usize = 3;

impl Coordinator<'_> {
    /// Has a job run whose record is in the cache without the bytes, and says for whom.
    pub(super) fn run_for_bytes(&mut self, id: JobId, reader: &str) -> anyhow::Result<()> {
        if !(self.setting.may_run)(&self.graph.jobs()[id]) {
            return Err(self.barred(id, 1).into());
        }
        let name = self.name(id);
        let losses = self.losses.entry(id).or_default();
        *losses += 1;
        if *losses > REPAIRS {
            return Err(Failure::integrity(format!("{name}: the cache loses it each time it is made"))
                .hint("check the disk that holds the store, or name another with NATTENC_HOME")
                .into());
        }
        self.setting.reporter.phase(&format!(
            "{name} runs again: {reader} needs its output, which the cache does not hold any more"
        ));
        self.lost.insert(id);
        self.eta.back(id);
        self.states[id] = State::Ready;
        // Those that run already read what they have; it waits for them.
        for user in self.users[id].clone() {
            if matches!(self.states[user], State::Ready | State::Waiting(_)) {
                self.states[user] = State::Waiting(self.unmade(user));
            }
        }
        Ok(())
    }

    /// The jobs whose outputs a job needs and that are not done.
    pub(super) fn unmade(&self, id: JobId) -> BTreeSet<JobId> {
        let needs = self.graph.jobs()[id].inputs.iter().filter_map(producer);
        needs.filter(|need| self.states[*need] != State::Done).collect()
    }

    /// Whether a job runs that reads what this one is about to write again.
    pub(super) fn is_being_read(&self, id: JobId) -> bool {
        self.users[id].iter().any(|user| self.states[*user] == State::Running)
    }

    /// Called before a job is done that made other bytes than those on record: what was made from those is
    /// decided again.
    pub(super) fn made_other_bytes(&mut self, id: JobId) {
        self.setting.reporter.warning(&format!(
            "{} made other bytes than the cache knew; what was made from those is made again",
            self.name(id)
        ));
        let mut others = BTreeSet::from([id]);
        for user in id + 1..self.states.len() {
            let mut needs = self.graph.jobs()[user].inputs.iter().filter_map(producer);
            if !needs.any(|need| others.contains(&need)) {
                continue;
            }
            others.insert(user);
            match self.states[user] {
                State::Running => {
                    self.stale.insert(user);
                }
                State::Failed => {}
                // Of its inputs the first to be decided again is not done any more.
                _ => {
                    self.states[user] = State::Waiting(self.unmade(user));
                    self.eta.back(user);
                }
            }
        }
    }
}
