// Launcher of the blackwell_fna family.
#pragma once

#include "nattenc/launch_blackwell.cuh"

#include <natten/cuda/fna_blackwell/fna_forward.cuh>

namespace nattenc {

template <class Wrapper>
int32_t launch_blackwell_fna_forward(const natten_tiled_fna_forward_args& args, const KernelInfo& info) {
  Wrapper wrapper;
  auto arguments = wrapper.initialize(
      blackwell_input(args.query), blackwell_input(args.key), blackwell_input(args.value), args.out, args.logsumexp,
      args.batch, args.seqlen_q, args.seqlen_kv, args.heads, args.heads_kv, args.dim, args.scale,
      blackwell_dim<Wrapper>(args.q_shape), blackwell_dim<Wrapper>(args.kv_shape),
      blackwell_dim<Wrapper>(args.qkv_shape), blackwell_dim<Wrapper>(args.window), blackwell_dim<Wrapper>(args.stride),
      blackwell_dim<Wrapper>(args.dilation), blackwell_device);
  arguments.mainloop.scale_q = args.scale_q;
  arguments.mainloop.scale_k = args.scale_k;
  arguments.mainloop.scale_v = args.scale_v;
  arguments.mainloop.inv_scale_o = args.inv_scale_o;
  return run_blackwell(info.name, wrapper, arguments, args.allocator, args.stream);
}

template <class Element, class Causal, class QueryTile, class KeyTile, class GemmShape, bool persistent>
constexpr KernelEntry blackwell_fna_forward_entry(const BlackwellRow& row) {
  using Wrapper =
      natten::cuda::fna_blackwell::KernelForward<Element, Causal, QueryTile, KeyTile, GemmShape, persistent>;
  KernelInfo info = blackwell_info<QueryTile, KeyTile, GemmShape>(
      "blackwell_fna", row, 0, cute::tuple_size<QueryTile>::value, Wrapper::Operation::Kernel::SharedStorageSize);
  info.schedule = persistent;
  return {info, &launch_blackwell_fna_forward<Wrapper>};
}

}  // namespace nattenc
