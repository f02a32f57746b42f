// Tests of the backend `merge` over a made-up CUDA runtime: what is refused, and what reaches the launchers.
#include <string>

#include "support.h"

#include "natten_kernels_merge.h"
#include "nattenc/merge.h"
#include "nattenc/registry.h"
#include "nattenc/runtime.h"

// ---- the build --------------------------------------------------------------------------------

namespace nattenc {
namespace {

int32_t run_merge(const natten_compute_delta_args& call, const KernelInfo& info) {
  const natten_merge_attentions_args& args = *static_cast<const MergeCall&>(call).merge;
  int parameter = 0;
  claim(args.part_count == 2 && args.parts[1].out == memory + 64, "the caller's arguments arrive");
  return launch(info.name, info.name, {1, 1, 1}, {1, 1, 1}, 0, &parameter, args.stream);
}

int32_t run_add(const natten_compute_delta_args& call, const KernelInfo& info) {
  const natten_add_gradients_args& args = *static_cast<const MergeCall&>(call).add;
  int parameter = 0;
  claim(args.count == 3 && args.sum == memory + 128, "the caller's arguments arrive");
  return launch(info.name, info.name, {1, 1, 1}, {1, 1, 1}, 0, &parameter, args.stream);
}

constexpr KernelInfo half(const char* name, int32_t backward) {
  KernelInfo info = kernel_info("merge", name, backward, 0, NATTEN_FLOAT16, 0);
  info.sm_max = 65535;
  return info;
}

constexpr KernelEntry entries[] = {{half("merge", 0), &run_merge}, {half("add", 1), &run_add}};
constexpr UnitEntries unit = {"merge", entries, 2};
constexpr Code code = {9, 0, 0, false};

}  // namespace

const Unit units[] = {{&unit, &code, 1}};
const int32_t unit_count = 1;
const Absence absences[] = {{nullptr, nullptr}};
const int32_t absence_count = 0;
const char build_info[] = "{}";
const char variant[] = "cu130";

}  // namespace nattenc

namespace {

natten_attention_part parts[33];

natten_merge_attentions_args merge_args() {
  for (natten_attention_part& part : parts) {
    part = {memory + 64, F};
  }
  auto args = sized<natten_merge_attentions_args>();
  args.dtype = NATTEN_FLOAT16;
  args.parts = parts;
  args.out = P;
  args.part_count = 2;
  args.batch = args.seqlen = args.heads = args.dim = 5;
  return args;
}

natten_add_gradients_args add_args() {
  auto args = sized<natten_add_gradients_args>();
  args.dtype = NATTEN_FLOAT16;
  args.addends = P;
  args.sum = memory + 128;
  args.batch = args.seqlen = args.heads = args.dim = 5;
  args.count = 3;
  return args;
}

#define BAD(entry, make, edit, status, message) \
  do {                                          \
    auto a = make;                              \
    edit;                                       \
    context = #entry ": " #edit;                \
    runtime.calls.clear();                      \
    answers(entry(&a), status, message);        \
    equal(runtime.calls, "");                   \
  } while (false)
#define BAD_MERGE(edit, message) BAD(natten_merge_attentions, merge_args(), edit, NATTEN_E_INVALID_ARGUMENT, message)
#define BAD_ADD(edit, message) BAD(natten_add_gradients, add_args(), edit, NATTEN_E_INVALID_ARGUMENT, message)

void bad_arguments_are_named_before_anything_runs() {
  BAD_MERGE(a.size = 4, "args->size is 4");
  BAD_MERGE(a.dtype = 7, "dtype 7 is none");
  BAD_MERGE(a.heads = 0, "heads is 0");
  BAD_MERGE(a.part_count = 1, "part_count is 1, must be at least 2");
  BAD_MERGE(a.parts = nullptr, "parts is NULL");
  BAD_MERGE(a.out = memory + 1, "not aligned to 2 bytes");
  BAD_MERGE(parts[1].out = nullptr, "out of a part is NULL");
  BAD_MERGE(parts[0].logsumexp = nullptr, "logsumexp of a part is NULL");
  BAD_MERGE(a.logsumexp = reinterpret_cast<float*>(memory + 2), "not aligned to 4 bytes");
  BAD(natten_merge_attentions, merge_args(), a.part_count = 33, NATTEN_E_UNSUPPORTED, "part_count is 33");
  BAD(natten_merge_attentions, merge_args(), (a.batch = a.seqlen = a.heads = a.dim = INT32_MAX), NATTEN_E_UNSUPPORTED,
      "the number of elements of out");
  BAD(natten_merge_attentions, merge_args(), a.dtype = NATTEN_FLOAT8_E4M3, NATTEN_E_UNSUPPORTED,
      "no merge kernel for float8_e4m3 forward");
  BAD_ADD(a.size = 4, "args->size is 4");
  BAD_ADD(a.count = 0, "count is 0");
  BAD_ADD(a.addends = memory + 1, "not aligned to 2 bytes");
  BAD_ADD(a.sum = nullptr, "sum is NULL");
  answers(natten_merge_attentions(nullptr), NATTEN_E_INVALID_ARGUMENT, "args is NULL");
  answers(natten_add_gradients(nullptr), NATTEN_E_INVALID_ARGUMENT, "args is NULL");
}

void calls_reach_their_kernels() {
  context = "calls";
  runtime.calls.clear();
  const auto merge = merge_args();
  answers(natten_merge_attentions(&merge), NATTEN_OK, "");
  const auto add = add_args();
  answers(natten_add_gradients(&add), NATTEN_OK, "");
  equal(runtime.calls, "merge add");
  auto other = merge_args();
  other.dtype = NATTEN_BFLOAT16;
  answers(natten_merge_attentions(&other), NATTEN_E_UNSUPPORTED, "no merge kernel for bfloat16 forward; it has float16");
}

}  // namespace

int main() {
  bad_arguments_are_named_before_anything_runs();
  calls_reach_their_kernels();
  return failures == 0 ? 0 : 1;
}
