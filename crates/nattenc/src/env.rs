//! Every environment variable that nattenc reads, in one list. Nothing else may call `std::env::var`.

use crate::failure::Failure;
use std::ffi::OsString;
use std::path::PathBuf;

/// A variable and what it decides.
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it decides, for `--help` and the README.
    pub meaning: &'static str,
}

/// All of them.
pub const VARIABLES: &[Variable] = &[
    Variable {
        name: "NATTENC_HOME",
        meaning: "the store of fetched and built things (else $XDG_CACHE_HOME/nattenc, else ~/.cache/nattenc)",
    },
    Variable { name: "XDG_CACHE_HOME", meaning: "where the store lies without NATTENC_HOME" },
    Variable { name: "HOME", meaning: "where the store lies without either" },
    Variable { name: "NATTENC_MEMORY", meaning: "as --memory: what compiler processes may take together" },
    Variable { name: "NATTENC_JOBS", meaning: "as -j: how many compiler processes run at once" },
    Variable {
        name: "NATTENC_CACHE_SIZE",
        meaning: "as --cache-size: what the store of finished work is cut down to at the end of builds",
    },
    Variable {
        name: "NATTENC_REDIST_URL",
        meaning: "the directory that holds NVIDIA's redistrib_<version>.json, for variants with the provider redist",
    },
    Variable {
        name: "NATTENC_PYTHON",
        meaning: "the python3 whose pip is asked for the package index (else python3 of PATH)",
    },
    Variable { name: "PIP_INDEX_URL", meaning: "pip's package index" },
    Variable { name: "PIP_EXTRA_INDEX_URL", meaning: "further package indexes of pip" },
    Variable { name: "PIP_CERT", meaning: "pip's certificate bundle" },
    Variable { name: "REQUESTS_CA_BUNDLE", meaning: "a certificate bundle, after PIP_CERT" },
    Variable { name: "CURL_CA_BUNDLE", meaning: "a certificate bundle, after REQUESTS_CA_BUNDLE" },
    Variable { name: "SSL_CERT_FILE", meaning: "a certificate bundle, after CURL_CA_BUNDLE" },
    Variable { name: "PIP_CONFIG_FILE", meaning: "pip's configuration file" },
    Variable {
        name: "PIP_FIND_LINKS",
        meaning: "directories and pages where pip looks for files before its index",
    },
    Variable { name: "PIP_TRUSTED_HOST", meaning: "hosts that pip talks to without a certificate check" },
    Variable {
        name: "HTTPS_PROXY",
        meaning: "the proxy for downloads, where pip names none (ALL_PROXY, HTTP_PROXY too)",
    },
    Variable { name: "NO_PROXY", meaning: "hosts that are reached without the proxy" },
    Variable { name: "CUDA_HOME", meaning: "an installed CUDA toolkit" },
    Variable { name: "CUDA_PATH", meaning: "an installed CUDA toolkit, after CUDA_HOME" },
    Variable { name: "NVCC_CCBIN", meaning: "the host compiler" },
    Variable { name: "PATH", meaning: "where nvcc, g++ and python3 are looked for" },
    Variable { name: "NVCC_PREPEND_FLAGS", meaning: "not passed on to nvcc; a warning says so" },
    Variable { name: "NVCC_APPEND_FLAGS", meaning: "not passed on to nvcc; a warning says so" },
];

fn declared(name: &str) -> bool {
    VARIABLES.iter().any(|v| v.name == name)
}

/// The raw value of a declared variable.
#[expect(clippy::disallowed_methods, reason = "the one door to the environment")]
pub fn os(name: &str) -> Option<OsString> {
    debug_assert!(declared(name), "{name} is not declared in env.rs");
    std::env::var_os(name)
}

/// The text of a declared variable; unset is `None`. Set but empty counts as unset.
/// Not UTF-8: a configuration failure that names the variable.
pub fn text(name: &str) -> anyhow::Result<Option<String>> {
    match os(name) {
        None => Ok(None),
        Some(value) if value.is_empty() => Ok(None),
        Some(value) => match value.into_string() {
            Ok(text) => Ok(Some(text)),
            Err(raw) => Err(Failure::config(format!("{name}: value {raw:?} is not UTF-8")).into()),
        },
    }
}

/// The path in a declared variable; unset and empty are `None`.
pub fn path(name: &str) -> Option<PathBuf> {
    os(name).filter(|v| !v.is_empty()).map(PathBuf::from)
}

/// The whole environment, for a child that reads its own configuration from it (python's pip).
/// Not UTF-8: left out, since no such variable can be meant for pip.
pub fn all() -> std::collections::BTreeMap<String, String> {
    std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))).collect()
}
