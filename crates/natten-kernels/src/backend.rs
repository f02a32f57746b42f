//! The backends of an artifact, by the names that its manifest uses.

/// A group of kernels that is built, or not, as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// Plain CUDA kernels for every option, slow: the baseline to compare with.
    Reference,
    /// Token permutation and its inverse.
    TokenPermute,
    /// The row sums of `out * grad_out` that a backward pass starts from.
    ComputeDelta,
    /// Merging attentions of the same queries, and adding up gradients.
    Merge,
    /// Fused neighborhood attention, any device from 8.0 on.
    Fna,
    /// Fused dense attention, any device from 8.0 on.
    Fmha,
    /// Neighborhood attention for 9.0a (Hopper).
    HopperFna,
    /// Dense attention for 9.0a (Hopper).
    HopperFmha,
    /// Neighborhood attention for 10.0a and 10.3a (Blackwell).
    BlackwellFna,
    /// Dense attention for 10.0a and 10.3a (Blackwell).
    BlackwellFmha,
}

impl Backend {
    /// All of them.
    pub const ALL: [Backend; 10] = [
        Backend::Reference,
        Backend::TokenPermute,
        Backend::ComputeDelta,
        Backend::Merge,
        Backend::Fna,
        Backend::Fmha,
        Backend::HopperFna,
        Backend::HopperFmha,
        Backend::BlackwellFna,
        Backend::BlackwellFmha,
    ];

    /// The name in manifests and kernel tables: `hopper_fna`.
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Reference => "reference",
            Backend::TokenPermute => "token_permute",
            Backend::ComputeDelta => "compute_delta",
            Backend::Merge => "merge",
            Backend::Fna => "fna",
            Backend::Fmha => "fmha",
            Backend::HopperFna => "hopper_fna",
            Backend::HopperFmha => "hopper_fmha",
            Backend::BlackwellFna => "blackwell_fna",
            Backend::BlackwellFmha => "blackwell_fmha",
        }
    }

    /// The capabilities (times 10) of the only devices that it has kernels for; `None`: any device.
    pub(crate) const fn only_for(self) -> Option<&'static [u32]> {
        match self {
            Backend::HopperFna | Backend::HopperFmha => Some(&[90]),
            Backend::BlackwellFna | Backend::BlackwellFmha => Some(&[100, 103]),
            _ => None,
        }
    }

    /// The backend of that name.
    pub fn from_name(name: &str) -> Option<Backend> {
        Backend::ALL.into_iter().find(|backend| backend.name() == name)
    }
}

impl std::fmt::Display for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
