//! What cannot be run gives a status and a message, also to callers of the C ABI who pass our checks by.

use super::tensors::{Tensors, Work, sizable, sizable_dense};
use super::*;
use natten_kernels::functional::Options;
use natten_kernels::ops::{DenseTiles, Scheduler};
use natten_kernels::sys;
use std::ffi::CStr;

/// A legal call, of which each case breaks one thing.
fn legal(pointer: *mut std::ffi::c_void) -> sys::natten_fna_forward_args {
    sys::natten_fna_forward_args {
        size: size_of::<sys::natten_fna_forward_args>() as u32,
        dtype: sys::NATTEN_FLOAT16,
        query: pointer,
        key: pointer,
        value: pointer,
        out: pointer,
        logsumexp: std::ptr::null_mut(),
        batch: 1,
        heads: 1,
        dim: 32,
        dim_value: 32,
        qkv_shape: [8, 8, 1],
        window: [3, 3, 1],
        stride: [1, 1, 1],
        dilation: [1, 1, 1],
        causal: [0; 3],
        query_tile: [8, 8, 1],
        key_tile: [8, 8, 1],
        scale: 1.0,
        stream: std::ptr::null_mut(),
        allocator: sys::natten_allocator { ctx: std::ptr::null_mut(), alloc: None, free: None },
    }
}

fn message() -> String {
    // SAFETY: takes nothing and returns a string that lives until this thread's next call.
    let message = unsafe { sys::natten_last_error() };
    // SAFETY: the C ABI's strings are NUL-terminated.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}

type Edit = fn(&mut sys::natten_fna_forward_args);

#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn the_c_abi_refuses_with_a_status_and_a_message() {
    let (device, artifact) = setup();
    if !is_built(artifact, Backend::Fna) {
        println!("fna is not in this artifact: 0 cases, not covered");
        return;
    }
    let mut buffer = DeviceBuffer::<f32>::filled(&device, 1 << 20, 0).unwrap();
    let pointer = buffer.as_mut_ptr().cast();
    let has_2d = artifact.kernels().iter().any(|kernel| {
        kernel.family == "fna"
            && kernel.direction == Direction::Forward
            && (kernel.rank, kernel.dtype, kernel.causal) == (2, Some(Dtype::Float16), [false; 3])
    });
    let cases: &[(&str, Edit, &[i32])] = &[
        ("a struct of another size", |a| a.size -= 4, &[sys::NATTEN_E_INVALID_ARGUMENT]),
        ("an unknown type", |a| a.dtype = 99, &[sys::NATTEN_E_INVALID_ARGUMENT]),
        ("a null query", |a| a.query = std::ptr::null(), &[sys::NATTEN_E_INVALID_ARGUMENT]),
        ("a null out", |a| a.out = std::ptr::null_mut(), &[sys::NATTEN_E_INVALID_ARGUMENT]),
        ("no batch", |a| a.batch = 0, &[sys::NATTEN_E_INVALID_ARGUMENT]),
        ("negative heads", |a| a.heads = -1, &[sys::NATTEN_E_INVALID_ARGUMENT]),
        ("a window of 1", |a| a.window[0] = 1, &[sys::NATTEN_E_INVALID_ARGUMENT]),
        ("a window beyond the extent", |a| a.window[1] = 9, &[sys::NATTEN_E_INVALID_ARGUMENT]),
        ("a stride beyond the window", |a| a.stride[0] = 4, &[sys::NATTEN_E_INVALID_ARGUMENT]),
        ("no dilation", |a| a.dilation[0] = 0, &[sys::NATTEN_E_INVALID_ARGUMENT]),
        (
            "a product that overflows",
            |a| {
                a.window[0] = i32::MAX;
                a.dilation[0] = 2;
            },
            &[sys::NATTEN_E_INVALID_ARGUMENT],
        ),
        (
            "a head dim that is not aligned",
            |a| a.dim = 36,
            &[sys::NATTEN_E_INVALID_ARGUMENT, sys::NATTEN_E_UNSUPPORTED],
        ),
        (
            "a tile that no kernel has",
            |a| a.query_tile = [7, 7, 1],
            &[sys::NATTEN_E_INVALID_ARGUMENT, sys::NATTEN_E_UNSUPPORTED],
        ),
        (
            "half an allocator",
            |a| {
                unsafe extern "C" fn free(
                    _: *mut std::ffi::c_void,
                    _: *mut std::ffi::c_void,
                    _: *mut std::ffi::c_void,
                ) {
                }
                a.allocator.free = Some(free);
            },
            &[sys::NATTEN_E_INVALID_ARGUMENT],
        ),
    ];
    for (name, edit, expected) in cases {
        let mut args = legal(pointer);
        edit(&mut args);
        // SAFETY: either refused, or one buffer that is larger than every tensor of the call.
        let status = unsafe { sys::natten_na2d_forward(&raw const args) };
        let message = message();
        println!("{name}: status {status}, {message}");
        assert!(
            expected.contains(&status),
            "{name}: status {status}, expected one of {expected:?}: {message}"
        );
        assert!(!message.is_empty(), "{name}: no message");
    }
    // SAFETY: refused before anything is read.
    let status = unsafe { sys::natten_na2d_forward(std::ptr::null()) };
    assert_eq!(status, sys::NATTEN_E_INVALID_ARGUMENT, "a null args struct");
    // And what is legal still runs afterwards: no error is left behind.
    if has_2d {
        let args = legal(pointer);
        // SAFETY: one buffer that is larger than every tensor of the call.
        let status = unsafe { sys::natten_na2d_forward(&raw const args) };
        assert_eq!(status, sys::NATTEN_OK, "{}", message());
    }
    device.synchronize().unwrap();
}

