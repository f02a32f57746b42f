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
