#include "nattenc/runtime.h"

#include <map>
#include <mutex>

namespace nattenc {
namespace {

// `who` asked for it: an entry point or a kernel.
int32_t check(const char* who, const char* call, cudaError_t error) {
  if (error == cudaSuccess) {
    return NATTEN_OK;
  }
  const int32_t status = error == cudaErrorMemoryAllocation ? NATTEN_E_OUT_OF_MEMORY : NATTEN_E_CUDA;
  cudaGetLastError();  // it is reported here, so the caller must not find it again
  return fail(status, "%s: %s: %s (%s)", who, call, cudaGetErrorString(error), cudaGetErrorName(error));
}

}  // namespace

int32_t current_device(const char* op, Device& device) {
  static std::mutex mutex;
  static std::map<int, Device> known;

  int ordinal = 0;
  NATTENC_TRY(check(op, "cudaGetDevice", cudaGetDevice(&ordinal)));
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find(ordinal);
  if (found != known.end()) {
    device = found->second;
    return NATTEN_OK;
  }
  device.ordinal = ordinal;
  const struct {
    int* value;
    cudaDeviceAttr which;
  } attributes[] = {{&device.major, cudaDevAttrComputeCapabilityMajor},
                    {&device.minor, cudaDevAttrComputeCapabilityMinor},
                    {&device.shared_memory, cudaDevAttrMaxSharedMemoryPerBlockOptin}};
  for (const auto& attribute : attributes) {
    NATTENC_TRY(check(op, "cudaDeviceGetAttribute", cudaDeviceGetAttribute(attribute.value, attribute.which, ordinal)));
  }
  known.emplace(ordinal, device);
  return NATTEN_OK;
}

int32_t Workspace::allocate(const char* kernel, size_t bytes, bool zero) {
  kernel_ = kernel;
  if (allocator_.alloc != nullptr) {
    pointer_ = allocator_.alloc(allocator_.ctx, bytes, zero ? 1 : 0, stream_);
    if (pointer_ == nullptr) {
      return fail(NATTEN_E_OUT_OF_MEMORY, "%s: the allocator returned NULL for %zu bytes of workspace", kernel, bytes);
    }
    return NATTEN_OK;
  }
  const auto stream = static_cast<cudaStream_t>(stream_);
  if (const int32_t status = check(kernel, "cudaMallocAsync", cudaMallocAsync(&pointer_, bytes, stream))) {
    pointer_ = nullptr;
    extend_message(", %zu bytes of workspace", bytes);
    return status;
  }
  return zero ? check(kernel, "cudaMemsetAsync", cudaMemsetAsync(pointer_, 0, bytes, stream)) : NATTEN_OK;
}

int32_t Workspace::release() {
  void* const pointer = pointer_;
  pointer_ = nullptr;
  if (pointer == nullptr) {
    return NATTEN_OK;
  }
  if (allocator_.free != nullptr) {
    allocator_.free(allocator_.ctx, pointer, stream_);
    return NATTEN_OK;
  }
  return check(kernel_, "cudaFreeAsync", cudaFreeAsync(pointer, static_cast<cudaStream_t>(stream_)));
}

Workspace::~Workspace() {
  if (pointer_ == nullptr) {
    return;
  }
  // A failure of its own would only hide the one that is being reported.
  if (allocator_.free != nullptr) {
    allocator_.free(allocator_.ctx, pointer_, stream_);
  } else {
    cudaFreeAsync(pointer_, static_cast<cudaStream_t>(stream_));
  }
}

int32_t launch(const char* kernel, const void* function, dim3 grid, dim3 block, size_t shared_memory, void* parameter,
               void* stream) {
  const cudaError_t pending = cudaPeekAtLastError();
  const char* call = "cudaFuncSetAttribute";
  cudaError_t error = cudaSuccess;
  // More than this must be asked for.
  if (shared_memory > 48 * 1024) {
    error = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_memory));
  }
  if (error == cudaSuccess) {
    call = "cudaLaunchKernel";
    error = cudaLaunchKernel(function, grid, block, &parameter, shared_memory, static_cast<cudaStream_t>(stream));
  }
  const int32_t status = check(kernel, call, error);
  if (status != NATTEN_OK) {
    extend_message(", grid (%u, %u, %u), %zu bytes of shared memory", grid.x, grid.y, grid.z, shared_memory);
    if (pending == error) {
      extend_message("; the same error was pending before this call, so earlier work may have caused it");
    }
  }
  return status;
}

int32_t prepare_kernel(const char* kernel, const void* function, size_t shared_memory) {
  return check(kernel, "cudaFuncSetAttribute",
               cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared_memory)));
}

int32_t ForeignLaunch::finish() const { return check(kernel_, "kernel launch", cudaGetLastError()); }

int32_t ForeignLaunch::explain(int32_t status) const {
  if (pending_ != cudaSuccess) {
    extend_message("; %s was pending before this call", cudaGetErrorName(pending_));
  }
  return status;
}

}  // namespace nattenc
