//! Which backend, tile shapes and schedule a problem runs with: a pure function of the problem, the device
//! and the artifact, which can be asked without a GPU.
//!
//! Backends are tried in upstream's order: Blackwell, Hopper, core. The first that is built, has code for
//! the device, and has a kernel that takes the problem is chosen; why each one before it was not is kept
//! and can be printed. Within a backend the default tile shapes come first, then the others that upstream
//! has for the device, since an artifact need not hold them all.
//!
//! ```
//! use natten_kernels::device::Properties;
//! use natten_kernels::dispatch::{self, Request};
//! use natten_kernels::{Artifact, ComputeCapability, Direction, Dtype, Problem};
//!
//! // What an artifact says of itself; a program asks `natten_kernels::linked()`.
//! let artifact = Artifact::new(
//!     r#"{ "variant": "cu130", "toolkit": "13.0.88", "natten": "0.21.7", "backends": {
//!         "fna": { "built": false, "reason": "section core: not selected" },
//!         "hopper_fna": { "built": true, "capabilities": ["9.0a"] } } }"#,
//!     Vec::new(),
//! )?;
//! let device = Properties {
//!     capability: ComputeCapability { major: 8, minor: 0 },
//!     shared_memory: 166_912,
//! };
//! let problem = Problem::builder(Dtype::Float16, &[64, 64]).dim(64).window(&[7, 7]).build()?;
//! let error = dispatch::choose_from(&artifact, &problem, &device, &Request::new(Direction::Forward));
//! // `device: hopper_fna has no code for a device of capability 8.0: ..`
//! assert!(error.unwrap_err().to_string().contains("built for 9.0a"));
//! # Ok::<(), natten_kernels::Error>(())
//! ```

use crate::backend::Backend;
use crate::device::Properties;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::ops::{self, Dense, DenseTiles, Schedule, Scheduler, Sequences};
use crate::problem::Problem;
use crate::table::{Direction, Kernel};
use crate::tiles::{self, Determinism, Tiles};
use crate::variant::{self, Artifact, Kind};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Mutex;

/// Upstream's order of preference; the reference kernels, which upstream never picks, take what is left.
const ORDER: &[Backend] = &[Backend::BlackwellFna, Backend::HopperFna, Backend::Fna, Backend::Reference];
const DENSE_ORDER: &[Backend] = &[Backend::BlackwellFmha, Backend::HopperFmha, Backend::Fmha];
/// For windows that are the whole axes, where upstream calls dense attention.
const FULL_ORDER: &[Backend] = &[
    Backend::BlackwellFmha,
    Backend::HopperFmha,
    Backend::Fmha,
    Backend::BlackwellFna,
    Backend::HopperFna,
    Backend::Fna,
    Backend::Reference,
];

/// What to run, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The backend.
    pub backend: Backend,
    /// The pass.
    pub direction: Direction,
    /// Entry point of the kernel that the library will pick; `None` for the reference backend.
    pub kernel: Option<String>,
    /// Tile shapes to pass; `None` for the reference backend. Dense attention has one axis.
    pub tiles: Option<Tiles>,
    /// How warps share the work: Hopper, forward.
    pub schedule: Option<Schedule>,
    /// How blocks get their tiles: Blackwell, forward.
    pub scheduler: Option<Scheduler>,
    /// Key splits to pass to a backward pass; 1 everywhere else.
    pub key_splits: [usize; 3],
    /// What a backward pass was asked for.
    pub determinism: Determinism,
    /// How often each key head is copied first, for a backend that takes no grouped heads; else 1.
    pub key_head_copies: usize,
    /// The backends that were preferred but cannot run it, with the reason of each.
    pub passed_over: Vec<(Backend, Error)>,
}

impl Decision {
    /// The tiles of dense attention.
    pub fn dense_tiles(&self) -> Option<DenseTiles> {
        self.tiles.map(|tiles| DenseTiles { query: tiles.query[0], key: tiles.key[0] })
    }

