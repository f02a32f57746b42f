//! Calls carried out on the host, step by step: results are those of the CPU backend to the last bit, every
//! step gets tensors in the order that it should, and temporaries are counted and freed.

use super::*;
use crate::cpu::{self, AttentionSaved, Cumulative};
use crate::dtype::Dtype;
use crate::ops::{Schedule, Scheduler};
use crate::testing::Random;
use crate::tiles::{self, Tiles};
use std::alloc::Layout;
use std::cell::RefCell;

/// Host memory; the operations are the CPU backend's, in the order of the decision's tiles.
#[derive(Default)]
struct Host {
    live: RefCell<Vec<(usize, Layout)>>,
    asked: RefCell<Vec<usize>>,
    /// Fails at this step, counted from 0.
    fail_at: Option<usize>,
    steps: RefCell<Vec<&'static str>>,
}

impl Host {
    fn step(&self, name: &'static str) -> Result<()> {
        self.steps.borrow_mut().push(name);
        if self.fail_at == Some(self.steps.borrow().len() - 1) {
            return Err(Error::Cuda(format!("{name} failed")));
        }
        Ok(())
    }
}

fn slice<'a, T>(pointer: *const c_void, len: usize) -> &'a [T] {
    assert!(!pointer.is_null());
    // SAFETY: the tests below pass pointers of that many elements.
    unsafe { std::slice::from_raw_parts(pointer.cast(), len) }
}

fn write<T: Copy>(pointer: *mut c_void, values: &[T]) {
    assert!(!pointer.is_null());
    // SAFETY: as above; outputs overlap nothing.
    unsafe { std::slice::from_raw_parts_mut(pointer.cast(), values.len()) }.copy_from_slice(values);
}

/// The two sides' orders, or `None` where tensors keep theirs.
fn orders(decision: &Decision, problem: &Problem) -> Option<[TokenPermutation; 2]> {
    let tiled = matches!(decision.backend, Backend::HopperFna | Backend::BlackwellFna);
    tiled.then(|| {
        let tiles = decision.tiles.unwrap();
        [tiles.query, tiles.key].map(|tile| ops::tiled_order(problem, &tile).unwrap())
    })
}

fn read<T: Copy + Default>(
    order: Option<&TokenPermutation>,
    pointer: *const c_void,
    (batch, tokens, heads, dim): (usize, usize, usize, usize),
) -> Vec<T> {
    match order {
        None => slice(pointer, batch * tokens * heads * dim).to_vec(),
        Some(order) => {
            let permuted = slice(pointer, batch * order.tokens_permuted() * heads * dim);
            order.unpermute(permuted, batch, heads, dim).unwrap()
        }
    }
}

fn store<T: Copy + Default>(
    order: Option<&TokenPermutation>,
    pointer: *mut c_void,
    values: &[T],
    (batch, heads, dim): (usize, usize, usize),
) {
    match order {
        None => write(pointer, values),
        Some(order) => write(pointer, &order.permute(values, batch, heads, dim).unwrap()),
    }
}

impl Engine for Host {
    fn alloc(&self, bytes: usize) -> Result<*mut c_void> {
        self.step("alloc")?;
        let layout = Layout::from_size_align(bytes, 256).unwrap();
        // SAFETY: a part of a block is never of 0 bytes.
        let pointer = unsafe { std::alloc::alloc(layout) };
        assert!(!pointer.is_null());
        // SAFETY: that many bytes. NaN in every type, so that nothing unwritten goes unnoticed.
        unsafe { pointer.write_bytes(0xff, bytes) };
        self.live.borrow_mut().push((pointer.addr(), layout));
        self.asked.borrow_mut().push(bytes);
        Ok(pointer.cast())
    }

    fn free(&self, pointer: *mut c_void) {
        let mut live = self.live.borrow_mut();
        let at = live.iter().position(|(address, _)| *address == pointer.addr()).expect("freed once");
        let (_, layout) = live.remove(at);
        // SAFETY: allocated above with that layout.
        unsafe { std::alloc::dealloc(pointer.cast(), layout) };
    }

