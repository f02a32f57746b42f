//! A change of the pinned NATTEN: what it means, and the three files that say it.
//!
//! `autogen.lock` is renamed into place first, then `nattenc.lock`, then `build.toml`, whose version is what
//! counts. Cut short between two of them, autogen.lock names another version than build.toml: `regen --check`
//! says so, and the same command again makes the rest of the change.

use super::generators::Generated;
use super::oracle;
use super::record::{self, Record};
use super::upstream::{self, Version};
use crate::config::Config;
use crate::failure::Failure;
use crate::{catalog, fetch, fs};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use toml_edit::Document;

/// What a bump came to, or would come to where the tables do not cover the new version.
#[derive(Debug, Serialize)]
pub struct Bump {
    schema_version: u32,
    /// What is different upstream.
    pub upstream: upstream::Report,
    /// The tables against the new version's generators.
    pub oracle: oracle::Report,
    /// Whether neither upstream's generators nor ours write anything else than before.
    pub no_generated_file_changes: bool,
    /// Files that were written; none where the tables do not cover the new version.
    pub written: Vec<String>,
}

/// What a bump needs to know.
pub struct Request<'a> {
    /// The directory of the three files.
    pub root: &'a Path,
    /// What build.toml says.
    pub config: &'a Config,
    /// How sources are fetched.
    pub fetching: &'a fetch::Options,
    /// The interpreter for upstream's scripts.
    pub python: &'a Path,
}

/// The report of two versions, neither of which is pinned by it.
pub fn compare(
    request: &Request<'_>,
    [old, new]: [&str; 2],
    progress: &dyn fetch::Progress,
) -> anyhow::Result<upstream::Report> {
    let trees = [request.sources(old, progress)?, request.sources(new, progress)?];
    let generated = [request.generated(&trees[0])?, request.generated(&trees[1])?];
    let version = |natten, tree: &'_ fetch::Tree| (natten, tree.root.clone());
    let (old, new) = (version(old, &trees[0]), version(new, &trees[1]));
    let [old, new] = [&old, &new].map(|(natten, root)| Version { natten, root });
    upstream::compare(&old, &new, generated.each_ref())
}

impl Request<'_> {
    /// The sources of a version; pinned in nattenc.lock only where build.toml names it.
    fn sources(&self, version: &str, progress: &dyn fetch::Progress) -> anyhow::Result<fetch::Tree> {
        if version == self.config.natten {
            fetch::natten(self.fetching, version, progress)
        } else {
            fetch::natten_apart(self.fetching, version, progress)
        }
    }

    fn generated(&self, tree: &fetch::Tree) -> anyhow::Result<Generated> {
        Generated::new(&tree.root, self.python)
    }
}

/// Makes `version` the pinned one where the tables cover it; else only says what is missing.
pub fn bump(request: &Request<'_>, version: &str, progress: &dyn fetch::Progress) -> anyhow::Result<Bump> {
    let old = request.sources(&request.config.natten, progress)?;
    let new = request.sources(version, progress)?;
    let generated = [request.generated(&old)?, request.generated(&new)?];
    let report = upstream::compare(
        &Version { natten: &request.config.natten, root: &old.root },
        &Version { natten: version, root: &new.root },
        generated.each_ref(),
    )?;
    let oracle = oracle::compare_generated(version, &generated[1])?;
    let mut bump = Bump {
        schema_version: 1,
        no_generated_file_changes: false,
        upstream: report,
        oracle,
        written: Vec::new(),
    };
    if bump.oracle.differences.is_empty() {
        let _held = fetch::hold_lock(request.fetching)?;
        let Files { contents, unchanged } = files(request, version, &new)?;
        bump.no_generated_file_changes = unchanged && bump.upstream.generated.differ.is_empty();
        let written = fs::write_together(&contents)?;
        let name = |path: &PathBuf| path.file_name().map(|n| n.to_string_lossy().into_owned());
        bump.written = written.iter().filter_map(name).collect();
    }
    Ok(bump)
}

/// The three files as they are to be.
struct Files {
    /// In the order in which they are put in place.
    contents: Vec<(PathBuf, Vec<u8>)>,
    /// Whether the record of rendered files stays as it is.
    unchanged: bool,
}

