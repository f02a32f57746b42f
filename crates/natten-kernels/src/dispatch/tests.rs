//! Decisions over made-up artifacts: nothing here needs a device.

use super::*;
use crate::capability::ComputeCapability;
use crate::dtype::Dtype;

/// Upstream's forward and backward fna kernels of 8.0 for float16 and float32, 2-D, not causal, with made-up sizes.
fn kernels() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    for dtype in [Dtype::Float16, Dtype::Float32] {
        for direction in [Direction::Forward, Direction::Backward] {
            for (query, key, largest, shared_memory) in [
                (32, 128, 32, 30_000),
                (64, 64, 32, 30_000),
                (64, 128, 32, 60_000),
                (64, 64, 64, 50_000),
                (64, 128, 64, 90_000),
                (64, 64, 128, 90_000),
                (64, 128, 128, 160_000),
                (32, 128, 65536, 110_000),
                (64, 64, 65536, 120_000),
            ] {
                kernels.push(kernel(dtype, direction, (query, key), largest, shared_memory));
            }
        }
        for direction in [Direction::Forward, Direction::Backward] {
            let mut reference = kernel(dtype, direction, (0, 0), 0, 0);
            reference.family = "reference".into();
            kernels.push(reference);
        }
    }
    kernels
}

fn kernel(
    dtype: Dtype,
    direction: Direction,
    (query, key): (i32, i32),
    max_head_dim: usize,
    shared_memory: usize,
) -> Kernel {
    Kernel {
        family: "fna".into(),
        name: format!("fna2d_{direction}_{query}x{key}x{max_head_dim}_{dtype}"),
        direction,
        rank: 2,
        dtype: Some(dtype),
        causal: [false; 3],
        query_tile: [query, 0, 0],
        key_tile: [key, 0, 0],
        max_head_dim,
        alignment: 16 / dtype.size(),
        shared_memory,
        sm_min: 80,
        sm_max: 130,
        schedule: -1,
    }
}

fn built(backends: &[(&str, &str)], kernels: Vec<Kernel>) -> Artifact {
    let entries: Vec<String> = Backend::ALL
        .into_iter()
        .map(|backend| match backends.iter().find(|(name, _)| *name == backend.name()) {
            Some((name, capabilities)) => {
                let list: Vec<String> = capabilities.split(' ').map(|text| format!("\"{text}\"")).collect();
                format!("\"{name}\": {{\"built\": true, \"capabilities\": [{}]}}", list.join(","))
            }
            None => {
                format!("\"{backend}\": {{\"built\": false, \"reason\": \"{backend} was not selected\"}}")
            }
        })
        .collect();
    let info = format!(
        "{{\"variant\":\"cu130\",\"toolkit\":\"13.0.88\",\"natten\":\"0.21.7\",\"backends\":{{{}}}}}",
        entries.join(",")
    );
    Artifact::new(&info, kernels).unwrap()
}

fn device(major: u32, minor: u32, shared_memory: usize) -> Properties {
    Properties { capability: ComputeCapability { major, minor }, shared_memory }
}

const LARGE: usize = 232_448;
const SMALL: usize = 101_376;

fn problem(dim: usize) -> crate::ProblemBuilder {
    Problem::builder(Dtype::Float16, &[32, 32]).dim(dim).window(&[5, 5])
}

const FORWARD: Request = Request::new(Direction::Forward);
const BACKWARD: Request = Request::new(Direction::Backward);

#[test]
fn the_default_tile_and_the_first_kernel_that_takes_the_head_dim() {
    let artifact = built(&[("fna", "9.0"), ("reference", "9.0")], kernels());
    for (dim, expected) in [(8, 32), (32, 32), (40, 64), (128, 128), (136, 65536), (1024, 65536)] {
        let problem = problem(dim).build().unwrap();
        let decision = choose_from(&artifact, &problem, &device(9, 0, LARGE), &FORWARD).unwrap();
        assert_eq!(decision.kernel.unwrap(), format!("fna2d_forward_64x64x{expected}_float16"), "dim {dim}");
        assert_eq!(decision.tiles.unwrap(), Tiles { query: [8, 8, 1], key: [8, 8, 1] });
        assert_eq!(decision.passed_over.len(), 2);
    }
    // The wider of the two head dims decides.
    let problem = problem(32).dim_value(128).build().unwrap();
    let decision = choose_from(&artifact, &problem, &device(9, 0, LARGE), &FORWARD).unwrap();
    assert_eq!(decision.kernel.unwrap(), "fna2d_forward_64x64x128_float16");
}

