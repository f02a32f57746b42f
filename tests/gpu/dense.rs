//! Dense attention, fmha and hopper_fmha: every row of the table, fixed and variable length, against a
//! reference in double precision that is written down here.

use super::*;
use natten_kernels::ops::{Dense, DenseTiles, Schedule, Sequences};
use rayon::prelude::*;
use std::ops::Range;

/// Query tokens and key tokens that belong together, of the tokens of all batch entries in a row.
type Segment = (Range<usize>, Range<usize>);

/// How a case reaches the device.
#[derive(Clone, Copy)]
enum Route {
    Fmha { key_splits: usize, own_delta: bool },
    Hopper(Schedule),
}

struct Case {
    problem: Dense,
    tiles: DenseTiles,
    route: Route,
    /// Lengths of the sequences of queries and of keys; empty: fixed length.
    lengths: Vec<(usize, usize)>,
}

impl Case {
    fn segments(&self) -> Vec<Segment> {
        let Dense { batch, seqlen_q, seqlen_kv, .. } = self.problem;
        let fixed = vec![(seqlen_q, seqlen_kv); batch];
        let mut ends = (0, 0);
        let lengths = if self.lengths.is_empty() { &fixed } else { &self.lengths };
        lengths
            .iter()
            .map(|(q, kv)| {
                let starts = ends;
                ends = (ends.0 + q, ends.1 + kv);
                (starts.0..ends.0, starts.1..ends.1)
            })
            .collect()
    }

    fn name(&self) -> &'static str {
        match self.route {
            Route::Fmha { .. } => "fmha",
            Route::Hopper(_) => "hopper_fmha",
        }
    }

    fn describe(&self) -> String {
        let Dense { dtype, batch, seqlen_q, seqlen_kv, heads, dim, dim_value, causal, .. } = self.problem;
        let route = match self.route {
            Route::Fmha { key_splits, own_delta } => format!("splits {key_splits} own delta {own_delta}"),
            Route::Hopper(schedule) => format!("{schedule:?}"),
        };
        format!(
            "{dtype} batch {batch} tokens {seqlen_q}/{seqlen_kv} heads {heads} dims {dim}/{dim_value} causal {causal} \
             tiles {}x{} {route} lengths {:?}",
            self.tiles.query, self.tiles.key, self.lengths
        )
    }

    fn query_len(&self) -> usize {
        self.problem.batch * self.problem.seqlen_q * self.problem.heads * self.problem.dim
    }

    fn key_len(&self) -> usize {
        self.problem.batch * self.problem.seqlen_kv * self.problem.heads * self.problem.dim
    }

    fn value_len(&self) -> usize {
        self.problem.batch * self.problem.seqlen_kv * self.problem.heads * self.problem.dim_value
    }

    fn out_len(&self) -> usize {
        self.problem.batch * self.problem.seqlen_q * self.problem.heads * self.problem.dim_value
    }

    fn rows(&self) -> usize {
        self.problem.batch * self.problem.seqlen_q * self.problem.heads
    }
}

/// Output, logsumexp and gradients (of `grad`, where there is one) in double precision.
struct Exact {
    out: Vec<f64>,
    logsumexp: Vec<f64>,
    query: Vec<f64>,
    key: Vec<f64>,
    value: Vec<f64>,
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(to: &mut [f64], factor: f64, from: &[f64]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += factor * from;
    }
}

fn exact(case: &Case, q: &[f64], k: &[f64], v: &[f64], grad: Option<&[f64]>) -> Exact {
    let Dense { heads, dim, dim_value, .. } = case.problem;
    let tasks: Vec<(Segment, usize)> = case
        .segments()
        .into_iter()
        .flat_map(|segment| (0..heads).map(move |head| (segment.clone(), head)))
        .collect();
    let parts: Vec<Exact> =
        tasks.par_iter().map(|(segment, head)| one_head(case, segment, *head, [q, k, v], grad)).collect();
    let mut exact = Exact {
        out: vec![0.0; case.out_len()],
        logsumexp: vec![0.0; case.rows()],
        query: vec![0.0; q.len()],
        key: vec![0.0; k.len()],
        value: vec![0.0; v.len()],
    };
    for (((queries, keys), head), part) in tasks.into_iter().zip(parts) {
        for (to, from, tokens, width) in [
            (&mut exact.out, &part.out, &queries, dim_value),
            (&mut exact.logsumexp, &part.logsumexp, &queries, 1),
            (&mut exact.query, &part.query, &queries, dim),
            (&mut exact.key, &part.key, &keys, dim),
            (&mut exact.value, &part.value, &keys, dim_value),
        ] {
            for (token, row) in tokens.clone().zip(from.chunks(width)) {
                to[(token * heads + head) * width..][..width].copy_from_slice(row);
            }
        }
    }
    exact
}

