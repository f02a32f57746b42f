//! Numerics of a linked artifact on a device, against the CPU reference in double precision.
//!
//! Everything here is ignored by default. The binary needs no cargo and no files: build it beside an
//! artifact, carry it to a machine with a device, and run `gpu-<hash> --ignored --nocapture`.
//!
//! What must be covered is what the artifact's own kernel table says: every row that the device can
//! run gets its cases, a row without a case is a failure, and so is a table without rows. What
//! upstream has and the table has not is counted and reported.
//!
//! The error of a case is `max |found - expected| / max |expected|` over a tensor, where `expected` is
//! computed from the very inputs that the device read. A value that was not written is NaN, and counts
//! as infinitely wrong.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![expect(clippy::print_stdout, reason = "the numbers are the result; nobody sees the machine")]

use half::{bf16, f16};
use natten_kernels::device::{Device, DeviceBuffer};
use natten_kernels::dispatch::{self, Decision, Request};
use natten_kernels::functional;
use natten_kernels::ops::{self, BackwardTensors, ForwardTensors, Launch, Stream, TokenTensor};
use natten_kernels::tiles::{self, Determinism, Tiles};
use natten_kernels::{
    Artifact, Backend, Built, Direction, Dtype, Element, Error, Kernel, Problem, TokenPermutation, cpu,
};
use std::collections::BTreeMap;

/// Half a unit in the last place of each type, relative: one rounding of an exact value.
fn roundoff(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::Float16 => 2_f64.powi(-11),
        Dtype::Bfloat16 => 2_f64.powi(-8),
        // Nothing is rounded to less than float32, but hundreds of terms are summed in it, products are
        // sums of three tf32 ones and exponentials the fast ones: some float32 units together.
        _ => 2_f64.powi(-19),
    }
}

/// Forward, the attention weights and the output are each rounded once to the type, sums are float32.
fn forward_bound(dtype: Dtype) -> f64 {
    4.0 * roundoff(dtype)
}

/// Backward, `out`, the weights, the score gradients and the result are rounded; differences of nearly
/// equal numbers (the score gradients) enlarge what the roundings before them left.
fn backward_bound(dtype: Dtype) -> f64 {
    8.0 * roundoff(dtype)
}

/// logsumexp is float32 whatever the type: the scores' products are exact in it but for their sum.
const LOGSUMEXP_BOUND: f64 = 4e-6;

/// The machine's device and the linked artifact, or a message that says which is missing.
fn setup() -> (Device, &'static Artifact) {
    let artifact = natten_kernels::linked()
        .expect("the linked artifact cannot be used")
        .expect("no artifact is linked: build one with nattenc, then this test again");
    let device = Device::open(0).expect("this test needs a device");
    println!(
        "device {} ({}), artifact {} (cuda {}, natten {}), {} kernels",
        device.name(),
        device.properties().capability,
        artifact.variant(),
        artifact.toolkit(),
        artifact.natten(),
        artifact.kernels().len()
    );
    (device, artifact)
}

/// xorshift64*: seeded, so that a case can be repeated.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number from `low..=high`.
    fn range(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() >> 33) as usize % (high - low + 1)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.range(0, from.len() - 1)]
    }

    /// Numbers from -1 to 1.
    fn elements<T: Element>(&mut self, len: usize) -> Vec<T> {
        (0..len).map(|_| T::from_f64((self.next() >> 11) as f64 / (1_u64 << 52) as f64 - 1.0)).collect()
    }
}

fn wide<T: Element>(elements: &[T]) -> Vec<f64> {
    elements.iter().map(|x| x.to_f64()).collect()
}

/// `max |found - expected| / max |expected|`; infinite if anything is not a number.
fn relative_error(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    if found.iter().any(|x| !x.is_finite()) {
        return f64::INFINITY;
    }
    let largest = expected.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    let apart = found.iter().zip(expected).fold(0.0, |most: f64, (a, b)| most.max((a - b).abs()));
    if apart == 0.0 { 0.0 } else { apart / largest }
}

/// The choice, without the backends that were passed over.
fn first_line(decision: &Decision) -> String {
    decision.to_string().lines().next().unwrap_or_default().to_owned()
}

/// Cases counted and their worst errors, per kind of tensor and type.
#[derive(Default)]
struct Tally {
    /// What is said of a case beside its problem: a seed.
    note: String,
    worst: BTreeMap<String, (usize, f64, String)>,
    failures: Vec<String>,
    cases: usize,
}