    /// What deserves a word: a backend made for devices like this one is in the artifact, and its code is
    /// for another capability (10.0a on a device of 10.3).
    pub fn notice(&self, properties: &Properties) -> Option<String> {
        let number = properties.capability.number();
        self.passed_over
            .iter()
            .find(|(backend, error)| {
                matches!(error, Error::Device(_))
                    && backend.only_for().is_some_and(|only| only.contains(&number))
            })
            .map(|(_, error)| format!("using backend {}, not the fastest: {error}", self.backend))
    }
}

impl fmt::Display for Decision {
    /// One line for the choice, one for each backend that was passed over.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "backend {}", self.backend)?;
        if let Some(kernel) = &self.kernel {
            write!(f, ", kernel {kernel}")?;
        }
        if let Some(tiles) = &self.tiles {
            write!(f, ", tiles {:?} x {:?}", tiles.query, tiles.key)?;
        }
        if let Some(schedule) = self.schedule {
            write!(f, ", schedule {schedule:?}")?;
        }
        if let Some(scheduler) = self.scheduler {
            write!(f, ", scheduler {scheduler:?}")?;
        }
        if self.key_splits != [1; 3] {
            write!(f, ", key splits {:?}", self.key_splits)?;
        }
        if self.key_head_copies != 1 {
            write!(f, ", each key head copied {} times", self.key_head_copies)?;
        }
        for (backend, reason) in &self.passed_over {
            write!(f, "\n  not {backend}: {reason}")?;
        }
        Ok(())
    }
}

/// What is asked of the dispatcher beside the problem.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// Which pass.
    pub direction: Direction,
    /// Whether a backward pass must give the same bits every time.
    pub determinism: Determinism,
    /// Only this backend; `None` lets the dispatcher choose.
    pub backend: Option<Backend>,
}

impl Request {
    /// A pass by whichever backend fits, with upstream's defaults.
    pub const fn new(direction: Direction) -> Request {
        Request { direction, determinism: Determinism::NotRequired, backend: None }
    }
}

/// The choice for `problem` on a device with `properties`, from the linked artifact. A
/// [`notice`](Decision::notice) is written to standard error once in the life of a process.
///
/// # Errors
/// [`Error::BackendNotBuilt`] if nothing is linked; else as [`choose_from`].
pub fn choose(problem: &Problem, properties: &Properties, request: &Request) -> Result<Decision> {
    let artifact = variant::require(request.backend.unwrap_or(Backend::Fna))?;
    let decision = choose_from(artifact, problem, properties, request)?;
    announce(&decision, properties);
    Ok(decision)
}

/// The choice for dense attention, as [`choose`].
///
/// # Errors
/// [`Error::BackendNotBuilt`] if nothing is linked; else as [`choose_dense_from`].
pub fn choose_dense(
    problem: &Dense,
    sequences: Option<&Sequences>,
    properties: &Properties,
    request: &Request,
) -> Result<Decision> {
    let artifact = variant::require(request.backend.unwrap_or(Backend::Fmha))?;
    let decision = choose_dense_from(artifact, problem, sequences, properties, request)?;
    announce(&decision, properties);
    Ok(decision)
}

/// The choice for `problem` on a device with `properties`, from `artifact`.
///
/// A problem whose windows are the whole axes is dense attention ([`Dense::of`]), and goes to the dense
/// backends first.
///
/// # Errors
/// If a backend is forced, the reason that it cannot run the problem. Else, if none can: the error of the
/// core backend if no preferred backend is built at all, [`Error::Device`] if none has code for the
/// device, and otherwise [`Error::Unsupported`] with the reason of each.
pub fn choose_from(
    artifact: &Artifact,
    problem: &Problem,
    properties: &Properties,
    request: &Request,
) -> Result<Decision> {
    let dense = Dense::of(problem);
    let one = |backend| match (backend, &dense) {
        (Backend::Fmha | Backend::HopperFmha | Backend::BlackwellFmha, Some(dense)) => {
            consider_dense(backend, artifact, dense, dense.seqlen_kv, properties, request)
        }
        _ => consider(backend, artifact, problem, properties, request),
    };
    let order = if dense.is_some() { FULL_ORDER } else { ORDER };
    first_of(order, Backend::Fna, request, one)
}

