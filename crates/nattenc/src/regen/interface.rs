//! What our own package promises its users: the operations of the C ABI, their argument structs and
//! constants, and the kernels that dispatch can choose. Recorded in `autogen.lock` beside the package's
//! version, so that nothing of it goes away or changes unnoticed.

use super::declarations::{declarations, single};
use super::entries::{body_length, join, tokens};
use crate::catalog::{Catalog, Kernel};
use crate::generate;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A public interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interface {
    /// Name → declaration.
    pub operations: BTreeMap<String, String>,
    /// Name → fields in their order.
    pub structs: BTreeMap<String, Vec<String>>,
    /// Name → value: status codes and element types.
    pub constants: BTreeMap<String, String>,
    /// Family → what kernels have in common → where they differ, apart by `, `.
    pub kernels: Kernels,
}

/// What is different in a newer interface, a line each.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Changes {
    /// What older programs do not know yet.
    pub added: Vec<String>,
    /// What older programs miss.
    pub removed: Vec<String>,
    /// What older programs use in a way that is wrong now.
    pub changed: Vec<String>,
}

impl Changes {
    /// Whether nothing is different.
    pub fn is_nothing(&self) -> bool {
        self.added.is_empty() && !self.breaks()
    }

    /// Whether a program that was right may be wrong now.
    pub fn breaks(&self) -> bool {
        !(self.removed.is_empty() && self.changed.is_empty())
    }

    /// Removals and changes, as sentences.
    pub fn breakages(&self) -> Vec<String> {
        let removed = self.removed.iter().map(|what| format!("{what} is gone"));
        removed.chain(self.changed.iter().cloned()).collect()
    }
}

/// The interface of this version of the package.
pub fn ours(catalog: &Catalog) -> anyhow::Result<Interface> {
    let headers: String = generate::public_headers().map(|(_, text)| *text).collect();
    let mut interface = of_header(&headers)?;
    for family in &catalog.families {
        interface.kernels.insert(family.name.clone(), kernels(family.kernels()));
    }
    Ok(interface)
}

/// The part that a C header declares.
fn of_header(text: &str) -> anyhow::Result<Interface> {
    let mut interface = Interface::default();
    for (name, texts) in declarations(text) {
        for text in texts {
            if let Some(declaration) = text.strip_prefix("NATTEN_API ") {
                interface.operations.insert(name.clone(), declaration.to_owned());
            } else if let Some((constant, value)) = text.split_once(" = ") {
                interface.constants.insert(constant.to_owned(), value.to_owned());
            }
        }
    }
    let words = tokens(text);
    for (at, window) in words.windows(4).enumerate() {
        let ["typedef", "struct", name, "{"] = window else { continue };
        let body = &words[at + 3..];
        let body = &body[1..body_length(body)?.saturating_sub(1)];
        let fields = body.split(|word| *word == ";").filter(|field| !field.is_empty());
        interface.structs.insert((*name).to_owned(), fields.flat_map(fields_of).collect());
    }
    Ok(interface)
}

/// A declaration's fields. A function pointer is one, whatever commas it has.
fn fields_of(declaration: &[&str]) -> Vec<String> {
    if declaration.contains(&"(") { vec![join(declaration)] } else { single(&join(declaration)) }
}

/// Kernels in few lines, and without loss: masks that have the same shapes share a line.
fn kernels<'a>(all: impl Iterator<Item = &'a Kernel>) -> BTreeMap<String, String> {
    let mut by_traits: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
    for kernel in all {
        let mask: String = kernel.causal.iter().map(|causal| if *causal { '1' } else { '0' }).collect();
        by_traits.entry(traits(kernel)).or_default().entry(mask).or_default().push(shape(kernel));
    }
    let mut lines = BTreeMap::new();
    for (traits, masks) in by_traits {
        let mut by_shapes: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (mask, shapes) in masks {
            by_shapes.entry(shapes.join(", ")).or_default().push(mask);
        }
        for (shapes, masks) in by_shapes {
            let causal = masks.join("|");
            let key = if causal.is_empty() { traits.clone() } else { format!("{traits} causal {causal}") };
            lines.insert(key, shapes);
        }
    }
    lines
}

