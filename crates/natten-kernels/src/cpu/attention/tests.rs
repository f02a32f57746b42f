//! Closed forms, identities, finite differences, and a mask written in another way.

use super::*;
use crate::dtype::Dtype;
use crate::problem::ProblemBuilder;
use crate::testing::{Random, assert_close, widen};
use half::{bf16, f16};

struct Inputs {
    query: Vec<f64>,
    key: Vec<f64>,
    value: Vec<f64>,
}

fn inputs(problem: &Problem, random: &mut Random) -> Inputs {
    Inputs {
        query: random.vec(problem.query_len()),
        key: random.vec(problem.key_len()),
        value: random.vec(problem.value_len()),
    }
}

fn run(problem: &Problem, inputs: &Inputs) -> Forward<f64> {
    forward(problem, &inputs.query, &inputs.key, &inputs.value).unwrap()
}

fn builder(extents: &[usize]) -> ProblemBuilder {
    Problem::builder(Dtype::Float64, extents).dim(4).heads(2).batch(2)
}

/// Attention over whatever pairs `sees(query token, key token)` admits, the plainest way.
fn masked(problem: &Problem, inputs: &Inputs, sees: impl Fn(usize, usize) -> bool) -> Forward<f64> {
    let (heads, heads_kv, dim, dim_value) =
        (problem.heads(), problem.heads_kv(), problem.dim(), problem.dim_value());
    let (tokens, tokens_kv) = (problem.tokens(), problem.tokens_kv());
    let mut result =
        Forward { out: vec![0.0; problem.out_len()], logsumexp: vec![0.0; problem.logsumexp_len()] };
    for batch in 0..problem.batch() {
        for head in 0..heads {
            for query in 0..tokens {
                let q_row = (batch * tokens + query) * heads + head;
                let k_row = |key: usize| (batch * tokens_kv + key) * heads_kv + head * heads_kv / heads;
                let keys: Vec<usize> =
                    (0..tokens_kv).filter(|key| *key >= tokens || sees(query, *key)).collect();
                let weights: Vec<f64> = keys
                    .iter()
                    .map(|key| {
                        let score: f64 = (0..dim)
                            .map(|d| inputs.query[q_row * dim + d] * inputs.key[k_row(*key) * dim + d])
                            .sum();
                        (score * f64::from(problem.scale())).exp()
                    })
                    .collect();
                let sum: f64 = weights.iter().sum();
                for d in 0..dim_value {
                    let mean: f64 = keys
                        .iter()
                        .zip(&weights)
                        .map(|(key, weight)| weight * inputs.value[k_row(*key) * dim_value + d])
                        .sum();
                    result.out[q_row * dim_value + d] = mean / sum;
                }
                result.logsumexp[q_row] = sum.ln() as f32;
            }
        }
    }
    result
}

#[track_caller]
fn assert_same(problem: &Problem, inputs: &Inputs, sees: impl Fn(usize, usize) -> bool) {
    let (found, expected) = (run(problem, inputs), masked(problem, inputs, sees));
    assert_close(&found.out, &expected.out, 1e-12);
    assert_close(&widen(&found.logsumexp), &widen(&expected.logsumexp), 1e-6);
}

fn coordinates(problem: &Problem, token: usize) -> Vec<usize> {
    let mut left = token;
    let mut coordinates: Vec<usize> = problem
        .extents()
        .iter()
        .rev()
        .map(|extent| {
            let here = left % extent;
            left /= extent;
            here
        })
        .collect();
    coordinates.reverse();
    coordinates
}

/// The rule again, as a predicate of two positions on an axis, in the terms of whole coordinates.
fn axis_sees(axis: &crate::neighborhood::Axis, query: usize, key: usize) -> bool {
    let d = axis.dilation as i64;
    let (query, key) = (query as i64, key as i64);
    if query % d != key % d || (axis.causal && key > query) {
        return false;
    }
    let (index, target) = (query / d, key / d);
    // Tokens x with x % d == query % d.
    let length = (axis.extent as i64 - 1 - query % d) / d + 1;
    let (window, stride) = (axis.window as i64, axis.stride as i64);
    let in_group = if axis.causal { stride - 1 } else { stride / 2 };
    let leader = (index - index % stride + in_group).min(length - 1);
    let last = if axis.causal { leader } else { (leader + (window - 1) / 2).clamp(window - 1, length - 1) };
    last - window < target && target <= last
}

fn sees(problem: &Problem, query: usize, key: usize) -> bool {
    let (query, key) = (coordinates(problem, query), coordinates(problem, key));
    problem.axes().iter().enumerate().all(|(at, axis)| axis_sees(axis, query[at], key[at]))
}

