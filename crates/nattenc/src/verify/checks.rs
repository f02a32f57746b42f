//! The checks: what was read against what the manifest claims. But for [`files`], pure.

use super::archive::{Archive, Image, Member, is_foreign};
use super::device::LARGEST_EMPTY;
use super::fatbin::{Code, Kind};
use super::shared::SharedLibrary;
use super::unit::TableKernel;
use super::{Check, Finding, KernelCode, Outcome, Row, claims};
use crate::package::manifest::{Recorded, RecordedUnit};
use crate::plan::BACKENDS;
use crate::plan::capability::{Capability, CapabilityRequest};
use crate::{fs, link, report};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

/// A library's fatbins may have no more bytes: relocations of 32 bits do not reach further.
const FATBIN_LIMIT: u64 = 2_000_000_000;
/// From here on the next section may be the one too many.
const FATBIN_WARNING: u64 = 1_200_000_000;

/// Libraries of glibc, and the dynamic loaders: every system that glibc's floor covers has them.
const SYSTEM: &[&str] = &[
    "ld-linux-aarch64.so.1",
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
];

fn finding(what: impl Into<String>, expected: impl Into<String>, found: impl Into<String>) -> Finding {
    Finding { what: what.into(), expected: expected.into(), found: found.into() }
}

/// A check that looked at everything: ok with `summary`, or failed.
pub(super) fn conclude(name: &'static str, summary: String, findings: Vec<Finding>) -> Check {
    if findings.is_empty() {
        return Check { name, outcome: Outcome::Ok, summary, findings };
    }
    let plural = if findings.len() == 1 { "" } else { "s" };
    Check {
        name,
        outcome: Outcome::Failed,
        summary: format!("{} difference{plural}", findings.len()),
        findings,
    }
}

fn unchecked(name: &'static str, what: &str) -> Check {
    Check {
        name,
        outcome: Outcome::Unchecked,
        summary: format!("{what} cannot be read"),
        findings: Vec::new(),
    }
}

fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|i| i.to_string()).collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}

/// Differences of two sets, one finding per item.
fn differences<'a>(
    what: &str,
    claimed: &BTreeSet<&'a str>,
    found: &BTreeSet<&'a str>,
    findings: &mut Vec<Finding>,
) {
    for name in claimed.difference(found) {
        findings.push(finding(format!("{what} {name}"), "present", "missing"));
    }
    for name in found.difference(claimed) {
        findings.push(finding(format!("{what} {name}"), "none of that name", "present"));
    }
}

/// Sizes and digests of all files, none missing, none more.
pub(super) fn files(dist: &Path, manifest: &Recorded) -> anyhow::Result<Check> {
    let mut findings = Vec::new();
    let mut claimed = BTreeSet::from(["manifest.json".to_owned()]);
    let mut bytes = 0;
    for file in &manifest.files {
        let plain = Path::new(&file.path).components().all(|c| matches!(c, Component::Normal(_)));
        if !plain || !claimed.insert(file.path.clone()) {
            findings.push(finding(
                &file.path,
                "a path inside of the artifact, once",
                "another in the manifest",
            ));
            continue;
        }
        let path = dist.join(&file.path);
        if path.is_symlink() || !path.is_file() {
            let found = if path.exists() { "something else" } else { "missing" };
            findings.push(finding(&file.path, "a file", found));
            continue;
        }
        let size = fs::size(&path)?;
        bytes += size;
        if size != file.size {
            findings.push(finding(&file.path, format!("{} bytes", file.size), format!("{size} bytes")));
            continue;
        }
        let sha256 = fs::sha256(&path)?;
        if sha256 != file.sha256 {
            findings.push(finding(&file.path, format!("sha256 {}", file.sha256), format!("sha256 {sha256}")));
        }
    }
    for entry in walkdir::WalkDir::new(dist).sort_by_file_name() {
        let entry = entry?;
        let path = entry.path().strip_prefix(dist).unwrap_or(entry.path()).to_string_lossy().into_owned();
        if !entry.file_type().is_dir() && !claimed.contains(&path) {
            findings.push(finding(path, "no such file", "present"));
        }
    }
    let libraries = manifest
        .link
        .statics
        .iter()
        .map(|n| format!("lib/lib{n}.a"))
        .chain(manifest.link.shared.iter().map(|n| format!("lib/lib{n}.so")));
    for library in libraries.chain([format!("lib/{}", link::ARCHIVE), format!("lib/{}", link::SHARED)]) {
        if !claimed.contains(&library) {
            findings.push(finding(library, "listed among the files", "not listed"));
        }
    }
    Ok(conclude("files", format!("{} files, {}", manifest.files.len(), report::bytes(bytes)), findings))
}

