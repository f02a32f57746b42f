//! Neighborhood attention on Hopper: every row of the table, against the CPU reference. The path is that of
//! a caller: permute query, key and value, call the operation, permute its results back.

use super::*;
use natten_kernels::ops::Schedule;

pub(super) fn tiles_of(kernel: &Kernel) -> Tiles {
    let shape = |tile: &[i32; 3]| tile.map(|n| n.max(1) as usize);
    Tiles { query: shape(&kernel.query_tile), key: shape(&kernel.key_tile) }
}

/// Moves tensors into the backend's order and back, with the artifact's own kernels where it has them.
struct Mover<'a> {
    device: &'a Device,
    order: TokenPermutation,
    batch: usize,
    heads: usize,
    on_device: bool,
}

impl Mover<'_> {
    fn len(&self, dim: usize) -> usize {
        self.batch * self.order.tokens_permuted() * self.heads * dim
    }

    fn tensor<T: Element>(&self, dim: usize) -> TokenTensor {
        TokenTensor { dtype: T::DTYPE, batch: self.batch, heads: self.heads, dim }
    }

    fn permuted<T: Element>(&self, host: &[T], dim: usize) -> Result<DeviceBuffer<T>, Error> {
        if !self.on_device {
            let permuted = self.order.permute(host, self.batch, self.heads, dim)?;
            return DeviceBuffer::from_slice(self.device, &permuted);
        }
        let source = DeviceBuffer::from_slice(self.device, host)?;
        let mut target = DeviceBuffer::<T>::filled(self.device, self.len(dim), 0xff)?;
        let (from, to) = (source.as_ptr().cast(), target.as_mut_ptr().cast());
        // SAFETY: the buffers have the order's sizes; `source` outlives the synchronisation below.
        unsafe { ops::token_permute(&self.order, self.tensor::<T>(dim), from, to, Stream::DEFAULT) }?;
        self.device.synchronize()?;
        Ok(target)
    }

    fn unpermuted<T: Element>(&self, permuted: &DeviceBuffer<T>, dim: usize) -> Result<Vec<T>, Error> {
        if !self.on_device {
            return self.order.unpermute(&permuted.to_vec()?, self.batch, self.heads, dim);
        }
        let len = self.batch * self.order.tokens() * self.heads * dim;
        let mut target = DeviceBuffer::<T>::filled(self.device, len, 0xff)?;
        let (from, to) = (permuted.as_ptr().cast(), target.as_mut_ptr().cast());
        // SAFETY: the buffers have the order's sizes and outlive `to_vec`, which waits.
        unsafe { ops::token_unpermute(&self.order, self.tensor::<T>(dim), from, to, Stream::DEFAULT) }?;
        target.to_vec()
    }
}

fn movers<'a>(device: &'a Device, problem: &Problem, tiles: &Tiles, on_device: bool) -> [Mover<'a>; 2] {
    [tiles.query, tiles.key].map(|tile| Mover {
        device,
        order: ops::tiled_order(problem, &tile).unwrap(),
        batch: problem.batch(),
        heads: problem.heads(),
        on_device,
    })
}

fn forward<T: Element>(
    device: &Device,
    problem: &Problem,
    (tiles, schedule): (&Tiles, Schedule),
    on_device: bool,
    random: &mut Random,
    tally: &mut Tally,
) {
    let (q, k, v): (Vec<T>, Vec<T>, Vec<T>) = (
        random.elements(problem.query_len()),
        random.elements(problem.key_len()),
        random.elements(problem.value_len()),
    );
    let case = format!("{} tiles {:?}x{:?} {schedule:?}", describe(problem), tiles.query, tiles.key);
    let dim = problem.dim();
    tally.cases += 1;
    let run = || -> Result<(Vec<T>, Vec<f32>), Error> {
        let [queries, keys] = movers(device, problem, tiles, on_device);
        let (q, k, v) = (queries.permuted(&q, dim)?, keys.permuted(&k, dim)?, keys.permuted(&v, dim)?);
        let mut out = DeviceBuffer::<T>::filled(device, queries.len(dim), 0xff)?;
        let mut logsumexp = DeviceBuffer::<f32>::filled(device, queries.len(1), 0xff)?;
        let tensors = ForwardTensors {
            query: q.as_ptr().cast(),
            key: k.as_ptr().cast(),
            value: v.as_ptr().cast(),
            out: out.as_mut_ptr().cast(),
            logsumexp: logsumexp.as_mut_ptr(),
        };
        // SAFETY: the buffers have the sizes of the problem's order and outlive the copies back, which wait.
        unsafe { ops::hopper_na_forward(problem, tiles, schedule, &tensors, &Launch::default()) }?;
        Ok((queries.unpermuted(&out, dim)?, queries.unpermuted(&logsumexp, 1)?))
    };
    match run() {
        Err(error) => tally.failed(&case, &error),
        Ok((out, logsumexp)) => {
            let exact = problem.with_dtype(Dtype::Float64);
            let exact = cpu::forward(&exact, &wide(&q), &wide(&k), &wide(&v)).unwrap();
            let dtype = problem.dtype();
            let error = relative_error(&wide(&out), &exact.out);
            tally.add("hopper_fna forward out", dtype, forward_bound(dtype), error, &case);
            let error = relative_error(&wide(&logsumexp), &wide(&exact.logsumexp));
            tally.add("hopper_fna forward logsumexp", dtype, LOGSUMEXP_BOUND, error, &case);
        }
    }
}