#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn head_dims_beyond_every_kernel_are_unsupported() {
    let (device, artifact) = setup();
    let most = artifact
        .kernels()
        .iter()
        .filter(|kernel| kernel.family == "fna")
        .map(|kernel| kernel.max_head_dim)
        .max();
    let Some(most) = most else {
        println!("fna is not in this artifact: 0 cases, not covered");
        return;
    };
    let dim = (most / 8 + 1) * 8;
    let mut buffer = DeviceBuffer::<f16>::filled(&device, 64 * dim, 0).unwrap();
    let pointer = buffer.as_mut_ptr().cast();
    let mut args = legal(pointer);
    args.dim = dim as i32;
    // SAFETY: one buffer of the size of every tensor of the call.
    let status = unsafe { sys::natten_na2d_forward(&raw const args) };
    println!("head dim {dim}: status {status}, {}", message());
    assert_eq!(status, sys::NATTEN_E_UNSUPPORTED, "{}", message());
    assert!(!message().is_empty());
    // The same through the checked operation, and the dispatcher says it before anything is called.
    let problem =
        Problem::builder(Dtype::Float16, &[8, 8]).dim(dim).dim_value(32).window(&[3, 3]).build().unwrap();
    let request = Request { backend: Some(Backend::Fna), ..Request::new(Direction::Forward) };
    let error = dispatch::choose_from(artifact, &problem, &device.properties(), &request).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
    println!("dispatcher: {error}");
}

#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn a_backend_that_is_not_built_says_so_with_the_plans_reason() {
    let (device, artifact) = setup();
    let problem = Problem::builder(Dtype::Float16, &[8, 8]).dim(32).window(&[3, 3]).build().unwrap();
    let mut missing = 0;
    for backend in [Backend::HopperFna, Backend::BlackwellFna] {
        let Built::No(expected) = artifact.backend(backend) else { continue };
        missing += 1;
        let request = Request { backend: Some(backend), ..Request::new(Direction::Forward) };
        match dispatch::choose(&problem, &device.properties(), &request) {
            Err(Error::BackendNotBuilt { backend: named, variant, reason }) => {
                println!("{named}: {reason}");
                assert_eq!(
                    (named, variant.as_deref(), reason),
                    (backend, Some(artifact.variant()), expected)
                );
            }
            other => panic!("{backend}: {other:?}"),
        }
    }
    // The symbols are there all the same, and answer with the same reason.
    let hopper = size_of::<sys::natten_tiled_fna_forward_args>() as u32;
    // SAFETY: every field of the struct may be zero, and nothing is read through its pointers.
    let mut args: sys::natten_tiled_fna_forward_args = unsafe { std::mem::zeroed() };
    args.size = hopper;
    if let Built::No(reason) = artifact.backend(Backend::HopperFna) {
        // SAFETY: the backend is not built, so no pointer is followed.
        let status = unsafe { sys::natten_hopper_na2d_forward(&raw const args) };
        assert_eq!(status, sys::NATTEN_E_BACKEND_NOT_BUILT, "{}", message());
        assert!(message().contains(&reason), "`{}` lacks `{reason}`", message());
    }
    if let Built::No(reason) = artifact.backend(Backend::BlackwellFna) {
        // SAFETY: as above.
        let status = unsafe { sys::natten_blackwell_na3d_forward(&raw const args) };
        assert_eq!(status, sys::NATTEN_E_BACKEND_NOT_BUILT, "{}", message());
        assert!(message().contains(&reason), "`{}` lacks `{reason}`", message());
    }
    println!("{missing} of 2 sections are not in this artifact");
}

/// What a Blackwell operation must answer on another device: not built, with the plan's reason; or built, and
/// then no code for this device.
fn check_foreign(artifact: &Artifact, backend: Backend, what: &str, error: &Error) {
    println!("{what}: {error}");
    match (artifact.backend(backend), error) {
        (Built::No(expected), Error::BackendNotBuilt { backend: named, variant, reason }) => {
            assert_eq!((*named, variant.as_deref()), (backend, Some(artifact.variant())), "{what}");
            assert!(reason.contains(&expected), "{what}: `{reason}` lacks `{expected}`");
        }
        (Built::Yes(_), Error::Device(_) | Error::Unsupported(_)) => {}
        (built, other) => panic!("{what}: the artifact says {built:?}, the operation {other:?}"),
    }
}

