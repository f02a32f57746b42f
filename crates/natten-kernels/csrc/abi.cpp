// The C entry points: check the arguments, ask for the device, pick a kernel, launch it.
#include "nattenc/abi.h"

#include <algorithm>
#include <cstring>

#include "nattenc/checks.h"

namespace nattenc {

uintptr_t addresses(std::initializer_list<const void*> pointers) {
  uintptr_t bits = 0;
  for (const void* pointer : pointers) {
    bits |= reinterpret_cast<uintptr_t>(pointer);
  }
  return bits;
}

int32_t causal_bits(const int32_t* causal, int rank) {
  int32_t bits = 0;
  for (int i = 0; i < rank; ++i) {
    bits |= causal[i] << i;
  }
  return bits;
}

int32_t pick(const Request& request, const KernelEntry*& entry) {
  Device device;
  NATTENC_TRY(current_device(request.op, device));
  return select(request, device, entry);
}

// ---- delta ------------------------------------------------------------------------------------

namespace {

// Everything but pointers and struct size: backward operations check those themselves.
int32_t check_compute_delta_sizes(const char* op, const natten_compute_delta_args& args) {
  NATTENC_TRY(check_limit(op, "batch", args.batch, grid_limit));
  NATTENC_TRY(check_limit(op, "heads", args.heads, grid_limit));
  return check_limit(op, "seqlen * heads * dim", product({args.seqlen, args.heads, args.dim}), INT32_MAX);
}

int32_t pick_compute_delta(const char* op, const natten_compute_delta_args& args, const KernelEntry*& entry) {
  Request request{};
  request.op = op;
  request.family = "compute_delta";
  request.dtype = args.dtype;
  request.head_dim = args.dim;
  request.multiples[0] = args.dim;
  request.addresses = addresses({args.out, args.grad_out});
  return pick(request, entry);
}

}  // namespace

int32_t check_delta(const char* op, const natten_compute_delta_args& args) {
  if (const int32_t status = require_built(op, "compute_delta")) {
    extend_message("; without it, pass delta");
    return status;
  }
  return check_compute_delta_sizes(op, args);
}

int32_t run_delta(const char* op, natten_compute_delta_args& args, Workspace& workspace) {
  const KernelEntry* entry;
  NATTENC_TRY(pick_compute_delta(op, args, entry));
  const int64_t numbers = product({args.batch, args.seqlen, args.heads});
  NATTENC_TRY(workspace.allocate(entry->info.name, static_cast<size_t>(numbers) * sizeof(float), false));
  args.delta = static_cast<float*>(workspace.get());
  return entry->launch.compute_delta(args, entry->info);
}

namespace {

int32_t compute_delta(const char* op, const natten_compute_delta_args* pointer) {
  NATTENC_TRY(check_args(op, pointer));
  const natten_compute_delta_args& args = *pointer;
  NATTENC_TRY(check_dtype(op, args.dtype));
  NATTENC_TRY(check_positive(
      op, {{"batch", args.batch}, {"seqlen", args.seqlen}, {"heads", args.heads}, {"dim", args.dim}}));
  NATTENC_TRY(check_pointers(op, static_cast<size_t>(element_size(args.dtype)),
                             {{"out", args.out}, {"grad_out", args.grad_out}}));
  NATTENC_TRY(check_pointers(op, sizeof(float), {{"delta", args.delta}}));
  NATTENC_TRY(check_compute_delta_sizes(op, args));
  NATTENC_TRY(require_built(op, "compute_delta"));
  const KernelEntry* entry;
  NATTENC_TRY(pick_compute_delta(op, args, entry));
  return entry->launch.compute_delta(args, entry->info);
}

// ---- fna --------------------------------------------------------------------------------------

// What forward and backward share.
template <class Args>
int32_t check_fna(const char* op, int rank, const Args& args) {
  NATTENC_TRY(check_dtype(op, args.dtype));
  NATTENC_TRY(check_positive(
      op, {{"batch", args.batch}, {"heads", args.heads}, {"dim", args.dim}, {"dim_value", args.dim_value}}));
  NATTENC_TRY(check_neighborhood(op, rank, args.qkv_shape, args.window, args.stride, args.dilation, args.causal));
  NATTENC_TRY(check_positive(op, "query_tile", rank, args.query_tile));
  NATTENC_TRY(check_positive(op, "key_tile", rank, args.key_tile));
  NATTENC_TRY(check_pointers(op, 16, {{"query", args.query}, {"key", args.key}, {"value", args.value}}));
  NATTENC_TRY(check_allocator(op, args.allocator));
  NATTENC_TRY(check_16_bytes(op, args.dtype, {{"dim", args.dim}, {"dim_value", args.dim_value}}));
  const int64_t tokens = product(args.qkv_shape, rank);
  const int64_t dilations = product(args.dilation, rank);
  NATTENC_TRY(check_limit(op, "batch", args.batch, grid_limit));
  NATTENC_TRY(check_limit(op, "heads * product of dilation", product({args.heads, dilations}), grid_limit));
  NATTENC_TRY(check_limit(op, "heads * dim", product({args.heads, std::max(args.dim, args.dim_value)}), INT32_MAX));
  return check_limit(op, "batch * product of qkv_shape * heads", product({args.batch, tokens, args.heads}), INT32_MAX);
}

template <class Args>
Request fna_request(const char* op, int rank, const Args& args, int32_t backward) {
  Request request{};
  request.op = op;
  request.family = "fna";
  request.backward = backward;
  request.rank = rank;
  request.dtype = args.dtype;
  request.causal = causal_bits(args.causal, rank);
  request.query_tile[0] = product(args.query_tile, rank);
  request.key_tile[0] = product(args.key_tile, rank);
  request.head_dim = std::max(args.dim, args.dim_value);
  request.multiples[0] = args.dim;
  request.multiples[1] = args.dim_value;
  request.addresses = addresses({args.query, args.key, args.value});
  return request;
}

int32_t fna_forward(const char* op, int rank, const natten_fna_forward_args* pointer) {
  NATTENC_TRY(check_args(op, pointer));
  const natten_fna_forward_args& args = *pointer;
  NATTENC_TRY(check_fna(op, rank, args));
  NATTENC_TRY(check_pointers(op, 16, {{"out", args.out}}));
  if (args.logsumexp != nullptr) {
    NATTENC_TRY(check_pointers(op, sizeof(float), {{"logsumexp", args.logsumexp}}));
  }
  NATTENC_TRY(require_built(op, "fna"));
  const KernelEntry* entry;
  NATTENC_TRY(pick(fna_request(op, rank, args, 0), entry));
  return entry->launch.fna_forward(args, entry->info);
}

// Upstream's bound on key_splits is the number of key tiles per dimension; the others are those of
// the 16 and 32-bit numbers that its kernel and its workspace sizes are computed in.
int32_t check_key_splits(const char* op, int rank, const natten_fna_backward_args& args) {
  NATTENC_TRY(check_positive(op, "key_splits", rank, args.key_splits));
  int64_t query_tiles = 1;
  for (int i = 0; i < rank; ++i) {
    const int64_t extent = ceil_div(args.qkv_shape[i], args.dilation[i]);
    const int64_t key_tiles = ceil_div(extent, args.key_tile[i]);
    if (args.key_splits[i] > key_tiles) {
      return fail(NATTEN_E_INVALID_ARGUMENT, "%s: key_splits[%d] is %d, and the dimension has %lld key tiles", op, i,
                  args.key_splits[i], static_cast<long long>(key_tiles));
    }
    query_tiles = product({query_tiles, ceil_div(extent, args.query_tile[i])});
  }
  const int64_t splits = product(args.key_splits, rank);
  const int64_t dim = std::max(args.dim, args.dim_value);
  const int64_t columns = product({ceil_div(dim, 128), 128});
  NATTENC_TRY(check_limit(op, "product of key_splits", splits, INT16_MAX));
  NATTENC_TRY(check_limit(op, "product of key_splits and key_tile * dim, rounded up",
                          product({splits, product(args.key_tile, rank), columns}), INT32_MAX));
  NATTENC_TRY(
      check_limit(op, "query tiles * ceil(dim / 64)", product({query_tiles, ceil_div(dim, 64)}), INT32_MAX));
  return check_limit(op, "batch * heads * product of dilation",
                     product({args.batch, args.heads, product(args.dilation, rank)}), INT32_MAX);
}

int32_t fna_backward(const char* op, int rank, const natten_fna_backward_args* pointer) {
  NATTENC_TRY(check_args(op, pointer));
  natten_fna_backward_args args = *pointer;
  NATTENC_TRY(check_fna(op, rank, args));
  NATTENC_TRY(check_key_splits(op, rank, args));
  NATTENC_TRY(check_pointers(op, 16,
                             {{"out", args.out},
                              {"grad_out", args.grad_out},
                              {"grad_query", args.grad_query},
                              {"grad_key", args.grad_key},
                              {"grad_value", args.grad_value}}));
  NATTENC_TRY(check_pointers(op, sizeof(float), {{"logsumexp", args.logsumexp}}));
  if (args.delta != nullptr) {
    NATTENC_TRY(check_pointers(op, sizeof(float), {{"delta", args.delta}}));
  }
  NATTENC_TRY(require_built(op, "fna"));

  natten_compute_delta_args delta_args{};
  if (args.delta == nullptr) {
    delta_args.size = sizeof(delta_args);
    delta_args.dtype = args.dtype;
    delta_args.out = args.out;
    delta_args.grad_out = args.grad_out;
    delta_args.batch = args.batch;
    delta_args.seqlen = static_cast<int32_t>(product(args.qkv_shape, rank));
    delta_args.heads = args.heads;
    delta_args.dim = args.dim_value;
    delta_args.stream = args.stream;
    NATTENC_TRY(check_delta(op, delta_args));
  }

  const KernelEntry* entry;
  NATTENC_TRY(pick(fna_request(op, rank, args, 1), entry));
  Workspace delta(args.allocator, args.stream);
  if (args.delta == nullptr) {
    NATTENC_TRY(run_delta(op, delta_args, delta));
    args.delta = delta_args.delta;
  }
  NATTENC_TRY(entry->launch.fna_backward(args, entry->info));
  return delta.release();
}

// ---- reference --------------------------------------------------------------------------------

template <class Args>
int32_t check_reference(const char* op, int rank, const Args& args) {
  NATTENC_TRY(check_dtype(op, args.dtype));
  NATTENC_TRY(check_positive(op, {{"batch", args.batch},
                                  {"heads", args.heads},
                                  {"heads_kv", args.heads_kv},
                                  {"dim", args.dim},
                                  {"dim_value", args.dim_value}}));
  if (args.num_extra_kv < 0) {
    return fail(NATTEN_E_INVALID_ARGUMENT, "%s: num_extra_kv is %d, must not be negative", op, args.num_extra_kv);
  }
  if (args.heads % args.heads_kv != 0) {
    return fail(NATTEN_E_INVALID_ARGUMENT, "%s: heads is %d, must be a multiple of heads_kv, %d", op, args.heads,
                args.heads_kv);
  }
  NATTENC_TRY(check_neighborhood(op, rank, args.qkv_shape, args.window, args.stride, args.dilation, args.causal));
  NATTENC_TRY(check_pointers(op, static_cast<size_t>(element_size(args.dtype)),
                             {{"query", args.query}, {"key", args.key}, {"value", args.value}, {"out", args.out}}));
  return check_pointers(op, sizeof(float), {{"logsumexp", args.logsumexp}});
}

// The kernels index with 32-bit numbers: forward over the whole tensor, backward within a batch.
template <class Args>
int32_t check_reference_sizes(const char* op, int rank, const Args& args, int64_t batches) {
  const int64_t tokens = product(args.qkv_shape, rank);
  const int64_t dim = std::max(args.dim, args.dim_value);
  NATTENC_TRY(check_limit(op, "product of qkv_shape", tokens, INT32_MAX));
  NATTENC_TRY(check_limit(op, "the number of elements that query or out spans",
                          product({batches, tokens, args.heads, dim}), INT32_MAX));
  return check_limit(op, "the number of elements that key or value spans",
                     product({batches, tokens + args.num_extra_kv, args.heads_kv, dim}), INT32_MAX);
}

template <class Args>
Request reference_request(const char* op, int rank, const Args& args, int32_t backward) {
  Request request{};
  request.op = op;
  request.family = "reference";
  request.backward = backward;
  request.rank = rank;
  request.dtype = args.dtype;
  request.causal = causal_bits(args.causal, rank);
  // Forward streams over dim and keeps dim_value per block; backward keeps either.
  request.head_dim = backward != 0 ? std::max(args.dim, args.dim_value) : args.dim_value;
  return request;
}

int32_t reference_forward(const char* op, int rank, const natten_reference_forward_args* pointer) {
  NATTENC_TRY(check_args(op, pointer));
  const natten_reference_forward_args& args = *pointer;
  NATTENC_TRY(check_reference(op, rank, args));
  NATTENC_TRY(check_reference_sizes(op, rank, args, args.batch));
  NATTENC_TRY(check_limit(op, "batch * heads", product({args.batch, args.heads}), grid_limit));
  NATTENC_TRY(require_built(op, "reference"));
  const KernelEntry* entry;
  NATTENC_TRY(pick(reference_request(op, rank, args, 0), entry));
  return entry->launch.reference_forward(args, entry->info);
}

int32_t reference_backward(const char* op, int rank, const natten_reference_backward_args* pointer) {
  NATTENC_TRY(check_args(op, pointer));
  const natten_reference_backward_args& args = *pointer;
  NATTENC_TRY(check_reference(op, rank, args));
  NATTENC_TRY(check_reference_sizes(op, rank, args, 1));
  NATTENC_TRY(check_pointers(op, static_cast<size_t>(element_size(args.dtype)),
                             {{"grad_out", args.grad_out},
                              {"grad_query", args.grad_query},
                              {"grad_key", args.grad_key},
                              {"grad_value", args.grad_value}}));
  NATTENC_TRY(check_limit(op, "batch * heads_kv", product({args.batch, args.heads_kv}), grid_limit));
  NATTENC_TRY(check_limit(op, "heads / heads_kv", args.heads / args.heads_kv, grid_limit));
  NATTENC_TRY(require_built(op, "reference"));
  const KernelEntry* entry;
  NATTENC_TRY(pick(reference_request(op, rank, args, 1), entry));
  return entry->launch.reference_backward(args, entry->info);
}

// ---- token permutation ------------------------------------------------------------------------

int32_t token_permute(const char* op, int rank, const natten_token_permute_args* pointer, bool unpermute) {
  NATTENC_TRY(check_args(op, pointer));
  const natten_token_permute_args& args = *pointer;
  NATTENC_TRY(check_dtype(op, args.dtype));
  NATTENC_TRY(check_positive(
      op, {{"batch", args.batch}, {"seqlen", args.seqlen}, {"heads", args.heads}, {"dim", args.dim}}));
  NATTENC_TRY(check_positive(op, "token_layout", rank, args.token_layout));
  NATTENC_TRY(check_positive(op, "tile", rank, args.tile));
  NATTENC_TRY(check_positive(op, "dilation", rank, args.dilation));
  NATTENC_TRY(check_flag(op, "flip_tiled_dims", args.flip_tiled_dims));
  NATTENC_TRY(check_pointers(op, static_cast<size_t>(element_size(args.dtype)), {{"in", args.in}, {"out", args.out}}));

  int64_t padded = 1;
  for (int i = 0; i < rank; ++i) {
    const int64_t step = product({args.tile[i], args.dilation[i]});
    padded = product({padded, step, ceil_div(args.token_layout[i], step)});
  }
  NATTENC_TRY(check_limit(op, "the padded number of tokens", padded, INT32_MAX));
  if (args.seqlen != padded) {
    return fail(NATTEN_E_INVALID_ARGUMENT, "%s: seqlen is %d, and token_layout padded to tile * dilation has %lld tokens",
                op, args.seqlen, static_cast<long long>(padded));
  }
  const int64_t row = product({args.heads, args.dim});
  NATTENC_TRY(check_limit(op, "batch", args.batch, grid_limit));
  NATTENC_TRY(check_limit(op, "heads * dim", row, INT32_MAX));
  NATTENC_TRY(require_built(op, "token_permute"));

  Request request{};
  request.op = op;
  request.family = "token_permute";
  request.backward = unpermute ? 1 : 0;
  request.rank = rank;
  request.dtype = args.dtype;
  request.head_dim = args.dim;
  request.multiples[0] = row;
  request.addresses = addresses({args.in, args.out});
  const KernelEntry* entry;
  NATTENC_TRY(pick(request, entry));
  // A block moves 16 x 4 vectors of a row.
  NATTENC_TRY(check_limit(op, "heads * dim", row, grid_limit * 64 * entry->info.alignment));
  return entry->launch.token_permute(args, entry->info);
}

}  // namespace
}  // namespace nattenc

