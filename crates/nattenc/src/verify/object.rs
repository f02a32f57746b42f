//! An object file of the static archive: its symbols, what its relocations point at, and which
//! functions a function can reach. Knows nothing of fatbins and manifests.

use object::read::elf::ElfFile64;
use object::{
    Architecture, Object, ObjectSection, ObjectSymbol, RelocationKind, RelocationTarget, SectionFlags,
    SectionIndex, SymbolKind, elf,
};
use std::collections::{BTreeMap, BTreeSet};

/// A section and an offset in it.
pub(super) type Place = (usize, u64);

/// What a relocation points at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target<'a> {
    /// Something in this object.
    Inside(Place),
    /// A symbol that another object defines.
    Outside(&'a str),
}

/// A function or a variable.
struct Symbol<'a> {
    size: u64,
    /// Several where compilers alias.
    names: Vec<&'a str>,
}

/// An object file, read.
pub(super) struct HostObject<'a> {
    file: ElfFile64<'a>,
    symbols: BTreeMap<Place, Symbol<'a>>,
    places: BTreeMap<&'a str, Place>,
    relocations: BTreeMap<Place, Target<'a>>,
    /// Global symbols that it defines.
    pub(super) defined: BTreeSet<&'a str>,
    /// Symbols that it needs of others.
    pub(super) undefined: BTreeSet<&'a str>,
    /// Places that a loader would have to write an absolute address to although they are not data.
    pub(super) absolute: Vec<String>,
}

fn wrong(error: object::Error) -> String {
    error.to_string()
}

impl<'a> HostObject<'a> {
    /// Reads `data`; the error says what is damaged.
    pub(super) fn read(data: &'a [u8]) -> Result<Self, String> {
        let file = ElfFile64::parse(data).map_err(wrong)?;
        let mut object = HostObject {
            symbols: BTreeMap::new(),
            places: BTreeMap::new(),
            relocations: BTreeMap::new(),
            defined: BTreeSet::new(),
            undefined: BTreeSet::new(),
            absolute: Vec::new(),
            file,
        };
        object.add_symbols()?;
        object.add_relocations()?;
        Ok(object)
    }