/// What was found out about the libraries.
pub(super) struct Found {
    pub(super) checks: Vec<Check>,
    pub(super) code: Vec<Row>,
    pub(super) kernels: Vec<KernelCode>,
}

/// Everything about the libraries, and the code that is embedded.
pub(super) fn libraries(
    manifest: &Recorded,
    archive: Option<&Archive>,
    shared: &Result<SharedLibrary, String>,
    exports: &[String],
) -> Found {
    let mut checks = Vec::new();
    let (mut code, mut kernels) = (Vec::new(), Vec::new());
    match archive {
        Some(archive) => {
            let inside = Inside::new(manifest, archive);
            checks.push(inside.archive());
            checks.push(inside.position_independence());
            checks.push(inside.code());
            checks.push(inside.images());
            checks.push(inside.kernels());
            checks.push(inside.claims());
            checks.push(inside.registry());
            checks.push(inside.symbols());
            (code, kernels) = (inside.rows(), inside.kernel_code());
        }
        None => {
            checks.push(conclude(
                "archive",
                String::new(),
                vec![finding(link::ARCHIVE, "a file", "missing")],
            ));
            for name in ["position", "code", "images", "kernels", "claims", "registry", "symbols"] {
                checks.push(unchecked(name, "the archive"));
            }
        }
    }
    match shared {
        Ok(shared) => checks.extend(of_shared(manifest, archive, shared, exports)),
        Err(why) => {
            let findings = vec![finding(link::SHARED, "an ELF library", why)];
            checks.push(conclude("library", String::new(), findings));
            for name in ["exports", "needs", "loading", "same-code", "size"] {
                checks.push(unchecked(name, "the shared library"));
            }
        }
    }
    Found { checks, code, kernels }
}

/// The archive beside the manifest.
struct Inside<'a> {
    manifest: &'a Recorded,
    archive: &'a Archive,
    members: BTreeMap<&'a str, &'a Member>,
}

impl<'a> Inside<'a> {
    fn new(manifest: &'a Recorded, archive: &'a Archive) -> Self {
        let members = archive.members.iter().map(|m| (m.name.as_str(), m)).collect();
        Inside { manifest, archive, members }
    }

    /// The units, each with the member that should hold it. One that is missing is found by [`Self::archive`].
    fn units(&self) -> impl Iterator<Item = (&'a RecordedUnit, &'a Member)> {
        self.manifest.units.iter().filter_map(|u| Some((u, *self.members.get(u.name.as_str())?)))
    }

    fn archive(&self) -> Check {
        let mut findings = Vec::new();
        if let Some(why) = &self.archive.damage {
            findings.push(finding(link::ARCHIVE, "an archive of objects", why));
        }
        if !self.archive.indexed {
            findings.push(finding(link::ARCHIVE, "an index of symbols", "none"));
        }
        let mut seen = BTreeSet::new();
        for member in &self.archive.members {
            if !seen.insert(&member.name) {
                findings.push(finding(format!("{}.o", member.name), "one member of that name", "several"));
            }
            if let Some(why) = &member.damage {
                findings.push(finding(format!("{}.o", member.name), "an ELF object", why));
            }
        }
        for unit in self.manifest.units.iter().filter(|u| !self.members.contains_key(u.name.as_str())) {
            findings.push(finding(format!("{}.o", unit.name), "a member of the archive", "missing"));
        }
        let count = self.archive.members.len();
        conclude("archive", format!("{count} objects, {} of them units", self.manifest.units.len()), findings)
    }

    fn position_independence(&self) -> Check {
        let mut findings = Vec::new();
        for member in &self.archive.members {
            if let Some(first) = member.absolute.first() {
                let found = format!("{} absolute addresses, first at {first}", member.absolute.len());
                findings.push(finding(format!("{}.o", member.name), "position independent", found));
            }
        }
        let summary = format!("{} objects are position independent", self.archive.members.len());
        conclude("position", summary, findings)
    }

