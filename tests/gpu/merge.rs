//! Merging attentions and adding up gradients, against the CPU; and an attention in two parts against the whole.

use super::*;
use natten_kernels::functional::{add_gradients, merge_attentions};
use natten_kernels::ops::{Dense, Part};

const DTYPES: [Dtype; 3] = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];

/// `parts` attentions of random numbers; some rows of some have no key, row 0 of none has. `in_place`: the result
/// goes where the first part is.
fn merge_case<T: Element>(
    device: &Device,
    (batch, tokens, heads, dim): (usize, usize, usize, usize),
    (parts, in_place): (usize, bool),
    random: &mut Random,
) -> Result<[f64; 2], Error> {
    let rows = batch * tokens * heads;
    let forwards: Vec<cpu::Forward<T>> = (0..parts)
        .map(|_| {
            let mut out: Vec<T> = random.elements(rows * dim);
            let mut logsumexp: Vec<f32> = random.elements::<f32>(rows).iter().map(|x| x * 20.0).collect();
            for row in 0..rows {
                if row == 0 || random.range(0, 4) == 0 {
                    logsumexp[row] = f32::NEG_INFINITY;
                    out[row * dim..][..dim].fill(T::default());
                }
            }
            cpu::Forward { out, logsumexp }
        })
        .collect();
    let mut buffers = Vec::new();
    for forward in &forwards {
        let out = DeviceBuffer::from_slice(device, &forward.out)?;
        buffers.push((out, DeviceBuffer::from_slice(device, &forward.logsumexp)?));
    }
    let inputs: Vec<Part> = buffers
        .iter()
        .map(|(out, logsumexp)| Part { out: out.as_ptr().cast(), logsumexp: logsumexp.as_ptr() })
        .collect();
    let mut out = DeviceBuffer::<T>::filled(device, rows * dim, 0xff)?;
    let mut logsumexp = DeviceBuffer::<f32>::filled(device, rows, 0xff)?;
    let (to, sums) = if in_place {
        let (out, logsumexp) = &mut buffers[0];
        (out.as_mut_ptr(), logsumexp.as_mut_ptr())
    } else {
        (out.as_mut_ptr(), logsumexp.as_mut_ptr())
    };
    let tensor = TokenTensor { dtype: T::DTYPE, batch, heads, dim };
    // SAFETY: the buffers have these sizes and outlive `to_vec`, which waits.
    unsafe { merge_attentions(tensor, tokens, &inputs, to.cast(), sums, Stream::DEFAULT) }?;
    let (found, sums) = if in_place { &buffers[0] } else { &(out, logsumexp) };
    let (found, sums) = (found.to_vec()?, sums.to_vec()?);
    let expected = cpu::merge_attentions(&forwards.iter().collect::<Vec<_>>())?;
    // Infinities must be where they should; errors are of the others.
    let finite = |sums: &[f32]| {
        sums.iter().map(|x| if *x == f32::NEG_INFINITY { 0.0 } else { f64::from(*x) }).collect::<Vec<f64>>()
    };
    for (at, (a, b)) in sums.iter().zip(&expected.logsumexp).enumerate() {
        assert_eq!(*a == f32::NEG_INFINITY, *b == f32::NEG_INFINITY, "row {at}: {a}, not {b}");
    }
    Ok([
        relative_error(&wide(&found), &wide(&expected.out)),
        relative_error(&finite(&sums), &finite(&expected.logsumexp)),
    ])
}

fn add_case<T: Element>(
    device: &Device,
    (tokens, heads, count, dim): (usize, usize, usize, usize),
    random: &mut Random,
) -> Result<f64, Error> {
    let rows = tokens * heads;
    let addends: Vec<T> = random.elements(rows * count * dim);
    let from = DeviceBuffer::from_slice(device, &addends)?;
    let mut sum = DeviceBuffer::<T>::filled(device, rows * dim, 0xff)?;
    let tensor = TokenTensor { dtype: T::DTYPE, batch: 1, heads, dim };
    let (input, to) = (from.as_ptr().cast(), sum.as_mut_ptr().cast());
    // SAFETY: the buffers have these sizes and outlive `to_vec`, which waits.
    unsafe { add_gradients(tensor, tokens, count, input, to, Stream::DEFAULT) }?;
    let expected: Vec<f64> = wide(&addends)
        .chunks_exact(count * dim)
        .flat_map(|row| (0..dim).map(|d| row.iter().skip(d).step_by(dim).sum()).collect::<Vec<f64>>())
        .collect();
    Ok(relative_error(&wide(&sum.to_vec()?), &expected))
}

