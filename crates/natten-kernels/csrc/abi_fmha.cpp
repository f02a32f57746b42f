// Dense attention: argument checks, the request to the registry, delta where a backward pass needs it.
#include <algorithm>

#include "nattenc/abi.h"
#include "nattenc/checks.h"

namespace nattenc {
namespace {

// What every operation of this file shares. Upstream's own strides and offsets are 32-bit numbers of
// elements, within a batch entry; `elements` is the largest that they may become.
template <class Args>
int32_t check_dense(const char* op, const Args& args, int64_t elements) {
  NATTENC_TRY(check_dtype(op, args.dtype));
  NATTENC_TRY(check_positive(op, {{"batch", args.batch},
                                  {"seqlen_q", args.seqlen_q},
                                  {"seqlen_kv", args.seqlen_kv},
                                  {"heads", args.heads},
                                  {"heads_kv", args.heads_kv},
                                  {"dim", args.dim},
                                  {"dim_value", args.dim_value},
                                  {"query_tile", args.query_tile},
                                  {"key_tile", args.key_tile}}));
  NATTENC_TRY(check_flag(op, "causal", args.causal));
  NATTENC_TRY(check_pointers(
      op, 16, {{"query", args.query}, {"key", args.key}, {"value", args.value}, {"out", args.out}}));
  NATTENC_TRY(check_allocator(op, args.allocator));
  NATTENC_TRY(check_16_bytes(op, args.dtype, {{"dim", args.dim}, {"dim_value", args.dim_value}}));
  NATTENC_TRY(check_varlen(op, args));
  NATTENC_TRY(check_same_heads(op, args.heads, args.heads_kv));
  NATTENC_TRY(check_limit(op, "batch", args.batch, grid_limit));
  NATTENC_TRY(check_limit(op, "heads", args.heads, grid_limit));
  const int64_t batch = is_varlen(args) ? 1 : args.batch;
  NATTENC_TRY(check_limit(op, "batch * seqlen_q * heads", product({batch, args.seqlen_q, args.heads}), INT32_MAX));
  return check_limit(
      op, "seqlen * heads * dim",
      product({std::max(args.seqlen_q, args.seqlen_kv), args.heads, std::max(args.dim, args.dim_value)}), elements);
}


int32_t check_gradients(const char* op, const natten_fmha_backward_args& args) {
  NATTENC_TRY(check_pointers(op, 16,
                             {{"grad_out", args.grad_out},
                              {"grad_query", args.grad_query},
                              {"grad_key", args.grad_key},
                              {"grad_value", args.grad_value}}));
  NATTENC_TRY(check_pointers(op, sizeof(float), {{"logsumexp", args.logsumexp}}));
  return args.delta == nullptr ? NATTEN_OK : check_pointers(op, sizeof(float), {{"delta", args.delta}});
}

// ---- hopper -----------------------------------------------------------------------------------

template <class Args>
int32_t check_hopper_dense(const char* op, const Args& args, int64_t elements) {
  NATTENC_TRY(check_dense(op, args, elements));
  if (args.dim_value != args.dim) {
    return fail(NATTEN_E_UNSUPPORTED, "%s: dim_value is %d and dim %d: the kernels take one head dim", op,
                args.dim_value, args.dim);
  }
  return NATTEN_OK;
}

}  // namespace

int32_t fmha_forward(const char* op, const natten_fmha_forward_args* pointer) {
  NATTENC_TRY(check_args(op, pointer));
  NATTENC_TRY(require_built(op, "fmha"));
  const natten_fmha_forward_args& args = *pointer;
  NATTENC_TRY(check_dense(op, args, INT32_MAX));
  NATTENC_TRY(check_unused(op, {{"kernel_type", args.kernel_type}, {"persistent", args.persistent}}));
  NATTENC_TRY(check_unit_scales(op, args));
  if (args.logsumexp != nullptr) {
    NATTENC_TRY(check_pointers(op, sizeof(float), {{"logsumexp", args.logsumexp}}));
  }
  const KernelEntry* entry;
  NATTENC_TRY(pick(dense_request(op, "fmha", args, 0), entry));
  return entry->launch.fmha_forward(args, entry->info);
}

int32_t fmha_backward(const char* op, const natten_fmha_backward_args* pointer) {
  NATTENC_TRY(check_args(op, pointer));
  NATTENC_TRY(require_built(op, "fmha"));
  natten_fmha_backward_args args = *pointer;
  NATTENC_TRY(check_dense(op, args, INT32_MAX));
  NATTENC_TRY(check_gradients(op, args));
  NATTENC_TRY(check_unused(op, {{"deterministic", args.deterministic}}));
  NATTENC_TRY(check_positive(op, {{"key_splits", args.key_splits}}));
  const int64_t key_tiles = ceil_div(is_varlen(args) ? args.max_seqlen_kv : args.seqlen_kv, args.key_tile);
  if (args.key_splits > key_tiles) {
    return fail(NATTEN_E_INVALID_ARGUMENT, "%s: key_splits is %d, and there are %lld key tiles", op, args.key_splits,
                static_cast<long long>(key_tiles));
  }
  // A 16-bit number in the kernel's parameters.
  NATTENC_TRY(check_limit(op, "key_splits", args.key_splits, INT16_MAX));

  natten_compute_delta_args delta_args{};
  if (args.delta == nullptr) {
    delta_args.size = sizeof(delta_args);
    delta_args.dtype = args.dtype;
    delta_args.out = args.out;
    delta_args.grad_out = args.grad_out;
    delta_args.batch = is_varlen(args) ? 1 : args.batch;
    delta_args.seqlen = args.seqlen_q;
    delta_args.heads = args.heads;
    delta_args.dim = args.dim_value;
    delta_args.stream = args.stream;
    NATTENC_TRY(check_delta(op, delta_args));
  }

  const KernelEntry* entry;
  NATTENC_TRY(pick(dense_request(op, "fmha", args, 1), entry));
  Workspace delta(args.allocator, args.stream);
  if (args.delta == nullptr) {
    NATTENC_TRY(run_delta(op, delta_args, delta));
    args.delta = delta_args.delta;
  }
  NATTENC_TRY(entry->launch.fmha_backward(args, entry->info));
  return delta.release();
}

int32_t hopper_fmha_forward(const char* op, const natten_fmha_forward_args* pointer) {
  NATTENC_TRY(check_args(op, pointer));
  NATTENC_TRY(require_built(op, "hopper_fmha"));
  const natten_fmha_forward_args& args = *pointer;
  // The output of sequences of variable length is addressed with 32 bits, all else by TMA.
  NATTENC_TRY(check_hopper_dense(op, args, is_varlen(args) ? INT32_MAX : tma_limit));
  NATTENC_TRY(check_kernel_type(op, args.kernel_type));
  NATTENC_TRY(check_unused(op, {{"persistent", args.persistent}}));
  NATTENC_TRY(check_unit_scales(op, args));
  // The kernels write it without asking.
  NATTENC_TRY(check_pointers(op, sizeof(float), {{"logsumexp", args.logsumexp}}));
  NATTENC_TRY(check_limit(op, "query tiles * batch * heads",
                          product({ceil_div(args.seqlen_q, args.query_tile), args.batch, args.heads}), INT32_MAX));
  Request request = dense_request(op, "hopper_fmha", args, 0);
  request.exact_head_dim = true;
  request.schedule = args.kernel_type;
  const KernelEntry* entry;
  NATTENC_TRY(pick(request, entry));
  return entry->launch.fmha_forward(args, entry->info);
}

int32_t hopper_fmha_backward(const char* op, const natten_fmha_backward_args* pointer) {
  NATTENC_TRY(check_args(op, pointer));
  NATTENC_TRY(require_built(op, "hopper_fmha_bwd"));
  const natten_fmha_backward_args& args = *pointer;
  NATTENC_TRY(check_hopper_dense(op, args, INT32_MAX));
  NATTENC_TRY(check_gradients(op, args));
  NATTENC_TRY(check_unused(op, {{"deterministic", args.deterministic}}));
  if (args.key_splits < 0 || args.key_splits > 1) {
    return fail(NATTEN_E_INVALID_ARGUMENT, "%s: key_splits is %d, must be 0 or 1: these kernels do not split keys", op,
                args.key_splits);
  }
  Request request = dense_request(op, "hopper_fmha_bwd", args, 1);
  request.exact_head_dim = true;
  const KernelEntry* entry;
  NATTENC_TRY(pick(request, entry));
  return entry->launch.fmha_backward(args, entry->info);
}

}  // namespace nattenc
