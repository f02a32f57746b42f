// The Blackwell backends: argument checks and the request to the registry.
#include <algorithm>
#include <cmath>

#include "nattenc/abi.h"
#include "nattenc/checks.h"

namespace nattenc {
namespace {

// What every operation has: dtype, counts, scale, operands.
template <class Args>
int32_t check_operands(const char* op, const Args& args) {
  NATTENC_TRY(check_dtype(op, args.dtype));
  NATTENC_TRY(check_positive(op, {{"batch", args.batch},
                                  {"seqlen_q", args.seqlen_q},
                                  {"seqlen_kv", args.seqlen_kv},
                                  {"heads", args.heads},
                                  {"heads_kv", args.heads_kv},
                                  {"dim", args.dim}}));
  if (args.heads % args.heads_kv != 0) {
    return fail(NATTEN_E_INVALID_ARGUMENT, "%s: heads is %d, must be a multiple of heads_kv, %d", op, args.heads,
                args.heads_kv);
  }
  NATTENC_TRY(check_16_bytes(op, args.dtype, {{"dim", args.dim}}));
  if (!std::isfinite(args.scale) || args.scale == 0) {
    return fail(NATTEN_E_INVALID_ARGUMENT, "%s: scale is %g, must be finite and not 0", op,
                static_cast<double>(args.scale));
  }
  NATTENC_TRY(check_allocator(op, args.allocator));
  return check_pointers(op, 16,
                        {{"query", args.query}, {"key", args.key}, {"value", args.value}, {"out", args.out}});
}

// What an operation returns or takes beside the operands.
template <class Args>
int32_t check_forward_results(const char* op, const Args& args) {
  if (args.logsumexp != nullptr) {
    NATTENC_TRY(check_pointers(op, sizeof(float), {{"logsumexp", args.logsumexp}}));
  }
  NATTENC_TRY(check_unused(op, {{"kernel_type", args.kernel_type}}));
  NATTENC_TRY(check_flag(op, "persistent", args.persistent));
  const bool fp8 = element_size(args.dtype) == 1;
  const struct {
    const char* name;
    float value;
  } scales[] = {{"scale_q", args.scale_q},
                {"scale_k", args.scale_k},
                {"scale_v", args.scale_v},
                {"inv_scale_o", args.inv_scale_o}};
  for (const auto& scale : scales) {
    if (fp8 ? !(std::isfinite(scale.value) && scale.value > 0) : scale.value != 1) {
      return fail(NATTEN_E_INVALID_ARGUMENT, "%s: %s is %g, must be %s for %s", op, scale.name,
                  static_cast<double>(scale.value), fp8 ? "finite and above 0" : "1", dtype_name(args.dtype));
    }
  }
  return NATTEN_OK;
}

template <class Args>
int32_t check_backward_results(const char* op, const Args& args) {
  NATTENC_TRY(check_pointers(op, 16,
                             {{"grad_out", args.grad_out},
                              {"grad_query", args.grad_query},
                              {"grad_key", args.grad_key},
                              {"grad_value", args.grad_value}}));
  return check_pointers(op, sizeof(float), {{"logsumexp", args.logsumexp}});
}

// `tokens` is what one launch takes for the extent of the queries.
template <class Args>
int32_t check_forward_sizes(const char* op, const Args& args, int64_t tokens, int64_t tile) {
  NATTENC_TRY(check_limit(op, "heads * dim", product({args.heads, args.dim}), INT32_MAX));
  NATTENC_TRY(check_limit(op, "seqlen_q * heads", product({args.seqlen_q, args.heads}), INT32_MAX));
  NATTENC_TRY(check_limit(op, "seqlen * heads * dim",
                          product({std::max(args.seqlen_q, args.seqlen_kv), args.heads, args.dim}), tma_limit));
  if (args.persistent != 0) {
    return check_limit(op, "query tiles * heads * batch",
                       product({ceil_div(tokens, tile), args.heads, args.batch}), INT32_MAX);
  }
  NATTENC_TRY(check_limit(op, "heads", args.heads, grid_limit));
  return check_limit(op, "batch", args.batch, grid_limit);
}

// The kernels compute offsets inside of a sequence in 32 bits. They pad queries to 8 tokens; `tokens` as above.
template <class Args>
int32_t check_backward_sizes(const char* op, const Args& args, int64_t tokens) {
  const int64_t padded = product({ceil_div(std::max<int64_t>(tokens, args.seqlen_q), 8), 8});
  NATTENC_TRY(check_limit(op, "seqlen_q * heads * dim", product({padded, args.heads, args.dim}), INT32_MAX));
  NATTENC_TRY(
      check_limit(op, "seqlen_kv * heads_kv * dim", product({args.seqlen_kv, args.heads_kv, args.dim}), INT32_MAX));
  NATTENC_TRY(check_limit(op, "heads", args.heads, grid_limit));
  return check_limit(op, "batch", args.batch, grid_limit);
}

// ---- neighborhood attention --------------------------------------------------------------------

template <class Args>
int32_t check_tiled(const char* op, int rank, const Args& args) {
  NATTENC_TRY(check_operands(op, args));
  NATTENC_TRY(check_unused(op, {{"num_extra_kv", args.num_extra_kv}}));
  return check_tiled_shapes(op, rank, args);
}

}  // namespace

int32_t blackwell_fna_forward(const char* op, int rank, const natten_tiled_fna_forward_args* pointer) {
  NATTENC_TRY(check_args(op, pointer));
  NATTENC_TRY(require_built(op, "blackwell_fna"));
  const natten_tiled_fna_forward_args& args = *pointer;
  NATTENC_TRY(check_tiled(op, rank, args));
  NATTENC_TRY(check_forward_results(op, args));
  NATTENC_TRY(check_forward_sizes(op, args, args.seqlen_q, product(args.query_tile, rank)));
  Request request = tiled_request(op, "blackwell_fna", rank, args, 0);
  request.schedule = args.persistent;
  const KernelEntry* entry;
  NATTENC_TRY(pick(request, entry));
  return entry->launch.tiled_fna_forward(args, entry->info);
}

int32_t blackwell_fna_backward(const char* op, int rank, const natten_tiled_fna_backward_args* pointer) {
  NATTENC_TRY(check_args(op, pointer));
  NATTENC_TRY(require_built(op, "blackwell_fna_bwd"));
  const natten_tiled_fna_backward_args& args = *pointer;
  NATTENC_TRY(check_tiled(op, rank, args));
  NATTENC_TRY(check_backward_results(op, args));
  NATTENC_TRY(check_backward_sizes(op, args, args.seqlen_q));
  const KernelEntry* entry;
  NATTENC_TRY(pick(tiled_request(op, "blackwell_fna_bwd", rank, args, 1), entry));
  return entry->launch.tiled_fna_backward(args, entry->info);
}

// ---- dense attention ---------------------------------------------------------------------------

namespace {

template <class Args>
int32_t check_fmha(const char* op, const Args& args) {
  NATTENC_TRY(check_operands(op, args));
  if (args.dim_value != args.dim) {
    return fail(NATTEN_E_INVALID_ARGUMENT, "%s: dim_value is %d, must be dim, %d", op, args.dim_value, args.dim);
  }
  NATTENC_TRY(check_flag(op, "causal", args.causal));
  NATTENC_TRY(check_positive(op, {{"query_tile", args.query_tile}, {"key_tile", args.key_tile}}));
  return check_varlen(op, args);
}

// The longest sequence of queries.
template <class Args>
int64_t longest(const Args& args) {
  return is_varlen(args) ? args.max_seqlen_q : args.seqlen_q;
}

}  // namespace

int32_t blackwell_fmha_forward(const char* op, const natten_fmha_forward_args* pointer) {
  NATTENC_TRY(check_args(op, pointer));
  NATTENC_TRY(require_built(op, "blackwell_fmha"));
  const natten_fmha_forward_args& args = *pointer;
  NATTENC_TRY(check_fmha(op, args));
  NATTENC_TRY(check_forward_results(op, args));
  NATTENC_TRY(check_forward_sizes(op, args, longest(args), args.query_tile));
  if (is_varlen(args)) {
    // The output's start and its rows are computed in 32 bits, padded by a sequence.
    NATTENC_TRY(check_limit(op, "max_seqlen_q * heads * dim", product({args.max_seqlen_q, args.heads, args.dim}),
                            INT32_MAX));
    NATTENC_TRY(check_limit(op, "max_seqlen_q * (batch + 1)", product({args.max_seqlen_q, int64_t{args.batch} + 1}),
                            INT32_MAX));
  }
  Request request = dense_request(op, "blackwell_fmha", args, 0);
  request.schedule = args.persistent;
  const KernelEntry* entry;
  NATTENC_TRY(pick(request, entry));
  return entry->launch.fmha_forward(args, entry->info);
}

int32_t blackwell_fmha_backward(const char* op, const natten_fmha_backward_args* pointer) {
  NATTENC_TRY(check_args(op, pointer));
  NATTENC_TRY(require_built(op, "blackwell_fmha_bwd"));
  const natten_fmha_backward_args& args = *pointer;
  NATTENC_TRY(check_fmha(op, args));
  NATTENC_TRY(check_backward_results(op, args));
  if (args.key_splits < 0 || args.key_splits > 1) {
    return fail(NATTEN_E_INVALID_ARGUMENT, "%s: key_splits is %d, must be 0 or 1: these kernels do not split keys", op,
                args.key_splits);
  }
  NATTENC_TRY(check_flag(op, "deterministic", args.deterministic));
  NATTENC_TRY(check_backward_sizes(op, args, longest(args)));
  if (args.deterministic != 0) {
    // Each has a counter of turns.
    NATTENC_TRY(check_limit(op, "query tiles * heads * batch",
                            product({ceil_div(longest(args), args.query_tile), args.heads, args.batch}), INT32_MAX));
  }
  const KernelEntry* entry;
  NATTENC_TRY(pick(dense_request(op, "blackwell_fmha_bwd", args, 1), entry));
  return entry->launch.fmha_backward(args, entry->info);
}

}  // namespace nattenc
