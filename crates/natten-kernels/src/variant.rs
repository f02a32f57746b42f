//! What is linked: the artifact's own description and its kernel table, read once.

use crate::backend::Backend;
use crate::capability::{ComputeCapability, Target};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::table::{Direction, Kernel};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Why nothing works on a device in a build without an artifact, and what to do.
const UNKNOWN: &str = "the artifact does not know this backend";
const UNLINKED: &str = "no artifact is linked: run `nattenc build --variant cu130 --preset starter`, then build this crate again";

/// An artifact: what `nattenc` built, for which devices, and what it left out and why.
#[derive(Debug, Clone)]
pub struct Artifact {
    info: Info,
    backends: BTreeMap<Backend, Built>,
    kernels: Vec<Kernel>,
    /// Where in `kernels` the rows of each kind are, in the table's order.
    kinds: BTreeMap<Kind, Vec<usize>>,
}

/// What a row of the table computes, whatever its sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kind {
    pub(crate) backend: Backend,
    pub(crate) direction: Direction,
    /// 0: dense.
    pub(crate) rank: usize,
    pub(crate) dtype: Dtype,
    pub(crate) causal: [bool; 3],
}

#[derive(Debug, Clone, Deserialize)]
struct Info {
    variant: String,
    toolkit: String,
    natten: String,
    backends: BTreeMap<String, BackendInfo>,
}

#[derive(Debug, Clone, Deserialize)]
struct BackendInfo {
    built: bool,
    #[serde(default)]
    capabilities: Vec<String>,
    reason: Option<String>,
}

/// Whether a backend is in an artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Built {
    /// It is, with code for these targets.
    Yes(Vec<Target>),
    /// It is not, for this reason.
    No(String),
}

impl Artifact {
    /// An artifact from its `natten_build_info` text and its kernel table. [`linked`] makes the one that
    /// matters; the dispatcher can be asked about any other.
    ///
    /// # Errors
    /// [`Error::Internal`] if the text is not what `nattenc` writes.
    pub fn new(build_info: &str, kernels: Vec<Kernel>) -> Result<Artifact> {
        let info: Info = serde_json::from_str(build_info)
            .map_err(|error| Error::Internal(format!("the artifact's build info cannot be read: {error}")))?;
        let mut backends = BTreeMap::new();
        for (name, entry) in &info.backends {
            // A backend of a later release is no reason to refuse those that we know.
            let Some(backend) = Backend::from_name(name) else { continue };
            backends.insert(backend, entry.read(name)?);
        }
        let mut kinds: BTreeMap<Kind, Vec<usize>> = BTreeMap::new();
        for (at, kernel) in kernels.iter().enumerate() {
            // The tiled backends' gradients are families of their own.
            let family = kernel.family.strip_suffix("_bwd").unwrap_or(&kernel.family);
            let (Some(backend), Some(dtype)) = (Backend::from_name(family), kernel.dtype) else { continue };
            let Kernel { direction, rank, causal, .. } = *kernel;
            kinds.entry(Kind { backend, direction, rank, dtype, causal }).or_default().push(at);
        }
        Ok(Artifact { info, backends, kernels, kinds })
    }

    /// The variant's name: `cu130`.
    pub fn variant(&self) -> &str {
        &self.info.variant
    }

    /// Release of the CUDA toolkit that built it: `13.0.88`.
    pub fn toolkit(&self) -> &str {
        &self.info.toolkit
    }

    /// Release of NATTEN whose kernels it holds: `0.21.7`.
    pub fn natten(&self) -> &str {
        &self.info.natten
    }

    /// The kernel table, in the order in which the library tries kernels.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// Whether `backend` was built, for what, and if not, why not.
    pub fn backend(&self, backend: Backend) -> Built {
        self.backends.get(&backend).cloned().unwrap_or_else(|| Built::No(UNKNOWN.to_owned()))
    }

    /// The backends that were built.
    pub fn backends(&self) -> Vec<Backend> {
        Backend::ALL.into_iter().filter(|backend| matches!(self.backend(*backend), Built::Yes(_))).collect()
    }

    /// That `backend` is built and has code for `device`.
    ///
    /// # Errors
    /// [`Error::BackendNotBuilt`] with the plan's reason, or [`Error::Device`] naming the device and
    /// what was built.
    pub fn check(&self, backend: Backend, device: ComputeCapability) -> Result<()> {
        match self.backends.get(&backend) {
            Some(Built::Yes(targets)) if targets.iter().any(|target| target.runs_on(device)) => Ok(()),
            Some(Built::Yes(targets)) => {
                let built: Vec<String> = targets.iter().map(Target::to_string).collect();
                let advice = match backend.only_for() {
                    Some(only) if !only.contains(&device.number()) => {
                        "no build has any for this device: use another backend".to_owned()
                    }
                    Some(_) => format!("add {device}a to its capabilities and build it again"),
                    None => format!("add {device} to its capabilities and build it again"),
                };
                Err(Error::Device(format!(
                    "{backend} has no code for a device of capability {device}: the artifact ({}) was built for {}; {advice}",
                    self.variant(),
                    if built.is_empty() { "nothing".to_owned() } else { built.join(", ") },
                )))
            }
            Some(Built::No(reason)) => Err(self.not_built(backend, reason)),
            None => Err(self.not_built(backend, UNKNOWN)),
        }
    }