/// The choice for dense attention on a device with `properties`, from `artifact`.
///
/// # Errors
/// As [`choose_from`].
pub fn choose_dense_from(
    artifact: &Artifact,
    problem: &Dense,
    sequences: Option<&Sequences>,
    properties: &Properties,
    request: &Request,
) -> Result<Decision> {
    let keys = sequences.map_or(problem.seqlen_kv, |sequences| sequences.max_kv);
    first_of(DENSE_ORDER, Backend::Fmha, request, |backend| {
        consider_dense(backend, artifact, problem, keys, properties, request)
    })
}

/// Says the notice of a decision, if it was not said before.
fn announce(decision: &Decision, properties: &Properties) {
    static SAID: Notices = Notices(Mutex::new(BTreeSet::new()));
    if decision.passed_over.is_empty() {
        return;
    }
    if let Some(notice) = decision.notice(properties).filter(|notice| SAID.is_new(notice)) {
        #[expect(clippy::print_stderr, reason = "a slower backend than the device has is said, once")]
        {
            eprintln!("natten-kernels: {notice}");
        }
    }
}

/// What was said.
struct Notices(Mutex<BTreeSet<String>>);

impl Notices {
    fn is_new(&self, notice: &str) -> bool {
        // A set is whole whoever panicked meanwhile.
        let mut said = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        !said.contains(notice) && said.insert(notice.to_owned())
    }
}

fn first_of(
    order: &[Backend],
    core: Backend,
    request: &Request,
    one: impl Fn(Backend) -> Result<Decision>,
) -> Result<Decision> {
    if let Some(backend) = request.backend {
        return one(backend);
    }
    let mut passed_over = Vec::new();
    for backend in order {
        match one(*backend) {
            Ok(decision) => return Ok(Decision { passed_over, ..decision }),
            Err(reason) => passed_over.push((*backend, reason)),
        }
    }
    Err(none_fits(core, passed_over))
}

fn none_fits(core: Backend, passed_over: Vec<(Backend, Error)>) -> Error {
    let missing = |error: &Error| matches!(error, Error::BackendNotBuilt { .. });
    let foreign = |error: &Error| matches!(error, Error::Device(_)) || missing(error);
    let core = |matching: fn(&Error) -> bool| {
        passed_over
            .iter()
            .find(|(backend, error)| *backend == core && matching(error))
            .or_else(|| passed_over.iter().find(|(_, error)| matching(error)))
            .map(|(_, error)| error.clone())
    };
    let everywhere = if passed_over.iter().all(|(_, error)| missing(error)) {
        core(|error| matches!(error, Error::BackendNotBuilt { .. }))
    } else if passed_over.iter().all(|(_, error)| foreign(error)) {
        core(|error| matches!(error, Error::Device(_)))
    } else {
        None
    };
    everywhere.unwrap_or_else(|| {
        let reasons: Vec<String> =
            passed_over.iter().map(|(backend, error)| format!("{backend}: {error}")).collect();
        Error::unsupported(format!("no backend can run this problem: {}", reasons.join("; ")))
    })
}