/// One head of one segment, tokens from its own first on.
fn one_head(
    case: &Case,
    (queries, keys): &Segment,
    head: usize,
    [q, k, v]: [&[f64]; 3],
    grad: Option<&[f64]>,
) -> Exact {
    let Dense { heads, dim, dim_value, causal, scale, .. } = case.problem;
    let scale = f64::from(scale);
    let of = |tokens: &Range<usize>, at: usize, width: usize| {
        let first = ((tokens.start + at) * heads + head) * width;
        first..first + width
    };
    let own = |at: usize, width: usize| at * width..(at + 1) * width;
    let mut exact = Exact {
        out: vec![0.0; queries.len() * dim_value],
        logsumexp: vec![0.0; queries.len()],
        query: vec![0.0; queries.len() * dim],
        key: vec![0.0; keys.len() * dim],
        value: vec![0.0; keys.len() * dim_value],
    };
    for at in 0..queries.len() {
        let seen = if causal { keys.len().min(at + 1) } else { keys.len() };
        let query = &q[of(queries, at, dim)];
        let scores: Vec<f64> = (0..seen).map(|key| scale * dot(query, &k[of(keys, key, dim)])).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let logsumexp = most + scores.iter().map(|score| (score - most).exp()).sum::<f64>().ln();
        let weights: Vec<f64> = scores.iter().map(|score| (score - logsumexp).exp()).collect();
        exact.logsumexp[at] = logsumexp;
        let out = &mut exact.out[own(at, dim_value)];
        for (key, weight) in weights.iter().enumerate() {
            add(out, *weight, &v[of(keys, key, dim_value)]);
        }
        let Some(grad) = grad else { continue };
        let grad = &grad[of(queries, at, dim_value)];
        let delta = dot(out, grad);
        for (key, weight) in weights.iter().enumerate() {
            add(&mut exact.value[own(key, dim_value)], *weight, grad);
            let score = weight * (dot(grad, &v[of(keys, key, dim_value)]) - delta) * scale;
            add(&mut exact.query[own(at, dim)], score, &k[of(keys, key, dim)]);
            add(&mut exact.key[own(key, dim)], score, query);
        }
    }
    exact
}

/// The device's copy of a case's sequences, and what the operations take of it.
struct OnDevice {
    cumulative: Option<(DeviceBuffer<f32>, DeviceBuffer<f32>)>,
}

impl OnDevice {
    /// The driver copies bits, whatever they stand for.
    fn new(device: &Device, case: &Case) -> Result<OnDevice, Error> {
        if case.lengths.is_empty() {
            return Ok(OnDevice { cumulative: None });
        }
        let cumulative = |ends: &dyn Fn(&Segment) -> usize| {
            let mut numbers = vec![f32::from_bits(0)];
            numbers.extend(case.segments().iter().map(|segment| f32::from_bits(ends(segment) as u32)));
            DeviceBuffer::from_slice(device, &numbers)
        };
        Ok(OnDevice { cumulative: Some((cumulative(&|s| s.0.end)?, cumulative(&|s| s.1.end)?)) })
    }

    fn sequences(&self, case: &Case) -> Option<Sequences> {
        self.cumulative.as_ref().map(|(q, kv)| Sequences {
            count: case.lengths.len(),
            cumulative_q: q.as_ptr().cast(),
            cumulative_kv: kv.as_ptr().cast(),
            max_q: case.lengths.iter().map(|lengths| lengths.0).max().unwrap_or(0),
            max_kv: case.lengths.iter().map(|lengths| lengths.1).max().unwrap_or(0),
        })
    }
}

