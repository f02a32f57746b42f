// The CUDA calls of the host side: which device, workspace, launch.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "natten_kernels.h"
#include "nattenc/status.h"

namespace nattenc {

struct Device {
  int ordinal;
  int major, minor;
  int shared_memory;  // opt-in limit of one block, bytes

  int capability() const { return major * 10 + minor; }
};

// The current device; its attributes are asked once. `op` starts the message of a failure.
int32_t current_device(const char* op, Device& device);

// One block of stream-ordered device memory. `release` after the last launch that uses it; the
// destructor does so on paths that already report another failure.
class Workspace {
 public:
  Workspace(const natten_allocator& allocator, void* stream) : allocator_(allocator), stream_(stream) {}
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace();

  int32_t allocate(const char* kernel, size_t bytes, bool zero);
  int32_t release();
  void* get() const { return pointer_; }

 private:
  natten_allocator allocator_;
  void* stream_;
  void* pointer_ = nullptr;
  const char* kernel_ = nullptr;  // that it was allocated for
};

// Launches `function` with its one parameter, raising its shared memory limit where that is needed.
// An error that the caller left behind is not taken for ours, and is left in place on success.
int32_t launch(const char* kernel, const void* function, dim3 grid, dim3 block, size_t shared_memory,
               void* parameter, void* stream);

// Loads a kernel onto the current device and raises its shared memory limit there, for launches that
// are not ours: what fails here would be lost in them.
int32_t prepare_kernel(const char* kernel, const void* function, size_t shared_memory);

// For host functions of upstream's that launch by themselves and report through cudaGetLastError:
// the constructor takes away what the caller left behind, `run` reports what the launches left. A body
// may return a status too; a CUDA error that it leaves says more.
class ForeignLaunch {
 public:
  explicit ForeignLaunch(const char* kernel) : kernel_(kernel), pending_(cudaGetLastError()) {}
  template <class Body>
  int32_t run(Body&& body) {
    const int32_t status = guarded([&]() -> int32_t {
      if constexpr (std::is_void_v<decltype(body())>) {
        body();
        return finish();
      } else {
        const int32_t refused = body();
        const int32_t failed = cudaPeekAtLastError() != cudaSuccess ? finish() : NATTEN_OK;
        return failed ? failed : refused;
      }
    });
    return status ? explain(status) : status;
  }

 private:
  int32_t finish() const;
  int32_t explain(int32_t status) const;

  const char* kernel_;
  cudaError_t pending_;
};

}  // namespace nattenc
