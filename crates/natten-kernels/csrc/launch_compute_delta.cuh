// Launcher of compute_delta: upstream's kernel class, launched by us, because its device layer
// swallows the CUDA error of a failed launch.
#pragma once

#include <cutlass/device_kernel.h>
#include <natten/cuda/reduction/fmha_kernel_bwd_sum_OdO.hpp>

#include "nattenc/registry.h"
#include "nattenc/runtime.h"

namespace nattenc {

template <class Element>
int32_t launch_compute_delta(const natten_compute_delta_args& args, const KernelInfo& info) {
  using Shape = cute::tuple<int, int, int, int>;
  using Kernel = cutlass::fmha::kernel::FmhaKernelBwdSumOdO<Shape, Element, float>;

  const int row = args.heads * args.dim;
  const auto tensor = cute::make_stride(static_cast<int64_t>(row) * args.seqlen, args.dim, row, cute::_1{});
  const auto sums = cute::make_stride(static_cast<int64_t>(args.heads) * args.seqlen, cute::_1{}, args.heads);
  const typename Kernel::Arguments arguments{cute::make_tuple(args.batch, args.heads, args.seqlen, args.dim),
                                             static_cast<const Element*>(args.out),
                                             tensor,
                                             static_cast<const Element*>(args.grad_out),
                                             tensor,
                                             args.delta,
                                             sums};
  if (!Kernel::can_implement(arguments)) {
    return fail(NATTEN_E_CUTLASS, "%s: can_implement refused dim %d", info.name, args.dim);
  }
  auto params = Kernel::to_underlying_arguments(arguments, nullptr);
  return launch(info.name, reinterpret_cast<const void*>(&cutlass::device_kernel<Kernel>),
                Kernel::get_grid_shape(params), Kernel::get_block_shape(), Kernel::SharedStorageSize, &params,
                args.stream);
}

struct ComputeDeltaRow {
  const char* name;
  int32_t dtype;
  int32_t sm_min, sm_max;
  int32_t alignment;
};

template <class Element>
constexpr KernelEntry compute_delta_entry(const ComputeDeltaRow& row) {
  KernelInfo info = kernel_info("compute_delta", row.name, 0, 0, row.dtype, 0);
  info.alignment = row.alignment;
  info.sm_min = row.sm_min;
  info.sm_max = row.sm_max;
  return {info, &launch_compute_delta<Element>};
}

}  // namespace nattenc
