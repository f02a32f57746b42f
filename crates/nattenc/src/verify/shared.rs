//! What the shared library says of itself: what it exports and needs, where it looks, how it loads.

use super::fatbin;
use crate::package::manifest::Needs;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection, ObjectSymbol, elf};
use std::collections::{BTreeMap, BTreeSet};

/// The shared library, read.
pub(super) struct SharedLibrary {
    pub(super) soname: String,
    pub(super) needs: Needs,
    /// Of RPATH and RUNPATH.
    pub(super) search: Vec<String>,
    /// Whether a loader has to write to its code.
    pub(super) text_relocations: bool,
    /// Whether it asks for a stack that can be executed.
    pub(super) executable_stack: bool,
    pub(super) exports: BTreeSet<String>,
    pub(super) undefined: BTreeSet<String>,
    /// Every name in its symbol tables.
    pub(super) names: BTreeSet<String>,
    /// The digest of each fatbin, and how many have it.
    pub(super) fatbins: BTreeMap<String, usize>,
    /// Bytes of all fatbins.
    pub(super) fatbin_bytes: u64,
    /// How many fatbins no registration leads to, and the other way round.
    pub(super) unregistered: usize,
    pub(super) unfounded: usize,
}

/// What the library needs, alone: for the manifest.
pub(crate) fn needs(data: &[u8]) -> Result<Needs, String> {
    needs_of(&ElfFile64::parse(data).map_err(wrong)?)
}

fn wrong(error: object::Error) -> String {
    error.to_string()
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The bytes that a fatbin registration record has, with its magic and version.
const RECORD: usize = 24;
const RECORD_MAGIC: [u8; 8] = [0xb1, 0x43, 0x62, 0x46, 1, 0, 0, 0];

/// Reads the library; the error says what is damaged.
pub(super) fn read(data: &[u8]) -> Result<SharedLibrary, String> {
    let file: ElfFile64<'_> = ElfFile64::parse(data).map_err(wrong)?;
    let dynamic = file.elf_dynamic_table().map_err(wrong)?;
    let mut library = SharedLibrary {
        soname: String::new(),
        needs: needs_of(&file)?,
        search: Vec::new(),
        text_relocations: false,
        executable_stack: false,
        exports: BTreeSet::new(),
        undefined: BTreeSet::new(),
        names: BTreeSet::new(),
        fatbins: BTreeMap::new(),
        fatbin_bytes: 0,
        unregistered: 0,
        unfounded: 0,
    };
    for entry in dynamic.iter() {
        let text = || dynamic.string(entry).map(lossy).map_err(wrong);
        match entry.tag {
            elf::DT_SONAME => library.soname = text()?,
            elf::DT_RPATH | elf::DT_RUNPATH => library.search.push(text()?),
            elf::DT_TEXTREL => library.text_relocations = true,
            elf::DT_FLAGS if entry.val & u64::from(elf::DF_TEXTREL) != 0 => library.text_relocations = true,
            _ => {}
        }
    }
    for segment in file.elf_program_headers() {
        let endian = file.endian();
        if segment.p_type.get(endian) == elf::PT_GNU_STACK {
            library.executable_stack = segment.p_flags.get(endian) & elf::PF_X != 0;
        }
    }
    for symbol in file.dynamic_symbols() {
        let name = symbol.name().map_err(wrong)?.to_owned();
        if symbol.is_undefined() {
            library.undefined.insert(name);
        } else {
            library.exports.insert(name);
        }
    }
    library.names.extend(
        file.symbols().chain(file.dynamic_symbols()).filter_map(|s| s.name().ok()).map(str::to_owned),
    );
    add_fatbins(&mut library, &file)?;
    Ok(library)
}

fn add_fatbins(library: &mut SharedLibrary, file: &ElfFile64<'_>) -> Result<(), String> {
    let mut begins = BTreeSet::new();
    if let Some(section) = file.section_by_name(".nv_fatbin") {
        let bytes = section.data().map_err(wrong)?;
        library.fatbin_bytes = bytes.len() as u64;
        for container in fatbin::containers(bytes).map_err(|why| format!(".nv_fatbin: {why}"))? {
            begins.insert(section.address().wrapping_add(container.offset as u64));
            *library.fatbins.entry(crate::fs::sha256_of(container.bytes)).or_default() += 1;
        }
    }
    let mut registered = BTreeSet::new();
    if let Some(section) = file.section_by_name(".nvFatBinSegment") {
        let bytes = section.data().map_err(wrong)?;
        let written: BTreeMap<u64, i64> =
            file.dynamic_relocations().into_iter().flatten().map(|(at, r)| (at, r.addend())).collect();
        for (index, record) in bytes.chunks(RECORD).enumerate() {
            let at = section.address().wrapping_add((index * RECORD) as u64);
            let (Some(magic), Some(stored)) = (record.first_chunk::<8>(), record.get(8..16)) else {
                return Err(".nvFatBinSegment ends inside of a record".to_owned());
            };
            if *magic != RECORD_MAGIC {
                return Err(format!(
                    "record {index} of .nvFatBinSegment begins with {}",
                    crate::fs::hex(magic)
                ));
            }
            // The loader writes the pointer, or adds to the stored one.
            let stored = stored.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
            registered.insert(written.get(&at.wrapping_add(8)).map_or(stored, |a| a.cast_unsigned()));
        }
    }
    library.unregistered = begins.difference(&registered).count();
    library.unfounded = registered.difference(&begins).count();
    Ok(())
}

fn needs_of(file: &ElfFile64<'_>) -> Result<Needs, String> {
    let endian: Endianness = file.endian();
    let dynamic = file.elf_dynamic_table().map_err(wrong)?;
    let mut libraries = Vec::new();
    for entry in dynamic.iter().filter(|entry| entry.tag == elf::DT_NEEDED) {
        libraries.push(lossy(dynamic.string(entry).map_err(wrong)?));
    }
    libraries.sort();
    let mut glibc: Option<Vec<u32>> = None;
    if let Some((needed, link)) = file.elf_section_table().gnu_verneed(endian, file.data()).map_err(wrong)? {
        let strings = file.elf_section_table().strings(endian, file.data(), link).map_err(wrong)?;
        for item in needed {
            let (_, versions) = item.map_err(wrong)?;
            for version in versions {
                let name = lossy(version.map_err(wrong)?.name(endian, strings).map_err(wrong)?);
                if let Some(number) = name.strip_prefix("GLIBC_") {
                    // What is no number is private to one glibc: no floor covers it.
                    let number: Option<Vec<u32>> = number.split('.').map(|n| n.parse().ok()).collect();
                    glibc = glibc.max(Some(number.unwrap_or_else(|| vec![u32::MAX])));
                }
            }
        }
    }
    let glibc = match glibc {
        None => "none".to_owned(),
        Some(number) if number == [u32::MAX] => "private".to_owned(),
        Some(number) => number.iter().map(ToString::to_string).collect::<Vec<_>>().join("."),
    };
    Ok(Needs { libraries, glibc })
}
