// What of CUTLASS and of upstream's wrapper around it the launchers of Hopper and Blackwell use.
#pragma once

namespace cutlass {

enum class Status { kSuccess, kInvalid, kErrorInternal };

inline const char* cutlassGetStatusString(Status status) {
  return status == Status::kInvalid ? "Invalid status" : "Error Internal";
}

// Where the kernel would be: its address is all that the host side takes.
template <class Kernel>
void device_kernel_sm90() {}
template <class Kernel>
void device_kernel_sm100() {}

}  // namespace cutlass