using nattenc::guarded;

uint32_t natten_abi_version(void) { return NATTEN_KERNELS_ABI_VERSION; }

const char* natten_build_info(void) { return nattenc::build_info; }

int32_t natten_kernel_count(void) {
  int32_t count = 0;
  for (int32_t u = 0; u < nattenc::unit_count; ++u) {
    count += nattenc::units[u].kernels->count;
  }
  return count;
}

int32_t natten_kernel_info_at(int32_t index, natten_kernel_info* info) {
  const char op[] = "natten_kernel_info_at";
  if (const int32_t status = nattenc::check_args(op, info)) {
    return status;
  }
  int32_t rest = index;
  for (int32_t u = 0; u < nattenc::unit_count && rest >= 0; ++u) {
    const nattenc::UnitEntries& kernels = *nattenc::units[u].kernels;
    if (rest < kernels.count) {
      *info = kernels.entries[rest].info;
      return NATTEN_OK;
    }
    rest -= kernels.count;
  }
  return nattenc::fail(NATTEN_E_INVALID_ARGUMENT, "%s: index is %d, and there are %d kernels", op, index,
                       natten_kernel_count());
}

// The three ranks of one operation.
#define NATTENC_RANKED(prefix, suffix, Args, body)                                                              \
  int32_t prefix##1d##suffix(const Args* args) { return guarded([&] { return body(#prefix "1d" #suffix, 1); }); } \
  int32_t prefix##2d##suffix(const Args* args) { return guarded([&] { return body(#prefix "2d" #suffix, 2); }); } \
  int32_t prefix##3d##suffix(const Args* args) { return guarded([&] { return body(#prefix "3d" #suffix, 3); }); }

