//! What a build holds and what it leaves out, and why: sections, capabilities, units, kernels.
//!
//! Pure: from the configuration, a variant, a request and the kernel catalog to a [`Plan`]. No disk,
//! clock, environment or process. Everything asked for that is not built is a [`Skip`] with a reason.

pub mod capability;
pub mod describe;
pub mod diff;
pub mod explain;
pub mod gencode;
pub mod policy;
pub mod sample;
pub mod shard;
pub mod share;
#[cfg(test)]
mod tests;
pub mod totals;

use crate::catalog::{self, Catalog, Family, Kernel};
use crate::config::share::Mode;
use crate::config::{CapabilityEntry, Config, Preset, Release, Section, Selector, Traits, Variant, release};
use crate::failure::Failure;
use capability::{Capability, CapabilityRequest, Suffix, Support};
use gencode::Gencode;
use policy::{Policies, Policy};
use share::{Rules, Sharing};
use std::collections::{BTreeMap, BTreeSet};

/// What the command line narrows a build to. `None` and empty mean: everything.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// The preset whose bundle the other fields override.
    pub preset: Option<String>,
    /// Sections by name.
    pub sections: Option<Vec<String>>,
    /// Families by name.
    pub families: Option<Vec<String>>,
    /// Capabilities instead of those that build.toml lists.
    pub capabilities: Option<Vec<CapabilityRequest>>,
    /// Kernel selectors.
    pub select: Vec<Selector>,
    /// Translation units by name, all where empty.
    pub units: Vec<String>,
    /// How finely families are split, instead of what build.toml says.
    pub policy: Option<Policy>,
    /// Which pairs of capabilities share PTX.
    pub sharing: Sharing,
    /// Whether every unit is compiled for every capability, dead kernels too, as upstream does.
    pub unpruned: bool,
}

/// Whether a thing is in the build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It is compiled.
    Build,
    /// It is assembled from the PTX of another capability.
    Share {
        /// That capability.
        from: Capability,
        /// What is promised of the code.
        mode: Mode,
    },
    /// It is left out, for this reason.
    Skip(String),
}

/// A capability of a section or a unit, and what was decided about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapabilityPlan {
    /// What is asked for.
    pub request: CapabilityRequest,
    /// What becomes of it.
    pub decision: Decision,
    /// What to know beside it: why a capability that could share does not, or not everywhere.
    pub note: Option<String>,
}

impl CapabilityPlan {
    /// One with nothing to note.
    pub fn new(request: CapabilityRequest, decision: Decision) -> Self {
        CapabilityPlan { request, decision, note: None }
    }

    /// Whether there is code for it.
    pub fn built(&self) -> bool {
        !matches!(self.decision, Decision::Skip(_))
    }
}

/// Something left out, with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skip {
    /// What: `section hopper`, `capability blackwell/10.3a`, `family core/fmha`, `selected kernels`.
    pub what: String,
    /// Why.
    pub reason: String,
}

/// A section with what was decided about its parts.
#[derive(Debug, Clone)]
pub struct SectionPlan {
    /// Its name in build.toml.
    pub name: String,
    /// Every capability that was asked for.
    pub capabilities: Vec<CapabilityPlan>,
    /// Every family that the section lists.
    pub families: Vec<(String, Decision)>,
}

impl SectionPlan {
    /// The capabilities that there is code for.
    pub fn built(&self) -> Vec<CapabilityRequest> {
        self.capabilities.iter().filter(|c| c.built()).map(|c| c.request).collect()
    }
}

/// One translation unit to compile.
#[derive(Debug, Clone)]
pub struct UnitPlan {
    /// `fna_011`.
    pub name: String,
    /// The section that it belongs to.
    pub section: String,
    /// Its family.
    pub family: String,
    /// The kernels that are rendered into it, upstream's order.
    pub kernels: Vec<&'static Kernel>,
    /// The capabilities of its section, and what becomes of each here.
    pub capabilities: Vec<CapabilityPlan>,
    /// What it is compiled for.
    pub gencodes: Vec<Gencode>,
    /// The section's own nvcc flags.
    pub flags: Vec<String>,
}

