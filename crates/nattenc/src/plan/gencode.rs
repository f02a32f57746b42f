//! A gencode: what one device compile targets. The only place that spells `arch=…,code=…`.

use super::capability::{Capability, CapabilityRequest};
use std::fmt;

/// One `-gencode` value: a virtual architecture, and what is made of its PTX. Never empty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Gencode {
    /// What the front end compiles for.
    pub virtual_arch: Capability,
    /// What the assembler compiles for, ascending.
    pub real: Vec<Capability>,
    /// Whether the PTX itself is kept.
    pub ptx: bool,
}

impl Gencode {
    /// Machine code for `capability` alone.
    pub fn sass(capability: Capability) -> Self {
        Gencode { virtual_arch: capability, real: vec![capability], ptx: false }
    }

    /// What a request asks for.
    pub fn of(request: CapabilityRequest) -> Self {
        Gencode { ptx: request.ptx, ..Gencode::sass(request.capability) }
    }

    /// The value after `-gencode`.
    fn codes(&self) -> Vec<String> {
        let mut codes: Vec<String> = self.real.iter().map(|c| c.sm()).collect();
        if self.ptx {
            codes.push(self.virtual_arch.compute());
        }
        codes
    }
}

impl fmt::Display for Gencode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let codes = self.codes().join(",");
        let many = codes.contains(',');
        let (open, close) = if many { ("[", "]") } else { ("", "") };
        write!(f, "arch={},code={open}{codes}{close}", self.virtual_arch.compute())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::capability::{KNOWN, Suffix};

    const GOLDEN: &[(&str, &str)] = &[
        ("5.0", "arch=compute_50,code=sm_50"),
        ("5.2", "arch=compute_52,code=sm_52"),
        ("5.3", "arch=compute_53,code=sm_53"),
        ("6.0", "arch=compute_60,code=sm_60"),
        ("6.1", "arch=compute_61,code=sm_61"),
        ("6.2", "arch=compute_62,code=sm_62"),
        ("7.0", "arch=compute_70,code=sm_70"),
        ("7.2", "arch=compute_72,code=sm_72"),
        ("7.5", "arch=compute_75,code=sm_75"),
        ("8.0", "arch=compute_80,code=sm_80"),
        ("8.6", "arch=compute_86,code=sm_86"),
        ("8.7", "arch=compute_87,code=sm_87"),
        ("8.8", "arch=compute_88,code=sm_88"),
        ("8.9", "arch=compute_89,code=sm_89"),
        ("9.0", "arch=compute_90,code=sm_90"),
        ("9.0a", "arch=compute_90a,code=sm_90a"),
        ("10.0", "arch=compute_100,code=sm_100"),
        ("10.0a", "arch=compute_100a,code=sm_100a"),
        ("10.0f", "arch=compute_100f,code=sm_100f"),
        ("10.1", "arch=compute_101,code=sm_101"),
        ("10.1a", "arch=compute_101a,code=sm_101a"),
        ("10.1f", "arch=compute_101f,code=sm_101f"),
        ("10.3", "arch=compute_103,code=sm_103"),
        ("10.3a", "arch=compute_103a,code=sm_103a"),
        ("10.3f", "arch=compute_103f,code=sm_103f"),
        ("11.0", "arch=compute_110,code=sm_110"),
        ("11.0a", "arch=compute_110a,code=sm_110a"),
        ("11.0f", "arch=compute_110f,code=sm_110f"),
        ("12.0", "arch=compute_120,code=sm_120"),
        ("12.0a", "arch=compute_120a,code=sm_120a"),
        ("12.0f", "arch=compute_120f,code=sm_120f"),
        ("12.1", "arch=compute_121,code=sm_121"),
        ("12.1a", "arch=compute_121a,code=sm_121a"),
        ("12.1f", "arch=compute_121f,code=sm_121f"),
    ];

    #[test]
    fn every_known_capability_has_exactly_this_flag() {
        let known: Vec<String> = KNOWN.iter().map(|k| k.capability.to_string()).collect();
        let golden: Vec<&str> = GOLDEN.iter().map(|(text, _)| *text).collect();
        assert_eq!(known, golden, "the golden table and the table of known capabilities list the same");
        for (text, flag) in GOLDEN {
            let request: CapabilityRequest = text.parse().unwrap();
            assert_eq!(Gencode::of(request).to_string(), *flag);
            let with_ptx: CapabilityRequest = format!("{text}+PTX").parse().unwrap();
            let capability = request.capability;
            assert_eq!(
                Gencode::of(with_ptx).to_string(),
                format!("arch={},code=[{},{}]", capability.compute(), capability.sm(), capability.compute())
            );
        }
    }

    #[test]
    fn one_virtual_architecture_can_serve_several_real_ones() {
        let base = Capability::new(8, 0);
        let shared = Gencode { virtual_arch: base, real: vec![base, Capability::new(9, 0)], ptx: false };
        assert_eq!(shared.to_string(), "arch=compute_80,code=[sm_80,sm_90]");
        let one = Gencode { virtual_arch: base, real: vec![Capability::new(9, 0)], ptx: false };
        assert_eq!(one.to_string(), "arch=compute_80,code=sm_90");
        assert_eq!(
            Gencode::sass(Capability::new(9, 0).with(Suffix::A)).to_string(),
            "arch=compute_90a,code=sm_90a"
        );
    }
}
