// Launchers of hopper_fmha and hopper_fmha_bwd over upstream's kernel structs; a unit includes the
// header of its own direction. An entry stands for five device kernels; which one runs follows from the
// arguments, by upstream's rules.
#pragma once

#include <algorithm>

#include <natten/cuda/fmha_hopper/collective/fmha_fusion.hpp>

#include "nattenc/launch_hopper.cuh"

namespace nattenc {

// `Kernels::With<Mask, varlen>` is upstream's struct. No mask is needed where tiles cover what there is.
template <class Kernels, class Run>
int32_t with_hopper_mask(bool varlen, bool causal, bool whole_tiles, Run&& run) {
  namespace masks = cutlass::fmha::collective;
  if (varlen) {
    return causal ? run(typename Kernels::template With<masks::CausalFusion, true>{})
                  : run(typename Kernels::template With<masks::ResidualFusion, true>{});
  }
  if (causal) {
    return run(typename Kernels::template With<masks::CausalFusion, false>{});
  }
  return whole_tiles ? run(typename Kernels::template With<masks::DefaultFusion, false>{})
                     : run(typename Kernels::template With<masks::ResidualFusion, false>{});
}

template <class Kernels>
int32_t launch_hopper_fmha_forward(const natten_fmha_forward_args& args, const KernelInfo& info) {
  Device device;
  NATTENC_TRY(current_device(info.name, device));
  const bool varlen = args.cumulative_seqlen_q != nullptr;
  return with_hopper_mask<Kernels>(varlen, args.causal != 0, args.seqlen_kv % info.key_tile[0] == 0, [&](auto kernel) {
    const auto arguments = kernel.initialize(
        hopper_input(args.query), hopper_input(args.key), hopper_input(args.value), args.out, args.logsumexp,
        args.batch, args.seqlen_q, args.seqlen_kv, args.heads, args.dim, args.scale, args.max_seqlen_q,
        args.max_seqlen_kv, hopper_input(args.cumulative_seqlen_q), hopper_input(args.cumulative_seqlen_kv),
        device.ordinal);
    return run_hopper<typename decltype(kernel)::Operation>(info.name, kernel, arguments, args.allocator, args.stream);
  });
}

template <class Kernels>
int32_t launch_hopper_fmha_backward(const natten_fmha_backward_args& args, const KernelInfo& info) {
  Device device;
  NATTENC_TRY(current_device(info.name, device));
  const bool varlen = args.cumulative_seqlen_q != nullptr;
  const bool whole_tiles = args.seqlen_q % info.query_tile[0] == 0 && args.seqlen_kv % info.key_tile[0] == 0;
  return with_hopper_mask<Kernels>(varlen, args.causal != 0, whole_tiles, [&](auto kernel) {
    const auto arguments = kernel.initialize(
        hopper_input(args.query), hopper_input(args.key), hopper_input(args.value), hopper_input(args.out),
        hopper_input(args.logsumexp), args.grad_query, args.grad_key, args.grad_value, hopper_input(args.grad_out),
        args.batch, args.seqlen_q, args.seqlen_kv, args.heads, args.dim, args.scale, args.max_seqlen_q,
        args.max_seqlen_kv, hopper_input(args.cumulative_seqlen_q), hopper_input(args.cumulative_seqlen_kv),
        device.ordinal);
    using Operation = typename decltype(kernel)::Operation;
    return run_hopper<typename Operation::OperationSumOdO, typename Operation::Operation,
                      typename Operation::OperationConvert>(info.name, kernel, arguments, args.allocator,
                                                            args.stream);
  });
}

// The largest of the five: what selection compares with the device.
template <class Kernels, class Storage>
constexpr int32_t hopper_fmha_storage(Storage storage) {
  namespace masks = cutlass::fmha::collective;
  return std::max({storage(static_cast<typename Kernels::template With<masks::DefaultFusion, false>*>(nullptr)),
                   storage(static_cast<typename Kernels::template With<masks::ResidualFusion, false>*>(nullptr)),
                   storage(static_cast<typename Kernels::template With<masks::CausalFusion, false>*>(nullptr)),
                   storage(static_cast<typename Kernels::template With<masks::ResidualFusion, true>*>(nullptr)),
                   storage(static_cast<typename Kernels::template With<masks::CausalFusion, true>*>(nullptr))});
}

template <class Kernels>
constexpr KernelEntry hopper_fmha_forward_entry(const HopperRow& row) {
  constexpr auto storage = [](auto* kernel) {
    return static_cast<int32_t>(std::remove_pointer_t<decltype(kernel)>::Operation::Kernel::SharedStorageSize);
  };
  return {hopper_info("hopper_fmha", row, 0, 0, hopper_fmha_storage<Kernels>(storage)),
          &launch_hopper_fmha_forward<Kernels>};
}

template <class Kernels>
constexpr KernelEntry hopper_fmha_backward_entry(const HopperRow& row) {
  constexpr auto storage = [](auto* kernel) {
    using Operation = typename std::remove_pointer_t<decltype(kernel)>::Operation;
    return static_cast<int32_t>(Operation::Operation::Kernel::SharedStorageSize);
  };
  return {hopper_info("hopper_fmha_bwd", row, 1, 0, hopper_fmha_storage<Kernels>(storage)),
          &launch_hopper_fmha_backward<Kernels>};
}

}  // namespace nattenc
