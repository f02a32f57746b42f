//! Compute capabilities: one typed parser, one table of the known ones, one rule for what runs where.
//! No text of a capability is ever cut or replaced: nvcc's spellings are printed from the numbers.

use crate::config::Release;
use crate::config::release::number;
use std::fmt;
use std::str::FromStr;

/// What follows the numbers: code for one capability alone, or for its family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suffix {
    /// `9.0`: also later minors of the same major.
    None,
    /// `9.0a`: exactly this capability, all its features.
    A,
    /// `10.0f`: this capability and later ones of its family.
    F,
}

/// A compute capability as code is built for it: `8.0`, `9.0a`, `10.0f`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Capability {
    /// 9 of `9.0a`.
    pub major: u16,
    /// 0 of `9.0a`.
    pub minor: u16,
    /// a of `9.0a`.
    pub suffix: Suffix,
}

/// A capability as build.toml and the command line ask for it: `12.0+PTX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct CapabilityRequest {
    /// The capability that machine code is wanted for.
    pub capability: Capability,
    /// Whether PTX is wanted beside it.
    pub ptx: bool,
}

impl Capability {
    /// `major.minor` without a suffix.
    pub const fn new(major: u16, minor: u16) -> Self {
        Capability { major, minor, suffix: Suffix::None }
    }

    /// The same numbers with `suffix`.
    pub const fn with(self, suffix: Suffix) -> Self {
        Capability { suffix, ..self }
    }

    /// 90 for `9.0` and `9.0a`.
    pub const fn number(self) -> u16 {
        self.major * 10 + self.minor
    }

    /// nvcc's name of its machine code: `sm_90a`.
    pub fn sm(self) -> String {
        format!("sm_{}{}", self.number(), self.suffix)
    }

    /// nvcc's name of its virtual architecture: `compute_90a`.
    pub fn compute(self) -> String {
        format!("compute_{}{}", self.number(), self.suffix)
    }

    /// As a part of file and job names: `sm90a`.
    pub fn ident(self) -> String {
        format!("sm{}{}", self.number(), self.suffix)
    }

    /// Reads nvcc's own spelling, `sm_103a` or `compute_103a`.
    pub fn from_nvcc(text: &str) -> Option<Self> {
        let text = text.strip_prefix("sm_").or_else(|| text.strip_prefix("compute_"))?;
        let digits = text.trim_end_matches(['a', 'f']);
        let suffix = match &text[digits.len()..] {
            "" => Suffix::None,
            "a" => Suffix::A,
            "f" => Suffix::F,
            _ => return None,
        };
        let value = number(digits).filter(|n| *n >= 10)?;
        Some(Capability { major: value / 10, minor: value % 10, suffix })
    }

    /// Whether machine code for this capability runs on a device of capability `device` (major, minor).
    pub fn runs_on(self, device: (u16, u16)) -> bool {
        let exact = device == (self.major, self.minor);
        match self.suffix {
            Suffix::A => exact,
            // The families that exist are a major's later minors, the embedded parts apart: the plain rule.
            Suffix::None | Suffix::F => {
                exact
                    || (device.0 == self.major
                        && device.1 > self.minor
                        && !EMBEDDED.contains(&device)
                        && !EMBEDDED.contains(&(self.major, self.minor)))
            }
        }
    }

    /// Whether a driver can make this capability's PTX run on a device of capability `device`.
    pub fn ptx_runs_on(self, device: (u16, u16)) -> bool {
        match self.suffix {
            Suffix::None => device >= (self.major, self.minor),
            Suffix::A | Suffix::F => self.runs_on(device),
        }
    }

    /// Its line in the table of known capabilities.
    pub fn known(self) -> Option<&'static Known> {
        KNOWN.iter().find(|known| known.capability == self)
    }
}

impl CapabilityRequest {
    /// Machine code alone.
    pub const fn sass(capability: Capability) -> Self {
        CapabilityRequest { capability, ptx: false }
    }

    /// Whether what is built for this request runs on a device of capability `device`.
    pub fn runs_on(self, device: (u16, u16)) -> bool {
        self.capability.runs_on(device) || (self.ptx && self.capability.ptx_runs_on(device))
    }
}

impl fmt::Display for Suffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Suffix::None => "",
            Suffix::A => "a",
            Suffix::F => "f",
        })
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}{}", self.major, self.minor, self.suffix)
    }
}

impl fmt::Display for CapabilityRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.capability, if self.ptx { "+PTX" } else { "" })
    }
}

impl FromStr for Capability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let request: CapabilityRequest = text.parse()?;
        if request.ptx {
            return Err(format!("{text:?}: \"+PTX\" has no place here; write \"{}\"", request.capability));
        }
        Ok(request.capability)
    }
}

