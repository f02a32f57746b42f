//! Keeps jobs that take more than was predicted from taking the machine down with them.
//!
//! Jobs start by what they are predicted to need. Where those that run turn out to hold more together than there is,
//! a machine without swap does not stop one of them but crawls, reading its programs from disk again and again. So
//! the job that is furthest above its prediction is ended, and runs again with nothing beside it.

use super::sampling::Live;
use super::{Coordinator, JobId, process};
use crate::report::bytes;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// What may be held beyond the budget before a job is ended for it, as a part of the budget: samples count pages that
/// processes share once for each, and work that is thrown away is dear.
const TOLERANCE: u64 = 16;

/// How far above its prediction a job is at least that is ended for it, bytes.
const LEAST: u64 = 64 << 20;

impl Coordinator<'_> {
    /// Ends one job where those that run hold more than `memory` allows, unless one runs alone or was ended so before.
    pub(super) fn end_one_too_many(
        &mut self,
        held: u64,
        running: &BTreeMap<JobId, Live>,
        memory: u64,
        groups: &Mutex<BTreeMap<JobId, i32>>,
    ) {
        if held <= memory.saturating_add(memory / TOLERANCE)
            || running.len() < 2
            || !self.ended_early.is_empty()
        {
            return;
        }
        let over = |(id, live): (&JobId, &Live)| {
            let now = live.seen()?.now.memory;
            Some((now.saturating_sub(self.expected(*id).peak), *id, now))
        };
        let furthest = running.iter().filter_map(over).filter(|(over, ..)| *over >= LEAST).max();
        let Some((_, id, now)) = furthest else { return };
        let Some(group) = groups.lock().ok().and_then(|groups| groups.get(&id).copied()) else { return };
        if !self.second_tries.insert(id) {
            return;
        }
        self.setting.reporter.warning(&format!(
            "{}: holds {}, predicted were {}, and all that run hold {} of {}: it is ended and runs again, alone",
            self.name(id),
            bytes(now),
            bytes(self.expected(id).peak),
            bytes(held),
            bytes(memory)
        ));
        self.ended_early.insert(id);
        process::end_group(group);
    }
}
