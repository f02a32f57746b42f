// Neighborhood attention on Hopper: argument checks and the request to the registry. Tensors are
// token-permuted and padded; what says so are q_shape, kv_shape and qkv_shape.
#include <algorithm>

#include "nattenc/abi.h"
#include "nattenc/checks.h"

namespace nattenc {
namespace {

// What forward and backward share. `elements` is the largest number of elements of a batch entry.
template <class Args>
int32_t check_tiled(const char* op, int rank, const Args& args, int64_t elements) {
  NATTENC_TRY(check_dtype(op, args.dtype));
  NATTENC_TRY(check_positive(op, {{"batch", args.batch},
                                  {"seqlen_q", args.seqlen_q},
                                  {"seqlen_kv", args.seqlen_kv},
                                  {"heads", args.heads},
                                  {"heads_kv", args.heads_kv},
                                  {"dim", args.dim}}));
  NATTENC_TRY(check_tiled_shapes(op, rank, args));
  NATTENC_TRY(check_pointers(
      op, 16, {{"query", args.query}, {"key", args.key}, {"value", args.value}, {"out", args.out}}));
  // Forward, the kernels write it without asking.
  NATTENC_TRY(check_pointers(op, sizeof(float), {{"logsumexp", args.logsumexp}}));
  NATTENC_TRY(check_allocator(op, args.allocator));
  NATTENC_TRY(check_16_bytes(op, args.dtype, {{"dim", args.dim}}));
  NATTENC_TRY(check_same_heads(op, args.heads, args.heads_kv));
  NATTENC_TRY(check_unused(op, {{"num_extra_kv", args.num_extra_kv}}));
  NATTENC_TRY(check_limit(op, "batch", args.batch, grid_limit));
  NATTENC_TRY(check_limit(op, "heads", args.heads, grid_limit));
  NATTENC_TRY(check_limit(op, "seqlen_q * heads", product({args.seqlen_q, args.heads}), INT32_MAX));
  return check_limit(op, "seqlen * heads * dim",
                     product({std::max(args.seqlen_q, args.seqlen_kv), args.heads, args.dim}), elements);
}

}  // namespace

int32_t hopper_fna_forward(const char* op, int rank, const natten_tiled_fna_forward_args* pointer) {
  NATTENC_TRY(check_args(op, pointer));
  NATTENC_TRY(require_built(op, "hopper_fna"));
  const natten_tiled_fna_forward_args& args = *pointer;
  NATTENC_TRY(check_tiled(op, rank, args, tma_limit));
  NATTENC_TRY(check_kernel_type(op, args.kernel_type));
  NATTENC_TRY(check_unused(op, {{"persistent", args.persistent}}));
  NATTENC_TRY(check_unit_scales(op, args));
  const int64_t tiles = args.seqlen_q / product(args.query_tile, rank);
  NATTENC_TRY(check_limit(op, "query tiles * batch * heads", product({tiles, args.batch, args.heads}), INT32_MAX));
  Request request = tiled_request(op, "hopper_fna", rank, args, 0);
  request.exact_head_dim = true;
  request.schedule = args.kernel_type;
  const KernelEntry* entry;
  NATTENC_TRY(pick(request, entry));
  return entry->launch.tiled_fna_forward(args, entry->info);
}

int32_t hopper_fna_backward(const char* op, int rank, const natten_tiled_fna_backward_args* pointer) {
  NATTENC_TRY(check_args(op, pointer));
  NATTENC_TRY(require_built(op, "hopper_fna_bwd"));
  const natten_tiled_fna_backward_args& args = *pointer;
  // Strides within a batch entry are 32-bit numbers of elements.
  NATTENC_TRY(check_tiled(op, rank, args, INT32_MAX));
  NATTENC_TRY(check_pointers(op, 16,
                             {{"grad_out", args.grad_out},
                              {"grad_query", args.grad_query},
                              {"grad_key", args.grad_key},
                              {"grad_value", args.grad_value}}));
  Request request = tiled_request(op, "hopper_fna_bwd", rank, args, 1);
  request.exact_head_dim = true;
  const KernelEntry* entry;
  NATTENC_TRY(pick(request, entry));
  return entry->launch.tiled_fna_backward(args, entry->info);
}

}  // namespace nattenc
