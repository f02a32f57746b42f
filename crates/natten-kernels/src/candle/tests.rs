//! Forward against the CPU backend, gradients against finite differences, through candle's own machinery.

use super::*;
use candle_core::{Device, Var};

fn random(seed: u64, shape: &[usize]) -> Tensor {
    let mut random = crate::testing::Random::new(seed);
    let values: Vec<f64> = random.vec(shape.iter().product());
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn flat(tensor: &Tensor) -> Vec<f64> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Every gradient of a weighted sum of the output against differences of that sum.
fn check_gradients(of: [Tensor; 3], run: impl Fn([&Tensor; 3]) -> Result<Tensor>) {
    let variables = of.map(|tensor| Var::from_tensor(&tensor).unwrap());
    let out = run(variables.each_ref().map(|variable| variable.as_tensor())).unwrap();
    let weights = random(9, out.dims());
    let loss = |out: &Tensor| out.mul(&weights).unwrap().sum_all().unwrap();
    let gradients = loss(&out).backward().unwrap();
    for at in 0..3 {
        let found = flat(gradients.get(variables[at].as_tensor()).unwrap());
        let values = flat(variables[at].as_tensor());
        assert_eq!(found.len(), values.len());
        for index in (0..values.len()).step_by(3) {
            let moved = |step: f64| {
                let mut values = values.clone();
                values[index] += step;
                let tensor = Tensor::from_vec(values, variables[at].shape(), &Device::Cpu).unwrap();
                let mut inputs = variables.each_ref().map(|variable| variable.as_tensor());
                inputs[at] = &tensor;
                loss(&run(inputs).unwrap()).to_scalar::<f64>().unwrap()
            };
            let expected = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            // logsumexp is float32 between the passes of the CPU backend.
            let apart = (found[index] - expected).abs();
            assert!(apart < 1e-5 * expected.abs().max(1.0), "{at} {index}: {} {expected}", found[index]);
        }
    }
}

#[test]
fn neighborhood_attention_is_the_cpu_backends_with_gradients() {
    let (shape, shape_kv) = ([2, 5, 4, 4, 3], [2, 5, 4, 2, 3]);
    let tensors = [random(1, &shape), random(2, &shape_kv), random(3, &shape_kv)];
    let neighborhood = Neighborhood {
        window: vec![3, 2],
        stride: vec![2, 1],
        dilation: vec![1, 2],
        causal: vec![true, false],
        scale: Some(0.7),
    };
    let run = |[q, k, v]: [&Tensor; 3]| neighborhood_attention(q, k, v, &neighborhood);
    let out = run(tensors.each_ref()).unwrap();
    assert_eq!(out.dims(), shape);
    let problem = Problem::builder(Dtype::Float64, &[5, 4])
        .batch(2)
        .heads(4)
        .heads_kv(2)
        .dim(3)
        .window(&[3, 2])
        .stride(&[2, 1])
        .dilation(&[1, 2])
        .causal(&[true, false])
        .scale(0.7)
        .build()
        .unwrap();
    let [q, k, v] = tensors.each_ref().map(flat);
    assert_eq!(flat(&out), cpu::forward(&problem, &q, &k, &v).unwrap().out);
    check_gradients(tensors, run);
}

#[test]
fn dense_attention_is_the_cpu_backends_with_gradients() {
    let tensors = [random(4, &[1, 5, 2, 3]), random(5, &[1, 7, 1, 3]), random(6, &[1, 7, 1, 4])];
    let run = |[q, k, v]: [&Tensor; 3]| attention(q, k, v, true, None);
    let out = run(tensors.each_ref()).unwrap();
    assert_eq!(out.dims(), [1, 5, 2, 4]);
    let problem = Dense {
        seqlen_q: 5,
        seqlen_kv: 7,
        heads: 2,
        dim: 3,
        dim_value: 4,
        causal: true,
        scale: 1.0 / 3_f32.sqrt(),
        ..Dense::new(Dtype::Float64)
    };
    let [q, k, v] = tensors.each_ref().map(flat);
    assert_eq!(flat(&out), cpu::attention_forward(&problem, None, &q, &k, &v).unwrap().out);
    check_gradients(tensors, run);
}

/// Views that are not contiguous, in every type.
#[test]
fn views_and_types_are_taken() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        // [batch, heads, tokens, dim], as other libraries have it.
        let [q, k, v] = [1, 2, 3].map(|seed| random(seed, &[1, 2, 9, 4]).to_dtype(dtype).unwrap());
        let turned = [&q, &k, &v].map(|tensor| tensor.transpose(1, 2).unwrap());
        let straight = turned.each_ref().map(|tensor| tensor.contiguous().unwrap());
        let neighborhood = Neighborhood { window: vec![3], ..Neighborhood::default() };
        let run = |[q, k, v]: &[Tensor; 3]| neighborhood_attention(q, k, v, &neighborhood).unwrap();
        let (turned, straight) = (run(&turned), run(&straight));
        assert_eq!(turned.dtype(), dtype);
        let wide = |tensor: &Tensor| flat(&tensor.to_dtype(DType::F64).unwrap());
        assert_eq!(wide(&turned), wide(&straight));
    }
}

#[test]
fn what_does_not_fit_is_told() {
    let tensor = |shape: &[usize]| random(1, shape);
    let base = tensor(&[1, 6, 2, 4]);
    let window = |window: &[usize]| Neighborhood { window: window.to_vec(), ..Neighborhood::default() };
    let error = |key: &Tensor, value: &Tensor, neighborhood: &Neighborhood| {
        neighborhood_attention(&base, key, value, neighborhood).unwrap_err().to_string()
    };
    for (message, expected) in [
        (error(&tensor(&[1, 5, 2, 4]), &tensor(&[1, 5, 2, 4]), &window(&[3])), "same spatial axes"),
        (error(&tensor(&[2, 6, 2, 4]), &tensor(&[2, 6, 2, 4]), &window(&[3])), "same batch and dim"),
        (error(&base, &tensor(&[1, 6, 1, 4]), &window(&[3])), "as key but for its last axis"),
        (error(&base, &base, &window(&[7])), "window"),
        (error(&base, &base, &window(&[3, 3])), "window"),
        (error(&base, &base.to_dtype(DType::F32).unwrap(), &window(&[3])), "must be of one type"),
        (error(&tensor(&[1, 2, 4]), &base, &window(&[3])), "axes of tokens"),
    ] {
        assert!(message.contains(expected), "`{message}` lacks `{expected}`");
    }
    let integers = base.to_dtype(DType::U32).unwrap();
    let message = attention(&integers, &integers, &integers, false, None).unwrap_err().to_string();
    assert!(message.contains("takes f32, f64, f16 and bf16"), "{message}");
}
