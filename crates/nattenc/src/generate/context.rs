//! What each template is rendered from, one typed struct per template. Everything that is computed
//! is computed here; templates loop and print.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, anyhow};
use serde::Serialize;

use super::{Code, Template, Unit};
use crate::catalog::{self, Direction, Dtype, Kernel, Schedule, Tiles};

/// A unit: its name, its family and its kernels, in the words of one family's template.
#[derive(Serialize)]
pub(super) struct UnitContext<'a, K> {
    pub(super) unit: &'a str,
    pub(super) family: &'a str,
    pub(super) kernels: Vec<K>,
}

fn units<'a, K>(unit: &'a Unit<'a>, kernel: impl Fn(&'a Kernel) -> K) -> UnitContext<'a, K> {
    UnitContext {
        unit: &unit.name,
        family: unit.family,
        kernels: unit.kernels.iter().map(|k| kernel(k)).collect(),
    }
}

/// `cuda/fna/unit.cu.tera`
#[derive(Serialize)]
pub(super) struct Fna<'a> {
    #[serde(flatten)]
    unit: UnitContext<'a, FnaKernel<'a>>,
    forward: bool,
    backward: bool,
}

#[derive(Serialize)]
struct FnaKernel<'a> {
    name: &'a str,
    direction: String,
    /// The kernel class, spelled with upstream's template arguments.
    class: String,
    dtype: &'static str,
    causal_bits: u32,
    sm_min: u16,
    sm_max: u16,
    alignment: u32,
}

impl Template for Fna<'_> {
    const NAME: &'static str = "cuda/fna/unit.cu.tera";
}

pub(super) fn fna<'a>(unit: &'a Unit<'a>) -> anyhow::Result<Fna<'a>> {
    check_gemm_shapes(unit)?;
    let has = |direction| unit.kernels.iter().any(|k| k.direction == direction);
    Ok(Fna {
        forward: has(Direction::Forward),
        backward: has(Direction::Backward),
        unit: units(unit, |k| FnaKernel {
            name: &k.name,
            direction: k.direction.to_string(),
            class: format!(
                "FusedNeighborhoodAttention{}Kernel<{}, CausalMask<{}>, {}, cutlass::arch::Sm{}, true, {}>",
                if k.direction == Direction::Backward { "Backward" } else { "" },
                k.rank,
                join(&k.causal),
                element(k.dtype),
                k.sm_min,
                join(&k.shape),
            ),
            dtype: dtype(k.dtype),
            causal_bits: causal_bits(&k.causal),
            sm_min: k.sm_min,
            sm_max: k.sm_max,
            alignment: 16 / k.dtype.size(),
        }),
    })
}

/// `cuda/fmha/unit.cu.tera`
#[derive(Serialize)]
pub(super) struct Fmha<'a> {
    #[serde(flatten)]
    unit: UnitContext<'a, FmhaKernel<'a>>,
    forward: bool,
    backward: bool,
}

#[derive(Serialize)]
struct FmhaKernel<'a> {
    name: &'a str,
    direction: String,
    /// The kernel class, spelled with upstream's template arguments.
    class: String,
    dtype: &'static str,
    sm_min: u16,
    sm_max: u16,
    alignment: u32,
}

impl Template for Fmha<'_> {
    const NAME: &'static str = "cuda/fmha/unit.cu.tera";
}

pub(super) fn fmha<'a>(unit: &'a Unit<'a>) -> anyhow::Result<Fmha<'a>> {
    check_gemm_shapes(unit)?;
    let has = |direction| unit.kernels.iter().any(|k| k.direction == direction);
    Ok(Fmha {
        forward: has(Direction::Forward),
        backward: has(Direction::Backward),
        unit: units(unit, |k| {
            // Backward, the last argument says whether tiles divide the sequence lengths.
            let (class, last) = match k.direction {
                Direction::Forward => ("AttentionKernel", ""),
                Direction::Backward => ("AttentionBackwardKernel", ", false"),
            };
            FmhaKernel {
                name: &k.name,
                direction: k.direction.to_string(),
                class: format!(
                    "{class}<{}, cutlass::arch::Sm{}, true, {}{last}>",
                    element(k.dtype),
                    k.sm_min,
                    join(&k.shape)
                ),
                dtype: dtype(k.dtype),
                sm_min: k.sm_min,
                sm_max: k.sm_max,
                alignment: 16 / k.dtype.size(),
            }
        }),
    })
}