fn forward<T: Element>(device: &Device, case: &Case, random: &mut Random, tally: &mut Tally) {
    let (q, k, v): (Vec<T>, Vec<T>, Vec<T>) = (
        random.elements(case.query_len()),
        random.elements(case.key_len()),
        random.elements(case.value_len()),
    );
    tally.cases += 1;
    let run = || -> Result<(Vec<T>, Vec<f32>), Error> {
        let (q, k, v) = (
            DeviceBuffer::from_slice(device, &q)?,
            DeviceBuffer::from_slice(device, &k)?,
            DeviceBuffer::from_slice(device, &v)?,
        );
        let mut out = DeviceBuffer::<T>::filled(device, case.out_len(), 0xff)?;
        let mut logsumexp = DeviceBuffer::<f32>::filled(device, case.rows(), 0xff)?;
        let tensors = ForwardTensors {
            query: q.as_ptr().cast(),
            key: k.as_ptr().cast(),
            value: v.as_ptr().cast(),
            out: out.as_mut_ptr().cast(),
            logsumexp: logsumexp.as_mut_ptr(),
        };
        let sequences = OnDevice::new(device, case)?;
        let (problem, tiles, launch) = (&case.problem, case.tiles, Launch::default());
        let packed = sequences.sequences(case);
        let packed = packed.as_ref();
        match case.route {
            Route::Fmha { .. } => {
                // SAFETY: the buffers have the case's sizes and outlive `to_vec`, which waits.
                unsafe { ops::fmha_forward(problem, tiles, packed, &tensors, &launch) }?;
            }
            Route::Hopper(schedule) => {
                // SAFETY: as above.
                unsafe { ops::hopper_fmha_forward(problem, tiles, schedule, packed, &tensors, &launch) }?;
            }
        }
        Ok((out.to_vec()?, logsumexp.to_vec()?))
    };
    let (case_text, dtype, name) = (case.describe(), case.problem.dtype, case.name());
    match run() {
        Err(error) => tally.failed(&case_text, &error),
        Ok((out, logsumexp)) => {
            let exact = exact(case, &wide(&q), &wide(&k), &wide(&v), None);
            let error = relative_error(&wide(&out), &exact.out);
            tally.add(&format!("{name} forward out"), dtype, forward_bound(dtype), error, &case_text);
            let error = relative_error(&wide(&logsumexp), &exact.logsumexp);
            tally.add(&format!("{name} forward logsumexp"), dtype, LOGSUMEXP_BOUND, error, &case_text);
        }
    }
}

fn backward<T: Element>(device: &Device, case: &Case, random: &mut Random, tally: &mut Tally) {
    let (q, k, v): (Vec<T>, Vec<T>, Vec<T>) = (
        random.elements(case.query_len()),
        random.elements(case.key_len()),
        random.elements(case.value_len()),
    );
    let g: Vec<T> = random.elements(case.out_len());
    let expected = exact(case, &wide(&q), &wide(&k), &wide(&v), Some(&wide(&g)));
    let out: Vec<T> = expected.out.iter().map(|x| T::from_f64(*x)).collect();
    let logsumexp: Vec<f32> = expected.logsumexp.iter().map(|x| *x as f32).collect();
    tally.cases += 1;
    let run = || -> Result<[Vec<f64>; 3], Error> {
        let (q, k, v) = (
            DeviceBuffer::from_slice(device, &q)?,
            DeviceBuffer::from_slice(device, &k)?,
            DeviceBuffer::from_slice(device, &v)?,
        );
        let delta = DeviceBuffer::from_slice(device, &cpu::compute_delta(&out, &g, case.problem.dim_value)?)?;
        let (out, grad_out) =
            (DeviceBuffer::from_slice(device, &out)?, DeviceBuffer::from_slice(device, &g)?);
        let logsumexp = DeviceBuffer::from_slice(device, &logsumexp)?;
        let mut grad_query = DeviceBuffer::<T>::filled(device, case.query_len(), 0xff)?;
        let mut grad_key = DeviceBuffer::<T>::filled(device, case.key_len(), 0xff)?;
        let mut grad_value = DeviceBuffer::<T>::filled(device, case.value_len(), 0xff)?;
        let own_delta = matches!(case.route, Route::Fmha { own_delta: true, .. });
        let tensors = BackwardTensors {
            query: q.as_ptr().cast(),
            key: k.as_ptr().cast(),
            value: v.as_ptr().cast(),
            out: out.as_ptr().cast(),
            grad_out: grad_out.as_ptr().cast(),
            logsumexp: logsumexp.as_ptr(),
            delta: if own_delta { delta.as_ptr() } else { std::ptr::null() },
            grad_query: grad_query.as_mut_ptr().cast(),
            grad_key: grad_key.as_mut_ptr().cast(),
            grad_value: grad_value.as_mut_ptr().cast(),
        };
        let sequences = OnDevice::new(device, case)?;
        let (problem, tiles, launch) = (&case.problem, case.tiles, Launch::default());
        let packed = sequences.sequences(case);
        let packed = packed.as_ref();
        match case.route {
            Route::Fmha { key_splits, .. } => {
                // SAFETY: the buffers have the case's sizes and outlive `to_vec`, which waits.
                unsafe { ops::fmha_backward(problem, tiles, key_splits, packed, &tensors, &launch) }?;
            }
            Route::Hopper(_) => {
                // SAFETY: as above.
                unsafe { ops::hopper_fmha_backward(problem, tiles, packed, &tensors, &launch) }?;
            }
        }
        Ok([wide(&grad_query.to_vec()?), wide(&grad_key.to_vec()?), wide(&grad_value.to_vec()?)])
    };
    let (case_text, dtype, name) = (case.describe(), case.problem.dtype, case.name());
    match run() {
        Err(error) => tally.failed(&case_text, &error),
        Ok(found) => {
            for (part, found, expected) in [
                ("query", &found[0], &expected.query),
                ("key", &found[1], &expected.key),
                ("value", &found[2], &expected.value),
            ] {
                let error = relative_error(found, expected);
                tally.add(
                    &format!("{name} backward {part}"),
                    dtype,
                    backward_bound(dtype),
                    error,
                    &case_text,
                );
            }
        }
    }
}