#[test]
fn shared_memory_of_the_device_decides_too() {
    // 64x64 for wide heads needs 120,000 bytes: too much for 8.9, and so is 32x128.
    let artifact = built(&[("fna", "8.0 9.0")], kernels());
    let wide = problem(256).build().unwrap();
    let error = choose_from(&artifact, &wide, &device(8, 9, SMALL), &FORWARD).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)), "{error:?}");
    assert!(error.to_string().contains("120000 bytes of shared memory"), "{error}");
    // With a little more, the other product of that device class is taken.
    let decision = choose_from(&artifact, &wide, &device(8, 9, 115_000), &FORWARD).unwrap();
    assert_eq!(decision.kernel.unwrap(), "fna2d_forward_32x128x65536_float16");
    assert_eq!(decision.tiles.unwrap(), Tiles { query: [8, 4, 1], key: [16, 8, 1] });
}

#[test]
fn a_selection_without_the_default_tile_takes_another() {
    let only = |query, key| vec![kernel(Dtype::Float16, Direction::Forward, (query, key), 64, 50_000)];
    let problem = problem(64).build().unwrap();
    let artifact = built(&[("fna", "8.0 9.0")], only(64, 128));
    let decision = choose_from(&artifact, &problem, &device(9, 0, LARGE), &FORWARD).unwrap();
    assert_eq!(decision.tiles.unwrap(), Tiles { query: [8, 8, 1], key: [16, 8, 1] });
    // 64x128 is for devices of the data center class.
    assert!(choose_from(&artifact, &problem, &device(8, 9, LARGE), &FORWARD).is_err());
}

#[test]
fn what_fna_cannot_run_goes_to_the_reference_kernels() {
    let artifact = built(&[("fna", "9.0"), ("reference", "9.0")], kernels());
    let cases = [problem(36), problem(32).extra_kv(7)];
    for builder in cases {
        let problem = builder.build().unwrap();
        let decision = choose_from(&artifact, &problem, &device(9, 0, LARGE), &FORWARD).unwrap();
        assert_eq!((decision.backend, decision.tiles), (Backend::Reference, None), "{problem:?}");
        let reasons: Vec<Backend> = decision.passed_over.iter().map(|(backend, _)| *backend).collect();
        assert_eq!(reasons, [Backend::BlackwellFna, Backend::HopperFna, Backend::Fna]);
        assert!(decision_text(&artifact, &problem).contains("not fna: unsupported: fna "));
    }
}

fn decision_text(artifact: &Artifact, problem: &Problem) -> String {
    choose_from(artifact, problem, &device(9, 0, LARGE), &FORWARD).unwrap().to_string()
}

#[test]
fn what_nothing_can_run_says_why_for_each_backend() {
    let artifact = built(&[("fna", "9.0"), ("reference", "9.0")], kernels());
    // Causal kernels are not in this table.
    let problem = problem(32).causal(&[true, false]).build().unwrap();
    let error = choose_from(&artifact, &problem, &device(9, 0, LARGE), &FORWARD).unwrap_err();
    let Error::Unsupported(message) = error else { panic!("{error:?}") };
    for part in [
        "hopper_fna was not selected",
        "no 2-D forward kernel of fna for float16 with causal [true, false]",
        "reference:",
    ] {
        assert!(message.contains(part), "`{message}` lacks `{part}`");
    }
}

