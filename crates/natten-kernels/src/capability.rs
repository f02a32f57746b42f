//! What code was built for, and which device runs it.

use std::fmt;

/// A device's compute capability: `9.0` is `{ major: 9, minor: 0 }`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ComputeCapability {
    /// 9 for Hopper.
    pub major: u32,
    /// 0 for Hopper.
    pub minor: u32,
}

impl ComputeCapability {
    /// `major * 10 + minor`, as kernel tables count.
    pub fn number(self) -> u32 {
        self.major * 10 + self.minor
    }

    /// The embedded parts, whose machine code other devices do not share.
    fn is_embedded(self) -> bool {
        matches!(self.number(), 53 | 62 | 72 | 87 | 88 | 101 | 110)
    }
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// What a code section targets, as a manifest spells it: `9.0`, `9.0a`, `10.0f`, `12.0+PTX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    base: ComputeCapability,
    reach: Reach,
    ptx: bool,
}

/// Which devices the machine code of a target runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Same major, same or higher minor; an embedded part only its own.
    Plain,
    /// `a`: exactly that capability.
    Exact,
    /// `f`: the family, which is the same major with the same or a higher minor.
    Family,
}

impl Target {
    /// Parses a manifest's spelling; `None` for anything else.
    pub fn parse(text: &str) -> Option<Target> {
        let (text, ptx) = match text.strip_suffix("+PTX") {
            Some(text) => (text, true),
            None => (text, false),
        };
        let (text, reach) = match text.as_bytes().last()? {
            b'a' => (&text[..text.len() - 1], Reach::Exact),
            b'f' => (&text[..text.len() - 1], Reach::Family),
            _ => (text, Reach::Plain),
        };
        let (major, minor) = text.split_once('.')?;
        let number = |digits: &str| {
            (digits.bytes().all(|b| b.is_ascii_digit()) && !digits.is_empty())
                .then(|| digits.parse::<u32>().ok())?
        };
        Some(Target { base: ComputeCapability { major: number(major)?, minor: number(minor)? }, reach, ptx })
    }

    /// Whether `device` runs this code: its machine code, or its PTX through the driver's compiler.
    pub fn runs_on(self, device: ComputeCapability) -> bool {
        let machine_code = match self.reach {
            Reach::Exact => device == self.base,
            Reach::Plain if device.is_embedded() || self.base.is_embedded() => device == self.base,
            Reach::Plain | Reach::Family => {
                device.major == self.base.major && device.minor >= self.base.minor
            }
        };
        // The PTX of an `a` or `f` target does not move to other devices.
        let forward = self.ptx && self.reach == Reach::Plain && device >= self.base;
        machine_code || forward
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = match self.reach {
            Reach::Plain => "",
            Reach::Exact => "a",
            Reach::Family => "f",
        };
        write!(f, "{}{suffix}{}", self.base, if self.ptx { "+PTX" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_runs_where_cuda_says() {
        let cases = [
            ("8.0", (8, 0), true),
            ("8.0", (8, 9), true),
            ("8.6", (8, 0), false),
            ("8.0", (9, 0), false),
            ("9.0a", (9, 0), true),
            ("9.0a", (9, 1), false),
            ("10.0a", (10, 3), false),
            ("10.0f", (10, 3), true),
            ("10.0", (10, 3), true),
            ("10.3a", (10, 3), true),
            ("10.0f", (12, 0), false),
            ("9.0+PTX", (12, 0), true),
            ("9.0+PTX", (8, 9), false),
            ("9.0a+PTX", (10, 0), false),
            ("12.0", (12, 1), true),
            ("8.6", (8, 7), false),
            ("8.7", (8, 7), true),
            ("8.7", (8, 9), false),
            ("8.0+PTX", (8, 7), true),
        ];
        for (target, (major, minor), expected) in cases {
            let device = ComputeCapability { major, minor };
            assert_eq!(Target::parse(target).unwrap().runs_on(device), expected, "{target} on {device}");
        }
    }

    #[test]
    fn spellings_survive_a_round_trip_and_others_are_refused() {
        for text in ["8.0", "9.0a", "10.0f", "12.0+PTX", "9.0a+PTX", "12.1"] {
            assert_eq!(Target::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "90", "9", "9.", ".0", "sm_90", "9.0b", "9.0.a", " 9.0", "9.0+ptx", "+9.0", "a"] {
            assert_eq!(Target::parse(text), None, "`{text}`");
        }
    }
}
