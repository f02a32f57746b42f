//! What the templates of the four Blackwell families are rendered from.

use anyhow::anyhow;
use serde::Serialize;

use super::context::{UnitContext, causal_bits, dtype, element};
use super::{Template, Unit};
use crate::catalog::{Kernel, Schedule};

/// A kernel in C++'s words, spelled with upstream's template arguments.
#[derive(Serialize)]
struct BlackwellKernel<'a> {
    name: &'a str,
    element: &'static str,
    dtype: &'static str,
    /// The type of the causal mask.
    causal: String,
    causal_bits: u32,
    query_tile: String,
    key_tile: String,
    /// The type of (queries, keys, largest head dim).
    gemm: String,
    persistent: bool,
    sm_min: u16,
    sm_max: u16,
    alignment: u32,
}

fn kernels<'a>(unit: &'a Unit<'a>) -> anyhow::Result<UnitContext<'a, BlackwellKernel<'a>>> {
    let kernel = |k: &&'a Kernel| {
        let tiles = k.tiles.as_ref().ok_or_else(|| anyhow!("kernel {} has no tile shapes", k.name))?;
        Ok(BlackwellKernel {
            name: &k.name,
            element: element(k.dtype),
            dtype: dtype(k.dtype),
            causal: tuple(&k.causal, |causal| format!("cute::{causal}_type")),
            causal_bits: causal_bits(&k.causal),
            query_tile: shape(&tiles.query),
            key_tile: shape(&tiles.key),
            gemm: shape(&tiles.gemm()),
            persistent: tiles.schedule == Some(Schedule::Persistent),
            sm_min: k.sm_min,
            sm_max: k.sm_max,
            // TMA moves 16 bytes at least.
            alignment: 16 / k.dtype.size(),
        })
    };
    Ok(UnitContext {
        unit: &unit.name,
        family: unit.family,
        kernels: unit.kernels.iter().map(kernel).collect::<anyhow::Result<_>>()?,
    })
}

fn tuple<T>(values: &[T], spell: impl Fn(&T) -> String) -> String {
    format!("cute::tuple<{}>", values.iter().map(spell).collect::<Vec<_>>().join(", "))
}

fn shape(numbers: &[u32]) -> String {
    tuple(numbers, |number| format!("cute::Int<{number}>"))
}

macro_rules! families {
    ($($context:ident $family:ident $template:literal),* $(,)?) => {$(
        #[doc = concat!("`", $template, "`")]
        #[derive(Serialize)]
        pub(super) struct $context<'a>(UnitContext<'a, BlackwellKernel<'a>>);

        impl Template for $context<'_> {
            const NAME: &'static str = $template;
        }

        pub(super) fn $family<'a>(unit: &'a Unit<'a>) -> anyhow::Result<$context<'a>> {
            Ok($context(kernels(unit)?))
        }
    )*};
}

families! {
    BlackwellFna blackwell_fna "cuda/blackwell_fna/unit.cu.tera",
    BlackwellFnaBwd blackwell_fna_bwd "cuda/blackwell_fna_bwd/unit.cu.tera",
    BlackwellFmha blackwell_fmha "cuda/blackwell_fmha/unit.cu.tera",
    BlackwellFmhaBwd blackwell_fmha_bwd "cuda/blackwell_fmha_bwd/unit.cu.tera",
}