/// Capability of the device, targets of (fna, hopper_fna, blackwell_fna), what is expected.
#[test]
fn suffixes_decide_which_backend_has_code() {
    let pick = |fna: &str, major, minor| {
        let artifact = built(&[("fna", fna)], kernels());
        let problem = problem(32).build().unwrap();
        choose_from(&artifact, &problem, &device(major, minor, LARGE), &FORWARD)
    };
    for (targets, major, minor) in [
        ("8.0", 8, 0),
        ("8.0", 8, 6),
        ("8.0 9.0", 9, 0),
        ("10.0", 10, 3),
        ("12.0", 12, 1),
        ("9.0+PTX", 12, 0),
    ] {
        assert_eq!(
            pick(targets, major, minor).unwrap().backend,
            Backend::Fna,
            "{targets} on {major}.{minor}"
        );
    }
    for (targets, major, minor) in
        [("9.0", 8, 0), ("8.0", 9, 0), ("10.0", 12, 0), ("8.0 9.0", 7, 0), ("9.0", 13, 0)]
    {
        let error = pick(targets, major, minor).unwrap_err();
        assert!(matches!(error, Error::Device(_)), "{targets} on {major}.{minor}: {error:?}");
    }
    // 13.0 runs the PTX, but upstream's kernels end below it.
    assert!(matches!(pick("9.0+PTX", 13, 0), Err(Error::Unsupported(_))));
}

#[test]
fn a_forced_backend_is_never_replaced() {
    let artifact = built(&[("fna", "9.0"), ("reference", "9.0")], kernels());
    let problem = problem(32).build().unwrap();
    let force = |backend| {
        let request = Request { backend: Some(backend), ..FORWARD };
        choose_from(&artifact, &problem, &device(9, 0, LARGE), &request)
    };
    assert_eq!(force(Backend::Reference).unwrap().backend, Backend::Reference);
    assert_eq!(
        force(Backend::HopperFna).unwrap_err(),
        Error::BackendNotBuilt {
            backend: Backend::HopperFna,
            variant: Some("cu130".into()),
            reason: "hopper_fna was not selected".into()
        }
    );
    assert!(matches!(force(Backend::Fmha), Err(Error::InvalidArgument(_))));
}

/// The C ABI's spelling of a tile shape.
fn spelled(tile: [usize; 3], rank: usize) -> [i32; 3] {
    std::array::from_fn(|at| if at < rank { tile[at] as i32 } else { 0 })
}

/// Upstream's tables of the tiled and dense backends for float16, not causal, and the permutations.
fn everything() -> Vec<Kernel> {
    let mut rows = kernels();
    let mut add =
        |family: &str, direction: Direction, rank: usize, tiles: Tiles, rest: (i32, usize, u32, u32)| {
            let (schedule, head_dim, sm_min, sm_max) = rest;
            let shape = rank.max(1);
            rows.push(Kernel {
                family: family.into(),
                name: format!(
                    "{family}{rank}d_{direction}_{:?}x{:?}x{head_dim}_{schedule}_{sm_min}",
                    &tiles.query[..shape],
                    &tiles.key[..shape]
                ),
                rank,
                query_tile: spelled(tiles.query, shape),
                key_tile: spelled(tiles.key, shape),
                schedule,
                sm_min,
                sm_max,
                ..kernel(Dtype::Float16, direction, (0, 0), head_dim, 100_000)
            });
        };
    for direction in [Direction::Forward, Direction::Backward] {
        let suffix = if direction == Direction::Backward { "_bwd" } else { "" };
        for rank in 0..=3 {
            let (kind, shape) = if rank == 0 { ("fmha", 1) } else { ("fna", rank) };
            for dim in [32, 64, 128, 256] {
                let family = format!("hopper_{kind}{suffix}");
                if direction == Direction::Backward {
                    for tiles in tiles::hopper_backward(shape, dim) {
                        add(&family, direction, rank, *tiles, (-1, dim, 90, 91));
                    }
                    continue;
                }
                for (tiles, schedule) in tiles::hopper_forward(shape, dim) {
                    add(&family, direction, rank, *tiles, (schedule.number(), dim, 90, 91));
                }
            }
            for dim in [32, 64, 128] {
                for tiles in tiles::blackwell(direction, shape) {
                    let schedules: &[i32] = if direction == Direction::Forward { &[0, 1] } else { &[-1] };
                    for schedule in schedules {
                        let rest = (*schedule, dim, 100, 104);
                        add(&format!("blackwell_{kind}{suffix}"), direction, rank, *tiles, rest);
                    }
                }
            }
        }
        let dense = Tiles { query: [64, 1, 1], key: [64, 1, 1] };
        add("fmha", direction, 0, dense, (-1, 65536, 80, 130));
    }
    for direction in [Direction::Forward, Direction::Backward] {
        for dtype in [Dtype::Float16, Dtype::Float32] {
            for rank in 1..=3 {
                let row = kernel(dtype, direction, (0, 0), i32::MAX as usize, 0);
                rows.push(Kernel { family: "token_permute".into(), rank, alignment: 1, ..row });
            }
            let row = kernel(dtype, direction, (0, 0), i32::MAX as usize, 0);
            rows.push(Kernel { family: "merge".into(), rank: 0, alignment: 1, ..row });
        }
    }
    rows
}

