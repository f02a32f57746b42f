//! The C ABI, declarations only: a mirror of `include/natten_kernels.h`, which `tests/abi.rs` holds to
//! it field by field. The header says what each field means.
//!
//! The functions exist in a program only if an artifact is linked; call them through [`crate::ops`],
//! which checks arguments and answers with a typed error either way.

#![expect(missing_docs, reason = "the header documents every item; a copy would drift")]

use std::ffi::{c_char, c_void};

/// The version of the C ABI that this module mirrors.
pub const NATTEN_KERNELS_ABI_VERSION: u32 = 1;

pub const NATTEN_OK: i32 = 0;
pub const NATTEN_E_INVALID_ARGUMENT: i32 = 1;
pub const NATTEN_E_UNSUPPORTED: i32 = 2;
pub const NATTEN_E_BACKEND_NOT_BUILT: i32 = 3;
pub const NATTEN_E_DEVICE: i32 = 4;
pub const NATTEN_E_OUT_OF_MEMORY: i32 = 5;
pub const NATTEN_E_CUDA: i32 = 6;
pub const NATTEN_E_CUTLASS: i32 = 7;
pub const NATTEN_E_INTERNAL: i32 = 8;

pub const NATTEN_FLOAT32: i32 = 0;
pub const NATTEN_FLOAT16: i32 = 1;
pub const NATTEN_BFLOAT16: i32 = 2;
pub const NATTEN_FLOAT8_E4M3: i32 = 3;
pub const NATTEN_FLOAT8_E5M2: i32 = 4;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct natten_kernel_info {
    pub size: u32,
    pub family: *const c_char,
    pub name: *const c_char,
    pub backward: i32,
    pub rank: i32,
    pub dtype: i32,
    pub causal: i32,
    pub query_tile: [i32; 3],
    pub key_tile: [i32; 3],
    pub max_head_dim: i32,
    pub alignment: i32,
    pub shared_memory: i32,
    pub sm_min: i32,
    pub sm_max: i32,
    pub schedule: i32,
}

/// `natten_allocator.alloc`.
pub type AllocFn =
    unsafe extern "C" fn(ctx: *mut c_void, bytes: usize, zero: i32, stream: *mut c_void) -> *mut c_void;
