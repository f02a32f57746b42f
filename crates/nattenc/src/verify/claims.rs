//! What a manifest claims, in the terms that the libraries are read in.

use super::fatbin::{Code, Kind};
use crate::package::manifest::RecordedUnit;
use crate::plan::capability::Capability;

/// The images that a unit's fatbin should hold, sorted.
pub(super) fn codes(unit: &RecordedUnit) -> Result<Vec<Code>, String> {
    let mut codes = Vec::new();
    for gencode in &unit.gencodes {
        codes.extend(of_gencode(gencode).ok_or_else(|| format!("{gencode:?} is no gencode"))?);
    }
    codes.sort();
    codes.dedup();
    Ok(codes)
}

/// `arch=compute_90,code=[sm_90,compute_90]` as the images that it makes.
fn of_gencode(text: &str) -> Option<Vec<Code>> {
    let (arch, code) = text.strip_prefix("arch=")?.split_once(",code=")?;
    arch.strip_prefix("compute_").and_then(|_| Capability::from_nvcc(arch))?;
    let list = code.strip_prefix('[').map_or(Some(code), |rest| rest.strip_suffix(']'))?;
    list.split(',')
        .map(|name| {
            let kind = if name.starts_with("sm_") { Kind::Elf } else { Kind::Ptx };
            Some(Code { kind, capability: Capability::from_nvcc(name)? })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gencodes_are_the_images_that_they_make() {
        for (gencode, images) in [
            ("arch=compute_90,code=sm_90", "elf 9.0"),
            ("arch=compute_90a,code=[sm_90a,compute_90a]", "elf 9.0a, ptx 9.0a"),
            ("arch=compute_80,code=[sm_80,sm_86,sm_90]", "elf 8.0, elf 8.6, elf 9.0"),
            ("arch=compute_120,code=compute_120", "ptx 12.0"),
            ("arch=compute_90", ""),
            ("arch=sm_90,code=sm_90", ""),
            ("arch=compute_90,code=[sm_90", ""),
            ("arch=compute_90,code=", ""),
            ("arch=compute_90,code=gfx90a", ""),
        ] {
            let found = of_gencode(gencode).unwrap_or_default();
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            assert_eq!(found.join(", "), images, "{gencode}");
        }
    }
}
