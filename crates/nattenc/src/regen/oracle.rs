//! Compares what upstream's own generators write with what our tables and templates make: every entry
//! point's name, template arguments and guard, and the unit that holds it.

use super::canonical::{self, POLICIES, units};
use super::entries::{self, Entry, template_arguments};
use super::generators::Generated;
use crate::catalog::{self, Catalog, Family, Group};
use crate::failure::Failure;
use crate::generate;
use anyhow::Context;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What a comparison came to.
#[derive(Debug, Serialize)]
pub struct Report {
    schema_version: u32,
    /// The version of the sources.
    pub natten: String,
    /// One row per policy and family.
    pub rows: Vec<Row>,
    /// The differences by family and cause, over all policies.
    pub causes: Vec<Cause>,
    /// Every difference.
    pub differences: Vec<Difference>,
}

/// One family under one policy.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The policy.
    pub policy: &'static str,
    /// The family.
    pub family: String,
    /// Units that upstream's script wrote.
    pub units: usize,
    /// Entry points in them.
    pub entries: usize,
    /// Kernel classes that these instantiate.
    pub classes: usize,
    /// Entry points that are equal to ours, in the same unit and place.
    pub equal: usize,
}

/// Why a family differs, a sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// The family, or `every family` where a policy is missing.
    pub family: String,
    /// What is different.
    pub text: String,
}

/// One thing that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The policy, where one is concerned.
    pub policy: Option<&'static str>,
    /// The family, where one is concerned.
    pub family: Option<String>,
    /// The kernel, where one is concerned.
    pub kernel: Option<String>,
    /// What kind of difference it is.
    pub kind: Kind,
    /// The rest of the sentence.
    pub text: String,
}

/// Kinds of differences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Upstream has no such split policy.
    Policy,
    /// Only one side has the family.
    Family,
    /// The tables lack a kernel of upstream's.
    Missing,
    /// The tables have a kernel that upstream lacks.
    Extra,
    /// The same entry point instantiates other kernel classes.
    Classes,
    /// The same entry point is for another SM range.
    Guard,
    /// The family is split into another number of units.
    Units,
    /// The same entry point is in another unit, or elsewhere in it.
    Place,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place: Vec<&str> = self.policy.into_iter().chain(self.family.as_deref()).collect();
        if !place.is_empty() {
            write!(f, "{}: ", place.join(" "))?;
        }
        if let Some(kernel) = &self.kernel {
            write!(f, "{kernel} ")?;
        }
        f.write_str(&self.text)
    }
}

/// Runs upstream's generators and compares under every policy. `sources` is an unpacked sdist, `python` the
/// interpreter for its scripts.
pub fn compare(natten: &str, sources: &Path, python: &Path) -> anyhow::Result<Report> {
    compare_generated(natten, &Generated::new(sources, python)?)
}

/// As [`compare`], of what the generators wrote already.
pub(super) fn compare_generated(natten: &str, generated: &Generated) -> anyhow::Result<Report> {
    let catalog = catalog::catalog()?;
    let mut report = Report {
        schema_version: 1,
        natten: natten.to_owned(),
        rows: Vec::new(),
        causes: Vec::new(),
        differences: Vec::new(),
    };
    let mut shapes = BTreeMap::new();
    families(catalog, generated, &mut report.differences)?;
    for policy in POLICIES {
        let Some(counts) = generated.splits.get(policy) else {
            let text = format!("upstream has no split policy {policy}");
            report.differences.push(Difference {
                policy: None,
                family: None,
                kernel: None,
                kind: Kind::Policy,
                text,
            });
            continue;
        };
        for family in catalog.families.iter().filter(|f| f.autogen && counts.contains_key(&f.name)) {
            let theirs = parsed(generated, policy, &family.name)?;
            let ours = rendered(family, units(family, policy))?;
            let mut found = Differ { policy, family: &family.name, differences: Vec::new() };
            let equal = found.units(&theirs, &ours);
            shapes.entry(family.name.clone()).or_insert_with(|| class_shapes(&theirs, &ours));
            report.rows.push(Row {
                policy,
                family: family.name.clone(),
                units: theirs.len(),
                entries: theirs.iter().map(Vec::len).sum(),
                classes: theirs.iter().flatten().map(|entry| entry.classes.len()).sum(),
                equal,
            });
            report.differences.extend(found.differences);
        }
    }
    report.causes = causes(&report, &shapes);
    Ok(report)
}

impl Report {
    /// A table, then what differs: by cause, and one by one.
    pub fn text(&self) -> String {
        let mut lines = vec![format!(
            "{:<8} {:<20} {:>6} {:>8} {:>8} {:>8}",
            "policy", "family", "units", "entries", "classes", "equal"
        )];
        let mut sums = [0; 4];
        for row in &self.rows {
            let numbers = [row.units, row.entries, row.classes, row.equal];
            sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
            lines.push(line(row.policy, &row.family, numbers));
        }
        lines.push(line("all", "", sums));
        lines.extend(self.differences.iter().map(|difference| format!("  {difference}")));
        lines.push(self.summary());
        lines.join("\n")
    }

