//! What can go wrong, as one enum. Messages are lowercase and name the thing and the cause.

use crate::backend::Backend;
use std::fmt;

/// Every failure of this crate. Nothing panics on bad arguments, and no status of the C side is dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A shape, pointer or parameter that is illegal whatever was built. The message names it.
    InvalidArgument(String),
    /// Legal, but no kernel of the linked artifact takes it: tile, head dim, dtype or shared memory.
    Unsupported(String),
    /// The backend is not in the linked artifact, or no artifact is linked.
    BackendNotBuilt {
        /// Which backend was asked for.
        backend: Backend,
        /// The linked variant, such as `cu130`; `None` if nothing is linked.
        variant: Option<String>,
        /// Why it is not there, in the words of the build plan, and what to do.
        reason: String,
    },
    /// There is no usable device, or the artifact has no code for it.
    Device(String),
    /// Device memory ran out, or an allocator returned null.
    OutOfMemory(String),
    /// A CUDA call failed; the message names the call and CUDA's error.
    Cuda(String),
    /// CUTLASS refused a problem or could not start it.
    Cutlass(String),
    /// A bug in the kernel library.
    Internal(String),
    /// The linked library speaks another version of the C ABI than this crate.
    AbiMismatch {
        /// The version of this crate's `sys` module.
        expected: u32,
        /// The version that the library reports.
        found: u32,
    },
    /// A status that this version of the crate does not know, with the library's message.
    UnknownStatus(i32, String),
}

/// `std::result::Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An [`Error::InvalidArgument`].
    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        Error::InvalidArgument(message.into())
    }

    /// An [`Error::Unsupported`].
    pub(crate) fn unsupported(message: impl Into<String>) -> Error {
        Error::Unsupported(message.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::InvalidArgument(message) => write!(f, "invalid argument: {message}"),
            Error::Unsupported(message) => write!(f, "unsupported: {message}"),
            Error::BackendNotBuilt { backend, variant: Some(variant), reason } => {
                write!(f, "backend {backend} is not in the linked artifact ({variant}): {reason}")
            }
            Error::BackendNotBuilt { backend, variant: None, reason } => {
                write!(f, "backend {backend} is not available: {reason}")
            }
            Error::Device(message) => write!(f, "device: {message}"),
            Error::OutOfMemory(message) => write!(f, "out of device memory: {message}"),
            Error::Cuda(message) => write!(f, "cuda: {message}"),
            Error::Cutlass(message) => write!(f, "cutlass: {message}"),
            Error::Internal(message) => write!(f, "internal error of the kernel library: {message}"),
            Error::AbiMismatch { expected, found } => write!(
                f,
                "the linked library has C ABI version {found}, this crate needs {expected}: build the artifact and the crate from the same release"
            ),
            Error::UnknownStatus(code, message) => {
                write!(f, "unknown status {code} of the kernel library: {message}")
            }
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_backend_names_itself_its_variant_and_the_reason() {
        let error = Error::BackendNotBuilt {
            backend: Backend::HopperFna,
            variant: Some("cu130".into()),
            reason: "section hopper: not selected".into(),
        };
        let text = error.to_string();
        for part in ["hopper_fna", "cu130", "section hopper: not selected"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}