const ALL: &[(&str, &str)] = &[
    ("fna", "8.0 9.0 10.0"),
    ("fmha", "8.0 9.0 10.0"),
    ("reference", "8.0 9.0 10.0"),
    ("token_permute", "8.0 9.0 10.0"),
    ("compute_delta", "8.0 9.0 10.0"),
    ("merge", "8.0 9.0 10.0"),
    ("hopper_fna", "9.0a"),
    ("hopper_fmha", "9.0a"),
    ("blackwell_fna", "10.0a"),
    ("blackwell_fmha", "10.0a"),
];

fn dense(dim: usize) -> Dense {
    Dense {
        dtype: Dtype::Float16,
        batch: 1,
        seqlen_q: 1000,
        seqlen_kv: 1000,
        heads: 4,
        heads_kv: 4,
        dim,
        dim_value: dim,
        causal: false,
        scale: 0.1,
    }
}

/// Device, head dim, and the backend of (forward, backward, deterministic backward), as upstream chooses.
#[test]
fn the_order_is_upstreams() {
    use Backend::{BlackwellFna, Fna, HopperFna};
    let artifact = built(ALL, everything());
    for (major, minor, dim, expected) in [
        (8, 0, 64, [Fna, Fna, Fna]),
        (8, 9, 64, [Fna, Fna, Fna]),
        (9, 0, 64, [HopperFna, HopperFna, Fna]),
        (9, 0, 256, [HopperFna, Fna, Fna]),
        (9, 0, 96, [Fna, Fna, Fna]),
        (10, 0, 64, [BlackwellFna, BlackwellFna, Fna]),
        (10, 0, 96, [BlackwellFna, BlackwellFna, Fna]),
        (10, 0, 136, [Fna, Fna, Fna]),
        (10, 3, 64, [Fna, Fna, Fna]),
    ] {
        let problem = problem(dim).build().unwrap();
        let deterministic = Request { determinism: Determinism::Required, ..BACKWARD };
        for (request, backend) in [FORWARD, BACKWARD, deterministic].iter().zip(expected) {
            let decision = choose_from(&artifact, &problem, &device(major, minor, LARGE), request).unwrap();
            assert_eq!(decision.backend, backend, "{major}.{minor} dim {dim} {request:?}: {decision}");
        }
    }
}

#[test]
fn a_tiled_decision_has_upstreams_defaults() {
    let artifact = built(ALL, everything());
    let choose = |problem: &Problem, major, request| {
        choose_from(&artifact, problem, &device(major, 0, LARGE), request).unwrap()
    };
    let wide = problem(128).build().unwrap();
    let hopper = choose(&wide, 9, &FORWARD);
    assert_eq!(hopper.tiles, Some(Tiles { query: [16, 8, 1], key: [16, 8, 1] }));
    assert_eq!((hopper.schedule, hopper.scheduler), (Some(Schedule::Cooperative), None));
    assert!(hopper.to_string().contains("schedule Cooperative"), "{hopper}");
    let backward = choose(&wide, 9, &BACKWARD);
    assert_eq!(backward.tiles, Some(Tiles { query: [8, 8, 1], key: [16, 8, 1] }));
    assert_eq!((backward.schedule, backward.key_splits), (None, [1; 3]));
    let blackwell = choose(&wide, 10, &FORWARD);
    assert_eq!(blackwell.tiles, Some(Tiles { query: [16, 16, 1], key: [16, 8, 1] }));
    assert_eq!((blackwell.schedule, blackwell.scheduler), (None, Some(Scheduler::Persistent)));
    // The smallest head dim that holds 40 is 64.
    let narrow = problem(40).build().unwrap();
    assert!(choose(&narrow, 10, &FORWARD).kernel.unwrap().contains("x64_1"));
    let line = Problem::builder(Dtype::Float16, &[4096]).dim(64).window(&[64]).build().unwrap();
    assert_eq!(choose(&line, 9, &FORWARD).tiles, Some(Tiles { query: [64, 1, 1], key: [128, 1, 1] }));
    let solid = Problem::builder(Dtype::Float16, &[16, 16, 16]).dim(128).window(&[4, 4, 4]).build().unwrap();
    assert_eq!(choose(&solid, 9, &BACKWARD).tiles, Some(Tiles { query: [4, 4, 4], key: [4, 4, 8] }));
    assert_eq!(choose(&solid, 10, &BACKWARD).tiles, Some(Tiles { query: [4, 4, 8], key: [4, 4, 8] }));
}

