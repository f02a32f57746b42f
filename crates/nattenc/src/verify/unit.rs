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