    /// How many differences there are, and every cause in a line.
    pub fn summary(&self) -> String {
        let mut lines = vec![format!("natten {}: {} differences", self.natten, self.differences.len())];
        if self.differences.is_empty() {
            return lines.remove(0);
        }
        lines.extend(self.causes.iter().map(|cause| format!("  {}: {}", cause.family, cause.text)));
        let has = |kind: Kind| self.differences.iter().any(|difference| difference.kind == kind);
        let all = self.rows.iter().map(|row| row.family.as_str()).collect::<BTreeSet<_>>();
        let equal: Vec<&str> = all
            .iter()
            .copied()
            .filter(|name| !self.causes.iter().any(|cause| cause.family == *name))
            .collect();
        lines.push(format!("  equal under every policy: {}", listed(&equal)));
        if !has(Kind::Family) {
            lines.push("  no family is on one side alone".to_owned());
        }
        if !(has(Kind::Missing) || has(Kind::Extra)) {
            lines.push("  no kernel's name is missing, and none is extra".to_owned());
        }
        lines.join("\n")
    }

    /// Class integrity unless everything is equal.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.differences.is_empty() {
            return Ok(());
        }
        Err(Failure::integrity(format!(
            "the kernel tables differ from natten {}'s generators in {} places",
            self.natten,
            self.differences.len()
        ))
        .hint("edit templates/cuda/<family>/instances.toml and its template until both agree")
        .into())
    }
}

fn listed(names: &[&str]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}

fn line(policy: &str, family: &str, [units, entries, classes, equal]: [usize; 4]) -> String {
    format!("{policy:<8} {family:<20} {units:>6} {entries:>8} {classes:>8} {equal:>8}")
}

/// How many kernel classes of how many template arguments an entry point instantiates, on both sides:
/// upstream's and ours, of the first entry point that both have and that differs.
type Shapes = Option<[(usize, usize); 2]>;

fn class_shapes(theirs: &[Vec<Entry>], ours: &[Vec<Entry>]) -> Shapes {
    let ours: BTreeMap<&str, &Entry> =
        ours.iter().flatten().map(|entry| (entry.name.as_str(), entry)).collect();
    let both = |entry: &Entry| Some([entry.clone(), (*ours.get(entry.name.as_str())?).clone()]);
    let pair = theirs.iter().flatten().filter_map(both).find(|[a, b]| a.classes != b.classes)?;
    let shape =
        |entry: &Entry| (entry.classes.len(), entry.classes.first().map_or(0, |c| template_arguments(c)));
    Some(pair.each_ref().map(shape))
}

/// Sums the differences of each family up, one sentence per kind.
fn causes(report: &Report, shapes: &BTreeMap<String, Shapes>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let families: Vec<Option<&String>> = {
        let mut seen = Vec::new();
        for difference in &report.differences {
            if !seen.contains(&difference.family.as_ref()) {
                seen.push(difference.family.as_ref());
            }
        }
        seen
    };
    for family in families {
        let of = |kind: Kind| {
            report.differences.iter().filter(move |d| d.family.as_ref() == family && d.kind == kind)
        };
        // A kernel differs under every policy alike; it counts once.
        let kernels =
            |kind: Kind| of(kind).filter_map(|d| d.kernel.as_deref()).collect::<BTreeSet<_>>().len();
        let name = family.cloned().unwrap_or_else(|| "every family".to_owned());
        let mut say = |text: String| causes.push(Cause { family: name.clone(), text });
        of(Kind::Policy).chain(of(Kind::Family)).for_each(|difference| say(difference.text.clone()));
        for (kind, text) in [
            (Kind::Missing, "kernels of upstream's are missing in the table"),
            (Kind::Extra, "kernels of the table are not upstream's"),
        ] {
            if kernels(kind) > 0 {
                say(format!("{} {text}", kernels(kind)));
            }
        }
        if kernels(Kind::Classes) > 0 {
            let how = match shapes.get(&name).copied().flatten() {
                Some([theirs, ours]) if theirs != ours => format!(
                    "upstream's instantiate {} of {} template arguments each, ours {} of {}",
                    classes(theirs.0),
                    theirs.1,
                    classes(ours.0),
                    ours.1
                ),
                _ => "as many, with other values".to_owned(),
            };
            say(format!(
                "{} entry points of the same name with other template arguments: {how}",
                kernels(Kind::Classes)
            ));
        }
        if kernels(Kind::Guard) > 0 {
            say(format!("{} entry points for other SM ranges", kernels(Kind::Guard)));
        }
        let counts: Vec<String> =
            of(Kind::Units).map(|d| format!("{} {}", d.policy.unwrap_or_default(), d.text)).collect();
        if !counts.is_empty() {
            say(format!("other numbers of units: {}", counts.join("; ")));
        }
        if kernels(Kind::Place) > 0 {
            say(format!("{} entry points in another unit or place", kernels(Kind::Place)));
        }
    }
    causes
}

