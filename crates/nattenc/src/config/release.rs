//! A CUDA toolkit release, `12.8`, as gates compare it: numerically, never as text.

use crate::failure::Failure;
use std::fmt;
use std::str::FromStr;

/// The newest release that nattenc knows of, per major. A later minor is used with a warning, another major is not.
const NEWEST: &[Release] = &[Release::new(12, 9), Release::new(13, 5)];

/// A toolkit release. The patch level takes no part in gates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Release {
    /// 12 of `12.8`.
    pub major: u16,
    /// 8 of `12.8`.
    pub minor: u16,
}

impl Release {
    /// `major.minor`.
    pub const fn new(major: u16, minor: u16) -> Self {
        Release { major, minor }
    }

    /// The name of a variant built by this release: `cu128`.
    pub fn variant(self) -> String {
        format!("cu{}{}", self.major, self.minor)
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl From<Release> for String {
    fn from(release: Release) -> Self {
        release.to_string()
    }
}

impl TryFrom<String> for Release {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// A warning for a release newer than nattenc, a failure for a major that it knows nothing of.
pub fn known(release: Release) -> anyhow::Result<Option<String>> {
    match NEWEST.iter().find(|newest| newest.major == release.major) {
        Some(newest) if release <= *newest => Ok(None),
        Some(newest) => Ok(Some(format!(
            "cuda {release} is newer than {newest}, the newest that this nattenc knows: what it can compile for is taken from nvcc's own list"
        ))),
        None => {
            let majors: Vec<String> = NEWEST.iter().map(|newest| format!("{}.x", newest.major)).collect();
            Err(Failure::toolchain(format!(
                "cuda {release} is not supported: this nattenc knows {}",
                majors.join(" and ")
            ))
            .hint("use a toolkit of one of these, or a newer nattenc")
            .into())
        }
    }
}

/// One to four digits without a leading zero: what a part of a version or capability looks like.
pub(crate) fn number(text: &str) -> Option<u16> {
    let plain = !text.is_empty()
        && text.len() <= 4
        && text.bytes().all(|b| b.is_ascii_digit())
        && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

impl FromStr for Release {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Option<Vec<u16>> = text.split('.').map(number).collect();
        match parts.as_deref() {
            Some([major, minor] | [major, minor, _]) => Ok(Release::new(*major, *minor)),
            _ => Err(format!("{text:?} is not a CUDA release; write it as \"12.8\"")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(text: &str) -> Release {
        text.parse().unwrap()
    }

    #[test]
    fn releases_compare_as_numbers_and_the_minimum_is_inclusive() {
        let gate = release("12.8");
        for (text, inside) in [
            ("12.8", true),
            ("12.10", true),
            ("13.0", true),
            ("9.2", false),
            ("12.7", false),
            ("12.8.1", true),
        ] {
            assert_eq!(release(text) >= gate, inside, "{text}");
        }
    }

    #[test]
    fn a_patch_level_is_no_part_of_a_release() {
        assert_eq!(release("12.8.93"), release("12.8"));
        assert_eq!(release("12.8.93").to_string(), "12.8");
        assert_eq!(release("12.8").variant(), "cu128");
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "", "12", "12.", ".8", "v12.8", "12.8.1.2", "12,8", " 12.8", "12.8 ", "12.x", "-12.8", "012.8",
            "99999.1",
        ] {
            let error = text.parse::<Release>().unwrap_err();
            assert!(error.contains(&format!("{text:?}")) && error.contains("\"12.8\""), "{text:?}: {error}");
        }
    }
}
