//! The order of the phases, and the only file that knows it.
//!
//! configuration and request, then toolkit and sources, then plan, generated text, graph, execution,
//! artifact.

mod record;
mod shard;
mod share;

pub use record::history;
pub use shard::{Shard, read as read_shard, together as check_shards};
pub use share::{Proof, ProofOptions, prove_sharing};

use crate::bounded::PATIENCE;
use crate::catalog;
use crate::config::{self, Config, Variant};
use crate::cost;
use crate::cutlass;
use crate::execute::cache::{Blob, Cache, Key};
use crate::execute::process::{self, CommandLine};
use crate::execute::upkeep::{Bounds, Upkeep};
use crate::execute::{self, How, Limits, Setting};
use crate::failure::{Class, Failure};
use crate::fetch::{self, Target};
use crate::fs;
use crate::generate;
use crate::graph::{Graph, JobId, Tree, compile, dryrun};
use crate::link;
use crate::package::{self, Packaged, manifest};
use crate::plan::capability::Capability;
use crate::plan::shard::Position;
use crate::plan::{self, Plan, Request};
use crate::report::{self, Reporter};
use crate::supply::{self, Ready};
use crate::toolkit::{self, Cudart, Surroundings, Toolkit};
use crate::verify;
use rayon::prelude::*;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

/// A checkout: the directory of build.toml, and what it says.
pub struct Project {
    /// The directory of build.toml; `variants/`, `build/` and `dist/` lie beside it.
    pub root: PathBuf,
    /// What build.toml says.
    pub config: Config,
}

impl Project {
    /// Reads `file`, or the build.toml of the nearest directory above `from` that has one.
    pub fn open(file: Option<&Path>, from: &Path) -> anyhow::Result<Project> {
        let path = match file {
            Some(path) => path.to_path_buf(),
            None => {
                from.ancestors().map(|d| d.join("build.toml")).find(|p| p.is_file()).ok_or_else(|| {
                    Failure::config(format!("no build.toml in {} or above it", from.display()))
                        .hint("run nattenc inside a checkout, or name the file with --config")
                })?
            }
        };
        let config = config::load(&path)?;
        let root = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(Project { root: fs::real_path(root)?, config })
    }

    /// Where variant definitions are.
    pub fn variants_dir(&self) -> PathBuf {
        self.root.join("variants")
    }

    /// The variant of that name, or the default one.
    pub fn variant(&self, name: Option<&str>) -> anyhow::Result<Variant> {
        config::variant(&self.variants_dir(), name.unwrap_or(&self.config.default_variant))
    }

    /// The search for a variant's toolkit.
    pub fn search<'a>(
        &self,
        variant: &'a Variant,
        options: &'a supply::Options,
    ) -> anyhow::Result<supply::Search<'a>> {
        supply::Search::new(&self.root, &self.variants_dir(), variant, options)
    }

    /// The CUTLASS headers that build.toml names instead of those inside the sources, of a version that it
    /// allows; fetched if need be.
    pub fn cutlass(
        &self,
        fetching: &fetch::Options,
        reporter: &dyn Reporter,
    ) -> anyhow::Result<Option<cutlass::Replacement>> {
        let found = cutlass::replacement(&self.config, &self.root, fetching, &report::Transfers(reporter))?;
        if let Some(other) = &found {
            reporter.phase(&format!("CUTLASS {} instead of the one inside natten's sources", other.version));
        }
        Ok(found)
    }

    /// Where a variant's artifact goes.
    pub fn dist(&self, variant: &str) -> PathBuf {
        self.root.join("dist").join(variant)
    }

    /// Where a variant is built.
    pub fn build_dir(&self, variant: &str) -> PathBuf {
        self.root.join("build").join(variant)
    }
}

/// How a build runs.
#[derive(Debug, Clone)]
pub struct Options {
    /// What is built.
    pub request: Request,
    /// From what.
    pub supply: supply::Options,
    /// Within which limits.
    pub limits: Limits,
    /// Who says how much memory there is.
    pub memory_source: String,
    /// Where the artifact or the shard goes, if not to `dist/<variant>` or beside that.
    pub dist: Option<PathBuf>,
    /// What is made of the plan's units.
    pub part: Part,
}

/// What a build makes of its plan.
#[derive(Debug, Clone)]
pub enum Part {
    /// All units, linked: an artifact.
    Whole,
    /// Some units: a shard.
    Shard {
        /// Which of how many.
        position: Position,
        /// The request as the command line has it.
        selection: serde_json::Value,
    },
    /// An artifact of what these hold; no unit is compiled.
    Merged(Vec<Shard>),
}

