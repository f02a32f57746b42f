//! A few small cases of every family, to be run under compute-sanitizer; results are compared as well.

use super::*;

const DIMS: [usize; 4] = [32, 64, 128, 256];

/// Partial tiles, dilation, stride and a causal axis; dense where `dense` says so.
fn small(dtype: Dtype, rank: usize, dim: usize, dense: bool) -> Problem {
    let extents = [&[150][..], &[19, 17], &[9, 7, 10]][rank - 1];
    let builder = Problem::builder(dtype, extents).heads(2).dim(dim);
    let builder = if dense {
        builder.window(extents)
    } else {
        let mut causal = vec![false; rank];
        causal[rank - 1] = dim == 64;
        let stride: Vec<usize> = (0..rank).map(|axis| 1 + axis % 2).collect();
        builder.window(&vec![3; rank]).stride(&stride).dilation(&vec![2; rank]).causal(&causal)
    };
    builder.build().unwrap()
}

#[test]
#[ignore = "needs a GPU and a linked artifact"]
fn sanitizer_sample() {
    let (device, artifact) = setup();
    let properties = device.properties();
    let mut random = Random::new(6500);
    let mut tally = Tally::default();
    for backend in [Backend::HopperFna, Backend::HopperFmha, Backend::Fna, Backend::Fmha, Backend::Reference]
    {
        if !usable(artifact, &device, backend) {
            continue;
        }
        let dense = matches!(backend, Backend::Fmha | Backend::HopperFmha);
        let hopper = matches!(backend, Backend::HopperFna | Backend::HopperFmha);
        for (at, dim) in DIMS.into_iter().enumerate() {
            for rank in if dense { 1..=1 } else { 1..=3 } {
                // Instrumented code is slow to load; the families of the core section get every other one.
                if matches!(backend, Backend::Fna | Backend::Reference) && (at + rank) % 2 == 1 {
                    continue;
                }
                let dtypes = [Dtype::Float16, Dtype::Bfloat16, Dtype::Float32];
                let dtype = dtypes[(at + rank) % if hopper { 2 } else { 3 }];
                let problem = small(dtype, rank, dim, dense);
                for direction in [Direction::Forward, Direction::Backward] {
                    if hopper && dim == 256 && direction == Direction::Backward {
                        continue;
                    }
                    let request = Request { backend: Some(backend), ..Request::new(direction) };
                    let decision = match dispatch::choose_from(artifact, &problem, &properties, &request) {
                        Ok(decision) => decision,
                        Err(error) => {
                            tally.failed(&format!("{backend} {}", describe(&problem)), &error);
                            continue;
                        }
                    };
                    chosen_case((&device, artifact), &problem, decision, direction, &mut random, &mut tally);
                }
            }
        }
    }
    for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
        if is_built(artifact, Backend::ComputeDelta) {
            tally.cases += 1;
            match for_dtype!(dtype, delta_case(&device, (2, 33, 3, 40), &mut random)) {
                Ok(error) => tally.add("delta", dtype, 2.0 * roundoff(dtype), error, "2, 33, 3, 40"),
                Err(error) => tally.failed("delta", &error),
            }
        }
        if is_built(artifact, Backend::TokenPermute) {
            for rank in 1..=3 {
                tally.cases += 1;
                let (layout, tile) = (&[19, 13, 9][..rank], &[4, 8, 8][..rank]);
                let order = TokenPermutation::new(layout, tile, &[2, 1, 1][..rank], true).unwrap();
                for shape in [(2, 3, 8), (1, 3, 5)] {
                    if let Err(error) =
                        for_dtype!(dtype, permutation_case(&device, &order, shape, &mut random))
                    {
                        tally.failed(&format!("{dtype} {order:?} {shape:?}"), &error);
                    }
                }
            }
        }
    }
    tally.finish("sanitizer sample", 1);
}
