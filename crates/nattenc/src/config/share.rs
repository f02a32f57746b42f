//! `share`: pairs of capabilities of a section, one of which is assembled from the other's PTX.

use super::place::{Place, Problems, suggestion};
use super::read::Table;
use super::{CapabilityEntry, Selector, Traits};
use crate::plan::capability::{Capability, Suffix};
use std::fmt;
use std::str::FromStr;

/// What is promised of code that is assembled from another capability's PTX.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// It is the code that its own PTX gives: `nattenc verify --share-ptx` proves it.
    Identical,
    /// It runs, as all newer devices run older PTX, and may be other code than its own PTX gives.
    Valid,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "identical" => Ok(Mode::Identical),
            "valid" => Ok(Mode::Valid),
            _ => Err(format!("unknown mode \"{text}\"; {}", suggestion(text, &["identical", "valid"]))),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Identical => "identical",
            Mode::Valid => "valid",
        })
    }
}

/// One entry of `share`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The capability that needs no front end of its own.
    pub capability: Capability,
    /// The capability whose PTX it is assembled from.
    pub from: Capability,
    /// What is promised of the code.
    pub mode: Mode,
    /// The kernels that it is promised of: those that one of these matches; all where there are none.
    pub select: Vec<Selector>,
    /// Where it stands.
    pub at: Place,
}

impl Share {
    /// Whether the promise is made of a kernel.
    pub fn covers(&self, kernel: &Traits<'_>) -> bool {
        self.select.is_empty() || self.select.iter().any(|selector| selector.matches(kernel))
    }

    /// The kernels that it is about, for a sentence.
    pub fn scope(&self) -> String {
        let selectors: Vec<String> = self.select.iter().map(ToString::to_string).collect();
        if selectors.is_empty() { "all kernels".to_owned() } else { selectors.join(" and ") }
    }
}

/// Why PTX of `from` cannot be assembled for `capability`, by the rules of PTX alone.
pub fn impossible(capability: Capability, from: Capability) -> Option<String> {
    if from.number() >= capability.number() {
        return Some(format!("PTX of {from} is not older than {capability}: it serves higher capabilities"));
    }
    if from.ptx_runs_on((capability.major, capability.minor)) {
        return None;
    }
    Some(match from.suffix {
        Suffix::A => format!("PTX of {from} is for {from} alone"),
        Suffix::F => {
            format!("PTX of {from} is for later capabilities of its family, and {capability} is none")
        }
        Suffix::None => format!("PTX of {from} is not for {capability}"),
    })
}

/// Reads `share` of a section.
pub(super) fn read(
    table: &Table<'_, '_>,
    listed: &[CapabilityEntry],
    problems: &mut Problems<'_>,
) -> Vec<Share> {
    let mut pairs: Vec<Share> = Vec::new();
    for entry in
        table.inline_tables("share", "{ cap = \"9.0\", from = \"8.0\", mode = \"identical\" }", problems)
    {
        entry.only(&["cap", "from", "mode", "select"], problems);
        for (key, example) in [("cap", "\"9.0\""), ("from", "\"8.0\""), ("mode", "\"identical\"")] {
            entry.require(key, &format!("{key} = {example}"), problems);
        }
        let capability = entry.parsed::<Capability>("cap", problems);
        let from = entry.parsed::<Capability>("from", problems);
        let mode = entry.parsed::<Mode>("mode", problems);
        let select = entry.parsed_list::<Selector>("select", problems).unwrap_or_default();
        for (key, found) in [("cap", &capability), ("from", &from)] {
            let Some(found) = found else { continue };
            let named = listed.iter().any(|e| e.request.capability == found.value);
            if !named && found.value.known().is_none() {
                let message = format!(
                    "{key}: capability {} is neither known to nattenc nor in the section's cuda-capabilities",
                    found.value
                );
                problems.add(found.at.clone(), message);
            }
        }
        let (Some(capability), Some(from), Some(mode)) = (capability, from, mode) else { continue };
        if let Some(why) = impossible(capability.value, from.value) {
            let message = format!("{} cannot share with {}: {why}", capability.value, from.value);
            problems.add(from.at.clone(), message);
        }
        let again = |p: &&Share| p.capability == capability.value && p.mode == mode.value;
        if let Some(first) = pairs.iter().find(again) {
            let message = format!(
                "{} shares already as {}, with {}, at {}",
                capability.value, mode.value, first.from, first.at
            );
            problems.add(capability.at.clone(), message);
        }
        pairs.push(Share {
            capability: capability.value,
            from: from.value,
            mode: mode.value,
            select: select.into_iter().map(|selector| selector.value).collect(),
            at: capability.at,
        });
    }
    pairs
}