#define NATTENC_FNA_FORWARD(op, rank) nattenc::fna_forward(op, rank, args)
#define NATTENC_FNA_BACKWARD(op, rank) nattenc::fna_backward(op, rank, args)
#define NATTENC_REFERENCE_FORWARD(op, rank) nattenc::reference_forward(op, rank, args)
#define NATTENC_REFERENCE_BACKWARD(op, rank) nattenc::reference_backward(op, rank, args)
#define NATTENC_PERMUTE(op, rank) nattenc::token_permute(op, rank, args, false)
#define NATTENC_UNPERMUTE(op, rank) nattenc::token_permute(op, rank, args, true)
#define NATTENC_HOPPER_FORWARD(op, rank) nattenc::hopper_fna_forward(op, rank, args)
#define NATTENC_HOPPER_BACKWARD(op, rank) nattenc::hopper_fna_backward(op, rank, args)
#define NATTENC_BLACKWELL_FORWARD(op, rank) nattenc::blackwell_fna_forward(op, rank, args)
#define NATTENC_BLACKWELL_BACKWARD(op, rank) nattenc::blackwell_fna_backward(op, rank, args)

NATTENC_RANKED(natten_na, _forward, natten_fna_forward_args, NATTENC_FNA_FORWARD)
NATTENC_RANKED(natten_na, _backward, natten_fna_backward_args, NATTENC_FNA_BACKWARD)
NATTENC_RANKED(natten_reference_na, _forward, natten_reference_forward_args, NATTENC_REFERENCE_FORWARD)
NATTENC_RANKED(natten_reference_na, _backward, natten_reference_backward_args, NATTENC_REFERENCE_BACKWARD)
NATTENC_RANKED(natten_token_permute_, , natten_token_permute_args, NATTENC_PERMUTE)
NATTENC_RANKED(natten_token_unpermute_, , natten_token_permute_args, NATTENC_UNPERMUTE)
NATTENC_RANKED(natten_hopper_na, _forward, natten_tiled_fna_forward_args, NATTENC_HOPPER_FORWARD)
NATTENC_RANKED(natten_hopper_na, _backward, natten_tiled_fna_backward_args, NATTENC_HOPPER_BACKWARD)
NATTENC_RANKED(natten_blackwell_na, _forward, natten_tiled_fna_forward_args, NATTENC_BLACKWELL_FORWARD)
NATTENC_RANKED(natten_blackwell_na, _backward, natten_tiled_fna_backward_args, NATTENC_BLACKWELL_BACKWARD)

