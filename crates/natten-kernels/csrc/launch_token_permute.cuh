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

template <class Params, class = void>
constexpr bool is_told_of_padding = false;

template <class Params>
constexpr bool is_told_of_padding<Params, std::void_t<decltype(Params::has_padding)>> = true;

// Before 0.21.7 a kernel looks at every token whether it is padding; since then it is told whether any is.
template <class Params, class... Members>
Params permute_params(bool padded, const Members&... members) {
  if constexpr (is_told_of_padding<Params>) {
    return {members..., padded};
  } else {
    const Params params{members...};
    // Compiles where there is no parameter beside these nine.
    [[maybe_unused]] const auto& [m1, m2, m3, m4, m5, m6, m7, m8, m9] = params;
    return params;
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
  using Params = typename Kernel::Params;

  const auto tokens = token_dim<rank>(args.token_layout);
  const auto tile = token_dim<rank>(args.tile);
  const auto dilation = token_dim<rank>(args.dilation);
  const auto rest = cute::ceil_div(cute::ceil_div(tokens, tile), dilation);

  bool padded = false;
  for (int i = 0; i < rank; ++i) {
    padded |= args.token_layout[i] % (args.tile[i] * args.dilation[i]) != 0;
  }

  // Before 0.21.7 a kernel takes heads one by one, and each would have to be a multiple of the vector. A token's heads
  // are contiguous on both sides, so there they are one long head.
  const int heads = is_told_of_padding<Params> ? args.heads : 1;
  const int dim = is_told_of_padding<Params> ? args.dim : args.heads * args.dim;
  const auto spatial_shape = cute::make_tuple(args.batch, tokens, heads, dim);
  const auto spatial_stride = tokperm::utils::make_torch_contiguous_stride(spatial_shape);
  const auto tiled = tokperm::make_token_permuted_layout(rest, tile, dilation, args.batch, heads, dim,
                                                         args.flip_tiled_dims != 0);

  auto* const in = static_cast<Element*>(const_cast<void*>(args.in));
  auto* const out = static_cast<Element*>(args.out);
  Params params = [&] {
    if constexpr (unpermute) {
      return permute_params<Params>(padded, tiled.shape(), spatial_shape, in, out, tiled.stride(), spatial_stride,
                                    rest, tile, dilation);
    } else {
      return permute_params<Params>(padded, spatial_shape, tiled.shape(), in, out, spatial_stride, tiled.stride(),
                                    rest, tile, dilation);
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