impl Tally {
    fn add(&mut self, kind: &str, dtype: Dtype, bound: f64, error: f64, case: &str) {
        let row = self.worst.entry(format!("{kind} {dtype}")).or_default();
        row.0 += 1;
        if error > row.1 {
            row.1 = error;
            row.2 = format!("{case}{}", self.note);
        }
        if error > bound {
            self.failures
                .push(format!("{kind} {dtype}: error {error:.3e} exceeds {bound:.3e}: {case}{}", self.note));
        }
    }

    /// A call that should have worked.
    fn failed(&mut self, case: &str, error: &Error) {
        self.failures.push(format!("{case}{}: {error}", self.note));
    }

    #[track_caller]
    fn finish(self, title: &str, least: usize) {
        println!("{title}: {} cases", self.cases);
        for (kind, (count, worst, case)) in &self.worst {
            println!("  {kind}: {count} tensors, largest relative error {worst:.3e} ({case})");
        }
        for failure in self.failures.iter().take(20) {
            println!("  FAILED {failure}");
        }
        assert!(self.failures.is_empty(), "{title}: {} of {} cases failed", self.failures.len(), self.cases);
        assert!(self.cases >= least, "{title}: {} cases, at least {least} were expected", self.cases);
    }
}

fn describe(problem: &Problem) -> String {
    let list = |part: fn(&natten_kernels::Axis) -> usize| {
        problem.axes().iter().map(|axis| part(axis).to_string()).collect::<Vec<_>>().join("x")
    };
    format!(
        "{} {} window {} stride {} dilation {} causal {} batch {} heads {}/{} dims {}/{} extra {}",
        problem.dtype(),
        list(|axis| axis.extent),
        list(|axis| axis.window),
        list(|axis| axis.stride),
        list(|axis| axis.dilation),
        list(|axis| usize::from(axis.causal)),
        problem.batch(),
        problem.heads(),
        problem.heads_kv(),
        problem.dim(),
        problem.dim_value(),
        problem.extra_kv()
    )
}

/// How a case reaches the device.
enum Via {
    Fna(Tiles),
    Reference,
    /// What the dispatcher chose, through the functional API.
    Chosen(Decision),
}

impl Via {
    fn name(&self) -> &'static str {
        match self {
            Via::Fna(_) => "fna",
            Via::Reference => "reference",
            Via::Chosen(decision) => decision.backend.name(),
        }
    }
}

fn forward_case<T: Element>(
    device: &Device,
    problem: &Problem,
    via: &Via,
    random: &mut Random,
    tally: &mut Tally,
) {
    let (q, k, v): (Vec<T>, Vec<T>, Vec<T>) = (
        random.elements(problem.query_len()),
        random.elements(problem.key_len()),
        random.elements(problem.value_len()),
    );
    let case = match via {
        Via::Fna(tiles) => format!("{} tiles {:?}x{:?}", describe(problem), tiles.query, tiles.key),
        Via::Reference => describe(problem),
        Via::Chosen(decision) => format!("{} {}", describe(problem), first_line(decision)),
    };
    tally.cases += 1;
    let run = || -> Result<(Vec<T>, Vec<f32>), Error> {
        let (q, k, v) = (
            DeviceBuffer::from_slice(device, &q)?,
            DeviceBuffer::from_slice(device, &k)?,
            DeviceBuffer::from_slice(device, &v)?,
        );
        let mut out = DeviceBuffer::<T>::filled(device, problem.out_len(), 0xff)?;
        let mut logsumexp = DeviceBuffer::<f32>::filled(device, problem.logsumexp_len(), 0xff)?;
        let tensors = ForwardTensors {
            query: q.as_ptr().cast(),
            key: k.as_ptr().cast(),
            value: v.as_ptr().cast(),
            out: out.as_mut_ptr().cast(),
            logsumexp: logsumexp.as_mut_ptr(),
        };
        match via {
            // SAFETY: the buffers have the problem's sizes and outlive `to_vec`, which waits.
            Via::Fna(tiles) => unsafe { ops::na_forward(problem, tiles, &tensors, &Launch::default()) }?,
            // SAFETY: as above.
            Via::Reference => unsafe { ops::reference_na_forward(problem, &tensors, Stream::DEFAULT) }?,
            Via::Chosen(decision) => {
                // SAFETY: as above.
                unsafe { functional::forward(decision, problem, &tensors, &Launch::default()) }?;
            }
        }
        Ok((out.to_vec()?, logsumexp.to_vec()?))
    };
    match run() {
        Err(error) => tally.failed(&case, &error),
        Ok((out, logsumexp)) => {
            let exact =
                cpu::forward(&problem.with_dtype(Dtype::Float64), &wide(&q), &wide(&k), &wide(&v)).unwrap();
            let (dtype, name) = (problem.dtype(), via.name());
            let error = relative_error(&wide(&out), &exact.out);
            tally.add(&format!("{name} forward out"), dtype, forward_bound(dtype), error, &case);
            let error = relative_error(&wide(&logsumexp), &wide(&exact.logsumexp));
            tally.add(&format!("{name} forward logsumexp"), dtype, LOGSUMEXP_BOUND, error, &case);
        }
    }
}