    unsafe fn reorder(
        &self,
        order: &TokenPermutation,
        way: Way,
        tensor: TokenTensor,
        from: *const c_void,
        to: *mut c_void,
    ) -> Result<()> {
        self.step(if way == Way::Into { "permute" } else { "unpermute" })?;
        fn go<T: Copy + Default>(
            order: &TokenPermutation,
            way: Way,
            tensor: TokenTensor,
            from: *const c_void,
            to: *mut c_void,
        ) {
            let TokenTensor { batch, heads, dim, .. } = tensor;
            let (outside, inside) =
                (batch * order.tokens() * heads * dim, batch * order.tokens_permuted() * heads * dim);
            let moved = match way {
                Way::Into => order.permute(slice::<T>(from, outside), batch, heads, dim),
                Way::Back => order.unpermute(slice::<T>(from, inside), batch, heads, dim),
            };
            write(to, &moved.unwrap());
        }
        match tensor.dtype.size() {
            4 => go::<u32>(order, way, tensor, from, to),
            8 => go::<u64>(order, way, tensor, from, to),
            size => panic!("{size} bytes"),
        }
        Ok(())
    }

    unsafe fn copy_heads(&self, copy: &HeadCopy, from: *const c_void, to: *mut c_void) -> Result<()> {
        self.step("copy")?;
        let rows: &[u8] = slice(from, copy.heads * copy.width);
        let repeated: Vec<u8> =
            rows.chunks_exact(copy.width).flat_map(|row| row.repeat(copy.copies)).collect();
        write(to, &repeated);
        Ok(())
    }

    unsafe fn add_heads(
        &self,
        copy: &HeadCopy,
        dtype: Dtype,
        from: *const c_void,
        to: *mut c_void,
    ) -> Result<()> {
        self.step("add")?;
        assert_eq!(dtype, Dtype::Float64);
        let dim = copy.width / 8;
        let addends: &[f64] = slice(from, copy.heads * copy.copies * dim);
        let sums: Vec<f64> = addends
            .chunks_exact(copy.copies * dim)
            .flat_map(|row| (0..dim).map(|d| row.iter().skip(d).step_by(dim).sum::<f64>()))
            .collect();
        write(to, &sums);
        Ok(())
    }

    unsafe fn na_forward(
        &self,
        decision: &Decision,
        problem: &Problem,
        tensors: &ForwardTensors,
    ) -> Result<()> {
        self.step("operation")?;
        let orders = orders(decision, problem);
        let [queries, keys] = [0, 1].map(|side| orders.as_ref().map(|orders| &orders[side]));
        let native = matches!(decision.backend, Backend::Reference | Backend::BlackwellFna);
        assert!(native || problem.heads() == problem.heads_kv(), "{decision}");
        let (batch, heads, heads_kv) = (problem.batch(), problem.heads(), problem.heads_kv());
        let query: Vec<f64> = read(queries, tensors.query, (batch, problem.tokens(), heads, problem.dim()));
        let key: Vec<f64> = read(keys, tensors.key, (batch, problem.tokens_kv(), heads_kv, problem.dim()));
        let value: Vec<f64> =
            read(keys, tensors.value, (batch, problem.tokens_kv(), heads_kv, problem.dim_value()));
        let result = cpu::forward(problem, &query, &key, &value).unwrap();
        store(queries, tensors.out, &result.out, (batch, heads, problem.dim_value()));
        if !tensors.logsumexp.is_null() {
            store(queries, tensors.logsumexp.cast(), &result.logsumexp, (batch, heads, 1));
        } else {
            assert_eq!(decision.backend, Backend::Fna, "the others write it always");
        }
        Ok(())
    }