impl UnitPlan {
    /// `core/fna_011`, as logs and errors name it.
    pub fn label(&self) -> String {
        format!("{}/{}", self.section, self.name)
    }
}

/// Kernels of the canonical rendering, by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Units of the canonical rendering of the families that are built.
    pub canonical_units: usize,
    /// Kernels of the canonical rendering of the families that are built.
    pub canonical_kernels: usize,
    /// Kernels that the selection left out.
    pub unselected: usize,
    /// Selected kernels that no planned capability can run.
    pub dead: usize,
    /// Selected kernels that a planned capability can run.
    pub live: usize,
    /// (unit, capability) pairs that there is machine code for.
    pub pairs: usize,
    /// Those of them that are assembled from another capability's PTX.
    pub shared_pairs: usize,
    /// (unit, capability) pairs left out because none of the unit's kernels runs there.
    pub dead_pairs: usize,
    /// (unit, capability) pairs of the canonical rendering, dead ones too: everything everywhere.
    pub canonical_pairs: usize,
}

/// The whole decision.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The variant.
    pub variant: String,
    /// The toolkit release that it was planned for.
    pub release: Release,
    /// NATTEN's version.
    pub natten: String,
    /// How the request reads, for reasons: `preset starter`, or `the whole of build.toml`.
    pub scope: String,
    /// Which pairs of capabilities share PTX.
    pub sharing: Sharing,
    /// Whether what no device can run is left out.
    pub pruned: bool,
    /// Sections in build.toml's order.
    pub sections: Vec<SectionPlan>,
    /// Units in order of section, family, index.
    pub units: Vec<UnitPlan>,
    /// All that was left out.
    pub skips: Vec<Skip>,
    /// Totals.
    pub counts: Counts,
    /// Things a user should know that stop nothing.
    pub warnings: Vec<String>,
}

/// The backends that an artifact answers for, each with the families that make it.
pub const BACKENDS: &[(&str, &[&str])] = &[
    ("reference", &["reference"]),
    ("token_permute", &["token_permute"]),
    ("compute_delta", &["compute_delta"]),
    ("merge", &["merge"]),
    ("fna", &["fna"]),
    ("fmha", &["fmha"]),
    ("hopper_fna", &["hopper_fna", "hopper_fna_bwd"]),
    ("hopper_fmha", &["hopper_fmha", "hopper_fmha_bwd"]),
    ("blackwell_fna", &["blackwell_fna", "blackwell_fna_bwd"]),
    ("blackwell_fmha", &["blackwell_fmha", "blackwell_fmha_bwd"]),
];

/// What was decided about one backend.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct BackendPlan {
    /// Whether the build holds any of its kernels.
    pub built: bool,
    /// The capabilities that they are compiled for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// Why it is not in the build.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Plan {
    /// How many kernels are compiled.
    pub fn kernels(&self) -> usize {
        self.units.iter().map(|u| u.kernels.len()).sum()
    }

    /// The units of a section.
    pub fn section_units<'a>(&'a self, section: &'a str) -> impl Iterator<Item = &'a UnitPlan> {
        self.units.iter().filter(move |u| u.section == section)
    }

    /// What was decided about every backend, by name.
    pub fn backends(&self) -> BTreeMap<String, BackendPlan> {
        BACKENDS
            .iter()
            .map(|(backend, families)| {
                let mut capabilities: Vec<String> = Vec::new();
                for unit in self.units.iter().filter(|u| families.contains(&u.family.as_str())) {
                    for row in unit.capabilities.iter().filter(|c| c.built()) {
                        let text = row.request.to_string();
                        if !capabilities.contains(&text) {
                            capabilities.push(text);
                        }
                    }
                }
                let built = !capabilities.is_empty();
                let reason = (!built).then(|| self.reason_without(families));
                ((*backend).to_owned(), BackendPlan { built, capabilities, reason })
            })
            .collect()
    }

    /// Why no unit of these families is in the plan.
    fn reason_without(&self, families: &[&str]) -> String {
        for section in &self.sections {
            for (family, decision) in &section.families {
                if let (true, Decision::Skip(reason)) = (families.contains(&family.as_str()), decision) {
                    return format!("section {}: {reason}", section.name);
                }
            }
        }
        format!("no section of build.toml lists family {}", families.join(" or "))
    }
}