fn check_gemm_shapes(unit: &Unit<'_>) -> anyhow::Result<()> {
    match unit.kernels.iter().find(|kernel| kernel.shape.len() != 3) {
        Some(kernel) => Err(anyhow!("kernel {} has no GEMM shape of three numbers", kernel.name)),
        None => Ok(()),
    }
}

/// The templates of the four Hopper families.
#[derive(Serialize)]
struct HopperKernel<'a> {
    name: &'a str,
    /// Upstream's kernel struct with its template arguments; hopper_fmha's leave `Mask` and `varlen` open.
    class: String,
    dtype: &'static str,
    causal_bits: u32,
    /// Three numbers, 0 beyond the rank.
    query_tile: String,
    key_tile: String,
    head_dim: u32,
    schedule: i64,
    sm_min: u16,
    sm_max: u16,
}

macro_rules! hopper {
    ($($(#[$doc:meta])* $name:ident $template:literal;)*) => {
        $(
            $(#[$doc])*
            #[derive(Serialize)]
            pub(super) struct $name<'a>(UnitContext<'a, HopperKernel<'a>>);

            impl Template for $name<'_> {
                const NAME: &'static str = $template;
            }
        )*
    };
}

hopper! {
    /// `cuda/hopper_fna/unit.cu.tera`
    HopperFna "cuda/hopper_fna/unit.cu.tera";
    /// `cuda/hopper_fna_bwd/unit.cu.tera`
    HopperFnaBwd "cuda/hopper_fna_bwd/unit.cu.tera";
    /// `cuda/hopper_fmha/unit.cu.tera`
    HopperFmha "cuda/hopper_fmha/unit.cu.tera";
    /// `cuda/hopper_fmha_bwd/unit.cu.tera`
    HopperFmhaBwd "cuda/hopper_fmha_bwd/unit.cu.tera";
}

pub(super) fn hopper_fna<'a>(unit: &'a Unit<'a>) -> anyhow::Result<HopperFna<'a>> {
    Ok(HopperFna(hopper(unit, |kernel, tiles| {
        let schedule = schedule(kernel, tiles)?;
        Ok(format!(
            "natten::cuda::fna_hopper::KernelForward<{}, {schedule}>",
            neighborhood_arguments(kernel, tiles)
        ))
    })?))
}

pub(super) fn hopper_fna_bwd<'a>(unit: &'a Unit<'a>) -> anyhow::Result<HopperFnaBwd<'a>> {
    Ok(HopperFnaBwd(hopper(unit, |kernel, tiles| {
        Ok(format!("natten::cuda::fna_hopper::KernelBackward<{}>", neighborhood_arguments(kernel, tiles)))
    })?))
}

pub(super) fn hopper_fmha<'a>(unit: &'a Unit<'a>) -> anyhow::Result<HopperFmha<'a>> {
    Ok(HopperFmha(hopper(unit, |kernel, tiles| {
        Ok(format!(
            "natten::cuda::fmha_hopper::KernelForward<{}, {}, {}, Mask, varlen>",
            element(kernel.dtype),
            ints(&tiles.gemm()),
            schedule(kernel, tiles)?
        ))
    })?))
}

pub(super) fn hopper_fmha_bwd<'a>(unit: &'a Unit<'a>) -> anyhow::Result<HopperFmhaBwd<'a>> {
    Ok(HopperFmhaBwd(hopper(unit, |kernel, tiles| {
        Ok(format!(
            "natten::cuda::fmha_hopper::KernelBackward<{}, {}, Mask, varlen>",
            element(kernel.dtype),
            ints(&tiles.gemm())
        ))
    })?))
}

fn hopper<'a>(
    unit: &'a Unit<'a>,
    class: impl Fn(&Kernel, &Tiles) -> anyhow::Result<String>,
) -> anyhow::Result<UnitContext<'a, HopperKernel<'a>>> {
    let kernel = |k: &'a Kernel| {
        let tiles = k.tiles.as_ref().ok_or_else(|| anyhow!("kernel {} has no tile shapes", k.name))?;
        Ok(HopperKernel {
            name: &k.name,
            class: class(k, tiles)?,
            dtype: dtype(k.dtype),
            causal_bits: causal_bits(&k.causal),
            query_tile: three(&tiles.query),
            key_tile: three(&tiles.key),
            head_dim: tiles.head_dim,
            schedule: tiles.schedule.map_or(-1, |schedule| schedule.number().into()),
            sm_min: k.sm_min,
            sm_max: k.sm_max,
        })
    };
    Ok(UnitContext {
        unit: &unit.name,
        family: unit.family,
        kernels: unit.kernels.iter().map(|k| kernel(k)).collect::<anyhow::Result<_>>()?,
    })
}