/// Which key splits and whose delta a backward case uses.
struct BackwardOptions {
    key_splits: [usize; 3],
    own_delta: bool,
}

fn backward_case<T: Element>(
    device: &Device,
    problem: &Problem,
    via: &Via,
    options: &BackwardOptions,
    random: &mut Random,
    tally: &mut Tally,
) {
    let (q, k, v): (Vec<T>, Vec<T>, Vec<T>) = (
        random.elements(problem.query_len()),
        random.elements(problem.key_len()),
        random.elements(problem.value_len()),
    );
    let g: Vec<T> = random.elements(problem.out_len());
    let forward = cpu::forward(problem, &q, &k, &v).unwrap();
    let case = match via {
        Via::Fna(tiles) => format!(
            "{} tiles {:?}x{:?} splits {:?} own delta {}",
            describe(problem),
            tiles.query,
            tiles.key,
            options.key_splits,
            options.own_delta
        ),
        Via::Reference => describe(problem),
        Via::Chosen(decision) => format!("{} {}", describe(problem), first_line(decision)),
    };
    tally.cases += 1;
    let run = || -> Result<[Vec<f64>; 3], Error> {
        let (q, k, v) = (
            DeviceBuffer::from_slice(device, &q)?,
            DeviceBuffer::from_slice(device, &k)?,
            DeviceBuffer::from_slice(device, &v)?,
        );
        let out = DeviceBuffer::from_slice(device, &forward.out)?;
        let grad_out = DeviceBuffer::from_slice(device, &g)?;
        let logsumexp = DeviceBuffer::from_slice(device, &forward.logsumexp)?;
        let delta = cpu::compute_delta(&forward.out, &g, problem.dim_value())?;
        let delta = DeviceBuffer::from_slice(device, &delta)?;
        let mut grad_query = DeviceBuffer::<T>::filled(device, problem.query_len(), 0xff)?;
        let mut grad_key = DeviceBuffer::<T>::filled(device, problem.key_len(), 0xff)?;
        let mut grad_value = DeviceBuffer::<T>::filled(device, problem.value_len(), 0xff)?;
        let tensors = BackwardTensors {
            query: q.as_ptr().cast(),
            key: k.as_ptr().cast(),
            value: v.as_ptr().cast(),
            out: out.as_ptr().cast(),
            grad_out: grad_out.as_ptr().cast(),
            logsumexp: logsumexp.as_ptr(),
            delta: if options.own_delta { delta.as_ptr() } else { std::ptr::null() },
            grad_query: grad_query.as_mut_ptr().cast(),
            grad_key: grad_key.as_mut_ptr().cast(),
            grad_value: grad_value.as_mut_ptr().cast(),
        };
        match via {
            Via::Fna(tiles) => {
                let (splits, launch) = (options.key_splits, Launch::default());
                // SAFETY: the buffers have the problem's sizes and outlive `to_vec`, which waits.
                unsafe { ops::na_backward(problem, tiles, splits, &tensors, &launch) }?;
            }
            // SAFETY: as above.
            Via::Reference => unsafe { ops::reference_na_backward(problem, &tensors, Stream::DEFAULT) }?,
            Via::Chosen(decision) => {
                // SAFETY: as above.
                unsafe { functional::backward(decision, problem, &tensors, &Launch::default()) }?;
            }
        }
        Ok([wide(&grad_query.to_vec()?), wide(&grad_key.to_vec()?), wide(&grad_value.to_vec()?)])
    };
    match run() {
        Err(error) => tally.failed(&case, &error),
        Ok(found) => {
            let exact = problem.with_dtype(Dtype::Float64);
            let exact = cpu::backward(&exact, &wide(&q), &wide(&k), &wide(&v), &wide(&g)).unwrap();
            let (dtype, name) = (problem.dtype(), via.name());
            for (part, found, expected) in [
                ("query", &found[0], exact.query),
                ("key", &found[1], exact.key),
                ("value", &found[2], exact.value),
            ] {
                let error = relative_error(found, &expected);
                tally.add(&format!("{name} backward {part}"), dtype, backward_bound(dtype), error, &case);
            }
        }
    }
}