impl FromStr for CapabilityRequest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (rest, ptx) = match text.strip_suffix("+PTX") {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let (numbers, suffix) = if let Some(numbers) = rest.strip_suffix('a') {
            (numbers, Suffix::A)
        } else if let Some(numbers) = rest.strip_suffix('f') {
            (numbers, Suffix::F)
        } else {
            (rest, Suffix::None)
        };
        let parsed = numbers.split_once('.').and_then(|(major, minor)| {
            let (major, minor) = (number(major)?, number(minor)?);
            // Two digits of major and one of minor: nvcc's names run them together.
            (1..=99).contains(&major).then_some(())?;
            (minor <= 9).then_some(Capability { major, minor, suffix })
        });
        let Some(capability) = parsed else {
            return Err(match guess(text) {
                Some(meant) => format!("{text:?} is not a compute capability; write \"{meant}\""),
                None => format!(
                    "{text:?} is not a compute capability; write it as \"9.0\", \"9.0a\", \"10.0f\" or \"12.0+PTX\""
                ),
            });
        };
        // nvcc has no such targets, and never will: the suffixes came with these generations.
        let first = match suffix {
            Suffix::None => 0,
            Suffix::A => 9,
            Suffix::F => 10,
        };
        if capability.major < first {
            let plain = CapabilityRequest { capability: capability.with(Suffix::None), ptx };
            return Err(format!(
                "{text:?}: there is no target {}; \"{suffix}\" exists from {first}.0 on; write \"{plain}\"",
                capability.sm()
            ));
        }
        Ok(CapabilityRequest { capability, ptx })
    }
}

/// What was meant by a capability in another spelling, for the message only.
fn guess(text: &str) -> Option<CapabilityRequest> {
    let lower = text.trim().to_ascii_lowercase();
    let (body, ptx) = match lower.find("+ptx") {
        Some(at) => (&lower[..at], true),
        None => (lower.as_str(), false),
    };
    let body = body.trim_start_matches("sm_").trim_start_matches("compute_").trim_start_matches("sm");
    let digits: String = body.chars().filter(char::is_ascii_digit).collect();
    let rest: String = body.chars().filter(|c| !c.is_ascii_digit() && !".-_ ".contains(*c)).collect();
    let capability = match body.split_once('.').and_then(|(a, b)| Some((number(a)?, number(b)?))) {
        Some((major @ 1..=99, minor @ 0..=9)) => Capability::new(major, minor),
        Some(_) => return None,
        None => Capability::from_nvcc(&format!("sm_{digits}"))?,
    };
    let suffix = match rest.as_str() {
        "" => Suffix::None,
        "a" if capability.major >= 9 => Suffix::A,
        "f" if capability.major >= 10 => Suffix::F,
        _ => return None,
    };
    let capability = capability.with(suffix);
    capability.known()?;
    Some(CapabilityRequest { capability, ptx })
}

impl From<Capability> for String {
    fn from(capability: Capability) -> Self {
        capability.to_string()
    }
}

impl TryFrom<String> for Capability {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<CapabilityRequest> for String {
    fn from(request: CapabilityRequest) -> Self {
        request.to_string()
    }
}

impl TryFrom<String> for CapabilityRequest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Devices on a chip with their own memory: machine code of other parts does not run on them, nor theirs elsewhere.
const EMBEDDED: &[(u16, u16)] = &[(5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0)];

/// What is known of a capability without asking a compiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// The capability.
    pub capability: Capability,
    /// The first toolkit release that compiles for it.
    pub first: Release,
    /// The last one, where it has been dropped.
    pub last: Option<Release>,
    /// What it is called after `last`.
    pub renamed: Option<Capability>,
}

const fn known(major: u16, minor: u16, suffix: Suffix, first: (u16, u16)) -> Known {
    Known {
        capability: Capability::new(major, minor).with(suffix),
        first: Release::new(first.0, first.1),
        last: None,
        renamed: None,
    }
}

const fn until(row: Known, last: (u16, u16)) -> Known {
    Known { last: Some(Release::new(last.0, last.1)), ..row }
}

const fn renamed(row: Known, major: u16, minor: u16) -> Known {
    Known { renamed: Some(Capability::new(major, minor).with(row.capability.suffix)), ..row }
}

