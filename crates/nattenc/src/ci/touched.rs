//! What a change touches, by the names of its files.

use crate::catalog::Catalog;
use crate::generate;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What a changed file means for what is compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Touch {
    /// Nothing that is compiled comes from it, for this reason.
    Nothing(&'static str),
    /// Every unit of these families comes from it.
    Families(BTreeSet<String>),
    /// It defines this variant.
    Variant(String),
    /// It is build.toml: what it changes is told by the plans before and after.
    Config,
    /// Everything may come from it, for this reason.
    Everything(&'static str),
}

impl fmt::Display for Touch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Touch::Nothing(why) => write!(f, "nothing that is compiled ({why})"),
            Touch::Families(families) => {
                let names: Vec<&str> = families.iter().map(String::as_str).collect();
                write!(f, "every unit of {}", names.join(", "))
            }
            Touch::Variant(_) => f.write_str("the least unit of every family of its variant"),
            Touch::Config => f.write_str("every unit that it changes"),
            Touch::Everything(why) => {
                write!(f, "the least unit of every family, since it {why}")
            }
        }
    }
}

/// Files that nothing compiled comes from: how their paths begin or end, and why.
const BESIDE: &[(&str, &str)] = &[
    (".md", "documentation"),
    ("LICENSE-APACHE", "documentation"),
    ("LICENSE-MIT", "documentation"),
    (".gitignore", "not part of a build"),
    ("autogen.lock", "records digests of what is compiled"),
    ("crates/natten-kernels/src/", "Rust, which the tests compile"),
    ("crates/natten-kernels/build/", "Rust, which the tests compile"),
    ("crates/natten-kernels/examples/", "Rust, which the tests compile"),
    ("scripts/", "not part of a build"),
    ("tests/", "not part of a build"),
    ("templates/ci/", "the text of workflows"),
    (".github/", "workflows"),
];

/// Files that everything comes from, in the same way.
const GLOBAL: &[(&str, &str)] = &[
    ("nattenc.lock", "pins toolkits and sources"),
    ("templates/cuda/common/", "is part of every unit"),
    ("templates/abi/", "is part of every library"),
    ("templates/cuda/costs.toml", "decides how units are split and sharded"),
    ("crates/nattenc/", "is what builds"),
    ("Cargo", "is what builds"),
];

/// What each of these files touches, by its path relative to build.toml.
///
/// An error is a defect of the embedded templates.
pub fn touched(files: &[String], catalog: &'static Catalog) -> anyhow::Result<BTreeMap<String, Touch>> {
    let users = generate::users(catalog)?;
    Ok(files.iter().map(|file| (file.clone(), touch(file, &users, catalog))).collect())
}

fn touch(file: &str, users: &BTreeMap<String, BTreeSet<String>>, catalog: &Catalog) -> Touch {
    let is = |pattern: &str| {
        if pattern.starts_with('.') && !pattern.ends_with('/') {
            file.ends_with(pattern)
        } else {
            file.starts_with(pattern)
        }
    };
    if file == "build.toml" {
        return Touch::Config;
    }
    if let Some(variant) = file.strip_prefix("variants/").and_then(|name| name.strip_suffix(".toml")) {
        return Touch::Variant(variant.to_owned());
    }
    if let Some((_, why)) = BESIDE.iter().find(|(pattern, _)| is(pattern)) {
        return Touch::Nothing(why);
    }
    if let Some((_, why)) = GLOBAL.iter().find(|(pattern, _)| is(pattern)) {
        return Touch::Everything(why);
    }
    let family = file.strip_prefix("templates/cuda/").and_then(|rest| rest.split_once('/'));
    if let Some((family, _)) = family.filter(|(family, _)| catalog.family(family).is_some()) {
        return Touch::Families(BTreeSet::from([family.to_owned()]));
    }
    let native = ["csrc/", "include/"]
        .iter()
        .find_map(|dir| file.strip_prefix("crates/natten-kernels/")?.strip_prefix(dir));
    match native.map(|name| users.get(name)) {
        Some(Some(families)) if families.len() < catalog.families.len() => Touch::Families(families.clone()),
        Some(Some(_)) => Touch::Everything("is included by every family"),
        Some(None) => Touch::Everything("is host code of every library"),
        None => Touch::Everything("is not known to be beside what is compiled"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    #[test]
    fn files_touch_the_families_that_come_from_them() {
        let catalog = catalog::catalog().unwrap();
        let of = |file: &str| touched(&[file.to_owned()], catalog).unwrap().remove(file).unwrap();
        for (file, families) in [
            ("templates/cuda/fna/instances.toml", &["fna"][..]),
            ("templates/cuda/blackwell_fna_bwd/unit.cu.tera", &["blackwell_fna_bwd"]),
            ("crates/natten-kernels/csrc/launch_fna.cuh", &["fna"]),
            ("crates/natten-kernels/csrc/launch_hopper_fna.cuh", &["hopper_fna", "hopper_fna_bwd"]),
            (
                "crates/natten-kernels/csrc/launch_blackwell.cuh",
                &["blackwell_fmha", "blackwell_fmha_bwd", "blackwell_fna", "blackwell_fna_bwd"],
            ),
        ] {
            let wanted = families.iter().map(|f| (*f).to_owned()).collect();
            assert_eq!(of(file), Touch::Families(wanted), "{file}");
        }
        for file in [
            "templates/cuda/common/header.tera",
            "crates/natten-kernels/csrc/registry.h",
            "crates/natten-kernels/csrc/abi.cpp",
            "crates/nattenc/src/graph/compile.rs",
            "Cargo.lock",
            "nattenc.lock",
            "something/new",
        ] {
            assert!(matches!(of(file), Touch::Everything(_)), "{file}: {:?}", of(file));
        }
        for file in [
            "README.md",
            "crates/natten-kernels/README.md",
            "crates/natten-kernels/src/ops.rs",
            "tests/cli.rs",
        ] {
            assert!(matches!(of(file), Touch::Nothing(_)), "{file}");
        }
        assert_eq!(of("variants/cu128.toml"), Touch::Variant("cu128".to_owned()));
        assert_eq!(of("build.toml"), Touch::Config);
    }
}