macro_rules! for_dtype {
    ($dtype:expr, $call:ident($($argument:expr),*)) => {
        match $dtype {
            Dtype::Float32 => $call::<f32>($($argument),*),
            Dtype::Float16 => $call::<f16>($($argument),*),
            Dtype::Bfloat16 => $call::<bf16>($($argument),*),
            other => panic!("{other} has no case"),
        }
    };
}

/// A case of what the dispatcher decided, on what [`setup`] found.
fn chosen_case(
    (device, artifact): (&Device, &Artifact),
    problem: &Problem,
    decision: Decision,
    direction: Direction,
    random: &mut Random,
    tally: &mut Tally,
) {
    let via = Via::Chosen(decision);
    match direction {
        Direction::Forward => {
            for_dtype!(problem.dtype(), forward_case(device, problem, &via, random, tally));
        }
        Direction::Backward => {
            let own_delta = !is_built(artifact, Backend::ComputeDelta);
            let options = BackwardOptions { key_splits: [1; 3], own_delta };
            for_dtype!(problem.dtype(), backward_case(device, problem, &via, &options, random, tally));
        }
    }
}

/// Shape and head dims of a case.
#[derive(Clone, Copy)]
struct Dims {
    batch: usize,
    heads: usize,
    dim: usize,
    dim_value: usize,
}

/// A random problem that a tile of 32 to 128 tokens does not swallow whole.
fn random_problem(random: &mut Random, dtype: Dtype, causal: &[bool], dims: Dims) -> Problem {
    let largest = [300, 22, 9][causal.len() - 1];
    let smallest = [40, 9, 5][causal.len() - 1];
    let (mut extents, mut window, mut stride, mut dilation) = (vec![], vec![], vec![], vec![]);
    for _ in causal {
        let extent = random.range(smallest, largest);
        // Small and large windows alike; whole ones too.
        let reach = match random.range(0, 3) {
            0 => extent,
            1 => extent / 2,
            _ => (extent / 3).min(9),
        };
        let w = random.range(2, reach.max(2));
        extents.push(extent);
        window.push(w);
        stride.push(if random.range(0, 1) == 0 { 1 } else { random.range(1, w) });
        dilation.push(if random.range(0, 1) == 0 { 1 } else { random.range(1, (extent / w).min(4)) });
    }
    Problem::builder(dtype, &extents)
        .batch(dims.batch)
        .heads(dims.heads)
        .dim(dims.dim)
        .dim_value(dims.dim_value)
        .window(&window)
        .stride(&stride)
        .dilation(&dilation)
        .causal(causal)
        .build()
        .unwrap()
}

fn product(tile: &[i32; 3]) -> usize {
    tile.iter().filter(|n| **n > 0).map(|n| *n as usize).product()
}

/// Every legal pair of shapes with the products of `kernel`.
fn legal_tiles(kernel: &Kernel) -> Vec<Tiles> {
    let powers = [1, 2, 4, 8, 16, 32, 64, 128];
    let shapes = |wanted: usize| -> Vec<[usize; 3]> {
        let mut shapes = Vec::new();
        for x in powers {
            for y in powers {
                for z in powers {
                    if x * y * z == wanted {
                        shapes.push([x, y, z]);
                    }
                }
            }
        }
        shapes
    };
    let mut legal = Vec::new();
    for query in shapes(product(&kernel.query_tile)) {
        for key in shapes(product(&kernel.key_tile)) {
            let tiles = Tiles { query, key };
            if tiles.check(kernel.rank, kernel.direction).is_ok() {
                legal.push(tiles);
            }
        }
    }
    legal
}

