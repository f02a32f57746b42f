// Argument checks. Together they are as strict as upstream's static dispatchers and its helpers, plus
// what its kernels assume without checking: pointer alignment, 32-bit products, CUDA's grid limits.
// `op` is the entry point's name, which starts every message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "natten_kernels.h"
#include "nattenc/status.h"

namespace nattenc {

struct Pointer {
  const char* name;
  const void* address;
};

struct Number {
  const char* name;
  int64_t value;
};

// Limits of a grid's y and z.
constexpr int64_t grid_limit = 65535;

// TMA's strides are of less than 2^40 bytes: elements of two bytes in one batch entry.
constexpr int64_t tma_limit = (int64_t{1} << 39) - 1;

const char* dtype_name(int32_t dtype);

// Bytes of an element, 0 for a number that is no dtype.
int32_t element_size(int32_t dtype);

// A product of numbers >= 0 that stops at INT64_MAX.
int64_t product(std::initializer_list<int64_t> factors);
int64_t product(const int32_t* factors, int count);

// ceil(n / d) for n >= 0, d >= 1.
int64_t ceil_div(int64_t n, int64_t d);

int32_t check_struct(const char* op, const void* args, size_t size);
int32_t check_dtype(const char* op, int32_t dtype);
int32_t check_pointers(const char* op, size_t alignment, std::initializer_list<Pointer> pointers);
int32_t check_positive(const char* op, std::initializer_list<Number> numbers);
int32_t check_positive(const char* op, const char* name, int rank, const int32_t* numbers);
int32_t check_flag(const char* op, const char* name, int32_t value);

// A legal number that the kernels cannot take: NATTEN_E_UNSUPPORTED.
int32_t check_limit(const char* op, const char* what, int64_t value, int64_t limit);

// window > 1, 1 <= stride <= window, dilation >= 1, window * dilation <= extent, causal 0 or 1.
int32_t check_neighborhood(const char* op, int rank, const int32_t* extent, const int32_t* window,
                           const int32_t* stride, const int32_t* dilation, const int32_t* causal);

// Numbers of elements that must be multiples of 16 bytes, the width of the kernels' loads.
int32_t check_16_bytes(const char* op, int32_t dtype, std::initializer_list<Number> numbers);

// Kernels without grouped heads.
int32_t check_same_heads(const char* op, int32_t heads, int32_t heads_kv);

// Fields that the operation's kernels have no use for: 0.
int32_t check_unused(const char* op, std::initializer_list<Number> numbers);

// Hopper's schedules: 0, 1, 2.
int32_t check_kernel_type(const char* op, int32_t kernel_type);

int32_t check_allocator(const char* op, const natten_allocator& allocator);

// NULL and a wrong struct size, for every args struct: they all start with their size.
template <class Args>
int32_t check_args(const char* op, const Args* args) {
  return check_struct(op, args, sizeof(Args));
}

// Whether the tensors hold sequences of variable length.
template <class Args>
bool is_varlen(const Args& args) {
  return args.cumulative_seqlen_q != nullptr || args.cumulative_seqlen_kv != nullptr;
}

// Both arrays or neither, and the longest sequences go with them.
template <class Args>
int32_t check_varlen(const char* op, const Args& args) {
  const struct {
    const char* name;
    int32_t longest;
    const char* of;
    int32_t tokens;
  } rows[] = {{"max_seqlen_q", args.max_seqlen_q, "seqlen_q", args.seqlen_q},
              {"max_seqlen_kv", args.max_seqlen_kv, "seqlen_kv", args.seqlen_kv}};
  if (!is_varlen(args)) {
    for (const auto& row : rows) {
      if (row.longest != 0) {
        return fail(NATTEN_E_INVALID_ARGUMENT, "%s: %s is %d without cumulative_seqlen_q and cumulative_seqlen_kv", op,
                    row.name, row.longest);
      }
    }
    return NATTEN_OK;
  }
  if (const int32_t status = check_pointers(op, sizeof(int32_t),
                                            {{"cumulative_seqlen_q", args.cumulative_seqlen_q},
                                             {"cumulative_seqlen_kv", args.cumulative_seqlen_kv}})) {
    extend_message("; variable length needs both");
    return status;
  }
  for (const auto& row : rows) {
    NATTENC_TRY(check_positive(op, {{row.name, row.longest}}));
    if (row.longest > row.tokens) {
      return fail(NATTEN_E_INVALID_ARGUMENT, "%s: %s is %d, greater than %s, %d", op, row.name, row.longest, row.of,
                  row.tokens);
    }
  }
  return NATTEN_OK;
}

// One side's shape: whole tiles, the sequence's tokens, and all of the tokens before padding.
template <class Args>
int32_t check_shape(const char* op, int rank, const Args& args, const char* name, const int32_t* shape,
                    const char* tile_name, const int32_t* tile, const char* seqlen_name, int32_t seqlen) {
  NATTENC_TRY(check_positive(op, name, rank, shape));
  NATTENC_TRY(check_positive(op, tile_name, rank, tile));
  for (int i = 0; i < rank; ++i) {
    if (shape[i] % tile[i] != 0) {
      return fail(NATTEN_E_INVALID_ARGUMENT, "%s: %s[%d] is %d, must be a multiple of %s[%d], %d: pad the tensors", op,
                  name, i, shape[i], tile_name, i, tile[i]);
    }
    const int64_t tokens = ceil_div(args.qkv_shape[i], args.dilation[i]);
    if (shape[i] < tokens) {
      return fail(NATTEN_E_INVALID_ARGUMENT, "%s: %s[%d] is %d, less than the %lld tokens of a dilation group", op, name,
                  i, shape[i], static_cast<long long>(tokens));
    }
  }
  if (product(shape, rank) != seqlen) {
    return fail(NATTEN_E_INVALID_ARGUMENT, "%s: %s is %d, and the product of %s %lld", op, seqlen_name, seqlen, name,
                static_cast<long long>(product(shape, rank)));
  }
  return NATTEN_OK;
}

// The neighborhood, and what token permutation makes of it.
template <class Args>
int32_t check_tiled_shapes(const char* op, int rank, const Args& args) {
  NATTENC_TRY(check_neighborhood(op, rank, args.qkv_shape, args.window, args.stride, args.dilation, args.causal));
  NATTENC_TRY(check_shape(op, rank, args, "q_shape", args.q_shape, "query_tile", args.query_tile, "seqlen_q",
                          args.seqlen_q));
  NATTENC_TRY(check_shape(op, rank, args, "kv_shape", args.kv_shape, "key_tile", args.key_tile, "seqlen_kv",
                          args.seqlen_kv));
  const int64_t groups = product(args.dilation, rank);
  if (args.batch % groups != 0) {
    return fail(NATTEN_E_INVALID_ARGUMENT,
                "%s: batch is %d, must be a multiple of the product of dilation, %lld: its groups are batch entries", op,
                args.batch, static_cast<long long>(groups));
  }
  return NATTEN_OK;
}

// The scales of FP8 operands, in operations that take none.
template <class Args>
int32_t check_unit_scales(const char* op, const Args& args) {
  if (args.scale_q != 1.0f || args.scale_k != 1.0f || args.scale_v != 1.0f || args.inv_scale_o != 1.0f) {
    return fail(NATTEN_E_INVALID_ARGUMENT, "%s: scale_q, scale_k, scale_v and inv_scale_o must be 1: no FP8 operands",
                op);
  }
  return NATTEN_OK;
}

}  // namespace nattenc