    unsafe fn na_backward(
        &self,
        decision: &Decision,
        problem: &Problem,
        tensors: &BackwardTensors,
    ) -> Result<()> {
        self.step("operation")?;
        let orders = orders(decision, problem);
        let [queries, keys] = [0, 1].map(|side| orders.as_ref().map(|orders| &orders[side]));
        let (batch, heads, heads_kv) = (problem.batch(), problem.heads(), problem.heads_kv());
        let (tokens, tokens_kv) = (problem.tokens(), problem.tokens_kv());
        let (dim, dim_value) = (problem.dim(), problem.dim_value());
        let query: Vec<f64> = read(queries, tensors.query, (batch, tokens, heads, dim));
        let key: Vec<f64> = read(keys, tensors.key, (batch, tokens_kv, heads_kv, dim));
        let value: Vec<f64> = read(keys, tensors.value, (batch, tokens_kv, heads_kv, dim_value));
        let grad_out: Vec<f64> = read(queries, tensors.grad_out, (batch, tokens, heads, dim_value));
        // What the forward pass left must arrive as it was.
        let forward = cpu::forward(problem, &query, &key, &value).unwrap();
        let out: Vec<f64> = read(queries, tensors.out, (batch, tokens, heads, dim_value));
        let logsumexp: Vec<f32> = read(queries, tensors.logsumexp.cast(), (batch, tokens, heads, 1));
        assert_eq!((out, logsumexp), (forward.out, forward.logsumexp));
        let gradients = cpu::backward(problem, &query, &key, &value, &grad_out).unwrap();
        store(queries, tensors.grad_query, &gradients.query, (batch, heads, dim));
        store(keys, tensors.grad_key, &gradients.key, (batch, heads_kv, dim));
        store(keys, tensors.grad_value, &gradients.value, (batch, heads_kv, dim_value));
        Ok(())
    }

    unsafe fn dense_forward(
        &self,
        decision: &Decision,
        problem: &Dense,
        sequences: Option<&Sequences>,
        tensors: &ForwardTensors,
    ) -> Result<()> {
        self.step("operation")?;
        assert!(
            decision.backend == Backend::BlackwellFmha || problem.heads == problem.heads_kv,
            "{decision}"
        );
        let [q, k, v] = dense_lens(problem);
        let numbers = sequences.map(cumulative);
        let (q, k, v) = (slice(tensors.query, q), slice(tensors.key, k), slice(tensors.value, v));
        let result = cpu::attention_forward::<f64>(problem, numbers.as_ref(), q, k, v).unwrap();
        write(tensors.out, &result.out);
        if tensors.logsumexp.is_null() {
            assert_ne!(decision.backend, Backend::HopperFmha, "writes it always");
        } else {
            write(tensors.logsumexp.cast(), &result.logsumexp);
        }
        Ok(())
    }

    unsafe fn dense_backward(
        &self,
        _: &Decision,
        problem: &Dense,
        sequences: Option<&Sequences>,
        tensors: &BackwardTensors,
    ) -> Result<()> {
        self.step("operation")?;
        let [q, k, v] = dense_lens(problem);
        let rows = problem.batch * problem.seqlen_q * problem.heads;
        let saved = AttentionSaved::<f64> {
            query: slice(tensors.query, q),
            key: slice(tensors.key, k),
            value: slice(tensors.value, v),
            out: slice(tensors.out, rows * problem.dim_value),
            grad_out: slice(tensors.grad_out, rows * problem.dim_value),
            logsumexp: slice(tensors.logsumexp.cast(), rows),
        };
        let numbers = sequences.map(cumulative);
        let gradients = cpu::attention_backward(problem, numbers.as_ref(), &saved).unwrap();
        write(tensors.grad_query, &gradients.query);
        write(tensors.grad_key, &gradients.key);
        write(tensors.grad_value, &gradients.value);
        Ok(())
    }
}

fn dense_lens(problem: &Dense) -> [usize; 3] {
    let Dense { batch, seqlen_q, seqlen_kv, heads, heads_kv, dim, dim_value, .. } = *problem;
    [seqlen_q * heads * dim, seqlen_kv * heads_kv * dim, seqlen_kv * heads_kv * dim_value]
        .map(|len| batch * len)
}

