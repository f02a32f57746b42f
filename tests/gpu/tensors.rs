//! Device tensors of one problem, forward and backward, and the calls that take them.

use super::*;
use natten_kernels::functional::Options;
use natten_kernels::ops::Dense;

/// Elements of each tensor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) query: usize,
    pub(super) key: usize,
    pub(super) value: usize,
    pub(super) out: usize,
    /// Of logsumexp.
    pub(super) rows: usize,
}

impl Sizes {
    pub(super) fn of(problem: &Problem) -> Sizes {
        Sizes {
            query: problem.query_len(),
            key: problem.key_len(),
            value: problem.value_len(),
            out: problem.out_len(),
            rows: problem.logsumexp_len(),
        }
    }

    pub(super) fn dense(problem: &Dense) -> Sizes {
        let rows = problem.batch * problem.seqlen_q * problem.heads;
        let keys = problem.batch * problem.seqlen_kv * problem.heads_kv;
        Sizes {
            query: rows * problem.dim,
            key: keys * problem.dim,
            value: keys * problem.dim_value,
            out: rows * problem.dim_value,
            rows,
        }
    }
}

/// Random inputs; outputs that are NaN until they are written.
pub(super) struct Tensors<T: Element> {
    query: DeviceBuffer<T>,
    key: DeviceBuffer<T>,
    value: DeviceBuffer<T>,
    grad_out: DeviceBuffer<T>,
    out: DeviceBuffer<T>,
    logsumexp: DeviceBuffer<f32>,
    grad_query: DeviceBuffer<T>,
    grad_key: DeviceBuffer<T>,
    grad_value: DeviceBuffer<T>,
    sizes: Sizes,
}

impl<T: Element> Tensors<T> {
    /// The same inputs for the same seed.
    pub(super) fn new(device: &Device, sizes: Sizes, seed: u64) -> Result<Tensors<T>, Error> {
        let mut random = Random::new(seed);
        // A block of numbers, again and again: as good as a stream of them, and millions are made fast.
        let block: Vec<T> = random.elements(1 << 16);
        let mut input = |len: usize| {
            let mut numbers = block[random.range(0, block.len() - 1)..].to_vec();
            while numbers.len() < len {
                numbers.extend_from_slice(&block);
            }
            numbers.truncate(len);
            DeviceBuffer::from_slice(device, &numbers)
        };
        let output = |len| DeviceBuffer::<T>::filled(device, len, 0xff);
        let tensors = Tensors {
            query: input(sizes.query)?,
            key: input(sizes.key)?,
            value: input(sizes.value)?,
            grad_out: input(sizes.out)?,
            out: output(sizes.out)?,
            logsumexp: DeviceBuffer::filled(device, sizes.rows, 0xff)?,
            grad_query: output(sizes.query)?,
            grad_key: output(sizes.key)?,
            grad_value: output(sizes.value)?,
            sizes,
        };
        // They were filled on the default stream, and others need not wait for that.
        device.synchronize()?;
        Ok(tensors)
    }

    pub(super) fn forward(&mut self) -> ForwardTensors {
        ForwardTensors {
            query: self.query.as_ptr().cast(),
            key: self.key.as_ptr().cast(),
            value: self.value.as_ptr().cast(),
            out: self.out.as_mut_ptr().cast(),
            logsumexp: self.logsumexp.as_mut_ptr(),
        }
    }

    /// `out` and `logsumexp` are what the forward pass wrote.
    pub(super) fn backward(&mut self) -> BackwardTensors {
        BackwardTensors {
            query: self.query.as_ptr().cast(),
            key: self.key.as_ptr().cast(),
            value: self.value.as_ptr().cast(),
            out: self.out.as_ptr().cast(),
            grad_out: self.grad_out.as_ptr().cast(),
            logsumexp: self.logsumexp.as_ptr(),
            delta: std::ptr::null(),
            grad_query: self.grad_query.as_mut_ptr().cast(),
            grad_key: self.grad_key.as_mut_ptr().cast(),
            grad_value: self.grad_value.as_mut_ptr().cast(),
        }
    }

    /// What a pass has written, after the device was waited for: out and logsumexp, or the gradients.
    pub(super) fn written(&self, direction: Direction) -> Result<Vec<Vec<f64>>, Error> {
        Ok(match direction {
            Direction::Forward => vec![wide(&self.out.to_vec()?), wide(&self.logsumexp.to_vec()?)],
            Direction::Backward => vec![
                wide(&self.grad_query.to_vec()?),
                wide(&self.grad_key.to_vec()?),
                wide(&self.grad_value.to_vec()?),
            ],
        })
    }