/// What a build came to.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Summary {
    /// The variant.
    pub variant: String,
    /// Where its artifact is.
    pub dist: PathBuf,
    /// Units in it.
    pub units: usize,
    /// Kernels in it.
    pub kernels: usize,
    /// Jobs of the graph.
    pub jobs: usize,
    /// Jobs whose command ran.
    pub ran: usize,
    /// Jobs whose outputs were in the cache.
    pub cached: usize,
    /// Wall seconds, fetching included.
    pub wall: f64,
    /// CPU seconds of the jobs that ran.
    pub cpu: f64,
    /// Largest resident set of one job that ran, bytes.
    pub peak_job_memory: u64,
    /// Which job that was.
    pub peak_job: String,
    /// The most that jobs which ran at once were seen to hold together, bytes; sampled.
    pub peak_memory: u64,
    /// Whether the artifact that was there was this very one.
    pub unchanged: bool,
}

/// Everything that makes the plan's artifact, or the part of it that `options` name, run to the end.
pub fn build(
    project: &Project,
    variant: &Variant,
    options: &Options,
    reporter: &dyn Reporter,
) -> anyhow::Result<Summary> {
    let begun = Instant::now();
    let catalog = catalog::catalog()?;
    // Planned first without a toolkit: a request that cannot be met must not fetch anything.
    let first = plan::plan(&project.config, variant, None, &options.request, catalog)?;

    let default = project.dist(&variant.name);
    let (default, manifest_name) = match &options.part {
        Part::Shard { position, .. } => {
            shard::units(&first, *position)?;
            (shard::dist(&default, *position), shard::MANIFEST)
        }
        Part::Whole | Part::Merged(_) => (default, package::MANIFEST),
    };
    let dist = options.dist.clone().unwrap_or(default);
    package::may_replace(&dist, manifest_name)?;

    let search = project.search(variant, &options.supply)?;
    let (fetching, digests) = (&search.fetching, &search.digests);
    let cutlass = project.cutlass(fetching, reporter)?;
    let ready = search.toolkit(reporter)?;
    let toolkit = &ready.toolkit;
    let sources = fetch::natten(fetching, &project.config.natten, &report::Transfers(reporter))?;
    let mut plan =
        plan::plan(&project.config, variant, Some(&toolkit.capabilities), &options.request, catalog)?;
    for warning in &plan.warnings {
        reporter.warning(warning);
    }

    let build_dir = project.build_dir(&variant.name);
    let _lock = lock(&build_dir)?;
    // Compilers of a build that was killed may still run, and write where they were started.
    fs::discard(&build_dir.join("scratch"))?;
    let natten = sources.digest.clone();
    let sources = match &cutlass {
        None => sources,
        Some(other) => cutlass::laid_over(sources, other, &build_dir, digests)?,
    };
    let cache = Cache::new(&fetching.home, &build_dir);
    let parts = Parts::new(&ready, &sources, &build_dir)?;
    let mut texts = unit_texts(&plan)?;
    let inputs = record::Inputs::of(&plan, &texts, toolkit, &parts.trees, &parts.tools);
    match &options.part {
        Part::Whole => {}
        Part::Shard { position, .. } => {
            let own = shard::units(&plan, *position)?;
            let all = std::mem::take(&mut plan.units).into_iter().zip(texts);
            (plan.units, texts) = all.filter(|(unit, _)| own.contains(&unit.label())).unzip();
        }
        Part::Merged(shards) => shard::import(shards, &plan, &inputs, &cache)?,
    }
    let texts = render(&plan, texts, toolkit, &build_dir)?;
    let signal = watch_signals()?;
    let merging = matches!(options.part, Part::Merged(_));
    let setting = Setting {
        home: fetching.home.clone(),
        scratch: build_dir.join("scratch"),
        logs: build_dir.join("logs"),
        cache: &cache,
        trees: parts.trees,
        tools: parts.tools,
        env: parts.env,
        digests,
        reporter,
        signal: &signal,
        has: &|libraries| {
            !matches!(options.part, Part::Shard { .. }) && has_libraries(&dist, libraries, digests)
        },
        may_run: &|job| !merging || link::is_own(job),
    };
    probe(&plan, toolkit, &setting, &search.surroundings)?;
    let (mut graph, objects) = graph(&plan, toolkit, &texts, &setting)?;
    let wanted = match &options.part {
        Part::Shard { .. } => objects.iter().map(|(_, job)| *job).collect(),
        Part::Whole | Part::Merged(_) => {
            let ends = link_jobs(&mut graph, &plan, &objects, &texts, toolkit)?;
            vec![ends.archive, ends.shared]
        }
    };
    reporter.phase(&format!(
        "building {}: {} kernels in {} units, {} jobs; at most {} at once in {} ({})",
        part_name(variant, &options.part),
        plan.kernels(),
        plan.units.len(),
        graph.jobs().len(),
        options.limits.jobs,
        report::bytes(options.limits.memory),
        options.memory_source
    ));
    let mut built = execute::run(&graph, &wanted, &setting, options.limits)?;
    fs::write_if_changed(
        &build_dir.join("jobs.json"),
        (serde_json::to_string_pretty(&built.records)? + "\n").as_bytes(),
    )?;
    inputs.write(&build_dir)?;

    let packaged = if let Part::Shard { position, selection } = &options.part {
        let of = shard::Of { variant, position: *position, selection, inputs: &inputs };
        shard::write(&dist, &of, &graph, &objects, &built, &cache)?
    } else {
        let facts = manifest::Facts {
            target: Target::host().to_string(),
            toolkit: toolkit.version.clone(),
            sdist_sha256: sources.files.first().map_or_else(String::new, |f| f.sha256.clone()),
            cutlass: fetch::cutlass_version(&sources)?,
            replaced_cutlass: Some(&sources.digest).filter(|digest| **digest != natten).cloned(),
            static_runtime: matches!(toolkit.cudart, Cudart::Static(_)),
            compression: compile::compression(toolkit.release).join(" "),
        };
        let blobs = wanted.iter().filter_map(|job| built.outputs[*job].first().cloned()).collect();
        let libraries = (blobs, std::mem::take(&mut built.wanted));
        let place = Place { dist: &dist, build_dir: &build_dir };
        pack(&plan, &facts, &place, Inside { libraries, toolkit, sources: &sources.root }, digests, reporter)?
    };
    if let Err(error) = digests.save() {
        reporter.warning(&format!("digests of tools are not remembered: {error}"));
    }
    fs::remove_dir(&setting.scratch)?;
    Ok(summary(&plan, &built, dist, packaged, begun.elapsed()))
}

