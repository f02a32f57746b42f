// Launcher of the blackwell_fmha_bwd family. One entry holds five kernels, each deterministic or not, as
// upstream's does; each launches three.
#pragma once

#include "nattenc/launch_blackwell.cuh"

#include <natten/cuda/fmha_blackwell/fmha_backward.cuh>

namespace nattenc {

template <class Element, class GemmShape, bool deterministic>
struct BlackwellFmhaBackward {
  template <class Mask, bool variable>
  using Wrapper = natten::cuda::fmha_blackwell::KernelBackward<Element, GemmShape, Mask, variable, deterministic>;

  template <class Mask, bool variable>
  static int32_t run(const natten_fmha_backward_args& args, const KernelInfo& info, int* semaphore) {
    Wrapper<Mask, variable> wrapper;
    const auto arguments = wrapper.initialize(
        blackwell_input(args.query), blackwell_input(args.key), blackwell_input(args.value), blackwell_input(args.out),
        blackwell_input(args.logsumexp), args.grad_query, args.grad_key, args.grad_value,
        blackwell_input(args.grad_out), args.batch, args.seqlen_q, args.seqlen_kv, args.heads, args.heads_kv, args.dim,
        args.scale, args.max_seqlen_q, args.max_seqlen_kv, blackwell_input(args.cumulative_seqlen_q),
        blackwell_input(args.cumulative_seqlen_kv), semaphore, blackwell_device);
    return run_blackwell(info.name, wrapper, arguments, args.allocator, args.stream);
  }

  static int32_t launch(const natten_fmha_backward_args& args, const KernelInfo& info, int* semaphore) {
    using namespace cutlass::fmha::collective;
    const bool causal = args.causal != 0;
    if (args.cumulative_seqlen_q != nullptr) {
      return causal ? run<CausalForBackwardMask<true>, true>(args, info, semaphore)
                    : run<ResidualMaskForBackward, true>(args, info, semaphore);
    }
    if (causal) {
      return run<CausalForBackwardMask<true>, false>(args, info, semaphore);
    }
    const bool whole_tiles = args.seqlen_q % info.query_tile[0] == 0 && args.seqlen_kv % info.key_tile[0] == 0;
    return whole_tiles ? run<NoMask, false>(args, info, semaphore)
                       : run<ResidualMaskForBackward, false>(args, info, semaphore);
  }
};

template <class Element, class GemmShape>
int32_t launch_blackwell_fmha_backward(const natten_fmha_backward_args& args, const KernelInfo& info) {
  if (args.deterministic == 0) {
    return BlackwellFmhaBackward<Element, GemmShape, false>::launch(args, info, nullptr);
  }
  // One turn counter per query tile, sequence and head.
  const int32_t tokens = args.cumulative_seqlen_q != nullptr ? args.max_seqlen_q : args.seqlen_q;
  const int32_t tiles = (tokens - 1) / info.query_tile[0] + 1;
  Workspace semaphore(args.allocator, args.stream);
  NATTENC_TRY(semaphore.allocate(info.name,
                                 sizeof(int) * static_cast<size_t>(tiles) * static_cast<size_t>(args.batch) *
                                     static_cast<size_t>(args.heads),
                                 true));
  using Deterministic = BlackwellFmhaBackward<Element, GemmShape, true>;
  NATTENC_TRY(Deterministic::launch(args, info, static_cast<int*>(semaphore.get())));
  return semaphore.release();
}

template <class Element, class GemmShape>
constexpr KernelEntry blackwell_fmha_backward_entry(const BlackwellRow& row) {
  using Kernels = BlackwellFmhaBackward<Element, GemmShape, false>;
  // The masks differ in no storage.
  using Kernel = typename Kernels::template Wrapper<cutlass::fmha::collective::NoMask, false>::Operation::Kernel;
  return {blackwell_info<decltype(cute::take<0, 1>(GemmShape{})), decltype(cute::take<1, 2>(GemmShape{})), GemmShape>(
              "blackwell_fmha_bwd", row, 1, 0, Kernel::SharedStorageSize),
          &launch_blackwell_fmha_backward<Element, GemmShape>};
}

}  // namespace nattenc
