// Tests of the C ABI's host side over a made-up CUDA runtime and made-up kernels: which kernel is
// picked on which device, what is refused with which words, and the order of CUDA calls. Prints one
// line per failed claim; exit status 1 if there is one.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "natten_kernels.h"
#include "nattenc/registry.h"
#include "nattenc/runtime.h"
#include "nattenc/select.h"

// ---- the runtime ------------------------------------------------------------------------------

namespace {

struct Runtime {
  int ordinal = 0;  // a new one per case: attributes are cached per device
  int major = 9, minor = 0, shared_memory = 232448;
  cudaError_t last = cudaSuccess;
  std::string calls;        // in order, a word each
  std::string failing;      // the call that fails
  cudaError_t error = cudaErrorInvalidValue;
} runtime;

cudaError_t called(const char* name) {
  runtime.calls += std::string(runtime.calls.empty() ? "" : " ") + name;
  if (runtime.failing == name) {
    runtime.last = runtime.error;
    return runtime.error;
  }
  return cudaSuccess;
}

int failures = 0;
std::string context;

void claim(bool holds, const std::string& what) {
  if (!holds) {
    ++failures;
    printf("FAILED %s: %s\n", context.c_str(), what.c_str());
  }
}

void equal(const std::string& got, const std::string& want) { claim(got == want, "got `" + got + "`, want `" + want + "`"); }

void answers(int32_t status, int32_t want, const char* message) {
  const std::string got = status == NATTEN_OK ? "" : natten_last_error();
  claim(status == want, "status " + std::to_string(status) + ", want " + std::to_string(want) + ": " + got);
  claim(got.find(message) != std::string::npos, "message `" + got + "` has no `" + message + "`");
}

}  // namespace

cudaError_t cudaGetDevice(int* device) {
  *device = runtime.ordinal;
  return runtime.failing == "device" ? cudaErrorInsufficientDriver : cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor   ? runtime.major
           : attribute == cudaDevAttrComputeCapabilityMinor ? runtime.minor
                                                            : runtime.shared_memory;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  strcpy(properties->name, "Paper GPU");
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  const cudaError_t last = runtime.last;
  runtime.last = cudaSuccess;
  return last;
}
cudaError_t cudaPeekAtLastError() { return runtime.last; }
const char* cudaGetErrorName(cudaError_t error) { return error == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "cudaErrorOther"; }
const char* cudaGetErrorString(cudaError_t error) { return error == cudaErrorIllegalAddress ? "illegal address" : "another error"; }
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return called("attribute"); }
cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t) {
  return called(static_cast<const char*>(function));
}
cudaError_t cudaMallocAsync(void** pointer, size_t, cudaStream_t) {
  const cudaError_t error = called("malloc");
  *pointer = error == cudaSuccess ? malloc(1) : nullptr;
  return error;
}
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t) { return called("memset"); }
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) {
  free(pointer);
  return called("free");
}

// ---- the build --------------------------------------------------------------------------------

