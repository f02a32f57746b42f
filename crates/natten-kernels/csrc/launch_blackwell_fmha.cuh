// Launcher of the blackwell_fmha family. One entry holds five kernels, as upstream's does: mask and
// variable length are chosen per call.
#pragma once

#include "nattenc/launch_blackwell.cuh"

#include <natten/cuda/fmha_blackwell/fmha_forward.cuh>

namespace nattenc {

template <class Wrapper>
int32_t run_blackwell_fmha_forward(const natten_fmha_forward_args& args, const KernelInfo& info) {
  Wrapper wrapper;
  auto arguments = wrapper.initialize(
      blackwell_input(args.query), blackwell_input(args.key), blackwell_input(args.value), args.out, args.logsumexp,
      args.batch, args.seqlen_q, args.seqlen_kv, args.heads, args.heads_kv, args.dim, args.scale, args.max_seqlen_q,
      args.max_seqlen_kv, blackwell_input(args.cumulative_seqlen_q), blackwell_input(args.cumulative_seqlen_kv), blackwell_device);
  arguments.mainloop.scale_q = args.scale_q;
  arguments.mainloop.scale_k = args.scale_k;
  arguments.mainloop.scale_v = args.scale_v;
  arguments.mainloop.inv_scale_o = args.inv_scale_o;
  return run_blackwell(info.name, wrapper, arguments, args.allocator, args.stream);
}

template <class Element, class GemmShape, bool persistent>
int32_t launch_blackwell_fmha_forward(const natten_fmha_forward_args& args, const KernelInfo& info) {
  using namespace cutlass::fmha::collective;
  using natten::cuda::fmha_blackwell::KernelForward;
  const bool causal = args.causal != 0;
  if (args.cumulative_seqlen_q != nullptr) {
    return causal
               ? run_blackwell_fmha_forward<KernelForward<Element, GemmShape, persistent, CausalMask<true>, true>>(args, info)
               : run_blackwell_fmha_forward<KernelForward<Element, GemmShape, persistent, ResidualMask, true>>(args, info);
  }
  if (causal) {
    return run_blackwell_fmha_forward<KernelForward<Element, GemmShape, persistent, CausalMask<true>, false>>(args, info);
  }
  return args.seqlen_kv % info.key_tile[0] == 0
             ? run_blackwell_fmha_forward<KernelForward<Element, GemmShape, persistent, NoMask, false>>(args, info)
             : run_blackwell_fmha_forward<KernelForward<Element, GemmShape, persistent, ResidualMask, false>>(args, info);
}

template <class Element, class GemmShape, bool persistent>
constexpr KernelEntry blackwell_fmha_forward_entry(const BlackwellRow& row) {
  // The masks differ in no storage.
  using Wrapper = natten::cuda::fmha_blackwell::KernelForward<Element, GemmShape, persistent,
                                                              cutlass::fmha::collective::NoMask, false>;
  KernelInfo info = blackwell_info<decltype(cute::take<0, 1>(GemmShape{})), decltype(cute::take<1, 2>(GemmShape{})),
                                   GemmShape>("blackwell_fmha", row, 0, 0,
                                              Wrapper::Operation::Kernel::SharedStorageSize);
  info.schedule = persistent;
  return {info, &launch_blackwell_fmha_forward<Element, GemmShape, persistent>};
}

}  // namespace nattenc