    /// What each unit embeds against its gencodes, and no device code outside of units.
    fn code(&self) -> Check {
        let mut findings = Vec::new();
        let mut count = 0;
        for (unit, member) in self.units() {
            let found = embedded(member);
            count += found.len();
            match claims::codes(unit) {
                Ok(claimed) if claimed == found => {}
                Ok(claimed) => findings.push(finding(label(unit), list(claimed), list(found))),
                Err(why) => findings.push(finding(label(unit), "gencodes in the manifest", why)),
            }
            if member.registered != member.fatbins.len() || member.fatbins.len() > 1 {
                let found = format!("{} fatbins, {} registered", member.fatbins.len(), member.registered);
                findings.push(finding(label(unit), "one fatbin, registered", found));
            }
        }
        let units: BTreeSet<&str> = self.manifest.units.iter().map(|u| u.name.as_str()).collect();
        for member in self.archive.members.iter().filter(|m| !units.contains(m.name.as_str())) {
            if !member.fatbins.is_empty() {
                let found = list(embedded(member));
                findings.push(finding(format!("{}.o", member.name), "no device code: it is no unit", found));
            }
        }
        conclude("code", format!("{count} images in {} units", self.manifest.units.len()), findings)
    }

    /// What each image says of itself.
    fn images(&self) -> Check {
        let mut findings = Vec::new();
        let mut count = 0;
        for member in &self.archive.members {
            for image in images(member) {
                count += 1;
                let what = format!("{}.o {}", member.name, image.code);
                match &image.device {
                    Err(why) => findings.push(finding(what, "an image that can be read", why)),
                    Ok(device) if !device.is_for(image.code.capability) => {
                        findings.push(finding(what, "an image for that capability", device.capability()));
                    }
                    Ok(_) => {}
                }
            }
        }
        conclude("images", format!("{count} images read, decompressed where they are compressed"), findings)
    }

