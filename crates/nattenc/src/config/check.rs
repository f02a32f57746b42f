//! What can be wrong with build.toml without asking a toolkit.

use super::place::{Place, Problems};
use super::read::At;
use super::{CapabilityEntry, Release, Section};

/// The gates of a section or an entry, with their places.
#[derive(Debug, Default)]
pub(super) struct Gate {
    pub(super) minver: Option<At<Release>>,
    pub(super) maxver: Option<At<Release>>,
}

impl Gate {
    /// Reports a gate that no release passes.
    pub(super) fn check(&self, what: &str, problems: &mut Problems<'_>) {
        if let (Some(min), Some(max)) = (&self.minver, &self.maxver)
            && min.value > max.value
        {
            let message = format!(
                "{what}: cuda-minver \"{}\" is above cuda-maxver \"{}\" at {}: no toolkit passes both",
                min.value, max.value, max.at
            );
            problems.add(min.at.clone(), message);
        }
    }
}

/// First and last release.
type Gates = (Option<Release>, Option<Release>);

impl Gate {
    fn releases(&self) -> Gates {
        (self.minver.as_ref().map(|v| v.value), self.maxver.as_ref().map(|v| v.value))
    }
}

/// The releases that build an entry of a section: gates of both and the known range, `None` where that is empty.
fn window(section: Gates, entry: &CapabilityEntry) -> Option<(Release, Release)> {
    let known = entry.request.capability.known();
    let first = [section.0, entry.minver, known.map(|k| k.first)].into_iter().flatten().max();
    let last = [section.1, entry.maxver, known.and_then(|k| k.last)].into_iter().flatten().min();
    let (first, last) = (first.unwrap_or(Release::new(0, 0)), last.unwrap_or(Release::new(u16::MAX, 0)));
    (first <= last).then_some((first, last))
}

fn overlap(a: Option<(Release, Release)>, b: Option<(Release, Release)>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if a.0 <= b.1 && b.0 <= a.1)
}

/// Capabilities that are missing, listed twice, or that no toolkit release can ever build.
pub(super) fn capabilities(
    section: &str,
    gate: &Gate,
    entries: &[CapabilityEntry],
    at: &Place,
    problems: &mut Problems<'_>,
) {
    let gates = gate.releases();
    if entries.is_empty() {
        problems.add(
            at.clone(),
            format!(
                "[section.{section}]: cuda-capabilities is empty, so nothing would be built; list some, as in [\"9.0\"]"
            ),
        );
    }
    for (i, entry) in entries.iter().enumerate() {
        let capability = entry.request.capability;
        let twin = entries[..i].iter().find(|other| {
            other.request.capability == capability && overlap(window(gates, other), window(gates, entry))
        });
        if let Some(other) = twin {
            let message = if other.request == entry.request {
                format!("capability \"{capability}\" is already listed at {}", other.at)
            } else {
                format!(
                    "capability \"{}\" is also listed as \"{}\" at {}; keep \"{capability}+PTX\" alone for both",
                    entry.request, other.request, other.at
                )
            };
            problems.add(entry.at.clone(), message);
        }
        // A gate that contradicts itself has been reported already.
        let sound = |min: Option<Release>, max: Option<Release>| {
            min.is_none_or(|min| max.is_none_or(|max| min <= max))
        };
        if window(gates, entry).is_none() && sound(gates.0, gates.1) && sound(entry.minver, entry.maxver) {
            problems.add(entry.at.clone(), never(gate, entry));
        }
    }
}

/// Why no release builds `entry`.
fn never(gate: &Gate, entry: &CapabilityEntry) -> String {
    let mut bounds = Vec::new();
    bounds.extend(entry.minver.map(|v| format!("its own gate wants cuda >= {v}")));
    bounds.extend(entry.maxver.map(|v| format!("its own gate wants cuda <= {v}")));
    for (bound, sign) in [(&gate.minver, ">="), (&gate.maxver, "<=")] {
        bounds.extend(
            bound.as_ref().map(|v| format!("the section's gate, at {}, wants cuda {sign} {}", v.at, v.value)),
        );
    }
    let mut rename = String::new();
    if let Some(known) = entry.request.capability.known() {
        bounds.push(match known.last {
            Some(last) => format!("the capability exists from cuda {} to {last}", known.first),
            None => format!("the capability exists from cuda {} on", known.first),
        });
        if let Some(now) = known.renamed {
            rename = format!("; since cuda 13.0 it is called \"{now}\"");
        }
    }
    format!("capability \"{}\" can never be built: {}{rename}", entry.request, bounds.join(", "))
}