/// Element type, masks, tile shapes and GEMM shape: what upstream's structs for neighborhoods start with.
fn neighborhood_arguments(kernel: &Kernel, tiles: &Tiles) -> String {
    let causal: Vec<String> = kernel.causal.iter().map(|causal| format!("cute::{causal}_type")).collect();
    format!(
        "{}, cute::tuple<{}>, {}, {}, {}",
        element(kernel.dtype),
        causal.join(", "),
        ints(&tiles.query),
        ints(&tiles.key),
        ints(&tiles.gemm())
    )
}

fn schedule(kernel: &Kernel, tiles: &Tiles) -> anyhow::Result<&'static str> {
    match tiles.schedule {
        Some(Schedule::Persistent) => Err(anyhow!("kernel {} has a schedule of Blackwell's", kernel.name)),
        Some(Schedule::NonPersistent) => Ok("natten::cuda::hopper::HopperKernelSchedule::NonPersistent"),
        Some(Schedule::Cooperative) => Ok("natten::cuda::hopper::HopperKernelSchedule::WSCooperative"),
        Some(Schedule::PingPong) => Ok("natten::cuda::hopper::HopperKernelSchedule::WSPingpong"),
        None => Err(anyhow!("kernel {} has no schedule", kernel.name)),
    }
}

/// `cute::tuple<cute::Int<8>, cute::Int<16>>`
fn ints(numbers: &[u32]) -> String {
    let numbers: Vec<String> = numbers.iter().map(|number| format!("cute::Int<{number}>")).collect();
    format!("cute::tuple<{}>", numbers.join(", "))
}

/// Up to three numbers, the missing ones 0.
fn three(numbers: &[u32]) -> String {
    let at = |index: usize| numbers.get(index).copied().unwrap_or(0);
    join(&[at(0), at(1), at(2)])
}

/// `cuda/reference/unit.cu.tera`
#[derive(Serialize)]
pub(super) struct Reference<'a>(UnitContext<'a, ReferenceKernel<'a>>);

#[derive(Serialize)]
struct ReferenceKernel<'a> {
    name: &'a str,
    direction: String,
    element: &'static str,
    dtype: &'static str,
    causal: &'a [bool],
    causal_bits: u32,
    sm_min: u16,
    sm_max: u16,
}

impl Template for Reference<'_> {
    const NAME: &'static str = "cuda/reference/unit.cu.tera";
}

pub(super) fn reference<'a>(unit: &'a Unit<'a>) -> Reference<'a> {
    Reference(units(unit, |k| ReferenceKernel {
        name: &k.name,
        direction: k.direction.to_string(),
        element: element(k.dtype),
        dtype: dtype(k.dtype),
        causal: &k.causal,
        causal_bits: causal_bits(&k.causal),
        sm_min: k.sm_min,
        sm_max: k.sm_max,
    }))
}

/// `cuda/token_permute/unit.cu.tera`
#[derive(Serialize)]
pub(super) struct TokenPermute<'a>(UnitContext<'a, TokenPermuteKernel<'a>>);

