// Launchers of hopper_fna and hopper_fna_bwd over upstream's kernel structs; a unit includes the header
// of its own direction.
#pragma once

#include <cute/tensor.hpp>

#include "nattenc/launch_hopper.cuh"

namespace nattenc {

template <class Kernel>
typename Kernel::NADim hopper_dim(const int32_t (&numbers)[3]) {
  constexpr int rank = cute::tuple_size<typename Kernel::NADim>::value;
  if constexpr (rank == 1) {
    return {numbers[0]};
  } else if constexpr (rank == 2) {
    return {numbers[0], numbers[1]};
  } else {
    return {numbers[0], numbers[1], numbers[2]};
  }
}

template <class Kernel>
int32_t launch_hopper_fna_forward(const natten_tiled_fna_forward_args& args, const KernelInfo& info) {
  Device device;
  NATTENC_TRY(current_device(info.name, device));
  Kernel kernel;
  const auto arguments = kernel.initialize(
      hopper_input(args.query), hopper_input(args.key), hopper_input(args.value), args.out, args.logsumexp, args.batch,
      args.seqlen_q, args.seqlen_kv, args.heads, args.dim, hopper_dim<Kernel>(args.q_shape),
      hopper_dim<Kernel>(args.kv_shape), hopper_dim<Kernel>(args.qkv_shape), hopper_dim<Kernel>(args.window),
      hopper_dim<Kernel>(args.stride), hopper_dim<Kernel>(args.dilation), device.ordinal, args.scale);
  return run_hopper<typename Kernel::Operation>(info.name, kernel, arguments, args.allocator, args.stream);
}

template <class Kernel>
int32_t launch_hopper_fna_backward(const natten_tiled_fna_backward_args& args, const KernelInfo& info) {
  Device device;
  NATTENC_TRY(current_device(info.name, device));
  Kernel kernel;
  const auto arguments = kernel.initialize(
      hopper_input(args.query), hopper_input(args.key), hopper_input(args.value), hopper_input(args.out),
      hopper_input(args.logsumexp), args.grad_query, args.grad_key, args.grad_value, hopper_input(args.grad_out),
      args.batch, args.seqlen_q, args.seqlen_kv, args.heads, args.dim, hopper_dim<Kernel>(args.q_shape),
      hopper_dim<Kernel>(args.kv_shape), hopper_dim<Kernel>(args.qkv_shape), hopper_dim<Kernel>(args.window),
      hopper_dim<Kernel>(args.stride), hopper_dim<Kernel>(args.dilation), device.ordinal, args.scale);
  using Operation = typename Kernel::Operation;
  return run_hopper<typename Operation::OperationSumOdO, typename Operation::Operation,
                    typename Operation::OperationConvert>(info.name, kernel, arguments, args.allocator, args.stream);
}

template <class Kernel>
constexpr KernelEntry hopper_fna_forward_entry(const HopperRow& row) {
  constexpr int rank = cute::tuple_size<typename Kernel::NADim>::value;
  return {hopper_info("hopper_fna", row, 0, rank, Kernel::Operation::Kernel::SharedStorageSize),
          &launch_hopper_fna_forward<Kernel>};
}

template <class Kernel>
constexpr KernelEntry hopper_fna_backward_entry(const HopperRow& row) {
  constexpr int rank = cute::tuple_size<typename Kernel::NADim>::value;
  return {hopper_info("hopper_fna_bwd", row, 1, rank, Kernel::Operation::Operation::Kernel::SharedStorageSize),
          &launch_hopper_fna_backward<Kernel>};
}

}  // namespace nattenc
