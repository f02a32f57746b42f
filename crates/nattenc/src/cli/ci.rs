//! `nattenc ci`: the jobs and the workflows of continuous integration.

use super::amounts;
use crate::ci::choose::{self, Planned};
use crate::ci::matrix::{self, From, Limits};
use crate::ci::touched::{self, Touch};
use crate::ci::{Event, workflow};
use crate::config::{self, Config, Variant};
use crate::execute::process::{self, CommandLine};
use crate::failure::Failure;
use crate::pipeline::Project;
use crate::plan::policy::Policy;
use crate::{catalog, cost, env, fs, report};
use clap::{Args, Subcommand};
use std::collections::BTreeMap;
use std::path::Path;

/// Options of `ci`.
#[derive(Debug, Args)]
pub struct CiArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Divide what an event compiles into jobs that end in time
    Matrix(MatrixArgs),
    /// Write the workflows that run those jobs, into .github/workflows
    Workflow(WorkflowArgs),
}

/// Options of `ci matrix`.
#[derive(Debug, Args)]
#[command(after_help = "\
A pr compiles the least unit of every section for every CUDA major (with the latest variant of the major that
builds the section), and everything that the change touches: a family for its tables, its template and the launchers
that it includes, what build.toml decides otherwise, a sample of every family where everything may be touched.
main compiles everything once for every CUDA major; release once for every variant, but none whose definition
has `served-by`, as in variants/cu126.toml: served-by = \"cu128\".

A job is a shard: `nattenc build --variant VARIANT --shard SHARD OPTIONS`; `nattenc merge` makes the artifact.
There are as few as end in time, by what `nattenc plan` predicts. Exit code 2 where a unit fits no job.

JSON: {\"include\": [...]}, one line, for strategy.matrix. Of each job: name, variant, shard, index, count,
options, units, predicted-minutes, max-minutes, deadline; with --merges: variant, count, serves, driver.

Examples:
  nattenc ci matrix --event release --max-minutes 330 --runner-cores 4 --runner-memory 16G
  nattenc ci matrix --event pr --diff origin/main
  nattenc ci matrix --event pr --changed templates/cuda/fna/instances.toml --json
  nattenc ci matrix --event release --variant cu128,cu130 --policy balanced --max-minutes 60")]
struct MatrixArgs {
    /// What the jobs are for
    #[arg(long, value_enum)]
    event: Event,
    /// These variants instead of those of build.toml's [ci]; may be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    variant: Vec<String>,
    /// How long a job may take, its overhead included
    #[arg(long, value_name = "MINUTES")]
    max_minutes: Option<usize>,
    /// CPU cores of a runner
    #[arg(long, value_name = "N")]
    runner_cores: Option<usize>,
    /// Memory of a runner, as 16G; compilers get it less a tenth, at least 2 GB
    #[arg(long, value_name = "SIZE")]
    runner_memory: Option<String>,
    /// What a job does beside compiling: fetching, restoring and saving the store, passing the shard on
    #[arg(long, value_name = "MINUTES", default_value_t = 10)]
    overhead_minutes: usize,
    /// What is added to predictions, which may be off and are of one machine
    #[arg(long, value_name = "PERCENT", default_value_t = 25)]
    margin: u16,
    /// How finely families are split into units; the policy table of build.toml has the default
    #[arg(long, value_enum)]
    policy: Option<Policy>,
    /// The change is from this commit to the working tree, as git has it
    #[arg(long, value_name = "BASE")]
    diff: Option<String>,
    /// The change is of these files, relative to build.toml; may be repeated
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "diff")]
    changed: Vec<String>,
    /// Print the matrix of the jobs as JSON
    #[arg(long)]
    json: bool,
    /// With --json the matrix of the merges instead, one for every variant that something is compiled of
    #[arg(long, requires = "json")]
    merges: bool,
}

/// Options of `ci workflow`.
#[derive(Debug, Args)]
#[command(after_help = "\
Writes pr.yml, main.yml and release.yml for what [ci] of build.toml says. Each plans the jobs, builds the shards with the
store in the platform's cache, merges them and tests with the artifact. Other files of the directory stay as they are.

Examples:
  nattenc ci workflow
  nattenc ci workflow --check        writes nothing; exit code 8 where a file is not what it would write")]
struct WorkflowArgs {
    /// Compare instead of writing
    #[arg(long)]
    check: bool,
}

pub(super) fn run(project: &Project, args: &CiArgs) -> anyhow::Result<()> {
    match &args.what {
        What::Matrix(args) => matrix(project, args),
        What::Workflow(args) => workflow(project, args),
    }
}

fn matrix(project: &Project, args: &MatrixArgs) -> anyhow::Result<()> {
    let limits = limits(&project.config, args)?;
    if args.event != Event::Pr && (args.diff.is_some() || !args.changed.is_empty()) {
        return Err(Failure::config(
            "--diff and --changed are for --event pr: other events compile everything",
        )
        .hint("leave them out")
        .into());
    }
    let from = From {
        config: &project.config,
        catalog: catalog::catalog()?,
        table: cost::table()?,
        policy: args.policy,
    };
    let change = change(project, args)?;
    let before = change.before.as_deref().map(|text| config::parse(Path::new("build.toml"), text));
    // A build.toml that this nattenc cannot read says nothing about what is different.
    let before = before.and_then(Result::ok).filter(|before| before.natten == project.config.natten);
    let mut planned = Vec::new();
    for variant in variants(project, args)? {
        let plan = from.plan(&project.config, &variant)?;
        let before = before.as_ref().and_then(|config| from.plan(config, &variant).ok());
        planned.push(Planned { variant, plan, before });
    }
    let chosen = choose::choose(&planned, args.event, &change.touches, from.table)?;
    let matrix = matrix::matrix(&from, args.event, chosen, change.touches, limits)?;
    report::stdout(&match (args.json, args.merges) {
        (false, _) => matrix.text(),
        (true, false) => matrix.builds_json().to_string(),
        (true, true) => matrix.merges_json().to_string(),
    })
}