fn consider(
    backend: Backend,
    artifact: &Artifact,
    problem: &Problem,
    properties: &Properties,
    request: &Request,
) -> Result<Decision> {
    if !ORDER.contains(&backend) {
        return Err(Error::invalid(format!("{backend} does not compute neighborhood attention")));
    }
    artifact.check(backend, properties.capability)?;
    let direction = request.direction;
    let repeated = &problem.ungrouped();
    let want = Want {
        kind: Kind {
            backend,
            direction,
            rank: problem.rank(),
            dtype: problem.dtype(),
            causal: problem.causal(),
        },
        dims: [problem.dim(), problem.dim_value()],
    };
    let plain = plain(backend, request);
    match backend {
        Backend::Fna => {
            ops::check_fna(repeated)?;
            let head_dim = problem.dim().max(problem.dim_value());
            let candidates = tiles::products(direction, problem.dtype(), properties.capability, head_dim)
                .iter()
                .map(|product| Candidate {
                    tiles: Tiles::balanced(problem.rank(), *product),
                    query: [product.0 as i32, 0, 0],
                    key: [product.1 as i32, 0, 0],
                    schedule: -1,
                });
            let (kernel, found) = want.pick(artifact, properties, candidates)?;
            let key_splits = match direction {
                Direction::Forward => [1; 3],
                Direction::Backward => tiles::key_splits(problem, &found.tiles.key, request.determinism),
            };
            let key_head_copies = problem.heads() / problem.heads_kv();
            check_copies(artifact, key_head_copies, &want.kind, properties)?;
            Ok(Decision { key_splits, key_head_copies, ..plain.with(kernel, found.tiles) })
        }
        Backend::Reference => {
            ops::check_reference(problem, direction)?;
            artifact.rows(&want.kind).next().ok_or_else(|| want.missing())?;
            Ok(plain)
        }
        Backend::HopperFna => {
            ops::check_hopper_fna(repeated, direction)?;
            check_varies(backend, request)?;
            let (kernel, found) = want.pick(artifact, properties, want.hopper())?;
            check_permutation(artifact, problem, properties)?;
            let key_head_copies = problem.heads() / problem.heads_kv();
            check_copies(artifact, key_head_copies, &want.kind, properties)?;
            let schedule = Schedule::from_number(found.schedule);
            Ok(Decision { schedule, key_head_copies, ..plain.with(kernel, found.tiles) })
        }
        _ => {
            ops::check_blackwell_fna(problem, direction)?;
            check_varies(backend, request)?;
            let (kernel, found) = want.pick(artifact, properties, want.blackwell())?;
            check_permutation(artifact, problem, properties)?;
            Ok(Decision { scheduler: scheduler(found.schedule), ..plain.with(kernel, found.tiles) })
        }
    }
}

/// `keys`: those of the longest sequence.
fn consider_dense(
    backend: Backend,
    artifact: &Artifact,
    problem: &Dense,
    keys: usize,
    properties: &Properties,
    request: &Request,
) -> Result<Decision> {
    if !DENSE_ORDER.contains(&backend) {
        return Err(Error::invalid(format!("{backend} does not compute dense attention")));
    }
    artifact.check(backend, properties.capability)?;
    let direction = request.direction;
    let repeated = problem.ungrouped();
    // The kernels take either mask.
    let kind = Kind { backend, direction, rank: 0, dtype: problem.dtype, causal: [false; 3] };
    let want = Want { kind, dims: [problem.dim, problem.dim_value] };
    let plain = plain(backend, request);
    match backend {
        Backend::Fmha => {
            ops::check_fmha(&repeated)?;
            let head_dim = problem.dim.max(problem.dim_value);
            let candidates = tiles::products(direction, problem.dtype, properties.capability, head_dim)
                .iter()
                .map(|product| {
                    Candidate::shaped(Tiles { query: [product.0, 1, 1], key: [product.1, 1, 1] }, 1, -1)
                });
            let (kernel, found) = want.pick(artifact, properties, candidates)?;
            let splits = match direction {
                Direction::Forward => 1,
                Direction::Backward => {
                    tiles::dense_key_splits(problem, keys, found.tiles.key[0], request.determinism)
                }
            };
            let key_head_copies = problem.heads / problem.heads_kv;
            check_copies(artifact, key_head_copies, &want.kind, properties)?;
            Ok(Decision { key_splits: [splits, 1, 1], key_head_copies, ..plain.with(kernel, found.tiles) })
        }
        Backend::HopperFmha => {
            ops::check_hopper_fmha(&repeated, direction)?;
            check_varies(backend, request)?;
            let (kernel, found) = want.pick(artifact, properties, want.hopper())?;
            let key_head_copies = problem.heads / problem.heads_kv;
            check_copies(artifact, key_head_copies, &want.kind, properties)?;
            let schedule = Schedule::from_number(found.schedule);
            Ok(Decision { schedule, key_head_copies, ..plain.with(kernel, found.tiles) })
        }
        _ => {
            ops::check_blackwell_fmha(problem, direction)?;
            let (kernel, found) = want.pick(artifact, properties, want.blackwell())?;
            Ok(Decision { scheduler: scheduler(found.schedule), ..plain.with(kernel, found.tiles) })
        }
    }
}

