//! Renders what is compiled: a `.cu` per unit, `registry.cpp`, and the hand-written C++ beside them.
//! Pure: text in memory. A unit's text depends on its kernels alone, never on the gencodes it is
//! compiled for, so adding a capability changes no unit.

mod blackwell;
mod context;
#[cfg(test)]
mod host_test;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use anyhow::{Context as _, anyhow, bail};
use serde::Serialize;
use tera::Tera;

use crate::catalog::{Catalog, Kernel};

/// One gencode that a unit is compiled for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Code {
    /// 9 of 9.0a.
    pub major: u16,
    /// 0 of 9.0a.
    pub minor: u16,
    /// `a` or `f`.
    pub suffix: Option<char>,
    /// PTX rather than a cubin.
    pub ptx: bool,
}

/// One translation unit.
#[derive(Debug)]
pub struct Unit<'a> {
    /// `fna_011`: also part of a C++ name.
    pub name: String,
    /// The catalog's family.
    pub family: &'a str,
    /// The kernels to instantiate, in the catalog's order.
    pub kernels: Vec<&'a Kernel>,
    /// What it is compiled for; only the registry says so.
    pub codes: Vec<Code>,
}

macro_rules! templates {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../templates/", $name)))),*]
    };
}

/// Template name (its path under `templates/`) and text.
const TEMPLATES: &[(&str, &str)] = templates![
    "abi/registry.cpp.tera",
    "ci/workflow.yml.tera",
    "cuda/blackwell_fmha/unit.cu.tera",
    "cuda/blackwell_fmha_bwd/unit.cu.tera",
    "cuda/blackwell_fna/unit.cu.tera",
    "cuda/blackwell_fna_bwd/unit.cu.tera",
    "cuda/common/header.tera",
    "cuda/compute_delta/unit.cu.tera",
    "cuda/fmha/unit.cu.tera",
    "cuda/fna/unit.cu.tera",
    "cuda/hopper_fmha/unit.cu.tera",
    "cuda/hopper_fmha_bwd/unit.cu.tera",
    "cuda/hopper_fna/unit.cu.tera",
    "cuda/hopper_fna_bwd/unit.cu.tera",
    "cuda/merge/unit.cu.tera",
    "cuda/reference/unit.cu.tera",
    "cuda/token_permute/unit.cu.tera",
];

macro_rules! csrc {
    ($($name:literal),* $(,)?) => {
        &[
            ("natten_kernels.h", include_str!("../../../natten-kernels/include/natten_kernels.h")),
            ("natten_kernels_merge.h", include_str!("../../../natten-kernels/include/natten_kernels_merge.h")),
            ("shim/curand_kernel.h", include_str!("../../../natten-kernels/csrc/shim/curand_kernel.h")),
            $((concat!("nattenc/", $name), include_str!(concat!("../../../natten-kernels/csrc/", $name)))),*
        ]
    };
}

const SUPPORT_FILES: &[(&str, &str)] = csrc![
    "abi.cpp",
    "abi.h",
    "abi_blackwell.cpp",
    "abi_fmha.cpp",
    "abi_hopper.cpp",
    "abi_merge.cpp",
    "checks.cpp",
    "checks.h",
    "launch_blackwell.cuh",
    "launch_blackwell_fmha.cuh",
    "launch_blackwell_fmha_bwd.cuh",
    "launch_blackwell_fna.cuh",
    "launch_blackwell_fna_bwd.cuh",
    "launch_compute_delta.cuh",
    "launch_fmha.cuh",
    "launch_fna.cuh",
    "launch_hopper.cuh",
    "launch_hopper_fmha.cuh",
    "launch_hopper_fna.cuh",
    "launch_merge.cuh",
    "launch_reference.cuh",
    "launch_token_permute.cuh",
    "merge.h",
    "registry.h",
    "runtime.cpp",
    "runtime.h",
    "select.cpp",
    "select.h",
    "status.cpp",
    "status.h",
];

const HOST_SOURCES: &[&str] = &[
    "nattenc/abi.cpp",
    "nattenc/abi_blackwell.cpp",
    "nattenc/abi_fmha.cpp",
    "nattenc/abi_hopper.cpp",
    "nattenc/abi_merge.cpp",
    "nattenc/checks.cpp",
    "nattenc/runtime.cpp",
    "nattenc/select.cpp",
    "nattenc/status.cpp",
];