/// The rows of `family` that `device` can run, with their head dims: more than an earlier row of the
/// same kind takes, so that the library's first fit is this row.
fn rows<'a>(
    artifact: &'a Artifact,
    device: &Device,
    family: &str,
    direction: Direction,
) -> Vec<(&'a Kernel, usize)> {
    let properties = device.properties();
    let number = properties.capability.number();
    let live: Vec<&Kernel> = artifact
        .kernels()
        .iter()
        .filter(|kernel| kernel.family == family && kernel.direction == direction)
        .filter(|kernel| (kernel.sm_min..kernel.sm_max).contains(&number))
        .filter(|kernel| kernel.shared_memory <= properties.shared_memory)
        .collect();
    let kind = |kernel: &Kernel| {
        (kernel.rank, kernel.dtype, kernel.causal, product(&kernel.query_tile), product(&kernel.key_tile))
    };
    live.iter()
        .enumerate()
        .map(|(at, kernel)| {
            let before = live[..at].iter().filter(|other| kind(other) == kind(kernel));
            (*kernel, before.map(|other| other.max_head_dim).max().unwrap_or(0))
        })
        .collect()
}

/// Two pairs of head dims that a row takes and no earlier one: the largest (256 where any will do) and a
/// mixed one.
fn head_dims(kernel: &Kernel, above: usize) -> Vec<(usize, usize)> {
    let step = kernel.alignment.max(1);
    let most = if kernel.max_head_dim > 1024 { 256 } else { kernel.max_head_dim / step * step };
    let least = above / step * step + step;
    if least > most {
        return Vec::new();
    }
    if least == most { vec![(most, step.min(most))] } else { vec![(most, most), (least, step)] }
}

/// What upstream instantiates for devices from 8.0 on and this table lacks, in a line.
fn report_missing(artifact: &Artifact, direction: Direction) {
    let (mut present, mut missing) = (0, Vec::new());
    for rank in 1..=3_usize {
        for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
            for mask in 0..1_usize << rank {
                let causal: [bool; 3] = std::array::from_fn(|axis| mask >> axis & 1 == 1);
                let there = artifact.kernels().iter().any(|kernel| {
                    kernel.family == "fna"
                        && kernel.direction == direction
                        && kernel.rank == rank
                        && kernel.dtype == Some(dtype)
                        && kernel.causal == causal
                });
                if there {
                    present += 1;
                } else {
                    missing.push(format!("{rank}-D {dtype} causal {:?}", &causal[..rank]));
                }
            }
        }
    }
    println!(
        "fna {direction}: {present} kinds (rank, type, causal) in the table, {} not covered",
        missing.len()
    );
    for kind in missing.iter().take(3) {
        println!("  not in this artifact: {kind}");
    }
    if missing.len() > 3 {
        println!("  and {} more", missing.len() - 3);
    }
}

fn is_built(artifact: &Artifact, backend: Backend) -> bool {
    matches!(artifact.backend(backend), Built::Yes(_))
}

/// Whether the functional API can run `backend` on `device`; if not, why is printed.
fn usable(artifact: &Artifact, device: &Device, backend: Backend) -> bool {
    let needed: &[Backend] = match backend {
        Backend::HopperFna => &[Backend::HopperFna, Backend::TokenPermute],
        _ => &[backend],
    };
    let missing = needed.iter().find_map(|one| artifact.check(*one, device.properties().capability).err());
    if let Some(error) = &missing {
        println!("{backend} is not covered here: {error}");
    }
    missing.is_none()
}

/// Causal, window, stride, dilation per axis.
type Setting = ([bool; 2], [usize; 2], [usize; 2], [usize; 2]);

/// The fixed grid of the first slice: 2-D, float16.
const SETTINGS: [Setting; 20] = [
    ([false, false], [3, 3], [1, 1], [1, 1]),
    ([false, false], [7, 7], [1, 1], [1, 1]),
    ([false, false], [4, 6], [1, 1], [1, 1]),
    ([false, false], [16, 20], [1, 1], [1, 1]),
    ([false, false], [2, 2], [1, 1], [1, 1]),
    ([false, false], [7, 7], [2, 3], [1, 1]),
    ([false, false], [6, 6], [6, 6], [1, 1]),
    ([false, false], [5, 8], [1, 4], [1, 1]),
    ([false, false], [7, 7], [1, 1], [2, 2]),
    ([false, false], [4, 5], [1, 1], [4, 3]),
    ([false, false], [3, 3], [1, 1], [5, 6]),
    ([false, false], [6, 5], [3, 2], [2, 4]),
    ([true, false], [7, 7], [1, 1], [1, 1]),
    ([true, false], [6, 7], [3, 1], [2, 1]),
    ([false, true], [7, 7], [1, 1], [1, 1]),
    ([false, true], [5, 6], [2, 4], [1, 3]),
    ([true, true], [16, 20], [1, 1], [1, 1]),
    ([true, true], [7, 5], [1, 1], [2, 4]),
    ([true, true], [8, 8], [4, 8], [1, 1]),
    ([true, true], [4, 4], [3, 2], [4, 5]),
];