fn plain(backend: Backend, request: &Request) -> Decision {
    Decision {
        backend,
        direction: request.direction,
        kernel: None,
        tiles: None,
        schedule: None,
        scheduler: None,
        key_splits: [1; 3],
        determinism: request.determinism,
        key_head_copies: 1,
        passed_over: Vec::new(),
    }
}

impl Decision {
    fn with(self, kernel: &Kernel, tiles: Tiles) -> Decision {
        Decision { kernel: Some(kernel.name.clone()), tiles: Some(tiles), ..self }
    }
}

fn scheduler(number: i32) -> Option<Scheduler> {
    [Scheduler::NonPersistent, Scheduler::Persistent].into_iter().find(|one| one.number() == number)
}

/// Refuses determinism for backward kernels that add in varying order whatever is asked of them.
fn check_varies(backend: Backend, request: &Request) -> Result<()> {
    if (request.direction, request.determinism) == (Direction::Backward, Determinism::Required) {
        return Err(Error::unsupported(format!(
            "{backend} backward adds in varying order, and the same bits every time were asked for"
        )));
    }
    Ok(())
}

/// What the tiled backends need beside their own kernels: their token order, for the tensors and for logsumexp.
fn check_permutation(artifact: &Artifact, problem: &Problem, properties: &Properties) -> Result<()> {
    let backend = Backend::TokenPermute;
    artifact.check(backend, properties.capability)?;
    let number = properties.capability.number();
    for dtype in [problem.dtype(), Dtype::Float32] {
        for direction in [Direction::Forward, Direction::Backward] {
            let kind = Kind { backend, direction, rank: problem.rank(), dtype, causal: [false; 3] };
            if !artifact.rows(&kind).any(|kernel| (kernel.sm_min..kernel.sm_max).contains(&number)) {
                return Err(Error::unsupported(format!(
                    "tensors must be brought into tile order, and the artifact has no {}-D token permutation of {dtype} for a device of capability {}",
                    problem.rank(),
                    properties.capability
                )));
            }
        }
    }
    Ok(())
}

/// That the artifact can add up the gradients of copied key heads, where there are any.
fn check_copies(artifact: &Artifact, copies: usize, kind: &Kind, properties: &Properties) -> Result<()> {
    if copies == 1 || kind.direction == Direction::Forward {
        return Ok(());
    }
    let backend = Backend::Merge;
    artifact.check(backend, properties.capability).map_err(|error| {
        Error::unsupported(format!("the gradients of copied key heads must be added up: {error}"))
    })?;
    let number = properties.capability.number();
    let row = Kind { backend, rank: 0, causal: [false; 3], ..*kind };
    if artifact.rows(&row).any(|kernel| (kernel.sm_min..kernel.sm_max).contains(&number)) {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "the gradients of copied key heads must be added up, and the artifact has no {} kernel of {backend} for a device of capability {}",
        kind.dtype, properties.capability
    )))
}

/// Tile shapes, and how the table spells them.
#[derive(Clone, Copy)]
struct Candidate {
    tiles: Tiles,
    query: [i32; 3],
    key: [i32; 3],
    schedule: i32,
}

impl Candidate {
    /// A shape of `rank` axes, as it is.
    fn shaped(tiles: Tiles, rank: usize, schedule: i32) -> Candidate {
        let spelled =
            |tile: [usize; 3]| std::array::from_fn(|at| if at < rank { tile[at] as i32 } else { 0 });
        Candidate { tiles, query: spelled(tiles.query), key: spelled(tiles.key), schedule }
    }
}