#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn merging_and_adding_match_the_cpu() {
    let (device, artifact) = setup();
    if !is_built(artifact, Backend::Merge) {
        println!("merge is not in this artifact: 0 cases, not covered");
        return;
    }
    let mut random = Random::new(6000);
    let mut tally = Tally::default();
    for dtype in DTYPES {
        for shape in [(1, 1, 1, 1), (1, 17, 3, 32), (2, 100, 2, 64), (1, 64, 1, 128), (3, 33, 2, 7)] {
            for how in [(2, false), (2, true), (3, true), (8, false), (32, false)] {
                tally.cases += 1;
                let case = format!("batch, tokens, heads, dim {shape:?}, parts and in place {how:?}");
                match for_dtype!(dtype, merge_case(&device, shape, how, &mut random)) {
                    Ok([out, logsumexp]) => {
                        tally.add("merged out", dtype, 2.0 * roundoff(dtype), out, &case);
                        tally.add("merged logsumexp", dtype, LOGSUMEXP_BOUND, logsumexp, &case);
                    }
                    Err(error) => tally.failed(&case, &error),
                }
            }
        }
        for shape in [(1, 1, 1, 1), (17, 3, 2, 32), (100, 2, 8, 64), (1, 1, 3, 100_000), (33, 1, 5, 7)] {
            tally.cases += 1;
            let case = format!("tokens, heads, count, dim {shape:?}");
            match for_dtype!(dtype, add_case(&device, shape, &mut random)) {
                Ok(error) => tally.add("sum", dtype, 2.0 * roundoff(dtype), error, &case),
                Err(error) => tally.failed(&case, &error),
            }
        }
    }
    tally.finish("merge", 90);
}

/// Two attentions of the same queries to two sets of keys, merged, are attention to both, forward and backward: each
/// backward pass gets the merged tensors, and the gradients of the queries add up.
#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn attention_in_two_parts_is_the_whole() {
    let (device, artifact) = setup();
    let dense = [Backend::Fmha, Backend::HopperFmha].iter().any(|backend| is_built(artifact, *backend));
    if !dense || !is_built(artifact, Backend::Merge) {
        println!("merge and a dense backend are not in this artifact: 0 cases, not covered");
        return;
    }
    let mut random = Random::new(6100);
    let mut tally = Tally::default();
    for heads_kv in [4, 2, 1] {
        for keys in [[64, 64], [200, 33]] {
            tally.cases += 1;
            let case = format!("keys {keys:?} heads 4/{heads_kv}");
            match parts_case(&device, heads_kv, keys, &mut random) {
                Ok(errors) => {
                    for (kind, error) in errors {
                        tally.add(kind, Dtype::Float16, backward_bound(Dtype::Float16), error, &case);
                    }
                }
                Err(error) => tally.failed(&case, &error),
            }
        }
    }
    tally.finish("attention in two parts", 6);
}

