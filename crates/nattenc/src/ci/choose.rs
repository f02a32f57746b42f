//! Which units of which variants are compiled for an [`Event`], each with the reason.

use super::touched::Touch;
use super::{Event, serve};
use crate::config::Variant;
use crate::cost::{Table, predict};
use crate::failure::Failure;
use crate::package::driver;
use crate::plan::{Decision, Plan, UnitPlan};
use std::collections::{BTreeMap, BTreeSet};

/// A variant, and everything that is planned for it.
#[derive(Debug, Clone)]
pub struct Planned {
    /// Its definition.
    pub variant: Variant,
    /// All of build.toml.
    pub plan: Plan,
    /// All of the build.toml that the change began from, where that is known.
    pub before: Option<Plan>,
}

/// What is compiled of a variant.
#[derive(Debug, Clone)]
pub struct Choice {
    /// Its definition.
    pub variant: Variant,
    /// The chosen units.
    pub plan: Plan,
    /// Whether those are all that there are.
    pub whole: bool,
    /// The variants that the artifact is for, itself the first.
    pub serves: Vec<String>,
    /// Why: a line each.
    pub why: Vec<String>,
}

/// What is compiled of every variant, and what is not and why.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// Variants that something is compiled of, by release.
    pub choices: Vec<Choice>,
    /// What there is to know beside that: a line each.
    pub notes: Vec<String>,
}

/// By variant, the labels of units, each with the first reason for it.
type Reasons = BTreeMap<String, BTreeMap<String, String>>;

/// What is compiled for `event`; `touches` are the changed files of a [`Event::Pr`].
///
/// Fails, with class configuration, where a variant cannot be served by the one that it names.
pub fn choose(
    planned: &[Planned],
    event: Event,
    touches: &BTreeMap<String, Touch>,
    table: &Table,
) -> anyhow::Result<Chosen> {
    if event == Event::Release {
        return release(planned);
    }
    let mut notes = Vec::new();
    let mut reasons = Reasons::new();
    let majors: BTreeSet<u16> = planned.iter().map(|p| p.variant.release.major).collect();
    for major in majors {
        let of: Vec<&Planned> = planned.iter().filter(|p| p.variant.release.major == major).collect();
        Major { number: major, planned: of, table }.choose(event, touches, &mut reasons, &mut notes);
    }
    let choices = planned.iter().filter_map(|p| choice(p, reasons.get(&p.variant.name)?)).collect();
    Ok(Chosen { choices, notes })
}

/// Everything, once for every variant that is not served by another.
fn release(planned: &[Planned]) -> anyhow::Result<Chosen> {
    let variants: Vec<Variant> = planned.iter().map(|p| p.variant.clone()).collect();
    let serves = serve::artifacts(&variants)?;
    let mut chosen = Chosen { choices: Vec::new(), notes: Vec::new() };
    for p in planned {
        let name = &p.variant.name;
        if let Some(serves) = serves.get(name) {
            chosen.choices.push(Choice {
                variant: p.variant.clone(),
                plan: p.plan.clone(),
                whole: true,
                serves: serves.clone(),
                why: vec![format!("everything, once for cuda {}", p.variant.release)],
            });
        } else if let Some(server) =
            planned.iter().find(|s| p.variant.served_by.as_ref() == Some(&s.variant.name))
        {
            let lost = serve::lost(&p.plan, &server.plan);
            if !lost.is_empty() {
                return Err(Failure::config(format!(
                    "variants/{name}.toml: served-by: {} has no code for {}, which {name} has",
                    server.variant.name,
                    lost.join(", ")
                ))
                .hint("remove served-by, or build these capabilities for both")
                .into());
            }
            chosen.notes.push(format!(
                "{name}: not built, the artifact of {} serves it (served-by); from driver {} on, its own would be from {} on",
                server.variant.name,
                driver::driver(&server.plan).floor(),
                driver::driver(&p.plan).floor()
            ));
        }
    }
    Ok(chosen)
}

