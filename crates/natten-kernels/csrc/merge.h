// What the entry points of the backend `merge` hand to its launchers.
#pragma once

#include <cstdint>

#include "natten_kernels_merge.h"

namespace nattenc {

// As many parts as a kernel's parameters hold.
constexpr int32_t most_parts = 32;

// One call: one of the two. The registry's `Launcher` has no member for it, as every unit includes that header
// and another text of it would compile all of them anew; so it goes by the name of compute_delta's
// arguments, of which none is set.
struct MergeCall : natten_compute_delta_args {
  explicit MergeCall(const natten_merge_attentions_args& args) : natten_compute_delta_args{}, merge(&args) {}
  explicit MergeCall(const natten_add_gradients_args& args) : natten_compute_delta_args{}, add(&args) {}

  const natten_merge_attentions_args* merge = nullptr;
  const natten_add_gradients_args* add = nullptr;
};

}  // namespace nattenc
