// Launchers of token permutation: upstream's kernel class, launched by us, because its own host
// function prints its errors. One entry per vector width; abi.cpp picks the widest that fits.
#pragma once

#include <cutlass/device_kernel.h>

#include <iostream>  // upstream's kernel header prints from a function that we never call
#include <type_traits>

#include <natten/cuda/tokperm/layouts.hpp>
#include <natten/cuda/tokperm/token_permute_kernel.cuh>

#include "nattenc/registry.h"
#include "nattenc/runtime.h"

namespace nattenc {

template <int rank>
auto token_dim(const int32_t (&numbers)[3]) {
  if constexpr (rank == 1) {
    return cute::make_tuple(numbers[0]);
  } else if constexpr (rank == 2) {
    return cute::make_tuple(numbers[0], numbers[1]);
  } else {
    return cute::make_tuple(numbers[0], numbers[1], numbers[2]);
  }
}

template <class Element, int rank, bool unpermute, int vector>
int32_t launch_token_permute(const natten_token_permute_args& args, const KernelInfo& info) {
  namespace tokperm = natten::tokperm;
  using Spatial = tokperm::utils::make_tuple_type<rank, int>;
  using Tiled = tokperm::utils::make_tuple_type<rank * 3, int>;
  using Kernel = tokperm::kernel::TokenPermuteKernel<std::conditional_t<unpermute, Tiled, Spatial>,
                                                     std::conditional_t<unpermute, Spatial, Tiled>, Element, Element,
                                                     unpermute, vector>;

  const auto tokens = token_dim<rank>(args.token_layout);
  const auto tile = token_dim<rank>(args.tile);
  const auto dilation = token_dim<rank>(args.dilation);
  const auto rest = cute::ceil_div(cute::ceil_div(tokens, tile), dilation);

  bool padded = false;
  for (int i = 0; i < rank; ++i) {
    padded |= args.token_layout[i] % (args.tile[i] * args.dilation[i]) != 0;
  }

  const auto spatial_shape = cute::make_tuple(args.batch, tokens, args.heads, args.dim);
  const auto spatial_stride = tokperm::utils::make_torch_contiguous_stride(spatial_shape);
  const auto tiled = tokperm::make_token_permuted_layout(rest, tile, dilation, args.batch, args.heads, args.dim,
                                                         args.flip_tiled_dims != 0);

  auto* const in = static_cast<Element*>(const_cast<void*>(args.in));
  auto* const out = static_cast<Element*>(args.out);
  typename Kernel::Params params = [&] {
    if constexpr (unpermute) {
      return typename Kernel::Params{tiled.shape(),  spatial_shape, in,   out,      tiled.stride(),
                                     spatial_stride, rest,          tile, dilation, padded};
    } else {
      return typename Kernel::Params{spatial_shape,  tiled.shape(), in,   out,      spatial_stride,
                                     tiled.stride(), rest,          tile, dilation, padded};
    }
  }();
  return launch(info.name, reinterpret_cast<const void*>(&cutlass::device_kernel<Kernel>),
                Kernel::get_grid_shape(params), Kernel::get_block_shape(), Kernel::SharedStorageSize, &params,
                args.stream);
}

struct TokenPermuteRow {
  const char* name;
  int32_t dtype;
  int32_t sm_min, sm_max;
};

template <class Element, int rank, bool unpermute, int vector>
constexpr KernelEntry token_permute_entry(const TokenPermuteRow& row) {
  KernelInfo info = kernel_info("token_permute", row.name, unpermute, rank, row.dtype, 0);
  info.alignment = vector;
  info.sm_min = row.sm_min;
  info.sm_max = row.sm_max;
  return {info, &launch_token_permute<Element, rank, unpermute, vector>};
}

}  // namespace nattenc