/// Plans `variant` with a toolkit of `release`; `known` is what that toolkit's nvcc lists, where there is one.
///
/// Fails with class configuration on unknown names, and where a required section's capability vanishes
/// without a gate that explains it.
pub fn plan(
    config: &Config,
    variant: &Variant,
    known: Option<&[Capability]>,
    request: &Request,
    catalog: &'static Catalog,
) -> anyhow::Result<Plan> {
    let scope = Scope::new(config, request)?;
    let mut plan = Plan {
        variant: variant.name.clone(),
        release: variant.release,
        natten: config.natten.clone(),
        scope: scope.text.clone(),
        sharing: request.sharing,
        pruned: !request.unpruned,
        sections: Vec::new(),
        units: Vec::new(),
        skips: Vec::new(),
        counts: Counts::default(),
        warnings: Vec::new(),
    };
    if known.is_none() {
        // With a toolkit, the toolkit said so already.
        plan.warnings.extend(release::known(variant.release)?);
    }
    if config.natten != catalog::NATTEN {
        plan.warnings.push(format!(
            "natten {}: the kernel tables of this nattenc are those of {}; `nattenc regen --oracle` compares them with its generators",
            config.natten,
            catalog::NATTEN
        ));
    }
    let asked = Asked { config, variant, known, scope, catalog };
    let mut problems = Vec::new();
    for section in &config.sections {
        let mut section_plan = asked.section(section, &mut problems, &mut plan.warnings)?;
        add_units(&mut plan, section, &section_plan, &asked.scope, catalog)?;
        settle(&mut section_plan, &plan, &asked.scope);
        plan.sections.push(section_plan);
    }
    if !problems.is_empty() {
        let hint = if asked.scope.capabilities.is_some() {
            "choose other capabilities or another variant; `nattenc plan` shows what each variant builds"
        } else {
            "add a cuda-minver or cuda-maxver gate to the capability, take it out of build.toml, or choose another variant"
        };
        problems.dedup();
        return Err(Failure::config(problems.join("\n")).hint(hint).into());
    }
    check_units(&plan, config)?;
    check_selectors(&asked.scope, catalog)?;
    let listed = plan.sections.iter().flat_map(|s| &s.families).filter_map(|(name, _)| catalog.family(name));
    check_unit_names(&asked.scope.units, &asked.scope, listed)?;
    collect_skips(&mut plan);
    note_reach(&mut plan);
    if plan.units.is_empty() {
        let reasons: Vec<String> = plan.skips.iter().map(|s| format!("  {}: {}", s.what, s.reason)).collect();
        return Err(Failure::config(format!(
            "variant {}: nothing is left to build of {}\n{}",
            plan.variant,
            plan.scope,
            reasons.join("\n")
        ))
        .hint("run `nattenc plan` without --select, --family and --capability to see what there is")
        .into());
    }
    Ok(plan)
}

/// The request after its preset was applied.
#[derive(Default)]
struct Scope {
    sections: Option<Vec<String>>,
    families: Option<Vec<String>>,
    capabilities: Option<Vec<CapabilityRequest>>,
    /// Who asked for those capabilities: `--capability`, or a preset with its place.
    asker: String,
    select: Vec<Selector>,
    units: Vec<String>,
    policies: Policies,
    text: String,
}

