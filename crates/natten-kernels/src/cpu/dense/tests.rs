//! Dense attention against neighborhood attention with full windows, sequences against each alone, merges
//! against concatenation, gradients against finite differences.

use super::*;
use crate::cpu;
use crate::dtype::Dtype;
use crate::problem::Problem;
use crate::testing::{Random, assert_close, widen};

struct Inputs {
    query: Vec<f64>,
    key: Vec<f64>,
    value: Vec<f64>,
}

fn inputs(problem: &Dense, random: &mut Random) -> Inputs {
    let Dense { batch, seqlen_q, seqlen_kv, heads, heads_kv, dim, dim_value, .. } = *problem;
    Inputs {
        query: random.vec(batch * seqlen_q * heads * dim),
        key: random.vec(batch * seqlen_kv * heads_kv * dim),
        value: random.vec(batch * seqlen_kv * heads_kv * dim_value),
    }
}

fn run(problem: &Dense, sequences: Option<&Cumulative<'_>>, inputs: &Inputs) -> Forward<f64> {
    attention_forward(problem, sequences, &inputs.query, &inputs.key, &inputs.value).unwrap()
}

fn base() -> Dense {
    Dense {
        batch: 2,
        seqlen_q: 7,
        seqlen_kv: 9,
        heads: 4,
        heads_kv: 2,
        dim: 3,
        dim_value: 5,
        scale: 0.7,
        ..Dense::new(Dtype::Float64)
    }
}

/// Neighborhood attention is tested on its own; where the two coincide they must agree, gradients too.
#[test]
fn it_is_neighborhood_attention_with_full_windows() {
    let mut random = Random::new(21);
    let builder = |extents: &[usize]| {
        let builder = Problem::builder(Dtype::Float64, extents).batch(2).heads(4).heads_kv(2).dim(3);
        builder.dim_value(5).window(extents)
    };
    for problem in [
        builder(&[11]).build().unwrap(),
        builder(&[11]).causal(&[true]).build().unwrap(),
        builder(&[3, 4]).build().unwrap(),
        builder(&[2, 3, 2]).extra_kv(3).build().unwrap(),
    ] {
        let dense = Dense::of(&problem).unwrap();
        let Inputs { query, key, value } = inputs(&dense, &mut random);
        let expected = cpu::forward(&problem, &query, &key, &value).unwrap();
        let found = attention_forward(&dense, None, &query, &key, &value).unwrap();
        assert_close(&found.out, &expected.out, 1e-13);
        assert_close(&widen(&found.logsumexp), &widen(&expected.logsumexp), 1e-6);
        let grad_out = random.vec(found.out.len());
        let expected = cpu::backward(&problem, &query, &key, &value, &grad_out).unwrap();
        let saved = AttentionSaved {
            query: &query,
            key: &key,
            value: &value,
            out: &found.out,
            grad_out: &grad_out,
            logsumexp: &found.logsumexp,
        };
        let found = attention_backward(&dense, None, &saved).unwrap();
        // logsumexp is float32.
        assert_close(&found.query, &expected.query, 1e-6);
        assert_close(&found.key, &expected.key, 1e-6);
        assert_close(&found.value, &expected.value, 1e-6);
    }
}

/// More keys than queries and fewer, causal and not: weights written down by hand.
#[test]
fn a_causal_query_sees_the_keys_up_to_its_position() {
    for (seqlen_q, seqlen_kv) in [(3, 5), (5, 3), (4, 4)] {
        let problem = Dense { seqlen_q, seqlen_kv, causal: true, ..Dense::new(Dtype::Float64) };
        let values: Vec<f64> = (0..seqlen_kv).map(|n| n as f64).collect();
        let result =
            attention_forward(&problem, None, &vec![1.0; seqlen_q], &vec![1.0; seqlen_kv], &values).unwrap();
        // Equal scores: the mean of 0..n is (n - 1) / 2, and logsumexp 1 + ln n.
        let seen: Vec<f64> = (0..seqlen_q).map(|at| (at + 1).min(seqlen_kv) as f64).collect();
        let means: Vec<f64> = seen.iter().map(|n| (n - 1.0) / 2.0).collect();
        assert_close(&result.out, &means, 1e-14);
        let totals: Vec<f64> = seen.iter().map(|n| 1.0 + n.ln()).collect();
        assert_close(&widen(&result.logsumexp), &totals, 1e-6);
    }
}