/// What a build says that it builds.
fn part_name(variant: &Variant, part: &Part) -> String {
    match part {
        Part::Whole => variant.name.clone(),
        Part::Shard { position, .. } => format!("shard {position} of {}", variant.name),
        Part::Merged(shards) => format!("{} of {} shards", variant.name, shards.len()),
    }
}

fn summary(
    plan: &Plan,
    built: &execute::Built,
    dist: PathBuf,
    packaged: Packaged,
    wall: Duration,
) -> Summary {
    let ran: Vec<&execute::Record> = built.records.iter().filter(|r| r.how == How::Ran).collect();
    let peak = ran.iter().max_by_key(|r| r.peak_memory);
    Summary {
        variant: plan.variant.clone(),
        dist,
        units: plan.units.len(),
        kernels: plan.kernels(),
        jobs: built.records.len(),
        ran: ran.len(),
        cached: built.records.len() - ran.len(),
        wall: wall.as_secs_f64(),
        cpu: ran.iter().map(|r| r.cpu).fold(0.0, |sum, cpu| sum + cpu),
        peak_job_memory: peak.map_or(0, |r| r.peak_memory),
        peak_job: peak.map_or_else(String::new, |r| format!("{} {}", r.kind.word(), r.label)),
        peak_memory: built.peak_memory,
        unchanged: packaged == Packaged::Unchanged,
    }
}

/// One build per output directory. The lock goes with the process, however it ends.
fn lock(build_dir: &Path) -> anyhow::Result<fs::FileLock> {
    fs::try_lock(&build_dir.join("lock"))?.ok_or_else(|| {
        Failure::new(Class::Locked, format!("{}: another build owns this directory", build_dir.display()))
            .hint("wait for it to end, or build another variant")
            .into()
    })
}

/// Every text that is compiled.
struct Texts {
    /// Per unit of the plan.
    units: Vec<Arc<str>>,
    /// C++ for the host compiler: name and text.
    sources: Vec<(String, Arc<str>)>,
}

/// What the fatbin of a unit will hold.
fn codes(unit: &plan::UnitPlan) -> Vec<generate::Code> {
    let code = |capability: Capability, ptx: bool| generate::Code {
        major: capability.major,
        minor: capability.minor,
        suffix: capability.suffix.letter(),
        ptx,
    };
    let mut codes = Vec::new();
    for gencode in &unit.gencodes {
        codes.extend(gencode.real.iter().map(|real| code(*real, false)));
        if gencode.ptx {
            codes.push(code(gencode.virtual_arch, true));
        }
    }
    codes
}

