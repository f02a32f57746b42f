//! Two-dimensional neighborhood attention, on the GPU if there is one and an artifact is linked, and on
//! the CPU if not: `cargo run --release -p natten-kernels --example na2d`.
//!
//! Inputs are the same everywhere, so the checksums of two machines can be compared.

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use half::f16;
use natten_kernels::device::{Device, DeviceBuffer, Event};
use natten_kernels::dispatch::{self, Request};
use natten_kernels::functional;
use natten_kernels::ops::{ForwardTensors, Launch};
use natten_kernels::{Direction, Dtype, Element, Error, Problem, cpu};
use std::time::Instant;

fn main() -> Result<(), Error> {
    let problem = Problem::builder(Dtype::Float16, &[32, 32])
        .heads(4)
        .dim(32)
        .window(&[7, 7])
        .stride(&[2, 1])
        .dilation(&[2, 2])
        .build()?;
    let query = elements(problem.query_len(), 1);
    let key = elements(problem.key_len(), 2);
    let value = elements(problem.value_len(), 3);
    println!(
        "problem   2-D, 32 x 32 tokens, 4 heads of 32, window 7 x 7, stride 2 x 1, dilation 2 x 2, float16"
    );

    match on_device(&problem, &query, &key, &value) {
        Ok(()) => Ok(()),
        // Nothing to run on a device here: no artifact, no driver, no device, or no code for it.
        Err(error @ (Error::BackendNotBuilt { .. } | Error::Device(_))) => {
            println!("device    none ({error})");
            on_cpu(&problem, &query, &key, &value)
        }
        Err(error) => Err(error),
    }
}

fn on_device(problem: &Problem, query: &[f16], key: &[f16], value: &[f16]) -> Result<(), Error> {
    let device = Device::open(0)?;
    let decision = dispatch::choose(problem, &device.properties(), &Request::new(Direction::Forward))?;
    let query = DeviceBuffer::from_slice(&device, query)?;
    let key = DeviceBuffer::from_slice(&device, key)?;
    let value = DeviceBuffer::from_slice(&device, value)?;
    let mut out = DeviceBuffer::<f16>::filled(&device, problem.out_len(), 0xff)?;
    let mut logsumexp = DeviceBuffer::<f32>::filled(&device, problem.logsumexp_len(), 0xff)?;
    let tensors = ForwardTensors {
        query: query.as_ptr().cast(),
        key: key.as_ptr().cast(),
        value: value.as_ptr().cast(),
        out: out.as_mut_ptr().cast(),
        logsumexp: logsumexp.as_mut_ptr(),
    };
    let mut times = Vec::new();
    // The first run also loads the kernel.
    for _ in 0..21 {
        let before = Event::record(&device)?;
        // SAFETY: the buffers have the problem's sizes and live until `to_vec` has waited for the device.
        unsafe { functional::forward(&decision, problem, &tensors, &Launch::default()) }?;
        times.push(Event::record(&device)?.milliseconds_since(&before)?);
    }
    times.sort_by(f32::total_cmp);
    println!("device    {}, capability {}", device.name(), device.properties().capability);
    println!("{decision}");
    report(&out.to_vec()?, &logsumexp.to_vec()?);
    println!("time      {:.4} ms (median of {} runs)", times[times.len() / 2], times.len());
    Ok(())
}

fn on_cpu(problem: &Problem, query: &[f16], key: &[f16], value: &[f16]) -> Result<(), Error> {
    let before = Instant::now();
    let result = cpu::forward(problem, query, key, value)?;
    let time = before.elapsed();
    println!("backend   cpu, {} threads", rayon::current_num_threads());
    report(&result.out, &result.logsumexp);
    println!("time      {:.4} ms", time.as_secs_f64() * 1e3);
    Ok(())
}

fn report(out: &[f16], logsumexp: &[f32]) {
    let first: Vec<String> = out[..4].iter().map(|x| format!("{:+.4}", x.to_f64())).collect();
    println!("out       {} ..", first.join(" "));
    println!("checksum  out {:.4}", out.iter().map(|x| Element::to_f64(*x).abs()).sum::<f64>());
    println!("checksum  logsumexp {:.4}", logsumexp.iter().map(|x| f64::from(*x)).sum::<f64>());
}

/// Numbers between -1 and 1 that look random and are the same everywhere.
fn elements(len: usize, seed: u32) -> Vec<f16> {
    let mut state = seed;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f16::from_f64(f64::from(state >> 8) / f64::from(1 << 23) - 1.0)
        })
        .collect()
}
