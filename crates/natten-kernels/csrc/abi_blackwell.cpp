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

// q_shape and kv_shape: tiles fill them, they cover a dilation group, and their products are the sequence lengths.
int32_t check_padded(const char* op, int rank, const char* shape_name, const int32_t* shape, const char* tile_name,
                     const int32_t* tile, const char* seqlen_name, int32_t seqlen, const int32_t* extent,
                     const int32_t* dilation) {
  NATTENC_TRY(check_positive(op, shape_name, rank, shape));
  NATTENC_TRY(check_positive(op, tile_name, rank, tile));
  for (int i = 0; i < rank; ++i) {
    if (shape[i] % tile[i] != 0) {
      return fail(NATTEN_E_INVALID_ARGUMENT, "%s: %s[%d] is %d, must be a multiple of %s[%d], %d: pad the tokens", op,
                  shape_name, i, shape[i], tile_name, i, tile[i]);
    }
    if (shape[i] < ceil_div(extent[i], dilation[i])) {
      return fail(NATTEN_E_INVALID_ARGUMENT, "%s: %s[%d] is %d, less than qkv_shape[%d] / dilation[%d], %d / %d", op,
                  shape_name, i, shape[i], i, i, extent[i], dilation[i]);
    }
  }
  if (product(shape, rank) != seqlen) {
    return fail(NATTEN_E_INVALID_ARGUMENT, "%s: %s is %d, and the product of %s is %lld", op, seqlen_name, seqlen,
                shape_name, static_cast<long long>(product(shape, rank)));
  }
  return NATTEN_OK;
}

template <class Args>
int32_t check_tiled(const char* op, int rank, const Args& args) {
  NATTENC_TRY(check_operands(op, args));
  NATTENC_TRY(check_unused(op, {{"num_extra_kv", args.num_extra_kv}}));
  NATTENC_TRY(check_neighborhood(op, rank, args.qkv_shape, args.window, args.stride, args.dilation, args.causal));
  NATTENC_TRY(check_padded(op, rank, "q_shape", args.q_shape, "query_tile", args.query_tile, "seqlen_q", args.seqlen_q,
                           args.qkv_shape, args.dilation));
  NATTENC_TRY(check_padded(op, rank, "kv_shape", args.kv_shape, "key_tile", args.key_tile, "seqlen_kv",
                           args.seqlen_kv, args.qkv_shape, args.dilation));
  const int64_t groups = product(args.dilation, rank);
  if (args.batch % groups != 0) {
    return fail(NATTEN_E_INVALID_ARGUMENT, "%s: batch is %d, must be a multiple of the product of dilation, %lld", op,
                args.batch, static_cast<long long>(groups));
  }
  return NATTEN_OK;
}

template <class Args>
Request tiled_request(const char* op, const char* family, int rank, const Args& args, int32_t backward) {
  Request request{};
  request.op = op;
  request.family = family;
  request.backward = backward;
  request.rank = rank;
  request.dtype = args.dtype;
  request.causal = causal_bits(args.causal, rank);
  for (int i = 0; i < rank; ++i) {
    request.query_tile[i] = args.query_tile[i];
    request.key_tile[i] = args.key_tile[i];
  }
  request.head_dim = args.dim;
  request.multiples[0] = args.dim;
  return request;
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
  if (args.cumulative_seqlen_q == nullptr && args.cumulative_seqlen_kv == nullptr) {
    for (const Number& number :
         {Number{"max_seqlen_q", args.max_seqlen_q}, Number{"max_seqlen_kv", args.max_seqlen_kv}}) {
      if (number.value != 0) {
        return fail(NATTEN_E_INVALID_ARGUMENT, "%s: %s is %lld, must be 0 without cumulative_seqlen", op, number.name,
                    static_cast<long long>(number.value));
      }
    }
    return NATTEN_OK;
  }
  NATTENC_TRY(check_pointers(op, sizeof(int32_t),
                             {{"cumulative_seqlen_q", args.cumulative_seqlen_q},
                              {"cumulative_seqlen_kv", args.cumulative_seqlen_kv}}));
  NATTENC_TRY(check_positive(op, {{"max_seqlen_q", args.max_seqlen_q}, {"max_seqlen_kv", args.max_seqlen_kv}}));
  if (args.max_seqlen_q > args.seqlen_q || args.max_seqlen_kv > args.seqlen_kv) {
    return fail(NATTEN_E_INVALID_ARGUMENT,
                "%s: max_seqlen_q and max_seqlen_kv are %d and %d, more than all tokens, %d and %d", op,
                args.max_seqlen_q, args.max_seqlen_kv, args.seqlen_q, args.seqlen_kv);
  }
  return NATTEN_OK;
}

template <class Args>
Request fmha_request(const char* op, const char* family, const Args& args, int32_t backward) {
  Request request{};
  request.op = op;
  request.family = family;
  request.backward = backward;
  request.dtype = args.dtype;
  request.query_tile[0] = args.query_tile;
  request.key_tile[0] = args.key_tile;
  request.head_dim = args.dim;
  request.multiples[0] = args.dim;
  return request;
}

// The longest sequence of queries.
template <class Args>
int64_t longest(const Args& args) {
  return args.cumulative_seqlen_q != nullptr ? args.max_seqlen_q : args.seqlen_q;
}

}  // namespace

int32_t blackwell_fmha_forward(const char* op, const natten_fmha_forward_args* pointer) {
  NATTENC_TRY(check_args(op, pointer));
  NATTENC_TRY(require_built(op, "blackwell_fmha"));
  const natten_fmha_forward_args& args = *pointer;
  NATTENC_TRY(check_fmha(op, args));
  NATTENC_TRY(check_forward_results(op, args));
  NATTENC_TRY(check_forward_sizes(op, args, longest(args), args.query_tile));
  Request request = fmha_request(op, "blackwell_fmha", args, 0);
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
  NATTENC_TRY(pick(fmha_request(op, "blackwell_fmha_bwd", args, 1), entry));
  return entry->launch.fmha_backward(args, entry->info);
}

}  // namespace nattenc