// Operations without a spatial rank.
#define NATTENC_UNRANKED(op, Args, call) \
  int32_t op(const Args* args) { return guarded([&] { return nattenc::call; }); }

NATTENC_UNRANKED(natten_compute_delta, natten_compute_delta_args, compute_delta("natten_compute_delta", args))
NATTENC_UNRANKED(natten_fmha_forward, natten_fmha_forward_args, fmha_forward("natten_fmha_forward", args))
NATTENC_UNRANKED(natten_fmha_backward, natten_fmha_backward_args, fmha_backward("natten_fmha_backward", args))
NATTENC_UNRANKED(natten_hopper_fmha_forward, natten_fmha_forward_args,
                 hopper_fmha_forward("natten_hopper_fmha_forward", args))
NATTENC_UNRANKED(natten_hopper_fmha_backward, natten_fmha_backward_args,
                 hopper_fmha_backward("natten_hopper_fmha_backward", args))
NATTENC_UNRANKED(natten_blackwell_fmha_forward, natten_fmha_forward_args,
                 blackwell_fmha_forward("natten_blackwell_fmha_forward", args))
NATTENC_UNRANKED(natten_blackwell_fmha_backward, natten_fmha_backward_args,
                 blackwell_fmha_backward("natten_blackwell_fmha_backward", args))