#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn reference_and_fna_2d_float16_forward_match_the_cpu() {
    let (device, artifact) = setup();
    if ![Backend::Reference, Backend::Fna].iter().all(|backend| usable(artifact, &device, *backend)) {
        return;
    }
    let mut random = Random::new(1);
    let mut tally = Tally::default();
    for (causal, window, stride, dilation) in SETTINGS {
        for (batch, heads, dim) in [(1, 2, 32), (2, 1, 64), (1, 1, 128)] {
            let problem = Problem::builder(Dtype::Float16, &[16, 20])
                .batch(batch)
                .heads(heads)
                .dim(dim)
                .window(&window)
                .stride(&stride)
                .dilation(&dilation)
                .causal(&causal)
                .build()
                .unwrap();
            forward_case::<f16>(&device, &problem, &Via::Reference, &mut random, &mut tally);
            let request = Request { backend: Some(Backend::Fna), ..Request::new(Direction::Forward) };
            match dispatch::choose_from(artifact, &problem, &device.properties(), &request) {
                Ok(decision) => {
                    let tiles = decision.tiles.expect("fna has tiles");
                    forward_case::<f16>(&device, &problem, &Via::Fna(tiles), &mut random, &mut tally);
                }
                Err(error) => tally.failed(&describe(&problem), &error),
            }
        }
    }
    tally.finish("2-D float16 forward", 120);
}

fn every_fna_row(direction: Direction) {
    let (device, artifact) = setup();
    report_missing(artifact, direction);
    let rows = rows(artifact, &device, "fna", direction);
    let mut tally = Tally::default();
    let mut uncovered = Vec::new();
    for (at, (kernel, above)) in rows.iter().enumerate() {
        let mut random = Random::new(at as u64);
        let legal = legal_tiles(kernel);
        let dims = head_dims(kernel, *above);
        if legal.is_empty() || dims.is_empty() {
            uncovered.push(kernel.name.clone());
            continue;
        }
        let dtype = kernel.dtype.expect("a type that this crate knows");
        for (dim, dim_value) in dims {
            let dims = Dims { batch: random.range(1, 2), heads: random.range(1, 2), dim, dim_value };
            let problem = random_problem(&mut random, dtype, &kernel.causal[..kernel.rank], dims);
            let tiles = random.pick(&legal);
            let via = Via::Fna(tiles);
            match direction {
                Direction::Forward => {
                    for_dtype!(dtype, forward_case(&device, &problem, &via, &mut random, &mut tally));
                }
                Direction::Backward => {
                    let determinism = random.pick(&[Determinism::Required, Determinism::NotRequired]);
                    let options = BackwardOptions {
                        key_splits: tiles::key_splits(&problem, &tiles.key, determinism),
                        // Without the backend that computes it, delta must be ours.
                        own_delta: !is_built(artifact, Backend::ComputeDelta) || random.range(0, 1) == 0,
                    };
                    for_dtype!(
                        dtype,
                        backward_case(&device, &problem, &via, &options, &mut random, &mut tally)
                    );
                }
            }
        }
    }
    println!("fna {direction}: {} rows of the table run on this device", rows.len());
    assert!(uncovered.is_empty(), "rows without a case: {uncovered:?}");
    assert!(
        !rows.is_empty() || direction == Direction::Backward || !is_built(artifact, Backend::Fna),
        "the artifact has no fna forward kernel for this device"
    );
    tally.finish(&format!("fna {direction}, every row"), 2 * rows.len().min(1));
}

#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn every_fna_forward_kernel_matches_the_cpu() {
    every_fna_row(Direction::Forward);
}

#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn every_fna_backward_kernel_matches_the_cpu() {
    every_fna_row(Direction::Backward);
}