fn traits(kernel: &Kernel) -> String {
    let rank = if kernel.rank == 0 { String::new() } else { format!(" {}d", kernel.rank) };
    let sm = match (kernel.sm_min, kernel.sm_max) {
        (0, u16::MAX) => "any sm".to_owned(),
        (low, high) => format!("sm {low} to {high}"),
    };
    format!("{}{rank} {} {sm}", kernel.direction, kernel.dtype)
}

fn shape(kernel: &Kernel) -> String {
    let by = |numbers: &[u32]| numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join("x");
    let Some(tiles) = &kernel.tiles else {
        return if kernel.shape.is_empty() { "one".to_owned() } else { by(&kernel.shape) };
    };
    let schedule = tiles.schedule.map(|schedule| format!(" schedule {}", schedule.number()));
    format!(
        "q {} kv {} dim {}{}",
        by(&tiles.query),
        by(&tiles.key),
        tiles.head_dim,
        schedule.unwrap_or_default()
    )
}

/// Family → what kernels have in common → where they differ.
type Kernels = BTreeMap<String, BTreeMap<String, String>>;

/// Every kernel of the families that `other` has otherwise, a line each.
fn each(kernels: &Kernels, other: &Kernels) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (family, lines) in kernels.iter().filter(|(family, lines)| other.get(*family) != Some(lines)) {
        for (key, shapes) in lines {
            let (traits, masks) = key.split_once(" causal ").unwrap_or((key, ""));
            for (mask, shape) in masks.split('|').flat_map(|m| shapes.split(", ").map(move |s| (m, s))) {
                let causal = if mask.is_empty() { String::new() } else { format!(" causal {mask}") };
                all.insert(format!("kernel {family} {traits}{causal}: {shape}"));
            }
        }
    }
    all
}

/// What `new` has otherwise than `old`.
pub fn changes(old: &Interface, new: &Interface) -> Changes {
    let mut changes = Changes::default();
    for (what, old, new) in
        [("operation", &old.operations, &new.operations), ("constant", &old.constants, &new.constants)]
    {
        compare(what, old, new, &mut changes, |name, old, new, changes| {
            changes.changed.push(format!("{what} {name} is `{new}`, was `{old}`"));
        });
    }
    compare("struct", &old.structs, &new.structs, &mut changes, |name, old, new, changes| {
        if new.starts_with(old) {
            // A struct states its size first, so that it may grow at its end.
            changes.added.extend(new[old.len()..].iter().map(|field| format!("field `{field}` of {name}")));
            return;
        }
        let differ = old.iter().zip(new).find(|(old, new)| old != new);
        changes.changed.push(match differ {
            Some((old, new)) => format!("struct {name} has `{new}` where it had `{old}`"),
            None => format!("struct {name} ends before `{}`", old[new.len()]),
        });
    });
    // Families whose lines are the same need not be taken apart.
    let (old, new) = (each(&old.kernels, &new.kernels), each(&new.kernels, &old.kernels));
    changes.added.extend(new.difference(&old).cloned());
    changes.removed.extend(old.difference(&new).cloned());
    changes
}

