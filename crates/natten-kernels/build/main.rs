//! Links an artifact that `nattenc` built, or says that there is none. Never compiles CUDA, never
//! downloads, never guesses.
//!
//! 1. `DOCS_RS` is set: nothing is linked.
//! 2. `NATTEN_KERNELS_VARIANT_DIR`: that artifact; anything wrong with it is an error.
//! 3. `NATTEN_KERNELS_VARIANT`: that variant of the workspace's `dist/`; likewise.
//! 4. The only artifact of the workspace's `dist/`, or of several the one that build.toml's
//!    `default-variant` names. Several and no default: an error that lists them. One that cannot be used,
//!    and is the default or the only one: an error with its reason.
//! 5. None: the cfg `natten_kernels_unlinked`, under which every device operation answers with a typed
//!    error, and one warning with the command that builds an artifact.
//!
//! `NATTEN_KERNELS_LINK` is `static` (the default) or `shared`. A program that links the shared library
//! finds it through `LD_LIBRARY_PATH`, or its own rpath: a dependency's build script can set none.
//! Dependents read `DEP_NATTEN_KERNELS_INCLUDE`, `_VARIANT` and `_TOOLKIT`.

#![expect(clippy::print_stdout, reason = "stdout is how a build script speaks to Cargo")]

mod find;
mod vars;

use find::{Found, Linkage};

fn main() {
    println!("cargo::rustc-check-cfg=cfg(natten_kernels_unlinked)");
    for file in ["build/main.rs", "build/find.rs", "build/vars.rs"] {
        println!("cargo::rerun-if-changed={file}");
    }
    for name in vars::NAMES {
        println!("cargo::rerun-if-env-changed={name}");
    }
    match vars::read().and_then(|vars| find::find(&vars)) {
        Err(message) => println!("cargo::error={message}"),
        Ok(Found::Nothing { warning, watch }) => {
            println!("cargo::rustc-cfg=natten_kernels_unlinked");
            println!("cargo::metadata=INCLUDE={}", vars::package().join("include").display());
            for path in watch {
                println!("cargo::rerun-if-changed={}", path.display());
            }
            if let Some(warning) = warning {
                println!("cargo::warning={warning}");
            }
        }
        Ok(Found::Artifact(artifact)) => {
            println!("cargo::metadata=INCLUDE={}", artifact.directory.join("include").display());
            println!("cargo::metadata=VARIANT={}", artifact.variant);
            println!("cargo::metadata=TOOLKIT={}", artifact.toolkit);
            for path in &artifact.watch {
                println!("cargo::rerun-if-changed={}", path.display());
            }
            for path in &artifact.search {
                println!("cargo::rustc-link-search=native={}", path.display());
            }
            for name in &artifact.libraries {
                match artifact.linkage {
                    // Not bundled: the archive is large, and a copy in every rlib serves nobody.
                    Linkage::Static => println!("cargo::rustc-link-lib=static:-bundle={name}"),
                    Linkage::Shared => println!("cargo::rustc-link-lib=dylib={name}"),
                }
            }
            for name in &artifact.system {
                println!("cargo::rustc-link-lib=dylib={name}");
            }
        }
    }
}
