//! What a unit's object and the registry's object say of themselves: the constant tables that the C ABI
//! reads at run time, and which device code each kernel's launcher launches.

use super::fatbin::{Code, Kind};
use super::object::{HostObject, Place, Target};
use crate::plan::capability::{Capability, Suffix};
use std::collections::{BTreeMap, BTreeSet};

/// A kernel in a unit's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TableKernel {
    pub(super) name: String,
    /// Device capability times ten, half-open.
    pub(super) sm: std::ops::Range<u32>,
    /// Names of the device functions that its launcher launches.
    pub(super) launches: BTreeSet<String>,
}

/// Where fields are in the C ABI's `natten_kernel_info`, which grows at its end only; a table has its
/// launcher after it.
const INFO_NAME: u64 = 16;
const INFO_SM_MIN: u64 = 76;
const INFO_SM_MAX: u64 = 80;

/// No unit has more kernels: a count above this is damage.
const MOST: u32 = 1 << 16;

/// The kernels in the table of `unit`. `device` are the names of the device functions in its fatbin.
pub(super) fn table(
    object: &HostObject<'_>,
    unit: &str,
    device: &BTreeSet<&str>,
) -> Result<Vec<TableKernel>, String> {
    let symbol = table_symbol(unit);
    let table = object.place(&symbol).ok_or_else(|| format!("it has no table {symbol}"))?;
    let at = |(section, offset): Place, more: u64| (section, offset.saturating_add(more));
    let count = object.number(at(table, 16))?;
    if count > MOST {
        return Err(format!("a table of {count} kernels"));
    }
    let Some(Target::Inside(entries)) = object.pointer(at(table, 8)) else {
        return Err(format!("{symbol} leads to no kernels"));
    };
    let device: BTreeMap<String, &str> = device.iter().map(|name| (spelled_plainly(name), *name)).collect();
    let mut kernels = Vec::new();
    let mut entry = entries;
    for _ in 0..count {
        let info = u64::from(object.number(entry)?).next_multiple_of(8);
        let name = object.pointed_text(at(entry, INFO_NAME))?;
        let sm = object.number(at(entry, INFO_SM_MIN))?..object.number(at(entry, INFO_SM_MAX))?;
        let launches = match object.pointer(at(entry, info)) {
            Some(Target::Inside(launcher)) => object
                .reached(launcher)
                .into_iter()
                .filter_map(|function| device.get(&device_name(function)))
                .map(|name| (*name).to_owned())
                .collect(),
            _ => return Err(format!("kernel {name} has no launcher")),
        };
        kernels.push(TableKernel { name, sm, launches });
        entry = at(entry, info + 8);
    }
    Ok(kernels)
}

fn table_symbol(unit: &str) -> String {
    format!("_ZN7nattenc{}unit_{unit}E", unit.len() + 5)
}

/// The device function that a host function stands for, spelled plainly: the function that `<<<>>>`
/// takes the address of has its name, the stub behind it has the name inside of its own.
fn device_name(function: &str) -> String {
    const STUB: &str = "__device_stub_";
    if let Some((before, after)) = function.split_once(STUB) {
        let digits = before.trim_start_matches(|c: char| !c.is_ascii_digit());
        if let Some(name) = digits.parse().ok().and_then(|n: usize| after.get(..n.checked_sub(STUB.len())?)) {
            return spelled_plainly(name);
        }
    }
    spelled_plainly(function)
}

/// A mangled name without the L by which the host compiler marks internal linkage, `_ZN1aL1bEv`: the
/// device compiler writes none.
fn spelled_plainly(name: &str) -> String {
    let mut rest = name.chars().peekable();
    let mut plain = String::with_capacity(name.len());
    while let Some(c) = rest.next() {
        if c != 'L' || !rest.peek().is_some_and(char::is_ascii_digit) {
            plain.push(c);
        }
    }
    plain
}