fn cumulative<'a>(sequences: &Sequences) -> Cumulative<'a> {
    let numbers = |pointer: *const i32| slice(pointer.cast(), sequences.count + 1);
    Cumulative { queries: numbers(sequences.cumulative_q), keys: numbers(sequences.cumulative_kv) }
}

fn decision(backend: Backend, direction: Direction, tiles: Option<Tiles>, copies: usize) -> Decision {
    let forward = direction == Direction::Forward;
    Decision {
        backend,
        direction,
        kernel: None,
        tiles,
        schedule: forward.then_some(Schedule::NonPersistent),
        scheduler: forward.then_some(Scheduler::Persistent),
        key_splits: [1; 3],
        determinism: Determinism::NotRequired,
        key_head_copies: copies,
        passed_over: Vec::new(),
    }
}

/// Random problems by every backend, as the dispatcher would have them.
fn cases(random: &mut Random, direction: Direction) -> Vec<(Problem, Decision)> {
    let mut cases = Vec::new();
    for case in 0..96 {
        let rank = 1 + case % 3;
        let backend =
            [Backend::Reference, Backend::Fna, Backend::HopperFna, Backend::BlackwellFna][case / 3 % 4];
        let most = [40, 12, 7][rank - 1];
        let dilation: Vec<usize> = (0..rank).map(|_| random.range(1, 2)).collect();
        let window: Vec<usize> = (0..rank).map(|_| random.range(2, 3)).collect();
        let extents: Vec<usize> = (0..rank)
            .map(|at| random.range(dilation[at] * window[at], most.max(dilation[at] * window[at])))
            .collect();
        let causal: Vec<bool> = (0..rank).map(|_| random.range(0, 1) == 1).collect();
        let grouped = random.range(0, 1) == 1;
        let takes_groups = matches!(backend, Backend::Reference | Backend::BlackwellFna);
        let group = if grouped { 2 } else { 1 };
        let heads = random.range(1, 2) * group;
        let mut builder = Problem::builder(Dtype::Float64, &extents).batch(random.range(1, 2)).dim(2);
        builder =
            builder.heads(heads).heads_kv(heads / group).window(&window).dilation(&dilation).causal(&causal);
        if backend == Backend::Reference {
            builder = builder.extra_kv(random.range(0, 3)).dim_value(3);
        } else if backend == Backend::Fna {
            builder = builder.dim_value(5);
        }
        let problem = builder.build().unwrap();
        let tiles = match backend {
            Backend::HopperFna => Some(match direction {
                Direction::Forward => tiles::hopper_forward(rank, 64)[0].0,
                Direction::Backward => tiles::hopper_backward(rank, 64)[0],
            }),
            Backend::BlackwellFna => Some(tiles::blackwell(direction, rank)[0]),
            Backend::Fna => Some(Tiles::balanced(rank, (64, 64))),
            _ => None,
        };
        let copies = if takes_groups { 1 } else { group };
        cases.push((problem, decision(backend, direction, tiles, copies)));
    }
    cases
}

#[test]
fn every_backends_forward_pass_is_the_problems() {
    let mut random = Random::new(31);
    for (at, (problem, decision)) in cases(&mut random, Direction::Forward).iter().enumerate() {
        let (q, k, v) =
            (random.vec(problem.query_len()), random.vec(problem.key_len()), random.vec(problem.value_len()));
        let expected = cpu::forward(problem, &q, &k, &v).unwrap();
        let mut out = vec![f64::NAN; problem.out_len()];
        let mut logsumexp = vec![f32::NAN; problem.logsumexp_len()];
        let wanted = at % 2 == 0;
        let tensors = ForwardTensors {
            query: q.as_ptr().cast(),
            key: k.as_ptr().cast(),
            value: v.as_ptr().cast(),
            out: out.as_mut_ptr().cast(),
            logsumexp: if wanted { logsumexp.as_mut_ptr() } else { std::ptr::null_mut() },
        };
        let host = Host::default();
        // SAFETY: host memory of the problem's sizes.
        unsafe { compose::forward(&host, decision, problem, &tensors) }.unwrap();
        assert_eq!(out, expected.out, "{problem:?} {decision}");
        if wanted {
            assert_eq!(logsumexp, expected.logsumexp, "{problem:?} {decision}");
        }
        check_memory(&host, workspace_bytes(decision, problem, wanted).unwrap());
    }
}

