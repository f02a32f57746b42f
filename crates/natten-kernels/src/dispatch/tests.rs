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
    let cases = [problem(36), problem(32).heads(4).heads_kv(2), problem(32).extra_kv(7)];
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

/// Every subset of the three sections: a missing backend is named with its variant and reason.
#[test]
fn every_subset_of_sections_names_what_is_missing() {
    let problem = problem(32).build().unwrap();
    for subset in 0..8_u32 {
        let sections = [("fna", "9.0"), ("hopper_fna", "9.0a"), ("blackwell_fna", "10.0a")];
        let chosen: Vec<(&str, &str)> = sections
            .into_iter()
            .enumerate()
            .filter(|(at, _)| subset >> at & 1 == 1)
            .map(|(_, one)| one)
            .collect();
        let artifact = built(&chosen, kernels());
        for (at, backend) in [Backend::Fna, Backend::HopperFna, Backend::BlackwellFna].into_iter().enumerate()
        {
            let request = Request { backend: Some(backend), ..FORWARD };
            let result = choose_from(&artifact, &problem, &device(9, 0, LARGE), &request);
            let is_built = subset >> at & 1 == 1;
            match result {
                Err(Error::BackendNotBuilt { backend: named, variant, reason }) => {
                    assert!(!is_built);
                    assert_eq!((named, variant.as_deref()), (backend, Some("cu130")));
                    assert_eq!(reason, format!("{backend} was not selected"));
                }
                _ => assert!(is_built, "{backend} in subset {subset}"),
            }
        }
        // With no section at all, the error is the core backend's.
        if subset == 0 {
            let error = choose_from(&artifact, &problem, &device(9, 0, LARGE), &FORWARD).unwrap_err();
            assert!(matches!(error, Error::BackendNotBuilt { backend: Backend::Fna, .. }), "{error:?}");
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
