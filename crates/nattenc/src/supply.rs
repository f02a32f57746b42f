//! The toolkit and the sources of a variant, wherever they come from.

use crate::config::{self, Provider, Variant};
use crate::execute::Digests;
use crate::execute::cache::Key;
use crate::execute::process;
use crate::failure::Failure;
use crate::fetch::{self, Target};
use crate::report::{Reporter, Transfers};
use crate::toolkit::{self, Asking, Memo, Supplied, Surroundings, Tool, Toolkit};
use crate::{env, fs};
use std::cell::RefCell;
use std::path::{Path, PathBuf};

/// What may be fetched and used.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Use no network.
    pub offline: bool,
    /// Fetch nothing that nattenc.lock does not pin.
    pub locked: bool,
    /// An installed toolkit that comes before all others.
    pub toolkit: Option<PathBuf>,
}

/// A toolkit, and the digest of all that compiling reads of it.
pub struct Ready {
    /// The toolkit.
    pub toolkit: Toolkit,
    /// Digest of its headers and of what comes with its compilers.
    pub digest: String,
}

/// Where a toolkit is looked for, for one variant.
pub struct Search<'a> {
    /// Whose release is wanted.
    variant: &'a Variant,
    /// All variants, to say which would build here.
    variants: Vec<Variant>,
    /// `--toolkit`.
    toolkit: Option<&'a Path>,
    /// How things are fetched, and where the store is.
    pub fetching: fetch::Options,
    /// The environment.
    pub surroundings: Surroundings,
    /// How files are hashed.
    pub digests: Memo,
}

/// Whether a provider is only asked what it has, or brings it in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Look,
    Fetch,
}

