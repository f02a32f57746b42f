//! Which toolkits there are and which one is taken. The order: `--toolkit`; then the variant's providers as
//! its definition lists them, where `installed` stands for CUDA_HOME, CUDA_PATH, /usr/local/cuda-X.Y and
//! nvcc of PATH, in this order. What was named explicitly and is broken is an error, never passed over.

use super::layout::{self, Parts};
use super::surroundings::{Surroundings, directory};
use super::version::Version;
use super::{Digests, Toolkit, complete, host};
use crate::config::{Provider, Variant, release};
use crate::execute::process;
use crate::failure::Failure;
use crate::fs;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a provider other than `installed` answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Supplied {
    /// The toolkit lies here.
    Home(PathBuf),
    /// It cannot be had, and why.
    Unavailable(String),
}

/// What is looked for, and where.
pub struct Request<'a> {
    /// `--toolkit`.
    pub toolkit: Option<&'a Path>,
    /// Whose release is wanted.
    pub variant: &'a Variant,
    /// All variants, to say which would build here.
    pub variants: &'a [Variant],
    /// The environment.
    pub surroundings: &'a Surroundings,
    /// The provider `wheels` or `redist` of the variant: fetches in [`locate`], only looks where `nattenc doctor` asks.
    pub supply: &'a dyn Fn(Provider) -> anyhow::Result<Supplied>,
    /// How files are hashed.
    pub digests: &'a dyn Digests,
}

/// What became of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It is used.
    Taken,
    /// It would do, but another comes first.
    Later,
    /// It is of another release.
    OtherRelease,
    /// It cannot be used.
    Broken,
    /// There is none.
    Absent,
}

/// One place where a toolkit could be.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Candidate {
    /// What leads to it.
    pub origin: String,
    /// Where it is.
    pub home: Option<PathBuf>,
    /// What it is.
    pub version: Option<Version>,
    /// The release of each of its parts, where they were looked at.
    pub parts: BTreeMap<String, String>,
    /// What became of it.
    pub outcome: Outcome,
    /// Why.
    pub reason: String,
}

/// A place before anything was looked at.
enum Place {
    /// Named by the user: broken is an error.
    Explicit(String, PathBuf),
    /// Found by looking.
    Found(String, PathBuf),
    /// To be had from a provider.
    Supply(Provider),
    /// Nothing there, and why.
    Absent(String, String),
}

/// All places in order. Fails on a malformed environment variable, even where another toolkit comes first:
/// whatever was meant by it did not happen.
fn places(request: &Request<'_>) -> anyhow::Result<Vec<Place>> {
    let mut places = Vec::new();
    if let Some(home) = request.toolkit {
        places.push(Place::Explicit("--toolkit".to_owned(), home.to_path_buf()));
    }
    let installed = installed(request)?;
    // A variant without `installed` can still be pointed at a toolkit, but does not look for one.
    for provider in &request.variant.providers {
        match provider {
            Provider::Installed => break,
            other => places.push(Place::Supply(*other)),
        }
    }
    if request.variant.providers.contains(&Provider::Installed) {
        places.extend(installed);
    }
    let after = request.variant.providers.iter().skip_while(|p| **p != Provider::Installed).skip(1);
    places.extend(after.map(|provider| Place::Supply(*provider)));
    Ok(places)
}

fn installed(request: &Request<'_>) -> anyhow::Result<Vec<Place>> {
    let around = request.surroundings;
    let mut places = Vec::new();
    for (name, value) in [("CUDA_HOME", &around.cuda_home), ("CUDA_PATH", &around.cuda_path)] {
        places.push(match value {
            Some(value) => Place::Explicit(name.to_owned(), directory(name, value)?),
            None => Place::Absent(name.to_owned(), "not set".to_owned()),
        });
    }
    // The wanted release first, then the others, so that a failure can list them.
    let wanted = around.local.join(format!("cuda-{}", request.variant.release));
    let mut local: Vec<PathBuf> = if around.local.is_dir() { fs::list(&around.local)? } else { Vec::new() };
    local.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name == "cuda" || name.starts_with("cuda-")
    });
    local.sort_by_key(|path| *path != wanted);
    if local.first() != Some(&wanted) {
        places.push(Place::Absent(wanted.display().to_string(), "not there".to_owned()));
    }
    places.extend(local.into_iter().map(|path| Place::Found(path.display().to_string(), path)));
    places.push(match process::search("nvcc", &around.path).as_deref().and_then(home_of) {
        Some(home) => Place::Found("PATH".to_owned(), home),
        None => Place::Absent("PATH".to_owned(), "no nvcc".to_owned()),
    });
    Ok(places)
}

