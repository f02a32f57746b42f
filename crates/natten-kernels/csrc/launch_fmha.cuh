// Launchers of the fmha family: a kernel class's parameters from the C arguments. What a caller can
// get wrong was checked by abi_fmha.cpp before.
#pragma once

#include "nattenc/registry.h"
#include "nattenc/runtime.h"

namespace nattenc {

// A parameter's pointer type may lack the const of the argument: the kernels only read these.
template <class Pointer>
void fmha_set(Pointer& parameter, const void* argument) {
  parameter = static_cast<Pointer>(const_cast<void*>(argument));
}

// Elements of `tokens` rows.
inline int64_t fmha_rows(int32_t tokens, int32_t stride) {
  return static_cast<int64_t>(tokens) * static_cast<int64_t>(stride);
}

// What forward's and backward's parameters have in common. Variable length keeps all sequences in one
// batch entry, and sizes the grid by the longest.
template <class Kernel, class Args>
void fmha_problem(typename Kernel::Params& p, const Args& args) {
  fmha_set(p.query_ptr, args.query);
  fmha_set(p.key_ptr, args.key);
  fmha_set(p.value_ptr, args.value);
  p.scale = args.scale;
  p.num_batches = args.batch;
  p.num_heads = args.heads;
  p.head_dim = args.dim;
  p.head_dim_value = args.dim_value;
  p.custom_mask_type = static_cast<uint8_t>(args.causal);
  p.q_strideM = args.heads * args.dim;
  p.k_strideM = p.q_strideM;
  p.v_strideM = args.heads * args.dim_value;
  p.q_strideH = args.dim;
  p.k_strideH = args.dim;
  p.v_strideH = args.dim_value;
  p.q_strideB = fmha_rows(args.seqlen_q, p.q_strideM);
  p.k_strideB = fmha_rows(args.seqlen_kv, p.k_strideM);
  p.v_strideB = fmha_rows(args.seqlen_kv, p.v_strideM);
  p.num_queries = args.seqlen_q;
  p.num_keys = args.seqlen_kv;
  if (args.cumulative_seqlen_q != nullptr) {
    p.num_queries = args.max_seqlen_q;
    p.num_keys = args.max_seqlen_kv;
    p.ptr_cumulative_seqlen_Q = args.cumulative_seqlen_q;
    p.ptr_cumulative_seqlen_KV = args.cumulative_seqlen_kv;
  }
}

template <class Kernel, void (*kernel)(typename Kernel::Params)>
int32_t launch_fmha_forward(const natten_fmha_forward_args& args, const KernelInfo& info) {
  typename Kernel::Params p;
  fmha_problem<Kernel>(p, args);
  p.output_ptr = static_cast<typename Kernel::output_t*>(args.out);
  p.logsumexp_ptr = args.logsumexp;
  p.o_strideM = args.heads * args.dim_value;

  Workspace workspace(args.allocator, args.stream);
  if constexpr (Kernel::kNeedsOutputAccumulatorBuffer) {
    using Accumulator = typename Kernel::output_accum_t;
    // As many rows as the output has.
    const int32_t batch = args.cumulative_seqlen_q != nullptr ? 1 : args.batch;
    const size_t bytes = static_cast<size_t>(fmha_rows(args.seqlen_q, p.o_strideM)) * static_cast<size_t>(batch) *
                         sizeof(Accumulator);
    NATTENC_TRY(workspace.allocate(info.name, bytes, false));
    p.output_accum_ptr = static_cast<Accumulator*>(workspace.get());
  }
  Kernel::check_supported(p);
  NATTENC_TRY(launch(info.name, reinterpret_cast<const void*>(kernel), p.getBlocksGrid(), p.getThreadsGrid(),
                     static_cast<size_t>(info.shared_memory), &p, args.stream));
  return workspace.release();
}

template <class Kernel, void (*kernel)(typename Kernel::Params)>
int32_t launch_fmha_backward(const natten_fmha_backward_args& args, const KernelInfo& info) {
  typename Kernel::Params p;
  fmha_problem<Kernel>(p, args);
  fmha_set(p.output_ptr, args.out);
  fmha_set(p.grad_output_ptr, args.grad_out);
  fmha_set(p.logsumexp_ptr, args.logsumexp);
  fmha_set(p.delta_ptr, args.delta);
  fmha_set(p.grad_query_ptr, args.grad_query);
  fmha_set(p.grad_key_ptr, args.grad_key);
  fmha_set(p.grad_value_ptr, args.grad_value);
  p.num_splits_key = static_cast<int16_t>(args.key_splits);

  p.gO_strideM = args.heads * args.dim_value;
  p.o_strideH = args.dim_value;
  p.gO_strideH = args.dim_value;
  p.gQ_strideH = args.dim;
  p.gK_strideH = args.dim;
  p.gV_strideH = args.dim_value;
  p.o_strideB = fmha_rows(args.seqlen_q, p.gO_strideM);
  p.gO_strideB = p.o_strideB;
  p.gQ_strideB = p.q_strideB;
  p.gK_strideB = p.k_strideB;
  p.gV_strideB = p.v_strideB;
  p.lse_strideB = fmha_rows(args.seqlen_q, args.heads);
  p.delta_strideB = p.lse_strideB;
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
struct FmhaRow {
  const char* name;
  int32_t dtype;
  int32_t sm_min, sm_max;
  int32_t alignment;
};

template <class Kernel>
constexpr KernelInfo fmha_info(const FmhaRow& row, int32_t backward, int32_t query_tile, int32_t key_tile) {
  KernelInfo info = kernel_info("fmha", row.name, backward, 0, row.dtype, 0);
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
constexpr KernelEntry fmha_forward_entry(const FmhaRow& row) {
  return {fmha_info<Kernel>(row, 0, Kernel::kQueriesPerBlock, Kernel::kKeysPerBlock),
          &launch_fmha_forward<Kernel, kernel>};
}

template <class Kernel, void (*kernel)(typename Kernel::Params)>
constexpr KernelEntry fmha_backward_entry(const FmhaRow& row) {
  return {fmha_info<Kernel>(row, 1, Kernel::kBlockSizeI, Kernel::kBlockSizeJ), &launch_fmha_backward<Kernel, kernel>};
}

}  // namespace nattenc
