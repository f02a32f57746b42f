//! How jobs are found in the cache: their keys, and what is recorded under them.

use super::cache::{Action, Key};
use super::{Coordinator, Setting, headers};
use crate::fs;
use crate::graph::{JobId, Source, Tree};
use std::path::Path;

impl Coordinator<'_> {
    /// The action of a job whose inputs are known, if the cache has it and its bytes are not what is missing.
    pub(super) fn known(&mut self, id: JobId) -> anyhow::Result<Option<Action>> {
        if self.lost.contains(&id) {
            return Ok(None);
        }
        let Setting { cache, trees, .. } = self.setting;
        if let Some(action) = cache.action(&self.keys[id]).filter(|action| self.is_of(id, action)) {
            return Ok(Some(action));
        }
        let Some(names) = self.key_of_names(id)? else { return Ok(None) };
        let found = self.headers.action(&names, cache, trees).filter(|action| self.is_of(id, action));
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
        match self.key_of_names(id)? {
            Some(names) if !read.is_empty() => self.headers.record(&names, read, action, cache, trees),
            _ => Ok(()),
        }
    }

    /// The key of a job whose inputs are known, with the digests of all that it may read.
    pub(super) fn key(&self, id: JobId) -> anyhow::Result<String> {
        let digest = |tree: &Tree| {
            let (_, digest) = self.setting.trees.get(tree)?;
            Some(digest.clone())
        };
        let key = self.key_with(id, "", digest)?;
        key.ok_or_else(|| anyhow::anyhow!("{}: a tree that it reads is not there", self.name(id)))
    }

    /// The key of a job that says which headers it reads, with the names of all that there are; see [`headers`].
    fn key_of_names(&mut self, id: JobId) -> anyhow::Result<Option<String>> {
        let job = &self.graph.jobs()[id];
        if job.depfile.is_none() {
            return Ok(None);
        }
        for tree in &job.trees {
            self.headers.list(*tree, &self.setting.trees);
        }
        self.key_with(id, headers::KIND, |tree| self.headers.names(*tree))
    }

    /// The key of a job whose inputs are known, with a text for each of its trees; nothing where one has none.
    fn key_with(
        &self,
        id: JobId,
        of: &str,
        tree_text: impl Fn(&Tree) -> Option<String>,
    ) -> anyhow::Result<Option<String>> {
        let job = &self.graph.jobs()[id];
        let mut key = Key::new(job.kind.word());
        let tool = self.setting.tools.get(&job.tool);
        key.add("tool", tool.ok_or_else(|| anyhow::anyhow!("no digest of tool {}", job.tool))?);
        for arg in &job.args {
            key.add("arg", arg);
        }
        for tree in &job.trees {
            let Some(text) = tree_text(tree) else { return Ok(None) };
            key.add(tree.link(), &text);
        }
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
        if !of.is_empty() {
            key.add("of", of);
        }
        Ok(Some(key.finish()))
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
