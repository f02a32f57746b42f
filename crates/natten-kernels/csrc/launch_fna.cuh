// Launchers of the fna family: a kernel class's parameters from the C arguments. What a caller can
// get wrong was checked by abi.cpp before.
#pragma once

#include "nattenc/registry.h"
#include "nattenc/runtime.h"

namespace nattenc {

template <class Kernel>
typename Kernel::Dim fna_dim(const int32_t (&numbers)[3]) {
  if constexpr (Kernel::NADim == 1) {
    return {numbers[0]};
  } else if constexpr (Kernel::NADim == 2) {
    return {numbers[0], numbers[1]};
  } else {
    return {numbers[0], numbers[1], numbers[2]};
  }
}

// Upstream's parameters are never const; the kernels only read these.
template <class Scalar>
Scalar* fna_input(const void* pointer) {
  return static_cast<Scalar*>(const_cast<void*>(pointer));
}

// What forward's and backward's parameters have in common.
template <class Kernel, class Args>
void fna_problem(typename Kernel::Params& p, const Args& args) {
  using Scalar = typename Kernel::scalar_t;
  p.query_ptr = fna_input<Scalar>(args.query);
  p.key_ptr = fna_input<Scalar>(args.key);
  p.value_ptr = fna_input<Scalar>(args.value);
  p.scale = args.scale;
  p.num_batches = args.batch;
  p.num_heads = args.heads;
  p.head_dim = args.dim;
  p.head_dim_value = args.dim_value;
  p.num_queries = fna_dim<Kernel>(args.qkv_shape);
  p.kernel_size = fna_dim<Kernel>(args.window);
  p.stride = fna_dim<Kernel>(args.stride);
  p.dilation = fna_dim<Kernel>(args.dilation);
  p.query_tile_shape = fna_dim<Kernel>(args.query_tile);
  p.key_tile_shape = fna_dim<Kernel>(args.key_tile);
}

template <class Kernel, void (*kernel)(typename Kernel::Params)>
int32_t launch_fna_forward(const natten_fna_forward_args& args, const KernelInfo& info) {
  typename Kernel::Params p;
  fna_problem<Kernel>(p, args);
  p.output_ptr = static_cast<typename Kernel::output_t*>(args.out);
  p.logsumexp_ptr = args.logsumexp;

  Workspace workspace(args.allocator, args.stream);
  if constexpr (Kernel::kNeedsOutputAccumulatorBuffer) {
    using Accumulator = typename Kernel::output_accum_t;
    size_t bytes = sizeof(Accumulator);
    for (const int32_t factor : {args.batch, args.heads, args.dim_value}) {
      bytes *= static_cast<size_t>(factor);
    }
    for (int i = 0; i < Kernel::NADim; ++i) {
      bytes *= static_cast<size_t>(args.qkv_shape[i]);
    }
    NATTENC_TRY(workspace.allocate(info.name, bytes, false));
    p.output_accum_ptr = static_cast<Accumulator*>(workspace.get());
  }
  Kernel::check_supported(p);
  NATTENC_TRY(launch(info.name, reinterpret_cast<const void*>(kernel), p.getBlocksGrid(), p.getThreadsGrid(),
                     static_cast<size_t>(info.shared_memory), &p, args.stream));
  return workspace.release();
}

template <class Kernel, void (*kernel)(typename Kernel::Params)>
int32_t launch_fna_backward(const natten_fna_backward_args& args, const KernelInfo& info) {
  using Scalar = typename Kernel::scalar_t;
  typename Kernel::Params p;
  fna_problem<Kernel>(p, args);
  p.output_ptr = fna_input<Scalar>(args.out);
  p.grad_output_ptr = fna_input<Scalar>(args.grad_out);
  p.logsumexp_ptr = const_cast<float*>(args.logsumexp);
  p.delta_ptr = const_cast<float*>(args.delta);
  p.grad_query_ptr = static_cast<Scalar*>(args.grad_query);
  p.grad_key_ptr = static_cast<Scalar*>(args.grad_key);
  p.grad_value_ptr = static_cast<Scalar*>(args.grad_value);
  p.num_splits_key = fna_dim<Kernel>(args.key_splits);
  Kernel::check_supported(p);

  Workspace workspace(args.allocator, args.stream);
  if (const int64_t bytes = p.workspace_size()) {
    NATTENC_TRY(workspace.allocate(info.name, static_cast<size_t>(bytes), true));
    p.workspace = static_cast<typename Kernel::output_accum_t*>(workspace.get());
  }
  NATTENC_TRY(launch(info.name, reinterpret_cast<const void*>(kernel), p.getBlocksGrid(), p.getThreadsGrid(),
                     static_cast<size_t>(info.shared_memory), &p, args.stream));
  return workspace.release();
}

// What a unit's table says of a kernel, beside what its class knows.
struct FnaRow {
  const char* name;
  int32_t dtype, causal;
  int32_t sm_min, sm_max;
  int32_t alignment;
};

template <class Kernel>
constexpr KernelInfo fna_info(const FnaRow& row, int32_t backward, int32_t query_tile, int32_t key_tile) {
  KernelInfo info = kernel_info("fna", row.name, backward, Kernel::NADim, row.dtype, row.causal);
  info.query_tile[0] = query_tile;
  info.key_tile[0] = key_tile;
  info.max_head_dim = Kernel::kMaxK;
  info.alignment = row.alignment;
  info.shared_memory = static_cast<int32_t>(sizeof(typename Kernel::SharedStorage));
  info.sm_min = row.sm_min;
  info.sm_max = row.sm_max;
  return info;
}

template <class Kernel, void (*kernel)(typename Kernel::Params)>
constexpr KernelEntry fna_forward_entry(const FnaRow& row) {
  return {fna_info<Kernel>(row, 0, Kernel::kQueriesPerBlock, Kernel::kKeysPerBlock),
          &launch_fna_forward<Kernel, kernel>};
}

template <class Kernel, void (*kernel)(typename Kernel::Params)>
constexpr KernelEntry fna_backward_entry(const FnaRow& row) {
  return {fna_info<Kernel>(row, 1, Kernel::kBlockSizeI, Kernel::kBlockSizeJ), &launch_fna_backward<Kernel, kernel>};
}

}  // namespace nattenc