fn backward<T: Element>(
    device: &Device,
    problem: &Problem,
    tiles: &Tiles,
    on_device: bool,
    random: &mut Random,
    tally: &mut Tally,
) {
    let (q, k, v): (Vec<T>, Vec<T>, Vec<T>) = (
        random.elements(problem.query_len()),
        random.elements(problem.key_len()),
        random.elements(problem.value_len()),
    );
    let g: Vec<T> = random.elements(problem.out_len());
    let saved = cpu::forward(problem, &q, &k, &v).unwrap();
    let case = format!("{} tiles {:?}x{:?}", describe(problem), tiles.query, tiles.key);
    let dim = problem.dim();
    tally.cases += 1;
    let run = || -> Result<[Vec<f64>; 3], Error> {
        let [queries, keys] = movers(device, problem, tiles, on_device);
        let (q, k, v) = (queries.permuted(&q, dim)?, keys.permuted(&k, dim)?, keys.permuted(&v, dim)?);
        let (out, grad_out) = (queries.permuted(&saved.out, dim)?, queries.permuted(&g, dim)?);
        let logsumexp = queries.permuted(&saved.logsumexp, 1)?;
        let mut grad_query = DeviceBuffer::<T>::filled(device, queries.len(dim), 0xff)?;
        let mut grad_key = DeviceBuffer::<T>::filled(device, keys.len(dim), 0xff)?;
        let mut grad_value = DeviceBuffer::<T>::filled(device, keys.len(dim), 0xff)?;
        let tensors = BackwardTensors {
            query: q.as_ptr().cast(),
            key: k.as_ptr().cast(),
            value: v.as_ptr().cast(),
            out: out.as_ptr().cast(),
            grad_out: grad_out.as_ptr().cast(),
            logsumexp: logsumexp.as_ptr(),
            delta: std::ptr::null(),
            grad_query: grad_query.as_mut_ptr().cast(),
            grad_key: grad_key.as_mut_ptr().cast(),
            grad_value: grad_value.as_mut_ptr().cast(),
        };
        // SAFETY: the buffers have the sizes of the problem's order and outlive the copies back, which wait.
        unsafe { ops::hopper_na_backward(problem, tiles, &tensors, &Launch::default()) }?;
        Ok([
            wide(&queries.unpermuted(&grad_query, dim)?),
            wide(&keys.unpermuted(&grad_key, dim)?),
            wide(&keys.unpermuted(&grad_value, dim)?),
        ])
    };
    match run() {
        Err(error) => tally.failed(&case, &error),
        Ok(found) => {
            let exact = problem.with_dtype(Dtype::Float64);
            let exact = cpu::backward(&exact, &wide(&q), &wide(&k), &wide(&v), &wide(&g)).unwrap();
            let dtype = problem.dtype();
            for (part, found, expected) in [
                ("query", &found[0], exact.query),
                ("key", &found[1], exact.key),
                ("value", &found[2], exact.value),
            ] {
                let error = relative_error(found, &expected);
                tally.add(&format!("hopper_fna backward {part}"), dtype, backward_bound(dtype), error, &case);
            }
        }
    }
}