#[test]
fn every_backends_backward_pass_is_the_problems() {
    let mut random = Random::new(32);
    for (problem, decision) in cases(&mut random, Direction::Backward) {
        let (q, k, v) =
            (random.vec(problem.query_len()), random.vec(problem.key_len()), random.vec(problem.value_len()));
        let forward = cpu::forward(&problem, &q, &k, &v).unwrap();
        let grad_out = random.vec(problem.out_len());
        let expected = cpu::backward(&problem, &q, &k, &v, &grad_out).unwrap();
        let mut found = cpu::Gradients {
            query: vec![f64::NAN; q.len()],
            key: vec![f64::NAN; k.len()],
            value: vec![f64::NAN; v.len()],
        };
        let tensors = BackwardTensors {
            query: q.as_ptr().cast(),
            key: k.as_ptr().cast(),
            value: v.as_ptr().cast(),
            out: forward.out.as_ptr().cast(),
            grad_out: grad_out.as_ptr().cast(),
            logsumexp: forward.logsumexp.as_ptr(),
            delta: std::ptr::null(),
            grad_query: found.query.as_mut_ptr().cast(),
            grad_key: found.key.as_mut_ptr().cast(),
            grad_value: found.value.as_mut_ptr().cast(),
        };
        let host = Host::default();
        // SAFETY: host memory of the problem's sizes.
        unsafe { compose::backward(&host, &decision, &problem, &tensors) }.unwrap();
        assert_eq!(found.query, expected.query, "{problem:?} {decision}");
        // Copies' gradients are added up after they were rounded, and in another order.
        for (found, expected) in [(&found.key, &expected.key), (&found.value, &expected.value)] {
            for (a, b) in found.iter().zip(expected) {
                let tolerance = if decision.key_head_copies == 1 { 0.0 } else { 1e-12 };
                assert!((a - b).abs() <= tolerance, "{a} is not {b}: {problem:?} {decision}");
            }
        }
        check_memory(&host, workspace_bytes(&decision, &problem, true).unwrap());
    }
}

#[track_caller]
fn check_memory(host: &Host, expected: usize) {
    assert!(host.live.borrow().is_empty(), "all is freed");
    let asked = host.asked.borrow();
    assert!(asked.len() <= 1, "one block");
    assert_eq!(asked.iter().sum::<usize>(), expected);
}