fn compare<T: PartialEq>(
    what: &str,
    old: &BTreeMap<String, T>,
    new: &BTreeMap<String, T>,
    changes: &mut Changes,
    differ: impl Fn(&str, &T, &T, &mut Changes),
) {
    for (name, was) in old {
        match new.get(name) {
            None => changes.removed.push(format!("{what} {name}")),
            Some(is) if is != was => differ(name, was, is, changes),
            Some(_) => {}
        }
    }
    let fresh = new.keys().filter(|name| !old.contains_key(*name));
    changes.added.extend(fresh.map(|name| format!("{what} {name}")));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    #[test]
    fn our_interface_has_every_operation_struct_and_kernel() {
        let catalog = catalog::catalog().unwrap();
        let interface = ours(catalog).unwrap();
        let computes = |name: &&String| {
            !name.starts_with("natten_k") && name.contains(char::is_numeric)
                || name.contains("fmha")
                || name.contains("delta")
        };
        assert_eq!(interface.operations.keys().filter(computes).count(), 37);
        assert_eq!(
            interface.operations["natten_hopper_na2d_forward"],
            "int32_t natten_hopper_na2d_forward(const natten_tiled_fna_forward_args*args)"
        );
        let fields = &interface.structs["natten_fna_forward_args"];
        assert_eq!(fields[..4], ["uint32_t size", "int32_t dtype", "const void *query", "const void *key"]);
        assert!(interface.structs.len() >= 11, "{:?}", interface.structs.keys());
        assert_eq!(interface.constants["NATTEN_E_INTERNAL"], "8");
        let kernels: usize = catalog.families.iter().map(|family| family.kernels().count()).sum();
        assert_eq!(each(&interface.kernels, &Kernels::new()).len(), kernels);
    }

    const HEADER: &str = "
        enum { NATTEN_A = 0, NATTEN_B = 1 };
        typedef struct args { uint32_t size; int32_t shape[3], dim; void (*free)(void *, int); } args;
        NATTEN_API int32_t natten_op(const args *args);
        NATTEN_API int32_t natten_other(const args *args);";

    fn changed(from: &str, to: &str) -> Changes {
        assert!(HEADER.contains(from));
        changes(&of_header(HEADER).unwrap(), &of_header(&HEADER.replacen(from, to, 1)).unwrap())
    }

    #[test]
    fn additions_break_nothing() {
        for (from, to, added) in [
            ("NATTEN_B = 1", "NATTEN_B = 1, NATTEN_C = 2", "constant NATTEN_C"),
            ("int);", "int); int more;", "field `int more` of args"),
            (
                "NATTEN_API int32_t natten_op",
                "NATTEN_API void natten_new(void); NATTEN_API int32_t natten_op",
                "operation natten_new",
            ),
        ] {
            let changes = changed(from, to);
            assert_eq!(changes.added, [added]);
            assert!(!changes.breaks() && !changes.is_nothing());
        }
        assert!(changed("", "").is_nothing());
    }

    #[test]
    fn removals_and_changes_are_named() {
        for (from, to, sentence) in [
            ("NATTEN_B = 1", "NATTEN_B = 2", "constant NATTEN_B is `2`, was `1`"),
            (", NATTEN_B = 1", "", "constant NATTEN_B is gone"),
            ("NATTEN_API int32_t natten_other(const args *args);", "", "operation natten_other is gone"),
            (
                "natten_op(const args *args)",
                "natten_op(const args *args, int)",
                "operation natten_op is `int32_t natten_op(const args*args, int)`, was `int32_t natten_op(const args*args)`",
            ),
            (
                "shape[3], dim;",
                "shape[3]; int64_t dim;",
                "struct args has `int64_t dim` where it had `int32_t dim`",
            ),
            (
                "shape[3], dim;",
                "dim, shape[3];",
                "struct args has `int32_t dim` where it had `int32_t shape[3]`",
            ),
            (" void (*free)(void *, int);", "", "struct args ends before `void(*free)(void*, int)`"),
        ] {
            assert_eq!(changed(from, to).breakages(), [sentence]);
        }
    }

    #[test]
    fn a_kernel_that_is_gone_is_named_out_of_its_line() {
        let catalog = catalog::catalog().unwrap();
        let all = ours(catalog).unwrap();
        let mut fewer = all.clone();
        let fna = catalog.family("fna").unwrap();
        let kept = fna.kernels().filter(|kernel| kernel.name != "fna2d_64x64x32_sm80_float16_cm_0_1");
        fewer.kernels.insert("fna".into(), kernels(kept));
        assert_eq!(
            changes(&all, &fewer).breakages(),
            ["kernel fna forward 2d float16 sm 80 to 130 causal 01: 64x64x32 is gone"]
        );
        assert_eq!(changes(&fewer, &all).added.len(), 1);
    }
}