fn every_row(family: &str, direction: Direction) {
    let (device, artifact) = setup();
    let in_table = artifact.kernels().iter().any(|kernel| kernel.family == family);
    if !in_table {
        println!("{family} is not in this artifact: 0 cases, not covered");
        return;
    }
    if let Err(error) = artifact.check(Backend::HopperFna, device.properties().capability) {
        println!("not covered here: {error}");
        return;
    }
    let rows = rows(artifact, &device, family, direction);
    println!("{family}: {} rows of the table run on this device", rows.len());
    assert!(!rows.is_empty(), "{family}: the table has kernels and this device runs none");
    let on_device = is_built(artifact, Backend::TokenPermute);
    println!("tokens are permuted by the {}", if on_device { "artifact's kernels" } else { "CPU" });
    let mut tally = Tally::default();
    for (at, (kernel, _)) in rows.iter().enumerate() {
        let mut random = Random::new(5000 + at as u64);
        let dtype = kernel.dtype.expect("a type that this crate knows");
        let (tiles, dim) = (tiles_of(kernel), kernel.max_head_dim);
        for _ in 0..3 {
            let dims = Dims { batch: random.range(1, 2), heads: random.range(1, 2), dim, dim_value: dim };
            let problem = random_problem(&mut random, dtype, &kernel.causal[..kernel.rank], dims);
            match direction {
                Direction::Forward => {
                    let schedule = Schedule::from_number(kernel.schedule).expect("a known schedule");
                    let how = (&tiles, schedule);
                    for_dtype!(dtype, forward(&device, &problem, how, on_device, &mut random, &mut tally));
                }
                Direction::Backward => {
                    for_dtype!(
                        dtype,
                        backward(&device, &problem, &tiles, on_device, &mut random, &mut tally)
                    );
                }
            }
        }
    }
    tally.finish(&format!("{family}, every row"), 3 * rows.len());
}

#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn every_hopper_fna_forward_kernel_matches_the_cpu() {
    every_row("hopper_fna", Direction::Forward);
}

#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn every_hopper_fna_backward_kernel_matches_the_cpu() {
    every_row("hopper_fna_bwd", Direction::Backward);
}

/// What the table has no kernel for is refused before anything runs, and the refusal says what there is.
#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn what_no_hopper_kernel_takes_is_refused() {
    let (device, artifact) = setup();
    let number = device.properties().capability.number();
    let Some(kernel) = artifact
        .kernels()
        .iter()
        .find(|kernel| kernel.family == "hopper_fna" && (kernel.sm_min..kernel.sm_max).contains(&number))
    else {
        println!("hopper_fna has no kernel for this device: 0 cases, not covered");
        return;
    };
    let (rank, dim) = (kernel.rank, kernel.max_head_dim);
    let problem = Problem::builder(kernel.dtype.expect("a known type"), &[64, 8, 8][..rank])
        .dim(dim)
        .window(&vec![3; rank])
        .causal(&kernel.causal[..rank])
        .build()
        .unwrap();
    let legal = tiles_of(kernel);
    let schedule = Schedule::from_number(kernel.schedule).expect("a known schedule");
    let mut buffer = DeviceBuffer::<f32>::filled(&device, 1 << 20, 0).unwrap();
    let pointer: *mut std::ffi::c_void = buffer.as_mut_ptr().cast();
    let tensors = ForwardTensors {
        query: pointer,
        key: pointer,
        value: pointer,
        out: pointer,
        logsumexp: pointer.cast(),
    };
    let other = if schedule == Schedule::PingPong { Schedule::NonPersistent } else { Schedule::PingPong };
    let absent = !artifact.kernels().iter().any(|k| {
        k.family == "hopper_fna"
            && (k.rank, k.dtype, k.causal, k.max_head_dim) == (rank, kernel.dtype, kernel.causal, dim)
            && (k.query_tile, k.key_tile, k.schedule) == (kernel.query_tile, kernel.key_tile, other.number())
    });
    let odd = Tiles { query: legal.query.map(|n| if n > 1 { n / 2 } else { n }), key: legal.key };
    let mut cases = vec![("tiles of other sizes", odd, schedule)];
    if absent {
        cases.push(("another schedule", legal, other));
    }
    for (name, tiles, schedule) in cases {
        // SAFETY: refused, so no pointer is followed.
        let error =
            unsafe { ops::hopper_na_forward(&problem, &tiles, schedule, &tensors, &Launch::default()) };
        let error = error.unwrap_err();
        println!("{name}: {error}");
        assert!(matches!(error, Error::Unsupported(_)), "{name}: {error}");
        assert!(error.to_string().contains("on device 0 there are: tiles"), "{name}: {error}");
    }
    // And what is legal still runs afterwards: no error is left behind.
    // SAFETY: one buffer that is larger than every tensor of the call.
    unsafe { ops::hopper_na_forward(&problem, &legal, schedule, &tensors, &Launch::default()) }.unwrap();
    device.synchronize().unwrap();
}