#[test]
fn a_tiled_selection_without_the_default_takes_what_it_has() {
    let rows = everything();
    let without =
        |gone: &str| built(ALL, rows.iter().filter(|row| !row.name.contains(gone)).cloned().collect());
    let wide = problem(128).build().unwrap();
    let choose = |artifact: &Artifact, major| {
        choose_from(artifact, &wide, &device(major, 0, LARGE), &FORWARD).unwrap()
    };
    let decision = choose(&without("hopper_fna2d_forward_[16, 8]x[16, 8]x128_1"), 9);
    assert_eq!(decision.schedule, Some(Schedule::PingPong));
    let decision = choose(&without("blackwell_fna2d_forward_[16, 16]x[16, 8]x128_1"), 10);
    assert_eq!(decision.scheduler, Some(Scheduler::NonPersistent));
    let decision = choose(&without("blackwell_fna2d_forward_[16, 16]x[16, 8]"), 10);
    assert_eq!(decision.tiles, Some(Tiles { query: [16, 16, 1], key: [8, 16, 1] }));
    let decision = choose(&without("hopper_fna2d_forward"), 9);
    assert_eq!(decision.backend, Backend::Fna);
    assert!(
        decision.to_string().contains("not hopper_fna: unsupported: the artifact has no 2-D forward kernel")
    );
}

#[test]
fn a_tiled_backend_needs_token_permutation() {
    let hopper_only = built(&[("hopper_fna", "9.0a")], everything());
    let problem = problem(64).build().unwrap();
    let forced = Request { backend: Some(Backend::HopperFna), ..FORWARD };
    let error = choose_from(&hopper_only, &problem, &device(9, 0, LARGE), &forced).unwrap_err();
    assert!(matches!(error, Error::BackendNotBuilt { backend: Backend::TokenPermute, .. }), "{error:?}");
    // Of logsumexp too, which is float32.
    let rows = everything();
    let rows =
        rows.into_iter().filter(|row| row.family != "token_permute" || row.dtype == Some(Dtype::Float16));
    let half = built(ALL, rows.collect());
    let error = choose_from(&half, &problem, &device(9, 0, LARGE), &forced).unwrap_err();
    assert!(error.to_string().contains("no 2-D token permutation of float32"), "{error}");
}

/// Upstream repeats key heads for fna and Hopper, and adds up their gradients.
#[test]
fn grouped_heads_are_repeated_forward_and_taken_as_they_are_elsewhere() {
    let artifact = built(ALL, everything());
    let problem = problem(64).heads(4).heads_kv(2).build().unwrap();
    for (major, request, backend, copies) in [
        (8, FORWARD, Backend::Fna, 2),
        (9, FORWARD, Backend::HopperFna, 2),
        (10, FORWARD, Backend::BlackwellFna, 1),
        (8, BACKWARD, Backend::Fna, 2),
        (9, BACKWARD, Backend::HopperFna, 2),
        (10, BACKWARD, Backend::BlackwellFna, 1),
    ] {
        let decision = choose_from(&artifact, &problem, &device(major, 0, LARGE), &request).unwrap();
        assert_eq!((decision.backend, decision.key_head_copies), (backend, copies), "{major} {request:?}");
    }
    let grouped = Dense { heads_kv: 1, ..dense(64) };
    let decision = choose_dense_from(&artifact, &grouped, None, &device(9, 0, LARGE), &FORWARD).unwrap();
    assert_eq!((decision.backend, decision.key_head_copies), (Backend::HopperFmha, 4));
    let decision = choose_dense_from(&artifact, &grouped, None, &device(9, 0, LARGE), &BACKWARD).unwrap();
    assert_eq!((decision.backend, decision.key_head_copies), (Backend::HopperFmha, 4));
}

