//! Which backend and which tile shapes a problem runs with: a pure function of the problem, the device
//! and the artifact, which can be asked without a GPU.
//!
//! Backends are tried in upstream's order. The first that is built, has code for the device, and has a
//! kernel that takes the problem is chosen; why each one before it was not is kept and can be printed.

use crate::backend::Backend;
use crate::device::Properties;
use crate::error::{Error, Result};
use crate::ops;
use crate::problem::Problem;
use crate::table::{Direction, Kernel};
use crate::tiles::{self, Determinism, Tiles};
use crate::variant::{self, Artifact};
use std::fmt;

/// Upstream's order of preference; the reference kernels, which upstream never picks, take what is left.
const ORDER: [Backend; 4] = [Backend::BlackwellFna, Backend::HopperFna, Backend::Fna, Backend::Reference];

/// What to run, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The backend.
    pub backend: Backend,
    /// Entry point of the kernel that the library will pick; `None` for the reference backend.
    pub kernel: Option<String>,
    /// Tile shapes to pass; `None` for the reference backend.
    pub tiles: Option<Tiles>,
    /// Key splits to pass to a backward pass; 1 everywhere else.
    pub key_splits: [usize; 3],
    /// The backends that were preferred but cannot run it, with the reason of each.
    pub passed_over: Vec<(Backend, Error)>,
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
        if self.key_splits != [1; 3] {
            write!(f, ", key splits {:?}", self.key_splits)?;
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

/// The choice for `problem` on a device with `properties`, from the linked artifact.
///
/// # Errors
/// [`Error::BackendNotBuilt`] if nothing is linked; else as [`choose_from`].
pub fn choose(problem: &Problem, properties: &Properties, request: &Request) -> Result<Decision> {
    choose_from(variant::require(request.backend.unwrap_or(Backend::Fna))?, problem, properties, request)
}

/// The choice for `problem` on a device with `properties`, from `artifact`.
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
    if let Some(backend) = request.backend {
        return consider(backend, artifact, problem, properties, request);
    }
    let mut passed_over = Vec::new();
    for backend in ORDER {
        match consider(backend, artifact, problem, properties, request) {
            Ok(decision) => return Ok(Decision { passed_over, ..decision }),
            Err(reason) => passed_over.push((backend, reason)),
        }
    }
    Err(none_fits(passed_over))
}

fn none_fits(passed_over: Vec<(Backend, Error)>) -> Error {
    let missing = |error: &Error| matches!(error, Error::BackendNotBuilt { .. });
    let foreign = |error: &Error| matches!(error, Error::Device(_)) || missing(error);
    let core = |matching: fn(&Error) -> bool| {
        passed_over
            .iter()
            .find(|(backend, error)| *backend == Backend::Fna && matching(error))
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
    let plain = Decision { backend, kernel: None, tiles: None, key_splits: [1; 3], passed_over: Vec::new() };
    match backend {
        Backend::Fna => {
            artifact.check(backend, properties.capability)?;
            ops::check_fna(problem)?;
            let (kernel, tiles) = choose_fna(artifact, problem, properties, request.direction)?;
            let key_splits = match request.direction {
                Direction::Forward => [1; 3],
                Direction::Backward => tiles::key_splits(problem, &tiles.key, request.determinism),
            };
            Ok(Decision { kernel: Some(kernel.name.clone()), tiles: Some(tiles), key_splits, ..plain })
        }
        Backend::Reference => {
            artifact.check(backend, properties.capability)?;
            ops::check_reference(problem, request.direction)?;
            rows(artifact, backend, problem, request.direction)
                .next()
                .ok_or_else(|| Error::unsupported(describe_missing(backend, problem, request.direction)))?;
            Ok(plain)
        }
        Backend::HopperFna | Backend::BlackwellFna => {
            artifact.check(backend, properties.capability)?;
            Err(Error::unsupported(format!(
                "{backend} is in the artifact, but this version of the crate does not run it yet"
            )))
        }
        Backend::TokenPermute
        | Backend::ComputeDelta
        | Backend::Fmha
        | Backend::HopperFmha
        | Backend::BlackwellFmha => {
            Err(Error::invalid(format!("{backend} does not compute neighborhood attention")))
        }
    }
}

/// The rows of the table for this kind of problem, whatever its size.
fn rows<'a>(
    artifact: &'a Artifact,
    backend: Backend,
    problem: &'a Problem,
    direction: Direction,
) -> impl Iterator<Item = &'a Kernel> {
    artifact.kernels().iter().filter(move |kernel| {
        kernel.family == backend.name()
            && kernel.direction == direction
            && kernel.rank == problem.rank()
            && kernel.dtype == Some(problem.dtype())
            && kernel.causal == problem.causal()
    })
}

fn describe_missing(backend: Backend, problem: &Problem, direction: Direction) -> String {
    format!(
        "the artifact has no {}-D {direction} kernel of {backend} for {} with causal {:?}",
        problem.rank(),
        problem.dtype(),
        &problem.causal()[..problem.rank()]
    )
}

/// The first pair of tile products, the default first, for which the table has a kernel; and of its
/// kernels the first that fits, which is the one that the library takes.
fn choose_fna<'a>(
    artifact: &'a Artifact,
    problem: &'a Problem,
    properties: &Properties,
    direction: Direction,
) -> Result<(&'a Kernel, Tiles)> {
    let number = properties.capability.number();
    let head_dim = problem.dim().max(problem.dim_value());
    let kind: Vec<&Kernel> = rows(artifact, Backend::Fna, problem, direction)
        .filter(|kernel| (kernel.sm_min..kernel.sm_max).contains(&number))
        .collect();
    if kind.is_empty() {
        return Err(Error::unsupported(describe_missing(Backend::Fna, problem, direction)));
    }
    let mut too_large = None;
    for product in tiles::products(direction, problem.dtype(), properties.capability, head_dim) {
        let takes = kind.iter().copied().filter(|kernel| {
            product_of(&kernel.query_tile) == product.0
                && product_of(&kernel.key_tile) == product.1
                && kernel.max_head_dim >= head_dim
                && problem.dim().is_multiple_of(kernel.alignment.max(1))
                && problem.dim_value().is_multiple_of(kernel.alignment.max(1))
        });
        for kernel in takes {
            if kernel.shared_memory <= properties.shared_memory {
                return Ok((kernel, Tiles::balanced(problem.rank(), *product)));
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
            "no {}-D {direction} kernel of fna in the artifact takes head dims {} and {} on a device of capability {}",
            problem.rank(),
            problem.dim(),
            problem.dim_value(),
            properties.capability
        ),
    }))
}

/// A tile's tokens: the C ABI leaves numbers that do not apply at 0.
fn product_of(tile: &[i32; 3]) -> usize {
    tile.iter().filter(|n| **n > 0).map(|n| *n as usize).product()
}

#[cfg(test)]
mod tests;
