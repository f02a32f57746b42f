#include "nattenc/checks.h"

namespace nattenc {

const char* dtype_name(int32_t dtype) {
  switch (dtype) {
    case NATTEN_FLOAT32: return "float32";
    case NATTEN_FLOAT16: return "float16";
    case NATTEN_BFLOAT16: return "bfloat16";
    case NATTEN_FLOAT8_E4M3: return "float8_e4m3";
    case NATTEN_FLOAT8_E5M2: return "float8_e5m2";
    default: return "unknown";
  }
}

int32_t element_size(int32_t dtype) {
  switch (dtype) {
    case NATTEN_FLOAT32: return 4;
    case NATTEN_FLOAT16:
    case NATTEN_BFLOAT16: return 2;
    case NATTEN_FLOAT8_E4M3:
    case NATTEN_FLOAT8_E5M2: return 1;
    default: return 0;
  }
}

int64_t product(std::initializer_list<int64_t> factors) {
  int64_t result = 1;
  for (const int64_t factor : factors) {
    if (__builtin_mul_overflow(result, factor, &result)) {
      return INT64_MAX;
    }
  }
  return result;
}

int64_t product(const int32_t* factors, int count) {
  // Three 31-bit numbers can exceed 63 bits.
  int64_t result = 1;
  for (int i = 0; i < count; ++i) {
    result = product({result, factors[i]});
  }
  return result;
}

int64_t ceil_div(int64_t n, int64_t d) { return n / d + (n % d != 0); }

int32_t check_struct(const char* op, const void* args, size_t size) {
  if (args == nullptr) {
    return fail(NATTEN_E_INVALID_ARGUMENT, "%s: args is NULL", op);
  }
  const uint32_t given = *static_cast<const uint32_t*>(args);
  if (given != size) {
    return fail(NATTEN_E_INVALID_ARGUMENT,
                "%s: args->size is %u and the struct has %zu bytes in this library (ABI version %d): set it to sizeof, "
                "and use the header that came with the library",
                op, given, size, NATTEN_KERNELS_ABI_VERSION);
  }
  return NATTEN_OK;
}

int32_t check_dtype(const char* op, int32_t dtype) {
  if (element_size(dtype) == 0) {
    return fail(NATTEN_E_INVALID_ARGUMENT, "%s: dtype %d is none of the NATTEN_FLOAT* numbers", op, dtype);
  }
  return NATTEN_OK;
}

int32_t check_pointers(const char* op, size_t alignment, std::initializer_list<Pointer> pointers) {
  for (const Pointer& pointer : pointers) {
    if (pointer.address == nullptr) {
      return fail(NATTEN_E_INVALID_ARGUMENT, "%s: %s is NULL", op, pointer.name);
    }
    if (reinterpret_cast<uintptr_t>(pointer.address) % alignment != 0) {
      return fail(NATTEN_E_INVALID_ARGUMENT, "%s: %s is %p, which is not aligned to %zu bytes", op, pointer.name,
                  pointer.address, alignment);
    }
  }
  return NATTEN_OK;
}

int32_t check_positive(const char* op, std::initializer_list<Number> numbers) {
  for (const Number& number : numbers) {
    if (number.value < 1) {
      return fail(NATTEN_E_INVALID_ARGUMENT, "%s: %s is %lld, must be at least 1", op, number.name,
                  static_cast<long long>(number.value));
    }
  }
  return NATTEN_OK;
}

int32_t check_positive(const char* op, const char* name, int rank, const int32_t* numbers) {
  for (int i = 0; i < rank; ++i) {
    if (numbers[i] < 1) {
      return fail(NATTEN_E_INVALID_ARGUMENT, "%s: %s[%d] is %d, must be at least 1", op, name, i, numbers[i]);
    }
  }
  return NATTEN_OK;
}

int32_t check_flag(const char* op, const char* name, int32_t value) {
  if (value != 0 && value != 1) {
    return fail(NATTEN_E_INVALID_ARGUMENT, "%s: %s is %d, must be 0 or 1", op, name, value);
  }
  return NATTEN_OK;
}

int32_t check_limit(const char* op, const char* what, int64_t value, int64_t limit) {
  if (value > limit) {
    return fail(NATTEN_E_UNSUPPORTED, "%s: %s is %lld, and the kernels take at most %lld", op, what,
                static_cast<long long>(value), static_cast<long long>(limit));
  }
  return NATTEN_OK;
}

int32_t check_neighborhood(const char* op, int rank, const int32_t* extent, const int32_t* window,
                           const int32_t* stride, const int32_t* dilation, const int32_t* causal) {
  NATTENC_TRY(check_positive(op, "qkv_shape", rank, extent));
  NATTENC_TRY(check_positive(op, "stride", rank, stride));
  NATTENC_TRY(check_positive(op, "dilation", rank, dilation));
  for (int i = 0; i < rank; ++i) {
    if (window[i] < 2) {
      return fail(NATTEN_E_INVALID_ARGUMENT, "%s: window[%d] is %d, must be at least 2", op, i, window[i]);
    }
    if (stride[i] > window[i]) {
      return fail(NATTEN_E_INVALID_ARGUMENT, "%s: stride[%d] is %d, greater than window[%d], %d", op, i, stride[i], i,
                  window[i]);
    }
    if (product({window[i], dilation[i]}) > extent[i]) {
      return fail(NATTEN_E_INVALID_ARGUMENT, "%s: window[%d] * dilation[%d] is %d * %d, greater than qkv_shape[%d], %d",
                  op, i, i, window[i], dilation[i], i, extent[i]);
    }
    if (causal[i] != 0 && causal[i] != 1) {
      return fail(NATTEN_E_INVALID_ARGUMENT, "%s: causal[%d] is %d, must be 0 or 1", op, i, causal[i]);
    }
  }
  return NATTEN_OK;
}

int32_t check_16_bytes(const char* op, int32_t dtype, std::initializer_list<Number> numbers) {
  const int32_t elements = 16 / element_size(dtype);
  for (const Number& number : numbers) {
    if (number.value % elements != 0) {
      return fail(NATTEN_E_INVALID_ARGUMENT, "%s: %s is %lld, must be a multiple of %d (16 bytes) for %s", op,
                  number.name, static_cast<long long>(number.value), elements, dtype_name(dtype));
    }
  }
  return NATTEN_OK;
}

int32_t check_same_heads(const char* op, int32_t heads, int32_t heads_kv) {
  if (heads != heads_kv) {
    return fail(NATTEN_E_UNSUPPORTED, "%s: heads_kv is %d and heads %d: these kernels take as many, so repeat key heads",
                op, heads_kv, heads);
  }
  return NATTEN_OK;
}

int32_t check_unused(const char* op, std::initializer_list<Number> numbers) {
  for (const Number& number : numbers) {
    if (number.value != 0) {
      return fail(NATTEN_E_UNSUPPORTED, "%s: %s is %lld, must be 0: these kernels have no such option", op, number.name,
                  static_cast<long long>(number.value));
    }
  }
  return NATTEN_OK;
}

int32_t check_kernel_type(const char* op, int32_t kernel_type) {
  if (kernel_type < 0 || kernel_type > 2) {
    return fail(NATTEN_E_INVALID_ARGUMENT, "%s: kernel_type is %d, must be 0, 1 or 2", op, kernel_type);
  }
  return NATTEN_OK;
}

int32_t check_allocator(const char* op, const natten_allocator& allocator) {
  if ((allocator.alloc == nullptr) != (allocator.free == nullptr)) {
    return fail(NATTEN_E_INVALID_ARGUMENT, "%s: allocator.%s is NULL and the other is not", op,
                allocator.alloc == nullptr ? "alloc" : "free");
  }
  return NATTEN_OK;
}

}  // namespace nattenc