/// The text of every unit, in the plan's order.
fn unit_texts(plan: &Plan) -> anyhow::Result<Vec<Arc<str>>> {
    plan.units.par_iter().map(|unit| Ok(Arc::from(unit_text(unit)?))).collect()
}

/// Renders the registry, and lays it, the units' `texts` and our own headers out below the build directory.
fn render(plan: &Plan, texts: Vec<Arc<str>>, toolkit: &Toolkit, build_dir: &Path) -> anyhow::Result<Texts> {
    let units: Vec<generate::Unit<'_>> = plan.units.iter().map(rendered).collect();
    let info = serde_json::to_string(&manifest::build_info(plan, &toolkit.version))?;
    let reasons: BTreeMap<String, String> = plan
        .backends()
        .into_iter()
        .zip(
            plan::BACKENDS
                .iter()
                .map(|(name, families)| ((*name).to_owned(), *families))
                .collect::<BTreeMap<_, _>>(),
        )
        .filter_map(|((_, backend), (_, families))| backend.reason.map(|reason| (families, reason)))
        .flat_map(|(families, reason)| families.iter().map(move |f| ((*f).to_owned(), reason.clone())))
        .collect();

    let mut files: BTreeMap<PathBuf, Arc<str>> = BTreeMap::new();
    for (unit, text) in units.iter().zip(&texts) {
        let path = build_dir.join("src").join(unit.family).join(format!("{}.cu", unit.name));
        files.insert(path, Arc::clone(text));
    }
    let registry: Arc<str> = Arc::from(generate::registry(&units, &info, &reasons)?);
    files.insert(build_dir.join("src/registry.cpp"), Arc::clone(&registry));
    let mut sources = vec![("registry.cpp".to_owned(), registry)];
    for (name, text) in generate::support_files() {
        if generate::host_sources().contains(name) {
            sources.push(((*name).to_owned(), Arc::from(*text)));
        }
    }
    lay_out(build_dir, files)?;
    Ok(Texts { units: texts, sources })
}

/// The text of a unit.
fn unit_text(unit: &plan::UnitPlan) -> anyhow::Result<String> {
    generate::unit(&rendered(unit))
}

/// A unit as the generator takes it.
fn rendered(unit: &plan::UnitPlan) -> generate::Unit<'_> {
    generate::Unit {
        name: unit.name.clone(),
        family: &unit.family,
        kernels: unit.kernels.clone(),
        codes: codes(unit),
    }
}

/// Makes a build directory hold these files and our own headers, and nothing else of either kind.
fn lay_out(build_dir: &Path, mut files: BTreeMap<PathBuf, Arc<str>>) -> anyhow::Result<()> {
    for (name, text) in generate::support_files() {
        files.insert(build_dir.join("inc").join(name), Arc::from(*text));
    }
    for (path, text) in &files {
        fs::write_if_changed(path, text.as_bytes())?;
    }
    remove_others(build_dir, &files)
}

/// The digest of our own headers.
fn support_digest() -> String {
    let mut key = Key::new("support");
    for (name, text) in generate::support_files() {
        key.add(name, text);
    }
    key.finish()
}

/// Takes away what an earlier render left and this one no longer has: a header that is gone must not be found.
fn remove_others(build_dir: &Path, files: &BTreeMap<PathBuf, Arc<str>>) -> anyhow::Result<()> {
    for dir in ["src", "inc"] {
        for entry in walkdir::WalkDir::new(build_dir.join(dir)).sort_by_file_name() {
            let entry = entry?;
            if entry.file_type().is_file() && !files.contains_key(entry.path()) {
                fs::remove_file(entry.path())?;
            }
        }
    }
    Ok(())
}

/// The parts of a [`Setting`] that come from the toolkit and the sources.
struct Parts {
    trees: BTreeMap<Tree, (PathBuf, String)>,
    tools: BTreeMap<String, String>,
    env: BTreeMap<String, String>,
}