namespace nattenc {
namespace {

// "Launches" by name, with a workspace as real launchers have it.
template <class Args>
int32_t run(const Args& args, const KernelInfo& info) {
  Workspace workspace(args.allocator, args.stream);
  if (info.max_head_dim == 65536) {
    NATTENC_TRY(workspace.allocate(info.name, 64, info.backward != 0));
  }
  int parameter = 0;
  NATTENC_TRY(launch(info.name, info.name, {1, 1, 1}, {1, 1, 1}, static_cast<size_t>(info.shared_memory), &parameter,
                     args.stream));
  return workspace.release();
}

template <class Args>
int32_t run_plain(const Args& args, const KernelInfo& info) {
  int parameter = 0;
  return launch(info.name, info.name, {1, 1, 1}, {1, 1, 1}, 0, &parameter, args.stream);
}

std::function<void()> foreign_body;

int32_t run_foreign(const natten_reference_forward_args&, const KernelInfo& info) {
  return ForeignLaunch(info.name).run(foreign_body);
}

constexpr KernelInfo fna(const char* name, int32_t backward, int32_t query, int32_t key, int32_t dim, int32_t smem,
                         int32_t sm_min, int32_t sm_max) {
  KernelInfo info = kernel_info("fna", name, backward, 2, NATTEN_FLOAT16, 0);
  info.query_tile[0] = query;
  info.key_tile[0] = key;
  info.max_head_dim = dim;
  info.alignment = 8;
  info.shared_memory = smem;
  info.sm_min = sm_min;
  info.sm_max = sm_max;
  return info;
}

constexpr KernelInfo permute(const char* name, int32_t alignment) {
  KernelInfo info = kernel_info("token_permute", name, 0, 1, NATTEN_FLOAT16, 0);
  info.alignment = alignment;
  info.sm_max = 65535;
  return info;
}

constexpr KernelInfo any_device(KernelInfo info, int32_t alignment, int32_t max_head_dim) {
  info.alignment = alignment;
  info.max_head_dim = max_head_dim;
  info.sm_max = 65535;
  return info;
}

constexpr auto forward = &run<natten_fna_forward_args>;
constexpr auto backward = &run<natten_fna_backward_args>;
constexpr KernelEntry fna_entries[] = {
    {fna("turing64", 0, 64, 64, 64, 32768, 75, 80), forward},
    {fna("d32", 0, 64, 64, 32, 32768, 80, 130), forward},
    {fna("d64", 0, 64, 64, 64, 32768, 80, 130), forward},
    {fna("big128", 0, 64, 128, 128, 131072, 80, 130), forward},
    {fna("any", 0, 64, 64, 65536, 65536, 80, 130), forward},
    {fna("b64", 1, 64, 64, 65536, 65536, 80, 130), backward},
};
constexpr KernelEntry permute_entries[] = {
    {permute("v8", 8), &run_plain<natten_token_permute_args>},
    {permute("v4", 4), &run_plain<natten_token_permute_args>},
    {permute("v1", 1), &run_plain<natten_token_permute_args>},
};
constexpr KernelEntry delta_entries[] = {
    {any_device(kernel_info("compute_delta", "delta", 0, 0, NATTEN_FLOAT16, 0), 2, INT32_MAX),
     &run_plain<natten_compute_delta_args>},
};
constexpr KernelEntry reference_entries[] = {
    {any_device(kernel_info("reference", "reference", 0, 1, NATTEN_FLOAT32, 0), 1, 1024), &run_foreign},
};
constexpr KernelInfo blackwell(KernelInfo info, const int32_t (&query)[3], const int32_t (&key)[3], int32_t dim,
                               int32_t schedule) {
  for (int i = 0; i < 3; ++i) {
    info.query_tile[i] = query[i];
    info.key_tile[i] = key[i];
  }
  info.max_head_dim = dim;
  info.alignment = info.dtype == NATTEN_FLOAT16 ? 8 : 16;
  info.shared_memory = 200000;
  info.sm_min = 100;
  info.sm_max = 104;
  info.schedule = schedule;
  return info;
}

constexpr KernelInfo blackwell_fna(const char* name, int32_t dtype, const int32_t (&query)[3], const int32_t (&key)[3],
                                   int32_t dim, int32_t schedule) {
  return blackwell(kernel_info("blackwell_fna", name, 0, 2, dtype, 0), query, key, dim, schedule);
}

constexpr auto tiled_forward = &run<natten_tiled_fna_forward_args>;
constexpr KernelEntry blackwell_entries[] = {
    {blackwell_fna("s32", NATTEN_FLOAT16, {16, 16}, {16, 8}, 32, 0), tiled_forward},
    {blackwell_fna("s32p", NATTEN_FLOAT16, {16, 16}, {16, 8}, 32, 1), tiled_forward},
    {blackwell_fna("s32x", NATTEN_FLOAT16, {8, 32}, {8, 16}, 32, 0), tiled_forward},
    {blackwell_fna("s128", NATTEN_FLOAT16, {16, 16}, {16, 8}, 128, 0), tiled_forward},
    {blackwell_fna("s32q", NATTEN_FLOAT8_E4M3, {16, 16}, {16, 8}, 32, 0), tiled_forward},
};
constexpr KernelEntry blackwell_bwd_entries[] = {
    {blackwell(kernel_info("blackwell_fna_bwd", "sb", 1, 2, NATTEN_FLOAT16, 0), {16, 8}, {8, 16}, 128, -1),
     &run<natten_tiled_fna_backward_args>},
};
constexpr KernelEntry blackwell_fmha_entries[] = {
    {blackwell(kernel_info("blackwell_fmha", "m", 0, 0, NATTEN_FLOAT16, 0), {256}, {128}, 128, 0),
     &run<natten_fmha_forward_args>},
    {blackwell(kernel_info("blackwell_fmha", "mp", 0, 0, NATTEN_FLOAT16, 0), {256}, {128}, 128, 1),
     &run<natten_fmha_forward_args>},
};
constexpr KernelEntry blackwell_fmha_bwd_entries[] = {
    {blackwell(kernel_info("blackwell_fmha_bwd", "mb", 1, 0, NATTEN_FLOAT16, 0), {128}, {128}, 128, -1),
     &run<natten_fmha_backward_args>},
};
constexpr UnitEntries blackwell_units[] = {{"blackwell_fna", blackwell_entries, 5},
                                           {"blackwell_fna_bwd", blackwell_bwd_entries, 1},
                                           {"blackwell_fmha", blackwell_fmha_entries, 2},
                                           {"blackwell_fmha_bwd", blackwell_fmha_bwd_entries, 1}};
constexpr Code blackwell_codes[] = {{10, 0, 'a', false}};
constexpr UnitEntries fna_unit = {"fna", fna_entries, 6};
constexpr UnitEntries permute_unit = {"token_permute", permute_entries, 3};
constexpr UnitEntries delta_unit = {"compute_delta", delta_entries, 1};
constexpr UnitEntries reference_unit = {"reference", reference_entries, 1};

Code codes[2];

void build_for(const Code& first, const Code& second) {
  codes[0] = first;
  codes[1] = second;
}

}  // namespace

const Unit units[] = {
    {&reference_unit, codes, 2}, {&fna_unit, codes, 2}, {&permute_unit, codes, 2}, {&delta_unit, codes, 2},
    {&blackwell_units[0], blackwell_codes, 1}, {&blackwell_units[1], blackwell_codes, 1},
    {&blackwell_units[2], blackwell_codes, 1}, {&blackwell_units[3], blackwell_codes, 1},
};
const int32_t unit_count = 8;
const Absence absences[] = {{"hopper_fna", "no 9.0a"}, {"fmha", "left out"}};
const int32_t absence_count = 2;
const char build_info[] = "{}";
const char variant[] = "cu130";

}  // namespace nattenc

// ---- problems ---------------------------------------------------------------------------------

