// Launcher of the blackwell_fmha family. One entry holds five kernels, as upstream's does: mask and
// variable length are chosen per call.
#pragma once

#include "nattenc/launch_blackwell.cuh"

#include <natten/cuda/fmha_blackwell/fmha_forward.cuh>

namespace nattenc {

template <class Element, class GemmShape, bool persistent>
struct BlackwellFmhaForward {
  template <class Mask, bool variable>
  using Wrapper = natten::cuda::fmha_blackwell::KernelForward<Element, GemmShape, persistent, Mask, variable>;

  template <class Mask, bool variable>
  static int32_t run(const natten_fmha_forward_args& args, const KernelInfo& info) {
    Wrapper<Mask, variable> wrapper;
    auto arguments = wrapper.initialize(
        blackwell_input(args.query), blackwell_input(args.key), blackwell_input(args.value), args.out, args.logsumexp,
        args.batch, args.seqlen_q, args.seqlen_kv, args.heads, args.heads_kv, args.dim, args.scale, args.max_seqlen_q,
        args.max_seqlen_kv, blackwell_input(args.cumulative_seqlen_q), blackwell_input(args.cumulative_seqlen_kv),
        blackwell_device);
    arguments.mainloop.scale_q = args.scale_q;
    arguments.mainloop.scale_k = args.scale_k;
    arguments.mainloop.scale_v = args.scale_v;
    arguments.mainloop.inv_scale_o = args.inv_scale_o;
    return run_blackwell(info.name, wrapper, arguments, args.allocator, args.stream);
  }

  static int32_t launch(const natten_fmha_forward_args& args, const KernelInfo& info) {
    using namespace cutlass::fmha::collective;
    const bool causal = args.causal != 0;
    if (args.cumulative_seqlen_q != nullptr) {
      return causal ? run<CausalMask<true>, true>(args, info) : run<ResidualMask, true>(args, info);
    }
    if (causal) {
      return run<CausalMask<true>, false>(args, info);
    }
    return args.seqlen_kv % info.key_tile[0] == 0 ? run<NoMask, false>(args, info)
                                                  : run<ResidualMask, false>(args, info);
  }
};

template <class Element, class GemmShape, bool persistent>
constexpr KernelEntry blackwell_fmha_forward_entry(const BlackwellRow& row) {
  using Kernels = BlackwellFmhaForward<Element, GemmShape, persistent>;
  // The masks differ in no storage.
  using Kernel = typename Kernels::template Wrapper<cutlass::fmha::collective::NoMask, false>::Operation::Kernel;
  KernelInfo info = blackwell_info<decltype(cute::take<0, 1>(GemmShape{})), decltype(cute::take<1, 2>(GemmShape{})),
                                   GemmShape>("blackwell_fmha", row, 0, 0, Kernel::SharedStorageSize);
  info.schedule = persistent;
  return {info, &Kernels::launch};
}

}  // namespace nattenc