/// Without the kernels that add gradients up, backends that take groups are left.
#[test]
fn gradients_of_repeated_heads_need_merge() {
    let problem = problem(64).heads(4).heads_kv(2).build().unwrap();
    let grouped = Dense { heads_kv: 1, ..dense(64) };
    let without: Vec<_> = ALL.iter().copied().filter(|(name, _)| *name != "merge").collect();
    let half: Vec<Kernel> = everything()
        .into_iter()
        .filter(|row| row.family != "merge" || row.dtype == Some(Dtype::Float32))
        .collect();
    for (artifact, reason) in [
        (built(&without, everything()), "must be added up"),
        (built(ALL, half), "no float16 kernel of merge"),
    ] {
        let decision = choose_from(&artifact, &problem, &device(9, 0, LARGE), &BACKWARD).unwrap();
        assert_eq!((decision.backend, decision.key_head_copies), (Backend::Reference, 1));
        let error =
            choose_dense_from(&artifact, &grouped, None, &device(9, 0, LARGE), &BACKWARD).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
        let forward = choose_from(&artifact, &problem, &device(9, 0, LARGE), &FORWARD).unwrap();
        assert_eq!((forward.backend, forward.key_head_copies), (Backend::HopperFna, 2));
    }
}

#[test]
fn dense_attention_has_its_own_order_and_splits() {
    use Backend::{BlackwellFmha, Fmha, HopperFmha};
    let artifact = built(ALL, everything());
    let deterministic = Request { determinism: Determinism::Required, ..BACKWARD };
    for (major, minor, dim, expected) in [
        (8, 0, 64, [Fmha, Fmha, Fmha]),
        (9, 0, 64, [HopperFmha, HopperFmha, Fmha]),
        (9, 0, 256, [HopperFmha, Fmha, Fmha]),
        // Unlike its neighborhood attention, Blackwell's dense attention can add in a fixed order.
        (10, 0, 64, [BlackwellFmha, BlackwellFmha, BlackwellFmha]),
        (10, 3, 64, [Fmha, Fmha, Fmha]),
    ] {
        for (request, backend) in [FORWARD, BACKWARD, deterministic].iter().zip(expected) {
            let device = device(major, minor, LARGE);
            let decision = choose_dense_from(&artifact, &dense(dim), None, &device, request).unwrap();
            assert_eq!(decision.backend, backend, "{major}.{minor} dim {dim} {request:?}: {decision}");
        }
    }
    let splits = |problem: &Dense, request| {
        choose_dense_from(&artifact, problem, None, &device(8, 0, LARGE), request).unwrap().key_splits[0]
    };
    assert_eq!(splits(&dense(64), &BACKWARD), 16);
    assert_eq!(splits(&Dense { batch: 512, ..dense(64) }, &BACKWARD), 2);
    assert_eq!((splits(&dense(64), &deterministic), splits(&dense(64), &FORWARD)), (1, 1));
    let sequences = Sequences {
        count: 2,
        cumulative_q: std::ptr::null(),
        cumulative_kv: std::ptr::null(),
        max_q: 600,
        max_kv: 600,
    };
    let decision =
        choose_dense_from(&artifact, &dense(64), Some(&sequences), &device(8, 0, LARGE), &BACKWARD).unwrap();
    assert_eq!(decision.key_splits, [10, 1, 1]);
    let forced = Request { backend: Some(Backend::HopperFna), ..FORWARD };
    let error = choose_dense_from(&artifact, &dense(64), None, &device(9, 0, LARGE), &forced).unwrap_err();
    assert!(error.to_string().contains("hopper_fna does not compute dense attention"), "{error}");
}