impl<'a> Search<'a> {
    /// The search for `variant`, one of those that `variants` defines. `root` holds nattenc.lock.
    pub fn new(
        root: &Path,
        variants: &Path,
        variant: &'a Variant,
        options: &'a Options,
    ) -> anyhow::Result<Search<'a>> {
        let fetching = fetch_options(root, options)?;
        let digests = Memo::open(&fetching.home);
        Ok(Search {
            variant,
            variants: config::variants(variants)?,
            toolkit: options.toolkit.as_deref(),
            fetching,
            surroundings: Surroundings::read()?,
            digests,
        })
    }

    /// The variant's toolkit, fetched if need be.
    pub fn toolkit(&self, reporter: &dyn Reporter) -> anyhow::Result<Ready> {
        let fetched: RefCell<Option<fetch::Tree>> = RefCell::new(None);
        let supply = |provider: Provider| {
            let (answer, tree) = self.provider(provider, Asked::Fetch, reporter)?;
            *fetched.borrow_mut() = tree;
            Ok(answer)
        };
        let mut toolkit = toolkit::locate(&self.request(&supply))?;
        for warning in &toolkit.warnings {
            reporter.warning(warning);
        }
        self.add_binutils(&mut toolkit)?;
        let tree = fetched.into_inner().filter(|t| fs::real_path(&t.root).is_ok_and(|r| r == toolkit.home));
        let digest = match tree {
            Some(tree) => tree.digest,
            None => installed_digest(&toolkit, &self.digests)?,
        };
        Ok(Ready { toolkit, digest })
    }

    /// What this machine has, without fetching anything.
    pub fn doctor(&self, reporter: &dyn Reporter, directories: &[(&str, &Path)]) -> toolkit::Doctor {
        let supply = |provider: Provider| Ok(self.provider(provider, Asked::Look, reporter)?.0);
        let digests = Asking(&self.digests);
        let request = toolkit::Request { digests: &digests, ..self.request(&supply) };
        toolkit::doctor(&request, directories, Path::new("/"))
    }

    fn request<'s>(
        &'s self,
        supply: &'s dyn Fn(Provider) -> anyhow::Result<Supplied>,
    ) -> toolkit::Request<'s> {
        toolkit::Request {
            toolkit: self.toolkit,
            variant: self.variant,
            variants: &self.variants,
            surroundings: &self.surroundings,
            supply,
            digests: &self.digests,
        }
    }

    fn provider(
        &self,
        provider: Provider,
        asked: Asked,
        reporter: &dyn Reporter,
    ) -> anyhow::Result<(Supplied, Option<fetch::Tree>)> {
        let unavailable = |reason: &str| Ok((Supplied::Unavailable(reason.to_owned()), None));
        let looking = fetch::Options { offline: true, locked: true, ..self.fetching.clone() };
        let options = if asked == Asked::Look { &looking } else { &self.fetching };
        let progress = Transfers(reporter);
        let tree = match provider {
            Provider::Installed => return unavailable("an installed toolkit is looked for, not supplied"),
            Provider::Wheels if self.variant.wheels.is_empty() => {
                return unavailable("the definition has no [wheels]");
            }
            Provider::Wheels => {
                let name = format!("cuda-{}", self.variant.release);
                fetch::wheels(options, &name, &self.variant.wheels, Target::host(), &progress)
            }
            Provider::Redist => {
                let Some(redist) = &self.variant.redist else {
                    return unavailable("the definition has no [redist]");
                };
                let Some(url) =
                    redist.url.clone().map_or_else(|| env::text("NATTENC_REDIST_URL"), |u| Ok(Some(u)))?
                else {
                    return unavailable("NATTENC_REDIST_URL is not set");
                };
                fetch::redist(options, &redist.version, &url, &redist.components, Target::host(), &progress)
            }
        };
        match tree {
            Ok(tree) => Ok((Supplied::Home(tree.root.clone()), Some(tree))),
            Err(_) if asked == Asked::Look => unavailable("not in the store yet; a build fetches it"),
            Err(error) => Err(error),
        }
    }

    /// The assembler, linker and archiver that the host compiler uses: their content is part of keys too.
    fn add_binutils(&self, toolkit: &mut Toolkit) -> anyhow::Result<()> {
        let beside = toolkit.host.path.parent().map(|d| d.display().to_string()).unwrap_or_default();
        let path = format!("{beside}:{}", self.surroundings.path);
        for name in ["as", "ld", "ar"] {
            let found = process::search(name, &path).ok_or_else(|| {
                Failure::toolchain(format!("no {name} beside {} or in PATH", toolkit.host.path.display()))
                    .hint("install binutils")
            })?;
            let sha256 = self.digests.sha256(&fs::real_path(&found)?)?;
            toolkit.tools.insert(name.to_owned(), Tool { path: found, sha256 });
        }
        Ok(())
    }
}

/// The digest of an installed toolkit: its version, headers, device libraries and runtime, by content.
fn installed_digest(toolkit: &Toolkit, digests: &dyn Digests) -> anyhow::Result<String> {
    let mut key = Key::new("toolkit");
    key.add("version", &toolkit.version);
    let libdevice = toolkit.home.join("nvvm/libdevice");
    for root in [toolkit.include.as_path(), &libdevice, toolkit.cudart.path()] {
        if !root.exists() {
            continue;
        }
        // Links are followed: distributions link whole header directories.
        for entry in walkdir::WalkDir::new(root).follow_links(true).sort_by_file_name() {
            let entry = entry.map_err(|e| {
                Failure::toolchain(format!("{}: cannot be read: {e}", root.display()))
                    .hint("repair the toolkit")
            })?;
            if entry.file_type().is_file() {
                let name = entry.path().strip_prefix(root).unwrap_or(entry.path());
                key.add(&name.display().to_string(), &digests.sha256(entry.path())?);
            }
        }
    }
    Ok(key.finish())
}

/// The options of the fetch module: the store, the lock file of `root`.
pub fn fetch_options(root: &Path, options: &Options) -> anyhow::Result<fetch::Options> {
    Ok(fetch::Options {
        home: fetch::store_home()?,
        lock_file: root.join("nattenc.lock"),
        offline: options.offline,
        locked: options.locked,
        python: env::path("NATTENC_PYTHON"),
    })
}
