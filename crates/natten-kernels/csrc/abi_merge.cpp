// The C entry points of the backend `merge`.
#include <cstdint>

#include "natten_kernels_merge.h"
#include "nattenc/abi.h"
#include "nattenc/checks.h"
#include "nattenc/merge.h"

namespace nattenc {
namespace {

int32_t run(const char* op, int32_t dtype, bool backward, const MergeCall& call) {
  NATTENC_TRY(require_built(op, "merge"));
  Request request{};
  request.op = op;
  request.family = "merge";
  request.backward = backward ? 1 : 0;
  request.dtype = dtype;
  const KernelEntry* entry;
  NATTENC_TRY(pick(request, entry));
  return entry->launch.compute_delta(call, entry->info);
}

int32_t merge_attentions(const char* op, const natten_merge_attentions_args* pointer) {
  NATTENC_TRY(check_args(op, pointer));
  const natten_merge_attentions_args& args = *pointer;
  NATTENC_TRY(check_dtype(op, args.dtype));
  NATTENC_TRY(check_positive(
      op, {{"batch", args.batch}, {"seqlen", args.seqlen}, {"heads", args.heads}, {"dim", args.dim}}));
  if (args.part_count < 2) {
    return fail(NATTEN_E_INVALID_ARGUMENT, "%s: part_count is %d, must be at least 2", op, args.part_count);
  }
  NATTENC_TRY(check_limit(op, "part_count", args.part_count, most_parts));
  const auto alignment = static_cast<size_t>(element_size(args.dtype));
  NATTENC_TRY(check_pointers(op, alignof(natten_attention_part), {{"parts", args.parts}}));
  NATTENC_TRY(check_pointers(op, alignment, {{"out", args.out}}));
  for (int32_t part = 0; part < args.part_count; ++part) {
    NATTENC_TRY(check_pointers(op, alignment, {{"out of a part", args.parts[part].out}}));
    NATTENC_TRY(check_pointers(op, sizeof(float), {{"logsumexp of a part", args.parts[part].logsumexp}}));
  }
  if (args.logsumexp != nullptr) {
    NATTENC_TRY(check_pointers(op, sizeof(float), {{"logsumexp", args.logsumexp}}));
  }
  NATTENC_TRY(check_limit(op, "the number of elements of out",
                          product({args.batch, args.seqlen, args.heads, args.dim}), INT64_MAX - 1));
  return run(op, args.dtype, false, MergeCall(args));
}

int32_t add_gradients(const char* op, const natten_add_gradients_args* pointer) {
  NATTENC_TRY(check_args(op, pointer));
  const natten_add_gradients_args& args = *pointer;
  NATTENC_TRY(check_dtype(op, args.dtype));
  NATTENC_TRY(check_positive(op, {{"batch", args.batch},
                                  {"seqlen", args.seqlen},
                                  {"heads", args.heads},
                                  {"count", args.count},
                                  {"dim", args.dim}}));
  NATTENC_TRY(check_pointers(op, static_cast<size_t>(element_size(args.dtype)),
                             {{"addends", args.addends}, {"sum", args.sum}}));
  NATTENC_TRY(check_limit(op, "the number of elements of addends",
                          product({args.batch, args.seqlen, args.heads, args.count, args.dim}), INT64_MAX - 1));
  return run(op, args.dtype, true, MergeCall(args));
}

}  // namespace
}  // namespace nattenc

int32_t natten_merge_attentions(const natten_merge_attentions_args* args) {
  return nattenc::guarded([&] { return nattenc::merge_attentions("natten_merge_attentions", args); });
}

int32_t natten_add_gradients(const natten_add_gradients_args* args) {
  return nattenc::guarded([&] { return nattenc::add_gradients("natten_add_gradients", args); });
}
