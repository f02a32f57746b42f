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

#[cfg(test)]
mod tests {
    use crate::catalog;
    use crate::generate::{Unit, unit};

    fn first(family: &str) -> String {
        let family = catalog::catalog().unwrap().family(family).unwrap();
        let kernels = family.kernels().take(1).collect();
        let text =
            unit(&Unit { name: "u_000".into(), family: &family.name, kernels, codes: vec![] }).unwrap();
        text.lines().skip_while(|line| !line.contains("_entry<")).take(2).map(str::trim).collect()
    }

    #[test]
    fn rows_have_upstreams_template_arguments() {
        let gemm = |m| format!("cute::tuple<cute::Int<{m}>, cute::Int<128>, cute::Int<32>>");
        let tiles = |q| format!("cute::tuple<cute::Int<{q}>>, cute::tuple<cute::Int<128>>");
        let mask = "cute::tuple<cute::false_type>";
        for (family, row) in [
            (
                "blackwell_fna",
                format!(
                    "blackwell_fna_forward_entry<cutlass::half_t, {mask}, {}, {}, false>(\
                     {{\"blackwell_fna1d_float16_256x128x32_Q256_KV128_causal0\", NATTEN_FLOAT16, 0, 100, 104, 8}}),",
                    tiles(256),
                    gemm(256)
                ),
            ),
            (
                "blackwell_fna_bwd",
                format!(
                    "blackwell_fna_backward_entry<cutlass::half_t, {mask}, {}, {}>(\
                     {{\"blackwell_fna1d_backward_float16_128x128x32_Q128_KV128_causal0\", NATTEN_FLOAT16, 0, 100, 104, \
                     8}}),",
                    tiles(128),
                    gemm(128)
                ),
            ),
            (
                "blackwell_fmha",
                format!(
                    "blackwell_fmha_forward_entry<cutlass::half_t, {}, false>(\
                     {{\"blackwell_fmha_float16_256x128x32\", NATTEN_FLOAT16, 0, 100, 104, 8}}),",
                    gemm(256)
                ),
            ),
            (
                "blackwell_fmha_bwd",
                format!(
                    "blackwell_fmha_backward_entry<cutlass::half_t, {}>(\
                     {{\"blackwell_fmha_backward_float16_128x128x32\", NATTEN_FLOAT16, 0, 100, 104, 8}}),",
                    gemm(128)
                ),
            ),
        ] {
            assert_eq!(first(family), row, "{family}");
        }
    }

    #[test]
    fn eight_bit_operands_are_aligned_to_sixteen_elements() {
        let family = catalog::catalog().unwrap().family("blackwell_fmha").unwrap();
        let kernels = family.kernels().filter(|kernel| kernel.dtype.size() == 1).collect();
        let text =
            unit(&Unit { name: "u_000".into(), family: &family.name, kernels, codes: vec![] }).unwrap();
        assert!(text.contains("{\"blackwell_fmha_e4m3_256x128x64\", NATTEN_FLOAT8_E4M3, 0, 100, 104, 16}"));
        assert!(text.contains("<cutlass::float_e5m2_t, "));
    }

    #[test]
    fn kernels_without_tiles_are_refused() {
        let kernel = catalog::catalog().unwrap().family("fna").unwrap().kernels().next().unwrap();
        let u = Unit { name: "u_000".into(), family: "blackwell_fna", kernels: vec![kernel], codes: vec![] };
        assert!(format!("{:#}", unit(&u).unwrap_err()).contains("has no tile shapes"));
    }
}
