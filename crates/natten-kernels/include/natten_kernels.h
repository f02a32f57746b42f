/* natten_kernels.h: the C ABI of an artifact that nattenc builds.
 *
 * Every function returns a status (NATTEN_OK or one of the NATTEN_E_* values) and leaves the
 * reason of a failure in a thread-local message, natten_last_error(). No exception and no abort
 * crosses this boundary, and nothing is printed.
 *
 * All 37 operations are always present as symbols. One whose backend is not in this build returns
 * NATTEN_E_BACKEND_NOT_BUILT with the reason that the build plan gave.
 *
 * Pointers are device pointers, tensors are dense, row-major ("contiguous"), in the layouts that
 * each args struct states. Work is enqueued on `stream` (a cudaStream_t; NULL is the default
 * stream) of the current device. No call synchronises, and none calls cudaMalloc: workspace comes
 * from `allocator`, stream-ordered by default. A CUDA error that the caller left pending is never
 * reported as a call's own.
 */
#ifndef NATTEN_KERNELS_H
#define NATTEN_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* Raised whenever a struct below changes other than by growing at its end. */
#define NATTEN_KERNELS_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

#define NATTEN_API __attribute__((visibility("default")))

/* ---- status ------------------------------------------------------------------------------- */

enum {
  NATTEN_OK = 0,
  NATTEN_E_INVALID_ARGUMENT = 1,  /* a shape, pointer, parameter or struct size that is illegal */
  NATTEN_E_UNSUPPORTED = 2,       /* legal, but no kernel of this build takes it (tile, head dim, dtype, shared memory) */
  NATTEN_E_BACKEND_NOT_BUILT = 3, /* the backend is not in this build; the message has the reason */
  NATTEN_E_DEVICE = 4,            /* the artifact has no code for the current device */
  NATTEN_E_OUT_OF_MEMORY = 5,     /* the allocator returned NULL */
  NATTEN_E_CUDA = 6,              /* a CUDA call failed; the message names the call and the error */
  NATTEN_E_CUTLASS = 7,           /* can_implement, initialize or run refused; the message names it */
  NATTEN_E_INTERNAL = 8           /* a bug: an exception of the kernel library that nothing maps */
};

/* The message of the last failure of this thread, "" if there was none. Valid until the next call. */
NATTEN_API const char *natten_last_error(void);

/* ---- element types ------------------------------------------------------------------------ */

enum {
  NATTEN_FLOAT32 = 0,
  NATTEN_FLOAT16 = 1,
  NATTEN_BFLOAT16 = 2,
  NATTEN_FLOAT8_E4M3 = 3,
  NATTEN_FLOAT8_E5M2 = 4
};

/* ---- what this build holds ---------------------------------------------------------------- */

/* NATTEN_KERNELS_ABI_VERSION of the library. */
NATTEN_API uint32_t natten_abi_version(void);

/* The build's own description, JSON text (UTF-8, NUL-terminated, static): variant, toolkit,
 * natten version, and per backend whether it is built, for which capabilities, and why not.
 * The same object as "build" in the artifact's manifest.json. */
NATTEN_API const char *natten_build_info(void);

/* One kernel of this build. `tile` numbers are tokens; 0 where a family has no such notion. */
typedef struct natten_kernel_info {
  uint32_t size;            /* in: sizeof(natten_kernel_info) */
  const char *family;       /* "fna", "reference", "hopper_fna", ... */
  const char *name;         /* entry-point name, as upstream spells it */
  int32_t backward;         /* 0 forward, 1 backward; token permutation: 0 permute, 1 unpermute */
  int32_t rank;             /* 1, 2, 3; 0 where the family has no spatial rank */
  int32_t dtype;            /* NATTEN_FLOAT32, ... */
  int32_t causal;           /* bit i: dimension i is causal; dense attention: 0, its kernels take either */
  int32_t query_tile[3];    /* fna: [product, 0, 0]; hopper, blackwell: the shape */
  int32_t key_tile[3];
  int32_t max_head_dim;     /* the largest head dim this kernel takes; fna's and fmha's 65536 means any;
                               hopper: the only one */
  int32_t alignment;        /* head dims (token permutation: heads * dim) must be multiples of this
                               many elements, and operands aligned to as many */
  int32_t shared_memory;    /* dynamic shared memory, bytes */
  int32_t sm_min, sm_max;   /* device capability * 10 in [sm_min, sm_max): 80, 130; 0, 65535: any */
  int32_t schedule;         /* hopper: upstream's kernel type 0, 1, 2; blackwell forward: 1 is
                               persistent, 0 not; else -1 */
} natten_kernel_info;