/// The `.cu` of a unit.
pub fn unit(unit: &Unit<'_>) -> anyhow::Result<String> {
    if unit.kernels.is_empty() {
        bail!("unit {} has no kernel", unit.name);
    }
    let in_unit = || format!("unit {}", unit.name);
    match unit.family {
        "fmha" => render(&context::fmha(unit).with_context(in_unit)?),
        "hopper_fna" => render(&context::hopper_fna(unit).with_context(in_unit)?),
        "hopper_fna_bwd" => render(&context::hopper_fna_bwd(unit).with_context(in_unit)?),
        "hopper_fmha" => render(&context::hopper_fmha(unit).with_context(in_unit)?),
        "hopper_fmha_bwd" => render(&context::hopper_fmha_bwd(unit).with_context(in_unit)?),
        "fna" => render(&context::fna(unit).with_context(in_unit)?),
        "reference" => render(&context::reference(unit)),
        "token_permute" => render(&context::token_permute(unit).with_context(in_unit)?),
        "compute_delta" => render(&context::compute_delta(unit)),
        "merge" => render(&context::merge(unit)),
        "blackwell_fna" => render(&blackwell::blackwell_fna(unit).with_context(in_unit)?),
        "blackwell_fna_bwd" => render(&blackwell::blackwell_fna_bwd(unit).with_context(in_unit)?),
        "blackwell_fmha" => render(&blackwell::blackwell_fmha(unit).with_context(in_unit)?),
        "blackwell_fmha_bwd" => render(&blackwell::blackwell_fmha_bwd(unit).with_context(in_unit)?),
        family => bail!("unit {}: family `{family}` has no template", unit.name),
    }
}

/// `registry.cpp`: which units were built and for what, the build's description (`build_info`, JSON;
/// its `variant` is named in messages) and, per family that is not built, why. A family of the C ABI
/// that is in neither gets a reason of its own.
pub fn registry(
    units: &[Unit<'_>],
    build_info: &str,
    reasons: &BTreeMap<String, String>,
) -> anyhow::Result<String> {
    render(&context::registry(units, build_info, reasons)?)
}

/// The files that units and the registry are compiled against: path under the include root, and text.
pub fn support_files() -> &'static [(&'static str, &'static str)] {
    SUPPORT_FILES
}

/// The headers of the C ABI: what a C program includes, and what says which functions a library exports.
pub fn public_headers() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    SUPPORT_FILES.iter().filter(|(name, _)| name.starts_with("natten_kernels"))
}

/// Those of [`support_files`] that the host compiler compiles, beside the registry.
pub fn host_sources() -> &'static [&'static str] {
    HOST_SOURCES
}

/// By support file, without the folder `nattenc/`: the families whose units include it, however deep.
pub fn users(catalog: &'static Catalog) -> anyhow::Result<BTreeMap<String, BTreeSet<String>>> {
    let texts: BTreeMap<&str, &str> = SUPPORT_FILES.iter().copied().collect();
    let mut users: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for family in &catalog.families {
        let whole = Unit {
            name: family.unit_name(0),
            family: &family.name,
            kernels: family.kernels().collect(),
            codes: Vec::new(),
        };
        let rendered = unit(&whole)?;
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut unread: Vec<&str> = vec![&rendered];
        while let Some(text) = unread.pop() {
            for line in text.lines() {
                let name = line.strip_prefix("#include \"").and_then(|rest| rest.split('"').next());
                if let Some((name, text)) = name.and_then(|name| texts.get_key_value(name))
                    && seen.insert(name)
                {
                    unread.push(text);
                }
            }
        }
        for name in seen {
            let name = name.strip_prefix("nattenc/").unwrap_or(name);
            users.entry(name.to_owned()).or_default().insert(family.name.clone());
        }
    }
    Ok(users)
}

/// What a template is rendered from.
pub(crate) trait Template: Serialize {
    /// Its path under `templates/`.
    const NAME: &'static str;
}

/// Renders the template of `values`. An error is a defect of the template.
pub(crate) fn render<T: Template>(values: &T) -> anyhow::Result<String> {
    static TERA: OnceLock<Result<Tera, String>> = OnceLock::new();
    let parse = || {
        let mut tera = Tera::default();
        tera.add_raw_templates(TEMPLATES.iter().copied()).map_err(|error| chain(&error))?;
        Ok(tera)
    };
    let tera = TERA.get_or_init(parse).as_ref().map_err(|error| anyhow!("templates: {error}"))?;
    let mut context = tera::Context::from_serialize(values)?;
    context.insert("template", T::NAME);
    tera.render(T::NAME, &context).map_err(|error| anyhow!("template {}: {}", T::NAME, chain(&error)))
}