    /// The first `len` elements of out, after the device was waited for.
    pub(super) fn out(&self, len: usize) -> Result<Vec<T>, Error> {
        let mut out = self.out.to_vec()?;
        out.truncate(len);
        Ok(out)
    }

    /// Address and bytes of what a pass writes.
    pub(super) fn outputs(&self, direction: Direction) -> Vec<(u64, usize)> {
        let width = T::DTYPE.size();
        let Sizes { query, key, value, out, rows } = self.sizes;
        let at = |buffer: &DeviceBuffer<T>, len: usize| (buffer.as_ptr().addr() as u64, len * width);
        match direction {
            Direction::Forward => {
                vec![at(&self.out, out), (self.logsumexp.as_ptr().addr() as u64, rows * size_of::<f32>())]
            }
            Direction::Backward => {
                vec![at(&self.grad_query, query), at(&self.grad_key, key), at(&self.grad_value, value)]
            }
        }
    }
}

/// Neighborhood attention or dense attention.
#[derive(Clone)]
pub(super) enum Work {
    Na(Problem),
    Dense(Dense),
}

impl Work {
    pub(super) fn sizes(&self) -> Sizes {
        match self {
            Work::Na(problem) => Sizes::of(problem),
            Work::Dense(problem) => Sizes::dense(problem),
        }
    }

    pub(super) fn dtype(&self) -> Dtype {
        match self {
            Work::Na(problem) => problem.dtype(),
            Work::Dense(problem) => problem.dtype,
        }
    }

    pub(super) fn describe(&self) -> String {
        match self {
            Work::Na(problem) => describe(problem),
            Work::Dense(problem) => format!("{problem:?}"),
        }
    }

    /// The functional API's own entry point for this pass.
    pub(super) fn call<T: Element>(
        &self,
        device: &Device,
        direction: Direction,
        tensors: &mut Tensors<T>,
        options: &Options,
    ) -> Result<Decision, Error> {
        let properties = device.properties();
        match (self, direction) {
            (Work::Na(problem), Direction::Forward) => {
                let run = match problem.rank() {
                    1 => functional::na1d_forward,
                    2 => functional::na2d_forward,
                    _ => functional::na3d_forward,
                };
                // SAFETY: the buffers have the problem's sizes and outlive the copies back, which wait.
                unsafe { run(problem, &properties, &tensors.forward(), options) }
            }
            (Work::Na(problem), Direction::Backward) => {
                let run = match problem.rank() {
                    1 => functional::na1d_backward,
                    2 => functional::na2d_backward,
                    _ => functional::na3d_backward,
                };
                // SAFETY: as above.
                unsafe { run(problem, &properties, &tensors.backward(), options) }
            }
            (Work::Dense(problem), Direction::Forward) => {
                let tensors = tensors.forward();
                // SAFETY: as above.
                unsafe { functional::attention_forward(problem, None, &properties, &tensors, options) }
            }
            (Work::Dense(problem), Direction::Backward) => {
                let tensors = tensors.backward();
                // SAFETY: as above.
                unsafe { functional::attention_backward(problem, None, &properties, &tensors, options) }
            }
        }
    }
}

/// A problem of `rank` axes that takes several tiles on each and leaves some unfilled.
pub(super) fn sizable(dtype: Dtype, rank: usize, dim: usize) -> Problem {
    let extents = [&[700][..], &[37, 29], &[13, 11, 14]][rank - 1];
    let window = [&[200][..], &[13, 9], &[5, 6, 7]][rank - 1];
    Problem::builder(dtype, extents).batch(2).heads(2).dim(dim).window(window).build().unwrap()
}

/// As [`sizable`], with every key seen.
pub(super) fn sizable_dense(dtype: Dtype, dim: usize, causal: bool) -> Dense {
    Dense {
        batch: 2,
        seqlen_q: 700,
        seqlen_kv: 700,
        heads: 2,
        heads_kv: 2,
        dim,
        dim_value: dim,
        causal,
        scale: (1.0 / (dim as f64).sqrt()) as f32,
        ..Dense::new(dtype)
    }
}
