//! Every environment variable that the build script reads.

#![expect(clippy::disallowed_methods, reason = "the one door of this build script to the environment")]

use crate::find::{Linkage, Vars};
use std::path::PathBuf;

/// What a user may set; a change runs the script again.
pub(crate) const NAMES: [&str; 4] =
    ["DOCS_RS", "NATTEN_KERNELS_VARIANT_DIR", "NATTEN_KERNELS_VARIANT", "NATTEN_KERNELS_LINK"];

/// The directory of this package.
pub(crate) fn package() -> PathBuf {
    PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default())
}

/// The variables' values.
///
/// # Errors
/// A sentence naming the variable whose value means nothing.
pub(crate) fn read() -> Result<Vars, String> {
    let cargo = |name: &str| std::env::var(name).unwrap_or_default();
    let linkage = match set("NATTEN_KERNELS_LINK")?.as_deref() {
        None | Some("static") => Linkage::Static,
        Some("shared") => Linkage::Shared,
        Some(other) => {
            return Err(format!("NATTEN_KERNELS_LINK is `{other}`: it must be `static` or `shared`"));
        }
    };
    Ok(Vars {
        docs_rs: std::env::var_os("DOCS_RS").is_some(),
        variant_dir: set("NATTEN_KERNELS_VARIANT_DIR")?.map(PathBuf::from),
        variant: set("NATTEN_KERNELS_VARIANT")?,
        linkage,
        // Of the target, not of the machine that this script runs on.
        target: format!("{}-{}", cargo("CARGO_CFG_TARGET_ARCH"), cargo("CARGO_CFG_TARGET_OS")),
        workspace: package().join("../.."),
    })
}

fn set(name: &str) -> Result<Option<String>, String> {
    match std::env::var(name) {
        Err(std::env::VarError::NotPresent) => Ok(None),
        Ok(value) if value.is_empty() => Err(format!("{name} is set but empty: unset it or give it a value")),
        Ok(value) => Ok(Some(value)),
        Err(std::env::VarError::NotUnicode(value)) => Err(format!("{name} is not UTF-8: {value:?}")),
    }
}