/// The kernel that a problem wants.
struct Want {
    kind: Kind,
    dims: [usize; 2],
}

impl Want {
    fn hopper(&self) -> impl Iterator<Item = Candidate> {
        let rank = self.kind.rank.max(1);
        let (forward, backward): (&[_], &[_]) = match self.kind.direction {
            Direction::Forward => (tiles::hopper_forward(rank, self.dims[0]), &[]),
            Direction::Backward => (&[], tiles::hopper_backward(rank, self.dims[0])),
        };
        let forward =
            forward.iter().map(move |(tiles, schedule)| Candidate::shaped(*tiles, rank, schedule.number()));
        forward.chain(backward.iter().map(move |tiles| Candidate::shaped(*tiles, rank, -1)))
    }

    fn blackwell(&self) -> impl Iterator<Item = Candidate> {
        let rank = self.kind.rank.max(1);
        let schedules: &'static [i32] = match self.kind.direction {
            Direction::Forward => {
                const { &[Scheduler::Persistent.number(), Scheduler::NonPersistent.number()] }
            }
            Direction::Backward => &[-1],
        };
        tiles::blackwell(self.kind.direction, rank).iter().flat_map(move |tiles| {
            schedules.iter().map(move |schedule| Candidate::shaped(*tiles, rank, *schedule))
        })
    }

    /// The first candidate for which the table has a kernel; and of its kernels the first that fits,
    /// which is the one that the library takes.
    fn pick<'a>(
        &self,
        artifact: &'a Artifact,
        properties: &Properties,
        candidates: impl Iterator<Item = Candidate>,
    ) -> Result<(&'a Kernel, Candidate)> {
        let number = properties.capability.number();
        let head_dim = self.dims[0].max(self.dims[1]);
        let exact = matches!(self.kind.backend, Backend::HopperFna | Backend::HopperFmha);
        let kind =
            artifact.rows(&self.kind).filter(move |kernel| (kernel.sm_min..kernel.sm_max).contains(&number));
        if kind.clone().next().is_none() {
            return Err(self.missing());
        }
        let mut too_large = None;
        for candidate in candidates {
            let takes = kind.clone().filter(|kernel| {
                kernel.query_tile == candidate.query
                    && kernel.key_tile == candidate.key
                    && kernel.schedule == candidate.schedule
                    && if exact { kernel.max_head_dim == head_dim } else { kernel.max_head_dim >= head_dim }
                    && self.dims.iter().all(|dim| dim.is_multiple_of(kernel.alignment.max(1)))
            });
            for kernel in takes {
                if kernel.shared_memory <= properties.shared_memory {
                    return Ok((kernel, candidate));
                }
                too_large = too_large.or(Some(kernel));
            }
        }
        Err(Error::unsupported(match too_large {
            Some(kernel) => format!(
                "kernel {} needs {} bytes of shared memory, the device gives a block {}",
                kernel.name, kernel.shared_memory, properties.shared_memory
            ),
            None => format!(
                "no {} kernel of {} in the artifact takes head dims {} and {} on a device of capability {}",
                self.pass(),
                self.kind.backend,
                self.dims[0],
                self.dims[1],
                properties.capability
            ),
        }))
    }

    /// "2-D forward", "forward"
    fn pass(&self) -> String {
        match self.kind.rank {
            0 => self.kind.direction.to_string(),
            rank => format!("{rank}-D {}", self.kind.direction),
        }
    }

    fn missing(&self) -> Error {
        let Kind { backend, rank, dtype, causal, .. } = self.kind;
        let mask = if rank == 0 { String::new() } else { format!(" with causal {:?}", &causal[..rank]) };
        Error::unsupported(format!(
            "the artifact has no {} kernel of {backend} for {dtype}{mask}",
            self.pass()
        ))
    }
}

#[cfg(test)]
mod tests;