#[derive(Serialize)]
struct TokenPermuteKernel<'a> {
    name: &'a str,
    element: &'static str,
    dtype: &'static str,
    rank: u8,
    unpermute: bool,
    vector: u32,
    sm_min: u16,
    sm_max: u16,
}

impl Template for TokenPermute<'_> {
    const NAME: &'static str = "cuda/token_permute/unit.cu.tera";
}

pub(super) fn token_permute<'a>(unit: &'a Unit<'a>) -> anyhow::Result<TokenPermute<'a>> {
    let vector = |k: &Kernel| k.shape.first().copied();
    if let Some(kernel) = unit.kernels.iter().find(|k| vector(k).is_none()) {
        return Err(anyhow!("kernel {} has no vector width", kernel.name));
    }
    Ok(TokenPermute(units(unit, |k| TokenPermuteKernel {
        name: &k.name,
        element: element(k.dtype),
        dtype: dtype(k.dtype),
        rank: k.rank,
        unpermute: k.direction == Direction::Backward,
        vector: vector(k).unwrap_or(1),
        sm_min: k.sm_min,
        sm_max: k.sm_max,
    })))
}

/// `cuda/compute_delta/unit.cu.tera`
#[derive(Serialize)]
pub(super) struct ComputeDelta<'a>(UnitContext<'a, ComputeDeltaKernel<'a>>);

#[derive(Serialize)]
struct ComputeDeltaKernel<'a> {
    name: &'a str,
    element: &'static str,
    dtype: &'static str,
    sm_min: u16,
    sm_max: u16,
    alignment: u32,
}

impl Template for ComputeDelta<'_> {
    const NAME: &'static str = "cuda/compute_delta/unit.cu.tera";
}

pub(super) fn compute_delta<'a>(unit: &'a Unit<'a>) -> ComputeDelta<'a> {
    ComputeDelta(units(unit, |k| ComputeDeltaKernel {
        name: &k.name,
        element: element(k.dtype),
        dtype: dtype(k.dtype),
        sm_min: k.sm_min,
        sm_max: k.sm_max,
        // Upstream's kernel loads two elements at a time.
        alignment: 2,
    }))
}

/// `cuda/merge/unit.cu.tera`
#[derive(Serialize)]
pub(super) struct Merge<'a>(UnitContext<'a, MergeKernel<'a>>);

#[derive(Serialize)]
struct MergeKernel<'a> {
    name: &'a str,
    element: &'static str,
    dtype: &'static str,
    backward: bool,
    sm_min: u16,
    sm_max: u16,
}

impl Template for Merge<'_> {
    const NAME: &'static str = "cuda/merge/unit.cu.tera";
}

pub(super) fn merge<'a>(unit: &'a Unit<'a>) -> Merge<'a> {
    Merge(units(unit, |k| MergeKernel {
        name: &k.name,
        element: element(k.dtype),
        dtype: dtype(k.dtype),
        backward: k.direction == Direction::Backward,
        sm_min: k.sm_min,
        sm_max: k.sm_max,
    }))
}

/// `abi/registry.cpp.tera`. Strings are C++ literals, quotes included.
#[derive(Serialize)]
pub(super) struct Registry<'a> {
    units: Vec<RegistryUnit<'a>>,
    code_sets: Vec<Vec<RegistryCode>>,
    absences: Vec<RegistryAbsence>,
    build_info: Vec<String>,
    variant: String,
}

#[derive(Serialize)]
struct RegistryUnit<'a> {
    name: &'a str,
    code_set: usize,
    code_count: usize,
}

#[derive(Serialize)]
struct RegistryCode {
    major: u16,
    minor: u16,
    suffix: String,
    ptx: bool,
}

#[derive(Serialize)]
struct RegistryAbsence {
    family: String,
    reason: String,
}

impl Template for Registry<'_> {
    const NAME: &'static str = "abi/registry.cpp.tera";
}