#[test]
fn a_window_of_everything_goes_to_dense_attention() {
    let artifact = built(ALL, everything());
    let builder = || Problem::builder(Dtype::Float16, &[32, 32]).dim(64).window(&[32, 32]);
    let choose =
        |problem: &Problem, major| choose_from(&artifact, problem, &device(major, 0, LARGE), &FORWARD);
    let full = builder().build().unwrap();
    assert_eq!(choose(&full, 9).unwrap().backend, Backend::HopperFmha);
    assert_eq!(choose(&full, 8).unwrap().backend, Backend::Fmha);
    // Extra tokens are keys like the others then.
    let extra = builder().extra_kv(7).build().unwrap();
    assert_eq!(choose(&extra, 10).unwrap().backend, Backend::BlackwellFmha);
    assert_eq!(Dense::of(&extra).unwrap().seqlen_kv, 1024 + 7);
    // A causal axis of several is no mask that dense kernels have; a single one is.
    assert_eq!(Dense::of(&builder().causal(&[true, false]).build().unwrap()), None);
    assert_eq!(Dense::of(&problem(64).build().unwrap()), None);
    let line = || Problem::builder(Dtype::Float16, &[64]).dim(64).window(&[64]).causal(&[true]);
    assert!(Dense::of(&line().build().unwrap()).unwrap().causal);
    assert_eq!(Dense::of(&line().extra_kv(1).build().unwrap()), None);
    // Without dense kernels the others take it, and forcing one of them works.
    let core = built(&[("fna", "8.0")], everything());
    let decision = choose_from(&core, &full, &device(8, 0, LARGE), &FORWARD).unwrap();
    assert_eq!((decision.backend, decision.passed_over.len()), (Backend::Fna, 5));
    let forced = Request { backend: Some(Backend::HopperFna), ..FORWARD };
    let decision = choose_from(&artifact, &full, &device(9, 0, LARGE), &forced).unwrap();
    assert_eq!(decision.backend, Backend::HopperFna);
}

/// 10.3 runs 10.0 code, not 10.0a's; 10.0f is for both.
#[test]
fn blackwell_code_of_another_capability_falls_back_to_core_and_says_so_once() {
    let problem = problem(64).build().unwrap();
    let pick = |targets: &str, minor| {
        let list: Vec<(&str, &str)> = ALL
            .iter()
            .map(|(name, all)| (*name, if *name == "blackwell_fna" { targets } else { *all }))
            .collect();
        let properties = device(10, minor, LARGE);
        let decision = choose_from(&built(&list, everything()), &problem, &properties, &FORWARD).unwrap();
        let notice = decision.notice(&properties);
        (decision.backend, notice)
    };
    for (targets, minor, backend) in [
        ("10.0a", 0, Backend::BlackwellFna),
        ("10.0a", 3, Backend::Fna),
        ("10.0a 10.3a", 3, Backend::BlackwellFna),
        ("10.0f", 3, Backend::BlackwellFna),
        ("10.3a", 0, Backend::Fna),
    ] {
        let (chosen, notice) = pick(targets, minor);
        assert_eq!(chosen, backend, "{targets} on 10.{minor}");
        assert_eq!(notice.is_some(), backend == Backend::Fna, "{targets} on 10.{minor}");
    }
    let notice = pick("10.0a", 3).1.unwrap();
    for part in ["using backend fna", "capability 10.3", "built for 10.0a", "add 10.3a to its capabilities"] {
        assert!(notice.contains(part), "`{notice}` lacks `{part}`");
    }
    let said = Notices(Mutex::new(BTreeSet::new()));
    assert!(said.is_new(&notice) && !said.is_new(&notice) && said.is_new("another"));
    // What no build could have for the device is no news.
    let properties = device(9, 0, LARGE);
    let decision = choose_from(&built(ALL, everything()), &problem, &properties, &FORWARD).unwrap();
    assert_eq!(decision.notice(&properties), None);
    assert!(decision.passed_over[0].1.to_string().contains("no build has any for this device"), "{decision}");
}