#[test]
fn dense_attention_copies_key_heads_where_it_must() {
    let mut random = Random::new(33);
    let (ends_q, ends_kv) = ([0, 4, 9], [0, 5, 8]);
    let sequences = Sequences {
        count: 2,
        cumulative_q: ends_q.as_ptr(),
        cumulative_kv: ends_kv.as_ptr(),
        max_q: 5,
        max_kv: 5,
    };
    for backend in [Backend::Fmha, Backend::HopperFmha, Backend::BlackwellFmha] {
        for (heads_kv, packed, wanted) in
            [(4, false, true), (2, false, false), (1, true, true), (2, true, false)]
        {
            let problem = Dense {
                batch: if packed { 1 } else { 2 },
                seqlen_q: 9,
                seqlen_kv: 8,
                heads: 4,
                heads_kv,
                dim: 3,
                dim_value: 3,
                causal: heads_kv == 2,
                ..Dense::new(Dtype::Float64)
            };
            let sequences = packed.then_some(&sequences);
            let [q, k, v] = dense_lens(&problem).map(|len| random.vec(len));
            let numbers = sequences.map(cumulative);
            let expected = cpu::attention_forward(&problem, numbers.as_ref(), &q, &k, &v).unwrap();
            let mut out = vec![f64::NAN; expected.out.len()];
            let mut logsumexp = vec![f32::NAN; expected.logsumexp.len()];
            let tensors = ForwardTensors {
                query: aligned(&q),
                key: aligned(&k),
                value: aligned(&v),
                out: out.as_mut_ptr().cast(),
                logsumexp: if wanted { logsumexp.as_mut_ptr() } else { std::ptr::null_mut() },
            };
            let copies = if backend == Backend::BlackwellFmha { 1 } else { 4 / heads_kv };
            let decision = decision(backend, Direction::Forward, Some(Tiles::balanced(1, (64, 64))), copies);
            let host = Host::default();
            // SAFETY: host memory of the problem's sizes.
            unsafe { compose::dense_forward(&host, &decision, &problem, sequences, &tensors) }.unwrap();
            assert_eq!(out, expected.out, "{problem:?} {decision}");
            if wanted {
                assert_eq!(logsumexp, expected.logsumexp, "{problem:?} {decision}");
            }
            assert!(host.live.borrow().is_empty());
        }
    }
}

#[test]
fn dense_gradients_of_copied_key_heads_add_up() {
    let mut random = Random::new(35);
    for (backend, heads_kv) in
        [(Backend::Fmha, 4), (Backend::Fmha, 2), (Backend::HopperFmha, 1), (Backend::BlackwellFmha, 1)]
    {
        let problem = Dense {
            batch: 2,
            seqlen_q: 9,
            seqlen_kv: 8,
            heads: 4,
            heads_kv,
            dim: 3,
            dim_value: 5,
            ..Dense::new(Dtype::Float64)
        };
        let [q, k, v] = dense_lens(&problem).map(|len| random.vec(len));
        let forward = cpu::attention_forward(&problem, None, &q, &k, &v).unwrap();
        let grad_out: Vec<f64> = random.vec(forward.out.len());
        let saved = AttentionSaved {
            query: &q,
            key: &k,
            value: &v,
            out: &forward.out,
            grad_out: &grad_out,
            logsumexp: &forward.logsumexp,
        };
        let expected = cpu::attention_backward(&problem, None, &saved).unwrap();
        let mut grads = [q.len(), k.len(), v.len()].map(|len| vec![f64::NAN; len]);
        let [grad_query, grad_key, grad_value] = grads.each_mut().map(|grad| grad.as_mut_ptr().cast());
        let tensors = BackwardTensors {
            query: aligned(&q),
            key: aligned(&k),
            value: aligned(&v),
            out: aligned(&forward.out),
            grad_out: aligned(&grad_out),
            logsumexp: forward.logsumexp.as_ptr(),
            delta: std::ptr::null(),
            grad_query,
            grad_key,
            grad_value,
        };
        let copies = if backend == Backend::BlackwellFmha { 1 } else { 4 / heads_kv };
        let decision = decision(backend, Direction::Backward, Some(Tiles::balanced(1, (64, 64))), copies);
        let host = Host::default();
        // SAFETY: host memory of the problem's sizes.
        unsafe { compose::dense_backward(&host, &decision, &problem, None, &tensors) }.unwrap();
        for (found, exact) in grads.iter().zip([&expected.query, &expected.key, &expected.value]) {
            assert!(found.iter().zip(exact).all(|(a, b)| (a - b).abs() < 1e-12), "{decision}");
        }
        // Key, value and their gradients, of 4 heads.
        let each = |dim: usize| (2 * 8 * 4 * dim * 8_usize).next_multiple_of(256);
        check_memory(&host, if copies == 1 { 0 } else { 2 * each(3) + 2 * each(5) });
    }
}

/// Vectors of this size come from the allocator's 16-byte classes.
fn aligned(values: &[f64]) -> *const c_void {
    assert!(values.as_ptr().addr().is_multiple_of(16));
    values.as_ptr().cast()
}

