//! What an image says of itself: its capability, and the kernels that it has.
//!
//! A cubin is an ELF file of machine 190. OS ABI 0x33 (12.x for the older capabilities) keeps the
//! capability in the low byte of e_flags and suffix a in bit 11; OS ABI 0x41 (12.9 for the newer ones,
//! 13.x for all) keeps it in the second byte, and ptxas's own arguments, suffix included, in a note.
//! A kernel is a function symbol whose st_other has bit 4; its code is section `.text.<name>`.

use super::fatbin::Kind;
use crate::plan::capability::{Capability, Suffix};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection, ObjectSymbol, SymbolFlags, SymbolKind};
use std::collections::BTreeMap;

const MACHINE: u16 = 190;
const FIRST_ABI: u8 = 0x33;
const SECOND_ABI: u8 = 0x41;
const FIRST_SUFFIX_A: u32 = 0x800;
const ENTRY_POINT: u8 = 0x10;

/// A kernel without a body assembles to at most 512 bytes, one that only prints to 768 (of any
/// capability, with 12.4 and 13.2); the smallest of NATTEN's to 2688.
pub(super) const LARGEST_EMPTY: u64 = 768;

/// An image, read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Device {
    /// The capability, times ten.
    pub(super) number: u16,
    /// Its suffix, where the image records it.
    pub(super) suffix: Option<Suffix>,
    /// The kernels, each with the bytes of its code where the image is machine code.
    pub(super) kernels: BTreeMap<String, Option<u64>>,
}

impl Device {
    /// As a person reads it.
    pub(super) fn capability(&self) -> String {
        let capability = Capability::new(self.number / 10, self.number % 10);
        capability.with(self.suffix.unwrap_or(Suffix::None)).to_string()
    }

    /// Whether this is an image for `capability`.
    pub(super) fn is_for(&self, capability: Capability) -> bool {
        self.number == capability.number() && self.suffix.is_none_or(|suffix| suffix == capability.suffix)
    }
}

/// Reads an image of `kind`.
pub(super) fn read(kind: Kind, image: &[u8]) -> Result<Device, String> {
    match kind {
        Kind::Elf => cubin(image),
        Kind::Ptx => ptx(image),
    }
}

fn cubin(image: &[u8]) -> Result<Device, String> {
    let wrong = |e: object::Error| format!("a damaged cubin: {e}");
    let file: ElfFile64<'_> = ElfFile64::parse(image).map_err(wrong)?;
    let header = file.elf_header();
    let machine = header.e_machine.get(file.endian());
    if machine != MACHINE {
        return Err(format!("no cubin: ELF machine {machine} is not {MACHINE}"));
    }
    let flags = header.e_flags.get(file.endian());
    let (number, suffix) = match header.e_ident.os_abi {
        FIRST_ABI => {
            let suffix = if flags & FIRST_SUFFIX_A == 0 { Suffix::None } else { Suffix::A };
            (flags & 0xff, Some(suffix))
        }
        SECOND_ABI => ((flags >> 8) & 0xff, noted_suffix(&file)),
        other => return Err(format!("a cubin of unknown OS ABI {other:#x}")),
    };
    let mut kernels = BTreeMap::new();
    for symbol in file.symbols() {
        let SymbolFlags::Elf { st_other, .. } = symbol.flags() else { continue };
        if symbol.kind() != SymbolKind::Text || st_other & ENTRY_POINT == 0 || symbol.is_undefined() {
            continue;
        }
        let name = symbol.name().map_err(wrong)?;
        let section = symbol
            .section_index()
            .and_then(|index| file.section_by_index(index).ok())
            .filter(|s| s.name() == Ok(&format!(".text.{name}")))
            .ok_or_else(|| format!("a damaged cubin: kernel {name} has no code section"))?;
        // What the section holds, not what the symbol claims.
        let size = section.data().map_err(wrong)?.len() as u64;
        kernels.insert(name.to_owned(), Some(size.min(symbol.size())));
    }
    Ok(Device { number: u16::try_from(number).unwrap_or_default(), suffix, kernels })
}

/// The suffix in ptxas's arguments, `-arch sm_90a`.
fn noted_suffix(file: &ElfFile64<'_>) -> Option<Suffix> {
    let note = file.section_by_name(".note.nv.tkinfo")?.data().ok()?;
    let text = String::from_utf8_lossy(note);
    let (_, rest) = text.split_once("-arch ")?;
    Some(Capability::from_nvcc(rest.split([' ', '\0']).next()?)?.suffix)
}