/// Lengths that tiles divide, that they do not divide, that are shorter than a tile, that differ.
fn random_lengths(random: &mut Random, tiles: DenseTiles) -> (usize, usize) {
    match random.range(0, 3) {
        0 => (tiles.query * random.range(1, 3), tiles.key * random.range(1, 3)),
        1 => {
            let both = random.range(1, 260);
            (both, both)
        }
        _ => (random.range(1, 260), random.range(1, 260)),
    }
}

fn case(kernel: &Kernel, (dim, dim_value): (usize, usize), number: usize, random: &mut Random) -> Case {
    let tiles = DenseTiles { query: product(&kernel.query_tile), key: product(&kernel.key_tile) };
    let varlen = number % 2 == 1;
    let lengths: Vec<(usize, usize)> = if varlen {
        (0..random.range(1, 4)).map(|_| random_lengths(random, tiles)).collect()
    } else {
        Vec::new()
    };
    let (seqlen_q, seqlen_kv) = if varlen {
        lengths.iter().fold((0, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1))
    } else {
        random_lengths(random, tiles)
    };
    let route = if kernel.family == "fmha" {
        let keys = lengths.iter().map(|lengths| lengths.1).max().unwrap_or(seqlen_kv);
        Route::Fmha {
            key_splits: random.range(1, keys.div_ceil(tiles.key).min(4)),
            own_delta: random.range(0, 1) == 0,
        }
    } else {
        Route::Hopper(Schedule::from_number(kernel.schedule).unwrap_or(Schedule::NonPersistent))
    };
    let heads = random.range(1, 2);
    let problem = Dense {
        dtype: kernel.dtype.expect("a type that this crate knows"),
        batch: if varlen { 1 } else { random.range(1, 2) },
        seqlen_q,
        seqlen_kv,
        heads,
        heads_kv: heads,
        dim,
        dim_value,
        causal: number / 2 % 2 == 1,
        scale: (1.0 / (dim as f64).sqrt()) as f32,
    };
    Case { problem, tiles, route, lengths }
}