/// All known capabilities, ascending. Tested against what the compilers of several releases list.
pub const KNOWN: &[Known] = &[
    until(known(5, 0, Suffix::None, (6, 0)), (12, 9)),
    until(known(5, 2, Suffix::None, (6, 5)), (12, 9)),
    until(known(5, 3, Suffix::None, (7, 0)), (12, 9)),
    until(known(6, 0, Suffix::None, (8, 0)), (12, 9)),
    until(known(6, 1, Suffix::None, (8, 0)), (12, 9)),
    until(known(6, 2, Suffix::None, (8, 0)), (12, 9)),
    until(known(7, 0, Suffix::None, (9, 0)), (12, 9)),
    until(known(7, 2, Suffix::None, (9, 2)), (12, 9)),
    known(7, 5, Suffix::None, (10, 0)),
    known(8, 0, Suffix::None, (11, 0)),
    known(8, 6, Suffix::None, (11, 1)),
    known(8, 7, Suffix::None, (11, 4)),
    known(8, 8, Suffix::None, (13, 0)),
    known(8, 9, Suffix::None, (11, 8)),
    known(9, 0, Suffix::None, (11, 8)),
    known(9, 0, Suffix::A, (12, 0)),
    known(10, 0, Suffix::None, (12, 8)),
    known(10, 0, Suffix::A, (12, 8)),
    known(10, 0, Suffix::F, (12, 9)),
    renamed(until(known(10, 1, Suffix::None, (12, 8)), (12, 9)), 11, 0),
    renamed(until(known(10, 1, Suffix::A, (12, 8)), (12, 9)), 11, 0),
    renamed(until(known(10, 1, Suffix::F, (12, 9)), (12, 9)), 11, 0),
    known(10, 3, Suffix::None, (12, 9)),
    known(10, 3, Suffix::A, (12, 9)),
    known(10, 3, Suffix::F, (12, 9)),
    known(11, 0, Suffix::None, (13, 0)),
    known(11, 0, Suffix::A, (13, 0)),
    known(11, 0, Suffix::F, (13, 0)),
    known(12, 0, Suffix::None, (12, 8)),
    known(12, 0, Suffix::A, (12, 8)),
    known(12, 0, Suffix::F, (12, 9)),
    known(12, 1, Suffix::None, (12, 9)),
    known(12, 1, Suffix::A, (12, 9)),
    known(12, 1, Suffix::F, (12, 9)),
];

/// Whether a toolkit can compile for a capability, and why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// The compiler lists it and so do we.
    Yes,
    /// The compiler lists it, our table does not: usable, with a warning.
    OnlyCompilerKnows,
    /// It needs this release or a later one.
    TooOld(Release),
    /// This was the last release that had it, and what it is called since.
    Dropped(Release, Option<Capability>),
    /// By our table this release has it, but this compiler does not list it.
    NotListed,
    /// Nobody knows it.
    Unknown,
}

/// What a compiler of `release` that lists `listed` (as `nvcc --list-gpu-code` does) can do with `capability`.
/// The list may leave out the `a` and `f` forms, as older compilers do: then the plain form and the table decide.
pub fn support(capability: Capability, release: Release, listed: &[Capability]) -> Support {
    let has = |wanted: Capability| listed.contains(&wanted);
    let plain = capability.with(Suffix::None);
    match capability.known() {
        None if has(capability) => Support::OnlyCompilerKnows,
        None if plain.known().is_none() && has(plain) => Support::OnlyCompilerKnows,
        None => Support::Unknown,
        Some(_) if has(capability) => Support::Yes,
        Some(known) if release < known.first => Support::TooOld(known.first),
        Some(known) => match known.last {
            Some(last) if release > last => Support::Dropped(last, known.renamed),
            _ if has(plain) => Support::Yes,
            _ => Support::NotListed,
        },
    }
}

impl Support {
    /// Whether code can be built.
    pub fn usable(self) -> bool {
        matches!(self, Support::Yes | Support::OnlyCompilerKnows)
    }

    /// Why not, or what to note, as the end of a sentence about `capability`.
    pub fn reason(self, capability: Capability, release: Release) -> String {
        match self {
            Support::Yes => format!("cuda {release} compiles for {capability}"),
            Support::OnlyCompilerKnows => {
                format!("{capability} is listed by nvcc {release} but not known to nattenc")
            }
            Support::TooOld(first) => format!("{capability} needs cuda >= {first}, found {release}"),
            Support::Dropped(last, Some(now)) => {
                format!("{capability} ends with cuda {last} and is called {now} since, found {release}")
            }
            Support::Dropped(last, None) => format!("{capability} ends with cuda {last}, found {release}"),
            Support::NotListed => format!("this nvcc {release} does not list {}", capability.sm()),
            Support::Unknown => {
                let all: Vec<String> = KNOWN.iter().map(|k| k.capability.to_string()).collect();
                format!("{capability} is known neither to nvcc {release} nor to nattenc; known: {}", all.join(" "))
            }
        }
    }
}
