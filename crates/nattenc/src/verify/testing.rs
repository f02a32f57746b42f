//! Writes the ELF files that this module's tests read.

/// A section, with its relocations: offset, type, number of the symbol (from 1), addend.
#[derive(Default)]
pub(super) struct Section<'a> {
    pub(super) name: &'a str,
    pub(super) kind: u32,
    pub(super) flags: u64,
    pub(super) data: Vec<u8>,
    pub(super) relocations: Vec<(u64, u32, u64, i64)>,
}

/// A symbol in the section of that number (from 1; 0: undefined).
pub(super) struct Symbol<'a> {
    pub(super) name: &'a str,
    pub(super) section: u16,
    pub(super) value: u64,
    pub(super) size: u64,
    pub(super) info: u8,
    pub(super) other: u8,
}

pub(super) const PROGBITS: u32 = 1;
pub(super) const NOTE: u32 = 7;
pub(super) const ALLOC: u64 = 2;
pub(super) const WRITE: u64 = 1;
pub(super) const EXECUTE: u64 = 4;

/// st_info of a global function, a local function, a global variable, a section, an undefined symbol.
pub(super) const FUNCTION: u8 = 0x12;
pub(super) const LOCAL_FUNCTION: u8 = 0x02;
pub(super) const VARIABLE: u8 = 0x11;
pub(super) const SECTION: u8 = 0x03;
pub(super) const UNDEFINED: u8 = 0x10;

/// What a file's header says.
pub(super) struct Header {
    pub(super) os_abi: u8,
    pub(super) machine: u16,
    pub(super) flags: u32,
}

/// An x86-64 object.
pub(super) const OBJECT: Header = Header { os_abi: 0, machine: 62, flags: 0 };

/// The file.
pub(super) fn write(file: &Header, sections: &[Section<'_>], symbols: &[Symbol<'_>]) -> Vec<u8> {
    let mut names = vec![0u8];
    let mut name = |text: &str| {
        let at = u32::try_from(names.len()).unwrap();
        names.extend(text.as_bytes());
        names.push(0);
        at
    };
    // name, type, flags, contents, link, info, entry size
    type Row = (u32, u32, u64, Vec<u8>, u32, u32, u64);
    let mut rows: Vec<Row> = vec![(0, 0, 0, vec![], 0, 0, 0)];
    for section in sections {
        rows.push((name(section.name), section.kind, section.flags, section.data.clone(), 0, 0, 0));
    }
    let relocated = sections.iter().filter(|s| !s.relocations.is_empty()).count();
    let symbol_table = u32::try_from(rows.len() + relocated).unwrap();
    for (index, section) in sections.iter().enumerate().filter(|(_, s)| !s.relocations.is_empty()) {
        let mut data = Vec::new();
        for (offset, kind, symbol, addend) in &section.relocations {
            data.extend(offset.to_le_bytes());
            data.extend((symbol << 32 | u64::from(*kind)).to_le_bytes());
            data.extend(addend.to_le_bytes());
        }
        let target = u32::try_from(index + 1).unwrap();
        rows.push((name(&format!(".rela{}", section.name)), 4, 0x40, data, symbol_table, target, 24));
    }
    let mut table = vec![0u8; 24];
    for symbol in symbols {
        table.extend(name(symbol.name).to_le_bytes());
        table.extend([symbol.info, symbol.other]);
        table.extend(symbol.section.to_le_bytes());
        table.extend(symbol.value.to_le_bytes());
        table.extend(symbol.size.to_le_bytes());
    }
    rows.push((name(".symtab"), 2, 0, table, symbol_table + 1, 1, 24));
    let own = name(".strtab");
    rows.push((own, 3, 0, names, 0, 0, 0));

    let mut body = vec![0u8; 64];
    let mut headers = Vec::new();
    for (name, kind, flags, contents, link, info, entry) in &rows {
        body.resize(body.len().next_multiple_of(8), 0);
        headers.extend(name.to_le_bytes());
        headers.extend(kind.to_le_bytes());
        for value in [*flags, 0, body.len() as u64, contents.len() as u64] {
            headers.extend(value.to_le_bytes());
        }
        headers.extend(link.to_le_bytes());
        headers.extend(info.to_le_bytes());
        headers.extend(8u64.to_le_bytes());
        headers.extend(entry.to_le_bytes());
        body.extend(contents);
    }
    body.resize(body.len().next_multiple_of(8), 0);
    let at = body.len() as u64;
    body.extend(headers);
    let mut header = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, file.os_abi];
    header.resize(16, 0);
    header.extend([1, 0]);
    header.extend(file.machine.to_le_bytes());
    header.extend(1u32.to_le_bytes());
    header.extend([0; 16]);
    header.extend(at.to_le_bytes());
    header.extend(file.flags.to_le_bytes());
    let count = u16::try_from(rows.len()).unwrap();
    for value in [64, 0, 0, 64, count, count - 1] {
        header.extend(value.to_le_bytes());
    }
    body[..64].copy_from_slice(&header);
    body
}

/// Calls `read` on `file` cut at every length, and with every byte changed three ways: none may panic.
pub(super) fn damage(file: &[u8], mut read: impl FnMut(&[u8])) {
    for end in 0..file.len() {
        read(&file[..end]);
    }
    for at in 0..file.len() {
        for bits in [0x01, 0x80, 0xff] {
            let mut damaged = file.to_vec();
            damaged[at] ^= bits;
            read(&damaged);
        }
    }
}
