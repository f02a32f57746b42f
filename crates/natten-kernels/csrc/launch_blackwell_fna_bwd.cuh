// Launcher of the blackwell_fna_bwd family. The operation launches three kernels: the sums over
// out * grad_out and the scaled logsumexp, the gradients, and the conversion of grad_query.
#pragma once

#include "nattenc/launch_blackwell.cuh"

#include <natten/cuda/fna_blackwell/fna_backward.cuh>

namespace nattenc {

template <class Wrapper>
int32_t launch_blackwell_fna_backward(const natten_tiled_fna_backward_args& args, const KernelInfo& info) {
  Wrapper wrapper;
  const auto arguments = wrapper.initialize(
      blackwell_input(args.query), blackwell_input(args.key), blackwell_input(args.value), blackwell_input(args.out),
      blackwell_input(args.logsumexp), args.grad_query, args.grad_key, args.grad_value,
      blackwell_input(args.grad_out), args.batch, args.seqlen_q, args.seqlen_kv, args.heads, args.heads_kv, args.dim,
      args.scale, blackwell_dim<Wrapper>(args.q_shape), blackwell_dim<Wrapper>(args.kv_shape),
      blackwell_dim<Wrapper>(args.qkv_shape), blackwell_dim<Wrapper>(args.window), blackwell_dim<Wrapper>(args.stride),
      blackwell_dim<Wrapper>(args.dilation), blackwell_device);
  return run_blackwell(info.name, wrapper, arguments, args.allocator, args.stream);
}

template <class Element, class Causal, class QueryTile, class KeyTile, class GemmShape>
constexpr KernelEntry blackwell_fna_backward_entry(const BlackwellRow& row) {
  using Wrapper = natten::cuda::fna_blackwell::KernelBackward<Element, Causal, QueryTile, KeyTile, GemmShape>;
  return {blackwell_info<QueryTile, KeyTile, GemmShape>("blackwell_fna_bwd", row, 1,
                                                        cute::tuple_size<QueryTile>::value,
                                                        Wrapper::Operation::Kernel::SharedStorageSize),
          &launch_blackwell_fna_backward<Wrapper>};
}

}  // namespace nattenc