/// Sequences in a row give what each gives alone; an empty one and the tokens after the last give nothing.
#[test]
fn sequences_are_attended_to_one_by_one() {
    let mut random = Random::new(22);
    for causal in [false, true] {
        let (queries, keys) = ([0, 3, 3, 9], [0, 4, 7, 7]);
        let problem = Dense { batch: 1, seqlen_q: 11, seqlen_kv: 8, causal, ..base() };
        let all = inputs(&problem, &mut random);
        let packed = run(&problem, Some(&Cumulative { queries: &queries, keys: &keys }), &all);
        let width = problem.heads * problem.dim_value;
        let (q, k, v) = (
            problem.heads * problem.dim,
            problem.heads_kv * problem.dim,
            problem.heads_kv * problem.dim_value,
        );
        let alone = Dense { seqlen_q: 3, seqlen_kv: 4, ..problem };
        let first = Inputs {
            query: all.query[..3 * q].to_vec(),
            key: all.key[..4 * k].to_vec(),
            value: all.value[..4 * v].to_vec(),
        };
        let expected = run(&alone, None, &first);
        assert_eq!(&packed.out[..3 * width], &expected.out[..]);
        assert_eq!(&packed.logsumexp[..3 * problem.heads], &expected.logsumexp[..]);
        assert!(packed.out[3 * width..].iter().all(|x| *x == 0.0));
        assert!(packed.logsumexp[3 * problem.heads..].iter().all(|x| *x == f32::NEG_INFINITY));
    }
}

#[test]
fn gradients_match_central_differences() {
    let mut random = Random::new(23);
    let step = 1e-5;
    for causal in [false, true] {
        let problem = Dense { batch: 1, seqlen_q: 6, seqlen_kv: 7, causal, ..base() };
        let cumulative = Cumulative { queries: &[0, 2, 6], keys: &[0, 4, 7] };
        let mut at = inputs(&problem, &mut random);
        let forward = run(&problem, Some(&cumulative), &at);
        let grad_out = random.vec(forward.out.len());
        let saved = AttentionSaved {
            query: &at.query,
            key: &at.key,
            value: &at.value,
            out: &forward.out,
            grad_out: &grad_out,
            logsumexp: &forward.logsumexp,
        };
        let gradients = attention_backward(&problem, Some(&cumulative), &saved).unwrap();
        let loss = |at: &Inputs| dot(&run(&problem, Some(&cumulative), at).out, &grad_out);
        for (which, expected) in [&gradients.query, &gradients.key, &gradients.value].into_iter().enumerate()
        {
            for (index, expected) in expected.iter().enumerate() {
                let mut nudged = |by: f64| {
                    let slot = [&mut at.query, &mut at.key, &mut at.value].into_iter().nth(which).unwrap();
                    let before = slot[index];
                    slot[index] = before + by;
                    let result = loss(&at);
                    [&mut at.query, &mut at.key, &mut at.value].into_iter().nth(which).unwrap()[index] =
                        before;
                    result
                };
                let found = (nudged(step) - nudged(-step)) / (2.0 * step);
                assert!((found - expected).abs() < 1e-6, "{which} {index}: {expected} is not {found}");
            }
        }
    }
}

/// Keys in three parts, attended to apart and merged, against attention to all of them: output, logsumexp,
/// and the gradients that each part's backward pass gives with the merged results.
#[test]
fn merged_attentions_are_attention_to_all_keys() {
    let mut random = Random::new(24);
    let problem = Dense { batch: 1, seqlen_kv: 12, ..base() };
    let all = inputs(&problem, &mut random);
    let whole = run(&problem, None, &all);
    let (k, v) = (problem.heads_kv * problem.dim, problem.heads_kv * problem.dim_value);
    let parts: Vec<(Dense, Range<usize>)> = [0..2, 2..7, 7..12]
        .into_iter()
        .map(|keys: Range<usize>| (Dense { seqlen_kv: keys.len(), ..problem }, keys))
        .collect();
    let key = |keys: &Range<usize>| &all.key[keys.start * k..keys.end * k];
    let value = |keys: &Range<usize>| &all.value[keys.start * v..keys.end * v];
    let forwards: Vec<Forward<f64>> = parts
        .iter()
        .map(|(part, keys)| attention_forward(part, None, &all.query, key(keys), value(keys)).unwrap())
        .collect();
    let merged = merge_attentions(&forwards.iter().collect::<Vec<_>>()).unwrap();
    assert_close(&merged.out, &whole.out, 1e-6);
    assert_close(&widen(&merged.logsumexp), &widen(&whole.logsumexp), 1e-6);
    // Two by two gives the same, in either order.
    let pair = merge_attentions(&[&forwards[2], &forwards[0]]).unwrap();
    let again = merge_attentions(&[&pair, &forwards[1]]).unwrap();
    assert_close(&again.out, &whole.out, 1e-6);

    let grad_out = random.vec(whole.out.len());
    let saved = |key, value, result: &Forward<f64>| {
        let saved = AttentionSaved {
            query: &all.query,
            key,
            value,
            out: &result.out,
            grad_out: &grad_out,
            logsumexp: &result.logsumexp,
        };
        let tokens = value.len() / v;
        attention_backward(&Dense { seqlen_kv: tokens, ..problem }, None, &saved).unwrap()
    };
    let expected = saved(&all.key, &all.value, &whole);
    let mut grad_query = vec![0.0; all.query.len()];
    for (_, keys) in &parts {
        let gradients = saved(key(keys), value(keys), &merged);
        assert_close(&gradients.key, &expected.key[keys.start * k..keys.end * k], 1e-5);
        assert_close(&gradients.value, &expected.value[keys.start * v..keys.end * v], 1e-5);
        add_scaled(&mut grad_query, 1.0, &gradients.query);
    }
    assert_close(&grad_query, &expected.query, 1e-5);
}