fn every_reference_row(direction: Direction) {
    let (device, artifact) = setup();
    let rows = rows(artifact, &device, "reference", direction);
    let mut tally = Tally::default();
    for (at, (kernel, _)) in rows.iter().enumerate() {
        let mut random = Random::new(1000 + at as u64);
        let dtype = kernel.dtype.expect("a type that this crate knows");
        for case in 0..3 {
            // Odd head dims, grouped heads and extra tokens are this backend's own.
            let (heads, heads_kv) = random.pick(&[(1, 1), (4, 2), (3, 1), (2, 2)]);
            let (dim, dim_value) = random.pick(&[(32, 32), (17, 40), (64, 24), (128, 128), (8, 1)]);
            let plain = random_problem(
                &mut random,
                dtype,
                &kernel.causal[..kernel.rank],
                Dims { batch: 1 + case % 2, heads, dim, dim_value },
            );
            let axes =
                |part: fn(&natten_kernels::Axis) -> usize| plain.axes().iter().map(part).collect::<Vec<_>>();
            let problem = Problem::builder(dtype, &plain.extents())
                .batch(plain.batch())
                .heads(heads)
                .heads_kv(heads_kv)
                .dim(dim)
                .dim_value(dim_value)
                .extra_kv(random.pick(&[0, 0, 1, 13]))
                .window(&axes(|axis| axis.window))
                .stride(&axes(|axis| axis.stride))
                .dilation(&axes(|axis| axis.dilation))
                .causal(&kernel.causal[..kernel.rank])
                .build()
                .unwrap();
            match direction {
                Direction::Forward => for_dtype!(
                    dtype,
                    forward_case(&device, &problem, &Via::Reference, &mut random, &mut tally)
                ),
                Direction::Backward => {
                    let options = BackwardOptions { key_splits: [1; 3], own_delta: false };
                    for_dtype!(
                        dtype,
                        backward_case(&device, &problem, &Via::Reference, &options, &mut random, &mut tally)
                    );
                }
            }
        }
    }
    if is_built(artifact, Backend::Reference) {
        assert!(!rows.is_empty(), "the reference backend is built, and its table is empty for {direction}");
    }
    println!("reference {direction}: {} rows of the table run on this device", rows.len());
    tally.finish(&format!("reference {direction}, every row"), 3 * rows.len());
}

#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn every_reference_forward_kernel_matches_the_cpu() {
    every_reference_row(Direction::Forward);
}

#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn every_reference_backward_kernel_matches_the_cpu() {
    every_reference_row(Direction::Backward);
}

fn permutation_case<T: Element + PartialEq>(
    device: &Device,
    permutation: &TokenPermutation,
    (batch, heads, dim): (usize, usize, usize),
    random: &mut Random,
) -> Result<(), Error> {
    let tensor = TokenTensor { dtype: T::DTYPE, batch, heads, dim };
    let input: Vec<T> = random.elements(batch * permutation.tokens() * heads * dim);
    let source = DeviceBuffer::from_slice(device, &input)?;
    let mut permuted =
        DeviceBuffer::<T>::filled(device, batch * permutation.tokens_permuted() * heads * dim, 0xff)?;
    let mut back = DeviceBuffer::<T>::filled(device, input.len(), 0xff)?;
    let (from, to) = (source.as_ptr().cast(), permuted.as_mut_ptr().cast());
    // SAFETY: the buffers have the permutation's sizes and outlive `to_vec`, which waits.
    unsafe { ops::token_permute(permutation, tensor, from, to, Stream::DEFAULT) }?;
    let (from, to) = (permuted.as_ptr().cast(), back.as_mut_ptr().cast());
    // SAFETY: as above.
    unsafe { ops::token_unpermute(permutation, tensor, from, to, Stream::DEFAULT) }?;
    let expected = permutation.permute(&input, batch, heads, dim)?;
    if permuted.to_vec()? != expected {
        return Err(Error::Internal("the permuted tokens differ from the CPU's".into()));
    }
    if back.to_vec()? != input {
        return Err(Error::Internal("the round trip does not give the input back".into()));
    }
    Ok(())
}

