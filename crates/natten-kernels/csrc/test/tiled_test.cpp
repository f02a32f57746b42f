// Tests of dense attention and of the Hopper backend over a made-up runtime, made-up kernels and a
// made-up CUTLASS operation: which kernel is picked, what is refused with which words, and that no
// refusal or CUDA error of a foreign launch is lost. Prints one line per failed claim; exit status 1
// if there is one.
#include <string>

#include "support.h"

#include "nattenc/launch_hopper.cuh"

// ---- the build --------------------------------------------------------------------------------

namespace nattenc {
namespace {

// "Launches" by name; a backward kernel says whether it was given delta.
template <class Args>
int32_t run(const Args& args, const KernelInfo& info) {
  int parameter = 0;
  return launch(info.name, info.name, {1, 1, 1}, {1, 1, 1}, 0, &parameter, args.stream);
}

int32_t run_dense_backward(const natten_fmha_backward_args& args, const KernelInfo& info) {
  claim(args.delta != nullptr, "no delta");
  return run(args, info);
}

// One delta for all: the sizes that it was asked for are in the calls.
int32_t run_delta_kernel(const natten_compute_delta_args& args, const KernelInfo& info) {
  called(("delta " + std::to_string(args.batch) + "x" + std::to_string(args.seqlen)).c_str());
  return run(args, info);
}

constexpr KernelInfo fmha(const char* name, int32_t backward, int32_t query, int32_t key, int32_t dim) {
  KernelInfo info = kernel_info("fmha", name, backward, 0, NATTEN_FLOAT16, 0);
  info.query_tile[0] = query;
  info.key_tile[0] = key;
  info.max_head_dim = dim;
  info.alignment = 8;
  info.sm_min = 80;
  info.sm_max = 130;
  return info;
}

constexpr HopperRow row(const char* name, int32_t causal, int32_t rank, int32_t query, int32_t key, int32_t dim,
                        int32_t schedule) {
  HopperRow row{name, NATTEN_FLOAT16, causal, {}, {}, dim, schedule, 90, 91};
  for (int i = 0; i < rank; ++i) {
    row.query_tile[i] = i == 0 ? query : 8;
    row.key_tile[i] = i == 0 ? key : 8;
  }
  return row;
}

constexpr KernelInfo delta_info() {
  KernelInfo info = kernel_info("compute_delta", "delta", 0, 0, NATTEN_FLOAT16, 0);
  info.alignment = 2;
  info.sm_max = 65535;
  return info;
}

constexpr auto tiled_forward = &run<natten_tiled_fna_forward_args>;
constexpr auto tiled_backward = &run<natten_tiled_fna_backward_args>;
constexpr auto dense_forward = &run<natten_fmha_forward_args>;
constexpr KernelEntry fmha_entries[] = {
    {fmha("f64", 0, 64, 64, 64), dense_forward},
    {fmha("f64x128", 0, 64, 128, 64), dense_forward},
    {fmha("any", 0, 64, 64, 65536), dense_forward},
    {fmha("b128", 1, 64, 64, 128), &run_dense_backward},
};
constexpr KernelEntry hopper_entries[] = {
    {hopper_info("hopper_fna", row("n64", 0, 2, 8, 16, 64, 0), 0, 2, 65536), tiled_forward},
    {hopper_info("hopper_fna", row("causal64", 2, 2, 8, 16, 64, 0), 0, 2, 65536), tiled_forward},
    {hopper_info("hopper_fna", row("coop128", 0, 2, 16, 16, 128, 1), 0, 2, 65536), tiled_forward},
    {hopper_info("hopper_fna", row("pp128", 0, 2, 16, 16, 128, 2), 0, 2, 65536), tiled_forward},
};
constexpr KernelEntry hopper_backward_entries[] = {
    {hopper_info("hopper_fna_bwd", row("back64", 0, 2, 8, 16, 64, -1), 1, 2, 65536), tiled_backward},
};
constexpr KernelEntry hopper_fmha_entries[] = {
    {hopper_info("hopper_fmha", row("d64", 0, 1, 64, 128, 64, 0), 0, 0, 65536), dense_forward},
    {hopper_info("hopper_fmha", row("d128pp", 0, 1, 128, 128, 128, 2), 0, 0, 65536), dense_forward},
};
constexpr KernelEntry hopper_fmha_backward_entries[] = {
    {hopper_info("hopper_fmha_bwd", row("db64", 0, 1, 64, 128, 64, -1), 1, 0, 65536), &run<natten_fmha_backward_args>},
};
constexpr KernelEntry delta_entries[] = {{delta_info(), &run_delta_kernel}};
constexpr UnitEntries fmha_unit = {"fmha", fmha_entries, 4};
constexpr UnitEntries hopper_unit = {"hopper_fna", hopper_entries, 4};
constexpr UnitEntries hopper_backward_unit = {"hopper_fna_bwd", hopper_backward_entries, 1};
constexpr UnitEntries hopper_fmha_unit = {"hopper_fmha", hopper_fmha_entries, 2};
constexpr UnitEntries hopper_fmha_backward_unit = {"hopper_fmha_bwd", hopper_fmha_backward_entries, 1};
constexpr UnitEntries delta_unit = {"compute_delta", delta_entries, 1};
constexpr Code plain = {9, 0, 0, false};
constexpr Code special = {9, 0, 'a', false};

}  // namespace

const Unit units[] = {{&fmha_unit, &plain, 1},        {&hopper_unit, &special, 1},
                      {&delta_unit, &plain, 1},       {&hopper_backward_unit, &special, 1},
                      {&hopper_fmha_unit, &special, 1}, {&hopper_fmha_backward_unit, &special, 1}};
const int32_t unit_count = 6;
const Absence absences[] = {{"blackwell_fna", "no 10.0a"}};
const int32_t absence_count = 1;
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

void unit_scales(float& q, float& k, float& v, float& o) { q = k = v = o = 1; }

template <class Args>
Args dense_args() {
  Args args = sized<Args>();
  args.dtype = NATTEN_FLOAT16;
  args.query = args.key = args.value = P;
  args.out = P;
  args.logsumexp = F;
  args.batch = 3;
  args.seqlen_q = 100;
  args.seqlen_kv = 200;
  args.heads = args.heads_kv = 4;
  args.dim = args.dim_value = 64;
  args.query_tile = 64;
  args.key_tile = 128;
  return args;
}

natten_fmha_forward_args dense_forward_args() {
  auto args = dense_args<natten_fmha_forward_args>();
  unit_scales(args.scale_q, args.scale_k, args.scale_v, args.inv_scale_o);
  return args;
}

natten_fmha_backward_args dense_backward_args() {
  auto args = dense_args<natten_fmha_backward_args>();
  args.grad_out = args.grad_query = args.grad_key = args.grad_value = P;
  args.key_tile = 64;
  args.key_splits = 1;
  return args;
}

// 20 x 16 tokens, dilation 2 x 1: a group has 10 x 16, padded to 16 x 16.
template <class Args>
Args tiled_args() {
  Args args = sized<Args>();
  args.dtype = NATTEN_FLOAT16;
  args.query = args.key = args.value = P;
  args.out = P;
  args.logsumexp = F;
  args.batch = 2;
  args.seqlen_q = args.seqlen_kv = 256;
  args.heads = args.heads_kv = 4;
  args.dim = 64;
  for (int i = 0; i < 2; ++i) {
    args.qkv_shape[i] = i == 0 ? 20 : 16;
    args.q_shape[i] = args.kv_shape[i] = 16;
    args.window[i] = 5;
    args.stride[i] = 1;
    args.dilation[i] = i == 0 ? 2 : 1;
    args.query_tile[i] = 8;
    args.key_tile[i] = i == 0 ? 16 : 8;
  }
  return args;
}

natten_tiled_fna_forward_args tiled_forward_args() {
  auto args = tiled_args<natten_tiled_fna_forward_args>();
  unit_scales(args.scale_q, args.scale_k, args.scale_v, args.inv_scale_o);
  return args;
}

natten_tiled_fna_backward_args tiled_backward_args() {
  auto args = tiled_args<natten_tiled_fna_backward_args>();
  args.grad_out = args.grad_query = args.grad_key = args.grad_value = P;
  return args;
}

void hopper() { device(9, 0); }

// ---- claims -----------------------------------------------------------------------------------

void shapes_head_dim_and_schedule_pick_a_hopper_kernel() {
  const struct {
    int query, key, dim, causal, schedule;
    int32_t status;
    const char* says;
  } rows[] = {
      {8, 16, 64, 0, 0, NATTEN_OK, "n64"},
      {8, 16, 64, 1, 0, NATTEN_OK, "causal64"},
      {16, 16, 128, 0, 1, NATTEN_OK, "coop128"},
      {16, 16, 128, 0, 2, NATTEN_OK, "pp128"},
      // Not the next larger head dim, nor another schedule, nor tiles of the same product.
      {8, 16, 32, 0, 0, NATTEN_E_UNSUPPORTED,
       "query tiles of 8x8 and key tiles of 16x8 tokens, kernel_type 0, head dim 32; on device"},
      {16, 16, 128, 0, 0, NATTEN_E_UNSUPPORTED, "tiles 16x8 x 16x8 kernel_type 1 head dim 128 in multiples of 8"},
      {16, 8, 64, 0, 0, NATTEN_E_UNSUPPORTED, "there are: tiles 16x8 x 16x8 kernel_type 1"},
  };
  for (const auto& row : rows) {
    context = "hopper dim " + std::to_string(row.dim) + " schedule " + std::to_string(row.schedule);
    hopper();
    auto args = tiled_forward_args();
    args.query_tile[0] = row.query;
    args.key_tile[0] = row.key;
    args.dim = row.dim;
    args.causal[1] = row.causal;
    args.kernel_type = row.schedule;
    answers(natten_hopper_na2d_forward(&args), row.status, row.status == NATTEN_OK ? "" : row.says);
    equal(runtime.calls, row.status == NATTEN_OK ? row.says : "");
  }
}

void other_operations_pick_theirs() {
  context = "backward";
  hopper();
  const auto back = tiled_backward_args();
  answers(natten_hopper_na2d_backward(&back), NATTEN_OK, "");
  equal(runtime.calls, "back64");

  context = "hopper_fmha";
  hopper();
  auto forward = dense_forward_args();
  answers(natten_hopper_fmha_forward(&forward), NATTEN_OK, "");
  forward.causal = 1;
  answers(natten_hopper_fmha_forward(&forward), NATTEN_OK, "");
  forward.dim = forward.dim_value = forward.query_tile = 128;
  forward.kernel_type = 2;
  answers(natten_hopper_fmha_forward(&forward), NATTEN_OK, "");
  auto backward = dense_backward_args();
  backward.key_tile = 128;
  answers(natten_hopper_fmha_backward(&backward), NATTEN_OK, "");
  equal(runtime.calls, "d64 d64 d128pp db64");

  context = "fmha";
  hopper();
  forward = dense_forward_args();
  answers(natten_fmha_forward(&forward), NATTEN_OK, "");
  forward.key_tile = 64;
  forward.dim_value = 72;
  forward.logsumexp = nullptr;
  answers(natten_fmha_forward(&forward), NATTEN_OK, "");
  equal(runtime.calls, "f64x128 any");
}

void delta_is_computed_where_it_is_missing() {
  const struct {
    bool given, varlen;
    const char* calls;
  } rows[] = {
      {false, false, "malloc delta 3x100 delta b128 free"},
      {false, true, "malloc delta 1x100 delta b128 free"},
      {true, false, "b128"},
  };
  for (const auto& row : rows) {
    context = "delta";
    hopper();
    auto args = dense_backward_args();
    args.delta = row.given ? F : nullptr;
    if (row.varlen) {
      args.cumulative_seqlen_q = args.cumulative_seqlen_kv = reinterpret_cast<int32_t*>(memory);
      args.max_seqlen_q = args.max_seqlen_kv = 60;
    }
    answers(natten_fmha_backward(&args), NATTEN_OK, "");
    equal(runtime.calls, row.calls);
  }
}

void only_hopper_takes_hopper_code() {
  for (const auto& [major, minor] : {std::pair{8, 0}, std::pair{10, 0}, std::pair{12, 0}}) {
    context = "device " + std::to_string(major);
    device(major, minor);
    const auto args = tiled_forward_args();
    answers(natten_hopper_na2d_forward(&args), NATTEN_E_DEVICE, "are for devices from 9.0 to below 9.1, compiled to 9.0a");
    equal(runtime.calls, "");
  }
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
#define BAD_TILED(edit, message) \
  BAD(natten_hopper_na2d_forward, tiled_forward_args(), edit, NATTEN_E_INVALID_ARGUMENT, message)
#define NO_TILED(edit, message) \
  BAD(natten_hopper_na2d_forward, tiled_forward_args(), edit, NATTEN_E_UNSUPPORTED, message)
#define BAD_TILED_BACK(edit, message) \
  BAD(natten_hopper_na2d_backward, tiled_backward_args(), edit, NATTEN_E_INVALID_ARGUMENT, message)
#define BAD_DENSE(edit, message) BAD(natten_fmha_forward, dense_forward_args(), edit, NATTEN_E_INVALID_ARGUMENT, message)
#define NO_DENSE(edit, message) BAD(natten_fmha_forward, dense_forward_args(), edit, NATTEN_E_UNSUPPORTED, message)
#define BAD_DENSE_BACK(edit, message) \
  BAD(natten_fmha_backward, dense_backward_args(), edit, NATTEN_E_INVALID_ARGUMENT, message)
#define BAD_HOPPER_DENSE(edit, status, message) \
  BAD(natten_hopper_fmha_forward, dense_forward_args(), edit, status, message)

void bad_arguments_are_named_before_anything_runs() {
  hopper();
  BAD_TILED(a.dtype = 9, "dtype 9 is none");
  BAD_TILED(a.batch = 0, "batch is 0");
  BAD_TILED(a.seqlen_q = 255, "seqlen_q is 255, and the product of q_shape 256");
  BAD_TILED(a.seqlen_kv = 512, "seqlen_kv is 512, and the product of kv_shape 256");
  BAD_TILED(a.q_shape[0] = 12, "q_shape[0] is 12, must be a multiple of query_tile[0], 8: pad the tensors");
  BAD_TILED(a.kv_shape[0] = 24, "kv_shape[0] is 24, must be a multiple of key_tile[0], 16");
  BAD_TILED((a.q_shape[0] = 8, a.seqlen_q = 128), "q_shape[0] is 8, less than the 10 tokens of a dilation group");
  BAD_TILED(a.q_shape[1] = 0, "q_shape[1] is 0");
  BAD_TILED(a.query_tile[1] = -8, "query_tile[1] is -8");
  BAD_TILED(a.batch = 3, "batch is 3, must be a multiple of the product of dilation, 2");
  BAD_TILED(a.window[1] = 1, "window[1] is 1");
  BAD_TILED(a.window[0] = 11, "window[0] * dilation[0] is 11 * 2, greater than qkv_shape[0], 20");
  BAD_TILED(a.stride[0] = 6, "stride[0] is 6, greater than window[0], 5");
  BAD_TILED(a.causal[0] = 3, "causal[0] is 3");
  BAD_TILED(a.dim = 60, "dim is 60, must be a multiple of 8 (16 bytes) for float16");
  BAD_TILED(a.key = memory + 8, "key is");
  BAD_TILED(a.logsumexp = nullptr, "logsumexp is NULL");
  BAD_TILED(a.kernel_type = 3, "kernel_type is 3, must be 0, 1 or 2");
  BAD_TILED(a.kernel_type = -1, "kernel_type is -1");
  BAD_TILED(a.scale_v = 0, "scale_v and inv_scale_o must be 1");
  NO_TILED(a.heads_kv = 2, "heads_kv is 2 and heads 4");
  NO_TILED(a.num_extra_kv = 1, "num_extra_kv is 1, must be 0");
  NO_TILED(a.persistent = 1, "persistent is 1, must be 0");
  NO_TILED(a.batch = 65536, "batch is 65536");
  NO_TILED(a.heads = a.heads_kv = 65536, "heads is 65536");
  NO_TILED(a.dtype = NATTEN_FLOAT32, "no hopper_fna kernel for 2-D float32 forward causal 00");
  NO_TILED(a.dtype = NATTEN_FLOAT8_E4M3, "no hopper_fna kernel for 2-D float8_e4m3");
  BAD_TILED_BACK(a.grad_value = nullptr, "grad_value is NULL");
  BAD_TILED_BACK(a.kv_shape[1] = 12, "kv_shape[1] is 12, must be a multiple of key_tile[1], 8");
  BAD(natten_hopper_na2d_backward, tiled_backward_args(),
      (a.q_shape[0] = 1 << 20, a.seqlen_q = 1 << 24), NATTEN_E_UNSUPPORTED, "seqlen * heads * dim is 4294967296");
  BAD(natten_hopper_na1d_forward, tiled_forward_args(), a.qkv_shape[0] = 16, NATTEN_E_INVALID_ARGUMENT,
      "seqlen_q is 256, and the product of q_shape 16");

  BAD_DENSE(a.seqlen_kv = 0, "seqlen_kv is 0");
  BAD_DENSE(a.query_tile = 0, "query_tile is 0");
  BAD_DENSE(a.causal = 2, "causal is 2");
  BAD_DENSE(a.dim_value = 4, "dim_value is 4, must be a multiple of 8");
  BAD_DENSE(a.value = nullptr, "value is NULL");
  BAD_DENSE(a.scale_q = 2, "must be 1: no FP8");
  BAD_DENSE(a.max_seqlen_kv = 7, "max_seqlen_kv is 7 without cumulative_seqlen_q");
  BAD_DENSE(a.cumulative_seqlen_q = reinterpret_cast<int32_t*>(memory),
            "cumulative_seqlen_kv is NULL; variable length needs both");
  BAD_DENSE(a.cumulative_seqlen_q = a.cumulative_seqlen_kv = reinterpret_cast<int32_t*>(memory), "max_seqlen_q is 0");
  BAD_DENSE((a.cumulative_seqlen_q = a.cumulative_seqlen_kv = reinterpret_cast<int32_t*>(memory),
             a.max_seqlen_q = a.max_seqlen_kv = 101),
            "max_seqlen_q is 101, greater than seqlen_q, 100");
  NO_DENSE(a.heads_kv = 1, "heads_kv is 1 and heads 4");
  NO_DENSE(a.kernel_type = 1, "kernel_type is 1, must be 0");
  NO_DENSE(a.seqlen_kv = 1 << 24, "seqlen * heads * dim is 4294967296");
  NO_DENSE(a.key_tile = 32, "query tiles of 64 and key tiles of 32 tokens, head dim 64; on device");
  NO_DENSE(a.dtype = NATTEN_BFLOAT16, "no fmha kernel for bfloat16 forward; it has float16 backward, float16 forward");
  BAD_DENSE_BACK(a.key_splits = 0, "key_splits is 0");
  BAD_DENSE_BACK(a.key_splits = 5, "key_splits is 5, and there are 4 key tiles");
  BAD_DENSE_BACK(a.logsumexp = nullptr, "logsumexp is NULL");
  BAD_DENSE_BACK(a.grad_query = memory + 4, "grad_query is");
  BAD_HOPPER_DENSE(a.logsumexp = nullptr, NATTEN_E_INVALID_ARGUMENT, "logsumexp is NULL");
  BAD_HOPPER_DENSE(a.dim_value = 32, NATTEN_E_UNSUPPORTED, "dim_value is 32 and dim 64");
  BAD_HOPPER_DENSE(a.dim = a.dim_value = 96, NATTEN_E_UNSUPPORTED, "head dim 96; on device");
  BAD_HOPPER_DENSE(a.kernel_type = 9, NATTEN_E_INVALID_ARGUMENT, "kernel_type is 9");
  BAD(natten_hopper_fmha_backward, dense_backward_args(), a.key_splits = 2, NATTEN_E_INVALID_ARGUMENT,
      "key_splits is 2, must be 0 or 1");
}

// ---- foreign launches -------------------------------------------------------------------------

struct Part {
  struct Kernel {
    static constexpr int SharedStorageSize = 1000;
  };
};

// Refuses where it is told to, and may leave a CUDA error there as upstream's device layer would.
struct Operation {
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

struct Kernel {
  using Arguments = int;
  Operation op;
  size_t bytes;

  size_t get_workspace_size(int) const { return bytes; }
};

void no_refusal_of_a_foreign_launch_is_lost() {
  const struct {
    const char* refuses;
    cudaError_t leaves;
    const char* failing;
    int32_t status;
    const char* message;
    const char* calls;
  } rows[] = {
      {"", cudaSuccess, "", NATTEN_OK, "", "can_implement attribute attribute malloc initialize run free"},
      {"can_implement", cudaSuccess, "", NATTEN_E_CUTLASS, "k: can_implement: Invalid status", "can_implement"},
      {"", cudaSuccess, "attribute", NATTEN_E_CUDA, "k: cudaFuncSetAttribute: another error", "can_implement attribute"},
      {"", cudaSuccess, "malloc", NATTEN_E_CUDA, "k: cudaMallocAsync", "can_implement attribute attribute malloc"},
      {"initialize", cudaSuccess, "", NATTEN_E_CUTLASS, "k: initialize: Error Internal",
       "can_implement attribute attribute malloc initialize free"},
      {"run", cudaSuccess, "", NATTEN_E_CUTLASS, "k: run: Error Internal",
       "can_implement attribute attribute malloc initialize run free"},
      {"run", cudaErrorIllegalAddress, "", NATTEN_E_CUDA, "k: kernel launch: illegal address",
       "can_implement attribute attribute malloc initialize run free"},
  };
  for (const auto& row : rows) {
    context = std::string("foreign launch, ") + row.refuses + row.failing;
    hopper();
    runtime.failing = row.failing;
    Kernel kernel{{row.refuses, row.leaves}, 64};
    answers((nattenc::run_hopper<Part, Part>("k", kernel, 0, {}, nullptr)), row.status, row.message);
    equal(runtime.calls, row.calls);
    claim(runtime.last == cudaSuccess || row.leaves == cudaSuccess, "a reported error is left behind");
  }
  context = "foreign launch, no workspace";
  hopper();
  Kernel kernel{{"", cudaSuccess}, 0};
  runtime.last = cudaErrorInvalidValue;
  answers(nattenc::run_hopper<Part>("k", kernel, 0, {}, nullptr), NATTEN_OK, "");
  equal(runtime.calls, "can_implement attribute initialize run");
  kernel.op.refuses = "run";
  runtime.last = cudaErrorIllegalAddress;
  answers(nattenc::run_hopper<Part>("k", kernel, 0, {}, nullptr), NATTEN_E_CUTLASS,
          "k: run: Error Internal; cudaErrorIllegalAddress was pending before this call");
}

}  // namespace

int main() {
  shapes_head_dim_and_schedule_pick_a_hopper_kernel();
  other_operations_pick_theirs();
  delta_is_computed_where_it_is_missing();
  only_hopper_takes_hopper_code();
  bad_arguments_are_named_before_anything_runs();
  no_refusal_of_a_foreign_launch_is_lost();
  return failures == 0 ? 0 : 1;
}
