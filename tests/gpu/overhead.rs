//! Host time of a call: in this crate up to the C ABI, and in the C ABI from entry to return, where upstream's
//! `initialize` and the launch are.

use super::tensors::{Tensors, Work};
use super::*;
use natten_kernels::functional::Options;
use natten_kernels::ops::{Allocator, Schedule};
use natten_kernels::sys;
use std::ffi::c_void;
use std::time::Instant;

/// Microseconds of a call, median of many; the device is waited for now and then, between calls.
fn micros(device: &Device, run: &mut dyn FnMut()) -> f64 {
    let mut times = Vec::new();
    for call in 0..2200 {
        if call % 50 == 0 {
            device.synchronize().unwrap();
        }
        let before = Instant::now();
        run();
        let time = before.elapsed();
        if call >= 200 {
            times.push(time.as_secs_f64() * 1e6);
        }
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn line(what: &str, time: f64) {
    println!("  {what:<72} {time:8.3} us");
}

/// Parts of one block, handed out without a call to CUDA; all are free again when the last one is.
struct Bump {
    block: *mut c_void,
    next: usize,
    live: usize,
}

unsafe extern "C" fn bump_alloc(ctx: *mut c_void, bytes: usize, zero: i32, _: *mut c_void) -> *mut c_void {
    // SAFETY: `ctx` is the test's, which outlives the calls.
    let bump = unsafe { &mut *ctx.cast::<Bump>() };
    if zero != 0 {
        return std::ptr::null_mut();
    }
    let pointer = bump.block.wrapping_byte_add(bump.next);
    bump.next += bytes.next_multiple_of(256);
    bump.live += 1;
    pointer
}

unsafe extern "C" fn bump_free(ctx: *mut c_void, _: *mut c_void, _: *mut c_void) {
    // SAFETY: as above.
    let bump = unsafe { &mut *ctx.cast::<Bump>() };
    bump.live -= 1;
    if bump.live == 0 {
        bump.next = 0;
    }
}

/// Half an allocator: the C ABI refuses it among its first checks, and this crate passes it on.
fn refused() -> sys::natten_allocator {
    sys::natten_allocator { ctx: std::ptr::null_mut(), alloc: None, free: Some(bump_free) }
}

fn with(allocator: sys::natten_allocator) -> Launch {
    // SAFETY: either refused before it is used, or the test's own, which outlives the calls.
    Launch { allocator: unsafe { Allocator::from_raw(allocator) }, ..Launch::default() }
}

fn raw_fna(
    problem: &Problem,
    tiles: &Tiles,
    dtype: i32,
    tensors: &ForwardTensors,
) -> sys::natten_fna_forward_args {
    let three = |tile: [usize; 3]| tile.map(|n| n as i32);
    sys::natten_fna_forward_args {
        size: size_of::<sys::natten_fna_forward_args>() as u32,
        dtype,
        query: tensors.query,
        key: tensors.key,
        value: tensors.value,
        out: tensors.out,
        logsumexp: tensors.logsumexp,
        batch: 1,
        heads: problem.heads() as i32,
        dim: problem.dim() as i32,
        dim_value: problem.dim() as i32,
        qkv_shape: [SIDE as i32, SIDE as i32, 1],
        window: [7, 7, 1],
        stride: [1; 3],
        dilation: [1; 3],
        causal: [0; 3],
        query_tile: three(tiles.query),
        key_tile: three(tiles.key),
        scale: problem.scale(),
        stream: std::ptr::null_mut(),
        allocator: NO_ALLOCATOR,
    }
}

const SIDE: usize = 32;

/// CUDA's own pool.
const NO_ALLOCATOR: sys::natten_allocator =
    sys::natten_allocator { ctx: std::ptr::null_mut(), alloc: None, free: None };

fn problem(dtype: Dtype) -> Problem {
    Problem::builder(dtype, &[SIDE, SIDE]).heads(2).dim(128).window(&[7, 7]).build().unwrap()
}

fn fna(device: &Device, artifact: &Artifact) {
    if !usable(artifact, device, Backend::Fna) {
        return;
    }
    // The Hopper backend takes no float32, so fna is what is chosen.
    let problem = problem(Dtype::Float32);
    let properties = device.properties();
    let request = Request::new(Direction::Forward);
    let work = Work::Na(problem.clone());
    let mut tensors = Tensors::<f32>::new(device, work.sizes(), 9600).unwrap();
    let forward = tensors.forward();
    let decision = dispatch::choose(&problem, &properties, &request).unwrap();
    assert_eq!(decision.backend, Backend::Fna, "{decision}");
    let tiles = decision.tiles.expect("fna has tiles");
    println!("{}, {}:", describe(&problem), first_line(&decision));
    let choose = micros(device, &mut || {
        std::hint::black_box(dispatch::choose(&problem, &properties, &request).unwrap());
    });
    line("dispatch::choose", choose);

    // Refused at the C ABI's entry: all that this crate does, and little more.
    let options = Options { launch: with(refused()), ..Options::default() };
    let auto = micros(device, &mut || {
        // SAFETY: refused, so no pointer is followed.
        let result = unsafe { functional::na2d_forward(&problem, &properties, &forward, &options) };
        assert!(result.is_err());
    });
    let kept = micros(device, &mut || {
        // SAFETY: as above.
        let result = unsafe { functional::forward(&decision, &problem, &forward, &options.launch) };
        assert!(result.is_err());
    });
    let mut args = raw_fna(&problem, &tiles, sys::NATTEN_FLOAT32, &forward);
    args.allocator = refused();
    let entry = micros(device, &mut || {
        // SAFETY: as above.
        let status = unsafe { sys::natten_na2d_forward(&raw const args) };
        assert_ne!(status, sys::NATTEN_OK);
    });
    line("call with auto dispatch that the C ABI refuses at its entry", auto);
    line("call with a kept decision that the C ABI refuses at its entry", kept);
    line("the refusal alone", entry);
    line("=> Rust call to C ABI entry, auto dispatch", auto - entry);
    line("=> Rust call to C ABI entry, kept decision", kept - entry);

    args.allocator = NO_ALLOCATOR;
    let launch = Launch::default();
    // SAFETY: the buffers have the problem's sizes and outlive the work.
    unsafe { functional::forward(&decision, &problem, &forward, &launch) }.unwrap();
    let whole = micros(device, &mut || {
        // SAFETY: as above.
        unsafe { functional::na2d_forward(&problem, &properties, &forward, &Options::default()) }.unwrap();
    });
    let raw = micros(device, &mut || {
        // SAFETY: as above.
        assert_eq!(unsafe { sys::natten_na2d_forward(&raw const args) }, sys::NATTEN_OK);
    });
    line("whole call, auto dispatch", whole);
    line("=> C ABI entry to return (checks, initialize, launch)", raw);
}

fn hopper(device: &Device, artifact: &Artifact) {
    if !usable(artifact, device, Backend::HopperFna) {
        return;
    }
    let problem = problem(Dtype::Float16);
    let properties = device.properties();
    let request = Request::new(Direction::Forward);
    let work = Work::Na(problem.clone());
    let mut tensors = Tensors::<f16>::new(device, work.sizes(), 9700).unwrap();
    let forward = tensors.forward();
    let decision = dispatch::choose(&problem, &properties, &request).unwrap();
    assert_eq!(decision.backend, Backend::HopperFna, "{decision}");
    println!("{}, {}:", describe(&problem), first_line(&decision));
    let choose = micros(device, &mut || {
        std::hint::black_box(dispatch::choose(&problem, &properties, &request).unwrap());
    });
    line("dispatch::choose", choose);
    // Stopped where temporaries are asked for, before the first operation.
    let options = Options { launch: with(refused()), ..Options::default() };
    let stopped = micros(device, &mut || {
        // SAFETY: refused, so no pointer is followed.
        let result = unsafe { functional::na2d_forward(&problem, &properties, &forward, &options) };
        assert!(result.is_err());
    });
    line("call with auto dispatch that stops at the allocator", stopped);

    // Twice what a call needs: operations may ask for more of their own.
    let bytes = functional::workspace_bytes(&decision, &problem, true).unwrap();
    let mut block = DeviceBuffer::<f32>::filled(device, bytes / 2 + (1 << 20), 0).unwrap();
    let mut bump = Bump { block: block.as_mut_ptr().cast(), next: 0, live: 0 };
    let ctx = (&raw mut bump).cast();
    let launch = with(sys::natten_allocator { ctx, alloc: Some(bump_alloc), free: Some(bump_free) });
    let options = Options { launch, ..Options::default() };
    let auto = micros(device, &mut || {
        // SAFETY: the buffers have the problem's sizes and outlive the work.
        unsafe { functional::na2d_forward(&problem, &properties, &forward, &options) }.unwrap();
    });
    let kept = micros(device, &mut || {
        // SAFETY: as above.
        unsafe { functional::forward(&decision, &problem, &forward, &launch) }.unwrap();
    });
    let pool = micros(device, &mut || {
        // SAFETY: as above.
        unsafe { functional::forward(&decision, &problem, &forward, &Launch::default()) }.unwrap();
    });
    line("whole call (5 permutations and the operation), auto dispatch", auto);
    line("whole call, kept decision", kept);
    line("whole call, kept decision, CUDA's pool for temporaries", pool);
    alone(device, &problem, &decision, &forward);
}

/// The operation and one permutation by themselves; tensors are whole tiles, so their order does not matter.
fn alone(device: &Device, problem: &Problem, decision: &Decision, forward: &ForwardTensors) {
    let tiles = decision.tiles.expect("hopper_fna has tiles");
    let schedule = decision.schedule.unwrap_or(Schedule::NonPersistent);
    let launch = Launch::default();
    let typed = micros(device, &mut || {
        // SAFETY: 32 x 32 tokens are whole tiles, so the buffers have the sizes; they outlive the work.
        unsafe { ops::hopper_na_forward(problem, &tiles, schedule, forward, &launch) }.unwrap();
    });
    let three = |tile: [usize; 3]| tile.map(|n| n as i32);
    let shape = [SIDE as i32, SIDE as i32, 1];
    let args = sys::natten_tiled_fna_forward_args {
        size: size_of::<sys::natten_tiled_fna_forward_args>() as u32,
        dtype: sys::NATTEN_FLOAT16,
        query: forward.query,
        key: forward.key,
        value: forward.value,
        out: forward.out,
        logsumexp: forward.logsumexp,
        batch: 1,
        seqlen_q: problem.tokens() as i32,
        seqlen_kv: problem.tokens() as i32,
        heads: problem.heads() as i32,
        heads_kv: problem.heads() as i32,
        dim: problem.dim() as i32,
        num_extra_kv: 0,
        q_shape: shape,
        kv_shape: shape,
        qkv_shape: shape,
        window: [7, 7, 1],
        stride: [1; 3],
        dilation: [1; 3],
        causal: [0; 3],
        query_tile: three(tiles.query),
        key_tile: three(tiles.key),
        kernel_type: schedule.number(),
        persistent: 0,
        scale: problem.scale(),
        scale_q: 1.0,
        scale_k: 1.0,
        scale_v: 1.0,
        inv_scale_o: 1.0,
        stream: std::ptr::null_mut(),
        allocator: NO_ALLOCATOR,
    };
    let raw = micros(device, &mut || {
        // SAFETY: as above.
        assert_eq!(unsafe { sys::natten_hopper_na2d_forward(&raw const args) }, sys::NATTEN_OK);
    });
    let order = ops::tiled_order(problem, &tiles.query).unwrap();
    let tensor = TokenTensor { dtype: Dtype::Float16, batch: 1, heads: problem.heads(), dim: problem.dim() };
    let permute = micros(device, &mut || {
        // SAFETY: as above; the two tensors are different ones.
        unsafe { ops::token_permute(&order, tensor, forward.query, forward.out, Stream::DEFAULT) }.unwrap();
    });
    line("ops::hopper_na_forward", typed);
    line("=> C ABI entry to return (checks, upstream's initialize, launch)", raw);
    line("=> ops::hopper_na_forward to C ABI entry", typed - raw);
    line("ops::token_permute, launch included", permute);
}

#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn host_overhead() {
    let (device, artifact) = setup();
    fna(&device, artifact);
    hopper(&device, artifact);
    line("reading the clock twice, in each number above", micros(&device, &mut || {}));
}
