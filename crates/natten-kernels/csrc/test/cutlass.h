// What of CUTLASS and of upstream's wrapper around it launch_hopper.cuh uses, for tiled_test.cpp.
#pragma once

namespace cutlass {

enum class Status { kSuccess, kInvalid, kErrorInternal };

inline const char* cutlassGetStatusString(Status status) {
  return status == Status::kInvalid ? "Invalid status" : "Error Internal";
}

// Where the kernel would be: its address is all that the host side takes.
template <class Kernel>
void device_kernel_sm90() {}

}  // namespace cutlass
