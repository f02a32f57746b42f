// What the launchers of the Hopper families share. Upstream's kernel structs make their arguments and
// own a CUTLASS-like operation; its own `run` prints refusals and goes on, so we call the operation.
#pragma once

#include <cutlass/cutlass.h>

#include <iostream>  // upstream's headers print from functions that we never call
#include <natten/cuda/utils/cutlass.cuh>

#include "nattenc/registry.h"
#include "nattenc/runtime.h"

namespace nattenc {

// A refusal of CUTLASS's. `call` is the member that returned it.
inline int32_t check_cutlass(const char* kernel, const char* call, cutlass::Status status) {
  if (status == cutlass::Status::kSuccess) {
    return NATTEN_OK;
  }
  return fail(NATTEN_E_CUTLASS, "%s: %s: %s", kernel, call, cutlass::cutlassGetStatusString(status));
}

// `Launched` are the device layers whose kernels `kernel.op` launches. Each of them raises its
// kernel's shared memory limit once per process, not per device, and forgets the CUDA error.
template <class... Launched, class Kernel>
int32_t run_hopper(const char* name, Kernel& kernel, const typename Kernel::Arguments& arguments,
                   const natten_allocator& allocator, void* stream) {
  NATTENC_TRY(check_cutlass(name, "can_implement", kernel.op.can_implement(arguments)));
  int32_t prepared = NATTEN_OK;
  ((prepared = prepared ? prepared
                        : prepare_kernel(name, reinterpret_cast<const void*>(
                                                   &cutlass::device_kernel_sm90<typename Launched::Kernel>),
                                         static_cast<size_t>(Launched::Kernel::SharedStorageSize))),
   ...);
  NATTENC_TRY(prepared);
  Workspace workspace(allocator, stream);
  if (const size_t bytes = kernel.get_workspace_size(arguments)) {
    NATTENC_TRY(workspace.allocate(name, bytes, false));
  }
  NATTENC_TRY(ForeignLaunch(name).run([&]() -> int32_t {
    const auto cuda_stream = static_cast<cudaStream_t>(stream);
    NATTENC_TRY(check_cutlass(name, "initialize", kernel.op.initialize(arguments, workspace.get(), cuda_stream)));
    return check_cutlass(name, "run", kernel.op.run(cuda_stream));
  }));
  return workspace.release();
}

// Upstream's parameters are never const; the kernels only read these.
inline void* hopper_input(const void* pointer) { return const_cast<void*>(pointer); }

// What a unit's table says of a kernel, beside what its class knows.
struct HopperRow {
  const char* name;
  int32_t dtype, causal;
  int32_t query_tile[3], key_tile[3];
  int32_t head_dim, schedule;
  int32_t sm_min, sm_max;
};

constexpr KernelInfo hopper_info(const char* family, const HopperRow& row, int32_t backward, int32_t rank,
                                 int32_t shared_memory) {
  KernelInfo info = kernel_info(family, row.name, backward, rank, row.dtype, row.causal);
  for (int i = 0; i < 3; ++i) {
    info.query_tile[i] = row.query_tile[i];
    info.key_tile[i] = row.key_tile[i];
  }
  info.max_head_dim = row.head_dim;
  info.alignment = 8;  // 16 bytes of the two types that there are
  info.shared_memory = shared_memory;
  info.sm_min = row.sm_min;
  info.sm_max = row.sm_max;
  info.schedule = row.schedule;
  return info;
}

}  // namespace nattenc