/// `natten_allocator.free`.
pub type FreeFn = unsafe extern "C" fn(ctx: *mut c_void, ptr: *mut c_void, stream: *mut c_void);

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct natten_allocator {
    pub ctx: *mut c_void,
    pub alloc: Option<AllocFn>,
    pub free: Option<FreeFn>,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct natten_fna_forward_args {
    pub size: u32,
    pub dtype: i32,
    pub query: *const c_void,
    pub key: *const c_void,
    pub value: *const c_void,
    pub out: *mut c_void,
    pub logsumexp: *mut f32,
    pub batch: i32,
    pub heads: i32,
    pub dim: i32,
    pub dim_value: i32,
    pub qkv_shape: [i32; 3],
    pub window: [i32; 3],
    pub stride: [i32; 3],
    pub dilation: [i32; 3],
    pub causal: [i32; 3],
    pub query_tile: [i32; 3],
    pub key_tile: [i32; 3],
    pub scale: f32,
    pub stream: *mut c_void,
    pub allocator: natten_allocator,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct natten_fna_backward_args {
    pub size: u32,
    pub dtype: i32,
    pub query: *const c_void,
    pub key: *const c_void,
    pub value: *const c_void,
    pub out: *const c_void,
    pub grad_out: *const c_void,
    pub logsumexp: *const f32,
    pub delta: *const f32,
    pub grad_query: *mut c_void,
    pub grad_key: *mut c_void,
    pub grad_value: *mut c_void,
    pub batch: i32,
    pub heads: i32,
    pub dim: i32,
    pub dim_value: i32,
    pub qkv_shape: [i32; 3],
    pub window: [i32; 3],
    pub stride: [i32; 3],
    pub dilation: [i32; 3],
    pub causal: [i32; 3],
    pub query_tile: [i32; 3],
    pub key_tile: [i32; 3],
    pub key_splits: [i32; 3],
    pub scale: f32,
    pub stream: *mut c_void,
    pub allocator: natten_allocator,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct natten_reference_forward_args {
    pub size: u32,
    pub dtype: i32,
    pub query: *const c_void,
    pub key: *const c_void,
    pub value: *const c_void,
    pub out: *mut c_void,
    pub logsumexp: *mut f32,
    pub batch: i32,
    pub heads: i32,
    pub heads_kv: i32,
    pub dim: i32,
    pub dim_value: i32,
    pub num_extra_kv: i32,
    pub qkv_shape: [i32; 3],
    pub window: [i32; 3],
    pub stride: [i32; 3],
    pub dilation: [i32; 3],
    pub causal: [i32; 3],
    pub scale: f32,
    pub stream: *mut c_void,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct natten_reference_backward_args {
    pub size: u32,
    pub dtype: i32,
    pub query: *const c_void,
    pub key: *const c_void,
    pub value: *const c_void,
    pub out: *const c_void,
    pub grad_out: *const c_void,
    pub logsumexp: *const f32,
    pub grad_query: *mut c_void,
    pub grad_key: *mut c_void,
    pub grad_value: *mut c_void,
    pub batch: i32,
    pub heads: i32,
    pub heads_kv: i32,
    pub dim: i32,
    pub dim_value: i32,
    pub num_extra_kv: i32,
    pub qkv_shape: [i32; 3],
    pub window: [i32; 3],
    pub stride: [i32; 3],
    pub dilation: [i32; 3],
    pub causal: [i32; 3],
    pub scale: f32,
    pub stream: *mut c_void,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct natten_token_permute_args {
    pub size: u32,
    pub dtype: i32,
    pub r#in: *const c_void,
    pub out: *mut c_void,
    pub batch: i32,
    pub seqlen: i32,
    pub heads: i32,
    pub dim: i32,
    pub token_layout: [i32; 3],
    pub tile: [i32; 3],
    pub dilation: [i32; 3],
    pub flip_tiled_dims: i32,
    pub stream: *mut c_void,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct natten_compute_delta_args {
    pub size: u32,
    pub dtype: i32,
    pub out: *const c_void,
    pub grad_out: *const c_void,
    pub delta: *mut f32,
    pub batch: i32,
    pub seqlen: i32,
    pub heads: i32,
    pub dim: i32,
    pub stream: *mut c_void,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct natten_attention_part {
    pub out: *const c_void,
    pub logsumexp: *const f32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct natten_merge_attentions_args {
    pub size: u32,
    pub dtype: i32,
    pub parts: *const natten_attention_part,
    pub out: *mut c_void,
    pub logsumexp: *mut f32,
    pub part_count: i32,
    pub batch: i32,
    pub seqlen: i32,
    pub heads: i32,
    pub dim: i32,
    pub stream: *mut c_void,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct natten_add_gradients_args {
    pub size: u32,
    pub dtype: i32,
    pub addends: *const c_void,
    pub sum: *mut c_void,
    pub batch: i32,
    pub seqlen: i32,
    pub heads: i32,
    pub count: i32,
    pub dim: i32,
    pub stream: *mut c_void,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct natten_tiled_fna_forward_args {
    pub size: u32,
    pub dtype: i32,
    pub query: *const c_void,
    pub key: *const c_void,
    pub value: *const c_void,
    pub out: *mut c_void,
    pub logsumexp: *mut f32,
    pub batch: i32,
    pub seqlen_q: i32,
    pub seqlen_kv: i32,
    pub heads: i32,
    pub heads_kv: i32,
    pub dim: i32,
    pub num_extra_kv: i32,
    pub q_shape: [i32; 3],
    pub kv_shape: [i32; 3],
    pub qkv_shape: [i32; 3],
    pub window: [i32; 3],
    pub stride: [i32; 3],
    pub dilation: [i32; 3],
    pub causal: [i32; 3],
    pub query_tile: [i32; 3],
    pub key_tile: [i32; 3],
    pub kernel_type: i32,
    pub persistent: i32,
    pub scale: f32,
    pub scale_q: f32,
    pub scale_k: f32,
    pub scale_v: f32,
    pub inv_scale_o: f32,
    pub stream: *mut c_void,
    pub allocator: natten_allocator,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct natten_tiled_fna_backward_args {
    pub size: u32,
    pub dtype: i32,
    pub query: *const c_void,
    pub key: *const c_void,
    pub value: *const c_void,
    pub out: *const c_void,
    pub grad_out: *const c_void,
    pub logsumexp: *const f32,
    pub delta: *const f32,
    pub grad_query: *mut c_void,
    pub grad_key: *mut c_void,
    pub grad_value: *mut c_void,
    pub batch: i32,
    pub seqlen_q: i32,
    pub seqlen_kv: i32,
    pub heads: i32,
    pub heads_kv: i32,
    pub dim: i32,
    pub num_extra_kv: i32,
    pub q_shape: [i32; 3],
    pub kv_shape: [i32; 3],
    pub qkv_shape: [i32; 3],
    pub window: [i32; 3],
    pub stride: [i32; 3],
    pub dilation: [i32; 3],
    pub causal: [i32; 3],
    pub query_tile: [i32; 3],
    pub key_tile: [i32; 3],
    pub scale: f32,
    pub stream: *mut c_void,
    pub allocator: natten_allocator,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct natten_fmha_forward_args {
    pub size: u32,
    pub dtype: i32,
    pub query: *const c_void,
    pub key: *const c_void,
    pub value: *const c_void,
    pub out: *mut c_void,
    pub logsumexp: *mut f32,
    pub batch: i32,
    pub seqlen_q: i32,
    pub seqlen_kv: i32,
    pub heads: i32,
    pub heads_kv: i32,
    pub dim: i32,
    pub dim_value: i32,
    pub causal: i32,
    pub query_tile: i32,
    pub key_tile: i32,
    pub kernel_type: i32,
    pub persistent: i32,
    pub scale: f32,
    pub scale_q: f32,
    pub scale_k: f32,
    pub scale_v: f32,
    pub inv_scale_o: f32,
    pub cumulative_seqlen_q: *const i32,
    pub cumulative_seqlen_kv: *const i32,
    pub max_seqlen_q: i32,
    pub max_seqlen_kv: i32,
    pub stream: *mut c_void,
    pub allocator: natten_allocator,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct natten_fmha_backward_args {
    pub size: u32,
    pub dtype: i32,
    pub query: *const c_void,
    pub key: *const c_void,
    pub value: *const c_void,
    pub out: *const c_void,
    pub grad_out: *const c_void,
    pub logsumexp: *const f32,
    pub delta: *const f32,
    pub grad_query: *mut c_void,
    pub grad_key: *mut c_void,
    pub grad_value: *mut c_void,
    pub batch: i32,
    pub seqlen_q: i32,
    pub seqlen_kv: i32,
    pub heads: i32,
    pub heads_kv: i32,
    pub dim: i32,
    pub dim_value: i32,
    pub causal: i32,
    pub query_tile: i32,
    pub key_tile: i32,
    pub key_splits: i32,
    pub scale: f32,
    pub cumulative_seqlen_q: *const i32,
    pub cumulative_seqlen_kv: *const i32,
    pub max_seqlen_q: i32,
    pub max_seqlen_kv: i32,
    pub stream: *mut c_void,
    pub allocator: natten_allocator,
    pub deterministic: i32,
}

unsafe extern "C" {
    pub fn natten_last_error() -> *const c_char;
    pub fn natten_abi_version() -> u32;
    pub fn natten_build_info() -> *const c_char;
    pub fn natten_kernel_count() -> i32;
    pub fn natten_kernel_info_at(index: i32, info: *mut natten_kernel_info) -> i32;
}

/// An operation of the C ABI: work for a device, described by one args struct.
pub type Operation<Args> = unsafe extern "C" fn(args: *const Args) -> i32;

macro_rules! operations {
    ($($args:ident: $($name:ident)+;)+) => {
        unsafe extern "C" {
            $($(pub fn $name(args: *const $args) -> i32;)+)+
        }

        /// Every operation with the name of its args struct.
        pub const OPERATIONS: &[(&str, &str)] = &[$($((stringify!($name), stringify!($args)),)+)+];
    };
}

operations! {
    natten_fna_forward_args: natten_na1d_forward natten_na2d_forward natten_na3d_forward;
    natten_fna_backward_args: natten_na1d_backward natten_na2d_backward natten_na3d_backward;
    natten_reference_forward_args:
        natten_reference_na1d_forward natten_reference_na2d_forward natten_reference_na3d_forward;
    natten_reference_backward_args:
        natten_reference_na1d_backward natten_reference_na2d_backward natten_reference_na3d_backward;
    natten_token_permute_args:
        natten_token_permute_1d natten_token_permute_2d natten_token_permute_3d
        natten_token_unpermute_1d natten_token_unpermute_2d natten_token_unpermute_3d;
    natten_compute_delta_args: natten_compute_delta;
    natten_merge_attentions_args: natten_merge_attentions;
    natten_add_gradients_args: natten_add_gradients;
    natten_tiled_fna_forward_args:
        natten_hopper_na1d_forward natten_hopper_na2d_forward natten_hopper_na3d_forward
        natten_blackwell_na1d_forward natten_blackwell_na2d_forward natten_blackwell_na3d_forward;
    natten_tiled_fna_backward_args:
        natten_hopper_na1d_backward natten_hopper_na2d_backward natten_hopper_na3d_backward
        natten_blackwell_na1d_backward natten_blackwell_na2d_backward natten_blackwell_na3d_backward;
    natten_fmha_forward_args: natten_fmha_forward natten_hopper_fmha_forward natten_blackwell_fmha_forward;
    natten_fmha_backward_args: natten_fmha_backward natten_hopper_fmha_backward natten_blackwell_fmha_backward;
}