    fn not_built(&self, backend: Backend, reason: &str) -> Error {
        let variant = Some(self.variant().to_owned());
        Error::BackendNotBuilt { backend, variant, reason: reason.to_owned() }
    }

    /// The rows of the table of one kind, in the order in which the library tries them.
    pub(crate) fn rows(&self, kind: &Kind) -> impl Iterator<Item = &Kernel> + Clone {
        self.kinds.get(kind).into_iter().flatten().map(|at| &self.kernels[*at])
    }
}

impl BackendInfo {
    fn read(&self, name: &str) -> Result<Built> {
        if !self.built {
            return Ok(Built::No(self.reason.clone().unwrap_or_else(|| "no reason was recorded".to_owned())));
        }
        let targets: Option<Vec<Target>> = self.capabilities.iter().map(|text| Target::parse(text)).collect();
        targets.map(Built::Yes).ok_or_else(|| {
            Error::Internal(format!(
                "the artifact's build info has a capability of {name} that cannot be read: {:?}",
                self.capabilities
            ))
        })
    }
}

/// The artifact that is linked into this program, `None` if the crate was built without one.
///
/// # Errors
/// [`Error::AbiMismatch`] if the library speaks another C ABI, [`Error::Internal`] if it describes
/// itself in a way that cannot be read.
pub fn linked() -> Result<Option<&'static Artifact>> {
    static LINKED: OnceLock<Result<Option<Artifact>>> = OnceLock::new();
    LINKED.get_or_init(crate::launch::artifact).as_ref().map(Option::as_ref).map_err(Clone::clone)
}

/// The linked artifact.
///
/// # Errors
/// [`Error::BackendNotBuilt`] for `backend` if none is linked; else as [`linked`].
pub(crate) fn require(backend: Backend) -> Result<&'static Artifact> {
    linked()?.ok_or_else(|| not_linked(backend))
}

pub(crate) fn not_linked(backend: Backend) -> Error {
    Error::BackendNotBuilt { backend, variant: None, reason: UNLINKED.to_owned() }
}

/// The backends of the linked artifact; none if nothing is linked or it cannot be used.
///
/// ```
/// for backend in natten_kernels::available_backends() {
///     println!("{backend}");
/// }
/// ```
pub fn available_backends() -> Vec<Backend> {
    linked().ok().flatten().map(Artifact::backends).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = r#"{
        "variant": "cu130", "toolkit": "13.0.88", "natten": "0.21.7",
        "backends": {
            "fna": { "built": true, "capabilities": ["9.0"] },
            "reference": { "built": true, "capabilities": ["8.0", "9.0"] },
            "hopper_fna": { "built": false, "reason": "section hopper: not selected (preset starter)" },
            "martian_fna": { "built": true, "capabilities": ["77.0z"] }
        }
    }"#;

    fn device(major: u32, minor: u32) -> ComputeCapability {
        ComputeCapability { major, minor }
    }

    #[test]
    fn build_info_is_read_and_later_backends_are_passed_over() {
        let artifact = Artifact::new(INFO, Vec::new()).unwrap();
        assert_eq!(
            (artifact.variant(), artifact.toolkit(), artifact.natten()),
            ("cu130", "13.0.88", "0.21.7")
        );
        assert_eq!(artifact.backends(), [Backend::Reference, Backend::Fna]);
    }

    #[test]
    fn a_missing_backend_and_a_foreign_device_are_different_errors() {
        let artifact = Artifact::new(INFO, Vec::new()).unwrap();
        assert!(artifact.check(Backend::Fna, device(9, 0)).is_ok());
        assert_eq!(
            artifact.check(Backend::HopperFna, device(9, 0)).unwrap_err(),
            Error::BackendNotBuilt {
                backend: Backend::HopperFna,
                variant: Some("cu130".into()),
                reason: "section hopper: not selected (preset starter)".into(),
            }
        );
        assert!(matches!(artifact.check(Backend::Fmha, device(9, 0)), Err(Error::BackendNotBuilt { .. })));
        let error = artifact.check(Backend::Fna, device(12, 0)).unwrap_err().to_string();
        assert!(error.contains("12.0") && error.contains("built for 9.0"), "{error}");
    }

    #[test]
    fn unreadable_build_info_is_an_error_that_says_so() {
        for text in ["", "{}", "{\"variant\": 3}", &INFO.replace("\"9.0\"]", "\"sm_90\"]")] {
            assert!(matches!(Artifact::new(text, Vec::new()), Err(Error::Internal(_))), "{text}");
        }
    }
}