impl Scope {
    fn new(config: &Config, request: &Request) -> anyhow::Result<Scope> {
        let preset: Option<&Preset> = match &request.preset {
            None => None,
            Some(name) => Some(config.presets.get(name).ok_or_else(|| {
                unknown(
                    "preset",
                    name,
                    config.presets.keys().map(String::as_str),
                    "a [preset.<name>] table of build.toml",
                )
            })?),
        };
        let pick = |own: &Option<Vec<String>>, bundled: Option<&Option<Vec<String>>>| {
            own.clone().or_else(|| bundled.cloned().flatten())
        };
        let sections = pick(&request.sections, preset.map(|p| &p.sections));
        let families = pick(&request.families, preset.map(|p| &p.families));
        for name in sections.iter().flatten() {
            if !config.sections.iter().any(|s| s.name == *name) {
                let known = config.sections.iter().map(|s| s.name.as_str());
                return Err(unknown("section", name, known, "a [section.<name>] table of build.toml"));
            }
        }
        for name in families.iter().flatten() {
            if !config.sections.iter().any(|s| s.families.contains(name)) {
                let known = config.sections.iter().flat_map(|s| s.families.iter().map(String::as_str));
                return Err(unknown("family", name, known, "a family that a section of build.toml lists"));
            }
        }
        let capabilities =
            request.capabilities.clone().or_else(|| preset.and_then(|p| p.capabilities.clone()));
        let select = if request.select.is_empty() {
            preset.map_or_else(Vec::new, |p| p.select.clone())
        } else {
            request.select.clone()
        };
        let mut parts = Vec::new();
        if let Some(name) = &request.preset {
            parts.push(format!("preset {name}"));
        }
        for (flag, given) in [
            ("--section", request.sections.is_some()),
            ("--family", request.families.is_some()),
            ("--capability", request.capabilities.is_some()),
            ("--select", !request.select.is_empty()),
            ("--unit", !request.units.is_empty()),
        ] {
            if given {
                parts.push(flag.to_owned());
            }
        }
        let text = if parts.is_empty() { "the whole of build.toml".to_owned() } else { parts.join(" with ") };
        let policies = request.policy.map_or_else(|| config.policies.clone(), Policies::only);
        let units = request.units.clone();
        let asker = match preset {
            Some(preset) if request.capabilities.is_none() => {
                format!("{}: capabilities of [preset.{}]", preset.at, preset.name)
            }
            _ => "--capability".to_owned(),
        };
        Ok(Scope { sections, families, capabilities, asker, select, units, policies, text })
    }

    /// Whether a kernel of that unit is wanted.
    fn takes(&self, unit: &str, family: &str, kernel: &Kernel) -> bool {
        (self.units.is_empty() || self.units.iter().any(|u| u == unit)) && self.selects(family, kernel)
    }

    fn selects(&self, family: &str, kernel: &Kernel) -> bool {
        crate::config::selected(&self.select, &traits(family, kernel))
    }
}

/// What selectors can ask of a kernel.
fn traits<'a>(family: &'a str, kernel: &'a Kernel) -> Traits<'a> {
    Traits {
        family,
        dim: Some(kernel.rank).filter(|rank| *rank > 0),
        dtype: Some(kernel.dtype.short()),
        direction: Some(kernel.direction.word()),
        causal: Some(kernel.causal.as_slice()).filter(|mask| !mask.is_empty()),
        head_dim: kernel.tiles.as_ref().and_then(|tiles| u16::try_from(tiles.head_dim).ok()),
    }
}

/// The failure for a name that nothing declares, with the nearest one that exists.
pub fn unknown<'a>(
    kind: &str,
    name: &str,
    known: impl Iterator<Item = &'a str>,
    what: &str,
) -> anyhow::Error {
    let known: Vec<&str> = known.collect();
    let failure = Failure::config(format!("{kind} {name:?} is not {what}\n  known: {}", known.join(", ")));
    match crate::config::nearest(name, known.iter().copied()) {
        Some(nearest) => failure.hint(format!("did you mean {nearest:?}?")).into(),
        None => failure.hint(format!("use one of: {}", known.join(", "))).into(),
    }
}

/// Why a gate keeps a release out, if it does.
fn gate(minver: Option<Release>, maxver: Option<Release>, release: Release, variant: &str) -> Option<String> {
    if let Some(min) = minver
        && release < min
    {
        return Some(format!("needs cuda {min} or later, variant {variant} has {release}"));
    }
    if let Some(max) = maxver
        && release > max
    {
        return Some(format!("needs cuda {max} or earlier, variant {variant} has {release}"));
    }
    None
}

/// What one plan is made from.
struct Asked<'a> {
    config: &'a Config,
    variant: &'a Variant,
    known: Option<&'a [Capability]>,
    scope: Scope,
    catalog: &'static Catalog,
}

