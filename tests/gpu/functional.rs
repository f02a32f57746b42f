//! Dense attention through the functional API, with the dispatcher's own choices.

use super::*;
use natten_kernels::functional::Options;
use natten_kernels::ops::{Dense, Sequences};

/// Dense attention as `attention_forward` and `attention_backward` choose it: lengths fixed and not, masks,
/// grouped heads, against the CPU.
#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn dense_attention_runs_as_chosen() {
    let (device, artifact) = setup();
    if ![Backend::Fmha, Backend::HopperFmha].iter().any(|backend| is_built(artifact, *backend)) {
        println!("no dense backend is in this artifact: 0 cases, not covered");
        return;
    }
    let mut random = Random::new(4100);
    let mut tally = Tally::default();
    for case in 0..48 {
        let dim = random.pick(&[32, 64, 128, 40]);
        let packed = case % 2 == 1;
        let group = random.pick(&[1, 2]);
        let heads_kv = random.range(1, 2);
        let problem = Dense {
            batch: if packed { 1 } else { random.range(1, 2) },
            seqlen_q: random.range(70, 300),
            seqlen_kv: random.range(70, 300),
            heads: heads_kv * group,
            heads_kv,
            dim,
            dim_value: dim,
            causal: random.range(0, 1) == 1,
            scale: (1.0 / (dim as f64).sqrt()) as f32,
            ..Dense::new(Dtype::Float16)
        };
        dense_case(&device, &problem, packed, &mut random, &mut tally);
    }
    tally.finish("dense attention by the dispatcher", 1);
}

fn dense_case(device: &Device, problem: &Dense, packed: bool, random: &mut Random, tally: &mut Tally) {
    let Dense { batch, seqlen_q, seqlen_kv, heads, heads_kv, dim, .. } = *problem;
    let (queries, keys) = (batch * seqlen_q * heads, batch * seqlen_kv * heads_kv);
    let (q, g): (Vec<f16>, Vec<f16>) = (random.elements(queries * dim), random.elements(queries * dim));
    let (k, v): (Vec<f16>, Vec<f16>) = (random.elements(keys * dim), random.elements(keys * dim));
    // Two sequences that fill the tensors.
    let ends = [seqlen_q, seqlen_kv].map(|tokens| [0, tokens as i32 / 3, tokens as i32]);
    let cumulative = packed.then(|| cpu::Cumulative { queries: &ends[0], keys: &ends[1] });
    let wide_problem = Dense { dtype: Dtype::Float64, ..*problem };
    let (wide_q, wide_k, wide_v) = (wide(&q), wide(&k), wide(&v));
    let exact =
        cpu::attention_forward(&wide_problem, cumulative.as_ref(), &wide_q, &wide_k, &wide_v).unwrap();
    let case = format!("{problem:?} packed {packed}");
    tally.cases += 1;
    let mut run = || -> Result<(), Error> {
        let [ends_q, ends_kv] =
            ends.map(|ends| DeviceBuffer::from_slice(device, &ends.map(|n| f32::from_bits(n as u32))));
        let (ends_q, ends_kv) = (ends_q?, ends_kv?);
        let longest = |tokens: usize| tokens - tokens / 3;
        let sequences = packed.then(|| Sequences {
            count: 2,
            cumulative_q: ends_q.as_ptr().cast(),
            cumulative_kv: ends_kv.as_ptr().cast(),
            max_q: longest(seqlen_q),
            max_kv: longest(seqlen_kv),
        });
        let buffer = |values: &[f16]| DeviceBuffer::from_slice(device, values);
        let (dq, dk, dv, dg) = (buffer(&q)?, buffer(&k)?, buffer(&v)?, buffer(&g)?);
        let mut out = DeviceBuffer::<f16>::filled(device, queries * dim, 0xff)?;
        let mut logsumexp = DeviceBuffer::<f32>::filled(device, queries, 0xff)?;
        let tensors = ForwardTensors {
            query: dq.as_ptr().cast(),
            key: dk.as_ptr().cast(),
            value: dv.as_ptr().cast(),
            out: out.as_mut_ptr().cast(),
            logsumexp: logsumexp.as_mut_ptr(),
        };
        let (properties, options) = (device.properties(), Options::default());
        // SAFETY: the buffers have the problem's sizes and outlive `to_vec`, which waits.
        let decision = unsafe {
            functional::attention_forward(problem, sequences.as_ref(), &properties, &tensors, &options)
        }?;
        let name = decision.backend;
        let error = relative_error(&wide(&out.to_vec()?), &exact.out);
        tally.add(
            &format!("{name} forward out"),
            Dtype::Float16,
            forward_bound(Dtype::Float16),
            error,
            &case,
        );
        let error = relative_error(&wide(&logsumexp.to_vec()?), &wide(&exact.logsumexp));
        tally.add(&format!("{name} forward logsumexp"), Dtype::Float16, LOGSUMEXP_BOUND, error, &case);
        if heads != heads_kv {
            return Ok(());
        }
        let mut grads =
            [queries, keys, keys].map(|rows| DeviceBuffer::<f16>::filled(device, rows * dim, 0xff));
        let [Ok(grad_query), Ok(grad_key), Ok(grad_value)] = &mut grads else { panic!("no memory") };
        let tensors = BackwardTensors {
            query: dq.as_ptr().cast(),
            key: dk.as_ptr().cast(),
            value: dv.as_ptr().cast(),
            out: out.as_ptr().cast(),
            grad_out: dg.as_ptr().cast(),
            logsumexp: logsumexp.as_ptr(),
            delta: std::ptr::null(),
            grad_query: grad_query.as_mut_ptr().cast(),
            grad_key: grad_key.as_mut_ptr().cast(),
            grad_value: grad_value.as_mut_ptr().cast(),
        };
        // SAFETY: as above.
        let decision = unsafe {
            functional::attention_backward(problem, sequences.as_ref(), &properties, &tensors, &options)
        }?;
        let saved = cpu::AttentionSaved {
            query: &wide_q,
            key: &wide_k,
            value: &wide_v,
            out: &exact.out,
            grad_out: &wide(&g),
            logsumexp: &exact.logsumexp,
        };
        let exact = cpu::attention_backward(&wide_problem, cumulative.as_ref(), &saved)?;
        for (part, found, exact) in [
            ("query", grad_query, exact.query),
            ("key", grad_key, exact.key),
            ("value", grad_value, exact.value),
        ] {
            let error = relative_error(&wide(&found.to_vec()?), &exact);
            let name = format!("{} backward {part}", decision.backend);
            tally.add(&name, Dtype::Float16, backward_bound(Dtype::Float16), error, &case);
        }
        Ok(())
    };
    if let Err(error) = run() {
        tally.failed(&case, &error);
    }
}