NATTEN_API int32_t natten_kernel_count(void);
NATTEN_API int32_t natten_kernel_info_at(int32_t index, natten_kernel_info *info);

/* ---- memory ------------------------------------------------------------------------------- */

/* Workspace. `alloc` returns device memory of `bytes` bytes, aligned to 256 bytes as cudaMalloc's is,
 * zeroed on `stream` if `zero`, or NULL.
 * `free` is called after the operation's last launch. Both NULL: cudaMallocAsync and
 * cudaFreeAsync on the operation's stream. One NULL alone is NATTEN_E_INVALID_ARGUMENT. */
typedef struct natten_allocator {
  void *ctx;
  void *(*alloc)(void *ctx, size_t bytes, int32_t zero, void *stream);
  void (*free)(void *ctx, void *ptr, void *stream);
} natten_allocator;

/* ---- neighborhood attention, fna (core) backend --------------------------------------------
 *
 * query, out: [batch, *spatial, heads, dim], out and value with dim_value instead of dim;
 * key:        [batch, *spatial, heads, dim];  value: [batch, *spatial, heads, dim_value];
 * logsumexp:  [batch, *spatial, heads], float32.
 * `*spatial` is qkv_shape; arrays of 3 use their first `rank` numbers.
 * A kernel is chosen by the products of query_tile and of key_tile: the first that takes the head
 * dims and fits the device's shared memory.
 * Head dims must be multiples of 16 bytes, and tensors aligned to 16 bytes. 1 <= stride <= window;
 * window * dilation <= extent; window > 1; dilation >= 1. batch and heads * product of dilation are
 * at most 65535.
 */
typedef struct natten_fna_forward_args {
  uint32_t size;            /* sizeof(natten_fna_forward_args) */
  int32_t dtype;
  const void *query, *key, *value;
  void *out;
  float *logsumexp;         /* NULL: not computed */
  int32_t batch, heads, dim, dim_value;
  int32_t qkv_shape[3], window[3], stride[3], dilation[3];
  int32_t causal[3];        /* 0 or 1 per dimension */
  int32_t query_tile[3], key_tile[3];
  float scale;
  void *stream;
  natten_allocator allocator;
} natten_fna_forward_args;

/* `delta`: [batch, *spatial, heads] float32 = sum over dim of out * grad_out; NULL: computed here
 * (compute_delta must then be in the build). `key_splits`: upstream's num_splits_key, each from 1 to
 * the number of key tiles, ceil(ceil(extent / dilation) / key_tile); a product above 1 is faster for
 * small batches and not deterministic. */
typedef struct natten_fna_backward_args {
  uint32_t size;            /* sizeof(natten_fna_backward_args) */
  int32_t dtype;
  const void *query, *key, *value, *out, *grad_out;
  const float *logsumexp;
  const float *delta;
  void *grad_query, *grad_key, *grad_value;
  int32_t batch, heads, dim, dim_value;
  int32_t qkv_shape[3], window[3], stride[3], dilation[3];
  int32_t causal[3];
  int32_t query_tile[3], key_tile[3], key_splits[3];
  float scale;
  void *stream;
  natten_allocator allocator;
} natten_fna_backward_args;

NATTEN_API int32_t natten_na1d_forward(const natten_fna_forward_args *args);
NATTEN_API int32_t natten_na2d_forward(const natten_fna_forward_args *args);
NATTEN_API int32_t natten_na3d_forward(const natten_fna_forward_args *args);
NATTEN_API int32_t natten_na1d_backward(const natten_fna_backward_args *args);
NATTEN_API int32_t natten_na2d_backward(const natten_fna_backward_args *args);
NATTEN_API int32_t natten_na3d_backward(const natten_fna_backward_args *args);