/// The variants, by release.
fn variants(project: &Project, args: &MatrixArgs) -> anyhow::Result<Vec<Variant>> {
    let named = match (&project.config.ci, args.variant.is_empty()) {
        (_, false) => args.variant.clone(),
        (Some(ci), true) => ci.variants.clone(),
        (None, true) => return Err(missing(&project.config, "--variant").into()),
    };
    let mut variants: Vec<Variant> = Vec::new();
    for name in named {
        if !variants.iter().any(|variant| variant.name == name) {
            variants.push(project.variant(Some(&name))?);
        }
    }
    variants.sort_by(|a, b| (a.release, &a.name).cmp(&(b.release, &b.name)));
    Ok(variants)
}

fn missing(config: &Config, option: &str) -> Failure {
    Failure::config(format!("{option} is not given, and {} has no [ci]", config.path.display())).hint(
        format!(
            "give {option}, or add [ci] with variants, runner, runner-cores, runner-memory and max-minutes"
        ),
    )
}

fn limits(config: &Config, args: &MatrixArgs) -> anyhow::Result<Limits> {
    let ci = config.ci.as_ref();
    let max_minutes =
        args.max_minutes.or(ci.map(|ci| ci.max_minutes)).ok_or_else(|| missing(config, "--max-minutes"))?;
    let cores = args
        .runner_cores
        .or(ci.map(|ci| ci.runner_cores))
        .ok_or_else(|| missing(config, "--runner-cores"))?;
    let memory = match (&args.runner_memory, ci) {
        (Some(text), _) => amounts::size("--runner-memory", text)?,
        (None, Some(ci)) => amounts::size("build.toml: runner-memory", &ci.runner_memory)?,
        (None, None) => return Err(missing(config, "--runner-memory").into()),
    };
    if cores == 0 || memory == 0 {
        return Err(Failure::config("a runner without cores or memory compiles nothing")
            .hint("give --runner-cores and --runner-memory of 1 or more")
            .into());
    }
    if max_minutes <= args.overhead_minutes {
        return Err(Failure::config(format!(
            "{max_minutes} minutes leave nothing to compile in: {} go to what a job does beside",
            args.overhead_minutes
        ))
        .hint("allow more with --max-minutes, or say with --overhead-minutes what it is here")
        .into());
    }
    Ok(Limits {
        max_minutes,
        overhead_minutes: args.overhead_minutes,
        margin: 1.0 + f64::from(args.margin) / 100.0,
        cores,
        memory,
        budget: super::less_usual_reserve(memory),
    })
}

/// What is different from where a change began.
#[derive(Default)]
struct Change {
    touches: BTreeMap<String, Touch>,
    /// The text of build.toml there.
    before: Option<String>,
}

fn change(project: &Project, args: &MatrixArgs) -> anyhow::Result<Change> {
    let Some(base) = &args.diff else {
        let touches = touched::touched(&args.changed, catalog::catalog()?)?;
        return Ok(Change { touches, before: None });
    };
    if base.starts_with('-') {
        return Err(Failure::config(format!("--diff: {base:?} is no commit"))
            .hint("name one, as origin/main")
            .into());
    }
    let listed = git(project, &["diff", "--name-only", "--no-renames", "--relative", "-z", base, "--"])?;
    let listed = listed.ok_or_else(|| {
        Failure::config(format!("--diff: git knows no commit {base} in {}", project.root.display()))
            .hint("fetch it, or name the files with --changed")
    })?;
    let files: Vec<String> = listed.split('\0').filter(|file| !file.is_empty()).map(str::to_owned).collect();
    let before = if files.iter().any(|file| file == "build.toml") {
        git(project, &["show", &format!("{base}:./build.toml")])?
    } else {
        None
    };
    Ok(Change { touches: touched::touched(&files, catalog::catalog()?)?, before })
}

/// What git prints about the checkout; none where it fails.
fn git(project: &Project, args: &[&str]) -> anyhow::Result<Option<String>> {
    let argv = ["git"].iter().chain(args).map(|word| (*word).to_owned()).collect();
    let finished = process::capture(&CommandLine { argv, env: env::all(), cwd: project.root.clone() })?;
    Ok(finished.success().then_some(finished.stdout))
}

fn workflow(project: &Project, args: &WorkflowArgs) -> anyhow::Result<()> {
    let ci = project.config.ci.as_ref().ok_or_else(|| {
        Failure::config(format!(
            "{} has no [ci], which says what workflows build and on which machines",
            project.config.path.display()
        ))
        .hint("add [ci] with variants, runner, runner-cores, runner-memory and max-minutes")
    })?;
    for name in &ci.variants {
        project.variant(Some(name))?;
    }
    let dir = project.root.join(workflow::DIR);
    let mut different = Vec::new();
    for (name, text) in workflow::files(ci)? {
        let path = dir.join(&name);
        if args.check {
            if fs::read_if_exists(&path)?.as_deref() != Some(text.as_bytes()) {
                different.push(format!("{}/{name}", workflow::DIR));
            }
        } else if fs::write_if_changed(&path, text.as_bytes())? {
            report::stdout(&format!("{}/{name}", workflow::DIR))?;
        }
    }
    if different.is_empty() {
        return Ok(());
    }
    Err(Failure::integrity(format!("not what `nattenc ci workflow` writes: {}", different.join(", ")))
        .hint("run `nattenc ci workflow` and commit the files; what they should do differently belongs into build.toml")
        .into())
}
