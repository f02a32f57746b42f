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

impl Suffix {
    /// The letter, where there is one.
    pub const fn letter(self) -> Option<char> {
        match self {
            Suffix::None => None,
            Suffix::A => Some('a'),
            Suffix::F => Some('f'),
        }
    }
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

    /// What a user who wrote this may not expect.
    pub fn note(self) -> Option<String> {
        let later = match self.capability.suffix {
            _ if !self.ptx => return None,
            Suffix::None => return None,
            Suffix::A => "no other device",
            Suffix::F => "no device of another family",
        };
        Some(format!("{self}: this PTX runs on {later}, so it gives no forward compatibility"))
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
                format!(
                    "{capability} is known neither to nvcc {release} nor to nattenc; known: {}",
                    all.join(" ")
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capability(text: &str) -> Capability {
        text.parse().unwrap()
    }

    fn list(text: &str) -> Vec<Capability> {
        text.split_whitespace().map(|word| Capability::from_nvcc(word).unwrap()).collect()
    }

    #[test]
    fn what_is_printed_parses_to_the_same() {
        for known in KNOWN {
            for ptx in [false, true] {
                let request = CapabilityRequest { capability: known.capability, ptx };
                assert_eq!(request.to_string().parse(), Ok(request));
            }
            assert_eq!(Capability::from_nvcc(&known.capability.sm()), Some(known.capability));
            assert_eq!(Capability::from_nvcc(&known.capability.compute()), Some(known.capability));
        }
        for major in 1..=99 {
            for minor in 0..=9 {
                let plain = Capability::new(major, minor);
                assert_eq!(plain.to_string().parse(), Ok(plain));
                assert_eq!(Capability::from_nvcc(&plain.sm()), Some(plain));
            }
        }
    }

    #[test]
    fn other_spellings_are_refused_with_the_one_to_use() {
        for (text, message) in [
            ("8.0a", "\"8.0a\": there is no target sm_80a; \"a\" exists from 9.0 on; write \"8.0\""),
            (
                "8.9a+PTX",
                "\"8.9a+PTX\": there is no target sm_89a; \"a\" exists from 9.0 on; write \"8.9+PTX\"",
            ),
            ("9.0f", "\"9.0f\": there is no target sm_90f; \"f\" exists from 10.0 on; write \"9.0\""),
            ("9.0.a", "\"9.0.a\" is not a compute capability; write \"9.0a\""),
            ("90", "\"90\" is not a compute capability; write \"9.0\""),
            ("90a", "\"90a\" is not a compute capability; write \"9.0a\""),
            ("103a", "\"103a\" is not a compute capability; write \"10.3a\""),
            ("sm_90", "\"sm_90\" is not a compute capability; write \"9.0\""),
            ("sm_100f", "\"sm_100f\" is not a compute capability; write \"10.0f\""),
            ("compute_80+PTX", "\"compute_80+PTX\" is not a compute capability; write \"8.0+PTX\""),
            (" 9.0", "\" 9.0\" is not a compute capability; write \"9.0\""),
            ("9.0 ", "\"9.0 \" is not a compute capability; write \"9.0\""),
            ("9.0A", "\"9.0A\" is not a compute capability; write \"9.0a\""),
            ("9.0+ptx", "\"9.0+ptx\" is not a compute capability; write \"9.0+PTX\""),
            ("9.0+ptx+PTX", "\"9.0+ptx+PTX\" is not a compute capability; write \"9.0+PTX\""),
            ("9.0+PTX+PTX", "\"9.0+PTX+PTX\" is not a compute capability; write \"9.0+PTX\""),
        ] {
            assert_eq!(text.parse::<CapabilityRequest>(), Err(message.to_owned()), "{text}");
        }
        for text in [
            "", "+PTX", "a", ".", "9", "9.", ".0", "9.0b", "9.0aa", "9.0af", "9.0+PTXa", "9.0PTX", "native",
            "all", "0.9", "09.0", "9.00", "9.10", "100.0", "-9.0", "9,0", "9.0;8.0", "9.0-real", "９.0",
            "9.0\n8.0", "Hopper", "9.0.0",
        ] {
            let error = text.parse::<CapabilityRequest>().unwrap_err();
            assert!(error.starts_with(&format!("{text:?}")) && error.contains("write"), "{text:?}: {error}");
        }
    }

    #[test]
    fn capabilities_sort_as_numbers() {
        let mut sorted: Vec<Capability> =
            ["12.0", "9.0", "10.0", "9.0a", "10.0f", "10.0a", "8.9"].map(capability).into();
        sorted.sort();
        let text: Vec<String> = sorted.iter().map(ToString::to_string).collect();
        assert_eq!(text, ["8.9", "9.0", "9.0a", "10.0", "10.0a", "10.0f", "12.0"]);
        assert!(
            KNOWN.windows(2).all(|pair| pair[0].capability < pair[1].capability),
            "the table is ascending"
        );
    }

    #[test]
    fn names_are_nvccs() {
        let c = capability("12.1a");
        assert_eq!(
            (c.sm(), c.compute(), c.ident(), c.number()),
            ("sm_121a".into(), "compute_121a".into(), "sm121a".into(), 121)
        );
        assert_eq!(Capability::from_nvcc("sm_12x"), None);
        assert_eq!(Capability::from_nvcc("121"), None);
        assert_eq!(Capability::from_nvcc("sm_"), None);
    }

    #[test]
    fn code_runs_where_its_suffix_says() {
        for (text, device, runs) in [
            ("8.0", (8, 0), true),
            ("8.0", (8, 6), true),
            ("8.0", (8, 9), true),
            ("8.6", (8, 0), false),
            ("8.0", (9, 0), false),
            // embedded parts: neither direction
            ("8.0", (8, 7), false),
            ("8.7", (8, 9), false),
            ("8.7", (8, 7), true),
            ("9.0", (9, 0), true),
            ("9.0a", (9, 0), true),
            ("9.0a", (9, 1), false),
            ("9.0a", (10, 0), false),
            ("10.0", (10, 3), true),
            ("10.0a", (10, 3), false),
            ("10.0f", (10, 3), true),
            ("10.3f", (10, 0), false),
            ("10.0f", (10, 1), false),
            ("10.3a", (10, 3), true),
            ("12.0", (12, 1), true),
            ("12.0f", (12, 1), true),
            ("12.0a", (12, 1), false),
            ("10.0a", (12, 0), false),
            ("8.0+PTX", (9, 0), true),
            ("8.0+PTX", (8, 7), true),
            ("8.0+PTX", (7, 5), false),
            ("12.0+PTX", (13, 0), true),
            ("9.0a+PTX", (10, 0), false),
            ("10.0f+PTX", (10, 3), true),
            ("10.0f+PTX", (12, 0), false),
        ] {
            let request: CapabilityRequest = text.parse().unwrap();
            assert_eq!(request.runs_on(device), runs, "{text} on {device:?}");
        }
    }

    #[test]
    fn ptx_that_does_not_move_forward_is_noted() {
        for (text, noted) in
            [("9.0", false), ("9.0+PTX", false), ("9.0a", false), ("9.0a+PTX", true), ("10.0f+PTX", true)]
        {
            assert_eq!(text.parse::<CapabilityRequest>().unwrap().note().is_some(), noted, "{text}");
        }
    }

    /// What compilers list: ptxas of the cu12 wheels, nvcc of the 13.x wheels.
    const LISTED: &[((u16, u16), &str)] = &[
        (
            (12, 0),
            "sm_50 sm_52 sm_53 sm_60 sm_61 sm_62 sm_70 sm_72 sm_75 sm_80 sm_86 sm_87 sm_89 sm_90 sm_90a",
        ),
        (
            (12, 6),
            "sm_50 sm_52 sm_53 sm_60 sm_61 sm_62 sm_70 sm_72 sm_75 sm_80 sm_86 sm_87 sm_89 sm_90 sm_90a",
        ),
        (
            (12, 8),
            "sm_50 sm_52 sm_53 sm_60 sm_61 sm_62 sm_70 sm_72 sm_75 sm_80 sm_86 sm_87 sm_89 sm_90 sm_90a sm_100 sm_100a \
             sm_101 sm_101a sm_120 sm_120a",
        ),
        (
            (12, 9),
            "sm_50 sm_52 sm_53 sm_60 sm_61 sm_62 sm_70 sm_72 sm_75 sm_80 sm_86 sm_87 sm_89 sm_90 sm_90a sm_100 sm_100a \
             sm_100f sm_101 sm_101a sm_101f sm_103 sm_103a sm_103f sm_120 sm_120a sm_120f sm_121 sm_121a sm_121f",
        ),
    ];

    /// nvcc of 13.0 and 13.2: both list the plain forms alone.
    const PLAIN_13: &str = "sm_75 sm_80 sm_86 sm_87 sm_88 sm_89 sm_90 sm_100 sm_103 sm_110 sm_120 sm_121";

    #[test]
    fn the_table_agrees_with_the_compilers_of_each_release() {
        for ((major, minor), listed) in LISTED {
            let release = Release::new(*major, *minor);
            let ours: Vec<String> = KNOWN
                .iter()
                .filter(|k| k.first <= release && k.last.is_none_or(|last| release <= last))
                .map(|k| k.capability.sm())
                .collect();
            assert_eq!(ours.join(" "), *listed, "{release}");
        }
        for minor in [0, 2] {
            let release = Release::new(13, minor);
            let ours: Vec<String> = KNOWN
                .iter()
                .filter(|k| k.first <= release && k.last.is_none_or(|last| release <= last))
                .filter(|k| k.capability.suffix == Suffix::None)
                .map(|k| k.capability.sm())
                .collect();
            assert_eq!(ours.join(" "), PLAIN_13, "{release}");
        }
    }

    #[test]
    fn support_says_why_not() {
        let listed = |release: (u16, u16)| match LISTED.iter().find(|(r, _)| *r == release) {
            Some((_, text)) => list(text),
            None => list(PLAIN_13),
        };
        for (text, release, reason) in [
            ("10.3a", (12, 8), "10.3a needs cuda >= 12.9, found 12.8"),
            ("12.1", (12, 8), "12.1 needs cuda >= 12.9, found 12.8"),
            ("10.0a", (12, 6), "10.0a needs cuda >= 12.8, found 12.6"),
            ("12.0f", (12, 8), "12.0f needs cuda >= 12.9, found 12.8"),
            ("10.1", (13, 0), "10.1 ends with cuda 12.9 and is called 11.0 since, found 13.0"),
            ("10.1a", (13, 0), "10.1a ends with cuda 12.9 and is called 11.0a since, found 13.0"),
            ("11.0", (12, 9), "11.0 needs cuda >= 13.0, found 12.9"),
            ("7.0", (13, 0), "7.0 ends with cuda 12.9, found 13.0"),
            ("5.0", (13, 2), "5.0 ends with cuda 12.9, found 13.2"),
        ] {
            let release = Release::new(release.0, release.1);
            let support = support(capability(text), release, &listed((release.major, release.minor)));
            assert!(!support.usable(), "{text} with {release}");
            assert_eq!(support.reason(capability(text), release), reason);
        }
        for (text, release) in [
            ("9.0a", (12, 6)),
            ("10.0a", (12, 8)),
            ("10.3a", (12, 9)),
            ("10.1", (12, 8)),
            ("7.0", (12, 9)),
            // nvcc lists the plain forms alone
            ("9.0a", (13, 0)),
            ("10.3f", (13, 0)),
            ("12.1a", (13, 2)),
        ] {
            let release = Release::new(release.0, release.1);
            assert_eq!(
                support(capability(text), release, &listed((release.major, release.minor))),
                Support::Yes,
                "{text}"
            );
        }
        let release = Release::new(13, 9);
        let mut future = list(PLAIN_13);
        assert_eq!(support(capability("13.0a"), release, &future), Support::Unknown);
        assert!(Support::Unknown.reason(capability("99.9"), release).contains("known: 5.0 5.2"));
        future.push(Capability::new(13, 0));
        assert_eq!(support(capability("13.0"), release, &future), Support::OnlyCompilerKnows);
        assert_eq!(support(capability("13.0a"), release, &future), Support::OnlyCompilerKnows);
        assert_eq!(support(capability("12.2"), release, &future), Support::Unknown);
        assert_eq!(support(capability("9.0"), release, &list("sm_120")), Support::NotListed);
    }
}
