// Tests of the Blackwell backend over a made-up runtime, made-up kernels and a made-up CUTLASS operation:
// which kernel is picked, what is refused with which words, and that no refusal of an operation is lost.
// No machine at hand can run the kernels, so this is all that runs. Prints one line per failed claim; exit
// status 1 if there is one.
#include <string>

#include "support.h"

#include "nattenc/launch_blackwell.cuh"

// ---- the build --------------------------------------------------------------------------------

namespace nattenc {
namespace {

// "Launches" by name.
template <class Args>
int32_t run(const Args& args, const KernelInfo& info) {
  int parameter = 0;
  return launch(info.name, info.name, {1, 1, 1}, {1, 1, 1}, 0, &parameter, args.stream);
}

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
constexpr UnitEntries family_units[] = {{"blackwell_fna", blackwell_entries, 5},
                                        {"blackwell_fna_bwd", blackwell_bwd_entries, 1},
                                        {"blackwell_fmha", blackwell_fmha_entries, 2},
                                        {"blackwell_fmha_bwd", blackwell_fmha_bwd_entries, 1}};
constexpr Code special = {10, 0, 'a', false};

}  // namespace

const Unit units[] = {{&family_units[0], &special, 1},
                      {&family_units[1], &special, 1},
                      {&family_units[2], &special, 1},
                      {&family_units[3], &special, 1}};
const int32_t unit_count = 4;
const Absence absences[] = {{nullptr, nullptr}};
const int32_t absence_count = 0;
const char build_info[] = "{}";
const char variant[] = "cu130";

}  // namespace nattenc

// ---- problems ---------------------------------------------------------------------------------

