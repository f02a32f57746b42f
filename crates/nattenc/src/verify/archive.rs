//! The static archive, read whole: every member's symbols, device code and tables.

use super::device::{self, Device};
use super::fatbin::{self, Code};
use super::object::{HostObject, Target};
use super::unit::{self, Registry, TableKernel};
use object::read::archive::ArchiveFile;
use rayon::prelude::*;
use std::collections::BTreeSet;

/// The archive.
pub(super) struct Archive {
    /// Why not all of it could be read.
    pub(super) damage: Option<String>,
    /// Whether a linker finds an index of symbols.
    pub(super) indexed: bool,
    pub(super) members: Vec<Member>,
}

/// An object of the archive.
pub(super) struct Member {
    /// Its file name without `.o`.
    pub(super) name: String,
    /// Why not all of it could be read.
    pub(super) damage: Option<String>,
    /// Global symbols with natten in their names.
    pub(super) defined: BTreeSet<String>,
    /// Symbols with natten in their names that others must define.
    pub(super) undefined: BTreeSet<String>,
    /// Symbols of PyTorch.
    pub(super) foreign: Vec<String>,
    /// Places that are not position independent.
    pub(super) absolute: Vec<String>,
    /// Its fatbins.
    pub(super) fatbins: Vec<Fatbin>,
    /// How many of them its registration records lead to.
    pub(super) registered: usize,
    /// The table of the unit that has its name, if it is one.
    pub(super) table: Option<Result<Vec<TableKernel>, String>>,
    /// The registry, in the object that has one.
    pub(super) registry: Option<Result<Registry, String>>,
}

/// A fatbin.
pub(super) struct Fatbin {
    pub(super) sha256: String,
    pub(super) images: Vec<Image>,
}

/// An image of a fatbin.
pub(super) struct Image {
    /// What the fatbin says that it is for.
    pub(super) code: Code,
    /// Bytes in the library.
    pub(super) size: u64,
    /// What it says itself.
    pub(super) device: Result<Device, String>,
}

/// Reads the archive. `units` are the members that should have tables.
pub(super) fn read(data: &[u8], units: &BTreeSet<&str>) -> Archive {
    let mut archive = Archive { damage: None, indexed: false, members: Vec::new() };
    let file = match ArchiveFile::parse(data) {
        Ok(file) => file,
        Err(error) => return Archive { damage: Some(error.to_string()), ..archive },
    };
    archive.indexed = file.symbols().is_ok_and(|symbols| symbols.is_some());
    let mut objects = Vec::new();
    for member in file.members() {
        let read = member.and_then(|m| Ok((String::from_utf8_lossy(m.name()).into_owned(), m.data(data)?)));
        match read {
            Ok(object) => objects.push(object),
            Err(error) => {
                archive.damage = Some(format!("after {} members: {error}", objects.len()));
                break;
            }
        }
    }
    archive.members = objects
        .into_par_iter()
        .map(|(file, data)| {
            let name = file.strip_suffix(".o").unwrap_or(&file);
            member(name, data, units.contains(name))
        })
        .collect();
    archive
}

/// Whether a mangled name has something of PyTorch's namespaces in it.
pub(super) fn is_foreign(name: &str) -> bool {
    // Nested names that begin with namespace at, c10 or torch.
    ["2at", "3c10", "5torch"].iter().any(|part| {
        name.match_indices(part).any(|(at, _)| name[..at].ends_with('N') || name[..at].ends_with("NK"))
    })
}

