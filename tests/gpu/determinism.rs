//! The same bits every time, where that is promised: every forward pass, the backward passes of the reference
//! backend, and those of fna and fmha when it is asked of them. The Hopper backward passes refuse to promise it.

use super::tensors::{Tensors, Work, sizable, sizable_dense};
use super::*;
use natten_kernels::functional::Options;
use natten_kernels::ops::Schedule;

/// Runs beyond the first.
const REPEATS: usize = 2;

/// How far results of the same call lie apart: 0 if all bits are the same.
fn spread<T: Element>(
    device: &Device,
    work: &Work,
    direction: Direction,
    run: &dyn Fn(&mut Tensors<T>) -> Result<(), Error>,
) -> Result<f64, Error> {
    let once = || -> Result<Vec<Vec<f64>>, Error> {
        let mut tensors = Tensors::<T>::new(device, work.sizes(), 8000)?;
        run(&mut tensors)?;
        tensors.written(direction)
    };
    let first = once()?;
    let mut apart: f64 = 0.0;
    for _ in 0..REPEATS {
        for (a, b) in once()?.iter().zip(&first) {
            let same = a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
            // Numbers that are equal and not the same bits are a difference too; NaN is never right.
            let least = if same { 0.0 } else { f64::MIN_POSITIVE };
            apart = apart.max(relative_error(a, b)).max(least);
        }
    }
    Ok(apart)
}

/// A pass as `options` says, backward after its own forward pass.
fn check<T: Element>(
    device: &Device,
    work: &Work,
    direction: Direction,
    options: &Options,
    tally: &mut Tally,
) {
    let case = work.describe();
    tally.cases += 1;
    let run = |tensors: &mut Tensors<T>| -> Result<(), Error> {
        work.call(device, Direction::Forward, tensors, options)?;
        if direction == Direction::Backward {
            work.call(device, Direction::Backward, tensors, options)?;
        }
        Ok(())
    };
    let name = options.backend.map_or("chosen", Backend::name);
    match spread::<T>(device, work, direction, &run) {
        Ok(apart) => tally.add(&format!("{name} {direction} again"), work.dtype(), 0.0, apart, &case),
        Err(error) => tally.failed(&format!("{name} {direction} {case}"), &error),
    }
}

const BACKENDS: [Backend; 5] =
    [Backend::Reference, Backend::Fna, Backend::HopperFna, Backend::Fmha, Backend::HopperFmha];

/// Forward and backward of each backend with its own choice of tiles.
#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn what_is_deterministic_gives_the_same_bits_again() {
    let (device, artifact) = setup();
    let mut tally = Tally::default();
    for backend in BACKENDS {
        if !usable(artifact, &device, backend) {
            continue;
        }
        let hopper = matches!(backend, Backend::HopperFna | Backend::HopperFmha);
        let dtypes = [Dtype::Float16, Dtype::Bfloat16, Dtype::Float32];
        for dtype in dtypes.into_iter().filter(|dtype| !hopper || *dtype != Dtype::Float32) {
            for dim in [32, 64, 128] {
                let works: Vec<Work> = match backend {
                    Backend::Fmha | Backend::HopperFmha => {
                        [false, true].map(|causal| Work::Dense(sizable_dense(dtype, dim, causal))).into()
                    }
                    _ => (1..=3).map(|rank| Work::Na(sizable(dtype, rank, dim))).collect(),
                };
                let options = Options {
                    backend: Some(backend),
                    determinism: Determinism::Required,
                    ..Options::default()
                };
                for work in works {
                    let forward = Direction::Forward;
                    for_dtype!(dtype, check(&device, &work, forward, &options, &mut tally));
                    let backward = Direction::Backward;
                    if !hopper {
                        for_dtype!(dtype, check(&device, &work, backward, &options, &mut tally));
                    }
                }
            }
        }
        if hopper {
            refuses(&device, backend);
        }
    }
    tally.finish("determinism", 0);
}

/// A Hopper backward pass of which the same bits are asked.
fn refuses(device: &Device, backend: Backend) {
    let dtype = Dtype::Float16;
    let work = match backend {
        Backend::HopperFmha => Work::Dense(sizable_dense(dtype, 64, false)),
        _ => Work::Na(sizable(dtype, 2, 64)),
    };
    let options =
        Options { backend: Some(backend), determinism: Determinism::Required, ..Options::default() };
    let mut tensors = Tensors::<f16>::new(device, work.sizes(), 8001).unwrap();
    let error = work.call(device, Direction::Backward, &mut tensors, &options).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)), "{backend}: {error}");
    println!("{backend}: {error}");
}

/// Every forward kernel of hopper_fna, through the functional API with the tiles and the schedule of its row.
#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn every_hopper_fna_forward_kernel_gives_the_same_bits_again() {
    let (device, artifact) = setup();
    if !usable(artifact, &device, Backend::HopperFna) {
        return;
    }
    let mut tally = Tally::default();
    for (kernel, _) in rows(artifact, &device, "hopper_fna", Direction::Forward) {
        let dtype = kernel.dtype.expect("a type that this crate knows");
        let plain = sizable(dtype, kernel.rank, kernel.max_head_dim);
        let axes =
            |part: fn(&natten_kernels::Axis) -> usize| plain.axes().iter().map(part).collect::<Vec<_>>();
        let problem = Problem::builder(dtype, &plain.extents())
            .heads(2)
            .dim(kernel.max_head_dim)
            .window(&axes(|axis| axis.window))
            .causal(&kernel.causal[..kernel.rank])
            .build()
            .unwrap();
        for_dtype!(dtype, check_row(&device, artifact, kernel, &problem, &mut tally));
    }
    tally.finish("determinism of hopper_fna forward, every row", 1);
}

fn check_row<T: Element>(
    device: &Device,
    artifact: &Artifact,
    kernel: &Kernel,
    problem: &Problem,
    tally: &mut Tally,
) {
    tally.cases += 1;
    let tiles = hopper::tiles_of(kernel);
    let request = Request { backend: Some(Backend::HopperFna), ..Request::new(Direction::Forward) };
    let decision = dispatch::choose_from(artifact, problem, &device.properties(), &request);
    let case = format!("{} tiles {:?}x{:?}", describe(problem), tiles.query, tiles.key);
    let run = |tensors: &mut Tensors<T>| -> Result<(), Error> {
        let schedule = Schedule::from_number(kernel.schedule);
        let decision = Decision { tiles: Some(tiles), schedule, ..decision.clone()? };
        // SAFETY: the buffers have the problem's sizes and outlive the copies back, which wait.
        unsafe { functional::forward(&decision, problem, &tensors.forward(), &Launch::default()) }
    };
    match spread::<T>(device, &Work::Na(problem.clone()), Direction::Forward, &run) {
        Ok(apart) => tally.add("hopper_fna forward again", problem.dtype(), 0.0, apart, &case),
        Err(error) => tally.failed(&case, &error),
    }
}
