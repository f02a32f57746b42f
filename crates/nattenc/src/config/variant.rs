//! Variant definitions, `variants/<name>.toml`: a toolkit release, where that toolkit may come from, and
//! what this variant builds differently.

use super::check;
use super::place::{Problems, nearest};
use super::read::{self, At, Table};
use super::{CapabilityEntry, Release};
use crate::failure::Failure;
use crate::fs;
use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;

/// Where a toolkit may come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Provider {
    /// One that the machine has.
    Installed,
    /// NVIDIA's wheels, from the package index that pip is configured for.
    Wheels,
    /// NVIDIA's redistributable archives.
    Redist,
}

const PROVIDERS: &[(&str, Provider)] =
    &[("installed", Provider::Installed), ("wheels", Provider::Wheels), ("redist", Provider::Redist)];

impl FromStr for Provider {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        PROVIDERS.iter().find(|(word, _)| *word == text).map(|(_, provider)| *provider).ok_or_else(|| {
            let words: Vec<&str> = PROVIDERS.iter().map(|(word, _)| *word).collect();
            format!("unknown provider \"{text}\"; {}", super::suggestion(text, &words))
        })
    }
}

impl std::fmt::Display for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Provider::Installed => "installed",
            Provider::Wheels => "wheels",
            Provider::Redist => "redist",
        })
    }
}

/// `[redist]`: which redistributable archives make the toolkit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redist {
    /// `12.9.1` of `redistrib_12.9.1.json`.
    pub version: String,
    /// The components of that manifest.
    pub components: Vec<String>,
    /// The address of the directory that holds the manifest; else `NATTENC_REDIST_URL`.
    pub url: Option<String>,
}

/// One variant definition.
#[derive(Debug, Clone)]
pub struct Variant {
    /// `cu130`: the file's name.
    pub name: String,
    /// The toolkit release.
    pub release: Release,
    /// Where the toolkit may come from, in order of preference.
    pub providers: Vec<Provider>,
    /// `[wheels]`: project and version.
    pub wheels: BTreeMap<String, String>,
    /// `[redist]`.
    pub redist: Option<Redist>,
    /// `served-by`: the variant of the same CUDA major whose artifact a release has in its place.
    pub served_by: Option<String>,
    /// `[section.<name>] cuda-capabilities`: in place of build.toml's.
    pub capabilities: BTreeMap<String, Vec<CapabilityEntry>>,
}

/// All variants of a directory, by release.
pub fn variants(dir: &Path) -> anyhow::Result<Vec<Variant>> {
    let mut found = Vec::new();
    for path in fs::list(dir)? {
        let name = path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned);
        if let (Some(name), true) = (name, path.extension().is_some_and(|e| e == "toml")) {
            found.push(parse(&name, &path, &fs::read_text(&path)?)?);
        }
    }
    found.sort_by(|a, b| (a.release, &a.name).cmp(&(b.release, &b.name)));
    Ok(found)
}

/// The variant of that name.
pub fn variant(dir: &Path, name: &str) -> anyhow::Result<Variant> {
    let mut names: Vec<String> = Vec::new();
    for path in fs::list(dir)? {
        if let (Some(stem), true) = (path.file_stem(), path.extension().is_some_and(|e| e == "toml")) {
            names.push(stem.to_string_lossy().into_owned());
        }
    }
    if names.iter().any(|n| n == name) {
        let path = dir.join(format!("{name}.toml"));
        return parse(name, &path, &fs::read_text(&path)?);
    }
    let list = names.join(" ");
    let near = nearest(name, names.iter().map(String::as_str));
    let meant = near.map(|n| format!("did you mean \"{n}\"? ")).unwrap_or_default();
    Err(Failure::config(format!("unknown variant \"{name}\"; {meant}known: {list}"))
        .hint(format!("name one of these, or define it in {}", dir.join("<name>.toml").display()))
        .into())
}