/// Every Blackwell operation on a device that is none: typed errors, no abort, and a device that still works.
#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn blackwell_operations_are_refused_on_other_devices() {
    let (device, artifact) = setup();
    if matches!(device.properties().capability.number(), 100 | 103) {
        println!("this is a Blackwell device: 0 cases, not covered");
        return;
    }
    let launch = Launch::default();
    let mut cases = 0;
    for rank in 1..=3 {
        let problem = sizable(Dtype::Float16, rank, 64);
        let work = Work::Na(problem.clone());
        // Larger than the problem's tensors in tile order.
        let mut sizes = work.sizes();
        (sizes.query, sizes.key, sizes.value) = (sizes.query * 16, sizes.key * 16, sizes.value * 16);
        (sizes.out, sizes.rows) = (sizes.out * 16, sizes.rows * 16);
        let mut tensors = Tensors::<f16>::new(&device, sizes, 8100).unwrap();
        let backend = Backend::BlackwellFna;
        let tiles = |query: &[usize], key: &[usize]| {
            let shape = |tile: &[usize]| std::array::from_fn(|axis| tile.get(axis).copied().unwrap_or(1));
            Tiles { query: shape(query), key: shape(key) }
        };
        let forward = [tiles(&[256], &[128]), tiles(&[16, 16], &[16, 8]), tiles(&[8, 4, 8], &[4, 4, 8])];
        let backward = [tiles(&[128], &[128]), tiles(&[16, 8], &[16, 8]), tiles(&[4, 4, 8], &[4, 4, 8])];
        for scheduler in [Scheduler::Persistent, Scheduler::NonPersistent] {
            let (tiles, tensors) = (&forward[rank - 1], tensors.forward());
            // SAFETY: the buffers are larger than the tensors, should anything be followed.
            let error = unsafe { ops::blackwell_na_forward(&problem, tiles, scheduler, &tensors, &launch) };
            let what = format!("blackwell na{rank}d forward {scheduler:?}");
            check_foreign(artifact, backend, &what, &error.unwrap_err());
            cases += 1;
        }
        let (tiles, gradients) = (&backward[rank - 1], tensors.backward());
        // SAFETY: as above.
        let error = unsafe { ops::blackwell_na_backward(&problem, tiles, &gradients, &launch) };
        check_foreign(artifact, backend, &format!("blackwell na{rank}d backward"), &error.unwrap_err());
        cases += 1 + forced(&device, artifact, backend, &work, &mut tensors);
    }
    let problem = sizable_dense(Dtype::Float16, 64, false);
    let work = Work::Dense(problem);
    let mut tensors = Tensors::<f16>::new(&device, work.sizes(), 8101).unwrap();
    let backend = Backend::BlackwellFmha;
    for scheduler in [Scheduler::Persistent, Scheduler::NonPersistent] {
        let (tiles, tensors) = (DenseTiles { query: 256, key: 128 }, tensors.forward());
        // SAFETY: as above.
        let error =
            unsafe { ops::blackwell_fmha_forward(&problem, tiles, scheduler, None, &tensors, &launch) };
        let what = format!("blackwell fmha forward {scheduler:?}");
        check_foreign(artifact, backend, &what, &error.unwrap_err());
        cases += 1;
    }
    for order in [Determinism::Required, Determinism::NotRequired] {
        let (tiles, gradients) = (DenseTiles { query: 128, key: 128 }, tensors.backward());
        // SAFETY: as above.
        let error =
            unsafe { ops::blackwell_fmha_backward(&problem, tiles, order, None, &gradients, &launch) };
        let what = format!("blackwell fmha backward {order:?}");
        check_foreign(artifact, backend, &what, &error.unwrap_err());
        cases += 1;
    }
    cases += forced(&device, artifact, backend, &work, &mut tensors);
    device.synchronize().unwrap();
    println!("blackwell operations on {}: {cases} calls, all refused", device.name());
}

/// The functional API with the backend forced, both passes; how many calls that were.
fn forced(
    device: &Device,
    artifact: &Artifact,
    backend: Backend,
    work: &Work,
    tensors: &mut Tensors<f16>,
) -> usize {
    let options = Options { backend: Some(backend), ..Options::default() };
    let directions = [Direction::Forward, Direction::Backward];
    for direction in directions {
        let error = work.call(device, direction, tensors, &options).unwrap_err();
        check_foreign(artifact, backend, &format!("{backend} {direction}, forced"), &error);
    }
    directions.len()
}