fn classes(count: usize) -> String {
    if count == 1 { "1 kernel class".to_owned() } else { format!("{count} kernel classes") }
}

/// Families that one side alone has; of upstream's, every kernel is missing.
fn families(
    catalog: &Catalog,
    generated: &Generated,
    differences: &mut Vec<Difference>,
) -> anyhow::Result<()> {
    let ours: BTreeSet<&str> =
        catalog.families.iter().filter(|f| f.autogen).map(|f| f.name.as_str()).collect();
    let theirs = generated.families();
    let mut say = |family: &str, kernel: Option<String>, kind: Kind, text: &str| {
        let (family, text) = (Some(family.to_owned()), text.to_owned());
        differences.push(Difference { policy: None, family, kernel, kind, text });
    };
    for name in theirs.difference(&ours) {
        say(name, None, Kind::Family, "upstream alone has this family");
        let policy =
            POLICIES.into_iter().find(|p| generated.splits.get(*p).is_some_and(|s| s.contains_key(*name)));
        for entry in parsed(generated, policy.unwrap_or(POLICIES[0]), name)?.into_iter().flatten() {
            say(name, Some(entry.name), Kind::Missing, "is missing");
        }
    }
    for name in ours.difference(&theirs) {
        say(name, None, Kind::Family, "upstream does not have this family");
    }
    Ok(())
}

/// The entry points of upstream's units.
pub(super) fn parsed(generated: &Generated, policy: &str, family: &str) -> anyhow::Result<Vec<Vec<Entry>>> {
    let unit = |(index, text): (usize, String)| {
        entries::upstream(&text).with_context(|| format!("upstream's {family} unit {index}"))
    };
    generated.units(policy, family)?.into_iter().enumerate().map(unit).collect()
}

/// What our templates make of a family, read back from the text that would be compiled.
fn rendered(family: &Family, count: usize) -> anyhow::Result<Vec<Vec<Entry>>> {
    let unit = |(index, groups): (usize, Vec<&Group>)| {
        let unit = canonical::unit(family, index, &groups);
        entries::ours(&generate::unit(&unit)?).with_context(|| format!("our unit {}", unit.name))
    };
    family.units(count).into_iter().enumerate().map(unit).collect()
}

/// Compares the units of one family under one policy.
struct Differ<'a> {
    policy: &'static str,
    family: &'a str,
    differences: Vec<Difference>,
}

impl Differ<'_> {
    fn say(&mut self, kernel: Option<&str>, kind: Kind, text: String) {
        self.differences.push(Difference {
            policy: Some(self.policy),
            family: Some(self.family.to_owned()),
            kernel: kernel.map(str::to_owned),
            kind,
            text,
        });
    }

    /// Place by place; returns how many are equal.
    fn units(&mut self, theirs: &[Vec<Entry>], ours: &[Vec<Entry>]) -> usize {
        let units_agree = theirs.len() == ours.len();
        if !units_agree {
            self.say(
                None,
                Kind::Units,
                format!("upstream has {} units, the table {}", theirs.len(), ours.len()),
            );
        }
        let (theirs, mut ours) = (placed(theirs), placed(ours));
        let mut equal = 0;
        for (name, (at, entry)) in theirs {
            let Some((our_at, our)) = ours.remove(name) else {
                self.say(Some(name), Kind::Missing, "is missing".to_owned());
                continue;
            };
            let before = self.differences.len();
            // Other counts of units move everything, which is told once.
            if at != our_at && units_agree {
                self.say(Some(name), Kind::Place, format!("is {}, upstream's {}", spot(our_at), spot(at)));
            }
            if entry.classes != our.classes {
                let text = format!(
                    "instantiates {}, upstream's {}",
                    our.classes.join("; "),
                    entry.classes.join("; ")
                );
                self.say(Some(name), Kind::Classes, text);
            }
            if entry.guard != our.guard {
                let text = format!("is guarded by {:?}, upstream's by {:?}", our.guard, entry.guard);
                self.say(Some(name), Kind::Guard, text);
            }
            equal += usize::from(self.differences.len() == before && at == our_at);
        }
        for name in ours.into_keys() {
            self.say(Some(name), Kind::Extra, "is extra".to_owned());
        }
        equal
    }
}