/// What the registry's object says.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Registry {
    /// The code of each unit, by name.
    pub(super) units: BTreeMap<String, Vec<Code>>,
    /// What `natten_build_info` answers.
    pub(super) build_info: String,
}

/// The registry in its object.
pub(super) fn registry(object: &HostObject<'_>) -> Result<Registry, String> {
    let find = |name: &str| object.place(name).ok_or_else(|| format!("it has no {name}"));
    let build_info = object.text(find("_ZN7nattenc10build_infoE")?)?;
    let count = object.number(find("_ZN7nattenc10unit_countE")?)?;
    if count > MOST {
        return Err(format!("a registry of {count} units"));
    }
    let mut units = BTreeMap::new();
    let mut row = find("_ZN7nattenc5unitsE")?;
    for index in 0..count {
        let at = |more: u64| (row.0, row.1.saturating_add(more));
        let Some(Target::Outside(symbol)) = object.pointer(row) else {
            return Err(format!("row {index} of its units leads to no unit"));
        };
        let Some(Target::Inside(codes)) = object.pointer(at(8)) else {
            return Err(format!("row {index} of its units has no codes"));
        };
        let unit = symbol
            .strip_prefix("_ZN7nattenc")
            .map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()))
            .and_then(|rest| rest.strip_prefix("unit_")?.strip_suffix('E'))
            .ok_or_else(|| format!("row {index} of its units is {symbol}"))?;
        let number = object.number(at(16))?;
        let codes = (0..u64::from(number.min(MOST)))
            .map(|i| code(object, (codes.0, codes.1.saturating_add(12 * i))))
            .collect::<Result<Vec<_>, _>>()?;
        units.insert(unit.to_owned(), codes);
        row = at(24);
    }
    Ok(Registry { units, build_info })
}

