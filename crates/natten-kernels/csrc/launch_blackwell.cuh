// What the launchers of the four Blackwell families share. Upstream's wrapper classes build a kernel's
// arguments and hold its CUTLASS operation, which is driven here: their own run() prints what failed
// and returns nothing. What a caller can get wrong was checked by abi_blackwell.cpp before.
#pragma once

#include <cuda_runtime.h>

#include <iostream>  // upstream's wrappers print from a function that we never call

#include <cute/tensor.hpp>
#include <cutlass/cutlass.h>
#include <natten/cuda/utils/cutlass.cuh>

#include "nattenc/registry.h"
#include "nattenc/runtime.h"

// Any other target compiles these kernels to a message that the device prints.
#if defined(__CUDA_ARCH__) &&                                                               \
    !(defined(CUTLASS_ARCH_MMA_SM100A_ENABLED) || defined(CUTLASS_ARCH_MMA_SM100F_ENABLED) || \
      defined(CUTLASS_ARCH_MMA_SM103A_ENABLED) || defined(CUTLASS_ARCH_MMA_SM103F_ENABLED))
#error "Blackwell kernels exist for 10.0a and 10.3a alone"
#endif

namespace nattenc {

// Upstream's wrappers take mutable pointers; the kernels only read these.
inline void* blackwell_input(const void* pointer) { return const_cast<void*>(pointer); }

// The wrappers take a device's number and ask the current device, whichever it is.
constexpr int blackwell_device = 0;

// Checks, sets up and launches the operation of an upstream wrapper.
template <class Wrapper>
int32_t run_blackwell(const char* name, Wrapper& wrapper, const typename Wrapper::Arguments& arguments,
                      const natten_allocator& allocator, void* stream) {
  using Operation = typename Wrapper::Operation;
  using Kernel = typename Operation::Kernel;
  const auto step = [name](const char* what, cutlass::Status status) {
    return status == cutlass::Status::kSuccess
               ? NATTEN_OK
               : fail(NATTEN_E_CUTLASS, "%s: %s: %s", name, what, cutlassGetStatusString(status));
  };
  NATTENC_TRY(step("can_implement", wrapper.op.can_implement(arguments)));
  // The operation raises the limit itself, but once in a process: on the first device that it meets.
  NATTENC_TRY(prepare_kernel(name, reinterpret_cast<const void*>(&cutlass::device_kernel_sm100<Kernel>),
                             Kernel::SharedStorageSize));
  Workspace workspace(allocator, stream);
  if (const size_t bytes = Operation::get_workspace_size(arguments)) {
    NATTENC_TRY(workspace.allocate(name, bytes, false));
    if (reinterpret_cast<uintptr_t>(workspace.get()) % 16 != 0) {
      return fail(NATTEN_E_INVALID_ARGUMENT, "%s: the allocator's block at %p is not aligned to 16 bytes", name,
                  workspace.get());
    }
  }
  NATTENC_TRY(ForeignLaunch(name).run([&]() -> int32_t {
    const auto on = static_cast<cudaStream_t>(stream);
    NATTENC_TRY(step("initialize", wrapper.op.initialize(arguments, workspace.get(), on)));
    return step("run", wrapper.op.run(on));
  }));
  return workspace.release();
}

// What a unit's table says of a kernel, beside what its types know.
struct BlackwellRow {
  const char* name;
  int32_t dtype, causal;
  int32_t sm_min, sm_max;
  int32_t alignment;
};

// The numbers of a static shape.
template <class Shape>
constexpr void blackwell_shape(int32_t (&numbers)[3]) {
  constexpr int rank = cute::tuple_size<Shape>::value;
  static_assert(rank >= 1 && rank <= 3);
  numbers[0] = cute::get<0>(Shape{});
  if constexpr (rank > 1) {
    numbers[1] = cute::get<1>(Shape{});
  }
  if constexpr (rank > 2) {
    numbers[2] = cute::get<2>(Shape{});
  }
}

template <class QueryTile, class KeyTile, class GemmShape>
constexpr KernelInfo blackwell_info(const char* family, const BlackwellRow& row, int32_t backward, int32_t rank,
                                    int32_t shared_memory) {
  KernelInfo info = kernel_info(family, row.name, backward, rank, row.dtype, row.causal);
  blackwell_shape<QueryTile>(info.query_tile);
  blackwell_shape<KeyTile>(info.key_tile);
  info.max_head_dim = cute::get<2>(GemmShape{});
  info.alignment = row.alignment;
  info.shared_memory = shared_memory;
  info.sm_min = row.sm_min;
  info.sm_max = row.sm_max;
  return info;
}

// The numbers of a spatial shape, as many as the wrapper's rank.
template <class Wrapper>
typename Wrapper::NADim blackwell_dim(const int32_t (&numbers)[3]) {
  constexpr int rank = cute::tuple_size<typename Wrapper::NADim>::value;
  if constexpr (rank == 1) {
    return cute::make_tuple(numbers[0]);
  } else if constexpr (rank == 2) {
    return cute::make_tuple(numbers[0], numbers[1]);
  } else {
    return cute::make_tuple(numbers[0], numbers[1], numbers[2]);
  }
}

}  // namespace nattenc