/// Entry points by name, with unit and index.
fn placed(units: &[Vec<Entry>]) -> BTreeMap<&str, ((usize, usize), &Entry)> {
    let place = |(unit, entries): (usize, &'_ Vec<Entry>)| (unit, entries.len());
    let spots =
        units.iter().enumerate().map(place).flat_map(|(unit, count)| (0..count).map(move |i| (unit, i)));
    spots.zip(units.iter().flatten()).map(|(at, entry)| (entry.name.as_str(), (at, entry))).collect()
}

fn spot((unit, index): (usize, usize)) -> String {
    format!("number {index} of unit {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, class: &str, guard: Option<(u32, u32)>) -> Entry {
        Entry { name: name.into(), classes: vec![class.into()], guard }
    }

    fn differ(theirs: &[Vec<Entry>], ours: &[Vec<Entry>]) -> (usize, Vec<Difference>) {
        let mut differ = Differ { policy: "fine", family: "x", differences: vec![] };
        (differ.units(theirs, ours), differ.differences)
    }

    fn shown(differences: &[Difference]) -> Vec<String> {
        differences.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_kind_of_difference_is_named() {
        let a = entry("a", "A<1>", None);
        let b = entry("b", "B", Some((500, 700)));
        let c = entry("c", "C", None);
        let same = [vec![a.clone()], vec![b.clone()]];
        assert_eq!(differ(&same, &same), (2, vec![]));
        let ours = [vec![entry("a", "A<2>", None), entry("b", "B", Some((500, 750)))], vec![c.clone()]];
        let (equal, differences) = differ(&same, &ours);
        assert_eq!(equal, 0);
        assert_eq!(
            shown(&differences),
            [
                "fine x: a instantiates A<2>, upstream's A<1>",
                "fine x: b is number 1 of unit 0, upstream's number 0 of unit 1",
                "fine x: b is guarded by Some((500, 750)), upstream's by Some((500, 700))",
                "fine x: c is extra",
            ]
        );
        assert_eq!(shown(&differ(&same, &[vec![a.clone()], vec![]]).1), ["fine x: b is missing"]);
        let (equal, differences) = differ(&same, &[vec![a, b, c]]);
        assert_eq!(equal, 1);
        assert_eq!(shown(&differences), ["fine x: upstream has 2 units, the table 1", "fine x: c is extra"]);
    }

    #[test]
    fn causes_are_told_once_per_family_over_all_policies() {
        let two =
            |class: &str| Entry { name: "k".into(), classes: vec![class.into(), class.into()], guard: None };
        let (theirs, ours) =
            ([vec![two("K<A<1, 2>>")]], [vec![entry("k", "K<A<1, 2>, true>", None)], vec![]]);
        let mut report = Report {
            schema_version: 1,
            natten: "0.0.0".into(),
            rows: vec![],
            causes: vec![],
            differences: vec![],
        };
        for policy in ["default", "fine"] {
            let mut differ = Differ { policy, family: "x", differences: vec![] };
            differ.units(&theirs, &ours);
            report.differences.extend(differ.differences);
        }
        let shapes = BTreeMap::from([("x".to_owned(), class_shapes(&theirs, &ours))]);
        report.causes = causes(&report, &shapes);
        assert_eq!(
            report.summary(),
            "natten 0.0.0: 4 differences\n  \
             x: 1 entry points of the same name with other template arguments: upstream's instantiate 2 kernel classes of 1 template arguments each, ours 1 kernel class of 2\n  \
             x: other numbers of units: default upstream has 1 units, the table 2; fine upstream has 1 units, the table 2\n  \
             equal under every policy: none\n  \
             no family is on one side alone\n  \
             no kernel's name is missing, and none is extra"
        );
    }

    #[test]
    fn our_units_are_read_back_whole() {
        for family in catalog::catalog().unwrap().families.iter().filter(|family| family.autogen) {
            let entries = rendered(family, units(family, "coarse")).unwrap();
            let names: Vec<String> = entries.into_iter().flatten().map(|entry| entry.name).collect();
            let kernels: Vec<String> = family.kernels().map(|kernel| kernel.name.clone()).collect();
            assert_eq!(names, kernels, "{}", family.name);
        }
    }

    #[test]
    fn a_report_with_a_difference_fails_with_class_integrity() {
        let mut report = Report {
            schema_version: 1,
            natten: "0.0.0".into(),
            rows: vec![],
            causes: vec![],
            differences: vec![],
        };
        assert!(report.check().is_ok());
        assert!(report.text().ends_with("natten 0.0.0: 0 differences"));
        let text = "upstream has no split policy fine".to_owned();
        report.differences.push(Difference {
            policy: None,
            family: None,
            kernel: None,
            kind: Kind::Policy,
            text,
        });
        report.causes = causes(&report, &BTreeMap::new());
        let error = report.check().unwrap_err();
        assert_eq!(crate::failure::class(&error).exit_code(), 8);
        assert!(report.text().contains("1 differences\n  every family: upstream has no split policy fine"));
    }
}