/// A random legal problem; every option occurs.
fn random_problem(random: &mut Random, rank: usize, largest: usize) -> Problem {
    let mut extents = Vec::new();
    let (mut window, mut stride, mut dilation, mut causal) = (vec![], vec![], vec![], vec![]);
    for _ in 0..rank {
        let extent = random.range(2, largest);
        let w = random.range(2, extent);
        extents.push(extent);
        window.push(w);
        stride.push(random.range(1, w));
        dilation.push(random.range(1, extent / w));
        causal.push(random.range(0, 1) == 1);
    }
    let heads_kv = random.range(1, 2);
    Problem::builder(Dtype::Float64, &extents)
        .batch(random.range(1, 2))
        .heads(heads_kv * random.range(1, 2))
        .heads_kv(heads_kv)
        .dim(random.range(1, 6))
        .dim_value(random.range(1, 6))
        .extra_kv(random.range(0, 2))
        .window(&window)
        .stride(&stride)
        .dilation(&dilation)
        .causal(&causal)
        .build()
        .unwrap()
}

#[test]
fn random_problems_match_a_mask_over_all_pairs() {
    let mut random = Random::new(1);
    for case in 0..240 {
        let rank = 1 + case % 3;
        let problem = random_problem(&mut random, rank, [24, 8, 5][rank - 1]);
        let inputs = inputs(&problem, &mut random);
        assert_same(&problem, &inputs, |q, k| sees(&problem, q, k));
    }
}

#[test]
fn a_full_window_is_dense_attention() {
    let mut random = Random::new(2);
    for extents in [vec![9], vec![4, 5], vec![2, 3, 4]] {
        let problem = builder(&extents).window(&extents).build().unwrap();
        let inputs = inputs(&problem, &mut random);
        assert_same(&problem, &inputs, |_, _| true);
        // A stride changes nothing, since there is only one window.
        let strided = builder(&extents).window(&extents).stride(&extents).build().unwrap();
        assert_eq!(run(&problem, &inputs), run(&strided, &inputs));
    }
}

#[test]
fn a_full_causal_window_is_causal_attention_on_that_axis() {
    let mut random = Random::new(3);
    for causal in [[true, false], [false, true], [true, true]] {
        let problem = builder(&[4, 5]).window(&[4, 5]).causal(&causal).build().unwrap();
        let inputs = inputs(&problem, &mut random);
        assert_same(&problem, &inputs, |q, k| {
            (!causal[0] || k / 5 <= q / 5) && (!causal[1] || k % 5 <= q % 5)
        });
    }
}

#[test]
fn a_causal_window_is_sliding_window_attention() {
    let mut random = Random::new(4);
    let problem = builder(&[17]).window(&[5]).causal(&[true]).build().unwrap();
    let inputs = inputs(&problem, &mut random);
    assert_same(&problem, &inputs, |q, k| k <= q && q < k + 5);
}

#[test]
fn a_stride_of_the_window_is_blocked_attention() {
    let mut random = Random::new(5);
    for window in [[3, 4], [4, 3], [2, 6]] {
        let problem = builder(&[12, 12]).window(&window).stride(&window).build().unwrap();
        let inputs = inputs(&problem, &mut random);
        assert_same(&problem, &inputs, |q, k| {
            q / 12 / window[0] == k / 12 / window[0] && q % 12 / window[1] == k % 12 / window[1]
        });
    }
}

#[test]
fn dilation_is_attention_within_each_permuted_subproblem() {
    let mut random = Random::new(6);
    let (extent, dilation, window) = (13, 3, 4);
    let problem = Problem::builder(Dtype::Float64, &[extent]).dim(4).window(&[window]).dilation(&[dilation]);
    let problem = problem.build().unwrap();
    let inputs = inputs(&problem, &mut random);
    let whole = run(&problem, &inputs);
    for residue in 0..dilation {
        let take = |values: &[f64]| -> Vec<f64> {
            values.chunks(4).skip(residue).step_by(dilation).flatten().copied().collect()
        };
        let part = Inputs { query: take(&inputs.query), key: take(&inputs.key), value: take(&inputs.value) };
        let tokens = part.query.len() / 4;
        let sub = Problem::builder(Dtype::Float64, &[tokens]).dim(4).window(&[window]).build().unwrap();
        assert_close(&run(&sub, &part).out, &take(&whole.out), 1e-14);
    }
}