/// Every subset of the three sections, on every class of device: the backend that runs it, or the error of
/// the one that was forced, with its variant and reason.
#[test]
fn every_subset_of_sections_names_what_is_missing() {
    let problem = problem(32).build().unwrap();
    let sections: [&[usize]; 3] = [&[0, 1, 2, 3, 4, 5], &[6, 7], &[8, 9]];
    for subset in 0..8_usize {
        let has = |section: usize| subset >> section & 1 == 1;
        let chosen: Vec<(&str, &str)> =
            (0..3).filter(|at| has(*at)).flat_map(|at| sections[at]).map(|at| ALL[*at]).collect();
        let artifact = built(&chosen, everything());
        for (section, backends) in [
            (0, [Backend::Fna, Backend::Fmha]),
            (1, [Backend::HopperFna, Backend::HopperFmha]),
            (2, [Backend::BlackwellFna, Backend::BlackwellFmha]),
        ] {
            let own = device([8, 9, 10][section], 0, LARGE);
            let [fna, fmha] = backends.map(|backend| Request { backend: Some(backend), ..FORWARD });
            let results = [
                (backends[0], choose_from(&artifact, &problem, &own, &fna)),
                (backends[1], choose_dense_from(&artifact, &dense(64), None, &own, &fmha)),
            ];
            for (backend, result) in results {
                match result {
                    Ok(decision) => {
                        // The tiled kernels need core's token permutation; the dense ones nothing.
                        let tiled = matches!(backend, Backend::HopperFna | Backend::BlackwellFna);
                        assert!(has(section) && (has(0) || !tiled), "{backend} in {subset}");
                        assert_eq!(decision.backend, backend);
                    }
                    Err(Error::BackendNotBuilt { backend: named, variant, reason }) => {
                        let missing = if has(section) { Backend::TokenPermute } else { backend };
                        assert_eq!((named, variant.as_deref()), (missing, Some("cu130")), "in {subset}");
                        assert_eq!(reason, format!("{missing} was not selected"));
                    }
                    Err(other) => panic!("{backend} in {subset}: {other}"),
                }
            }
        }
        // Left to itself: the device's own section, else core, else an error that says what is missing.
        for (major, own) in [(8, 0), (9, 1), (10, 2)] {
            let expected = match (has(0), own != 0 && has(own)) {
                (true, true) => Some([Backend::Fna, Backend::HopperFna, Backend::BlackwellFna][own]),
                (true, false) => Some(Backend::Fna),
                (false, _) => None,
            };
            match choose_from(&artifact, &problem, &device(major, 0, LARGE), &FORWARD) {
                Ok(decision) => assert_eq!(Some(decision.backend), expected, "{major}.0 in {subset}"),
                Err(error) => {
                    assert_eq!(expected, None, "{major}.0 in {subset}: {error}");
                    let typed = matches!(error, Error::BackendNotBuilt { .. } | Error::Device(_));
                    assert!(typed, "{major}.0 in {subset}: {error:?}");
                }
            }
        }
        // With no section at all, the error is the core backend's.
        if subset == 0 {
            let error = choose_from(&artifact, &problem, &device(9, 0, LARGE), &FORWARD).unwrap_err();
            assert!(matches!(error, Error::BackendNotBuilt { backend: Backend::Fna, .. }), "{error:?}");
            let error =
                choose_dense_from(&artifact, &dense(64), None, &device(9, 0, LARGE), &FORWARD).unwrap_err();
            assert!(matches!(error, Error::BackendNotBuilt { backend: Backend::Fmha, .. }), "{error:?}");
        }
    }
}

#[test]
fn backward_splits_keys_unless_it_must_be_deterministic() {
    let artifact = built(&[("fna", "9.0")], kernels());
    let problem = problem(32).build().unwrap();
    let decision = choose_from(&artifact, &problem, &device(9, 0, LARGE), &BACKWARD).unwrap();
    assert_eq!(decision.key_splits, [4, 4, 1]);
    assert!(decision.to_string().contains("key splits [4, 4, 1]"));
    let request = Request { determinism: Determinism::Required, ..BACKWARD };
    let decision = choose_from(&artifact, &problem, &device(9, 0, LARGE), &request).unwrap();
    assert_eq!(decision.key_splits, [1; 3]);
}