impl Parts {
    fn new(ready: &Ready, sources: &fetch::Tree, build_dir: &Path) -> anyhow::Result<Parts> {
        let toolkit = &ready.toolkit;
        let trees = BTreeMap::from([
            (Tree::Toolkit, (toolkit.home.clone(), ready.digest.clone())),
            (Tree::Sources, (fs::real_path(&sources.root)?, sources.digest.clone())),
            (Tree::Support, (fs::real_path(build_dir)?.join("inc"), support_digest())),
        ]);
        let digest = |names: &[&str]| {
            let mut key = Key::new("tool");
            for name in names {
                if let Some(tool) = toolkit.tools.get(*name) {
                    key.add(name, &tool.sha256);
                }
            }
            key.finish()
        };
        let tools = BTreeMap::from([
            ("nvcc".to_owned(), digest(&["nvcc", "gcc", "clang"])),
            ("cudafe++".to_owned(), digest(&["cudafe++"])),
            ("cicc".to_owned(), digest(&["cicc"])),
            ("ptxas".to_owned(), digest(&["ptxas"])),
            ("fatbinary".to_owned(), digest(&["fatbinary"])),
            ("host".to_owned(), digest(&["gcc", "clang", "cc1plus", "as"])),
            ("link".to_owned(), digest(&["gcc", "clang", "cc1plus", "as", "ld"])),
            ("ar".to_owned(), digest(&["ar"])),
        ]);
        let mut path: Vec<String> = Vec::new();
        for dir in toolkit.host.path.parent().into_iter().map(|d| d.display().to_string()) {
            path.push(dir);
        }
        path.extend(["/usr/local/bin", "/usr/bin", "/bin"].map(str::to_owned));
        path.dedup();
        let env =
            BTreeMap::from([("PATH".to_owned(), path.join(":")), ("LC_ALL".to_owned(), "C".to_owned())]);
        Ok(Parts { trees, tools, env })
    }
}

/// One tiny compile before any unit, once per toolkit and host compiler.
fn probe_toolkit(
    toolkit: &Toolkit,
    setting: &Setting<'_>,
    surroundings: &Surroundings,
) -> anyhow::Result<()> {
    let scratch = setting.scratch.join("probe");
    once("probe", &[], setting, || {
        fs::create_dir(&scratch)?;
        toolkit::probe(toolkit, &scratch, surroundings)
    })
}

/// As [`probe_toolkit`], and one more per section with flags of its own.
fn probe(
    plan: &Plan,
    toolkit: &Toolkit,
    setting: &Setting<'_>,
    surroundings: &Surroundings,
) -> anyhow::Result<()> {
    probe_toolkit(toolkit, setting, surroundings)?;
    let scratch = setting.scratch.join("probe");
    let flags: BTreeMap<&str, &[String]> = plan
        .units
        .iter()
        .map(|u| (u.section.as_str(), u.flags.as_slice()))
        .filter(|(_, f)| !f.is_empty())
        .collect();
    for (section, flags) in flags {
        once("probe of flags", flags, setting, || {
            fs::create_dir(&scratch)?;
            toolkit::probe_flags(toolkit, section, flags, &scratch, surroundings)
        })?;
    }
    Ok(())
}

/// Does `check` unless the cache says that it passed with this toolkit, host compiler and `args`.
fn once(
    what: &str,
    args: &[String],
    setting: &Setting<'_>,
    check: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut key = Key::new(what);
    for tool in ["nvcc", "cicc", "ptxas", "host"] {
        key.add(tool, setting.tools.get(tool).map_or("", String::as_str));
    }
    key.add("tk", &setting.trees[&Tree::Toolkit].1);
    args.iter().for_each(|arg| key.add("arg", arg));
    let key = key.finish();
    if setting.cache.action(&key).is_some() {
        return Ok(());
    }
    setting.reporter.phase(&format!("{what}: one small compile"));
    check()?;
    record(what, &key, vec![], setting);
    Ok(())
}

/// Remembers that something outside the graph was done. A cache that cannot be written costs a warning.
fn record(what: &str, key: &str, outputs: Vec<execute::cache::Blob>, setting: &Setting<'_>) {
    let kind = what.to_owned();
    let action =
        execute::cache::Action { kind, outputs, headers: vec![], cpu: 0.0, wall: 0.0, peak_memory: 0 };
    if let Err(error) = setting.cache.put_action(key, &action) {
        setting.reporter.warning(&format!("not recorded in the cache: {error}"));
    }
}

/// The failure for a dry run whose phases do not fit together.
fn unusable(toolkit: &Toolkit, unit: &plan::UnitPlan, why: &str) -> Failure {
    Failure::toolchain(format!("the dry run of nvcc {} cannot be used: {why}", toolkit.version))
        .unit(unit.label())
        .hint("use a toolkit release that `nattenc variants` lists")
}