/// A full window by a dense backend: the same tensors, the same result, gradients too.
#[test]
fn a_window_of_everything_runs_as_dense_attention() {
    let mut random = Random::new(34);
    let problem =
        Problem::builder(Dtype::Float64, &[3, 4]).batch(2).heads(2).dim(4).window(&[3, 4]).extra_kv(2);
    let problem = problem.build().unwrap();
    let (q, k, v) =
        (random.vec(problem.query_len()), random.vec(problem.key_len()), random.vec(problem.value_len()));
    let expected = cpu::forward(&problem, &q, &k, &v).unwrap();
    let mut out = vec![f64::NAN; problem.out_len()];
    let tensors = ForwardTensors {
        query: aligned(&q),
        key: aligned(&k),
        value: aligned(&v),
        out: out.as_mut_ptr().cast(),
        logsumexp: std::ptr::null_mut(),
    };
    let tiles = Some(Tiles::balanced(1, (64, 64)));
    let chosen = decision(Backend::HopperFmha, Direction::Forward, tiles, 1);
    let host = Host::default();
    // SAFETY: host memory of the problem's sizes.
    unsafe { compose::forward(&host, &chosen, &problem, &tensors) }.unwrap();
    for (a, b) in out.iter().zip(&expected.out) {
        assert!((a - b).abs() < 1e-13, "{a} is not {b}");
    }
    // Hopper writes logsumexp always.
    check_memory(&host, workspace_bytes(&chosen, &problem, false).unwrap());
    assert_eq!(workspace_bytes(&chosen, &problem, true).unwrap(), 0);

    let grad_out = random.vec(problem.out_len());
    let exact = cpu::backward(&problem, &q, &k, &v, &grad_out).unwrap();
    let mut grads = [q.len(), k.len(), v.len()].map(|len| vec![f64::NAN; len]);
    let [grad_query, grad_key, grad_value] = grads.each_mut().map(|grad| grad.as_mut_ptr().cast());
    let tensors = BackwardTensors {
        query: aligned(&q),
        key: aligned(&k),
        value: aligned(&v),
        out: expected.out.as_ptr().cast(),
        grad_out: aligned(&grad_out),
        logsumexp: expected.logsumexp.as_ptr(),
        delta: std::ptr::null(),
        grad_query,
        grad_key,
        grad_value,
    };
    let chosen = decision(Backend::Fmha, Direction::Backward, tiles, 1);
    // SAFETY: as above.
    unsafe { compose::backward(&host, &chosen, &problem, &tensors) }.unwrap();
    for (found, exact) in grads.iter().zip([&exact.query, &exact.key, &exact.value]) {
        for (a, b) in found.iter().zip(exact) {
            assert!((a - b).abs() < 1e-5, "{a} is not {b}");
        }
    }
}

/// Whichever step fails, its error comes out, nothing runs after it, and the block is freed.
#[test]
fn a_failing_step_frees_everything_and_keeps_its_error() {
    let problem = Problem::builder(Dtype::Float64, &[9, 9]).heads(2).heads_kv(1).dim(2).window(&[3, 3]);
    let problem = problem.build().unwrap();
    let (q, k, v) =
        (vec![0.5; problem.query_len()], vec![0.5; problem.key_len()], vec![0.5; problem.value_len()]);
    let mut out = vec![0.0_f64; problem.out_len()];
    let mut logsumexp = vec![0_f32; problem.logsumexp_len()];
    let tensors = ForwardTensors {
        query: q.as_ptr().cast(),
        key: k.as_ptr().cast(),
        value: v.as_ptr().cast(),
        out: out.as_mut_ptr().cast(),
        logsumexp: logsumexp.as_mut_ptr(),
    };
    let tiles = tiles::hopper_forward(2, 64)[0].0;
    let decision = decision(Backend::HopperFna, Direction::Forward, Some(tiles), 2);
    let expected =
        ["alloc", "copy", "copy", "permute", "permute", "permute", "operation", "unpermute", "unpermute"];
    for fail_at in 0..expected.len() {
        let host = Host { fail_at: Some(fail_at), ..Host::default() };
        // SAFETY: host memory of the problem's sizes.
        let error = unsafe { compose::forward(&host, &decision, &problem, &tensors) }.unwrap_err();
        assert_eq!(error, Error::Cuda(format!("{} failed", expected[fail_at])));
        assert_eq!(host.steps.borrow()[..], expected[..=fail_at]);
        assert!(host.live.borrow().is_empty());
    }
    let host = Host::default();
    // SAFETY: as above.
    unsafe { compose::forward(&host, &decision, &problem, &tensors) }.unwrap();
    assert_eq!(host.steps.borrow()[..], expected);
}

