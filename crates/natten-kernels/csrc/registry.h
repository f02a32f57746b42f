// What a build holds, as constant-initialised data. Every generated unit defines one `UnitEntries`;
// the generated registry.cpp lists those that were built, with the code each was compiled to.
#pragma once

#include <cstdint>

#include "natten_kernels.h"

namespace nattenc {

using KernelInfo = natten_kernel_info;

// A kernel's host launcher. The family decides which member is meant.
union Launcher {
  int32_t (*fna_forward)(const natten_fna_forward_args&, const KernelInfo&);
  int32_t (*fna_backward)(const natten_fna_backward_args&, const KernelInfo&);
  int32_t (*reference_forward)(const natten_reference_forward_args&, const KernelInfo&);
  int32_t (*reference_backward)(const natten_reference_backward_args&, const KernelInfo&);
  int32_t (*token_permute)(const natten_token_permute_args&, const KernelInfo&);
  int32_t (*compute_delta)(const natten_compute_delta_args&, const KernelInfo&);
  int32_t (*tiled_fna_forward)(const natten_tiled_fna_forward_args&, const KernelInfo&);
  int32_t (*tiled_fna_backward)(const natten_tiled_fna_backward_args&, const KernelInfo&);
  int32_t (*fmha_forward)(const natten_fmha_forward_args&, const KernelInfo&);
  int32_t (*fmha_backward)(const natten_fmha_backward_args&, const KernelInfo&);

  constexpr Launcher(decltype(fna_forward) launch) : fna_forward(launch) {}
  constexpr Launcher(decltype(fna_backward) launch) : fna_backward(launch) {}
  constexpr Launcher(decltype(reference_forward) launch) : reference_forward(launch) {}
  constexpr Launcher(decltype(reference_backward) launch) : reference_backward(launch) {}
  constexpr Launcher(decltype(token_permute) launch) : token_permute(launch) {}
  constexpr Launcher(decltype(compute_delta) launch) : compute_delta(launch) {}
  constexpr Launcher(decltype(tiled_fna_forward) launch) : tiled_fna_forward(launch) {}
  constexpr Launcher(decltype(tiled_fna_backward) launch) : tiled_fna_backward(launch) {}
  constexpr Launcher(decltype(fmha_forward) launch) : fmha_forward(launch) {}
  constexpr Launcher(decltype(fmha_backward) launch) : fmha_backward(launch) {}
};

struct KernelEntry {
  KernelInfo info;
  Launcher launch;
};

// The kernels of one unit, in upstream's order.
struct UnitEntries {
  const char* family;
  const KernelEntry* entries;
  int32_t count;
};

// One gencode that a unit was compiled for.
struct Code {
  int32_t major, minor;
  char suffix;  // 0, 'a' or 'f'
  bool ptx;
};

struct Unit {
  const UnitEntries* kernels;
  const Code* codes;
  int32_t code_count;
};

// Why a family is not in this build.
struct Absence {
  const char* family;
  const char* reason;
};

// Defined by the generated registry.cpp.
extern const Unit units[];
extern const int32_t unit_count;
extern const Absence absences[];
extern const int32_t absence_count;
extern const char build_info[];
extern const char variant[];

// An info with everything that a family may leave out.
constexpr KernelInfo kernel_info(const char* family, const char* name, int32_t backward, int32_t rank,
                                 int32_t dtype, int32_t causal) {
  KernelInfo info{};
  info.size = sizeof(KernelInfo);
  info.family = family;
  info.name = name;
  info.backward = backward;
  info.rank = rank;
  info.dtype = dtype;
  info.causal = causal;
  info.max_head_dim = INT32_MAX;
  info.alignment = 1;
  info.schedule = -1;
  return info;
}

}  // namespace nattenc