fn ptx(image: &[u8]) -> Result<Device, String> {
    let image = image.split(|b| *b == 0).next().unwrap_or_default();
    let text = std::str::from_utf8(image).map_err(|e| format!("no PTX: {e}"))?;
    let target = text
        .lines()
        .find_map(|line| line.trim().strip_prefix(".target "))
        .and_then(|rest| rest.split([',', ' ']).next())
        .ok_or("no PTX: it has no .target")?;
    let capability =
        Capability::from_nvcc(target).ok_or_else(|| format!("PTX of unknown target {target}"))?;
    let kernels = text
        .lines()
        .filter_map(|line| line.split_once(".entry "))
        .filter_map(|(_, rest)| rest.split('(').next())
        .map(|name| (name.trim().to_owned(), None))
        .collect();
    Ok(Device { number: capability.number(), suffix: Some(capability.suffix), kernels })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::testing::{self, Header, Section, Symbol};

    /// A cubin of kernels with that many bytes of code.
    fn write_cubin(os_abi: u8, flags: u32, note: &str, kernels: &[(&str, usize)]) -> Vec<u8> {
        let names: Vec<String> = kernels.iter().map(|(name, _)| format!(".text.{name}")).collect();
        let mut sections: Vec<Section<'_>> = Vec::new();
        let mut symbols = Vec::new();
        for ((kernel, size), section) in kernels.iter().zip(&names) {
            sections.push(Section {
                name: section,
                kind: testing::PROGBITS,
                flags: testing::ALLOC | testing::EXECUTE,
                data: vec![0x90; *size],
                ..Section::default()
            });
            symbols.push(Symbol {
                name: kernel,
                section: u16::try_from(sections.len()).unwrap(),
                value: 0,
                size: *size as u64,
                info: testing::FUNCTION,
                other: ENTRY_POINT,
            });
        }
        let note = note.as_bytes().to_vec();
        let name = ".note.nv.tkinfo";
        sections.push(Section { name, kind: testing::NOTE, data: note, ..Section::default() });
        testing::write(&Header { os_abi, machine: MACHINE, flags }, &sections, &symbols)
    }

    #[test]
    fn capability_and_kernels_of_both_abis_are_read() {
        for (os_abi, flags, note, capability, other) in [
            (FIRST_ABI, 0x50_0550, "", "8.0", "9.0"),
            (FIRST_ABI, 0x5a_0d5a, "", "9.0a", "9.0"),
            (SECOND_ABI, 0x600_5a04, "ptxas\0-arch sm_90 -m 64 \0", "9.0", "9.0a"),
            (SECOND_ABI, 0x600_6402, "ptxas\0-arch sm_100f -m 64 \0", "10.0f", "10.0a"),
            (SECOND_ABI, 0x600_640a, "ptxas\0-arch sm_100a \0", "10.0a", "10.3a"),
        ] {
            let image = write_cubin(os_abi, flags, note, &[("_Z5alphaPf", 2560), ("_Z5emptyPf", 256)]);
            let device = read(Kind::Elf, &image).unwrap();
            assert_eq!(device.capability(), capability);
            assert!(device.is_for(capability.parse().unwrap()), "{capability}");
            assert!(!device.is_for(other.parse().unwrap()), "{capability} {other}");
            let kernels: Vec<_> = device.kernels.iter().map(|(n, s)| (n.as_str(), s.unwrap())).collect();
            assert_eq!(kernels, [("_Z5alphaPf", 2560), ("_Z5emptyPf", 256)]);
        }
    }

    #[test]
    fn cubin_without_the_note_is_for_any_suffix() {
        let device = read(Kind::Elf, &write_cubin(SECOND_ABI, 0x600_5a04, "", &[])).unwrap();
        assert!(device.is_for("9.0a".parse().unwrap()) && device.is_for("9.0".parse().unwrap()));
        assert!(!device.is_for("8.0".parse().unwrap()));
    }

    #[test]
    fn ptx_has_target_and_entries() {
        let text = "\n\n.version 9.0\n.target sm_90a\n.address_size 64\n\n.visible .entry _Z5alphaPf(\n\t.param .u64 p\n)\n{\n}\n.weak .entry  _Z1bv()\n{ ret; }\n\0\0\0";
        let device = read(Kind::Ptx, text.as_bytes()).unwrap();
        assert_eq!(device.capability(), "9.0a");
        assert_eq!(device.kernels.keys().collect::<Vec<_>>(), ["_Z1bv", "_Z5alphaPf"]);
        for (text, part) in [("", "no .target"), (".target gfx90a", "unknown target gfx90a")] {
            assert!(read(Kind::Ptx, text.as_bytes()).unwrap_err().contains(part));
        }
        assert!(read(Kind::Ptx, &[0xff, 0xfe]).is_err());
    }

    #[test]
    fn damaged_cubins_are_errors_and_no_panics() {
        let image = write_cubin(SECOND_ABI, 0x600_5a04, "-arch sm_90 ", &[("_Z5alphaPf", 40)]);
        for end in 0..image.len() {
            assert!(read(Kind::Elf, &image[..end]).is_err(), "{end}");
        }
        testing::damage(&image, |damaged| drop(read(Kind::Elf, damaged)));
        for (at, value, part) in [(18, 62, "machine 62"), (7, 3, "OS ABI 0x3")] {
            let mut damaged = image.clone();
            damaged[at] = value;
            let why = read(Kind::Elf, &damaged).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
    }
}