/// Families that two sections would build for the same capability: two objects with the same kernels.
pub(super) fn families(sections: &[(Section, Vec<At<String>>)], problems: &mut Problems<'_>) {
    for (i, (section, words)) in sections.iter().enumerate() {
        for (other, other_words) in &sections[..i] {
            for word in words {
                let Some(first) = other_words.iter().find(|w| w.value == word.value) else { continue };
                let shared = section.capabilities.iter().find(|entry| {
                    let mine = window((section.minver, section.maxver), entry);
                    other.capabilities.iter().any(|o| {
                        o.request.capability == entry.request.capability
                            && overlap(window((other.minver, other.maxver), o), mine)
                    })
                });
                if let Some(entry) = shared {
                    let message = format!(
                        "family \"{}\" would be built twice for {}: by [section.{}] and, at {}, by [section.{}]",
                        word.value, entry.request.capability, section.name, first.at, other.name
                    );
                    problems.add(word.at.clone(), message);
                }
            }
        }
    }
}

/// Names become parts of paths and symbols.
pub(super) fn name(what: &str, word: &At<String>, problems: &mut Problems<'_>) {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
    if word.value.is_empty()
        || !word.value.chars().all(plain)
        || !word.value.starts_with(|c: char| c.is_ascii_lowercase())
    {
        let message = format!(
            "{what} \"{}\": a name is a lowercase letter, then lowercase letters, digits, \"_\" and \"-\"",
            word.value
        );
        problems.add(word.at.clone(), message);
    }
}

/// Flags that nattenc sets itself or that would break what it relies on: names without dashes, and why.
const REFUSED: &[(&[&str], &str)] = &[
    (
        &["rdc", "relocatable-device-code", "dc", "device-c", "dw", "device-w", "dlink", "device-link"],
        "separate compilation needs a device link, which there is none of",
    ),
    (
        &["gencode", "generate-code", "arch", "gpu-architecture", "code", "gpu-code"],
        "what is compiled for is written in cuda-capabilities",
    ),
    (&["t", "threads"], "every process compiles for one capability; how many run at once is -j"),
    (&["o", "output-file", "odir", "output-directory"], "nattenc names the outputs"),
    (
        &[
            "c",
            "compile",
            "E",
            "preprocess",
            "M",
            "generate-dependencies",
            "ptx",
            "cubin",
            "fatbin",
            "cuda",
            "link",
            "lib",
            "run",
            "x",
            "dryrun",
            "keep",
            "keep-dir",
        ],
        "nattenc chooses the phases",
    ),
    (&["optf", "options-file"], "flags in a file are hidden from the cache; list them here"),
    (&["ccbin", "compiler-bindir"], "the host compiler is set for all sections by NVCC_CCBIN"),
];

/// Refuses flags by name, whether their value is attached, after `=`, or the next argument.
pub(super) fn flags(section: &str, flags: &[At<String>], problems: &mut Problems<'_>) {
    for flag in flags {
        let text = flag.value.as_str();
        let mut refuse = |why: &str| {
            problems.add(
                flag.at.clone(),
                format!("[section.{section}]: cuda-flags: \"{text}\" is refused: {why}"),
            );
        };
        if text.trim().is_empty() {
            refuse("it is empty");
            continue;
        }
        if text.contains("-fno-pic") || text.contains("-fno-PIC") {
            refuse("the library is position independent");
        }
        let Some(word) = text.strip_prefix("--").or_else(|| text.strip_prefix('-')) else { continue };
        if word.contains(char::is_whitespace) && !word.starts_with('D') {
            refuse("each argument is a string of its own");
        }
        let (name, value) =
            word.split_once(['=', ' ']).map_or((word, None), |(name, value)| (name, Some(value)));
        if matches!(name, "rdc" | "relocatable-device-code") && value == Some("false") {
            continue;
        }
        // `-t8` is `-t 8`.
        let attached =
            name.len() > 1 && name.starts_with('t') && name[1..].bytes().all(|b| b.is_ascii_digit());
        let name = if attached { "t" } else { name };
        if let Some((_, why)) = REFUSED.iter().find(|(names, _)| names.contains(&name)) {
            refuse(why);
        }
    }
}

/// Values that a list must not lack: an empty one would mean "nothing", which nobody writes on purpose.
pub(super) fn not_empty<T>(what: &str, list: Option<&Vec<T>>, at: Place, problems: &mut Problems<'_>) {
    if list.is_some_and(Vec::is_empty) {
        problems.add(at, format!("{what} is empty; list something or leave it out"));
    }
}