impl Asked<'_> {
    /// Decides about a section's capabilities and families.
    fn section(
        &self,
        section: &Section,
        problems: &mut Vec<String>,
        warnings: &mut Vec<String>,
    ) -> anyhow::Result<SectionPlan> {
        let declared = self.variant.capabilities.get(&section.name).unwrap_or(&section.capabilities);
        let unselected = self.scope.sections.as_ref().is_some_and(|s| !s.contains(&section.name));
        let section_gate = gate(section.minver, section.maxver, self.variant.release, &self.variant.name);
        let wanted = wanted_capabilities(self.config, section, self.variant, declared, &self.scope)?;

        let mut capabilities = Vec::new();
        for (request, entry) in wanted {
            let decision = if unselected {
                Decision::Skip(format!("section {} is not selected ({})", section.name, self.scope.text))
            } else if let Some(reason) = &section_gate {
                Decision::Skip(format!("section {} {reason}", section.name))
            } else if let Some(reason) =
                entry.and_then(|e| gate(e.minver, e.maxver, self.variant.release, &self.variant.name))
            {
                Decision::Skip(format!("capability {request} {reason}"))
            } else {
                match verdict(request, self.variant, self.known) {
                    Verdict::Build => Decision::Build,
                    Verdict::Warn(warning) => {
                        warnings.push(warning);
                        Decision::Build
                    }
                    Verdict::Vanishes(reason) => {
                        match (&self.scope.capabilities, entry) {
                            (Some(_), _) => problems.push(format!("{}: {reason}", self.scope.asker)),
                            (None, Some(entry)) if section.required => problems.push(format!(
                                "{}: section {}: {reason}; no gate of build.toml explains that it is left out",
                                entry.at, section.name
                            )),
                            _ => {}
                        }
                        Decision::Skip(reason)
                    }
                }
            };
            capabilities.push(CapabilityPlan::new(request, decision));
        }

        if section.required && self.scope.capabilities.is_none() {
            self.check_kernels(section, declared, &capabilities, problems);
        }
        let any = capabilities.iter().any(CapabilityPlan::built);
        let families = section
            .families
            .iter()
            .map(|family| {
                let decision = if unselected {
                    Decision::Skip(format!("not selected ({})", self.scope.text))
                } else if self.scope.families.as_ref().is_some_and(|f| !f.contains(family)) {
                    Decision::Skip(format!("family {family} is not selected ({})", self.scope.text))
                } else if self.catalog.family(family).is_none() {
                    Decision::Skip(format!("family {family} has no templates in this release of nattenc"))
                } else if let Some(reason) = &section_gate {
                    Decision::Skip(reason.clone())
                } else if !any {
                    Decision::Skip(no_capability(&capabilities, &self.scope.text))
                } else {
                    Decision::Build
                };
                (family.clone(), decision)
            })
            .collect();
        Ok(SectionPlan { name: section.name.clone(), capabilities, families })
    }
}

impl Asked<'_> {
    /// A declared capability that no kernel of the section's families runs on is a mistake that would
    /// otherwise vanish in silence.
    fn check_kernels(
        &self,
        section: &Section,
        declared: &[CapabilityEntry],
        decided: &[CapabilityPlan],
        problems: &mut Vec<String>,
    ) {
        let families: Vec<&Family> = section.families.iter().filter_map(|f| self.catalog.family(f)).collect();
        if families.is_empty() {
            return;
        }
        for (entry, _) in declared.iter().zip(decided).filter(|(_, row)| row.built()) {
            let number = entry.request.capability.number();
            if !families.iter().any(|f| f.kernels().any(|k| k.live_on(number))) {
                problems.push(format!(
                    "{}: section {}: no kernel of its families, at {}, runs on {}: {}",
                    entry.at,
                    section.name,
                    section.at,
                    entry.request,
                    section.families.join(", ")
                ));
            }
        }
    }
}

fn no_capability(capabilities: &[CapabilityPlan], scope: &str) -> String {
    match capabilities.iter().find_map(|c| if let Decision::Skip(r) = &c.decision { Some(r) } else { None }) {
        Some(reason) => reason.clone(),
        None => format!("none of its capabilities is selected ({scope})"),
    }
}