/* ---- neighborhood attention, reference backend ----------------------------------------------
 *
 * query, out: [batch, seqlen, heads, dim | dim_value];  seqlen = product of qkv_shape;
 * key, value: [batch, seqlen + num_extra_kv, heads_kv, dim | dim_value];
 * logsumexp:  [batch, seqlen, heads], float32, required.
 * The extra tokens follow the neighborhood's in key and value; every query attends to them.
 * heads is a multiple of heads_kv (GQA, MQA). dim_value <= 1024; backward: dim too.
 * The kernels index with 32-bit numbers: a tensor (backward: one batch of it) has fewer than 2^31
 * elements. batch * heads <= 65535.
 */
typedef struct natten_reference_forward_args {
  uint32_t size;
  int32_t dtype;
  const void *query, *key, *value;
  void *out;
  float *logsumexp;
  int32_t batch, heads, heads_kv, dim, dim_value, num_extra_kv;
  int32_t qkv_shape[3], window[3], stride[3], dilation[3];
  int32_t causal[3];
  float scale;
  void *stream;
} natten_reference_forward_args;

typedef struct natten_reference_backward_args {
  uint32_t size;
  int32_t dtype;
  const void *query, *key, *value, *out, *grad_out;
  const float *logsumexp;
  void *grad_query, *grad_key, *grad_value;
  int32_t batch, heads, heads_kv, dim, dim_value, num_extra_kv;
  int32_t qkv_shape[3], window[3], stride[3], dilation[3];
  int32_t causal[3];
  float scale;
  void *stream;
} natten_reference_backward_args;

NATTEN_API int32_t natten_reference_na1d_forward(const natten_reference_forward_args *args);
NATTEN_API int32_t natten_reference_na2d_forward(const natten_reference_forward_args *args);
NATTEN_API int32_t natten_reference_na3d_forward(const natten_reference_forward_args *args);
NATTEN_API int32_t natten_reference_na1d_backward(const natten_reference_backward_args *args);
NATTEN_API int32_t natten_reference_na2d_backward(const natten_reference_backward_args *args);
NATTEN_API int32_t natten_reference_na3d_backward(const natten_reference_backward_args *args);

/* ---- token permutation -----------------------------------------------------------------------
 *
 * Permute:   in [batch, *token_layout, heads, dim] -> out [batch, seqlen, heads, dim], where seqlen
 *            is the product over dimensions of tile * dilation * ceil(ceil(extent / tile) / dilation);
 *            padding tokens are written as zero.
 * Unpermute: the inverse, padding dropped: in has seqlen, out has *token_layout.
 * Fastest where heads * dim is a multiple of 8 and both tensors are aligned to 8 elements.
 * FP8 (only on 10.0 and 10.3) needs the blackwell section.
 */
typedef struct natten_token_permute_args {
  uint32_t size;
  int32_t dtype;
  const void *in;
  void *out;
  int32_t batch, seqlen, heads, dim;
  int32_t token_layout[3], tile[3], dilation[3];
  int32_t flip_tiled_dims;  /* 0 or 1 */
  void *stream;
} natten_token_permute_args;

NATTEN_API int32_t natten_token_permute_1d(const natten_token_permute_args *args);
NATTEN_API int32_t natten_token_permute_2d(const natten_token_permute_args *args);
NATTEN_API int32_t natten_token_permute_3d(const natten_token_permute_args *args);
NATTEN_API int32_t natten_token_unpermute_1d(const natten_token_permute_args *args);
NATTEN_API int32_t natten_token_unpermute_2d(const natten_token_permute_args *args);
NATTEN_API int32_t natten_token_unpermute_3d(const natten_token_permute_args *args);

/* ---- delta -----------------------------------------------------------------------------------
 *
 * out, grad_out: [batch, seqlen, heads, dim];  delta: [batch, seqlen, heads], float32:
 * delta = sum over dim of out * grad_out. dim is even; out and grad_out are aligned to two elements.
 */
typedef struct natten_compute_delta_args {
  uint32_t size;
  int32_t dtype;
  const void *out, *grad_out;
  float *delta;
  int32_t batch, seqlen, heads, dim;
  void *stream;
} natten_compute_delta_args;