fn parts_case(
    device: &Device,
    heads_kv: usize,
    keys: [usize; 2],
    random: &mut Random,
) -> Result<Vec<(&'static str, f64)>, Error> {
    let (tokens, heads, dim) = (100, 4, 64);
    let base = Dense {
        seqlen_q: tokens,
        heads,
        heads_kv,
        dim,
        dim_value: dim,
        scale: 0.125,
        ..Dense::new(Dtype::Float16)
    };
    let len = tokens * heads * dim;
    let (q, g): (Vec<f16>, Vec<f16>) = (random.elements(len), random.elements(len));
    let all = keys[0] + keys[1];
    let (k, v): (Vec<f16>, Vec<f16>) =
        (random.elements(all * heads_kv * dim), random.elements(all * heads_kv * dim));
    let options = functional::Options::default();
    let query = DeviceBuffer::from_slice(device, &q)?;
    let grad_out = DeviceBuffer::from_slice(device, &g)?;
    let split = keys[0] * heads_kv * dim;
    let mut parts = Vec::new();
    for (seqlen_kv, range) in keys.into_iter().zip([0..split, split..k.len()]) {
        let key = DeviceBuffer::from_slice(device, &k[range.clone()])?;
        let value = DeviceBuffer::from_slice(device, &v[range])?;
        let mut out = DeviceBuffer::<f16>::filled(device, len, 0xff)?;
        let mut logsumexp = DeviceBuffer::<f32>::filled(device, tokens * heads, 0xff)?;
        let tensors = ForwardTensors {
            query: query.as_ptr().cast(),
            key: key.as_ptr().cast(),
            value: value.as_ptr().cast(),
            out: out.as_mut_ptr().cast(),
            logsumexp: logsumexp.as_mut_ptr(),
        };
        let problem = Dense { seqlen_kv, ..base };
        // SAFETY: the buffers have the problem's sizes and outlive the last `to_vec`, which waits.
        unsafe { functional::attention_forward(&problem, None, &device.properties(), &tensors, &options) }?;
        parts.push((problem, key, value, out, logsumexp));
    }
    let inputs: Vec<Part> = parts
        .iter()
        .map(|(.., out, logsumexp)| Part { out: out.as_ptr().cast(), logsumexp: logsumexp.as_ptr() })
        .collect();
    let mut out = DeviceBuffer::<f16>::filled(device, len, 0xff)?;
    let mut logsumexp = DeviceBuffer::<f32>::filled(device, tokens * heads, 0xff)?;
    let tensor = TokenTensor { dtype: Dtype::Float16, batch: 1, heads, dim };
    let (to, sums) = (out.as_mut_ptr().cast(), logsumexp.as_mut_ptr());
    // SAFETY: as above.
    unsafe { merge_attentions(tensor, tokens, &inputs, to, sums, Stream::DEFAULT) }?;

    // The queries' gradients of both parts, one after the other.
    let mut grad_queries = DeviceBuffer::<f16>::filled(device, 2 * len, 0xff)?;
    let (mut grad_keys, mut grad_values) = (Vec::new(), Vec::new());
    for (at, (problem, key, value, ..)) in parts.iter().enumerate() {
        let size = problem.seqlen_kv * heads_kv * dim;
        let mut grad_key = DeviceBuffer::<f16>::filled(device, size, 0xff)?;
        let mut grad_value = DeviceBuffer::<f16>::filled(device, size, 0xff)?;
        let tensors = BackwardTensors {
            query: query.as_ptr().cast(),
            key: key.as_ptr().cast(),
            value: value.as_ptr().cast(),
            out: out.as_ptr().cast(),
            grad_out: grad_out.as_ptr().cast(),
            logsumexp: logsumexp.as_ptr(),
            delta: std::ptr::null(),
            grad_query: grad_queries.as_mut_ptr().wrapping_add(at * len).cast(),
            grad_key: grad_key.as_mut_ptr().cast(),
            grad_value: grad_value.as_mut_ptr().cast(),
        };
        // SAFETY: as above.
        unsafe { functional::attention_backward(problem, None, &device.properties(), &tensors, &options) }?;
        grad_keys.extend(wide(&grad_key.to_vec()?));
        grad_values.extend(wide(&grad_value.to_vec()?));
    }
    let mut grad_query = DeviceBuffer::<f16>::filled(device, len, 0xff)?;
    let flat = TokenTensor { batch: 1, heads: 1, dim: len, ..tensor };
    let (from, to) = (grad_queries.as_ptr().cast(), grad_query.as_mut_ptr().cast());
    // SAFETY: as above.
    unsafe { add_gradients(flat, 1, 2, from, to, Stream::DEFAULT) }?;

    let whole = Dense { seqlen_kv: all, dtype: Dtype::Float64, ..base };
    let (q, k, v, g) = (wide(&q), wide(&k), wide(&v), wide(&g));
    let exact = cpu::attention_forward(&whole, None, &q, &k, &v)?;
    let saved = cpu::AttentionSaved {
        query: &q,
        key: &k,
        value: &v,
        out: &exact.out,
        grad_out: &g,
        logsumexp: &exact.logsumexp,
    };
    let gradients = cpu::attention_backward(&whole, None, &saved)?;
    Ok(vec![
        ("parts out", relative_error(&wide(&out.to_vec()?), &exact.out)),
        ("parts grad_query", relative_error(&wide(&grad_query.to_vec()?), &gradients.query)),
        ("parts grad_key", relative_error(&grad_keys, &gradients.key)),
        ("parts grad_value", relative_error(&grad_values, &gradients.value)),
    ])
}