    /// The kernels that the manifest claims are those of the unit's table, and each has code.
    fn kernels(&self) -> Check {
        let mut findings = Vec::new();
        let mut count = 0;
        for (unit, member) in self.units() {
            let table = match &member.table {
                Some(Ok(table)) => table,
                Some(Err(why)) => {
                    findings.push(finding(label(unit), "a table of kernels", why));
                    continue;
                }
                None => continue,
            };
            let claimed: Vec<&str> = unit.kernels.iter().map(String::as_str).collect();
            let found: Vec<&str> = table.iter().map(|k| k.name.as_str()).collect();
            if claimed != found {
                let before = findings.len();
                let set = |names: &[&'a str]| names.iter().copied().collect::<BTreeSet<_>>();
                let what = format!("{}: kernel", label(unit));
                differences(&what, &set(&claimed), &set(&found), &mut findings);
                if findings.len() == before {
                    findings.push(finding(
                        label(unit),
                        "the kernels in the manifest's order",
                        "another order",
                    ));
                }
            }
            count += table.len();
            for image in images(member) {
                has_kernels(&label(unit), image, table, &mut findings);
            }
        }
        conclude(
            "kernels",
            format!("{count} kernels, each with code in every image that can run it"),
            findings,
        )
    }

    /// What the manifest says of sections and backends, against its units' images.
    fn claims(&self) -> Check {
        let mut findings = Vec::new();
        let mut held: BTreeMap<&str, BTreeSet<Code>> = BTreeMap::new();
        let mut by_family: BTreeMap<&str, BTreeSet<Code>> = BTreeMap::new();
        for (unit, member) in self.units() {
            held.entry(&unit.section).or_default().extend(embedded(member));
            by_family.entry(&unit.family).or_default().extend(embedded(member));
        }
        let nothing = BTreeSet::new();
        for section in &self.manifest.sections {
            let held = held.get(section.name.as_str()).unwrap_or(&nothing);
            for claim in &section.capabilities {
                let what = format!("section {}: capability {}", section.name, claim.capability);
                let found = holds(held, claim.capability);
                if found != claim.built {
                    let word = |held| if held { "built" } else { "not built" };
                    findings.push(finding(
                        what,
                        word(claim.built),
                        format!("{}: it holds {}", word(found), list(held)),
                    ));
                }
            }
            let claimed = |code: &&Code| {
                section.capabilities.iter().any(|c| c.built && c.capability.capability == code.capability)
            };
            if let Some(code) = held.iter().find(|code| !claimed(code)) {
                let what = format!("section {}", section.name);
                findings.push(finding(what, "built capabilities only", code.to_string()));
            }
        }
        for (backend, families) in BACKENDS {
            let held: BTreeSet<Code> =
                families.iter().filter_map(|f| by_family.get(f)).flatten().copied().collect();
            let claimed = self.manifest.build["backends"][backend]["capabilities"].as_array();
            let claimed: Vec<CapabilityRequest> =
                claimed.into_iter().flatten().filter_map(|c| c.as_str()?.parse().ok()).collect();
            let what = format!("backend {backend}");
            if self.manifest.build["backends"][backend]["built"] != !held.is_empty() {
                findings.push(finding(&what, "built where there is code", list(&held)));
            }
            let missing = claimed.iter().filter(|request| !holds(&held, **request));
            findings.extend(missing.map(|c| finding(&what, format!("capability {c}"), list(&held))));
            let known = |code: &&Code| claimed.iter().any(|c| c.capability == code.capability);
            if let Some(code) = held.iter().find(|code| !known(code)) {
                findings.push(finding(&what, list(&claimed), code.to_string()));
            }
        }
        conclude("claims", "sections and backends hold what the manifest says".to_owned(), findings)
    }

    /// What the library itself will answer at run time.
    fn registry(&self) -> Check {
        let mut findings = Vec::new();
        let mut registries = self.archive.members.iter().filter_map(|m| m.registry.as_ref());
        let (registry, others) = (registries.next(), registries.count());
        match registry {
            None => findings.push(finding("registry", "an object that has it", "none")),
            Some(Err(why)) => findings.push(finding("registry", "a table of units", why)),
            Some(Ok(_)) if others > 0 => {
                findings.push(finding("registry", "one object that has it", (others + 1).to_string()));
            }
            Some(Ok(registry)) => {
                let claimed: BTreeSet<&str> = self.manifest.units.iter().map(|u| u.name.as_str()).collect();
                let found: BTreeSet<&str> = registry.units.keys().map(String::as_str).collect();
                differences("registry: unit", &claimed, &found, &mut findings);
                for (unit, member) in self.units() {
                    let Some(codes) = registry.units.get(&unit.name) else { continue };
                    let (mut codes, held) = (codes.clone(), embedded(member));
                    codes.sort();
                    if codes != held {
                        findings.push(finding(format!("registry: {}", label(unit)), list(held), list(codes)));
                    }
                }
                let info = serde_json::from_str(&registry.build_info);
                if !info.is_ok_and(|info: serde_json::Value| info == self.manifest.build) {
                    let expected = self.manifest.build.to_string();
                    findings.push(finding("natten_build_info", expected, &registry.build_info));
                }
            }
        }
        let summary = format!("dispatch lists {} units with this code", self.manifest.units.len());
        conclude("registry", summary, findings)
    }

    fn symbols(&self) -> Check {
        let mut findings = Vec::new();
        let defined: BTreeSet<&str> =
            self.archive.members.iter().flat_map(|m| &m.defined).map(String::as_str).collect();
        for member in &self.archive.members {
            let what = |name: &str| format!("{}.o: symbol {name}", member.name);
            let undefined = member.undefined.iter().filter(|name| !defined.contains(name.as_str()));
            findings.extend(undefined.map(|name| finding(what(name), "defined in the archive", "undefined")));
            let foreign = member.foreign.iter();
            findings.extend(foreign.map(|name| finding(what(name), "nothing of PyTorch", "present")));
        }
        conclude("symbols", format!("{} symbols, none undefined", defined.len()), findings)
    }

    /// The machine code of each kernel in each image.
    fn kernel_code(&self) -> Vec<KernelCode> {
        let mut found = Vec::new();
        for (unit, member) in self.units() {
            let Some(Ok(table)) = &member.table else { continue };
            for (kernel, image) in table.iter().flat_map(|k| images(member).map(move |i| (k, i))) {
                let (Ok(device), Kind::Elf) = (&image.device, image.code.kind) else { continue };
                let sizes = kernel.launches.iter().filter_map(|name| *device.kernels.get(name)?);
                found.push(KernelCode {
                    unit: label(unit),
                    kernel: kernel.name.clone(),
                    capability: image.code.capability.to_string(),
                    bytes: sizes.clone().sum(),
                    empty: sizes.max().is_none_or(|size| size <= LARGEST_EMPTY),
                });
            }
        }
        found.sort();
        found
    }

    /// Claimed and found code, by section and capability.
    fn rows(&self) -> Vec<Row> {
        let mut rows: BTreeMap<(usize, Capability), Row> = BTreeMap::new();
        let order = |section: &str| self.manifest.sections.iter().position(|s| s.name == section);
        for unit in &self.manifest.units {
            let member = self.members.get(unit.name.as_str());
            let mut row = |capability: Capability, change: &mut dyn FnMut(&mut Row)| {
                let key = (order(&unit.section).unwrap_or(usize::MAX), capability);
                change(rows.entry(key).or_insert_with(|| Row {
                    section: unit.section.clone(),
                    capability: capability.to_string(),
                    elf_claimed: 0,
                    elf_found: 0,
                    ptx_claimed: 0,
                    ptx_found: 0,
                    kernels: 0,
                    bytes: 0,
                }));
            };
            for code in claims::codes(unit).unwrap_or_default() {
                row(code.capability, &mut |row| match code.kind {
                    Kind::Elf => row.elf_claimed += 1,
                    Kind::Ptx => row.ptx_claimed += 1,
                });
            }
            for image in member.into_iter().flat_map(|m| images(m)) {
                row(image.code.capability, &mut |row| {
                    row.bytes += image.size;
                    match image.code.kind {
                        Kind::Elf => {
                            row.elf_found += 1;
                            row.kernels += image.device.as_ref().map_or(0, |d| d.kernels.len());
                        }
                        Kind::Ptx => row.ptx_found += 1,
                    }
                });
            }
        }
        rows.into_values().collect()
    }
}

fn label(unit: &RecordedUnit) -> String {
    format!("{}/{}", unit.section, unit.name)
}

fn images(member: &Member) -> impl Iterator<Item = &Image> {
    member.fatbins.iter().flat_map(|fatbin| &fatbin.images)
}

/// What a member embeds, sorted; twice where it is embedded twice.
fn embedded(member: &Member) -> Vec<Code> {
    let mut codes: Vec<Code> = images(member).map(|image| image.code).collect();
    codes.sort();
    codes
}

fn holds(held: &BTreeSet<Code>, request: CapabilityRequest) -> bool {
    let has = |kind| held.contains(&Code { kind, capability: request.capability });
    has(Kind::Elf) && (!request.ptx || has(Kind::Ptx))
}

/// Every kernel of the table that runs on the image's capability has code in it, and it has no other code.
fn has_kernels(unit: &str, image: &Image, table: &[TableKernel], findings: &mut Vec<Finding>) {
    // An image that cannot be read is another check's finding.
    let Ok(device) = &image.device else { return };
    let number = u32::from(image.code.capability.number());
    let mut launched: BTreeSet<&str> = BTreeSet::new();
    for kernel in table {
        launched.extend(kernel.launches.iter().map(String::as_str));
        if !kernel.sm.contains(&number) {
            continue;
        }
        let what = format!("{unit}: kernel {} in {}", kernel.name, image.code);
        let missing = kernel.launches.iter().find(|name| !device.kernels.contains_key(*name));
        let sizes = kernel.launches.iter().filter_map(|name| device.kernels.get(name));
        if kernel.launches.is_empty() {
            findings.push(finding(what, "device code that its launcher launches", "none"));
        } else if let Some(name) = missing {
            findings.push(finding(what, name, "missing"));
        } else if sizes.clone().all(|size| size.is_some_and(|size| size <= LARGEST_EMPTY)) {
            let found = format!("an empty one of {} bytes", list(sizes.flatten()));
            findings.push(finding(what, "a body", found));
        }
    }
    for name in device.kernels.keys().filter(|name| !launched.contains(name.as_str())) {
        findings.push(finding(format!("{unit}: {}", image.code), "code of its kernels only", name));
    }
}

/// Everything about the shared library.
fn of_shared(
    manifest: &Recorded,
    archive: Option<&Archive>,
    shared: &SharedLibrary,
    exports: &[String],
) -> Vec<Check> {
    let mut checks = Vec::new();

    let mut findings = Vec::new();
    if shared.soname != link::SHARED {
        findings.push(finding("soname", link::SHARED, &shared.soname));
    }
    for name in shared.undefined.iter().filter(|name| name.contains("natten")) {
        findings.push(finding(format!("symbol {name}"), "defined", "undefined"));
    }
    for name in shared.names.iter().filter(|name| is_foreign(name)) {
        findings.push(finding(format!("symbol {name}"), "nothing of PyTorch", "present"));
    }
    checks.push(conclude("library", format!("{}, no symbol undefined", shared.soname), findings));

    let mut findings = Vec::new();
    let declared: BTreeSet<&str> = exports.iter().map(String::as_str).collect();
    let exported: BTreeSet<&str> = shared.exports.iter().map(String::as_str).collect();
    if declared.is_empty() {
        findings.push(finding("natten_kernels.h", "declarations of functions", "none"));
    }
    differences("exported function", &declared, &exported, &mut findings);
    checks.push(conclude("exports", format!("the {} functions of the header", declared.len()), findings));

    let mut findings = Vec::new();
    let runtime = manifest.link.system.iter().any(|name| name == "cudart");
    for name in &shared.needs.libraries {
        let known = SYSTEM.contains(&name.as_str()) || (runtime && name.starts_with("libcudart.so."));
        if !known {
            findings.push(finding("needed library", "one of the system's C library", name));
        }
    }
    match &manifest.needs {
        Some(claimed) => {
            if claimed.libraries != shared.needs.libraries {
                findings.push(finding(
                    "needed libraries",
                    list(&claimed.libraries),
                    list(&shared.needs.libraries),
                ));
            }
            if claimed.glibc != shared.needs.glibc {
                findings.push(finding("oldest glibc", &claimed.glibc, &shared.needs.glibc));
            }
        }
        None => findings.push(finding("manifest", "field needs", "none: made by an older nattenc")),
    }
    let summary = format!("glibc {} or later; {}", shared.needs.glibc, list(&shared.needs.libraries));
    checks.push(conclude("needs", summary, findings));

    let mut findings = Vec::new();
    for path in shared.search.iter().flat_map(|list| list.split(':')).filter(|p| !p.starts_with("$ORIGIN")) {
        findings.push(finding("RUNPATH", "none, or below $ORIGIN", path));
    }
    if shared.text_relocations {
        findings.push(finding("text relocations", "none", "some"));
    }
    if shared.executable_stack {
        findings.push(finding("stack", "not executable", "executable"));
    }
    let summary = "no RUNPATH, no text relocations, no executable stack".to_owned();
    checks.push(conclude("loading", summary, findings));

    checks.push(match archive {
        Some(archive) => same_code(archive, shared),
        None => unchecked("same-code", "the archive"),
    });
    checks.push(fatbin_size(shared.fatbin_bytes));
    checks
}

/// Both libraries embed the same fatbins, byte for byte.
fn same_code(archive: &Archive, shared: &SharedLibrary) -> Check {
    let mut findings = Vec::new();
    let mut left = shared.fatbins.clone();
    let mut count = 0;
    for member in &archive.members {
        for fatbin in &member.fatbins {
            count += 1;
            match left.get_mut(&fatbin.sha256) {
                Some(n) if *n > 0 => *n -= 1,
                _ => findings.push(finding(
                    format!("fatbin of {}.o", member.name),
                    "in the shared library too",
                    "missing",
                )),
            }
        }
    }
    let more: usize = left.values().sum();
    if more > 0 {
        findings.push(finding("fatbins", "those of the archive", format!("{more} others")));
    }
    if shared.unregistered + shared.unfounded > 0 {
        findings.push(finding(
            "fatbins of the shared library",
            "each registered once",
            format!("{} unregistered, {} registrations of nothing", shared.unregistered, shared.unfounded),
        ));
    }
    conclude("same-code", format!("{count} fatbins are in both libraries"), findings)
}

fn fatbin_size(size: u64) -> Check {
    let summary = format!("{} of fatbins", report::bytes(size));
    if size > FATBIN_LIMIT {
        let expected = format!("at most {}", report::bytes(FATBIN_LIMIT));
        return conclude("size", String::new(), vec![finding("fatbins", expected, summary)]);
    }
    let check = conclude("size", summary, vec![]);
    if size > FATBIN_WARNING {
        let summary = format!("{}, near the limit of {}", check.summary, report::bytes(FATBIN_LIMIT));
        return Check { outcome: Outcome::Warning, summary, ..check };
    }
    check
}

#[cfg(test)]
mod tests;