/// Compile jobs of every unit; per unit its label and the job that makes its object.
fn graph(
    plan: &Plan,
    toolkit: &Toolkit,
    texts: &Texts,
    setting: &Setting<'_>,
) -> anyhow::Result<(Graph, Vec<(String, JobId)>)> {
    let programs = programs(toolkit)?;
    let table = cost::table()?;
    let mut dry_runs = DryRuns::new();
    let mut graph = Graph::default();
    let mut objects = Vec::new();
    for (unit, text) in plan.units.iter().zip(&texts.units) {
        let dry = unit_dry_run(&mut dry_runs, unit, toolkit, setting)?;
        let object = compile::unit(&mut graph, unit, text, dry, &programs, table)
            .map_err(|why| unusable(toolkit, unit, &why))?;
        objects.push((unit.label(), object));
    }
    Ok((graph, objects))
}

/// What comes after the objects of all units.
fn link_jobs(
    graph: &mut Graph,
    plan: &Plan,
    objects: &[(String, JobId)],
    texts: &Texts,
    toolkit: &Toolkit,
) -> anyhow::Result<link::Ends> {
    let tools = link::Tools {
        host: toolkit.host.path.display().to_string(),
        archiver: toolkit.tools.get("ar").map_or_else(|| "ar".to_owned(), |t| t.path.display().to_string()),
        include: inside(&toolkit.include, toolkit)?,
        runtime: match &toolkit.cudart {
            Cudart::Static(path) => link::Runtime::Static(inside(path, toolkit)?),
            Cudart::Shared(path) => {
                link::Runtime::Shared(inside(path.parent().unwrap_or(Path::new(".")), toolkit)?)
            }
        },
    };
    let headers: String = generate::public_headers().map(|(_, text)| *text).collect();
    let objects: Vec<(String, JobId)> =
        plan.units.iter().zip(objects).map(|(unit, (_, object))| (unit.name.clone(), *object)).collect();
    Ok(link::jobs(graph, &objects, &texts.sources, &link::exports(&headers), &tools))
}

/// A path of the toolkit, relative to a scratch directory.
fn inside(path: &Path, toolkit: &Toolkit) -> anyhow::Result<String> {
    let relative = path.strip_prefix(&toolkit.home).map_err(|_| {
        Failure::toolchain(format!(
            "{}: is not inside the toolkit {}",
            path.display(),
            toolkit.home.display()
        ))
        .hint("use a toolkit whose parts lie in one directory")
    })?;
    Ok(format!("{}/{}", Tree::Toolkit.link(), relative.display()))
}

/// The programs of phases, relative to a scratch directory; the host compiler is absolute.
fn programs(toolkit: &Toolkit) -> anyhow::Result<BTreeMap<String, String>> {
    let mut programs = BTreeMap::from([("host".to_owned(), toolkit.host.path.display().to_string())]);
    for name in ["cudafe++", "cicc", "ptxas", "fatbinary"] {
        if let Some(tool) = toolkit.tools.get(name) {
            programs.insert(name.to_owned(), inside(&tool.path, toolkit)?);
        }
    }
    Ok(programs)
}

/// Dry runs by the arguments of nvcc: units with the same flags and gencodes have the same.
type DryRuns = BTreeMap<Vec<String>, dryrun::DryRun>;

/// The dry run of a unit, one of those that were made already if it can be.
fn unit_dry_run<'a>(
    known: &'a mut DryRuns,
    unit: &plan::UnitPlan,
    toolkit: &Toolkit,
    setting: &Setting<'_>,
) -> anyhow::Result<&'a dryrun::DryRun> {
    let args = compile::nvcc_args(
        unit,
        &compile::compression(toolkit.release),
        &toolkit.host.path.display().to_string(),
    );
    Ok(match known.entry(args) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(entry) => {
            let dry = dry_run(toolkit, entry.key(), setting)?;
            entry.insert(dry)
        }
    })
}

