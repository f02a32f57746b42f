//! From which driver on an artifact runs.
//!
//! The libraries link CUDA's runtime statically and no PyTorch, so that machine code of one CUDA release runs under
//! the drivers of all releases of its major (CUDA's minor version compatibility). PTX does not: a driver compiles
//! none that is newer than itself.

use crate::config::Release;
use crate::graph::compile;
use crate::plan::Plan;
use std::fmt;

/// The oldest branch of drivers that minor version compatibility covers, by CUDA major (NVIDIA's "CUDA
/// Compatibility", table 1).
const BRANCHES: &[(u16, u16)] = &[(12, 525), (13, 580)];

/// The branch that came with CUDA 12.4, the first to load what `--compress-mode=size` makes.
const COMPRESSED: u16 = 550;

/// The drivers that run an artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Driver {
    /// From this branch on, for this reason.
    Branch(u16, String),
    /// From the one that came with the artifact's own CUDA release on, for this reason.
    OfRelease(Release, String),
}

impl Driver {
    /// As names and tables have it: `550`, or `that of cuda 12.8`.
    pub fn floor(&self) -> String {
        match self {
            Driver::Branch(branch, _) => branch.to_string(),
            Driver::OfRelease(release, _) => format!("that of cuda {release}"),
        }
    }

    /// Why not an older one.
    pub fn why(&self) -> &str {
        let (Driver::Branch(_, why) | Driver::OfRelease(_, why)) = self;
        why
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "driver {}: {}", self.floor(), self.why())
    }
}

/// The oldest driver that runs what is built of `plan`.
pub fn driver(plan: &Plan) -> Driver {
    let release = plan.release;
    if let Some(unit) = plan.units.iter().find(|unit| unit.gencodes.iter().any(|g| g.ptx)) {
        let why = format!("{} holds PTX, which older drivers do not compile", unit.label());
        return Driver::OfRelease(release, why);
    }
    let Some((major, branch)) = BRANCHES.iter().find(|(major, _)| *major == release.major) else {
        let why = format!("nothing is known of drivers for cuda {}", release.major);
        return Driver::OfRelease(release, why);
    };
    let compressed = compile::compression(release).contains(&"--compress-mode=size");
    if compressed && *branch < COMPRESSED {
        return Driver::Branch(
            COMPRESSED,
            "its code is compressed as drivers since cuda 12.4 read it".into(),
        );
    }
    let why = format!("cuda {major}.x's minor version compatibility covers machine code from it on");
    Driver::Branch(*branch, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ci::jobs::tests::plan;
    use crate::plan::capability::CapabilityRequest;
    use crate::plan::gencode::Gencode;

    #[test]
    fn floor_is_of_the_major_the_compression_or_the_ptx() {
        let of = |variant: &str, capability: Option<&str>| {
            let mut plan = plan(variant);
            if let Some(text) = capability {
                let request = text.parse::<CapabilityRequest>().unwrap();
                plan.units[0].gencodes.push(Gencode::of(request));
            }
            driver(&plan)
        };
        assert_eq!(of("cu126", None).floor(), "525");
        assert_eq!(of("cu128", None).floor(), "550");
        assert_eq!(of("cu130", None).floor(), "580");
        let ptx = of("cu128", Some("12.0+PTX"));
        assert_eq!(ptx.floor(), "that of cuda 12.8");
        assert!(ptx.to_string().contains("holds PTX"), "{ptx}");
    }
}
