#include "nattenc/select.h"

#include <cstring>
#include <set>
#include <string>

#include "nattenc/checks.h"

namespace nattenc {
namespace {

// Integrated parts take no cubin of another capability, and give none.
bool is_tegra(int major, int minor) {
  switch (major * 10 + minor) {
    case 53:
    case 62:
    case 72:
    case 87:
    case 88:
    case 101:
    case 110: return true;
    default: return false;
  }
}

std::string capability_text(int major, int minor) { return std::to_string(major) + "." + std::to_string(minor); }

std::string code_text(const Code& code) {
  std::string text = capability_text(code.major, code.minor);
  if (code.suffix != 0) {
    text += code.suffix;
  }
  return code.ptx ? text + " PTX" : text;
}

std::string join(const std::set<std::string>& texts) {
  std::string result;
  for (const std::string& text : texts) {
    result += (result.empty() ? "" : ", ") + text;
  }
  return result;
}

bool is_family(const Unit& unit, const char* family) { return strcmp(unit.kernels->family, family) == 0; }

// Calls `visit(unit, entry)` for the family's kernels in order, until it returns true.
template <class Visit>
const KernelEntry* find(const char* family, Visit&& visit) {
  for (int32_t u = 0; u < unit_count; ++u) {
    if (!is_family(units[u], family)) {
      continue;
    }
    const UnitEntries& kernels = *units[u].kernels;
    for (int32_t k = 0; k < kernels.count; ++k) {
      if (visit(units[u], kernels.entries[k])) {
        return &kernels.entries[k];
      }
    }
  }
  return nullptr;
}

bool is_kind(const KernelInfo& info, const Request& request) {
  return info.backward == request.backward && info.rank == request.rank && info.dtype == request.dtype &&
         info.causal == request.causal;
}

bool in_range(const KernelInfo& info, int sm) { return info.sm_min <= sm && sm < info.sm_max; }

// Whether the unit's code for the device holds this kernel's body: outside of its range it is empty.
bool has_code(const Unit& unit, const KernelInfo& info, const Device& device) {
  for (int32_t c = 0; c < unit.code_count; ++c) {
    const Code& code = unit.codes[c];
    if (runs_on(code, device.major, device.minor) && in_range(info, code.major * 10 + code.minor)) {
      return true;
    }
  }
  return false;
}

bool has_tiles(const KernelInfo& info, const Request& request) {
  for (int i = 0; i < 3; ++i) {
    if (info.query_tile[i] != request.query_tile[i] || info.key_tile[i] != request.key_tile[i]) {
      return false;
    }
  }
  return info.schedule == request.schedule;
}

bool has_head_dim(const KernelInfo& info, const Request& request) {
  return request.exact_head_dim ? request.head_dim == info.max_head_dim : request.head_dim <= info.max_head_dim;
}

// "8x8", of the numbers that apply.
template <class Number>
std::string tile_text(const Number (&tile)[3]) {
  std::string text;
  for (const Number number : tile) {
    if (number != 0) {
      text += (text.empty() ? "" : "x") + std::to_string(number);
    }
  }
  return text;
}

// The argument that asks for a schedule, and its number.
std::string schedule_text(const char* family, int32_t schedule) {
  return (strncmp(family, "blackwell", 9) == 0 ? "persistent " : "kernel_type ") + std::to_string(schedule);
}

bool is_aligned(const KernelInfo& info, const Request& request) {
  const int64_t elements = info.alignment;
  const auto bytes = static_cast<uintptr_t>(elements * element_size(info.dtype));
  return request.multiples[0] % elements == 0 && request.multiples[1] % elements == 0 &&
         request.addresses % bytes == 0;
}

std::string mask_text(int32_t causal, int32_t rank) {
  std::string text;
  for (int32_t i = 0; i < rank; ++i) {
    text += (causal >> i & 1) != 0 ? "1" : "0";
  }
  return text;
}

// "2-D float16 backward, causal 01"
std::string kind_text(const char* family, int32_t backward, int32_t rank, int32_t dtype, int32_t causal) {
  const bool permutes = strcmp(family, "token_permute") == 0;
  std::string text = rank == 0 ? "" : std::to_string(rank) + "-D ";
  text += dtype_name(dtype);
  if (permutes) {
    text += backward != 0 ? " unpermute" : " permute";
  } else if (strcmp(family, "compute_delta") != 0) {
    text += backward != 0 ? " backward" : " forward";
  }
  if (rank != 0 && !permutes) {
    text += " causal " + mask_text(causal, rank);
  }
  return text;
}

int32_t fail_kind(const Request& request) {
  std::set<std::string> held;
  find(request.family, [&](const Unit&, const KernelEntry& entry) {
    const KernelInfo& info = entry.info;
    held.insert(kind_text(request.family, info.backward, info.rank, info.dtype, info.causal));
    return false;
  });
  return fail(NATTEN_E_UNSUPPORTED, "%s: this build (variant %s) has no %s kernel for %s; it has %s", request.op,
              variant, request.family,
              kind_text(request.family, request.backward, request.rank, request.dtype, request.causal).c_str(),
              join(held).c_str());
}

int32_t fail_device(const Request& request, const Device& device) {
  std::set<std::string> codes;
  std::set<std::string> ranges;
  bool for_device = false;
  const char* suffix = "";
  find(request.family, [&](const Unit& unit, const KernelEntry& entry) {
    if (is_kind(entry.info, request)) {
      for (int32_t c = 0; c < unit.code_count; ++c) {
        codes.insert(code_text(unit.codes[c]));
        suffix = unit.codes[c].suffix == 0 ? "" : "a";
      }
      for_device |= in_range(entry.info, device.capability());
      const int32_t low = entry.info.sm_min, high = entry.info.sm_max;
      // The largest numbers stand for "no bound".
      ranges.insert("from " + capability_text(low / 10, low % 10) +
                    (high > 1000 ? "" : " to below " + capability_text(high / 10, high % 10)));
    }
    return false;
  });
  cudaDeviceProp properties;
  const bool named = cudaGetDeviceProperties(&properties, device.ordinal) == cudaSuccess;
  const std::string capability = capability_text(device.major, device.minor);
  const int32_t status = fail(
      NATTEN_E_DEVICE,
      "%s: no code for device %d (%s, compute capability %s) in this build (variant %s): its %s kernels are for "
      "devices %s, compiled to %s; ",
      request.op, device.ordinal, named ? properties.name : "unnamed", capability.c_str(), variant, request.family,
      join(ranges).c_str(), join(codes).c_str());
  if (for_device) {
    extend_message("rebuild with `nattenc build --variant %s --capability %s%s`", variant, capability.c_str(), suffix);
  } else {
    extend_message("no build has any for this device: use another backend");
  }
  return status;
}

// Kernels of the right kind have code for the device, and none takes the sizes.
int32_t fail_sizes(const Request& request, const Device& device) {
  std::set<std::string> usable;
  std::set<std::string> too_large;
  find(request.family, [&](const Unit& unit, const KernelEntry& entry) {
    const KernelInfo& info = entry.info;
    if (!is_kind(info, request) || !in_range(info, device.capability()) || !has_code(unit, info, device)) {
      return false;
    }
    std::string text;
    if (info.query_tile[0] != 0) {
      text = "tiles " + tile_text(info.query_tile) + " x " + tile_text(info.key_tile) + " ";
    }
    if (info.schedule >= 0) {
      text += schedule_text(info.family, info.schedule) + " ";
    }
    text += (request.exact_head_dim ? "head dim " : "head dim <= ") + std::to_string(info.max_head_dim);
    if (info.alignment > 1) {
      text += " in multiples of " + std::to_string(info.alignment);
    }
    if (info.shared_memory > device.shared_memory) {
      too_large.insert(text + " needs " + std::to_string(info.shared_memory));
    } else {
      usable.insert(text);
    }
    return false;
  });
  int32_t status = fail(
      NATTEN_E_UNSUPPORTED, "%s: no %s kernel for %s takes ", request.op, request.family,
      kind_text(request.family, request.backward, request.rank, request.dtype, request.causal).c_str());
  if (request.query_tile[0] != 0) {
    extend_message("query tiles of %s and key tiles of %s tokens, ", tile_text(request.query_tile).c_str(),
                   tile_text(request.key_tile).c_str());
  }
  if (request.schedule >= 0) {
    extend_message("%s, ", schedule_text(request.family, request.schedule).c_str());
  }
  extend_message("head dim %lld; on device %d there are: %s", static_cast<long long>(request.head_dim), device.ordinal,
                 usable.empty() ? "none" : join(usable).c_str());
  if (!too_large.empty()) {
    extend_message("; more than its %d bytes of shared memory: %s", device.shared_memory, join(too_large).c_str());
  }
  return status;
}

}  // namespace

bool runs_on(const Code& code, int major, int minor) {
  const int sm = code.major * 10 + code.minor;
  const int device = major * 10 + minor;
  if (code.suffix == 'a') {
    return sm == device;
  }
  if (code.suffix == 'f') {
    return code.major == major && code.minor <= minor;
  }
  if (code.ptx) {
    return sm <= device;
  }
  if (is_tegra(code.major, code.minor) || is_tegra(major, minor)) {
    return sm == device;
  }
  return code.major == major && code.minor <= minor;
}

int32_t require_built(const char* op, const char* family) {
  for (int32_t u = 0; u < unit_count; ++u) {
    if (is_family(units[u], family)) {
      return NATTEN_OK;
    }
  }
  const char* reason = "the build gives no reason";
  for (int32_t a = 0; a < absence_count; ++a) {
    if (strcmp(absences[a].family, family) == 0) {
      reason = absences[a].reason;
    }
  }
  return fail(NATTEN_E_BACKEND_NOT_BUILT, "%s: %s is not in this build (variant %s): %s", op, family, variant, reason);
}

int32_t select(const Request& request, const Device& device, const KernelEntry*& entry) {
  bool kind = false;
  bool code = false;
  entry = find(request.family, [&](const Unit& unit, const KernelEntry& candidate) {
    const KernelInfo& info = candidate.info;
    if (!is_kind(info, request)) {
      return false;
    }
    kind = true;
    if (!in_range(info, device.capability()) || !has_code(unit, info, device)) {
      return false;
    }
    code = true;
    return has_tiles(info, request) && has_head_dim(info, request) && is_aligned(info, request) &&
           info.shared_memory <= device.shared_memory;
  });
  if (entry != nullptr) {
    return NATTEN_OK;
  }
  return !kind ? fail_kind(request) : !code ? fail_device(request, device) : fail_sizes(request, device);
}

}  // namespace nattenc
