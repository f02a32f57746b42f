//! The C ABI's status codes as [`Error`]s: every code is mapped, and one that we do not know is kept.

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::sys;

/// `code` of a call of `backend`, whose `message` the library left. `variant` is what is linked.
pub(crate) fn check(
    code: i32,
    backend: Backend,
    variant: Option<&str>,
    message: impl Into<String>,
) -> Result<()> {
    let message = || {
        let message: String = message.into();
        if message.is_empty() { format!("{backend}: status {code} without a message") } else { message }
    };
    Err(match code {
        sys::NATTEN_OK => return Ok(()),
        sys::NATTEN_E_INVALID_ARGUMENT => Error::InvalidArgument(message()),
        sys::NATTEN_E_UNSUPPORTED => Error::Unsupported(message()),
        sys::NATTEN_E_BACKEND_NOT_BUILT => {
            Error::BackendNotBuilt { backend, variant: variant.map(str::to_owned), reason: message() }
        }
        sys::NATTEN_E_DEVICE => Error::Device(message()),
        sys::NATTEN_E_OUT_OF_MEMORY => Error::OutOfMemory(message()),
        sys::NATTEN_E_CUDA => Error::Cuda(message()),
        sys::NATTEN_E_CUTLASS => Error::Cutlass(message()),
        sys::NATTEN_E_INTERNAL => Error::Internal(message()),
        unknown => Error::UnknownStatus(unknown, message()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_error_and_keeps_the_message() {
        let found = |code| check(code, Backend::Fna, Some("cu130"), "why").unwrap_err();
        assert!(check(0, Backend::Fna, None, "").is_ok());
        assert_eq!(found(1), Error::InvalidArgument("why".into()));
        assert_eq!(found(2), Error::Unsupported("why".into()));
        assert_eq!(
            found(3),
            Error::BackendNotBuilt {
                backend: Backend::Fna,
                variant: Some("cu130".into()),
                reason: "why".into()
            }
        );
        assert_eq!(found(4), Error::Device("why".into()));
        assert_eq!(found(5), Error::OutOfMemory("why".into()));
        assert_eq!(found(6), Error::Cuda("why".into()));
        assert_eq!(found(7), Error::Cutlass("why".into()));
        assert_eq!(found(8), Error::Internal("why".into()));
        assert_eq!(found(9), Error::UnknownStatus(9, "why".into()));
        assert_eq!(found(-7), Error::UnknownStatus(-7, "why".into()));
    }

    #[test]
    fn a_failure_without_a_message_still_says_something() {
        assert_eq!(
            check(6, Backend::Reference, None, "").unwrap_err(),
            Error::Cuda("reference: status 6 without a message".into())
        );
    }
}