NATTEN_API int32_t natten_compute_delta(const natten_compute_delta_args *args);

/* ---- hopper and blackwell neighborhood attention ---------------------------------------------
 *
 * Tensors are already token-permuted (with flip_tiled_dims) and padded to tiles: rank 4, [batch, seqlen,
 * heads, dim]. The groups of a dilation are batch entries: what token permutation writes as [n, tokens]
 * is here [n * product of dilation, tokens / product of dilation].
 * query, out, grad_query: heads; key, value, grad_key, grad_value: heads_kv, seqlen_kv tokens.
 * logsumexp: [batch, seqlen_q, heads], float32.
 * q_shape, kv_shape: token extents of a dilation group padded to tiles, ceil(ceil(extent / tile) /
 * dilation) * tile; their products are seqlen_q and seqlen_kv. qkv_shape: the extents before.
 * `kernel_type`: hopper's schedule (0 non-persistent, 1 cooperative, 2 ping-pong).
 *
 * hopper: float16 and bfloat16; head dims 32, 64, 128 and, forward, 256; a kernel is chosen by the tile
 * shapes, the head dim and kernel_type. logsumexp is required. heads_kv is heads, num_extra_kv and
 * persistent 0. A scale of 0 stands for 1 / sqrt(dim). Backward needs no delta and reads none; it adds
 * in varying order. Tensors are aligned to 16 bytes; batch and heads are at most 65535; backward, a
 * batch entry has fewer than 2^31 elements.
 *
 * blackwell: float16 and bfloat16, forward also FP8; a kernel is chosen by the tile shapes, the smallest
 * head dim of 32, 64, 128 that is not below dim, and forward by `persistent`, the scheduler (0 or 1).
 * dim is a multiple of 16 bytes. heads is a multiple of heads_kv. Forward, logsumexp may be NULL.
 * num_extra_kv and kernel_type are 0. scale is not 0. Backward reads no delta and adds in varying order.
 * Tensors are aligned to 16 bytes; batch and heads are at most 65535 (persistent: no such limit);
 * backward, a batch entry has fewer than 2^31 elements.
 */
typedef struct natten_tiled_fna_forward_args {
  uint32_t size;
  int32_t dtype;
  const void *query, *key, *value;
  void *out;
  float *logsumexp;
  int32_t batch, seqlen_q, seqlen_kv, heads, heads_kv, dim, num_extra_kv;
  int32_t q_shape[3], kv_shape[3], qkv_shape[3], window[3], stride[3], dilation[3];
  int32_t causal[3];
  int32_t query_tile[3], key_tile[3];
  int32_t kernel_type, persistent;
  float scale;
  float scale_q, scale_k, scale_v, inv_scale_o; /* FP8 only; 1 otherwise */
  void *stream;
  natten_allocator allocator;
} natten_tiled_fna_forward_args;

typedef struct natten_tiled_fna_backward_args {
  uint32_t size;
  int32_t dtype;
  const void *query, *key, *value, *out, *grad_out;
  const float *logsumexp;
  const float *delta;       /* NULL: computed here */
  void *grad_query, *grad_key, *grad_value;
  int32_t batch, seqlen_q, seqlen_kv, heads, heads_kv, dim, num_extra_kv;
  int32_t q_shape[3], kv_shape[3], qkv_shape[3], window[3], stride[3], dilation[3];
  int32_t causal[3];
  int32_t query_tile[3], key_tile[3];
  float scale;
  void *stream;
  natten_allocator allocator;
} natten_tiled_fna_backward_args;