namespace {

alignas(64) char memory[256];
void* const P = memory;
float* const F = reinterpret_cast<float*>(memory);

template <class Args>
Args sized() {
  Args args{};
  args.size = sizeof(Args);
  return args;
}

template <class Args>
Args fna_args(int rank) {
  Args args = sized<Args>();
  args.dtype = NATTEN_FLOAT16;
  args.query = args.key = args.value = P;
  args.out = P;
  args.logsumexp = F;
  args.batch = 2;
  args.heads = 4;
  args.dim = args.dim_value = 64;
  for (int i = 0; i < rank; ++i) {
    args.qkv_shape[i] = 16;
    args.window[i] = 5;
    args.stride[i] = args.dilation[i] = 1;
    args.query_tile[i] = args.key_tile[i] = rank == 1 ? 64 : rank == 2 ? 8 : 4;
  }
  return args;
}

natten_fna_forward_args forward_args(int rank = 2) { return fna_args<natten_fna_forward_args>(rank); }

natten_fna_backward_args backward_args(int rank = 2) {
  auto args = fna_args<natten_fna_backward_args>(rank);
  args.grad_out = args.grad_query = args.grad_key = args.grad_value = P;
  args.key_splits[0] = args.key_splits[1] = args.key_splits[2] = 1;
  return args;
}

template <class Args>
Args reference_args(int rank) {
  Args args = sized<Args>();
  args.dtype = NATTEN_FLOAT32;
  args.query = args.key = args.value = P;
  args.out = P;
  args.logsumexp = F;
  args.batch = 1;
  args.heads = 4;
  args.heads_kv = 2;
  args.dim = args.dim_value = 32;
  for (int i = 0; i < rank; ++i) {
    args.qkv_shape[i] = 8;
    args.window[i] = 3;
    args.stride[i] = args.dilation[i] = 1;
  }
  return args;
}

natten_reference_forward_args reference_forward_args(int rank = 1) {
  return reference_args<natten_reference_forward_args>(rank);
}

natten_reference_backward_args reference_backward_args(int rank = 1) {
  auto args = reference_args<natten_reference_backward_args>(rank);
  args.grad_out = args.grad_query = args.grad_key = args.grad_value = P;
  return args;
}

natten_token_permute_args permute_args(int rank = 1) {
  auto args = sized<natten_token_permute_args>();
  args.dtype = NATTEN_FLOAT16;
  args.in = args.out = P;
  args.batch = 1;
  args.heads = 2;
  args.dim = 32;
  args.seqlen = 1;
  for (int i = 0; i < rank; ++i) {
    args.token_layout[i] = 7;
    args.tile[i] = 4;
    args.dilation[i] = 1;
    args.seqlen *= 8;
  }
  return args;
}

// 32 x 48 tokens, dilated by 1 and 2: groups of 32 x 24 in a batch of 4.
template <class Args>
Args tiled_args(int32_t query0, int32_t query1, int32_t key0, int32_t key1) {
  Args args = sized<Args>();
  args.dtype = NATTEN_FLOAT16;
  args.query = args.key = args.value = P;
  args.out = P;
  args.logsumexp = F;
  args.batch = 4;
  args.heads = 4;
  args.heads_kv = 2;
  args.dim = 32;
  args.scale = 0.5f;
  const int32_t extent[] = {32, 48}, dilation[] = {1, 2}, query[] = {query0, query1}, key[] = {key0, key1};
  args.seqlen_q = args.seqlen_kv = 1;
  for (int i = 0; i < 2; ++i) {
    args.qkv_shape[i] = extent[i];
    args.dilation[i] = dilation[i];
    args.window[i] = 5;
    args.stride[i] = 1;
    args.query_tile[i] = query[i];
    args.key_tile[i] = key[i];
    const int32_t tokens = extent[i] / dilation[i];
    args.q_shape[i] = (tokens + query[i] - 1) / query[i] * query[i];
    args.kv_shape[i] = (tokens + key[i] - 1) / key[i] * key[i];
    args.seqlen_q *= args.q_shape[i];
    args.seqlen_kv *= args.kv_shape[i];
  }
  return args;
}

template <class Args>
void unit_scales(Args& args) {
  args.scale_q = args.scale_k = args.scale_v = args.inv_scale_o = 1;
}

natten_tiled_fna_forward_args blackwell_args() {
  auto args = tiled_args<natten_tiled_fna_forward_args>(16, 16, 16, 8);
  unit_scales(args);
  return args;
}

natten_tiled_fna_backward_args blackwell_backward_args() {
  auto args = tiled_args<natten_tiled_fna_backward_args>(16, 8, 8, 16);
  args.grad_out = args.grad_query = args.grad_key = args.grad_value = P;
  return args;
}

template <class Args>
Args fmha_args(int32_t query_tile, int32_t key_tile) {
  Args args = sized<Args>();
  args.dtype = NATTEN_FLOAT16;
  args.query = args.key = args.value = P;
  args.out = P;
  args.logsumexp = F;
  args.batch = 2;
  args.seqlen_q = 100;
  args.seqlen_kv = 200;
  args.heads = 4;
  args.heads_kv = 1;
  args.dim = args.dim_value = 64;
  args.scale = 0.125f;
  args.query_tile = query_tile;
  args.key_tile = key_tile;
  return args;
}

natten_fmha_forward_args blackwell_fmha_args() {
  auto args = fmha_args<natten_fmha_forward_args>(256, 128);
  unit_scales(args);
  return args;
}

natten_fmha_backward_args blackwell_fmha_backward_args() {
  auto args = fmha_args<natten_fmha_backward_args>(128, 128);
  args.grad_out = args.grad_query = args.grad_key = args.grad_value = P;
  return args;
}

natten_compute_delta_args delta_args() {
  auto args = sized<natten_compute_delta_args>();
  args.dtype = NATTEN_FLOAT16;
  args.out = args.grad_out = P;
  args.delta = F;
  args.batch = 1;
  args.seqlen = 4;
  args.heads = 2;
  args.dim = 32;
  return args;
}

void device(int major, int minor, int shared_memory) {
  const int next = runtime.ordinal + 1;
  runtime = Runtime{};
  runtime.ordinal = next;
  runtime.major = major;
  runtime.minor = minor;
  runtime.shared_memory = shared_memory;
}

void hopper() {
  device(9, 0, 232448);
  nattenc::build_for({8, 0, 0, false}, {9, 0, 0, false});
}

// ---- claims -----------------------------------------------------------------------------------

void code_runs_where_cuda_says() {
  const struct {
    nattenc::Code code;
    const char* devices;
  } rows[] = {
      {{8, 0, 0, false}, "80 86 89"},           {{8, 6, 0, false}, "86 89"},
      {{8, 7, 0, false}, "87"},                 {{9, 0, 0, false}, "90"},
      {{9, 0, 'a', false}, "90"},               {{10, 0, 'a', false}, "100"},
      {{10, 0, 'f', false}, "100 103"},         {{10, 3, 'a', false}, "103"},
      {{10, 0, 0, false}, "100 103"},           {{12, 0, 0, false}, "120 121"},
      {{9, 0, 0, true}, "90 100 103 120 121 130"}, {{9, 0, 'a', true}, "90"},
      {{8, 0, 0, true}, "80 86 87 89 90 100 103 120 121 130"},
  };
  for (const auto& row : rows) {
    std::string devices;
    for (const int sm : {70, 75, 80, 86, 87, 89, 90, 100, 103, 120, 121, 130}) {
      if (nattenc::runs_on(row.code, sm / 10, sm % 10)) {
        devices += (devices.empty() ? "" : " ") + std::to_string(sm);
      }
    }
    context = "code " + std::to_string(row.code.major) + "." + std::to_string(row.code.minor);
    equal(devices, row.devices);
  }
}

void the_first_kernel_that_takes_the_problem_is_launched() {
  const struct {
    int major, minor, shared_memory;
    nattenc::Code code;
    int dim, key_tile;
    int32_t status;
    const char* says;  // the kernel launched, or part of the message
  } rows[] = {
      {9, 0, 232448, {9, 0, 0, false}, 32, 8, NATTEN_OK, "d32"},
      {9, 0, 232448, {9, 0, 0, false}, 40, 8, NATTEN_OK, "d64"},
      {9, 0, 232448, {9, 0, 0, false}, 72, 8, NATTEN_OK, "malloc attribute any free"},
      {9, 0, 232448, {9, 0, 0, false}, 128, 16, NATTEN_OK, "attribute big128"},
      {8, 6, 101376, {8, 0, 0, false}, 64, 8, NATTEN_OK, "d64"},
      {8, 9, 101376, {8, 0, 0, false}, 128, 16, NATTEN_E_UNSUPPORTED,
       "more than its 101376 bytes of shared memory: tiles 64 x 128 head dim <= 128 in multiples of 8 needs 131072"},
      {9, 0, 232448, {9, 0, 0, false}, 64, 32, NATTEN_E_UNSUPPORTED,
       "query tiles of 64 and key tiles of 256 tokens, head dim 64; on device"},
      {9, 0, 232448, {9, 0, 0, false}, 136, 16, NATTEN_E_UNSUPPORTED, "tiles 64 x 128 head dim <= 128"},
      {7, 5, 65536, {7, 5, 0, false}, 64, 8, NATTEN_OK, "turing64"},
      // The driver would run this code, but outside of the kernel's range its body is empty.
      {9, 0, 232448, {7, 5, 0, true}, 64, 8, NATTEN_E_DEVICE, "compiled to 7.5 PTX; rebuild"},
      {7, 0, 98304, {8, 0, 0, false}, 64, 8, NATTEN_E_DEVICE,
       "(Paper GPU, compute capability 7.0) in this build (variant cu130)"},
      {8, 7, 166912, {8, 0, 0, false}, 64, 8, NATTEN_E_DEVICE, "`nattenc build --variant cu130 --capability 8.7`"},
      {12, 1, 101376, {9, 0, 0, false}, 64, 8, NATTEN_E_DEVICE, "compiled to 9.0; rebuild"},
      {12, 1, 101376, {9, 0, 0, true}, 64, 8, NATTEN_OK, "d64"},
      {12, 0, 101376, {10, 0, 'a', false}, 64, 8, NATTEN_E_DEVICE, "compiled to 10.0a; rebuild"},
      {13, 0, 232448, {9, 0, 0, true}, 64, 8, NATTEN_E_DEVICE, "are for devices from 7.5 to below 8.0, from 8.0 to below 13.0"},
  };
  for (const auto& row : rows) {
    context = "fna on " + std::to_string(row.major) + "." + std::to_string(row.minor) + " dim " + std::to_string(row.dim);
    device(row.major, row.minor, row.shared_memory);
    nattenc::build_for(row.code, row.code);
    auto args = forward_args();
    args.dim = args.dim_value = row.dim;
    args.key_tile[1] = row.key_tile;
    const int32_t status = natten_na2d_forward(&args);
    answers(status, row.status, row.status == NATTEN_OK ? "" : row.says);
    if (row.status == NATTEN_OK) {
      equal(runtime.calls, row.says);
    }
  }
}

void what_the_build_lacks_is_told_apart() {
  context = "lacks";
  hopper();
  auto args = forward_args();
  args.dtype = NATTEN_BFLOAT16;
  answers(natten_na2d_forward(&args), NATTEN_E_UNSUPPORTED,
          "no fna kernel for 2-D bfloat16 forward causal 00; it has 2-D float16 backward causal 00, 2-D float16 forward");
  args = forward_args();
  args.causal[1] = 1;
  answers(natten_na2d_forward(&args), NATTEN_E_UNSUPPORTED, "2-D float16 forward causal 01; it has");
  auto fp8 = permute_args();
  fp8.dtype = NATTEN_FLOAT8_E4M3;
  answers(natten_token_permute_1d(&fp8), NATTEN_E_UNSUPPORTED, "1-D float8_e4m3 permute; it has 1-D float16 permute");
  auto unpermute = permute_args();
  answers(natten_token_unpermute_1d(&unpermute), NATTEN_E_UNSUPPORTED, "1-D float16 unpermute");
  auto tiled = sized<natten_tiled_fna_forward_args>();
  auto tiled_backward = sized<natten_tiled_fna_backward_args>();
  answers(natten_hopper_na2d_forward(&tiled), NATTEN_E_BACKEND_NOT_BUILT,
          "natten_hopper_na2d_forward: hopper_fna is not in this build (variant cu130): no 9.0a");
  answers(natten_hopper_na1d_backward(&tiled_backward), NATTEN_E_BACKEND_NOT_BUILT,
          "the build gives no reason");
  auto delta = delta_args();
  delta.dim = 33;
  answers(natten_compute_delta(&delta), NATTEN_E_UNSUPPORTED, "in multiples of 2");
  runtime.failing = "device";
  answers(natten_na2d_forward(&(args = forward_args())), NATTEN_E_CUDA, "natten_na2d_forward: cudaGetDevice: ");
}

void permutation_takes_the_widest_vector_that_fits() {
  const struct {
    int dim, offset;
    const char* kernel;
  } rows[] = {{32, 0, "v8"}, {34, 0, "v4"}, {33, 0, "v1"}, {32, 8, "v4"}, {32, 2, "v1"}};
  for (const auto& row : rows) {
    context = "permute dim " + std::to_string(row.dim) + " offset " + std::to_string(row.offset);
    hopper();
    auto args = permute_args();
    args.dim = row.dim;
    args.out = memory + row.offset;
    answers(natten_token_permute_1d(&args), NATTEN_OK, "");
    equal(runtime.calls, row.kernel);
  }
}

void* counted_alloc(void* counter, size_t, int32_t zero, void*) {
  called(zero != 0 ? "alloc0" : "alloc");
  ++*static_cast<int*>(counter);
  return memory;
}
void* refusing_alloc(void*, size_t, int32_t, void*) { return nullptr; }
void counted_free(void* counter, void*, void*) {
  called("release");
  --*static_cast<int*>(counter);
}

void workspace_is_freed_after_the_last_launch_whatever_happens() {
  const struct {
    const char* failing;
    cudaError_t error;
    int32_t status;
    const char* calls;
    const char* message;
  } rows[] = {
      {"", cudaSuccess, NATTEN_OK, "malloc delta malloc memset attribute b64 free free", ""},
      {"malloc", cudaErrorMemoryAllocation, NATTEN_E_OUT_OF_MEMORY, "malloc", "delta: cudaMallocAsync: "},
      {"delta", cudaErrorInvalidValue, NATTEN_E_CUDA, "malloc delta free", "delta: cudaLaunchKernel: another error"},
      {"memset", cudaErrorInvalidValue, NATTEN_E_CUDA, "malloc delta malloc memset free free", "b64: cudaMemsetAsync: "},
      {"attribute", cudaErrorInvalidValue, NATTEN_E_CUDA, "malloc delta malloc memset attribute free free",
       "b64: cudaFuncSetAttribute: another error"},
      {"b64", cudaErrorNoKernelImageForDevice, NATTEN_E_CUDA, "malloc delta malloc memset attribute b64 free free",
       "b64: cudaLaunchKernel: another error (cudaErrorOther), grid (1, 1, 1), 65536 bytes"},
      {"free", cudaErrorIllegalAddress, NATTEN_E_CUDA, "malloc delta malloc memset attribute b64 free free",
       "b64: cudaFreeAsync: illegal address"},
  };
  for (const auto& row : rows) {
    context = std::string("workspace, failing ") + row.failing;
    hopper();
    runtime.failing = row.failing;
    runtime.error = row.error;
    const auto args = backward_args();
    answers(natten_na2d_backward(&args), row.status, row.message);
    equal(runtime.calls, row.calls);
  }

  for (const char* failing : {"", "b64"}) {
    context = std::string("own allocator, failing ") + failing;
    hopper();
    runtime.failing = failing;
    int held = 0;
    auto args = backward_args();
    args.allocator = {&held, counted_alloc, counted_free};
    answers(natten_na2d_backward(&args), *failing == 0 ? NATTEN_OK : NATTEN_E_CUDA, "");
    equal(runtime.calls, "alloc delta alloc0 attribute b64 release release");
    claim(held == 0, "a block is not freed");
  }
  context = "refusing allocator";
  auto args = backward_args();
  args.delta = F;
  args.allocator = {nullptr, refusing_alloc, counted_free};
  answers(natten_na2d_backward(&args), NATTEN_E_OUT_OF_MEMORY, "b64: the allocator returned NULL for 64 bytes");
}

void errors_of_earlier_work_are_not_taken_for_ours() {
  context = "earlier error";
  hopper();
  const auto args = forward_args();
  runtime.last = cudaErrorInvalidValue;
  answers(natten_na2d_forward(&args), NATTEN_OK, "");
  claim(runtime.last == cudaErrorInvalidValue, "the caller's error was taken away");

  hopper();
  runtime.last = runtime.error = cudaErrorIllegalAddress;
  runtime.failing = "d64";
  answers(natten_na2d_forward(&args), NATTEN_E_CUDA, "the same error was pending before this call");
  claim(runtime.last == cudaSuccess, "a reported error is left behind");

  const auto reference = reference_forward_args();
  hopper();
  runtime.last = cudaErrorInvalidValue;
  nattenc::foreign_body = [] {};
  answers(natten_reference_na1d_forward(&reference), NATTEN_OK, "");
  nattenc::foreign_body = [] { runtime.last = cudaErrorIllegalAddress; };
  answers(natten_reference_na1d_forward(&reference), NATTEN_E_CUDA, "reference: kernel launch: illegal address");
  runtime.last = cudaErrorIllegalAddress;
  answers(natten_reference_na1d_forward(&reference), NATTEN_E_CUDA, "; cudaErrorIllegalAddress was pending before");
}

void no_exception_crosses() {
  const struct {
    std::function<void()> body;
    int32_t status;
    const char* message;
  } rows[] = {
      {[] { throw std::runtime_error("\"too many\""); }, NATTEN_E_INTERNAL, "natten refused: too many"},
      {[] { throw std::runtime_error("NATTEN failure: CUDA runtime error: bad grid at: 7"); }, NATTEN_E_CUDA,
       "kernel launch: bad grid at: 7"},
      {[] { throw std::bad_alloc(); }, NATTEN_E_OUT_OF_MEMORY, "out of host memory"},
      {[] { throw 7; }, NATTEN_E_INTERNAL, "an exception of unknown type"},
      {[] { throw std::runtime_error(std::string(10000, 'x')); }, NATTEN_E_INTERNAL, "xxxx"},
  };
  const auto args = reference_forward_args();
  for (const auto& row : rows) {
    context = std::string("exception ") + row.message;
    hopper();
    nattenc::foreign_body = row.body;
    answers(natten_reference_na1d_forward(&args), row.status, row.message);
  }
}

void messages_belong_to_their_thread() {
  context = "threads";
  natten_na2d_forward(nullptr);
  std::string other = "unset";
  std::thread([&] { other = natten_last_error(); }).join();
  equal(other, "");
  equal(natten_last_error(), "natten_na2d_forward: args is NULL");
}

template <class Args>
void refuses(int32_t (*entry)(const Args*), const char* name) {
  context = name;
  answers(entry(nullptr), NATTEN_E_INVALID_ARGUMENT, ": args is NULL");
  Args args{};
  args.size = 4;
  answers(entry(&args), NATTEN_E_INVALID_ARGUMENT, (std::string(name) + ": args->size is 4").c_str());
}

void every_entry_refuses_null_and_a_wrong_size() {
#define REFUSES(entry) refuses(&entry, #entry)
#define REFUSES_RANKED(prefix, suffix) \
  REFUSES(prefix##1d##suffix), REFUSES(prefix##2d##suffix), REFUSES(prefix##3d##suffix)
  REFUSES_RANKED(natten_na, _forward);
  REFUSES_RANKED(natten_na, _backward);
  REFUSES_RANKED(natten_reference_na, _forward);
  REFUSES_RANKED(natten_reference_na, _backward);
  REFUSES_RANKED(natten_token_permute_, );
  REFUSES_RANKED(natten_token_unpermute_, );
  REFUSES(natten_compute_delta);
  REFUSES_RANKED(natten_hopper_na, _forward);
  REFUSES_RANKED(natten_hopper_na, _backward);
  REFUSES_RANKED(natten_blackwell_na, _forward);
  REFUSES_RANKED(natten_blackwell_na, _backward);
  REFUSES(natten_fmha_forward);
  REFUSES(natten_fmha_backward);
  REFUSES(natten_hopper_fmha_forward);
  REFUSES(natten_hopper_fmha_backward);
  REFUSES(natten_blackwell_fmha_forward);
  REFUSES(natten_blackwell_fmha_backward);
}

// Each row spoils one legal problem.
#define BAD(entry, make, edit, status, message) \
  do {                                          \
    auto a = make;                              \
    edit;                                       \
    context = #entry ": " #edit;                \
    runtime.calls.clear();                      \
    answers(entry(&a), status, message);        \
    equal(runtime.calls, "");                   \
  } while (false)
#define BAD_FORWARD(edit, message) BAD(natten_na2d_forward, forward_args(), edit, NATTEN_E_INVALID_ARGUMENT, message)
#define TOO_BIG_FORWARD(edit, message) BAD(natten_na2d_forward, forward_args(), edit, NATTEN_E_UNSUPPORTED, message)
#define BAD_BACKWARD(edit, message) BAD(natten_na2d_backward, backward_args(), edit, NATTEN_E_INVALID_ARGUMENT, message)
#define BAD_REFERENCE(edit, message) \
  BAD(natten_reference_na1d_forward, reference_forward_args(), edit, NATTEN_E_INVALID_ARGUMENT, message)
#define BAD_PERMUTE(edit, message) BAD(natten_token_permute_1d, permute_args(), edit, NATTEN_E_INVALID_ARGUMENT, message)

void bad_arguments_are_named_before_anything_runs() {
  hopper();
  BAD_FORWARD(a.dtype = 7, "dtype 7 is none");
  BAD_FORWARD(a.dtype = -1, "dtype -1 is none");
  BAD_FORWARD(a.batch = 0, "batch is 0");
  BAD_FORWARD(a.heads = -3, "heads is -3");
  BAD_FORWARD(a.dim = 36, "dim is 36, must be a multiple of 8 (16 bytes) for float16");
  BAD_FORWARD(a.dim_value = 4, "dim_value is 4");
  BAD_FORWARD(a.query = nullptr, "query is NULL");
  BAD_FORWARD(a.key = memory + 8, "not aligned to 16 bytes");
  BAD_FORWARD(a.out = nullptr, "out is NULL");
  BAD_FORWARD(a.logsumexp = reinterpret_cast<float*>(memory + 1), "not aligned to 4 bytes");
  BAD_FORWARD(a.window[1] = 1, "window[1] is 1, must be at least 2");
  BAD_FORWARD(a.window[1] = 17, "window[1] * dilation[1] is 17 * 1, greater than qkv_shape[1], 16");
  BAD_FORWARD(a.stride[0] = 0, "stride[0] is 0");
  BAD_FORWARD(a.stride[0] = 6, "stride[0] is 6, greater than window[0], 5");
  BAD_FORWARD(a.dilation[0] = 0, "dilation[0] is 0");
  BAD_FORWARD(a.dilation[0] = INT32_MAX, "window[0] * dilation[0] is 5 * 2147483647");
  BAD_FORWARD(a.causal[1] = 2, "causal[1] is 2");
  BAD_FORWARD(a.query_tile[1] = 0, "query_tile[1] is 0");
  BAD_FORWARD(a.qkv_shape[0] = -16, "qkv_shape[0] is -16");
  BAD_FORWARD(a.allocator.alloc = refusing_alloc, "allocator.free is NULL and the other is not");
  TOO_BIG_FORWARD(a.qkv_shape[0] = a.qkv_shape[1] = 100000, "batch * product of qkv_shape * heads is 80000000000");
  TOO_BIG_FORWARD(a.batch = 70000, "batch is 70000");
  TOO_BIG_FORWARD(a.heads = 70000, "heads * product of dilation is 70000");
  TOO_BIG_FORWARD(a.dim = 1 << 30, "heads * dim is 4294967296");
  BAD_BACKWARD(a.key_splits[0] = 0, "key_splits[0] is 0");
  BAD_BACKWARD(a.key_splits[0] = 3, "key_splits[0] is 3, and the dimension has 2 key tiles");
  BAD_BACKWARD(a.grad_key = nullptr, "grad_key is NULL");
  BAD_BACKWARD(a.logsumexp = nullptr, "logsumexp is NULL");
  BAD_BACKWARD(a.delta = reinterpret_cast<float*>(memory + 2), "delta is");
  BAD(natten_na2d_backward, backward_args(),
      (a.qkv_shape[0] = a.key_splits[0] = 32768, a.key_tile[0] = 1, a.key_tile[1] = 64), NATTEN_E_UNSUPPORTED,
      "product of key_splits is 32768");
  BAD_REFERENCE(a.heads_kv = 3, "heads is 4, must be a multiple of heads_kv, 3");
  BAD_REFERENCE(a.heads_kv = 8, "must be a multiple of heads_kv, 8");
  BAD_REFERENCE(a.num_extra_kv = -1, "num_extra_kv is -1");
  BAD_REFERENCE(a.logsumexp = nullptr, "logsumexp is NULL");
  BAD_REFERENCE(a.query = memory + 2, "not aligned to 4 bytes");
  BAD(natten_reference_na1d_forward, reference_forward_args(), a.batch = 40000, NATTEN_E_UNSUPPORTED,
      "batch * heads is 160000");
  BAD(natten_reference_na1d_forward, reference_forward_args(), a.num_extra_kv = INT32_MAX, NATTEN_E_UNSUPPORTED,
      "that key or value spans is");
  BAD(natten_reference_na1d_forward, reference_forward_args(), a.dim_value = 1025, NATTEN_E_UNSUPPORTED,
      "head dim 1025");
  BAD(natten_reference_na1d_backward, reference_backward_args(), a.grad_value = nullptr, NATTEN_E_INVALID_ARGUMENT,
      "grad_value is NULL");
  BAD_PERMUTE(a.seqlen = 7, "seqlen is 7, and token_layout padded to tile * dilation has 8 tokens");
  BAD_PERMUTE(a.flip_tiled_dims = 2, "flip_tiled_dims is 2");
  BAD_PERMUTE(a.tile[0] = 0, "tile[0] is 0");
  BAD_PERMUTE(a.in = memory + 1, "not aligned to 2 bytes");
  BAD(natten_token_permute_3d, permute_args(3), a.tile[0] = a.tile[1] = a.tile[2] = INT32_MAX, NATTEN_E_UNSUPPORTED,
      "the padded number of tokens is 9223372036854775807");
  BAD(natten_compute_delta, delta_args(), a.delta = nullptr, NATTEN_E_INVALID_ARGUMENT, "delta is NULL");
  BAD(natten_compute_delta, delta_args(), a.seqlen = INT32_MAX, NATTEN_E_UNSUPPORTED, "seqlen * heads * dim is");
  BAD(natten_compute_delta, delta_args(), a.heads = 65536, NATTEN_E_UNSUPPORTED, "heads is 65536");
}

void blackwell_kernels_are_told_apart_by_shape_and_schedule() {
  const struct {
    int major, minor, dtype, dim, persistent, query[2], key[2];
    int32_t status;
    const char* says;
  } rows[] = {
      {10, 0, NATTEN_FLOAT16, 32, 0, {16, 16}, {16, 8}, NATTEN_OK, "attribute s32"},
      {10, 0, NATTEN_FLOAT16, 8, 1, {16, 16}, {16, 8}, NATTEN_OK, "attribute s32p"},
      {10, 0, NATTEN_FLOAT16, 16, 0, {8, 32}, {8, 16}, NATTEN_OK, "attribute s32x"},
      {10, 0, NATTEN_FLOAT16, 40, 0, {16, 16}, {16, 8}, NATTEN_OK, "attribute s128"},
      {10, 0, NATTEN_FLOAT8_E4M3, 32, 0, {16, 16}, {16, 8}, NATTEN_OK, "attribute s32q"},
      // One size, another shape.
      {10, 0, NATTEN_FLOAT16, 32, 0, {16, 16}, {8, 16}, NATTEN_E_UNSUPPORTED,
       "query tiles of 16x16 and key tiles of 8x16 tokens, schedule 0, head dim 32; on device"},
      {10, 0, NATTEN_FLOAT16, 40, 1, {16, 16}, {16, 8}, NATTEN_E_UNSUPPORTED,
       "tiles 16x16 x 16x8 head dim <= 32 in multiples of 8 schedule 1"},
      {10, 0, NATTEN_FLOAT16, 136, 0, {16, 16}, {16, 8}, NATTEN_E_UNSUPPORTED, "head dim 136; on device"},
      {10, 0, NATTEN_FLOAT32, 32, 0, {16, 16}, {16, 8}, NATTEN_E_UNSUPPORTED,
       "no blackwell_fna kernel for 2-D float32 forward causal 00"},
      {9, 0, NATTEN_FLOAT16, 32, 0, {16, 16}, {16, 8}, NATTEN_E_DEVICE,
       "its blackwell_fna kernels are for devices from 10.0 to below 10.4, compiled to 10.0a; no build has any for this"},
      {12, 0, NATTEN_FLOAT16, 32, 0, {16, 16}, {16, 8}, NATTEN_E_DEVICE, "no build has any for this device"},
      {10, 3, NATTEN_FLOAT16, 32, 0, {16, 16}, {16, 8}, NATTEN_E_DEVICE,
       "compiled to 10.0a; rebuild with `nattenc build --variant cu130 --capability 10.3a`"},
  };
  for (const auto& row : rows) {
    context = "blackwell on " + std::to_string(row.major) + "." + std::to_string(row.minor) + " dim " +
              std::to_string(row.dim) + " persistent " + std::to_string(row.persistent);
    device(row.major, row.minor, 232448);
    auto args = tiled_args<natten_tiled_fna_forward_args>(row.query[0], row.query[1], row.key[0], row.key[1]);
    unit_scales(args);
    args.dtype = row.dtype;
    args.dim = row.dim;
    args.persistent = row.persistent;
    // A row beyond the rank says nothing.
    args.query_tile[2] = 7;
    const int32_t status = natten_blackwell_na2d_forward(&args);
    answers(status, row.status, row.status == NATTEN_OK ? "" : row.says);
    if (row.status == NATTEN_OK) {
      equal(runtime.calls, row.says);
    }
  }

  context = "blackwell others";
  device(10, 0, 232448);
  const auto backward = blackwell_backward_args();
  answers(natten_blackwell_na2d_backward(&backward), NATTEN_OK, "");
  auto fmha = blackwell_fmha_args();
  answers(natten_blackwell_fmha_forward(&fmha), NATTEN_OK, "");
  fmha.persistent = 1;
  fmha.logsumexp = nullptr;
  fmha.batch = 3;
  fmha.cumulative_seqlen_q = fmha.cumulative_seqlen_kv = reinterpret_cast<int32_t*>(memory);
  fmha.max_seqlen_q = fmha.max_seqlen_kv = 64;
  answers(natten_blackwell_fmha_forward(&fmha), NATTEN_OK, "");
  const auto fmha_backward = blackwell_fmha_backward_args();
  answers(natten_blackwell_fmha_backward(&fmha_backward), NATTEN_OK, "");
  equal(runtime.calls, "attribute sb attribute m attribute mp attribute mb");
  auto tile = blackwell_fmha_args();
  tile.key_tile = 256;
  answers(natten_blackwell_fmha_forward(&tile), NATTEN_E_UNSUPPORTED, "query tiles of 256 and key tiles of 256 tokens");
}

#define BAD_BLACKWELL(edit, message) \
  BAD(natten_blackwell_na2d_forward, blackwell_args(), edit, NATTEN_E_INVALID_ARGUMENT, message)
#define TOO_BIG_BLACKWELL(edit, message) \
  BAD(natten_blackwell_na2d_forward, blackwell_args(), edit, NATTEN_E_UNSUPPORTED, message)
#define BAD_BLACKWELL_BACKWARD(edit, message) \
  BAD(natten_blackwell_na2d_backward, blackwell_backward_args(), edit, NATTEN_E_INVALID_ARGUMENT, message)
#define BAD_BLACKWELL_FMHA(edit, message) \
  BAD(natten_blackwell_fmha_forward, blackwell_fmha_args(), edit, NATTEN_E_INVALID_ARGUMENT, message)
#define BAD_BLACKWELL_FMHA_BACKWARD(edit, message) \
  BAD(natten_blackwell_fmha_backward, blackwell_fmha_backward_args(), edit, NATTEN_E_INVALID_ARGUMENT, message)

void bad_arguments_of_blackwell_are_named() {
  device(10, 0, 232448);
  BAD_BLACKWELL(a.dtype = 5, "dtype 5 is none");
  BAD_BLACKWELL(a.seqlen_kv = 0, "seqlen_kv is 0");
  BAD_BLACKWELL(a.heads_kv = 3, "heads is 4, must be a multiple of heads_kv, 3");
  BAD_BLACKWELL(a.heads_kv = 8, "heads is 4, must be a multiple of heads_kv, 8");
  BAD_BLACKWELL(a.dim = 12, "dim is 12, must be a multiple of 8 (16 bytes) for float16");
  BAD_BLACKWELL((a.dtype = NATTEN_FLOAT8_E5M2, a.dim = 24), "dim is 24, must be a multiple of 16 (16 bytes)");
  BAD_BLACKWELL(a.scale = 0, "scale is 0, must be finite and not 0");
  BAD_BLACKWELL(a.scale = 1.0f / 0.0f, "scale is inf");
  BAD_BLACKWELL(a.value = nullptr, "value is NULL");
  BAD_BLACKWELL(a.out = memory + 8, "not aligned to 16 bytes");
  BAD_BLACKWELL(a.logsumexp = reinterpret_cast<float*>(memory + 2), "logsumexp is");
  BAD_BLACKWELL(a.window[0] = 33, "window[0] * dilation[0] is 33 * 1, greater than qkv_shape[0], 32");
  BAD_BLACKWELL(a.stride[1] = 6, "stride[1] is 6, greater than window[1]");
  BAD_BLACKWELL(a.causal[0] = 2, "causal[0] is 2");
  BAD_BLACKWELL(a.query_tile[0] = 0, "query_tile[0] is 0");
  BAD_BLACKWELL(a.q_shape[1] = 33, "q_shape[1] is 33, must be a multiple of query_tile[1], 16: pad the tokens");
  BAD_BLACKWELL(a.kv_shape[1] = 16, "kv_shape[1] is 16, less than qkv_shape[1] / dilation[1], 48 / 2");
  BAD_BLACKWELL(a.seqlen_q = 1000, "seqlen_q is 1000, and the product of q_shape is 1024");
  BAD_BLACKWELL(a.batch = 3, "batch is 3, must be a multiple of the product of dilation, 2");
  BAD_BLACKWELL(a.persistent = 2, "persistent is 2");
  BAD_BLACKWELL(a.kernel_type = 1, "kernel_type is 1");
  BAD_BLACKWELL(a.num_extra_kv = 1, "num_extra_kv is 1");
  BAD_BLACKWELL(a.scale_v = 0, "scale_v is 0, must be 1 for float16");
  BAD_BLACKWELL((a.dtype = NATTEN_FLOAT8_E4M3, a.inv_scale_o = -1), "inv_scale_o is -1, must be finite and above 0");
  BAD_BLACKWELL(a.allocator.free = counted_free, "allocator.alloc is NULL and the other is not");
  TOO_BIG_BLACKWELL(a.batch = 70000, "batch is 70000");
  TOO_BIG_BLACKWELL((a.persistent = 1, a.batch = 1 << 30), "query tiles * heads * batch is 17179869184");
  TOO_BIG_BLACKWELL((a.heads = 1 << 28), "heads * dim is 8589934592");
  TOO_BIG_BLACKWELL((a.q_shape[0] = 1 << 25, a.seqlen_q = 1 << 30), "seqlen_q * heads is 4294967296");
  BAD_BLACKWELL_BACKWARD(a.grad_key = nullptr, "grad_key is NULL");
  BAD_BLACKWELL_BACKWARD(a.logsumexp = nullptr, "logsumexp is NULL");
  BAD(natten_blackwell_na2d_backward, blackwell_backward_args(), (a.q_shape[0] = 1 << 20, a.seqlen_q = 24 << 20),
      NATTEN_E_UNSUPPORTED, "seqlen_q * heads * dim is 3221225472");
  BAD(natten_blackwell_na2d_backward, blackwell_backward_args(), a.dtype = NATTEN_FLOAT8_E4M3, NATTEN_E_UNSUPPORTED,
      "no blackwell_fna_bwd kernel for 2-D float8_e4m3 backward");
  BAD_BLACKWELL_FMHA(a.dim_value = 32, "dim_value is 32, must be dim, 64");
  BAD_BLACKWELL_FMHA(a.causal = 3, "causal is 3");
  BAD_BLACKWELL_FMHA(a.query_tile = 0, "query_tile is 0");
  BAD_BLACKWELL_FMHA(a.max_seqlen_q = 1, "max_seqlen_q is 1, must be 0 without cumulative_seqlen");
  int32_t* const lengths = reinterpret_cast<int32_t*>(memory);
  BAD_BLACKWELL_FMHA(a.cumulative_seqlen_q = lengths, "cumulative_seqlen_kv is NULL");
  BAD_BLACKWELL_FMHA((a.cumulative_seqlen_q = a.cumulative_seqlen_kv = lengths), "max_seqlen_q is 0");
  BAD_BLACKWELL_FMHA((a.cumulative_seqlen_q = a.cumulative_seqlen_kv = lengths, a.max_seqlen_q = 101, a.max_seqlen_kv = 1),
                     "more than all tokens, 100 and 200");
  BAD_BLACKWELL_FMHA_BACKWARD(a.key_splits = 2, "key_splits is 2");
  BAD_BLACKWELL_FMHA_BACKWARD(a.deterministic = 2, "deterministic is 2");
  BAD_BLACKWELL_FMHA_BACKWARD(a.grad_query = memory + 4, "grad_query is");
  BAD(natten_blackwell_fmha_backward, blackwell_fmha_backward_args(), a.heads = 65536, NATTEN_E_UNSUPPORTED,
      "heads is 65536");
  BAD(natten_blackwell_fmha_backward, blackwell_fmha_backward_args(),
      (a.deterministic = 1, a.batch = 65535, a.heads = 32768, a.heads_kv = 1, a.dim = a.dim_value = 8, a.seqlen_q = 256),
      NATTEN_E_UNSUPPORTED, "query tiles * heads * batch is 4294901760");
}

void kernels_can_be_listed() {
  context = "list";
  claim(natten_kernel_count() == 20, "count");
  auto info = sized<natten_kernel_info>();
  answers(natten_kernel_info_at(1, &info), NATTEN_OK, "");
  equal(info.name, "turing64");
  answers(natten_kernel_info_at(10, &info), NATTEN_OK, "");
  equal(info.family, "compute_delta");
  answers(natten_kernel_info_at(20, &info), NATTEN_E_INVALID_ARGUMENT, "index is 20, and there are 20 kernels");
  answers(natten_kernel_info_at(-1, &info), NATTEN_E_INVALID_ARGUMENT, "index is -1");
  info.size = 3;
  answers(natten_kernel_info_at(0, &info), NATTEN_E_INVALID_ARGUMENT, "args->size is 3");
}

}  // namespace

int main() {
  code_runs_where_cuda_says();
  the_first_kernel_that_takes_the_problem_is_launched();
  what_the_build_lacks_is_told_apart();
  permutation_takes_the_widest_vector_that_fits();
  workspace_is_freed_after_the_last_launch_whatever_happens();
  errors_of_earlier_work_are_not_taken_for_ours();
  no_exception_crosses();
  messages_belong_to_their_thread();
  every_entry_refuses_null_and_a_wrong_size();
  bad_arguments_are_named_before_anything_runs();
  blackwell_kernels_are_told_apart_by_shape_and_schedule();
  bad_arguments_of_blackwell_are_named();
  kernels_can_be_listed();
  return failures == 0 ? 0 : 1;
}
