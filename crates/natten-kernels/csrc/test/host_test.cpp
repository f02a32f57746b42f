// Tests of the C ABI's host side over a made-up CUDA runtime and made-up kernels: which kernel is
// picked on which device, what is refused with which words, and the order of CUDA calls. Prints one
// line per failed claim; exit status 1 if there is one.
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "support.h"

#include "nattenc/registry.h"
#include "nattenc/runtime.h"
#include "nattenc/select.h"

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

const Unit units[] = {{&reference_unit, codes, 2}, {&fna_unit, codes, 2}, {&permute_unit, codes, 2}, {&delta_unit, codes, 2}};
const int32_t unit_count = 4;
const Absence absences[] = {{"hopper_fna", "no 9.0a"}, {"fmha", "left out"}};
const int32_t absence_count = 2;
const char build_info[] = "{}";
const char variant[] = "cu130";

}  // namespace nattenc

// ---- problems ---------------------------------------------------------------------------------

namespace {

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
  answers(natten_hopper_na2d_forward(&tiled), NATTEN_E_BACKEND_NOT_BUILT,
          "natten_hopper_na2d_forward: hopper_fna is not in this build (variant cu130): no 9.0a");
  answers(natten_blackwell_na1d_forward(&tiled), NATTEN_E_BACKEND_NOT_BUILT, "the build gives no reason");
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

void kernels_can_be_listed() {
  context = "list";
  claim(natten_kernel_count() == 11, "count");
  auto info = sized<natten_kernel_info>();
  answers(natten_kernel_info_at(1, &info), NATTEN_OK, "");
  equal(info.name, "turing64");
  answers(natten_kernel_info_at(10, &info), NATTEN_OK, "");
  equal(info.family, "compute_delta");
  answers(natten_kernel_info_at(11, &info), NATTEN_E_INVALID_ARGUMENT, "index is 11, and there are 11 kernels");
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
  kernels_can_be_listed();
  return failures == 0 ? 0 : 1;
}