#[test]
fn a_decision_of_something_else_is_refused() {
    let problem = Problem::builder(Dtype::Float64, &[9]).heads(2).dim(2).window(&[3]).build().unwrap();
    let buffer = [0.0_f64; 64];
    let mut output = [0.0_f64; 64];
    let tensors = ForwardTensors {
        query: buffer.as_ptr().cast(),
        key: buffer.as_ptr().cast(),
        value: buffer.as_ptr().cast(),
        out: output.as_mut_ptr().cast(),
        logsumexp: std::ptr::null_mut(),
    };
    let error = |chosen: &Decision| {
        let host = Host::default();
        // SAFETY: refused before a pointer is followed.
        let error = unsafe { compose::forward(&host, chosen, &problem, &tensors) }.unwrap_err();
        assert!(host.steps.borrow().is_empty());
        assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
        error.to_string()
    };
    let forward = |backend, tiles, copies| decision(backend, Direction::Forward, tiles, copies);
    assert!(error(&decision(Backend::Reference, Direction::Backward, None, 1)).contains("backward pass"));
    assert!(error(&forward(Backend::Fmha, None, 1)).contains("windows are whole axes"));
    assert!(error(&forward(Backend::HopperFna, None, 1)).contains("come from the dispatcher"));
    assert!(error(&forward(Backend::Fna, None, 3)).contains("3 copies of each key head"));
}

/// Without an artifact each function says so, after it has looked at the rank.
#[cfg(natten_kernels_unlinked)]
#[test]
fn without_an_artifact_the_error_names_the_command_that_builds_one() {
    let properties =
        Properties { capability: crate::ComputeCapability { major: 9, minor: 0 }, shared_memory: 232_448 };
    let null = std::ptr::null_mut::<c_void>();
    let tensors = ForwardTensors { query: null, key: null, value: null, out: null, logsumexp: null.cast() };
    let options = Options::default();
    let build = |extents: &[usize]| {
        let window = vec![3; extents.len()];
        Problem::builder(Dtype::Float16, extents).dim(32).window(&window).build().unwrap()
    };
    let plane = build(&[8, 8]);
    // SAFETY: nothing is linked, so no pointer is followed.
    let line = unsafe { na1d_forward(&plane, &properties, &tensors, &options) }.unwrap_err();
    assert!(line.to_string().contains("na1d takes a 1-D problem, got 2-D"), "{line}");
    // SAFETY: as above.
    let plane = unsafe { na2d_forward(&plane, &properties, &tensors, &options) }.unwrap_err();
    // SAFETY: as above.
    let solid = unsafe { na3d_forward(&build(&[8, 8, 8]), &properties, &tensors, &options) }.unwrap_err();
    let dense = Dense { dim: 32, dim_value: 32, ..Dense::new(Dtype::Float16) };
    // SAFETY: as above.
    let dense = unsafe { attention_forward(&dense, None, &properties, &tensors, &options) }.unwrap_err();
    for error in [plane, solid, dense] {
        assert!(matches!(error, Error::BackendNotBuilt { variant: None, .. }), "{error:?}");
        assert!(error.to_string().contains("nattenc build --variant cu130 --preset starter"), "{error}");
    }
}