/// The units that there are reasons for, and the reasons by the units that they are of.
fn choice(planned: &Planned, reasons: &BTreeMap<String, String>) -> Option<Choice> {
    let units: Vec<UnitPlan> =
        planned.plan.units.iter().filter(|unit| reasons.contains_key(&unit.label())).cloned().collect();
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (unit, reason) in reasons {
        by_reason.entry(reason).or_default().push(unit);
    }
    let why = by_reason.into_iter().map(|(reason, units)| match units.as_slice() {
        [unit] => format!("{unit}: {reason}"),
        units => format!("{} units: {reason}", units.len()),
    });
    Some(Choice {
        variant: planned.variant.clone(),
        whole: units.len() == planned.plan.units.len(),
        plan: Plan { units, ..planned.plan.clone() },
        serves: vec![planned.variant.name.clone()],
        why: why.collect(),
    })
}

/// The variants of one CUDA major, the oldest first: what one of them compiles the others need not.
struct Major<'a> {
    number: u16,
    planned: Vec<&'a Planned>,
    table: &'a Table,
}

impl Major<'_> {
    /// Adds what `event` asks for.
    fn choose(
        &self,
        event: Event,
        touches: &BTreeMap<String, Touch>,
        reasons: &mut Reasons,
        notes: &mut Vec<String>,
    ) {
        for section in self.sections() {
            let Some(newest) = self.newest(&section) else {
                notes.push(self.without(&section));
                continue;
            };
            if event == Event::Main {
                let why = format!("all of section {section}, once for cuda {}", self.number);
                newest.plan.section_units(&section).for_each(|unit| add(reasons, newest, unit, &why));
            } else if let Some(unit) = self.cheapest(newest.plan.section_units(&section)) {
                let why = format!("the least of section {section} for cuda {}", self.number);
                add(reasons, newest, unit, &why);
            }
        }
        if event == Event::Pr {
            for (file, touch) in touches {
                self.touched(file, touch, reasons);
            }
        }
    }

    /// Adds what a changed file touches.
    fn touched(&self, file: &str, touch: &Touch, reasons: &mut Reasons) {
        match touch {
            Touch::Nothing(_) => {}
            Touch::Everything(what) => {
                let why = format!("the least of its family: {file} {what}");
                for section in self.sections() {
                    if let Some(newest) = self.newest(&section) {
                        self.sample(newest, Some(&section), &why, reasons);
                    }
                }
            }
            Touch::Families(families) => {
                for section in self.sections() {
                    let Some(newest) = self.newest(&section) else { continue };
                    let units = newest.plan.section_units(&section);
                    for unit in units.filter(|unit| families.contains(&unit.family)) {
                        add(reasons, newest, unit, &format!("comes from {file}"));
                    }
                }
            }
            Touch::Variant(name) => {
                if let Some(planned) = self.planned.iter().find(|p| p.variant.name == *name) {
                    let why = format!("the least of its family: {file} defines the variant");
                    self.sample(planned, None, &why, reasons);
                }
            }
            Touch::Config => {
                let mut seen = BTreeSet::new();
                for planned in self.planned.iter().rev() {
                    let Some(before) = &planned.before else {
                        let what = "changes nobody knows what without --diff, or all of it";
                        return self.touched(file, &Touch::Everything(what), reasons);
                    };
                    for unit in planned.plan.units.iter().filter(|unit| differs(unit, before)) {
                        if seen.insert(unit.label()) {
                            add(reasons, planned, unit, &format!("{file} changes it"));
                        }
                    }
                }
            }
        }
    }

    /// The cheapest unit of each family, of one section or of all.
    fn sample(&self, planned: &Planned, section: Option<&str>, why: &str, reasons: &mut Reasons) {
        let within = |unit: &&UnitPlan| section.is_none_or(|section| unit.section == section);
        let families: BTreeSet<&str> =
            planned.plan.units.iter().filter(within).map(|unit| unit.family.as_str()).collect();
        for family in families {
            let units = planned.plan.units.iter().filter(within).filter(|unit| unit.family == family);
            if let Some(unit) = self.cheapest(units) {
                add(reasons, planned, unit, why);
            }
        }
    }

    fn cheapest<'b>(&self, units: impl Iterator<Item = &'b UnitPlan>) -> Option<&'b UnitPlan> {
        let cost = |unit: &UnitPlan| predict::unit(unit, self.table).cpu_seconds;
        units.min_by(|a, b| cost(a).total_cmp(&cost(b)).then_with(|| a.label().cmp(&b.label())))
    }

    /// Every section, in build.toml's order.
    fn sections(&self) -> Vec<String> {
        self.planned[0].plan.sections.iter().map(|section| section.name.clone()).collect()
    }

    /// The variant of the latest release that builds a section: it knows the most capabilities.
    fn newest(&self, section: &str) -> Option<&Planned> {
        self.planned.iter().rev().find(|p| p.plan.section_units(section).next().is_some()).copied()
    }

    fn without(&self, section: &str) -> String {
        let plans = self.planned.iter().rev().map(|p| &p.plan);
        let of = plans.flat_map(|plan| &plan.sections).filter(|of| of.name == section);
        let mut decisions = of.flat_map(|of| &of.families).map(|(_, decision)| decision);
        let reason = decisions.find_map(|decision| match decision {
            Decision::Skip(reason) => Some(format!(": {reason}")),
            Decision::Build | Decision::Share { .. } => None,
        });
        let reason = reason.unwrap_or_default();
        let names: Vec<&str> = self.planned.iter().map(|p| p.variant.name.as_str()).collect();
        format!("section {section}: not built for cuda {} by {}{reason}", self.number, names.join(", "))
    }
}