NATTEN_API int32_t natten_hopper_na1d_forward(const natten_tiled_fna_forward_args *args);
NATTEN_API int32_t natten_hopper_na2d_forward(const natten_tiled_fna_forward_args *args);
NATTEN_API int32_t natten_hopper_na3d_forward(const natten_tiled_fna_forward_args *args);
NATTEN_API int32_t natten_hopper_na1d_backward(const natten_tiled_fna_backward_args *args);
NATTEN_API int32_t natten_hopper_na2d_backward(const natten_tiled_fna_backward_args *args);
NATTEN_API int32_t natten_hopper_na3d_backward(const natten_tiled_fna_backward_args *args);
NATTEN_API int32_t natten_blackwell_na1d_forward(const natten_tiled_fna_forward_args *args);
NATTEN_API int32_t natten_blackwell_na2d_forward(const natten_tiled_fna_forward_args *args);
NATTEN_API int32_t natten_blackwell_na3d_forward(const natten_tiled_fna_forward_args *args);
NATTEN_API int32_t natten_blackwell_na1d_backward(const natten_tiled_fna_backward_args *args);
NATTEN_API int32_t natten_blackwell_na2d_backward(const natten_tiled_fna_backward_args *args);
NATTEN_API int32_t natten_blackwell_na3d_backward(const natten_tiled_fna_backward_args *args);

/* ---- dense attention -------------------------------------------------------------------------
 *
 * query, out: [batch, seqlen_q, heads, dim | dim_value]; key, value: [batch, seqlen_kv, heads_kv, ..].
 * logsumexp:  [batch, seqlen_q, heads], float32.
 * A causal query at position i attends to the keys up to position i.
 * Variable length: cumulative_seqlen_* are device int32 arrays of batch + 1 numbers, and the tensors
 * hold the sequences one after another as a single batch entry of seqlen_* tokens; max_seqlen_* are the
 * arrays' largest differences. Tokens of no sequence are not written. NULL and 0: fixed length.
 *
 * fmha: heads_kv is heads, kernel_type and persistent are 0; logsumexp may be NULL. Head dims are
 * multiples of 16 bytes. `key_splits` is from 1 to the number of key tiles; above 1 is faster for small
 * batches and not deterministic. `delta` as in fna.
 * hopper: as hopper neighborhood attention, with dim_value equal to dim; key_splits is 0 or 1.
 * blackwell: as blackwell neighborhood attention, with dim_value equal to dim; key_splits is 0 or 1.
 * fmha and hopper: tensors are aligned to 16 bytes; batch and heads are at most 65535; a batch entry has fewer than
 * 2^31 elements (hopper forward with fixed length: no such limit).
 */
typedef struct natten_fmha_forward_args {
  uint32_t size;
  int32_t dtype;
  const void *query, *key, *value;
  void *out;
  float *logsumexp;
  int32_t batch, seqlen_q, seqlen_kv, heads, heads_kv, dim, dim_value;
  int32_t causal;
  int32_t query_tile, key_tile;
  int32_t kernel_type, persistent;
  float scale;
  float scale_q, scale_k, scale_v, inv_scale_o;
  const int32_t *cumulative_seqlen_q, *cumulative_seqlen_kv;
  int32_t max_seqlen_q, max_seqlen_kv;
  void *stream;
  natten_allocator allocator;
} natten_fmha_forward_args;

typedef struct natten_fmha_backward_args {
  uint32_t size;
  int32_t dtype;
  const void *query, *key, *value, *out, *grad_out;
  const float *logsumexp;
  const float *delta;
  void *grad_query, *grad_key, *grad_value;
  int32_t batch, seqlen_q, seqlen_kv, heads, heads_kv, dim, dim_value;
  int32_t causal;
  int32_t query_tile, key_tile, key_splits;
  float scale;
  const int32_t *cumulative_seqlen_q, *cumulative_seqlen_kv;
  int32_t max_seqlen_q, max_seqlen_kv;
  void *stream;
  natten_allocator allocator;
  int32_t deterministic;    /* blackwell: 1 adds in a fixed order; 0 elsewhere */
} natten_fmha_backward_args;

NATTEN_API int32_t natten_fmha_forward(const natten_fmha_forward_args *args);
NATTEN_API int32_t natten_fmha_backward(const natten_fmha_backward_args *args);
NATTEN_API int32_t natten_hopper_fmha_forward(const natten_fmha_forward_args *args);
NATTEN_API int32_t natten_hopper_fmha_backward(const natten_fmha_backward_args *args);
NATTEN_API int32_t natten_blackwell_fmha_forward(const natten_fmha_forward_args *args);
NATTEN_API int32_t natten_blackwell_fmha_backward(const natten_fmha_backward_args *args);

#ifdef __cplusplus
}
#endif

#endif /* NATTEN_KERNELS_H */