pub(super) fn registry<'a>(
    units: &'a [Unit<'a>],
    build_info: &str,
    reasons: &BTreeMap<String, String>,
) -> anyhow::Result<Registry<'a>> {
    let info: serde_json::Value = serde_json::from_str(build_info).context("the build's description")?;
    let variant = info.get("variant").and_then(serde_json::Value::as_str).unwrap_or_default();

    let mut code_sets: Vec<&[Code]> = Vec::new();
    let mut rows = Vec::new();
    for unit in units {
        if unit.codes.is_empty() {
            return Err(anyhow!("unit {} is compiled for nothing", unit.name));
        }
        let known = code_sets.iter().position(|set| *set == unit.codes);
        let code_set = known.unwrap_or_else(|| {
            code_sets.push(&unit.codes);
            code_sets.len() - 1
        });
        rows.push(RegistryUnit { name: &unit.name, code_set, code_count: unit.codes.len() });
    }
    let code = |c: &Code| RegistryCode {
        major: c.major,
        minor: c.minor,
        suffix: c.suffix.map_or("0".to_owned(), |suffix| format!("'{suffix}'")),
        ptx: c.ptx,
    };
    let mut absent = reasons.clone();
    for family in C_ABI_FAMILIES.iter().filter(|family| !units.iter().any(|unit| unit.family == **family)) {
        let known = catalog::catalog()?.family(family).is_some();
        absent.entry((*family).to_owned()).or_insert_with(|| {
            if known {
                "the selection left it out"
            } else {
                "this version of nattenc has no kernel tables for it"
            }
            .to_owned()
        });
    }
    Ok(Registry {
        units: rows,
        code_sets: code_sets.iter().map(|set| set.iter().map(code).collect()).collect(),
        absences: absent
            .iter()
            .map(|(family, reason)| RegistryAbsence { family: literal(family), reason: literal(reason) })
            .collect(),
        build_info: literal_lines(build_info),
        variant: literal(variant),
    })
}

/// The families that the C ABI has entry points for.
const C_ABI_FAMILIES: [&str; 14] = [
    "blackwell_fmha",
    "blackwell_fmha_bwd",
    "blackwell_fna",
    "blackwell_fna_bwd",
    "compute_delta",
    "fmha",
    "fna",
    "hopper_fmha",
    "hopper_fmha_bwd",
    "hopper_fna",
    "hopper_fna_bwd",
    "merge",
    "reference",
    "token_permute",
];

/// The C++ spelling of an element type.
pub(super) fn element(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Float32 => "float",
        Dtype::Float16 => "cutlass::half_t",
        Dtype::Bfloat16 => "cutlass::bfloat16_t",
        Dtype::Float8E4m3 => "cutlass::float_e4m3_t",
        Dtype::Float8E5m2 => "cutlass::float_e5m2_t",
    }
}

/// The C ABI's constant.
pub(super) fn dtype(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Float32 => "NATTEN_FLOAT32",
        Dtype::Float16 => "NATTEN_FLOAT16",
        Dtype::Bfloat16 => "NATTEN_BFLOAT16",
        Dtype::Float8E4m3 => "NATTEN_FLOAT8_E4M3",
        Dtype::Float8E5m2 => "NATTEN_FLOAT8_E5M2",
    }
}

/// Bit i says whether dimension i is causal.
pub(super) fn causal_bits(causal: &[bool]) -> u32 {
    causal.iter().enumerate().map(|(dimension, causal)| u32::from(*causal) << dimension).sum()
}

fn join<T: ToString>(values: &[T]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A C++ string literal. Bytes outside of ASCII are octal escapes, which end after three digits.
fn literal(text: &str) -> String {
    let mut quoted = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' => quoted.push_str("\\\""),
            b'\\' => quoted.push_str("\\\\"),
            b'\n' => quoted.push_str("\\n"),
            // A question mark could start a trigraph.
            b'?' => quoted.push_str("\\?"),
            b' '..=b'~' => quoted.push(char::from(byte)),
            _ => {
                // Writing to a String cannot fail.
                let _ = write!(quoted, "\\{byte:03o}");
            }
        }
    }
    quoted.push('"');
    quoted
}

/// A long literal as adjacent ones, one per line of the text.
fn literal_lines(text: &str) -> Vec<String> {
    text.split_inclusive('\n').map(literal).collect()
}