/// The capabilities that a section is asked for, each with the entry that declares it.
fn wanted_capabilities<'a>(
    config: &Config,
    section: &Section,
    variant: &Variant,
    declared: &'a [CapabilityEntry],
    scope: &Scope,
) -> anyhow::Result<Vec<(CapabilityRequest, Option<&'a CapabilityEntry>)>> {
    let Some(asked) = &scope.capabilities else {
        return Ok(declared.iter().map(|e| (e.request, Some(e))).collect());
    };
    let mut wanted = Vec::new();
    for request in asked {
        let declares =
            |list: &[CapabilityEntry]| list.iter().any(|e| e.request.capability == request.capability);
        let entry = declared.iter().find(|e| e.request.capability == request.capability);
        if entry.is_some() {
            wanted.push((*request, entry));
            continue;
        }
        let elsewhere = config
            .sections
            .iter()
            .any(|s| declares(variant.capabilities.get(&s.name).unwrap_or(&s.capabilities)));
        if elsewhere {
            continue;
        }
        // A capability that no section lists goes to the sections whose own are of its kind: plain
        // ones to sections of plain ones, `a` and `f` to sections that list the same number.
        let kin = |e: &CapabilityEntry| match request.capability.suffix {
            Suffix::None => e.request.capability.suffix == Suffix::None,
            Suffix::A | Suffix::F => {
                e.request.capability.suffix != Suffix::None
                    && e.request.capability.number() == request.capability.number()
            }
        };
        if declared.iter().any(kin) {
            wanted.push((*request, None));
            continue;
        }
        let takers = config.sections.iter().any(|s| s.capabilities.iter().any(kin));
        if !takers {
            let known: BTreeSet<String> = config
                .sections
                .iter()
                .flat_map(|s| s.capabilities.iter().map(|e| e.request.capability.to_string()))
                .collect();
            return Err(Failure::config(format!(
                "{} {request}: no section of {} takes it\n  declared: {}",
                scope.asker,
                section.at.file.display(),
                known.into_iter().collect::<Vec<_>>().join(", ")
            ))
            .hint("choose a declared capability, or add this one to a section of build.toml")
            .into());
        }
    }
    Ok(wanted)
}

/// What to do with a capability that no gate keeps out.
enum Verdict {
    Build,
    Warn(String),
    Vanishes(String),
}

fn verdict(request: CapabilityRequest, variant: &Variant, known: Option<&[Capability]>) -> Verdict {
    let capability = request.capability;
    let support = capability::support(capability, variant.release, known.unwrap_or_default());
    let reason = support.reason(capability, variant.release);
    match support {
        Support::Yes => Verdict::Build,
        // Without a compiler to ask, the table alone decides.
        Support::NotListed if known.is_none() => Verdict::Build,
        Support::OnlyCompilerKnows => Verdict::Warn(reason),
        // A compiler newer than the table may know what the table does not.
        Support::Unknown if known.is_none() && release::known(variant.release).is_ok_and(|w| w.is_some()) => {
            Verdict::Warn(format!(
                "{capability} is not known to nattenc: nvcc {} decides whether it can be built",
                variant.release
            ))
        }
        Support::TooOld(_) | Support::Dropped(..) | Support::NotListed | Support::Unknown => {
            Verdict::Vanishes(reason)
        }
    }
}

fn add_units(
    plan: &mut Plan,
    section: &Section,
    decided: &SectionPlan,
    scope: &Scope,
    catalog: &'static Catalog,
) -> anyhow::Result<()> {
    let requests = decided.built();
    if requests.is_empty() {
        return Ok(());
    }
    for (name, decision) in &decided.families {
        let Some(family) = catalog.family(name) else { continue };
        if *decision == Decision::Build {
            add_family(plan, section, family, &requests, scope)?;
        }
    }
    Ok(())
}