#[test]
fn two_axes_attend_like_their_product() {
    // Scores that are a sum over axes make the softmax a product, so 2-D attention of separable
    // values is the product of two 1-D ones.
    let mut random = Random::new(7);
    let (rows, columns) = (6, 7);
    let axis = |extent: usize, window: usize, stride: usize, causal: bool| {
        let builder = Problem::builder(Dtype::Float64, &[extent]).dim(1).window(&[window]);
        builder.stride(&[stride]).causal(&[causal]).scale(1.0).build().unwrap()
    };
    let (first, second) = (axis(rows, 3, 2, true), axis(columns, 4, 1, false));
    let (a, b) = (inputs(&first, &mut random), inputs(&second, &mut random));
    let both = Problem::builder(Dtype::Float64, &[rows, columns])
        .dim(2)
        .dim_value(1)
        .window(&[3, 4])
        .stride(&[2, 1])
        .causal(&[true, false])
        .scale(1.0)
        .build()
        .unwrap();
    let pairs = |x: &[f64], y: &[f64]| -> Vec<f64> {
        x.iter().flat_map(|x| y.iter().flat_map(move |y| [*x, *y])).collect()
    };
    let products =
        |x: &[f64], y: &[f64]| -> Vec<f64> { x.iter().flat_map(|x| y.iter().map(move |y| x * y)).collect() };
    let joined = Inputs {
        query: pairs(&a.query, &b.query),
        key: pairs(&a.key, &b.key),
        value: products(&a.value, &b.value),
    };
    let (a, b) = (run(&first, &a), run(&second, &b));
    assert_close(&run(&both, &joined).out, &products(&a.out, &b.out), 1e-12);
}

#[test]
fn uniform_inputs_give_uniform_results() {
    let problem = builder(&[5, 6]).window(&[3, 4]).stride(&[2, 1]).causal(&[false, true]).build().unwrap();
    let mut random = Random::new(8);
    let mut data = inputs(&problem, &mut random);
    // Constant values come out unchanged.
    data.value.fill(0.75);
    let result = run(&problem, &data);
    assert_close(&result.out, &vec![0.75; problem.out_len()], 1e-14);
    // Zero queries: logsumexp is the logarithm of the number of keys.
    data.query.fill(0.0);
    let result = run(&problem, &data);
    for (row, found) in result.logsumexp.iter().enumerate() {
        let token = row / problem.heads() % problem.tokens();
        let keys = (0..problem.tokens()).filter(|key| sees(&problem, token, *key)).count();
        assert!((f64::from(*found) - (keys as f64).ln()).abs() < 1e-6);
    }
}

#[test]
fn extra_tokens_merge_by_logsumexp() {
    let mut random = Random::new(9);
    let base = || Problem::builder(Dtype::Float64, &[7]).heads(2).dim(3).window(&[3]);
    let (alone, joined) = (base().build().unwrap(), base().extra_kv(4).build().unwrap());
    let all = inputs(&joined, &mut random);
    let head_row = 2 * 3;
    let own = Inputs {
        query: all.query.clone(),
        key: all.key[..7 * head_row].to_vec(),
        value: all.value[..7 * head_row].to_vec(),
    };
    let near = run(&alone, &own);
    // The extra tokens alone: dense attention over them.
    let far = masked(&joined, &all, |_, _| false);
    let both = run(&joined, &all);
    for row in 0..joined.logsumexp_len() {
        let (a, b) = (f64::from(near.logsumexp[row]), f64::from(far.logsumexp[row]));
        let merged = (a.exp() + b.exp()).ln();
        assert!((f64::from(both.logsumexp[row]) - merged).abs() < 1e-6);
        for d in 0..3 {
            let mean = (a - merged).exp() * near.out[row * 3 + d] + (b - merged).exp() * far.out[row * 3 + d];
            assert!((both.out[row * 3 + d] - mean).abs() < 1e-6);
        }
    }
}

#[test]
fn large_scores_do_not_overflow() {
    let problem = Problem::builder(Dtype::Float64, &[4]).dim(1).window(&[2]).scale(1.0).build().unwrap();
    let result =
        forward(&problem, &[1.0; 4], &[2000.0, 1000.0, 0.0, -3000.0], &[1.0, 2.0, 3.0, 4.0]).unwrap();
    assert_close(&result.out, &[1.0, 1.0, 2.0, 3.0], 1e-12);
    assert_close(&widen(&result.logsumexp), &[2000.0, 2000.0, 1000.0, 0.0], 1e-6);
}

/// `sum(weights * out)` as a function of all inputs; its gradient has a closed form, [`backward`].
fn loss(problem: &Problem, inputs: &Inputs, weights: &[f64]) -> f64 {
    run(problem, inputs).out.iter().zip(weights).map(|(out, weight)| out * weight).sum()
}

type Part = fn(&mut Inputs) -> &mut Vec<f64>;