    fn add_symbols(&mut self) -> Result<(), String> {
        for symbol in self.file.symbols() {
            let name = symbol.name().map_err(wrong)?;
            if symbol.is_undefined() {
                if !name.is_empty() {
                    self.undefined.insert(name);
                }
                continue;
            }
            if symbol.is_global() {
                self.defined.insert(name);
            }
            let Some(section) = symbol.section_index() else { continue };
            if !matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Data) {
                continue;
            }
            let place = (section.0, symbol.address());
            self.places.insert(name, place);
            let known = self.symbols.entry(place).or_insert(Symbol { size: 0, names: Vec::new() });
            known.size = known.size.max(symbol.size());
            known.names.push(name);
        }
        Ok(())
    }

    fn add_relocations(&mut self) -> Result<(), String> {
        for section in self.file.sections() {
            let SectionFlags::Elf { sh_flags } = section.flags() else { continue };
            if sh_flags & u64::from(elf::SHF_ALLOC) == 0 {
                continue;
            }
            let writable = sh_flags & u64::from(elf::SHF_WRITE) != 0;
            for (offset, relocation) in section.relocations() {
                let relative = matches!(
                    relocation.kind(),
                    RelocationKind::Relative | RelocationKind::PltRelative | RelocationKind::GotRelative
                );
                if relocation.kind() == RelocationKind::Absolute && (!writable || relocation.size() != 64) {
                    self.absolute.push(format!("{}+{offset:#x}", section.name().map_err(wrong)?));
                }
                let RelocationTarget::Symbol(index) = relocation.target() else { continue };
                let symbol = self.file.symbol_by_index(index).map_err(wrong)?;
                // x86-64 counts from the end of the four bytes.
                let bias = if relative && self.file.architecture() == Architecture::X86_64 { 4 } else { 0 };
                let target = match symbol.section_index() {
                    Some(section) => {
                        let address =
                            symbol.address().wrapping_add_signed(relocation.addend().wrapping_add(bias));
                        Target::Inside((section.0, address))
                    }
                    None => Target::Outside(symbol.name().map_err(wrong)?),
                };
                self.relocations.insert((section.index().0, offset), target);
            }
        }
        Ok(())
    }

    /// Every name in its symbol table.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.file.symbols().filter_map(|symbol| symbol.name().ok())
    }

    /// The index and the bytes of the section of that name.
    pub(super) fn section(&self, name: &str) -> Result<Option<(usize, &'a [u8])>, String> {
        let Some(section) = self.file.section_by_name(name) else { return Ok(None) };
        let data = section.data().map_err(|e| format!("{name}: {e}"))?;
        Ok(Some((section.index().0, data)))
    }

    /// Where a function or variable of that name is.
    pub(super) fn place(&self, name: &str) -> Option<Place> {
        self.places.get(name).copied()
    }

    /// What the pointer at a place points at.
    pub(super) fn pointer(&self, place: Place) -> Option<Target<'a>> {
        self.relocations.get(&place).copied()
    }

    /// Bytes from a place on, to the end of its section.
    fn rest(&self, (section, offset): Place) -> Result<&'a [u8], String> {
        let section = self.file.section_by_index(SectionIndex(section)).map_err(wrong)?;
        let data = section.data().map_err(wrong)?;
        usize::try_from(offset)
            .ok()
            .and_then(|offset| data.get(offset..))
            .ok_or_else(|| format!("{offset:#x} is outside of its section"))
    }

    /// The 32-bit number at a place.
    pub(super) fn number(&self, place: Place) -> Result<u32, String> {
        let bytes = self.bytes::<4>(place)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// The bytes at a place.
    pub(super) fn bytes<const N: usize>(&self, place: Place) -> Result<[u8; N], String> {
        let first = self.rest(place)?.first_chunk::<N>();
        first.copied().ok_or_else(|| format!("{:#x} is at the end of its section", place.1))
    }

    /// The C string at a place.
    pub(super) fn text(&self, place: Place) -> Result<String, String> {
        let bytes = self.rest(place)?.split(|b| *b == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    /// The C string that the pointer at a place points at.
    pub(super) fn pointed_text(&self, place: Place) -> Result<String, String> {
        match self.pointer(place) {
            Some(Target::Inside(text)) => self.text(text),
            _ => Err(format!("no string is behind the pointer at {:#x}", place.1)),
        }
    }

    /// The names of the functions and variables of this object that can be reached from one, itself
    /// included.
    pub(super) fn reached(&self, start: Place) -> BTreeSet<&'a str> {
        let mut names = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut open = vec![start];
        while let Some(place) = open.pop() {
            let Some((at, symbol)) = self.containing(place) else { continue };
            if !seen.insert(at) {
                continue;
            }
            names.extend(&symbol.names);
            let end = (at.0, at.1.saturating_add(symbol.size.max(1)));
            open.extend(self.relocations.range(at..end).filter_map(|(_, target)| match target {
                Target::Inside(place) => Some(*place),
                Target::Outside(_) => None,
            }));
            open.extend(self.calls_without_relocation(at, symbol.size));
        }
        names
    }

    /// The function or variable that a place is in.
    fn containing(&self, place: Place) -> Option<(Place, &Symbol<'a>)> {
        let (at, symbol) = self.symbols.range(..=place).next_back()?;
        let inside = at.0 == place.0 && place.1 - at.1 < symbol.size.max(1);
        inside.then_some((*at, symbol))
    }

    /// The beginnings of functions that a function refers to without a relocation: assemblers resolve
    /// references between functions of one section themselves. This is no disassembler: the bytes of a
    /// call, jump or lea to the beginning of a function count as one wherever they are.
    fn calls_without_relocation(&self, at: Place, size: u64) -> Vec<Place> {
        let Ok(rest) = self.rest(at) else { return Vec::new() };
        if self.file.architecture() != Architecture::X86_64 {
            return Vec::new();
        }
        let code = &rest[..rest.len().min(usize::try_from(size).unwrap_or(usize::MAX))];
        (1..code.len())
            .filter_map(|begin| {
                let distance = i32::from_le_bytes(*code.get(begin..)?.first_chunk::<4>()?);
                let refers = match (begin.checked_sub(2).map(|i| code[i]), code[begin - 1]) {
                    // call, jmp
                    (_, 0xe8 | 0xe9) => true,
                    // jump if
                    (Some(0x0f), second) => second & 0xf0 == 0x80,
                    // lea, relative to the instruction pointer
                    (Some(0x8d), operands) => operands & 0xc7 == 0x05,
                    _ => false,
                };
                let begin = at.1.checked_add(begin as u64)?;
                let place = (at.0, begin.checked_add(4)?.checked_add_signed(distance.into())?);
                // A relocation's own bytes are zeros: at the end of a function, the way to the next one.
                let resolved = !self.relocations.contains_key(&(at.0, begin));
                (refers && resolved && place != at && self.symbols.contains_key(&place)).then_some(place)
            })
            .collect()
    }
}