fn files(request: &Request<'_>, version: &str, new: &fetch::Tree) -> anyhow::Result<Files> {
    let catalog = catalog::catalog()?;
    let record = Record::new(version, catalog, &record::renderings(catalog)?)?;
    let at = request.root.join(record::FILE);
    let mut unchanged = true;
    if let Some(old) = Record::load(&at)? {
        let broken = old.broken_promises(&record);
        if !broken.is_empty() {
            return Err(super::breaks(&old, &broken).into());
        }
        unchanged = old.drift(&record).is_nothing();
    }
    let build = &request.config.path;
    let text = with_version(build, &fs::read_text(build)?, version)?;
    let lock = fetch::lock_with_natten(request.fetching, new)?;
    let contents = vec![
        (at, record.text().into_bytes()),
        (request.fetching.lock_file.clone(), lock),
        (fs::real_path(build)?, text.into_bytes()),
    ];
    Ok(Files { contents, unchanged })
}

/// build.toml with another version of natten and everything else as it was.
fn with_version(path: &Path, text: &str, version: &str) -> anyhow::Result<String> {
    let cannot = |why: String| {
        Failure::config(format!("{}: cannot be edited: {why}", path.display()))
            .hint(format!("write natten = \"{version}\" into [upstream] by hand, then run the same again"))
    };
    let document = Document::parse(text).map_err(|error| cannot(error.to_string()))?;
    let value = document.get("upstream").and_then(|upstream| upstream.get("natten"));
    let place = value.and_then(toml_edit::Item::span);
    let place = place.ok_or_else(|| cannot("no natten in [upstream]".to_owned()))?;
    if value.and_then(toml_edit::Item::as_str) == Some(version) {
        return Ok(text.to_owned());
    }
    // Only these bytes: comments, order and line ends are the user's.
    Ok(format!("{}\"{version}\"{}", &text[..place.start], &text[place.end..]))
}

impl Bump {
    /// The report, the comparison, and what was written.
    pub fn text(&self) -> String {
        let mut lines = vec![self.upstream.text(), "kernel tables:".to_owned(), self.oracle.summary()];
        if !self.oracle.differences.is_empty() {
            let mut seen = BTreeSet::new();
            for difference in &self.oracle.differences {
                let (Some(kernel), Some(family)) = (&difference.kernel, &difference.family) else { continue };
                let what = match difference.kind {
                    oracle::Kind::Missing => "missing",
                    oracle::Kind::Extra => "extra",
                    oracle::Kind::Classes => "other arguments",
                    oracle::Kind::Guard => "other SM range",
                    _ => continue,
                };
                if seen.insert((what, family, kernel)) {
                    lines.push(format!("  {what:<15} {family} {kernel}"));
                }
            }
            lines.push("nothing was changed".to_owned());
            return lines.join("\n");
        }
        if self.no_generated_file_changes {
            lines.push("no generated file changes".to_owned());
        }
        lines.push(if self.written.is_empty() {
            "everything is as it was".to_owned()
        } else {
            format!("written: {}", self.written.join(", "))
        });
        lines.join("\n")
    }

    /// Class integrity where the tables do not cover the new version.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.oracle.differences.is_empty() {
            return Ok(());
        }
        Err(Failure::integrity(format!(
            "the kernel tables do not cover natten {}: {} differences; nothing was changed",
            self.upstream.new,
            self.oracle.differences.len()
        ))
        .hint(format!(
            "edit templates/cuda/<family>/instances.toml and its template until `nattenc regen --oracle --natten {}` is equal",
            self.upstream.new
        ))
        .into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_version_in_build_toml_changes() {
        let text = "# top\nedition = 1\n\n[upstream] # why\n  natten   = \"0.21.7\"   # pinned\n\n[a]\nb = { c = 1 } # x\n";
        let there = with_version(Path::new("build.toml"), text, "0.21.6").unwrap();
        assert_eq!(there, text.replace("0.21.7", "0.21.6"));
        assert_eq!(with_version(Path::new("build.toml"), &there, "0.21.7").unwrap(), text);
        assert_eq!(with_version(Path::new("build.toml"), text, "0.21.7").unwrap(), text);
        let odd = "upstream.natten = '''0.21.7''' #x\r\nedition=1\r\n";
        let there = with_version(Path::new("build.toml"), odd, "0.21.6").unwrap();
        assert_eq!(there, "upstream.natten = \"0.21.6\" #x\r\nedition=1\r\n");
        for broken in ["[upstream]\n", "[upstream", "natten = \"1\""] {
            let error = with_version(Path::new("build.toml"), broken, "0.21.6").unwrap_err();
            assert!(error.to_string().contains("build.toml"), "{error}");
        }
    }
}