fn add_family(
    plan: &mut Plan,
    section: &Section,
    family: &'static Family,
    requests: &[CapabilityRequest],
    scope: &Scope,
) -> anyhow::Result<()> {
    let rules = Rules { pairs: &section.share, sharing: plan.sharing, prune: plan.pruned };
    for (index, groups) in scope.policies.of(&family.name).split(family)?.into_iter().enumerate() {
        let unit = family.unit_name(index);
        let all: Vec<&'static Kernel> = groups.iter().flat_map(|g| &g.kernels).collect();
        let selected: Vec<&'static Kernel> =
            all.iter().copied().filter(|k| scope.takes(&unit, &family.name, k)).collect();
        let live: Vec<&'static Kernel> = selected
            .iter()
            .copied()
            .filter(|k| requests.iter().any(|r| k.live_on(r.capability.number())))
            .collect();
        plan.counts.canonical_units += 1;
        plan.counts.canonical_pairs += requests.len();
        plan.counts.canonical_kernels += all.len();
        plan.counts.unselected += all.len() - selected.len();
        plan.counts.dead += selected.len() - live.len();
        plan.counts.live += live.len();
        let kernels = if plan.pruned { live } else { selected };
        if kernels.is_empty() {
            continue;
        }
        let capabilities = share::unit(&family.name, requests, &kernels, rules);
        let count =
            |wanted: fn(&Decision) -> bool| capabilities.iter().filter(|c| wanted(&c.decision)).count();
        plan.counts.pairs += count(|d| !matches!(d, Decision::Skip(_)));
        plan.counts.shared_pairs += count(|d| matches!(d, Decision::Share { .. }));
        plan.counts.dead_pairs += count(|d| matches!(d, Decision::Skip(_)));
        plan.units.push(UnitPlan {
            name: unit,
            section: section.name.clone(),
            family: family.name.clone(),
            kernels,
            gencodes: share::gencodes(&capabilities),
            capabilities,
            flags: section.flags.clone(),
        });
    }
    Ok(())
}

/// Makes a section's decisions true of its units: what no unit holds is not built, and what units share
/// is shared.
fn settle(section: &mut SectionPlan, plan: &Plan, scope: &Scope) {
    let units: Vec<&UnitPlan> = plan.section_units(&section.name).collect();
    for capability in section.capabilities.iter_mut().filter(|c| c.built()) {
        let rows: Vec<&CapabilityPlan> = units
            .iter()
            .flat_map(|u| &u.capabilities)
            .filter(|c| c.request == capability.request && c.built())
            .collect();
        let Some(first) = rows.first() else {
            capability.decision = Decision::Skip(format!("no selected kernel runs on it ({})", scope.text));
            continue;
        };
        let shares = |row: &&&CapabilityPlan| matches!(row.decision, Decision::Share { .. });
        let alone = rows.iter().filter(|r| !shares(r)).count();
        // Of what units are promised, the weakest.
        let promise = |row: &&&CapabilityPlan| match row.decision {
            Decision::Share { mode, .. } => Some(mode),
            _ => None,
        };
        capability.decision = rows.iter().max_by_key(promise).unwrap_or(first).decision.clone();
        let note = rows.iter().find_map(|r| r.note.as_deref());
        capability.note = match note {
            Some(note) if alone < rows.len() => {
                Some(format!("{alone} of {} units compile it on their own: {note}", rows.len()))
            }
            note => note.map(str::to_owned),
        };
    }
    for (family, decision) in section.families.iter_mut().filter(|(_, d)| *d == Decision::Build) {
        if !units.iter().any(|u| u.family == *family) {
            *decision = Decision::Skip(format!(
                "no selected kernel of it runs on a capability of this build ({})",
                scope.text
            ));
        }
    }
}

/// A family is built once: its units have one name and its kernels one place in the dispatch.
fn check_units(plan: &Plan, config: &Config) -> anyhow::Result<()> {
    let mut seen: BTreeMap<&str, &UnitPlan> = BTreeMap::new();
    for unit in &plan.units {
        if let Some(first) = seen.insert(&unit.name, unit) {
            let place = |name: &str| config.section(name).map_or_else(String::new, |s| s.at.to_string());
            return Err(Failure::config(format!(
                "family {} would be built twice, for section {} ({}) and section {} ({})",
                unit.family,
                first.section,
                place(&first.section),
                unit.section,
                place(&unit.section)
            ))
            .hint("list the family in one section only, or choose one with --section")
            .into());
        }
    }
    Ok(())
}

