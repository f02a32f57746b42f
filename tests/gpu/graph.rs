//! Capture into CUDA graphs: the functional API on a capturing stream with the default allocator, replayed and
//! compared with a call that ran at once. A hidden synchronisation or a plain allocation fails the capture.

use super::driver::{Driver, Outcome, TestStream};
use super::tensors::{Tensors, Work, sizable, sizable_dense};
use super::*;
use natten_kernels::functional::Options;

const REPLAYS: usize = 2;

/// Errors of each replay's tensors against those of the call that ran at once, and the nodes of the graph.
fn replayed(
    device: &Device,
    driver: &Driver,
    work: &Work,
    direction: Direction,
    backend: Backend,
) -> Outcome<(Vec<f64>, String)> {
    let stream = TestStream::new(driver)?;
    // SAFETY: the stream is live for as long as the options.
    let launch = Launch { stream: unsafe { Stream::from_raw(stream.raw()) }, ..Launch::default() };
    let options = Options { backend: Some(backend), launch, ..Options::default() };
    let tensors = Tensors::<f16>::new(device, work.sizes(), 9000);
    let mut tensors = tensors.map_err(|error| error.to_string())?;
    let call = |tensors: &mut Tensors<f16>, direction| {
        work.call(device, direction, tensors, &options).map(|_| ()).map_err(|error| error.to_string())
    };
    // Backward reads what forward wrote. The first call also loads the kernels, which a capture must not.
    call(&mut tensors, Direction::Forward)?;
    if direction == Direction::Backward {
        call(&mut tensors, direction)?;
    }
    stream.wait()?;
    let expected = tensors.written(direction).map_err(|error| error.to_string())?;
    let graph = stream.capture(|| call(&mut tensors, direction))?;
    let nodes: Vec<String> = graph.nodes()?.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    let mut errors = Vec::new();
    for _ in 0..REPLAYS {
        for (address, bytes) in tensors.outputs(direction) {
            driver.fill(address, 0xff, bytes)?;
        }
        device.synchronize().map_err(|error| error.to_string())?;
        graph.launch(&stream)?;
        stream.wait()?;
        let found = tensors.written(direction).map_err(|error| error.to_string())?;
        errors.extend(found.iter().zip(&expected).map(|(found, expected)| relative_error(found, expected)));
    }
    Ok((errors, nodes.join(", ")))
}

#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn functional_calls_are_captured_into_graphs() {
    let (device, artifact) = setup();
    let driver = Driver::open();
    let mut tally = Tally::default();
    let grouped = Problem::builder(Dtype::Float16, &[37, 29]).heads(4).heads_kv(2).dim(64).window(&[13, 9]);
    let mut works: Vec<(Backend, Work)> = Vec::new();
    for backend in [Backend::HopperFna, Backend::Fna, Backend::Reference] {
        works.extend((1..=3).map(|rank| (backend, Work::Na(sizable(Dtype::Float16, rank, 64)))));
        works.push((backend, Work::Na(grouped.clone().build().unwrap())));
    }
    for backend in [Backend::HopperFmha, Backend::Fmha] {
        works.push((backend, Work::Dense(sizable_dense(Dtype::Float16, 128, true))));
    }
    for (backend, work) in works {
        if !usable(artifact, &device, backend) {
            continue;
        }
        for direction in [Direction::Forward, Direction::Backward] {
            // Only the reference backend has gradients of grouped heads.
            let grouped = matches!(&work, Work::Na(problem) if problem.heads() != problem.heads_kv());
            if grouped && direction == Direction::Backward && backend != Backend::Reference {
                continue;
            }
            tally.cases += 1;
            let case = work.describe();
            // A backward pass may add in another order each time.
            let bound = match direction {
                Direction::Forward => 0.0,
                Direction::Backward => backward_bound(Dtype::Float16),
            };
            match replayed(&device, &driver, &work, direction, backend) {
                Ok((errors, nodes)) => {
                    println!("{backend} {direction}: {nodes} ({case})");
                    for error in errors {
                        let kind = format!("{backend} {direction} replayed");
                        tally.add(&kind, Dtype::Float16, bound, error, &case);
                    }
                }
                Err(error) => {
                    tally.failed(&format!("{backend} {direction} {case}"), &Error::Internal(error));
                }
            }
        }
    }
    tally.finish("graph capture", 0);
}