/// The home of an nvcc found in PATH, through links.
fn home_of(nvcc: &Path) -> Option<PathBuf> {
    let real = fs::real_path(nvcc).ok()?;
    Some(real.parent()?.parent()?.to_path_buf())
}

/// A candidate, with its parts where it would do, or its error where it is broken.
fn look(
    origin: &str,
    home: &Path,
    seen: &[Candidate],
    request: &Request<'_>,
) -> (Candidate, anyhow::Result<Option<Parts>>) {
    let mut candidate = Candidate {
        origin: origin.to_owned(),
        home: Some(home.to_path_buf()),
        version: None,
        parts: BTreeMap::new(),
        outcome: Outcome::Broken,
        reason: String::new(),
    };
    let account = layout::nvcc(home).and_then(|nvcc| request.digests.account(&nvcc, request.surroundings));
    let account = match account {
        Ok(account) => account,
        Err(error) => {
            candidate.reason = error.to_string();
            return (candidate, Err(error));
        }
    };
    let version = &account.version;
    let (variant, release) = (&request.variant.name, request.variant.release);
    candidate.version = Some(version.clone());
    let same = |other: &&Candidate| {
        other.home.as_deref().is_some_and(|o| fs::real_path(o).ok() == fs::real_path(home).ok())
    };
    if let Some(other) = seen.iter().find(same) {
        candidate.outcome = if other.outcome == Outcome::Taken { Outcome::Later } else { other.outcome };
        candidate.parts.clone_from(&other.parts);
        candidate.reason = format!("the same as {}", other.origin);
        return (candidate, Ok(None));
    }
    if version.release != release {
        candidate.outcome = Outcome::OtherRelease;
        candidate.reason = format!("is cuda {}, {variant} needs {release}", version.full);
        return (candidate, Ok(None));
    }
    let checked =
        release::known(version.release).and_then(|_| layout::parts(home, &account, request.digests));
    let error = match checked {
        Ok(parts) => {
            candidate.parts.clone_from(&parts.versions);
            match parts.agree(origin) {
                Ok(()) => {
                    candidate.outcome = Outcome::Taken;
                    candidate.reason = format!("is cuda {}", version.full);
                    return (candidate, Ok(Some(parts)));
                }
                Err(error) => error,
            }
        }
        Err(error) => error,
    };
    candidate.reason = error.to_string();
    (candidate, Err(error))
}

fn absent(origin: String, reason: String) -> Candidate {
    Candidate { origin, home: None, version: None, parts: BTreeMap::new(), outcome: Outcome::Absent, reason }
}

/// Every candidate, in order, and what would become of it, with the parts of the one that is taken. A malformed
/// environment variable is a candidate too.
pub(super) fn candidates(request: &Request<'_>) -> (Vec<Candidate>, Option<Parts>) {
    let mut seen: Vec<Candidate> = Vec::new();
    let mut taken = None;
    let places = match places(request) {
        Ok(places) => places,
        Err(error) => {
            let broken = absent("environment".to_owned(), error.to_string());
            return (vec![Candidate { outcome: Outcome::Broken, ..broken }], None);
        }
    };
    for place in places {
        let mut parts = None;
        let mut looked = |origin: &str, home: &Path| {
            let (candidate, found) = look(origin, home, &seen, request);
            parts = found.unwrap_or_default();
            candidate
        };
        let mut candidate = match place {
            Place::Absent(origin, reason) => absent(origin, reason),
            Place::Explicit(origin, home) | Place::Found(origin, home) => looked(&origin, &home),
            Place::Supply(provider) => match (request.supply)(provider) {
                Ok(Supplied::Home(home)) => looked(&provider.to_string(), &home),
                Ok(Supplied::Unavailable(reason)) => absent(provider.to_string(), reason),
                Err(error) => Candidate {
                    outcome: Outcome::Broken,
                    ..absent(provider.to_string(), format!("{error:#}"))
                },
            },
        };
        let first =
            seen.iter().find(|other| other.outcome == Outcome::Taken).map(|other| other.origin.clone());
        if let (Outcome::Taken, Some(first)) = (candidate.outcome, first) {
            candidate.outcome = Outcome::Later;
            candidate.reason = format!("{}, but {first} comes first", candidate.reason);
        }
        taken = taken.or(parts);
        seen.push(candidate);
    }
    (seen, taken)
}

