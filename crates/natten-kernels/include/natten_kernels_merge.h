/* natten_kernels_merge.h: what joins the results of several attentions. Part of the C ABI of an artifact,
 * by the rules and with the version of natten_kernels.h. Both operations belong to the backend `merge`.
 */
#ifndef NATTEN_KERNELS_MERGE_H
#define NATTEN_KERNELS_MERGE_H

#include "natten_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- merging attentions -----------------------------------------------------------------------
 *
 * Attentions of the same queries to different keys become attention to all of those keys:
 * logsumexp = log(sum over parts of exp(part's logsumexp)), out = sum over parts of
 * exp(part's logsumexp - logsumexp) * part's out. Sums are of float32.
 * out: [batch, seqlen, heads, dim];  logsumexp: [batch, seqlen, heads], float32; each part's likewise.
 * A part with minus infinity for logsumexp has no key for that query and is not read; a query without any
 * gets 0 and minus infinity. float32, float16, bfloat16; tensors are aligned to an element.
 * The gradient of a part is that of its own backward pass, given the merged out and logsumexp in the place of
 * its own; no gradient of logsumexp is taken. The gradients of the queries add up.
 */
typedef struct natten_attention_part {
  const void *out;
  const float *logsumexp;
} natten_attention_part;

typedef struct natten_merge_attentions_args {
  uint32_t size;            /* sizeof(natten_merge_attentions_args) */
  int32_t dtype;
  const natten_attention_part *parts; /* host memory, read before the call returns */
  void *out;                /* may be a part's own */
  float *logsumexp;         /* NULL: not written; may be a part's own */
  int32_t part_count;       /* 2 to 32 */
  int32_t batch, seqlen, heads, dim;
  void *stream;
} natten_merge_attentions_args;

NATTEN_API int32_t natten_merge_attentions(const natten_merge_attentions_args *args);

/* ---- adding up gradients ----------------------------------------------------------------------
 *
 * addends: [batch, seqlen, heads, count, dim];  sum: [batch, seqlen, heads, dim], the sum over count, in its
 * order and of float32: the gradient of key heads that were copied count times each. With batch, seqlen and
 * heads of 1 it adds up whole tensors of dim elements that lie one after another.
 * float32, float16, bfloat16; tensors are aligned to an element.
 */
typedef struct natten_add_gradients_args {
  uint32_t size;            /* sizeof(natten_add_gradients_args) */
  int32_t dtype;
  const void *addends;
  void *sum;                /* overlaps nothing */
  int32_t batch, seqlen, heads, count, dim;
  void *stream;
} natten_add_gradients_args;

NATTEN_API int32_t natten_add_gradients(const natten_add_gradients_args *args);

#ifdef __cplusplus
}
#endif

#endif