fn add(reasons: &mut Reasons, planned: &Planned, unit: &UnitPlan, why: &str) {
    let of_variant = reasons.entry(planned.variant.name.clone()).or_default();
    of_variant.entry(unit.label()).or_insert_with(|| why.to_owned());
}

/// Whether a unit was not compiled the same way before.
fn differs(unit: &UnitPlan, before: &Plan) -> bool {
    let names = |unit: &UnitPlan| unit.kernels.iter().map(|k| k.name.clone()).collect::<Vec<String>>();
    !before.units.iter().any(|old| {
        old.label() == unit.label()
            && old.gencodes == unit.gencodes
            && old.flags == unit.flags
            && names(old) == names(unit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ci::jobs::tests::{config, plan_of, planned};
    use crate::ci::touched;
    use crate::{catalog, cost};

    fn chosen(event: Event, variants: &[&str], changed: &[&str]) -> Chosen {
        let planned: Vec<Planned> = variants.iter().map(|name| planned(name)).collect();
        let files: Vec<String> = changed.iter().map(|file| (*file).to_owned()).collect();
        let touches = touched::touched(&files, catalog::catalog().unwrap()).unwrap();
        choose(&planned, event, &touches, cost::table().unwrap()).unwrap()
    }

    /// Variants, and the sections and families that units are compiled of.
    fn families(chosen: &Chosen) -> BTreeMap<String, Vec<String>> {
        let of = |choice: &Choice| {
            let mut names: Vec<String> = choice.plan.units.iter().map(|u| u.family.clone()).collect();
            names.dedup();
            (choice.variant.name.clone(), names)
        };
        chosen.choices.iter().map(of).collect()
    }

    #[test]
    fn pr_has_a_unit_of_every_section_for_every_major() {
        let chosen = chosen(Event::Pr, &["cu126", "cu128", "cu130"], &["README.md"]);
        let names: Vec<&str> = chosen.choices.iter().map(|c| c.variant.name.as_str()).collect();
        assert_eq!(names, ["cu128", "cu130"]);
        for choice in &chosen.choices {
            let sections: Vec<&str> = choice.plan.units.iter().map(|u| u.section.as_str()).collect();
            assert_eq!(sections, ["core", "hopper", "blackwell"], "{}", choice.variant.name);
            assert!(!choice.whole);
        }
        assert!(chosen.notes.is_empty());
    }

    #[test]
    fn section_that_a_major_cannot_build_is_told_with_the_reason() {
        let chosen = chosen(Event::Pr, &["cu126"], &[]);
        assert_eq!(chosen.choices[0].plan.units.len(), 2);
        assert!(
            chosen.notes[0]
                .starts_with("section blackwell: not built for cuda 12 by cu126: needs cuda 12.8 or later"),
            "{}",
            chosen.notes[0]
        );
    }

    #[test]
    fn pr_has_every_unit_of_what_it_touches() {
        let of = |file: &str| chosen(Event::Pr, &["cu126", "cu128", "cu130"], &[file]);
        let fna = of("templates/cuda/fna/instances.toml");
        for choice in &fna.choices {
            let all = planned(&choice.variant.name).plan.units.iter().filter(|u| u.family == "fna").count();
            assert_eq!(choice.plan.units.iter().filter(|u| u.family == "fna").count(), all);
            assert_eq!(choice.plan.units.len(), all + 3);
        }
        let everywhere = families(&of("crates/nattenc/src/link/mod.rs"));
        let all = catalog::catalog().unwrap().families.len();
        assert_eq!(everywhere["cu130"].len(), all);
        assert!(!everywhere.contains_key("cu126"));
        let variant = families(&of("variants/cu126.toml"));
        // Four families are Blackwell's.
        assert_eq!(variant["cu126"].len(), all - 4, "{variant:?}");
    }

    #[test]
    fn build_toml_touches_the_units_that_it_decides_otherwise() {
        let mut one = planned("cu130");
        let before = config(|text| {
            text.replace(
                "cuda-capabilities = [\"9.0a\"]",
                "cuda-capabilities = [\"9.0a\"]\ncuda-flags = [\"-DX\"]",
            )
        });
        one.before = Some(plan_of(&before, "cu130"));
        let touches = BTreeMap::from([("build.toml".to_owned(), Touch::Config)]);
        let table = cost::table().unwrap();
        let chosen = choose(&[one.clone()], Event::Pr, &touches, table).unwrap();
        let hopper = one.plan.section_units("hopper").count();
        assert_eq!(chosen.choices[0].plan.units.len(), hopper + 2);
        // Nothing to compare with: a sample of every family.
        one.before = None;
        let chosen = choose(&[one], Event::Pr, &touches, table).unwrap();
        assert_eq!(chosen.choices[0].plan.units.len(), catalog::catalog().unwrap().families.len());
    }

    #[test]
    fn main_is_everything_once_for_a_major() {
        let chosen = chosen(Event::Main, &["cu126", "cu128", "cu130"], &[]);
        let names: Vec<&str> = chosen.choices.iter().map(|c| c.variant.name.as_str()).collect();
        assert_eq!(names, ["cu128", "cu130"]);
        assert!(chosen.choices.iter().all(|choice| choice.whole));
    }

    #[test]
    fn release_is_everything_once_for_a_toolkit_or_for_those_that_are_served() {
        let mut all: Vec<Planned> = ["cu126", "cu128", "cu130"].map(planned).into();
        let table = cost::table().unwrap();
        let release = |all: &[Planned]| choose(all, Event::Release, &BTreeMap::new(), table);
        assert_eq!(release(&all).unwrap().choices.len(), 3);
        all[0].variant.served_by = Some("cu128".to_owned());
        let chosen = release(&all).unwrap();
        assert_eq!(chosen.choices[0].serves, ["cu128", "cu126"]);
        assert_eq!(chosen.choices.len(), 2);
        let note = &chosen.notes[0];
        assert!(
            note.contains("cu128 serves it (served-by); from driver 550 on, its own would be from 525"),
            "{note}"
        );
        // The server does not build what the other does.
        let fewer = config(|text| text.replace("    \"9.0\",\n", ""));
        all[1].plan = plan_of(&fewer, "cu128");
        let error = release(&all).unwrap_err().to_string();
        assert!(error.contains("cu128 has no code for core/9.0, which cu126 has"), "{error}");
    }
}
