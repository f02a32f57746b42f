// Which kernel of this build serves a problem on a device, or why none does.
#pragma once

#include <cstdint>

#include "nattenc/registry.h"
#include "nattenc/runtime.h"

namespace nattenc {

// What a problem asks of a kernel, after the argument checks.
struct Request {
  const char* op;
  const char* family;
  int32_t backward;
  int32_t rank;
  int32_t dtype;
  int32_t causal;            // bit i: dimension i
  int64_t query_tile[3];     // as in natten_kernel_info; 0 in a family without tiles
  int64_t key_tile[3];
  int64_t head_dim;          // the largest that a kernel's max_head_dim bounds
  int64_t multiples[2];      // numbers of elements that must be multiples of a kernel's alignment
  uintptr_t addresses;       // pointers, or-ed, that must be aligned to `alignment` elements
  bool exact_head_dim;       // max_head_dim is the only head dim that a kernel takes
  int32_t schedule = -1;     // as in natten_kernel_info
};

// NATTEN_E_BACKEND_NOT_BUILT, with the plan's reason, unless this build has a kernel of `family`.
int32_t require_built(const char* op, const char* family);

// The first kernel, in the catalog's order, that takes the request and has code for the device.
int32_t select(const Request& request, const Device& device, const KernelEntry*& entry);

// The device code rules of CUDA: a cubin runs on the same major and any later minor, `a` on exactly
// its capability, `f` within its family, PTX on anything later.
bool runs_on(const Code& code, int major, int minor);

}  // namespace nattenc