/// nvcc's own account of what it would run; kept in the cache.
fn dry_run(toolkit: &Toolkit, args: &[String], setting: &Setting<'_>) -> anyhow::Result<dryrun::DryRun> {
    let mut key = Key::new("dry run");
    key.add("nvcc", &setting.tools["nvcc"]);
    key.add("tk", &setting.trees[&Tree::Toolkit].1);
    args.iter().for_each(|a| key.add("arg", a));
    let key = key.finish();
    let cached = setting.cache.action(&key).and_then(|a| setting.cache.get(a.outputs.first()?));
    let text = if let Some(bytes) = cached {
        String::from_utf8_lossy(&bytes).into_owned()
    } else {
        let dir = setting.scratch.join("dryrun");
        fs::symlink(&toolkit.home, &dir.join(Tree::Toolkit.link()))?;
        fs::write(&dir.join(compile::UNIT_FILE), b"")?;
        let mut argv = vec![inside(&toolkit.nvcc, toolkit)?, "--dryrun".to_owned(), "--keep".to_owned()];
        argv.extend(args.iter().cloned());
        let command = CommandLine { argv, env: setting.env.clone(), cwd: dir };
        let finished = process::capture(&command)?;
        if !finished.success() {
            return Err(Failure::toolchain(format!("nvcc {} refused the flags of a unit", toolkit.version))
                .diagnostic(execute::first_diagnostic(&finished.output).unwrap_or_else(|| "none".to_owned()))
                .hint(format!("check cuda-flags in build.toml; the command was: {command}"))
                .into());
        }
        match setting.cache.put(finished.output.as_bytes()) {
            Ok(blob) => record("dry run", &key, vec![blob], setting),
            Err(error) => setting.reporter.warning(&format!("not recorded in the cache: {error}")),
        }
        finished.output
    };
    dryrun::parse(&text).map_err(|e| {
        Failure::toolchain(format!("nvcc {}: its dry run cannot be read: {}", toolkit.version, e.why))
            .diagnostic(e.line)
            .hint(
                "check that nvcc is the real one, and that its release is one that `nattenc variants` lists",
            )
            .into()
    })
}

/// Where the parts of an artifact come from.
struct Inside<'a> {
    /// The archive and the shared library, and their bytes unless the artifact that is there has them.
    libraries: (Vec<Blob>, Vec<Vec<u8>>),
    toolkit: &'a Toolkit,
    sources: &'a Path,
}

/// Where an artifact goes, and where what is known of it is kept.
struct Place<'a> {
    dist: &'a Path,
    build_dir: &'a Path,
}

/// Where an artifact has the CUDA runtime, if it is a static one.
const RUNTIME: &str = "lib/libcudart_static.a";

/// The files of both libraries in an artifact.
fn library_files(blobs: &[Blob]) -> Vec<manifest::File> {
    [link::ARCHIVE, link::SHARED]
        .iter()
        .zip(blobs)
        .map(|(name, blob)| manifest::File {
            path: format!("lib/{name}"),
            sha256: blob.sha256.clone(),
            size: blob.size,
        })
        .collect()
}

/// Whether the artifact in `dist` has these very libraries, and says what they need.
fn has_libraries(dist: &Path, libraries: &[Blob], digests: &dyn execute::Digests) -> bool {
    let holds = |file| package::holds(dist, file, &|path| digests.sha256(path)).unwrap_or(false);
    recorded_needs(dist).is_some() && library_files(libraries).iter().all(holds)
}

/// What the manifest in `dist` says that the shared library needs.
fn recorded_needs(dist: &Path) -> Option<manifest::Needs> {
    let text = fs::read_if_exists(&dist.join(package::MANIFEST)).ok()??;
    serde_json::from_slice::<manifest::Recorded>(&text).ok()?.needs
}

fn pack(
    plan: &Plan,
    facts: &manifest::Facts,
    place: &Place<'_>,
    from: Inside<'_>,
    digests: &dyn execute::Digests,
    reporter: &dyn Reporter,
) -> anyhow::Result<Packaged> {
    let dist = place.dist;
    let mut contents = package::licences(from.sources, &from.toolkit.home)?;
    for (name, text) in generate::public_headers() {
        contents.insert(format!("include/{name}"), text.as_bytes().to_vec());
    }
    let (blobs, mut bytes) = from.libraries;
    let libraries = library_files(&blobs);
    let mut files = package::files(&contents);
    files.extend(libraries.iter().cloned());
    let runtime = match &from.toolkit.cudart {
        Cudart::Static(path) => Some(path),
        Cudart::Shared(_) => None,
    };
    if let Some(path) = runtime {
        let (sha256, size) = (digests.sha256(path)?, fs::size(path)?);
        files.push(manifest::File { path: RUNTIME.to_owned(), sha256, size });
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));

    if bytes.is_empty() {
        if let Some(needs) = recorded_needs(dist) {
            let manifest = package::manifest_text(plan, facts, &needs, &files)?;
            if package::is_current(dist, package::MANIFEST, &manifest, &files, &|path| digests.sha256(path))?
                && package::holds_nothing_else(dist, package::MANIFEST, &files)?
                && fs::read_if_exists(&place.build_dir.join(VERIFIED))? == Some(proof_of(&manifest))
            {
                return Ok(Packaged::Unchanged);
            }
        }
        bytes = libraries.iter().map(|file| fs::read(&dist.join(&file.path))).collect::<Result<_, _>>()?;
    }
    for (file, bytes) in libraries.iter().zip(bytes) {
        contents.insert(file.path.clone(), bytes);
    }
    if let Some(path) = runtime {
        contents.insert(RUNTIME.to_owned(), fs::read(path)?);
    }
    let needs = verify::needs(&contents[&format!("lib/{}", link::SHARED)]).map_err(|why| {
        Failure::integrity(format!("{}: the linker's output cannot be read: {why}", link::SHARED))
            .hint("run the same command again with an empty NATTENC_HOME")
    })?;
    let manifest = package::manifest_text(plan, facts, &needs, &files)?;
    let packaged = if package::is_current(dist, package::MANIFEST, &manifest, &files, &fs::sha256)? {
        let hint =
            format!("take out what nattenc did not put there, or remove {} and build again", dist.display());
        verified(dist, dist, &hint, reporter)?;
        Packaged::Unchanged
    } else {
        package::write(dist, package::MANIFEST, &contents, &manifest, |staged| {
            let hint = "this is a bug of nattenc: please report it with the command line and this output";
            verified(staged, dist, hint, reporter)
        })?;
        Packaged::Written
    };
    fs::write(&place.build_dir.join(VERIFIED), &proof_of(&manifest))?;
    Ok(packaged)
}

