//! The calls into the linked library: the only place that calls the C ABI. Without an artifact every
//! call answers with the typed error, and no symbol of the library is referred to.

use crate::backend::Backend;
use crate::error::Result;
use crate::sys;
use crate::variant::{self, Artifact};

#[cfg(not(natten_kernels_unlinked))]
use crate::{
    dtype::Dtype,
    error::Error,
    status,
    table::{Direction, Kernel},
};
#[cfg(not(natten_kernels_unlinked))]
use std::ffi::CStr;

/// What the linked library says of itself; `None` without one.
pub(crate) fn artifact() -> Result<Option<Artifact>> {
    #[cfg(natten_kernels_unlinked)]
    return Ok(None);
    #[cfg(not(natten_kernels_unlinked))]
    describe().map(Some)
}

#[cfg(not(natten_kernels_unlinked))]
fn describe() -> Result<Artifact> {
    // SAFETY: takes nothing and returns a number.
    let found = unsafe { sys::natten_abi_version() };
    if found != sys::NATTEN_KERNELS_ABI_VERSION {
        return Err(Error::AbiMismatch { expected: sys::NATTEN_KERNELS_ABI_VERSION, found });
    }
    // SAFETY: takes nothing and returns a static string.
    let info = unsafe { sys::natten_build_info() };
    let info = text(info).ok_or_else(|| Error::Internal("natten_build_info() is null".to_owned()))?;
    // SAFETY: takes nothing and returns a number.
    let count = unsafe { sys::natten_kernel_count() };
    let kernels: Result<Vec<Kernel>> = (0..count).map(kernel).collect();
    Artifact::new(&info, kernels?)
}

#[cfg(not(natten_kernels_unlinked))]
fn kernel(index: i32) -> Result<Kernel> {
    let mut info = sys::natten_kernel_info {
        size: size_of::<sys::natten_kernel_info>() as u32,
        family: std::ptr::null(),
        name: std::ptr::null(),
        backward: 0,
        rank: 0,
        dtype: 0,
        causal: 0,
        query_tile: [0; 3],
        key_tile: [0; 3],
        max_head_dim: 0,
        alignment: 0,
        shared_memory: 0,
        sm_min: 0,
        sm_max: 0,
        schedule: -1,
    };
    // SAFETY: `info` is live, writable and says its size.
    let code = unsafe { sys::natten_kernel_info_at(index, &raw mut info) };
    // The table has rows of every backend; an unreadable row is no backend's fault in particular.
    status::check(code, Backend::Reference, None, last_error())?;
    let count = |number: i32| usize::try_from(number).unwrap_or(0);
    Ok(Kernel {
        family: text(info.family).unwrap_or_default(),
        name: text(info.name).unwrap_or_default(),
        direction: if info.backward == 0 { Direction::Forward } else { Direction::Backward },
        rank: count(info.rank),
        dtype: Dtype::from_code(info.dtype),
        causal: std::array::from_fn(|axis| info.causal >> axis & 1 == 1),
        query_tile: info.query_tile,
        key_tile: info.key_tile,
        max_head_dim: count(info.max_head_dim),
        alignment: count(info.alignment),
        shared_memory: count(info.shared_memory),
        sm_min: count(info.sm_min) as u32,
        sm_max: count(info.sm_max) as u32,
        schedule: info.schedule,
    })
}

/// A string of the library's, copied.
#[cfg(not(natten_kernels_unlinked))]
fn text(pointer: *const std::ffi::c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: not null; the C ABI's strings are NUL-terminated and live at least until the next call.
    let text = unsafe { CStr::from_ptr(pointer) };
    Some(text.to_string_lossy().into_owned())
}

#[cfg(not(natten_kernels_unlinked))]
fn last_error() -> String {
    // SAFETY: takes nothing and returns a string that lives until this thread's next call.
    let message = unsafe { sys::natten_last_error() };
    text(message).unwrap_or_default()
}

macro_rules! launchers {
    ($($(#[$doc:meta])* $name:ident($args:ident): [$($operation:ident),+];)+) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// Every pointer of `args` is null where the C ABI allows it, or device memory of the current
            /// device of the size that the other fields imply, and stays so until the stream has passed.
            pub(crate) unsafe fn $name(backend: Backend, which: usize, args: &sys::$args) -> Result<()> {
                let artifact = variant::require(backend)?;
                #[cfg(natten_kernels_unlinked)]
                {
                    let _ = (which, args, artifact);
                    return Err(variant::not_linked(backend));
                }
                #[cfg(not(natten_kernels_unlinked))]
                {
                    const OPERATIONS: &[sys::Operation<sys::$args>] = &[$(sys::$operation),+];
                    // SAFETY: `args` is live and says its size; its pointers are the caller's promise.
                    let code = unsafe { OPERATIONS[which](args) };
                    match code {
                        sys::NATTEN_OK => Ok(()),
                        code => status::check(code, backend, Some(artifact.variant()), last_error()),
                    }
                }
            }
        )+
    };
}

launchers! {
    /// `which`: rank - 1.
    fna_forward(natten_fna_forward_args): [natten_na1d_forward, natten_na2d_forward, natten_na3d_forward];
    /// `which`: rank - 1.
    fna_backward(natten_fna_backward_args): [natten_na1d_backward, natten_na2d_backward, natten_na3d_backward];
    /// `which`: rank - 1.
    reference_forward(natten_reference_forward_args):
        [natten_reference_na1d_forward, natten_reference_na2d_forward, natten_reference_na3d_forward];
    /// `which`: rank - 1.
    reference_backward(natten_reference_backward_args):
        [natten_reference_na1d_backward, natten_reference_na2d_backward, natten_reference_na3d_backward];
    /// `which`: rank - 1.
    token_permute(natten_token_permute_args):
        [natten_token_permute_1d, natten_token_permute_2d, natten_token_permute_3d];
    /// `which`: rank - 1.
    token_unpermute(natten_token_permute_args):
        [natten_token_unpermute_1d, natten_token_unpermute_2d, natten_token_unpermute_3d];
    /// `which`: 0.
    compute_delta(natten_compute_delta_args): [natten_compute_delta];
    /// `which`: 0.
    merge_attentions(natten_merge_attentions_args): [natten_merge_attentions];
    /// `which`: 0.
    add_gradients(natten_add_gradients_args): [natten_add_gradients];
    /// `which`: rank - 1 on Hopper, rank + 2 on Blackwell.
    tiled_fna_forward(natten_tiled_fna_forward_args):
        [natten_hopper_na1d_forward, natten_hopper_na2d_forward, natten_hopper_na3d_forward,
         natten_blackwell_na1d_forward, natten_blackwell_na2d_forward, natten_blackwell_na3d_forward];
    /// `which`: rank - 1 on Hopper, rank + 2 on Blackwell.
    tiled_fna_backward(natten_tiled_fna_backward_args):
        [natten_hopper_na1d_backward, natten_hopper_na2d_backward, natten_hopper_na3d_backward,
         natten_blackwell_na1d_backward, natten_blackwell_na2d_backward, natten_blackwell_na3d_backward];
    /// `which`: 0 fmha, 1 hopper_fmha, 2 blackwell_fmha.
    fmha_forward(natten_fmha_forward_args):
        [natten_fmha_forward, natten_hopper_fmha_forward, natten_blackwell_fmha_forward];
    /// `which`: 0 fmha, 1 hopper_fmha, 2 blackwell_fmha.
    fmha_backward(natten_fmha_backward_args):
        [natten_fmha_backward, natten_hopper_fmha_backward, natten_blackwell_fmha_backward];
}