/// A selector that no kernel at all can match is a mistake, not an empty wish.
fn check_selectors(scope: &Scope, catalog: &'static Catalog) -> anyhow::Result<()> {
    for selector in &scope.select {
        let one = Scope { select: vec![selector.clone()], ..Scope::default() };
        let known = catalog.families.iter().filter(|f| selector.names(&f.name)).collect::<Vec<_>>();
        if !known.is_empty() && !known.iter().any(|f| f.kernels().any(|k| one.selects(&f.name, k))) {
            return Err(Failure::config(format!("selector {selector} matches no kernel"))
                .hint("see `nattenc plan --json` without it for the kernels that there are")
                .into());
        }
    }
    Ok(())
}

/// A unit that none of the families is split into under the policy is a mistake.
fn check_unit_names<'a>(
    units: &[String],
    scope: &Scope,
    families: impl Iterator<Item = &'a Family>,
) -> anyhow::Result<()> {
    if units.is_empty() {
        return Ok(());
    }
    let mut names: Vec<String> = Vec::new();
    for family in families {
        let count = scope.policies.of(&family.name).split(family)?.len();
        names.extend((0..count).map(|index| family.unit_name(index)));
    }
    let Some(unit) = units.iter().find(|unit| !names.contains(unit)) else { return Ok(()) };
    let failure = Failure::config(format!("--unit: unit {unit:?} is not a unit of any family"));
    let hint = match crate::config::nearest(unit, names.iter().map(String::as_str)) {
        Some(near) => format!("did you mean {near:?}? other policies have other units"),
        None => "see the units in `nattenc plan --json`; other policies have others".to_owned(),
    };
    Err(failure.hint(hint).into())
}

/// Warns where newer devices than those planned for will find no code: without plain PTX nothing runs on
/// a capability of a later major.
fn note_reach(plan: &mut Plan) {
    let built: BTreeSet<CapabilityRequest> = plan.sections.iter().flat_map(SectionPlan::built).collect();
    plan.warnings.extend(built.iter().filter_map(|request| request.note()));
    let forward = built.iter().any(|r| r.ptx && r.capability.suffix == Suffix::None);
    let newest = built.iter().map(|r| r.capability).max_by_key(|c| c.number());
    let known = capability::KNOWN.iter().map(|k| k.capability).max_by_key(|c| c.number());
    if let (Some(newest), Some(known), false) = (newest, known, forward)
        && newest.major < known.major
    {
        plan.warnings.push(format!(
            "no PTX is built and the newest capability is {newest}: devices of {}.0 and later cannot run this artifact; ask for {}.{}+PTX if they should",
            newest.major + 1, newest.major, newest.minor
        ));
    }
}

fn collect_skips(plan: &mut Plan) {
    let mut skips = Vec::new();
    for section in &plan.sections {
        for capability in &section.capabilities {
            if let Decision::Skip(reason) = &capability.decision {
                skips.push(Skip {
                    what: format!("capability {}/{}", section.name, capability.request),
                    reason: reason.clone(),
                });
            }
        }
        for (family, decision) in &section.families {
            if let Decision::Skip(reason) = decision {
                skips
                    .push(Skip { what: format!("family {}/{family}", section.name), reason: reason.clone() });
            }
        }
    }
    if plan.counts.unselected > 0 {
        skips.push(Skip {
            what: format!("{} kernels", plan.counts.unselected),
            reason: format!("not selected ({})", plan.scope),
        });
    }
    if plan.counts.dead > 0 {
        skips.push(Skip {
            what: format!("{} kernels", plan.counts.dead),
            reason: "no planned capability lies in their SM range".to_owned(),
        });
    }
    if plan.counts.dead_pairs > 0 {
        skips.push(Skip {
            what: format!("{} unit-capability pairs", plan.counts.dead_pairs),
            reason: "no kernel of the unit runs on that capability".to_owned(),
        });
    }
    plan.skips = skips;
}
