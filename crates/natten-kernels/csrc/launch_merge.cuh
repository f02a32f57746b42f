// Kernels and launchers of the backend `merge`, ours alone: upstream merges attentions in PyTorch.
#pragma once

#include <cutlass/numeric_types.h>

#include <algorithm>
#include <cstdint>

#include "nattenc/merge.h"
#include "nattenc/registry.h"
#include "nattenc/runtime.h"

namespace nattenc {

constexpr int merge_threads = 256;
constexpr int merge_lanes = 32;

struct MergeParams {
  natten_attention_part parts[most_parts];
  void* out;
  float* logsumexp;
  int64_t rows;
  int32_t part_count;
  int32_t dim;
};

struct AddParams {
  const void* addends;
  void* sum;
  int64_t size;
  int32_t count;
  int32_t dim;
};

// A warp for each row of heads: every lane has the weights' sum, and its share of the row's elements.
template <class Element>
__global__ void __launch_bounds__(merge_threads) merge_attentions_kernel(const __grid_constant__ MergeParams p) {
  const int lane = threadIdx.x % merge_lanes;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * (merge_threads / merge_lanes);
  int64_t row = static_cast<int64_t>(blockIdx.x) * (merge_threads / merge_lanes) + threadIdx.x / merge_lanes;
  for (; row < p.rows; row += stride) {
    float largest = -INFINITY;
    for (int part = 0; part < p.part_count; ++part) {
      largest = fmaxf(largest, p.parts[part].logsumexp[row]);
    }
    float weights = 0.f;
    for (int part = 0; part < p.part_count; ++part) {
      const float logsumexp = p.parts[part].logsumexp[row];
      weights += logsumexp == -INFINITY ? 0.f : expf(logsumexp - largest);
    }
    // The same numbers in every lane, and read by all of them before one writes: out may be a part's own.
    const float merged = weights == 0.f ? -INFINITY : largest + logf(weights);
    for (int d = lane; d < p.dim; d += merge_lanes) {
      float sum = 0.f;
      for (int part = 0; part < p.part_count; ++part) {
        const float logsumexp = p.parts[part].logsumexp[row];
        if (logsumexp != -INFINITY) {
          const Element value = static_cast<const Element*>(p.parts[part].out)[row * p.dim + d];
          sum += expf(logsumexp - largest) / weights * static_cast<float>(value);
        }
      }
      static_cast<Element*>(p.out)[row * p.dim + d] = static_cast<Element>(sum);
    }
    __syncwarp();
    if (lane == 0 && p.logsumexp != nullptr) {
      p.logsumexp[row] = merged;
    }
  }
}

template <class Element>
__global__ void __launch_bounds__(merge_threads) add_gradients_kernel(const __grid_constant__ AddParams p) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * merge_threads;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * merge_threads + threadIdx.x; at < p.size; at += stride) {
    const int64_t row = at / p.dim;
    const auto* addend = static_cast<const Element*>(p.addends) + row * p.count * p.dim + (at - row * p.dim);
    float sum = 0.f;
    for (int32_t copy = 0; copy < p.count; ++copy, addend += p.dim) {
      sum += static_cast<float>(*addend);
    }
    static_cast<Element*>(p.sum)[at] = static_cast<Element>(sum);
  }
}

// Blocks for so many pieces of work, `each` per block; a kernel goes on to the next where they do not suffice.
inline dim3 merge_grid(int64_t pieces, int64_t each) {
  return dim3(static_cast<unsigned>(std::min<int64_t>((pieces + each - 1) / each, 1 << 20)));
}

template <class Element>
int32_t launch_merge_attentions(const natten_compute_delta_args& call, const KernelInfo& info) {
  const natten_merge_attentions_args& args = *static_cast<const MergeCall&>(call).merge;
  MergeParams params{};
  std::copy_n(args.parts, args.part_count, params.parts);
  params.out = args.out;
  params.logsumexp = args.logsumexp;
  params.rows = static_cast<int64_t>(args.batch) * args.seqlen * args.heads;
  params.part_count = args.part_count;
  params.dim = args.dim;
  return launch(info.name, reinterpret_cast<const void*>(&merge_attentions_kernel<Element>),
                merge_grid(params.rows, merge_threads / merge_lanes), dim3(merge_threads), 0, &params, args.stream);
}

template <class Element>
int32_t launch_add_gradients(const natten_compute_delta_args& call, const KernelInfo& info) {
  const natten_add_gradients_args& args = *static_cast<const MergeCall&>(call).add;
  AddParams params{};
  params.addends = args.addends;
  params.sum = args.sum;
  params.size = static_cast<int64_t>(args.batch) * args.seqlen * args.heads * args.dim;
  params.count = args.count;
  params.dim = args.dim;
  return launch(info.name, reinterpret_cast<const void*>(&add_gradients_kernel<Element>),
                merge_grid(params.size, merge_threads), dim3(merge_threads), 0, &params, args.stream);
}

struct MergeRow {
  const char* name;
  int32_t dtype;
  int32_t sm_min, sm_max;
};

template <class Element, bool backward>
constexpr KernelEntry merge_entry(const MergeRow& row) {
  KernelInfo info = kernel_info("merge", row.name, backward ? 1 : 0, 0, row.dtype, 0);
  info.sm_min = row.sm_min;
  info.sm_max = row.sm_max;
  if constexpr (backward) {
    return {info, &launch_add_gradients<Element>};
  } else {
    return {info, &launch_merge_attentions<Element>};
  }
}

}  // namespace nattenc