fn parse(name: &str, path: &Path, text: &str) -> anyhow::Result<Variant> {
    let mut problems = Problems::new(path, text);
    let document = read::document(&mut problems, text)?;
    let root = Table::root(path, &document, &problems);
    if !read::edition(&root, &mut problems) {
        problems.finish()?;
    }
    check::name("variant", &At { value: name.to_owned(), at: root.at.clone() }, &mut problems);
    root.only(
        &["edition", "toolkit", "providers", "wheels", "redist", "served-by", "section"],
        &mut problems,
    );
    root.require("toolkit", "toolkit = \"13.0\"", &mut problems);
    root.require("providers", "providers = [\"installed\"]", &mut problems);
    let release = root.parsed::<Release>("toolkit", &mut problems);
    // A name that reads as a release must be that release.
    let numbered = name.strip_prefix("cu").is_some_and(|rest| rest.parse::<u32>().is_ok());
    if let Some(release) = release.as_ref().filter(|release| numbered && release.value.variant() != name) {
        let message = format!("toolkit is \"{}\", but the variant is called {name}", release.value);
        problems.add(release.at.clone(), message);
    }
    let providers = providers(&root, &mut problems);
    let toolkit = release.as_ref().map(|r| r.value);
    let wheels = wheels(&root, toolkit, &mut problems);
    let redist = redist(&root, toolkit, &mut problems);
    let served_by = root.string("served-by", &mut problems);
    if let Some(server) = &served_by {
        check::name("served-by", server, &mut problems);
    }
    let mut capabilities = BTreeMap::new();
    for (section, table) in root.tables("section", &mut problems) {
        table.only(&["cuda-capabilities"], &mut problems);
        let at = table.place("cuda-capabilities", &problems);
        table.require("cuda-capabilities", "cuda-capabilities = [\"9.0\"]", &mut problems);
        if let Some(entries) = table.capabilities("cuda-capabilities", &mut problems) {
            check::capabilities(&section.value, &check::Gate::default(), &entries, &at, &mut problems);
            capabilities.insert(section.value, entries);
        }
    }
    problems.finish()?;
    Ok(Variant {
        name: name.to_owned(),
        release: release.map_or(Release::new(0, 0), |r| r.value),
        providers: providers.into_iter().map(|p| p.value).collect(),
        wheels,
        redist,
        served_by: served_by.map(|server| server.value),
        capabilities,
    })
}

/// The providers, each of which must be described and no other may be.
fn providers(root: &Table<'_, '_>, problems: &mut Problems<'_>) -> Vec<At<Provider>> {
    let list = root.parsed_list::<Provider>("providers", problems);
    check::not_empty("providers", list.as_ref(), root.place("providers", problems), problems);
    let list = list.unwrap_or_default();
    for (i, provider) in list.iter().enumerate() {
        if let Some(first) = list[..i].iter().find(|p| p.value == provider.value) {
            let message = format!("provider \"{}\" is already listed at {}", provider.value, first.at);
            problems.add(provider.at.clone(), message);
        }
    }
    for (provider, key) in [(Provider::Wheels, "wheels"), (Provider::Redist, "redist")] {
        match (list.iter().find(|p| p.value == provider), root.has(key)) {
            (Some(listed), false) => {
                problems
                    .add(listed.at.clone(), format!("provider \"{key}\" is listed, but there is no [{key}]"));
            }
            (None, true) => {
                let message = format!("[{key}] has no effect: \"{key}\" is not in providers");
                problems.add(root.place(key, problems), message);
            }
            _ => {}
        }
    }
    list
}

/// Reports a version that is none, or that is not of the variant's release.
fn of_release(what: &str, version: &At<String>, release: Option<Release>, problems: &mut Problems<'_>) {
    match version.value.parse::<Release>() {
        Err(_) => {
            let message = format!("{what}: \"{}\" is not a version; write it as \"13.0.88\"", version.value);
            problems.add(version.at.clone(), message);
        }
        Ok(found) => {
            if let Some(wanted) = release.filter(|wanted| *wanted != found) {
                let message =
                    format!("{what}: \"{}\" is of cuda {found}, but toolkit is \"{wanted}\"", version.value);
                problems.add(version.at.clone(), message);
            }
        }
    }
}

fn wheels(
    root: &Table<'_, '_>,
    release: Option<Release>,
    problems: &mut Problems<'_>,
) -> BTreeMap<String, String> {
    let mut wheels = BTreeMap::new();
    let Some(table) = root.table("wheels", problems) else { return wheels };
    for (project, version) in table.string_map(problems) {
        of_release(&project, &version, release, problems);
        wheels.insert(project, version.value);
    }
    for project in ["nvidia-cuda-nvcc", "nvidia-cuda-runtime"] {
        table.require(project, &format!("{project} = \"13.0.88\""), problems);
    }
    wheels
}

fn redist(root: &Table<'_, '_>, release: Option<Release>, problems: &mut Problems<'_>) -> Option<Redist> {
    let table = root.table("redist", problems)?;
    table.only(&["version", "components", "url"], problems);
    table.require("version", "version = \"12.9.1\"", problems);
    table.require("components", "components = [\"cuda_nvcc\", \"cuda_cudart\"]", problems);
    let version = table.string("version", problems);
    if let Some(version) = &version {
        of_release("version", version, release, problems);
    }
    let components = table.strings("components", problems).unwrap_or_default();
    for component in ["cuda_nvcc", "cuda_cudart"] {
        if table.has("components") && !components.iter().any(|c| c.value == component) {
            let message = format!("components lacks \"{component}\", without which nothing compiles");
            problems.add(table.place("components", problems), message);
        }
    }
    let url = table.string("url", problems);
    Some(Redist {
        version: version?.value,
        components: components.into_iter().map(|c| c.value).collect(),
        url: url.map(|u| u.value),
    })
}
