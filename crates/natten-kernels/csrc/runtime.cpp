#include "nattenc/runtime.h"

#include <map>
#include <mutex>

namespace nattenc {
namespace {

int32_t fail_cuda(const char* call, cudaError_t error) {
  const int32_t status = error == cudaErrorMemoryAllocation ? NATTEN_E_OUT_OF_MEMORY : NATTEN_E_CUDA;
  cudaGetLastError();  // it is reported here, so the caller must not find it again
  return fail(status, "%s: %s (%s)", call, cudaGetErrorString(error), cudaGetErrorName(error));
}

int32_t query(const char* call, cudaError_t error) { return error == cudaSuccess ? NATTEN_OK : fail_cuda(call, error); }

int32_t attribute(int& value, cudaDeviceAttr which, int ordinal) {
  return query("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&value, which, ordinal));
}

}  // namespace

int32_t current_device(Device& device) {
  static std::mutex mutex;
  static std::map<int, Device> known;

  int ordinal = 0;
  NATTENC_TRY(query("cudaGetDevice", cudaGetDevice(&ordinal)));
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find(ordinal);
  if (found != known.end()) {
    device = found->second;
    return NATTEN_OK;
  }
  device.ordinal = ordinal;
  NATTENC_TRY(attribute(device.major, cudaDevAttrComputeCapabilityMajor, ordinal));
  NATTENC_TRY(attribute(device.minor, cudaDevAttrComputeCapabilityMinor, ordinal));
  NATTENC_TRY(attribute(device.shared_memory, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal));
  known.emplace(ordinal, device);
  return NATTEN_OK;
}

int32_t Workspace::allocate(const char* kernel, size_t bytes, bool zero) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  if (allocator_.alloc != nullptr) {
    pointer_ = allocator_.alloc(allocator_.ctx, bytes, zero ? 1 : 0, stream_);
    if (pointer_ == nullptr) {
      return fail(NATTEN_E_OUT_OF_MEMORY, "%s: the allocator returned NULL for %zu bytes of workspace", kernel, bytes);
    }
    return NATTEN_OK;
  }
  if (const cudaError_t error = cudaMallocAsync(&pointer_, bytes, stream)) {
    pointer_ = nullptr;
    const int32_t status = fail_cuda("cudaMallocAsync", error);
    extend_message(", asked for %zu bytes of workspace by %s", bytes, kernel);
    return status;
  }
  return zero ? query("cudaMemsetAsync", cudaMemsetAsync(pointer_, 0, bytes, stream)) : NATTEN_OK;
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
  return query("cudaFreeAsync", cudaFreeAsync(pointer, static_cast<cudaStream_t>(stream_)));
}

Workspace::~Workspace() {
  void* const pointer = pointer_;
  if (pointer == nullptr) {
    return;
  }
  if (allocator_.free != nullptr) {
    allocator_.free(allocator_.ctx, pointer, stream_);
  } else {
    // Its own failure would only hide the one that is being reported.
    cudaFreeAsync(pointer, static_cast<cudaStream_t>(stream_));
  }
}

int32_t launch(const char* kernel, const void* function, dim3 grid, dim3 block, size_t shared_memory, void* parameter,
               void* stream) {
  const cudaError_t pending = cudaPeekAtLastError();
  const char* call = "cudaFuncSetAttribute";
  cudaError_t error = cudaSuccess;
  if (shared_memory > 48 * 1024) {
    error = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_memory));
  }
  if (error == cudaSuccess) {
    call = "cudaLaunchKernel";
    error = cudaLaunchKernel(function, grid, block, &parameter, shared_memory, static_cast<cudaStream_t>(stream));
  }
  if (error == cudaSuccess) {
    return NATTEN_OK;
  }
  const int32_t status = fail_cuda(call, error);
  extend_message(", kernel %s, grid (%u, %u, %u), %zu bytes of shared memory", kernel, grid.x, grid.y, grid.z,
                 shared_memory);
  if (pending == error) {
    extend_message("; the same error was pending before this call, so earlier work caused it");
  }
  return status;
}

int32_t ForeignLaunch::check() const { return query("kernel launch", cudaGetLastError()); }

int32_t ForeignLaunch::explain(int32_t status) const {
  extend_message(", kernel %s", kernel_);
  if (pending_ != cudaSuccess) {
    extend_message("; %s was pending before this call", cudaGetErrorName(pending_));
  }
  return status;
}

}  // namespace nattenc
