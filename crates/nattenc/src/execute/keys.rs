//! How jobs are found in the cache: their keys, and what is recorded under them.

use super::cache::{Action, Key};
use super::{Coordinator, Setting, headers};
use crate::fs;
use crate::graph::{JobId, Source, Tree};
use std::path::Path;

impl Coordinator<'_> {
    /// The action of a job whose inputs are known, if the cache has it and its bytes are not what is missing; `first` is
    /// what it has under the job's first key.
    pub(super) fn known(&mut self, id: JobId, first: Option<Action>) -> anyhow::Result<Option<Action>> {
        if self.lost.contains(&id) {
            return Ok(None);
        }
        let Setting { cache, trees, .. } = self.setting;
        if let Some(action) = first.filter(|action| self.is_of(id, action)) {
            return Ok(Some(action));
        }
        let Some(names) = self.key_of_names(id)? else { return Ok(None) };
        let kind = self.graph.jobs()[id].kind.word().to_owned();
        let found = self.headers.action(&names, cache, trees).filter(|action| self.is_of(id, action));
        let found = found.map(|action| Action { kind, ..action });
        if let Some(action) = &found {
            // Found by its first key from now on. That it cannot be written is told when a job ends.
            let _ = cache.put_action(&self.keys[id], action);
        }
        Ok(found)
    }

    /// Whether an action can be that of a job, and what it read outside all trees is unchanged.
    fn is_of(&mut self, id: JobId, action: &Action) -> bool {
        action.outputs.len() == self.graph.jobs()[id].outputs.len() && self.headers_unchanged(action)
    }

    /// Records an action.
    pub(super) fn remember(&mut self, id: JobId, action: &Action, read: &[String]) -> anyhow::Result<()> {
        let Setting { cache, trees, .. } = self.setting;
        cache.put_action(&self.keys[id], action)?;
        let searched = headers::searched(&self.graph.jobs()[id].args);
        match self.key_of_names(id)? {
            Some(names) if !read.is_empty() && headers::are_below(read, &searched) => {
                self.headers.record(&names, read, action, cache, trees)
            }
            _ => Ok(()),
        }
    }

    /// The key of a job whose inputs are known, with the digests of all that it may read.
    pub(super) fn key(&self, id: JobId) -> anyhow::Result<String> {
        let digest = |tree: &Tree| match self.setting.trees.get(tree) {
            Some((_, digest)) => Ok((tree.link().to_owned(), digest.clone())),
            None => Err(anyhow::anyhow!("no tree {tree:?}")),
        };
        self.key_with(id, &self.graph.jobs()[id].trees.iter().map(digest).collect::<Result<Vec<_>, _>>()?)
    }

    /// The key of a job that says which headers it reads, with the names of all that it may find; see [`headers`].
    fn key_of_names(&mut self, id: JobId) -> anyhow::Result<Option<String>> {
        let job = &self.graph.jobs()[id];
        if job.depfile.is_none() {
            return Ok(None);
        }
        let mut found = Vec::new();
        for directory in headers::searched(&job.args) {
            let Some(names) = self.headers.names(directory, &self.setting.trees) else { return Ok(None) };
            found.push((format!("names in {directory}"), names));
        }
        self.key_with(id, &found).map(Some)
    }

    /// The key of a job whose inputs are known, with these parts for what else it reads.
    fn key_with(&self, id: JobId, reads: &[(String, String)]) -> anyhow::Result<String> {
        let job = &self.graph.jobs()[id];
        let mut key = Key::new(job.kind.word());
        let tool = self.setting.tools.get(&job.tool);
        key.add("tool", tool.ok_or_else(|| anyhow::anyhow!("no digest of tool {}", job.tool))?);
        for arg in &job.args {
            key.add("arg", arg);
        }
        reads.iter().for_each(|(name, text)| key.add(name, text));
        for (input, blob) in job.inputs.iter().zip(self.input_blobs(id)) {
            let digest = match (&input.source, blob) {
                (Source::Text(text), _) => fs::sha256_of(text.as_bytes()),
                (Source::Output(..), Some(blob)) => blob.sha256,
                (Source::Output(..), None) => {
                    anyhow::bail!("{}: input {} is not made yet", job.label, input.name)
                }
            };
            key.add(&input.name, &digest);
        }
        for output in &job.outputs {
            key.add("output", output);
        }
        Ok(key.finish())
    }

    fn headers_unchanged(&mut self, action: &Action) -> bool {
        action.headers.iter().all(|(path, digest)| {
            if let Some(known) = self.seen.get(path) {
                return known == digest;
            }
            let now = self.setting.digests.sha256(Path::new(path)).unwrap_or_default();
            let same = now == *digest;
            self.seen.insert(path.clone(), now);
            same
        })
    }
}