/// The toolkit to build with. Its release is the variant's; a failure lists every candidate with its reason.
pub fn locate(request: &Request<'_>) -> anyhow::Result<Toolkit> {
    // One failure for the host compiler, not one per toolkit.
    let host = host::find(request.surroundings)?;
    let mut seen: Vec<Candidate> = Vec::new();
    for place in places(request)? {
        let (origin, home, explicit) = match place {
            Place::Absent(origin, reason) => {
                seen.push(absent(origin, reason));
                continue;
            }
            Place::Explicit(origin, home) => (origin, home, true),
            Place::Found(origin, home) => (origin, home, false),
            Place::Supply(provider) => match (request.supply)(provider)? {
                Supplied::Home(home) => (provider.to_string(), home, true),
                Supplied::Unavailable(reason) => {
                    seen.push(absent(provider.to_string(), reason));
                    continue;
                }
            },
        };
        let (candidate, parts) = look(&origin, &home, &seen, request);
        seen.push(candidate);
        match parts {
            Ok(Some(parts)) => return complete(parts, &origin, host, request.surroundings, request.digests),
            Err(error) if explicit => {
                let hint = error.downcast_ref::<Failure>().and_then(|failure| failure.hint.clone());
                let class = crate::failure::class(&error);
                return Err(Failure { hint, ..Failure::new(class, format!("{origin}: {error}")) }.into());
            }
            Ok(None) | Err(_) => {}
        }
        if origin == "--toolkit" {
            break;
        }
    }
    Err(none(request, &seen).into())
}

/// The failure when no candidate will do: what was seen, how to get the release, what would build here now.
fn none(request: &Request<'_>, seen: &[Candidate]) -> Failure {
    let (variant, release) = (request.variant, request.variant.release);
    let mut lines =
        vec![format!("no toolkit of cuda {release} for variant {}", variant.name), "  seen:".to_owned()];
    for candidate in seen {
        let home = match &candidate.home {
            Some(home) if !candidate.origin.contains('/') => format!(" {}", home.display()),
            _ => String::new(),
        };
        lines.push(format!("    {}{home}: {}", candidate.origin, candidate.reason.replace('\n', "\n      ")));
    }
    let mut ways = vec![format!("install cuda {release} and point --toolkit or CUDA_HOME at it")];
    if let Some(redist) = &variant.redist {
        ways.push(format!(
            "set NATTENC_REDIST_URL to the directory that holds redistrib_{}.json",
            redist.version
        ));
    }
    lines.push(format!("  to get cuda {release}: {}", ways.join(", or ")));
    let builds = buildable(request, seen);
    lines.push(if builds.is_empty() {
        "  no variant would build here now".to_owned()
    } else {
        format!(
            "  would build here now: {}",
            builds.iter().map(|(name, how)| format!("{name} ({how})")).collect::<Vec<_>>().join(", ")
        )
    });
    let hint = match builds.first() {
        Some((name, _)) => format!("{}; or build another variant: --variant {name}", ways[0]),
        None => ways[0].clone(),
    };
    Failure::toolchain(lines.join("\n")).hint(hint)
}

/// The variants that would build with what was seen, and how: by a toolkit that is here, or from wheels.
pub(super) fn buildable(request: &Request<'_>, seen: &[Candidate]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for variant in request.variants {
        let here = variant.providers.contains(&Provider::Installed).then(|| {
            seen.iter().find(|candidate| {
                matches!(candidate.outcome, Outcome::Taken | Outcome::Later | Outcome::OtherRelease)
                    && candidate.version.as_ref().is_some_and(|v| v.release == variant.release)
            })
        });
        if variant.providers.contains(&Provider::Wheels) {
            found.push((variant.name.clone(), "wheels from the package index".to_owned()));
        } else if let Some(home) = here.flatten().and_then(|candidate| candidate.home.as_ref()) {
            found.push((variant.name.clone(), home.display().to_string()));
        }
    }
    // The newest release first: it is the one to suggest.
    let release = |name: &str| request.variants.iter().find(|v| v.name == name).map(|v| v.release);
    found.sort_by_key(|(name, _)| std::cmp::Reverse(release(name)));
    found
}
