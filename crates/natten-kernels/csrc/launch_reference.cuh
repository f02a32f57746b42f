// Launchers of the reference family. Upstream's host functions are called as they are: they build the
// tensors that the kernels are instantiated over, so the device code is upstream's by construction.
#pragma once

// Upstream's headers use these two without including them.
#include <cstdint>
#include <tuple>

#include <cute/tensor.hpp>
#include <natten/cuda/reference/fna_reference_backward.hpp>
#include <natten/cuda/reference/fna_reference_forward.hpp>

#include "nattenc/registry.h"
#include "nattenc/runtime.h"

namespace nattenc {

template <int rank>
auto reference_dim(const int32_t (&numbers)[3]) {
  if constexpr (rank == 1) {
    return cute::make_tuple(numbers[0]);
  } else if constexpr (rank == 2) {
    return cute::make_tuple(numbers[0], numbers[1]);
  } else {
    return cute::make_tuple(numbers[0], numbers[1], numbers[2]);
  }
}

// The host functions take mutable pointers; the kernels only read these.
template <class Element>
Element* reference_input(const void* pointer) {
  return static_cast<Element*>(const_cast<void*>(pointer));
}

template <class Args>
int reference_sequence(const Args& args, int rank) {
  int tokens = 1;
  for (int i = 0; i < rank; ++i) {
    tokens *= args.qkv_shape[i];
  }
  return tokens;
}

template <class Element, class... Causal>
int32_t launch_reference_forward(const natten_reference_forward_args& args, const KernelInfo& info) {
  constexpr int rank = sizeof...(Causal);
  return ForeignLaunch(info.name).run([&] {
    natten::cuda::reference::fna_reference_forward(
        reference_input<Element>(args.query), reference_input<Element>(args.key), reference_input<Element>(args.value),
        static_cast<Element*>(args.out), args.logsumexp, args.batch, reference_sequence(args, rank), args.heads,
        args.heads_kv, args.dim, args.dim_value, args.num_extra_kv, reference_dim<rank>(args.qkv_shape),
        reference_dim<rank>(args.window), reference_dim<rank>(args.stride), reference_dim<rank>(args.dilation),
        cute::tuple<Causal...>{}, args.scale, static_cast<cudaStream_t>(args.stream));
  });
}

template <class Element, class... Causal>
int32_t launch_reference_backward(const natten_reference_backward_args& args, const KernelInfo& info) {
  constexpr int rank = sizeof...(Causal);
  return ForeignLaunch(info.name).run([&] {
    natten::cuda::reference::fna_reference_backward(
        reference_input<Element>(args.query), reference_input<Element>(args.key), reference_input<Element>(args.value),
        reference_input<Element>(args.out), reference_input<Element>(args.grad_out),
        static_cast<Element*>(args.grad_query), static_cast<Element*>(args.grad_key),
        static_cast<Element*>(args.grad_value), const_cast<float*>(args.logsumexp), args.batch,
        reference_sequence(args, rank), args.heads, args.heads_kv, args.dim, args.dim_value, args.num_extra_kv,
        reference_dim<rank>(args.qkv_shape), reference_dim<rank>(args.window), reference_dim<rank>(args.stride),
        reference_dim<rank>(args.dilation), cute::tuple<Causal...>{}, args.scale,
        static_cast<cudaStream_t>(args.stream));
  });
}

struct ReferenceRow {
  const char* name;
  int32_t dtype, causal;
  int32_t sm_min, sm_max;
};

// The limits are upstream's: its kernels keep 1024 numbers per block in registers and 2048 scores in
// shared memory.
template <class Score, class... Causal>
constexpr KernelInfo reference_info(const ReferenceRow& row, int32_t backward) {
  KernelInfo info = kernel_info("reference", row.name, backward, sizeof...(Causal), row.dtype, row.causal);
  info.max_head_dim = 1024;
  info.shared_memory = static_cast<int32_t>(2048 * sizeof(Score));
  info.sm_min = row.sm_min;
  info.sm_max = row.sm_max;
  return info;
}

template <class Element, class... Causal>
constexpr KernelEntry reference_forward_entry(const ReferenceRow& row) {
  return {reference_info<float, Causal...>(row, 0), &launch_reference_forward<Element, Causal...>};
}

template <class Element, class... Causal>
constexpr KernelEntry reference_backward_entry(const ReferenceRow& row) {
  return {reference_info<Element, Causal...>(row, 1), &launch_reference_backward<Element, Causal...>};
}

}  // namespace nattenc