fn every_row(family: &str, backend: Backend, direction: Direction) {
    let (device, artifact) = setup();
    let rows = rows(artifact, &device, family, direction);
    let in_table =
        artifact.kernels().iter().any(|kernel| kernel.family == family && kernel.direction == direction);
    println!("{family} {direction}: {} rows of the table run on this device", rows.len());
    if !in_table {
        println!("{family} {direction} is not in this artifact: 0 cases, not covered");
        return;
    }
    let properties = device.properties();
    if let Err(error) = artifact.check(backend, properties.capability) {
        println!("not covered here: {error}");
        return;
    }
    assert!(!rows.is_empty(), "{family}: the table has {direction} kernels and this device runs none");
    let mut tally = Tally::default();
    let mut uncovered = Vec::new();
    for (at, (kernel, above)) in rows.iter().enumerate() {
        let mut random = Random::new(6000 + at as u64);
        let dims = match backend {
            Backend::Fmha => head_dims(kernel, *above),
            _ => vec![(kernel.max_head_dim, kernel.max_head_dim)],
        };
        if dims.is_empty() {
            uncovered.push(kernel.name.clone());
        }
        for number in 0..if dims.is_empty() { 0 } else { 8 } {
            let mut case = case(kernel, dims[number % dims.len()], number, &mut random);
            if let Route::Fmha { own_delta, .. } = &mut case.route {
                *own_delta |= !is_built(artifact, Backend::ComputeDelta);
            }
            let dtype = case.problem.dtype;
            match direction {
                Direction::Forward => {
                    for_dtype!(dtype, forward(&device, &case, &mut random, &mut tally));
                }
                Direction::Backward => {
                    for_dtype!(dtype, backward(&device, &case, &mut random, &mut tally));
                }
            }
        }
    }
    assert!(uncovered.is_empty(), "rows without a case: {uncovered:?}");
    tally.finish(&format!("{family} {direction}, every row"), 8 * rows.len());
}

#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn every_fmha_forward_kernel_matches_the_reference() {
    every_row("fmha", Backend::Fmha, Direction::Forward);
}

#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn every_fmha_backward_kernel_matches_the_reference() {
    every_row("fmha", Backend::Fmha, Direction::Backward);
}

#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn every_hopper_fmha_forward_kernel_matches_the_reference() {
    every_row("hopper_fmha", Backend::HopperFmha, Direction::Forward);
}

#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn every_hopper_fmha_backward_kernel_matches_the_reference() {
    every_row("hopper_fmha_bwd", Backend::HopperFmha, Direction::Backward);
}

/// The reference above against the crate's own: a window over the whole axis is dense attention.
#[test]
fn the_reference_is_neighborhood_attention_with_a_whole_window() {
    let mut random = Random::new(7);
    for causal in [false, true] {
        let (tokens, heads, dim, dim_value) = (37, 2, 8, 5);
        let problem = Problem::builder(Dtype::Float64, &[tokens])
            .batch(2)
            .heads(heads)
            .dim(dim)
            .dim_value(dim_value)
            .window(&[tokens])
            .causal(&[causal])
            .build()
            .unwrap();
        let dense = Dense {
            dtype: Dtype::Float64,
            batch: 2,
            seqlen_q: tokens,
            seqlen_kv: tokens,
            heads,
            heads_kv: heads,
            dim,
            dim_value,
            causal,
            scale: problem.scale(),
        };
        let mut case = Case {
            problem: dense,
            tiles: DenseTiles { query: 64, key: 64 },
            route: Route::Hopper(Schedule::Cooperative),
            lengths: Vec::new(),
        };
        let (q, k): (Vec<f64>, Vec<f64>) =
            (random.elements(case.query_len()), random.elements(case.key_len()));
        let (v, g): (Vec<f64>, Vec<f64>) =
            (random.elements(case.value_len()), random.elements(case.out_len()));
        let found = exact(&case, &q, &k, &v, Some(&g));
        let forward = cpu::forward(&problem, &q, &k, &v).unwrap();
        let backward = cpu::backward(&problem, &q, &k, &v, &g).unwrap();
        assert!(relative_error(&wide(&forward.logsumexp), &found.logsumexp) < 1e-6);
        // Two sequences of that length are two batch entries of it.
        case.problem = Dense { batch: 1, seqlen_q: 2 * tokens, seqlen_kv: 2 * tokens, ..dense };
        case.lengths = vec![(tokens, tokens); 2];
        let packed = exact(&case, &q, &k, &v, Some(&g));
        for (part, found, packed, expected) in [
            ("out", found.out, packed.out, forward.out),
            ("query", found.query, packed.query, backward.query),
            ("key", found.key, packed.key, backward.key),
            ("value", found.value, packed.value, backward.value),
        ] {
            assert!(relative_error(&found, &expected) < 1e-12, "{part}, causal {causal}");
            assert_eq!(found, packed, "{part}, causal {causal}");
        }
    }
}