/// A `Code` of registry.h: major, minor, suffix, whether it is PTX.
fn code(object: &HostObject<'_>, (section, offset): Place) -> Result<Code, String> {
    let field = |more| object.number((section, offset.saturating_add(more)));
    let short = |value: u32| u16::try_from(value).map_err(|_| format!("{value} is no capability"));
    let [suffix, ptx] = object.bytes::<2>((section, offset.saturating_add(8)))?;
    let suffix = match suffix {
        b'a' => Suffix::A,
        b'f' => Suffix::F,
        _ => Suffix::None,
    };
    let capability = Capability { major: short(field(0)?)?, minor: short(field(4)?)?, suffix };
    Ok(Code { kind: if ptx == 0 { Kind::Elf } else { Kind::Ptx }, capability })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::testing::{
        self, ALLOC, EXECUTE, FUNCTION, LOCAL_FUNCTION, OBJECT, PROGBITS, SECTION, Section, Symbol,
        UNDEFINED, VARIABLE, WRITE,
    };

    const ABSOLUTE: u32 = 1;
    const RELATIVE: u32 = 2;
    const CALL: u32 = 4;

    /// A unit `x_000` of two kernels: the launcher of `one` leads to its device function by relocations,
    /// that of `two` by a call that the assembler resolved. After that function comes a third, which no
    /// launcher leads to although the bytes of a relocation say so.
    fn object() -> Vec<u8> {
        let mut text = vec![0x90; 96];
        // 32: call 16; 48: the second function's end, a call with a relocation.
        text[32..37].copy_from_slice(&[0xe8, 0xeb, 0xff, 0xff, 0xff]);
        text[27..32].copy_from_slice(&[0xe8, 0, 0, 0, 0]);
        let mut table = vec![0u8; 32 + 2 * 96];
        table[16] = 2;
        for (entry, sm) in [(32, 80u32), (128, 90)] {
            table[entry] = 88;
            table[entry + 76..entry + 80].copy_from_slice(&sm.to_le_bytes());
            table[entry + 80..entry + 84].copy_from_slice(&130u32.to_le_bytes());
        }
        let code = |name, data, relocations| Section {
            name,
            kind: PROGBITS,
            flags: ALLOC | EXECUTE,
            data,
            relocations,
        };
        let sections = [
            code(".text", text, vec![(28, CALL, 4, -4)]),
            code(".text.one", vec![0x90; 16], vec![(3, RELATIVE, 1, -4)]),
            code(".text.two", vec![0x90; 16], vec![(1, CALL, 7, -4)]),
            Section {
                name: ".data.rel.ro",
                kind: PROGBITS,
                flags: ALLOC | WRITE,
                data: table,
                relocations: vec![
                    (0, ABSOLUTE, 2, 0),
                    (8, ABSOLUTE, 3, 32),
                    (32 + 16, ABSOLUTE, 2, 4),
                    (32 + 88, ABSOLUTE, 9, 0),
                    (128 + 16, ABSOLUTE, 2, 8),
                    (128 + 88, ABSOLUTE, 10, 0),
                ],
            },
            Section {
                name: ".rodata",
                kind: PROGBITS,
                flags: ALLOC,
                data: b"fna\0one\0two\0".to_vec(),
                ..Section::default()
            },
        ];
        let symbol = |name, section, value, size, info| Symbol { name, section, value, size, info, other: 0 };
        let symbols = [
            symbol("", 1, 0, 0, SECTION),
            symbol("", 5, 0, 0, SECTION),
            symbol("", 4, 0, 0, SECTION),
            symbol("elsewhere", 0, 0, 0, UNDEFINED),
            symbol("_ZN1aL1bEv", 1, 0, 16, LOCAL_FUNCTION),
            symbol("_ZL20__device_stub__Z1cPfPf", 1, 16, 16, LOCAL_FUNCTION),
            symbol("helper", 1, 32, 16, LOCAL_FUNCTION),
            symbol("_Z1dPf", 1, 48, 16, FUNCTION),
            symbol("one", 2, 0, 16, FUNCTION),
            symbol("two", 3, 0, 16, FUNCTION),
            symbol("_ZN7nattenc10unit_x_000E", 4, 0, 24, VARIABLE),
        ];
        testing::write(&OBJECT, &sections, &symbols)
    }

    const DEVICE: [&str; 3] = ["_ZN1a1bEv", "_Z1cPf", "_Z1dPf"];

    #[test]
    fn launchers_lead_to_their_device_functions_and_no_others() {
        let bytes = object();
        let object = HostObject::read(&bytes).unwrap();
        let kernels = table(&object, "x_000", &DEVICE.into()).unwrap();
        let kernel = |name: &str, sm, launches: &str| TableKernel {
            name: name.to_owned(),
            sm,
            launches: BTreeSet::from([launches.to_owned()]),
        };
        assert_eq!(kernels, [kernel("one", 80..130, "_ZN1a1bEv"), kernel("two", 90..130, "_Z1cPf")]);
        assert!(object.absolute.is_empty(), "{:?}", object.absolute);
        assert_eq!(object.undefined, BTreeSet::from(["elsewhere"]));
        assert!(table(&object, "x_001", &DEVICE.into()).unwrap_err().contains("no table"));
    }

    #[test]
    fn absolute_addresses_outside_of_data_are_found() {
        let bytes = testing::write(
            &OBJECT,
            &[
                Section {
                    name: ".text",
                    kind: PROGBITS,
                    flags: ALLOC | EXECUTE,
                    data: vec![0; 32],
                    relocations: vec![(4, ABSOLUTE, 1, 0), (16, 11, 1, 0), (24, RELATIVE, 1, -4)],
                },
                Section {
                    name: ".data",
                    kind: PROGBITS,
                    flags: ALLOC | WRITE,
                    data: vec![0; 16],
                    // 10: an absolute address of 32 bits, which is in the way of any library.
                    relocations: vec![(0, ABSOLUTE, 1, 0), (8, 10, 1, 0)],
                },
                Section {
                    name: ".debug",
                    kind: PROGBITS,
                    relocations: vec![(0, 10, 1, 0)],
                    ..Section::default()
                },
            ],
            &[Symbol { name: "elsewhere", section: 0, value: 0, size: 0, info: UNDEFINED, other: 0 }],
        );
        assert_eq!(HostObject::read(&bytes).unwrap().absolute, [".text+0x4", ".text+0x10", ".data+0x8"]);
    }

    /// A registry of unit `x_000`, compiled to 9.0a and PTX of 12.0.
    fn registry_object() -> Vec<u8> {
        let mut codes = vec![0u8; 24];
        (codes[0], codes[8]) = (9, b'a');
        (codes[12], codes[21]) = (12, 1);
        codes.extend(b"{\"variant\":\"cu130\"}\0");
        codes.extend([0; 3]);
        codes.extend(1u32.to_le_bytes());
        let mut units = vec![0u8; 24];
        units[16] = 2;
        let count = codes.len() as u64 - 4;
        let data = Section {
            name: ".data.rel.ro",
            kind: PROGBITS,
            flags: ALLOC | WRITE,
            data: units,
            relocations: vec![(0, ABSOLUTE, 2, 0), (8, ABSOLUTE, 1, 0)],
        };
        let constants =
            Section { name: ".rodata", kind: PROGBITS, flags: ALLOC, data: codes, ..Section::default() };
        let symbol = |name, section, value, size, info| Symbol { name, section, value, size, info, other: 0 };
        testing::write(
            &OBJECT,
            &[constants, data],
            &[
                symbol("", 1, 0, 0, SECTION),
                symbol("_ZN7nattenc10unit_x_000E", 0, 0, 0, UNDEFINED),
                symbol("_ZN7nattenc5unitsE", 2, 0, 24, VARIABLE),
                symbol("_ZN7nattenc10unit_countE", 1, count, 4, VARIABLE),
                symbol("_ZN7nattenc10build_infoE", 1, 24, 20, VARIABLE),
            ],
        )
    }

    #[test]
    fn registry_is_read_from_its_constants() {
        let bytes = registry_object();
        let found = registry(&HostObject::read(&bytes).unwrap()).unwrap();
        let codes: Vec<String> = found.units["x_000"].iter().map(ToString::to_string).collect();
        assert_eq!(codes, ["elf 9.0a", "ptx 12.0"]);
        assert_eq!((found.units.len(), found.build_info.as_str()), (1, "{\"variant\":\"cu130\"}"));
    }

    #[test]
    fn damaged_objects_are_no_panics() {
        for bytes in [object(), registry_object()] {
            testing::damage(&bytes, |damaged| {
                if let Ok(object) = HostObject::read(damaged) {
                    let _ = table(&object, "x_000", &DEVICE.into());
                    let _ = registry(&object);
                }
                let _ = crate::verify::shared::read(damaged);
            });
        }
    }

    #[test]
    fn host_functions_stand_for_device_functions() {
        for (host, device) in [
            ("_Z5alphaPf", "_Z5alphaPf"),
            ("_ZN7cutlassL13device_kernelIN1aEEvv", "_ZN7cutlass13device_kernelIN1aEEvv"),
            ("_ZL24__device_stub__Z5alphaPfPf", "_Z5alphaPf"),
            ("_ZL34__device_stub__ZN1a5alphaILi4EEEvvRN1b1cE", "_ZN1a5alphaILi4EEEvv"),
        ] {
            assert_eq!(device_name(host), spelled_plainly(device), "{host}");
        }
        // Template arguments keep their L.
        assert_eq!(spelled_plainly("_ZN1aL3bcdILb0ELi64EEEvv"), "_ZN1a3bcdILb0ELi64EEEvv");
        // A length that lies is no panic.
        for name in ["_ZL99__device_stub__Z1aPf", "_ZL3__device_stub__Z1aPf", "__device_stub_"] {
            device_name(name);
        }
    }
}
