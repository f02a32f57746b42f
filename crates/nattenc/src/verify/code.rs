//! Two ways to the code of one capability, compared: the PTX but for its `.target`, and every section of
//! the cubins that holds code or constants.

use object::read::elf::ElfFile64;
use object::{Object, ObjectSection};
use std::collections::BTreeMap;

/// What a kernel's code is made of beside its instructions: constants that the compiler laid out.
const SECTIONS: &[&str] = &[".text.", ".nv.constant", ".nv.global", ".rodata"];

/// How the two ways differ.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Functions compared, by their names in the cubins; each with whether code and constants are the same.
    pub functions: BTreeMap<String, bool>,
    /// How many of them have code in the capability's own cubin.
    pub kernels: usize,
    /// Bytes of code that were compared, of the capability's own cubin.
    pub code_bytes: u64,
    /// Lines of PTX that are in one of the two only, their `.target` apart.
    pub ptx_lines: usize,
    /// Bytes of the cubins that differ outside of what was compared; none where their sizes differ.
    pub metadata_bytes: Option<u64>,
}

/// Compares the PTX of a capability (first) with another's, and the cubins that are made of each.
pub fn compare(ptx: [&[u8]; 2], cubins: [&[u8]; 2]) -> Result<Comparison, String> {
    let [own, other] = [sections(cubins[0])?, sections(cubins[1])?];
    let mut functions = BTreeMap::new();
    let (mut kernels, mut code_bytes) = (0, 0);
    for name in own.keys().chain(other.keys()) {
        let same = own.get(name) == other.get(name);
        *functions.entry(function(name).to_owned()).or_insert(true) &= same;
    }
    let mut inside = 0;
    for (name, data) in &own {
        if name.starts_with(".text.") {
            kernels += 1;
            code_bytes += data.len() as u64;
        }
        let others = other.get(name).copied().unwrap_or_default();
        inside += different(data, others);
    }
    let sized = cubins[0].len() == cubins[1].len();
    let metadata_bytes = sized.then(|| different(cubins[0], cubins[1]).saturating_sub(inside));
    Ok(Comparison { functions, kernels, code_bytes, ptx_lines: ptx_lines(ptx[0], ptx[1]), metadata_bytes })
}

fn different(a: &[u8], b: &[u8]) -> u64 {
    a.iter().zip(b).filter(|(x, y)| x != y).count() as u64
}

/// `.text._Z1fv` and `.nv.constant0._Z1fv` belong to `_Z1fv`; sections of the whole module to themselves.
fn function(section: &str) -> &str {
    if let Some(name) = section.strip_prefix(".text.") {
        return name;
    }
    section.strip_prefix(".nv.").and_then(|rest| rest.split_once('.')).map_or(section, |(_, name)| name)
}

fn sections(cubin: &[u8]) -> Result<BTreeMap<String, &[u8]>, String> {
    let wrong = |e: object::Error| format!("a damaged cubin: {e}");
    let file: ElfFile64<'_> = ElfFile64::parse(cubin).map_err(wrong)?;
    let mut found = BTreeMap::new();
    for section in file.sections() {
        let name = section.name().map_err(wrong)?;
        if SECTIONS.iter().any(|prefix| name.starts_with(prefix)) {
            found.insert(name.to_owned(), section.data().map_err(wrong)?);
        }
    }
    if found.is_empty() {
        return Err("a cubin without code".to_owned());
    }
    Ok(found)
}

/// How many lines differ: those of one text that the other has none left of.
fn ptx_lines(a: &[u8], b: &[u8]) -> usize {
    let counted = |text| {
        let mut lines: BTreeMap<&[u8], i64> = BTreeMap::new();
        for line in text_lines(text) {
            *lines.entry(line).or_default() += 1;
        }
        lines
    };
    if text_lines(a).eq(text_lines(b)) {
        return 0;
    }
    let (a, b) = (counted(a), counted(b));
    let names: std::collections::BTreeSet<&&[u8]> = a.keys().chain(b.keys()).collect();
    let more: i64 =
        names.iter().map(|line| (a.get(**line).unwrap_or(&0) - b.get(**line).unwrap_or(&0)).abs()).sum();
    // The same lines in another order differ too.
    usize::try_from(more).unwrap_or(usize::MAX).max(1)
}

fn text_lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|b| *b == b'\n').filter(|line| !line.starts_with(b".target "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::testing::{self, Header, Section};

    const CUBIN: Header = Header { os_abi: 0x41, machine: 190, flags: 0x600_5a04 };

    fn cubin(code: &[(&str, &[u8])], note: &[u8]) -> Vec<u8> {
        let mut sections: Vec<Section<'_>> = code
            .iter()
            .map(|(name, data)| Section {
                name,
                kind: testing::PROGBITS,
                flags: testing::ALLOC,
                data: data.to_vec(),
                ..Section::default()
            })
            .collect();
        sections.push(Section {
            name: ".note",
            kind: testing::NOTE,
            data: note.to_vec(),
            ..Section::default()
        });
        testing::write(&CUBIN, &sections, &[])
    }

    #[test]
    fn code_and_constants_are_compared_and_metadata_is_counted() {
        let own: &[(&str, &[u8])] = &[(".text.f", b"ffff"), (".nv.constant0.f", b"00"), (".text.g", b"gggg")];
        for (other, note, different, metadata) in [
            (own.to_vec(), &b"n"[..], &[][..], Some(0)),
            (own.to_vec(), b"m", &[], Some(1)),
            (own.to_vec(), b"longer note of another size", &[], None),
            (vec![(".text.f", &b"ffff"[..]), (".nv.constant0.f", b"01"), own[2]], b"n", &["f"], Some(0)),
            (vec![own[0], own[1], (".text.g", b"gxgg")], b"n", &["g"], Some(0)),
            (vec![own[0], own[1], (".text.g", b"ggggg")], b"n", &["g"], None),
            (vec![own[0], own[1]], b"n", &["g"], None),
            (vec![own[0], own[1], own[2], (".text.h", b"h")], b"n", &["h"], None),
        ] {
            let ptx: [&[u8]; 2] = [b".target sm_90\nret;\n", b".target sm_80\nret;\n"];
            let found = compare(ptx, [&cubin(own, b"n"), &cubin(&other, note)]).unwrap();
            let names: Vec<&str> =
                found.functions.iter().filter(|(_, same)| !**same).map(|(n, _)| n.as_str()).collect();
            assert_eq!(names, different, "{other:?}");
            assert_eq!((found.code_bytes, found.ptx_lines), (8, 0));
            if let Some(bytes) = metadata {
                assert_eq!(found.metadata_bytes, Some(bytes), "{other:?} {note:?}");
            }
        }
    }

    #[test]
    fn lines_of_ptx_that_differ_are_counted() {
        for (a, b, lines) in [
            (".target sm_90\na\nb", ".target sm_80, debug\na\nb", 0),
            ("a\nb", "a\nc", 2),
            ("a\nb", "b\na", 1),
            ("a\na", "a", 1),
            ("", "", 0),
        ] {
            assert_eq!(ptx_lines(a.as_bytes(), b.as_bytes()), lines, "{a:?} {b:?}");
        }
    }

    #[test]
    fn damaged_cubins_are_errors_and_no_panics() {
        let image = cubin(&[(".text.f", b"ffff")], b"n");
        assert!(compare([b"", b""], [&image, b""]).is_err());
        testing::damage(&image, |damaged| drop(compare([b"", b""], [&image, damaged])));
        let empty = cubin(&[], b"n");
        assert!(compare([b"", b""], [&empty, &empty]).unwrap_err().contains("without code"));
    }
}