#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn token_permutation_is_the_cpus_bit_for_bit_and_its_inverse_returns_the_input() {
    let (device, artifact) = setup();
    if !is_built(artifact, Backend::TokenPermute) {
        println!("token_permute is not in this artifact: 0 cases, not covered");
        return;
    }
    let mut random = Random::new(2000);
    let mut tally = Tally::default();
    for rank in 1..=3_usize {
        for flipped in [false, true] {
            for _ in 0..8 {
                let axes = |random: &mut Random, low, high| -> Vec<usize> {
                    (0..rank).map(|_| random.range(low, high)).collect()
                };
                let layout = axes(&mut random, 1, [200, 30, 12][rank - 1]);
                let tile = axes(&mut random, 1, [64, 16, 8][rank - 1]);
                let dilation = axes(&mut random, 1, 3);
                let permutation = TokenPermutation::new(&layout, &tile, &dilation, flipped).unwrap();
                // Rows of eight, four and single elements.
                let shape = random.pick(&[(1, 1, 64), (2, 3, 8), (1, 1, 12), (2, 2, 2), (1, 3, 5)]);
                let case = format!("{permutation:?} batch, heads, dim {shape:?}");
                for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
                    tally.cases += 1;
                    let result =
                        for_dtype!(dtype, permutation_case(&device, &permutation, shape, &mut random));
                    if let Err(error) = result {
                        tally.failed(&format!("{dtype} {case}"), &error);
                    }
                }
            }
        }
    }
    tally.finish("token permutation", 144);
}

fn delta_case<T: Element>(
    device: &Device,
    (batch, tokens, heads, dim): (usize, usize, usize, usize),
    random: &mut Random,
) -> Result<f64, Error> {
    let tensor = TokenTensor { dtype: T::DTYPE, batch, heads, dim };
    let rows = batch * tokens * heads;
    let (out, grad_out): (Vec<T>, Vec<T>) = (random.elements(rows * dim), random.elements(rows * dim));
    let (a, b) = (DeviceBuffer::from_slice(device, &out)?, DeviceBuffer::from_slice(device, &grad_out)?);
    let mut delta = DeviceBuffer::<f32>::filled(device, rows, 0xff)?;
    let (a, b, to) = (a.as_ptr().cast(), b.as_ptr().cast(), delta.as_mut_ptr());
    // SAFETY: the buffers have these sizes and outlive `to_vec`, which waits.
    unsafe { ops::compute_delta(tensor, tokens, a, b, to, Stream::DEFAULT) }?;
    let found = delta.to_vec()?;
    Ok(relative_error(&wide(&found), &wide(&cpu::compute_delta(&out, &grad_out, dim)?)))
}

#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn compute_delta_matches_the_cpu() {
    let (device, artifact) = setup();
    if !is_built(artifact, Backend::ComputeDelta) {
        println!("compute_delta is not in this artifact: 0 cases, not covered");
        return;
    }
    let mut random = Random::new(3000);
    let mut tally = Tally::default();
    for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
        for shape in
            [(1, 1, 1, 2), (1, 17, 3, 32), (2, 100, 2, 64), (1, 64, 1, 128), (3, 33, 2, 40), (1, 5, 1, 1024)]
        {
            tally.cases += 1;
            let case = format!("batch, tokens, heads, dim {shape:?}");
            match for_dtype!(dtype, delta_case(&device, shape, &mut random)) {
                // The kernel multiplies in the tensors' type and adds in float32.
                Ok(error) => tally.add("delta", dtype, 2.0 * roundoff(dtype), error, &case),
                Err(error) => tally.failed(&case, &error),
            }
        }
    }
    tally.finish("compute_delta", 18);
}

#[path = "gpu/dense.rs"]
mod dense;
#[path = "gpu/determinism.rs"]
mod determinism;
#[path = "gpu/driver.rs"]
mod driver;
#[path = "gpu/functional.rs"]
mod functional_api;
#[path = "gpu/graph.rs"]
mod graph;
#[path = "gpu/hopper.rs"]
mod hopper;
#[path = "gpu/merge.rs"]
mod merge;
#[cfg(not(natten_kernels_unlinked))]
#[path = "gpu/overhead.rs"]
mod overhead;
#[path = "gpu/random.rs"]
mod random;
#[cfg(not(natten_kernels_unlinked))]
#[path = "gpu/refusals.rs"]
mod refusals;
#[path = "gpu/sanitizer.rs"]
mod sanitizer;
#[path = "gpu/tensors.rs"]
mod tensors;
#[path = "gpu/timings.rs"]
mod timings;