namespace {

void device(int major, int minor) {
  const int ordinal = runtime.ordinal + 1;
  runtime = Runtime();
  runtime.ordinal = ordinal;
  runtime.major = major;
  runtime.minor = minor;
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

void* odd_alloc(void*, size_t, int32_t, void*) { return memory + 8; }
void odd_free(void*, void*, void*) { called("release"); }

// ---- claims -----------------------------------------------------------------------------------

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

void blackwell_kernels_are_told_apart_by_shape_and_schedule() {
  const struct {
    int major, minor, dtype, dim, persistent, query[2], key[2];
    int32_t status;
    const char* says;
  } rows[] = {
      {10, 0, NATTEN_FLOAT16, 32, 0, {16, 16}, {16, 8}, NATTEN_OK, "s32"},
      {10, 0, NATTEN_FLOAT16, 8, 1, {16, 16}, {16, 8}, NATTEN_OK, "s32p"},
      {10, 0, NATTEN_FLOAT16, 16, 0, {8, 32}, {8, 16}, NATTEN_OK, "s32x"},
      {10, 0, NATTEN_FLOAT16, 40, 0, {16, 16}, {16, 8}, NATTEN_OK, "s128"},
      {10, 0, NATTEN_FLOAT8_E4M3, 32, 0, {16, 16}, {16, 8}, NATTEN_OK, "s32q"},
      // One size, another shape.
      {10, 0, NATTEN_FLOAT16, 32, 0, {16, 16}, {8, 16}, NATTEN_E_UNSUPPORTED,
       "query tiles of 16x16 and key tiles of 8x16 tokens, persistent 0, head dim 32; on device"},
      {10, 0, NATTEN_FLOAT16, 40, 1, {16, 16}, {16, 8}, NATTEN_E_UNSUPPORTED,
       "tiles 16x16 x 16x8 persistent 1 head dim <= 32 in multiples of 8"},
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
    device(row.major, row.minor);
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
  device(10, 0);
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
  equal(runtime.calls, "sb m mp mb");
  auto tile = blackwell_fmha_args();
  tile.key_tile = 256;
  answers(natten_blackwell_fmha_forward(&tile), NATTEN_E_UNSUPPORTED, "query tiles of 256 and key tiles of 256 tokens");
}

#define BAD_BLACKWELL(edit, message) \
  BAD(natten_blackwell_na2d_forward, blackwell_args(), edit, NATTEN_E_INVALID_ARGUMENT, message)
#define UNSUPPORTED_BLACKWELL(edit, message) \
  BAD(natten_blackwell_na2d_forward, blackwell_args(), edit, NATTEN_E_UNSUPPORTED, message)
#define BAD_BLACKWELL_BACKWARD(edit, message) \
  BAD(natten_blackwell_na2d_backward, blackwell_backward_args(), edit, NATTEN_E_INVALID_ARGUMENT, message)
#define BAD_BLACKWELL_FMHA(edit, message) \
  BAD(natten_blackwell_fmha_forward, blackwell_fmha_args(), edit, NATTEN_E_INVALID_ARGUMENT, message)
#define BAD_BLACKWELL_FMHA_BACKWARD(edit, message) \
  BAD(natten_blackwell_fmha_backward, blackwell_fmha_backward_args(), edit, NATTEN_E_INVALID_ARGUMENT, message)

void bad_arguments_of_blackwell_are_named() {
  device(10, 0);
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
  BAD_BLACKWELL(a.q_shape[1] = 33, "q_shape[1] is 33, must be a multiple of query_tile[1], 16: pad the tensors");
  BAD_BLACKWELL(a.kv_shape[1] = 16, "kv_shape[1] is 16, less than the 24 tokens of a dilation group");
  BAD_BLACKWELL(a.seqlen_q = 1000, "seqlen_q is 1000, and the product of q_shape 1024");
  BAD_BLACKWELL(a.batch = 3, "batch is 3, must be a multiple of the product of dilation, 2");
  BAD_BLACKWELL(a.persistent = 2, "persistent is 2");
  UNSUPPORTED_BLACKWELL(a.kernel_type = 1, "kernel_type is 1, must be 0");
  UNSUPPORTED_BLACKWELL(a.num_extra_kv = 1, "num_extra_kv is 1, must be 0");
  BAD_BLACKWELL(a.scale_v = 0, "scale_v is 0, must be 1 for float16");
  BAD_BLACKWELL((a.dtype = NATTEN_FLOAT8_E4M3, a.inv_scale_o = -1), "inv_scale_o is -1, must be finite and above 0");
  BAD_BLACKWELL(a.allocator.free = odd_free, "allocator.alloc is NULL and the other is not");
  UNSUPPORTED_BLACKWELL(a.batch = 70000, "batch is 70000");
  UNSUPPORTED_BLACKWELL((a.persistent = 1, a.batch = 1 << 30), "query tiles * heads * batch is 17179869184");
  UNSUPPORTED_BLACKWELL((a.heads = 1 << 28), "heads * dim is 8589934592");
  UNSUPPORTED_BLACKWELL((a.q_shape[0] = 1 << 25, a.seqlen_q = 1 << 30), "seqlen_q * heads is 4294967296");
  BAD_BLACKWELL_BACKWARD(a.grad_key = nullptr, "grad_key is NULL");
  BAD_BLACKWELL_BACKWARD(a.logsumexp = nullptr, "logsumexp is NULL");
  BAD(natten_blackwell_na2d_backward, blackwell_backward_args(), (a.q_shape[0] = 1 << 20, a.seqlen_q = 24 << 20),
      NATTEN_E_UNSUPPORTED, "seqlen_q * heads * dim is 3221225472");
  BAD(natten_blackwell_na2d_backward, blackwell_backward_args(), a.dtype = NATTEN_FLOAT8_E4M3, NATTEN_E_UNSUPPORTED,
      "no blackwell_fna_bwd kernel for 2-D float8_e4m3 backward");
  BAD_BLACKWELL_FMHA(a.dim_value = 32, "dim_value is 32, must be dim, 64");
  BAD_BLACKWELL_FMHA(a.causal = 3, "causal is 3");
  BAD_BLACKWELL_FMHA(a.query_tile = 0, "query_tile is 0");
  BAD_BLACKWELL_FMHA(a.max_seqlen_q = 1, "max_seqlen_q is 1 without cumulative_seqlen_q");
  int32_t* const lengths = reinterpret_cast<int32_t*>(memory);
  BAD_BLACKWELL_FMHA(a.cumulative_seqlen_q = lengths, "cumulative_seqlen_kv is NULL; variable length needs both");
  BAD_BLACKWELL_FMHA((a.cumulative_seqlen_q = a.cumulative_seqlen_kv = lengths), "max_seqlen_q is 0");
  BAD_BLACKWELL_FMHA((a.cumulative_seqlen_q = a.cumulative_seqlen_kv = lengths, a.max_seqlen_q = 101, a.max_seqlen_kv = 1),
                     "max_seqlen_q is 101, greater than seqlen_q, 100");
  BAD(natten_blackwell_fmha_forward, blackwell_fmha_args(),
      (a.cumulative_seqlen_q = a.cumulative_seqlen_kv = lengths, a.seqlen_q = a.max_seqlen_q = 1 << 24,
       a.max_seqlen_kv = 1),
      NATTEN_E_UNSUPPORTED, "max_seqlen_q * heads * dim is 4294967296");
  BAD(natten_blackwell_fmha_forward, blackwell_fmha_args(),
      (a.cumulative_seqlen_q = a.cumulative_seqlen_kv = lengths, a.seqlen_q = a.max_seqlen_q = 1 << 20,
       a.max_seqlen_kv = 1, a.batch = 4095),
      NATTEN_E_UNSUPPORTED, "max_seqlen_q * (batch + 1) is 4294967296");
  BAD_BLACKWELL_FMHA_BACKWARD(a.key_splits = 2, "key_splits is 2");
  BAD_BLACKWELL_FMHA_BACKWARD(a.deterministic = 2, "deterministic is 2");
  BAD_BLACKWELL_FMHA_BACKWARD(a.grad_query = memory + 4, "grad_query is");
  BAD(natten_blackwell_fmha_backward, blackwell_fmha_backward_args(), a.heads = 65536, NATTEN_E_UNSUPPORTED,
      "heads is 65536");
  BAD(natten_blackwell_fmha_backward, blackwell_fmha_backward_args(),
      (a.deterministic = 1, a.batch = 65535, a.heads = 32768, a.heads_kv = 1, a.dim = a.dim_value = 8, a.seqlen_q = 256),
      NATTEN_E_UNSUPPORTED, "query tiles * heads * batch is 4294901760");
}

// What run_blackwell needs of upstream's wrapper. `refuses` names the step that fails.
struct Operation {
  struct Kernel {
    static constexpr int SharedStorageSize = 65536;
  };
  static size_t workspace;
  static size_t get_workspace_size(int) { return workspace; }

  const char* refuses;
  cudaError_t leaves;

  cutlass::Status step(const char* name, cutlass::Status refusal) {
    called(name);
    if (strcmp(refuses, name) != 0) {
      return cutlass::Status::kSuccess;
    }
    runtime.last = leaves;
    return refusal;
  }
  cutlass::Status can_implement(int) { return step("can_implement", cutlass::Status::kInvalid); }
  cutlass::Status initialize(int, void*, cudaStream_t) { return step("initialize", cutlass::Status::kErrorInternal); }
  cutlass::Status run(cudaStream_t) { return step("run", cutlass::Status::kErrorInternal); }
};
size_t Operation::workspace = 0;

struct Wrapper {
  using Operation = ::Operation;
  using Arguments = int;
  ::Operation op;
};

void no_refusal_of_an_operation_is_lost() {
  const struct {
    size_t workspace;
    const char* refuses;
    cudaError_t leaves;
    const char* failing;
    int32_t status;
    const char* message;
    const char* calls;
  } rows[] = {
      {0, "", cudaSuccess, "", NATTEN_OK, "", "can_implement attribute initialize run"},
      {64, "", cudaSuccess, "", NATTEN_OK, "", "can_implement attribute malloc initialize run free"},
      {64, "can_implement", cudaSuccess, "", NATTEN_E_CUTLASS, "k: can_implement: Invalid status", "can_implement"},
      {64, "", cudaSuccess, "attribute", NATTEN_E_CUDA, "k: cudaFuncSetAttribute: another error", "can_implement attribute"},
      {64, "", cudaSuccess, "malloc", NATTEN_E_CUDA, "k: cudaMallocAsync: ", "can_implement attribute malloc"},
      {64, "initialize", cudaSuccess, "", NATTEN_E_CUTLASS, "k: initialize: Error Internal",
       "can_implement attribute malloc initialize free"},
      {64, "run", cudaSuccess, "", NATTEN_E_CUTLASS, "k: run: Error Internal",
       "can_implement attribute malloc initialize run free"},
      {64, "run", cudaErrorIllegalAddress, "", NATTEN_E_CUDA, "k: kernel launch: illegal address",
       "can_implement attribute malloc initialize run free"},
  };
  for (const auto& row : rows) {
    context = std::string("operation, refusing ") + row.refuses + ", failing " + row.failing;
    device(10, 0);
    runtime.failing = row.failing;
    Operation::workspace = row.workspace;
    Wrapper wrapper{{row.refuses, row.leaves}};
    answers(nattenc::run_blackwell("k", wrapper, 0, {}, nullptr), row.status, row.message);
    equal(runtime.calls, row.calls);
  }
  context = "operation, odd allocator";
  device(10, 0);
  Wrapper wrapper{{"", cudaSuccess}};
  answers(nattenc::run_blackwell("k", wrapper, 0, {nullptr, odd_alloc, odd_free}, nullptr), NATTEN_E_INVALID_ARGUMENT,
          "is not aligned to 16 bytes");
  equal(runtime.calls, "can_implement attribute release");
  context = "operation, earlier error";
  device(10, 0);
  Operation::workspace = 0;
  runtime.last = cudaErrorInvalidValue;
  answers(nattenc::run_blackwell("k", wrapper, 0, {}, nullptr), NATTEN_OK, "");
}

}  // namespace

int main() {
  blackwell_kernels_are_told_apart_by_shape_and_schedule();
  bad_arguments_of_blackwell_are_named();
  no_refusal_of_an_operation_is_lost();
  return failures == 0 ? 0 : 1;
}