#[test]
fn gradients_match_central_differences() {
    let mut random = Random::new(10);
    let step = 1e-5;
    for case in 0..45 {
        let rank = 1 + case % 3;
        let problem = random_problem(&mut random, rank, [9, 5, 3][rank - 1]);
        let mut data = inputs(&problem, &mut random);
        let weights = random.vec(problem.out_len());
        let gradients = backward(&problem, &data.query, &data.key, &data.value, &weights).unwrap();
        let parts: [(&str, &[f64], Part); 3] = [
            ("query", &gradients.query, |data| &mut data.query),
            ("key", &gradients.key, |data| &mut data.key),
            ("value", &gradients.value, |data| &mut data.value),
        ];
        for (name, gradient, part) in parts {
            // A sample of the elements: each costs two forward passes.
            for _ in 0..12 {
                let at = random.range(0, gradient.len() - 1);
                let here = part(&mut data)[at];
                part(&mut data)[at] = here + step;
                let above = loss(&problem, &data, &weights);
                part(&mut data)[at] = here - step;
                let below = loss(&problem, &data, &weights);
                part(&mut data)[at] = here;
                let slope = (above - below) / (2.0 * step);
                assert!(
                    (gradient[at] - slope).abs() < 1e-7,
                    "{problem:?} {name} {at}: {} {slope}",
                    gradient[at]
                );
            }
        }
    }
}

#[test]
fn gradients_obey_the_softmax_invariants() {
    let mut random = Random::new(11);
    for case in 0..30 {
        let problem = random_problem(&mut random, 1 + case % 3, 6);
        let data = inputs(&problem, &mut random);
        let grad_out = random.vec(problem.out_len());
        let gradients = backward(&problem, &data.query, &data.key, &data.value, &grad_out).unwrap();
        // Attention weights of a query sum to one, so value gradients sum to those of out ...
        let total = |values: &[f64]| values.iter().sum::<f64>();
        assert!((total(&gradients.value) - total(&grad_out)).abs() < 1e-10);
        // ... and a score is linear in query and in key, so both give the derivative by the scale.
        let along = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
        let by_query = along(&data.query, &gradients.query);
        assert!((by_query - along(&data.key, &gradients.key)).abs() < 1e-10);
    }
}

#[test]
fn narrow_types_are_their_exact_values_rounded_once() {
    fn check<T: Element + PartialEq>(random: &mut Random) {
        for case in 0..12 {
            let exact = random_problem(random, 1 + case % 3, 6);
            let narrow = exact.with_dtype(T::DTYPE);
            let round = |values: Vec<f64>| -> Vec<T> { values.into_iter().map(T::from_f64).collect() };
            let (q, k, v) = (
                round(random.vec(exact.query_len())),
                round(random.vec(exact.key_len())),
                round(random.vec(exact.value_len())),
            );
            let wide = |values: &[T]| -> Vec<f64> { values.iter().map(|x| x.to_f64()).collect() };
            let found = forward(&narrow, &q, &k, &v).unwrap();
            let expected = forward(&exact, &wide(&q), &wide(&k), &wide(&v)).unwrap();
            assert_eq!(found.out, round(expected.out));
            assert_eq!(found.logsumexp, expected.logsumexp);
            let g = round(random.vec(exact.out_len()));
            let found = backward(&narrow, &q, &k, &v, &g).unwrap();
            let expected = backward(&exact, &wide(&q), &wide(&k), &wide(&v), &wide(&g)).unwrap();
            assert_eq!(found.query, round(expected.query));
            assert_eq!(found.key, round(expected.key));
            assert_eq!(found.value, round(expected.value));
        }
    }
    let mut random = Random::new(12);
    check::<f32>(&mut random);
    check::<f16>(&mut random);
    check::<bf16>(&mut random);
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let mut random = Random::new(13);
    let problem = builder(&[8, 9]).window(&[3, 5]).extra_kv(3).build().unwrap();
    let data = inputs(&problem, &mut random);
    let grad_out = random.vec(problem.out_len());
    let compute = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            (
                run(&problem, &data),
                backward(&problem, &data.query, &data.key, &data.value, &grad_out).unwrap(),
            )
        })
    };
    assert_eq!(compute(1), compute(5));
}

#[test]
fn wrong_lengths_and_types_are_refused_by_name() {
    let problem = Problem::builder(Dtype::Float32, &[4]).dim(2).window(&[2]).build().unwrap();
    let (good, short) = ([0.0_f32; 8], [0.0_f32; 7]);
    let message = |result: Result<Forward<f32>>| result.unwrap_err().to_string();
    assert!(message(forward(&problem, &short, &good, &good)).contains("query must have 8 elements, got 7"));
    assert!(message(forward(&problem, &good, &short, &good)).contains("key must have"));
    assert!(message(forward(&problem, &good, &good, &short)).contains("value must have"));
    assert!(backward(&problem, &good, &good, &good, &short).unwrap_err().to_string().contains("grad_out"));
    assert!(
        forward(&problem, &[0.0_f64; 8], &[0.0; 8], &[0.0; 8]).unwrap_err().to_string().contains("float64")
    );
}