/// Upstream computes attention to extra tokens apart and merges; so must it come out here.
#[test]
fn neighborhood_and_extra_tokens_merge() {
    let mut random = Random::new(25);
    let builder = || Problem::builder(Dtype::Float64, &[5, 4]).heads(2).dim(3).window(&[3, 2]);
    let both = builder().extra_kv(6).build().unwrap();
    let near = builder().build().unwrap();
    let (query, key, value) =
        (random.vec(both.query_len()), random.vec(both.key_len()), random.vec(both.value_len()));
    let expected = cpu::forward(&both, &query, &key, &value).unwrap();
    let cut = near.key_len();
    let near = cpu::forward(&near, &query, &key[..cut], &value[..cut]).unwrap();
    let extra = Dense {
        seqlen_q: 20,
        seqlen_kv: 6,
        heads: 2,
        heads_kv: 2,
        dim: 3,
        dim_value: 3,
        scale: both.scale(),
        ..Dense::new(Dtype::Float64)
    };
    let extra = attention_forward(&extra, None, &query, &key[cut..], &value[cut..]).unwrap();
    let merged = merge_attentions(&[&near, &extra]).unwrap();
    assert_close(&merged.out, &expected.out, 1e-6);
    assert_close(&widen(&merged.logsumexp), &widen(&expected.logsumexp), 1e-6);
}

#[test]
fn merging_knows_queries_without_keys() {
    let part = |out: f32, logsumexp: f32| Forward { out: vec![out], logsumexp: vec![logsumexp] };
    let none = part(0.0, f32::NEG_INFINITY);
    let merged = merge_attentions(&[&none, &part(3.0, -200.0)]).unwrap();
    assert_eq!((merged.out[0], merged.logsumexp[0]), (3.0, -200.0));
    let merged = merge_attentions(&[&none, &none]).unwrap();
    assert_eq!((merged.out[0], merged.logsumexp[0]), (0.0, f32::NEG_INFINITY));
    assert!(merge_attentions::<f32>(&[]).is_err() && merge_attentions(&[&none]).is_err());
    let longer = Forward { out: vec![0.0; 2], logsumexp: vec![0.0; 2] };
    assert!(merge_attentions(&[&none, &longer]).unwrap_err().to_string().contains("out of every attention"));
}

#[test]
fn wrong_arguments_are_refused_by_name() {
    let problem = Dense { seqlen_q: 2, seqlen_kv: 2, ..Dense::new(Dtype::Float32) };
    let two = [0.0_f32; 2];
    let error = |problem: &Dense, sequences: Option<&Cumulative<'_>>, key: &[f32]| {
        attention_forward(problem, sequences, &two, key, &two).unwrap_err().to_string()
    };
    assert!(error(&problem, None, &two[..1]).contains("key must have 2 elements, got 1"));
    assert!(error(&Dense { dtype: Dtype::Float16, ..problem }, None, &two).contains("float16"));
    assert!(error(&Dense { heads_kv: 0, ..problem }, None, &two).contains("heads_kv must be at least 1"));
    for (queries, keys, expected) in [
        (&[0, 1][..], &[0, 1, 2][..], "as many of queries as of keys"),
        (&[0], &[0], "at least one"),
        (&[1, 2], &[0, 2], "cumulative queries must rise from 0"),
        (&[0, 2], &[0, 3], "cumulative keys must rise from 0 to at most 2"),
        (&[0, 2, 1], &[0, 1, 2], "cumulative queries"),
        (&[0, -1, 1], &[0, 1, 2], "cumulative queries"),
    ] {
        let message = error(&problem, Some(&Cumulative { queries, keys }), &two);
        assert!(message.contains(expected), "`{message}` lacks `{expected}`");
    }
    let batch = Dense { batch: 2, seqlen_q: 1, seqlen_kv: 1, ..problem };
    assert!(
        error(&batch, Some(&Cumulative { queries: &[0, 1], keys: &[0, 1] }), &two)
            .contains("one batch entry")
    );
}