/// Tera's headline names the template alone; the reason is among its sources.
fn chain(error: &tera::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{self, Direction, Dtype};

    fn code(major: u16, minor: u16, suffix: Option<char>, ptx: bool) -> Code {
        Code { major, minor, suffix, ptx }
    }

    pub(super) fn every_unit() -> Vec<Unit<'static>> {
        let families = &catalog::catalog().unwrap().families;
        let units = families.iter().flat_map(|family| {
            family.units(family.splits.default).into_iter().enumerate().map(|(index, groups)| Unit {
                name: family.unit_name(index),
                family: &family.name,
                kernels: groups.iter().flat_map(|group| &group.kernels).collect(),
                codes: vec![code(9, 0, None, false)],
            })
        });
        units.collect()
    }

    #[test]
    fn every_unit_names_each_of_its_kernels_and_no_other() {
        for u in every_unit() {
            let text = unit(&u).unwrap();
            assert!(text.starts_with("// generated by nattenc from templates/cuda/"), "{}", u.name);
            assert!(!text.contains("{{") && !text.contains("{%"), "{}", u.name);
            assert_eq!(text.matches("_entry<").count(), u.kernels.len(), "{}", u.name);
            for kernel in &u.kernels {
                assert!(text.contains(&format!("{{\"{}\", NATTEN_", kernel.name)), "{}", kernel.name);
            }
            assert!(text.contains(&format!("const UnitEntries unit_{} = {{\"{}\"", u.name, u.family)));
        }
    }

    #[test]
    fn an_fna_unit_has_upstreams_classes_and_only_the_headers_it_needs() {
        let family = catalog::catalog().unwrap().family("fna").unwrap();
        let pick = |direction| {
            let wanted = |k: &&Kernel| {
                k.direction == direction && k.rank == 2 && k.dtype == Dtype::Float16 && k.live_on(90)
            };
            family.kernels().filter(wanted).collect::<Vec<_>>()
        };
        let rendered =
            |kernels| unit(&Unit { name: "fna_000".into(), family: "fna", kernels, codes: vec![] });
        let forward = rendered(pick(Direction::Forward)).unwrap();
        assert!(forward.contains(
            "FusedNeighborhoodAttentionKernel<2, CausalMask<false, true>, cutlass::half_t, cutlass::arch::Sm80, \
             true, 64, 64, 65536>"
        ));
        assert!(forward.contains("kernel_forward.h") && !forward.contains("kernel_backward.h"));
        assert!(forward.contains("#if __CUDA_ARCH__ >= 800 && __CUDA_ARCH__ < 1300"));
        // Dimension 0 is bit 0: the mask (false, true) is 2.
        assert!(forward.contains("{\"fna2d_64x64x32_sm80_float16_cm_0_1\", NATTEN_FLOAT16, 2, 80, 130, 8}"));
        let backward = rendered(pick(Direction::Backward)).unwrap();
        assert!(backward.contains("FusedNeighborhoodAttentionBackwardKernel<2, CausalMask<true, true>"));
        assert!(backward.contains("kernel_backward.h") && !backward.contains("kernel_forward.h"));
    }

    #[test]
    fn an_fmha_unit_has_upstreams_classes() {
        let family = catalog::catalog().unwrap().family("fmha").unwrap();
        let kernels = family.kernels().filter(|k| k.dtype == Dtype::Float32 && k.live_on(90)).collect();
        let text = unit(&Unit { name: "fmha_000".into(), family: "fmha", kernels, codes: vec![] }).unwrap();
        for line in [
            "fmha_32x128x32_sm80_float32(typename AttentionKernel<float, cutlass::arch::Sm80, true, 32, 128, 32>::Params p)",
            "AttentionBackwardKernel<float, cutlass::arch::Sm80, true, 128, 64, 128, false>::attention_kernel(p);",
            "{\"fmha_backward_64x64x65536_sm80_float32\", NATTEN_FLOAT32, 80, 130, 4}",
        ] {
            assert!(text.contains(line), "{line}");
        }
    }

    #[test]
    fn a_hopper_unit_has_upstreams_structs_tile_shapes_and_schedules() {
        let half = "cute::Int<64>, cute::Int<128>, cute::Int<64>";
        for (family, name, parts) in [
            (
                "hopper_fna",
                "hopper_fna2d_float16_64x128x64_Q8x8_KV16x8_causal0x1",
                [
                    "fna_hopper::KernelForward<cutlass::half_t, cute::tuple<cute::false_type, cute::true_type>, \
                     cute::tuple<cute::Int<8>, cute::Int<8>>, cute::tuple<cute::Int<16>, cute::Int<8>>, ",
                    "NATTEN_FLOAT16, 2, {8, 8, 0}, {16, 8, 0}, 64, 0, 90, 91}",
                    "HopperKernelSchedule::NonPersistent>>(",
                ],
            ),
            (
                "hopper_fna_bwd",
                "hopper_fna3d_backward_bfloat16_64x128x128_Q1x8x8_KV2x8x8_causal1x1x1",
                [
                    "fna_hopper::KernelBackward<cutlass::bfloat16_t, cute::tuple<cute::true_type, ",
                    "NATTEN_BFLOAT16, 7, {1, 8, 8}, {2, 8, 8}, 128, -1, 90, 91}",
                    "hopper_fna_backward_entry<",
                ],
            ),
            (
                "hopper_fmha",
                "hopper_fmha_bfloat16_128x128x128_pp",
                [
                    "using With = natten::cuda::fmha_hopper::KernelForward<cutlass::bfloat16_t, ",
                    "HopperKernelSchedule::WSPingpong, Mask, varlen>;",
                    "NATTEN_BFLOAT16, 0, {128, 0, 0}, {128, 0, 0}, 128, 2, 90, 91}",
                ],
            ),
            (
                "hopper_fmha_bwd",
                "hopper_fmha_backward_float16_64x128x64",
                [
                    "using With = natten::cuda::fmha_hopper::KernelBackward<cutlass::half_t, ",
                    ", Mask, varlen>;",
                    "NATTEN_FLOAT16, 0, {64, 0, 0}, {128, 0, 0}, 64, -1, 90, 91}",
                ],
            ),
        ] {
            let kernels: Vec<_> = catalog::catalog().unwrap().family(family).unwrap().kernels().collect();
            let kernels = kernels.into_iter().filter(|kernel| kernel.name == name).collect();
            let u = Unit { name: format!("{family}_000"), family, kernels, codes: vec![] };
            let text = unit(&u).unwrap();
            for part in parts {
                assert!(text.contains(part), "{name}: {part} is not in\n{text}");
            }
            assert!(!name.contains("64x128x64") || text.contains(half), "{name}");
        }
    }

    #[test]
    fn units_without_kernels_or_template_are_refused() {
        let kernel = catalog::catalog().unwrap().families[0].kernels().next().unwrap();
        for (family, kernels, reason) in
            [("fna", vec![], "has no kernel"), ("flex", vec![kernel], "no template")]
        {
            let u = Unit { name: "x_000".into(), family, kernels, codes: vec![] };
            assert!(format!("{:#}", unit(&u).unwrap_err()).contains(reason));
        }
    }

    #[test]
    fn the_registry_lists_units_codes_and_reasons() {
        let mut units = every_unit();
        units.truncate(3);
        units[1].codes = vec![code(9, 0, Some('a'), false), code(10, 0, None, true)];
        let reasons =
            BTreeMap::from([("hopper_fna".to_owned(), "section \"hopper\"\nneeds 12.0".to_owned())]);
        let info = "{\"variant\": \"cu130\", \"note\": \"back\\\\slash and caf\u{e9}\"}";
        let text = registry(&units, info, &reasons).unwrap();
        for line in [
            "{&unit_reference_000, codes_0, 1},",
            "{&unit_reference_001, codes_1, 2},",
            "{&unit_fna_000, codes_0, 1},",
            "{9, 0, 0, false},",
            "{9, 0, 'a', false},",
            "{10, 0, 0, true},",
            "{\"hopper_fna\", \"section \\\"hopper\\\"\\nneeds 12.0\"},",
            "const int32_t unit_count = 3;",
            "{\"fmha\", \"the selection left it out\"},",
            "{\"compute_delta\", \"the selection left it out\"},",
            "const int32_t absence_count = 12;",
            "const char variant[] = \"cu130\";",
            r#""{\"variant\": \"cu130\", \"note\": \"back\\\\slash and caf\303\251\"}""#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn a_build_of_nothing_still_has_a_registry() {
        let text = registry(&[], "{}", &BTreeMap::new()).unwrap();
        assert!(text.contains("unit_count = 0") && text.contains("variant[] = \"\""));
        assert!(registry(&[], "not json", &BTreeMap::new()).is_err());
    }

    #[test]
    fn host_sources_are_support_files_and_every_include_of_ours_is_one() {
        let names: Vec<_> = support_files().iter().map(|(name, _)| *name).collect();
        assert!(host_sources().iter().all(|source| names.contains(source)));
        let generated = unit(&every_unit()[0]).unwrap();
        let texts = support_files().iter().map(|(_, text)| *text).chain([generated.as_str()]);
        for line in texts.flat_map(str::lines).filter(|line| line.starts_with("#include \"")) {
            let name = line.trim_start_matches("#include \"").trim_end_matches('"');
            assert!(names.contains(&name), "{name}");
        }
    }
}
