// What the bodies of the C entry points share, and those that have a file of their own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "natten_kernels.h"
#include "nattenc/registry.h"
#include "nattenc/runtime.h"
#include "nattenc/select.h"
#include "nattenc/status.h"

namespace nattenc {

// Pointers, or-ed: what of alignment they all have.
uintptr_t addresses(std::initializer_list<const void*> pointers);

// Bit i: dimension i is causal.
int32_t causal_bits(const int32_t* causal, int rank);

// What neighborhood attention over tiles asks of a kernel.
template <class Args>
Request tiled_request(const char* op, const char* family, int rank, const Args& args, int32_t backward) {
  Request request{};
  request.op = op;
  request.family = family;
  request.backward = backward;
  request.rank = rank;
  request.dtype = args.dtype;
  request.causal = causal_bits(args.causal, rank);
  for (int i = 0; i < rank; ++i) {
    request.query_tile[i] = args.query_tile[i];
    request.key_tile[i] = args.key_tile[i];
  }
  request.head_dim = args.dim;
  request.multiples[0] = args.dim;
  request.addresses = addresses({args.query, args.key, args.value});
  return request;
}

// What dense attention asks of a kernel.
template <class Args>
Request dense_request(const char* op, const char* family, const Args& args, int32_t backward) {
  Request request{};
  request.op = op;
  request.family = family;
  request.backward = backward;
  request.dtype = args.dtype;
  request.query_tile[0] = args.query_tile;
  request.key_tile[0] = args.key_tile;
  request.head_dim = std::max(args.dim, args.dim_value);
  request.multiples[0] = args.dim;
  request.multiples[1] = args.dim_value;
  request.addresses = addresses({args.query, args.key, args.value});
  return request;
}

// The kernel that serves a request on the current device.
int32_t pick(const Request& request, const KernelEntry*& entry);

// A backward pass that was given no delta: whether compute_delta can provide it, and its launch, into
// a workspace that must live until the pass has been launched. Sets `args.delta`.
int32_t check_delta(const char* op, const natten_compute_delta_args& args);
int32_t run_delta(const char* op, natten_compute_delta_args& args, Workspace& workspace);

// abi_fmha.cpp
int32_t fmha_forward(const char* op, const natten_fmha_forward_args* args);
int32_t fmha_backward(const char* op, const natten_fmha_backward_args* args);
int32_t hopper_fmha_forward(const char* op, const natten_fmha_forward_args* args);
int32_t hopper_fmha_backward(const char* op, const natten_fmha_backward_args* args);

// abi_hopper.cpp
int32_t hopper_fna_forward(const char* op, int rank, const natten_tiled_fna_forward_args* args);
int32_t hopper_fna_backward(const char* op, int rank, const natten_tiled_fna_backward_args* args);

// abi_blackwell.cpp
int32_t blackwell_fna_forward(const char* op, int rank, const natten_tiled_fna_forward_args* args);
int32_t blackwell_fna_backward(const char* op, int rank, const natten_tiled_fna_backward_args* args);
int32_t blackwell_fmha_forward(const char* op, const natten_fmha_forward_args* args);
int32_t blackwell_fmha_backward(const char* op, const natten_fmha_backward_args* args);

}  // namespace nattenc