/// The file of a build directory that says which artifact was verified last: as long as every file has the digest
/// that its manifest states, it need not be verified again.
const VERIFIED: &str = "verified";

/// What that file holds for an artifact with this manifest.
fn proof_of(manifest: &str) -> Vec<u8> {
    format!("nattenc {} {}\n", env!("CARGO_PKG_VERSION"), fs::sha256_of(manifest.as_bytes())).into_bytes()
}

/// Whether the artifact in `place`, which is or will be that at `dist`, is what its manifest says.
/// `hint` is the next step where it is not.
fn verified(place: &Path, dist: &Path, hint: &str, reporter: &dyn Reporter) -> anyhow::Result<()> {
    let verdict = verify::verify(place)?;
    for check in verdict.checks.iter().filter(|c| c.outcome == verify::Outcome::Warning) {
        reporter.warning(&format!("{}: {}", check.name, check.summary));
    }
    let Some(failure) = verdict.failure(dist) else { return Ok(()) };
    reporter.result(&verdict.text());
    Err(failure.hint(hint).into())
}

/// From here on SIGINT, SIGTERM and SIGHUP set a number instead of ending the process: children lead
/// process groups of their own, and are ended by us or by nobody.
fn watch_signals() -> anyhow::Result<Arc<AtomicUsize>> {
    let flag = Arc::new(AtomicUsize::new(0));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register_usize(signal, Arc::clone(&flag), usize::try_from(signal)?)?;
    }
    Ok(flag)
}

/// Cuts the store of finished work down to `size` bytes. That it cannot be costs a warning.
pub fn cut_cache(size: u64, reporter: &dyn Reporter) {
    let bounds = Bounds { size: Some(size), age: None };
    let evict = move |upkeep: &Upkeep| upkeep.evict(bounds);
    match fetch::store_home().and_then(|home| Upkeep::within(&home, PATIENCE, evict)) {
        Ok(evicted) if evicted.is_notable() => {
            reporter.result(&evicted.text());
            if let Some(failure) = evicted.failure() {
                reporter.warning(&failure.to_string());
            }
        }
        Ok(_) => {}
        Err(error) => reporter.warning(&format!("the cache is not cut down to its size: {error}")),
    }
}

/// What `clean` took away.
pub fn clean(project: &Project, variants: &[String]) -> anyhow::Result<Vec<PathBuf>> {
    let mut removed = Vec::new();
    for variant in variants {
        let dist = project.dist(variant);
        let build = project.build_dir(variant);
        if build.join("lock").is_file() {
            let held = lock(&build)?;
            fs::remove_dir(&build)?;
            drop(held);
            removed.push(build);
        }
        // A shard is in a directory of its own, which is listed like a variant's.
        if [package::MANIFEST, shard::MANIFEST].iter().any(|name| package::is_ours(&dist, name)) {
            fs::remove_dir(&dist)?;
            removed.push(dist);
        }
    }
    Ok(removed)
}

/// The variants that have something to clean, or an artifact: every directory of `build/` and `dist/`.
pub fn present(project: &Project) -> anyhow::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for dir in ["build", "dist"] {
        let dir = project.root.join(dir);
        if dir.is_dir() {
            for entry in fs::list(&dir)? {
                names.extend(
                    entry
                        .file_name()
                        .map(|n| n.to_string_lossy().into_owned())
                        .filter(|n| !n.starts_with('.')),
                );
            }
        }
    }
    Ok(names)
}