fn member(name: &str, data: &[u8], is_unit: bool) -> Member {
    let mut member = Member {
        name: name.to_owned(),
        damage: None,
        defined: BTreeSet::new(),
        undefined: BTreeSet::new(),
        foreign: Vec::new(),
        absolute: Vec::new(),
        fatbins: Vec::new(),
        registered: 0,
        table: None,
        registry: None,
    };
    let object = match HostObject::read(data) {
        Ok(object) => object,
        Err(why) => return Member { damage: Some(why), ..member },
    };
    let natten = |names: &BTreeSet<&str>| {
        names.iter().filter(|name| name.contains("natten")).map(|name| (*name).to_owned()).collect()
    };
    member.defined = natten(&object.defined);
    member.undefined = natten(&object.undefined);
    member.foreign = object.names().filter(|name| is_foreign(name)).map(str::to_owned).collect();
    member.absolute.clone_from(&object.absolute);
    if let Err(why) = add_fatbins(&mut member, &object) {
        member.damage = Some(why);
    }
    let device: BTreeSet<&str> = member
        .fatbins
        .iter()
        .flat_map(|fatbin| &fatbin.images)
        .filter_map(|image| image.device.as_ref().ok())
        .flat_map(|device| device.kernels.keys().map(String::as_str))
        .collect();
    let table = is_unit.then(|| unit::table(&object, name, &device));
    member.table = table;
    member.registry = object.place("_ZN7nattenc5unitsE").map(|_| unit::registry(&object));
    member
}

fn add_fatbins(member: &mut Member, object: &HostObject<'_>) -> Result<(), String> {
    let mut begins = BTreeSet::new();
    if let Some((section, bytes)) = object.section(".nv_fatbin")? {
        for container in fatbin::containers(bytes).map_err(|why| format!(".nv_fatbin: {why}"))? {
            begins.insert((section, container.offset as u64));
            let images = container
                .entries
                .iter()
                .map(|entry| Image {
                    code: entry.code,
                    size: entry.size(),
                    device: entry.image().and_then(|image| device::read(entry.code.kind, &image)),
                })
                .collect();
            member.fatbins.push(Fatbin { sha256: crate::fs::sha256_of(container.bytes), images });
        }
    }
    if let Some((section, bytes)) = object.section(".nvFatBinSegment")? {
        // Each record of 24 bytes has the pointer to its fatbin at 8.
        for at in (8..bytes.len() as u64).step_by(24) {
            if let Some(Target::Inside(place)) = object.pointer((section, at))
                && begins.remove(&place)
            {
                member.registered += 1;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive as ar writes it, without an index.
    fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
        let mut bytes = b"!<arch>\n".to_vec();
        for (name, data) in members {
            bytes.extend(
                format!("{:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", format!("{name}/"), 0, 0, 0, 644, data.len())
                    .bytes(),
            );
            bytes.extend(*data);
            if data.len() % 2 == 1 {
                bytes.push(b'\n');
            }
        }
        bytes
    }

    #[test]
    fn archive_is_read_up_to_its_damage() {
        let object = crate::verify::testing::write(&crate::verify::testing::OBJECT, &[], &[]);
        let bytes = archive(&[("a.o", &object), ("b.o", b"no object"), ("c.o", &object)]);
        let whole = read(&bytes, &BTreeSet::from(["c"]));
        let names: Vec<_> = whole.members.iter().map(|m| (m.name.as_str(), m.damage.is_some())).collect();
        assert_eq!(names, [("a", false), ("b", true), ("c", false)]);
        assert!(whole.damage.is_none() && !whole.indexed);
        assert!(whole.members[0].table.is_none());
        assert!(matches!(&whole.members[2].table, Some(Err(why)) if why.contains("no table")));
        let cut = read(&bytes[..bytes.len() - 1], &BTreeSet::new());
        assert_eq!(cut.members.len(), 2);
        assert!(cut.damage.unwrap().contains("after 2 members"));
        assert!(read(b"!<arch", &BTreeSet::new()).damage.is_some());
        crate::verify::testing::damage(&bytes, |damaged| drop(read(damaged, &BTreeSet::new())));
    }

    #[test]
    fn names_of_pytorch_are_told_from_ours() {
        for (name, foreign) in [
            ("_ZN2at6TensorC1Ev", true),
            ("_ZNK2at6Tensor4sizeEv", true),
            ("_ZN7nattenc4takeERKN2at6TensorE", true),
            ("_ZN3c105ErrorC1Ev", true),
            ("_ZN5torch8autogradE", true),
            ("natten_na2d_forward", false),
            ("_ZN6natten4cuda12attn_forwardEv", false),
            ("_ZN7nattenc22attention_is_2attachedEv", false),
        ] {
            assert_eq!(is_foreign(name), foreign, "{name}");
        }
    }
}
