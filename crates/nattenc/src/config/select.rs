//! Selectors: which kernels of a family are wanted, `family=fna,dim=2,dtype=float16,direction=forward`.

use super::FAMILIES;
use super::place::suggestion;
use std::fmt;
use std::str::FromStr;

/// The element types that kernels exist for.
pub const DTYPES: &[&str] = &["float32", "float16", "bfloat16", "e4m3", "e5m2"];

/// The directions that kernels exist for.
pub const DIRECTIONS: &[&str] = &["forward", "backward"];

const KEYS: &[&str] = &["family", "dim", "dtype", "direction", "causal", "head-dim"];

/// Which dimensions are causal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Causal {
    /// No dimension.
    None,
    /// Every dimension.
    All,
    /// One flag per dimension, outermost first.
    Mask(Vec<bool>),
}

/// One selector: every key that is there must match. An empty list stands for a key that is not there.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Selector {
    /// The families it is about; empty: every family.
    pub family: Vec<String>,
    /// Spatial dimensions: 1, 2, 3.
    pub dim: Vec<u8>,
    /// Element types.
    pub dtype: Vec<String>,
    /// `forward`, `backward`.
    pub direction: Vec<String>,
    /// Causal masks.
    pub causal: Vec<Causal>,
    /// Head dimensions.
    pub head_dim: Vec<u16>,
}

/// What a selector can ask of a kernel. A key that a kernel does not have does not constrain it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Traits<'a> {
    /// Its family.
    pub family: &'a str,
    /// Its spatial dimensions.
    pub dim: Option<u8>,
    /// Its element type.
    pub dtype: Option<&'a str>,
    /// Its direction.
    pub direction: Option<&'a str>,
    /// Its causal flags, one per dimension.
    pub causal: Option<&'a [bool]>,
    /// Its head dimension.
    pub head_dim: Option<u16>,
}

impl Causal {
    fn matches(&self, flags: &[bool]) -> bool {
        match self {
            Causal::None => !flags.contains(&true),
            Causal::All => !flags.contains(&false),
            Causal::Mask(mask) => mask == flags,
        }
    }
}

impl Selector {
    /// Whether it says anything about kernels of `family`.
    pub fn names(&self, family: &str) -> bool {
        self.family.is_empty() || self.family.iter().any(|f| f == family)
    }

    /// Whether a kernel has everything that is asked for.
    pub fn matches(&self, kernel: &Traits<'_>) -> bool {
        fn any<T, U: Copy>(wanted: &[T], found: Option<U>, equal: impl Fn(&T, U) -> bool) -> bool {
            wanted.is_empty() || found.is_none_or(|found| wanted.iter().any(|w| equal(w, found)))
        }
        self.names(kernel.family)
            && any(&self.dim, kernel.dim, |w, f| *w == f)
            && any(&self.dtype, kernel.dtype, |w, f| w == f)
            && any(&self.direction, kernel.direction, |w, f| w == f)
            && any(&self.causal, kernel.causal, Causal::matches)
            && any(&self.head_dim, kernel.head_dim, |w, f| *w == f)
    }
}

/// Whether `selectors` keep a kernel: none is about its family, or one of those that are matches.
pub fn selected(selectors: &[Selector], kernel: &Traits<'_>) -> bool {
    !selectors.iter().any(|s| s.names(kernel.family)) || selectors.iter().any(|s| s.matches(kernel))
}

fn causal(word: &str) -> Option<Causal> {
    match word {
        "none" => Some(Causal::None),
        "all" => Some(Causal::All),
        mask if (1..=3).contains(&mask.len()) && mask.bytes().all(|b| b == b'0' || b == b'1') => {
            Some(Causal::Mask(mask.bytes().map(|b| b == b'1').collect()))
        }
        _ => None,
    }
}

impl FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut selector = Selector::default();
        let mut seen: Vec<&str> = Vec::new();
        let example = "write it as \"family=fna,dim=2,dtype=float16|bfloat16,direction=forward\"";
        for part in text.split(',') {
            let Some((key, values)) = part.split_once('=') else {
                return Err(format!("selector {text:?}: {part:?} is not key=value; {example}"));
            };
            if !KEYS.contains(&key) {
                return Err(format!("selector {text:?}: unknown key {key:?}; {}", suggestion(key, KEYS)));
            }
            if seen.contains(&key) {
                return Err(format!(
                    "selector {text:?}: {key} is given twice; separate the values with | as in {key}=a|b"
                ));
            }
            seen.push(key);
            for value in values.split('|') {
                let unknown = |known: &[&str]| {
                    format!("selector {text:?}: unknown {key} {value:?}; {}", suggestion(value, known))
                };
                let listed = |known: &[&str]| {
                    if known.contains(&value) { Ok(value.to_owned()) } else { Err(unknown(known)) }
                };
                match key {
                    "family" => selector.family.push(listed(FAMILIES)?),
                    "dtype" => selector.dtype.push(listed(DTYPES)?),
                    "direction" => selector.direction.push(listed(DIRECTIONS)?),
                    "dim" => selector.dim.push(match value {
                        "1" => 1,
                        "2" => 2,
                        "3" => 3,
                        _ => return Err(unknown(&["1", "2", "3"])),
                    }),
                    "causal" => selector.causal.push(causal(value).ok_or_else(|| {
                        format!("selector {text:?}: unknown causal {value:?}; known: none all, or a digit per dimension as in 01")
                    })?),
                    _ => selector.head_dim.push(
                        super::release::number(value)
                            .filter(|n| *n > 0)
                            .ok_or_else(|| format!("selector {text:?}: head-dim {value:?} is not a positive number"))?,
                    ),
                }
            }
        }
        Ok(selector)
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn values<T: ToString>(values: &[T]) -> String {
            values.iter().map(T::to_string).collect::<Vec<_>>().join("|")
        }
        let parts = [
            ("family", values(&self.family)),
            ("dim", values(&self.dim)),
            ("dtype", values(&self.dtype)),
            ("direction", values(&self.direction)),
            ("causal", values(&self.causal)),
            ("head-dim", values(&self.head_dim)),
        ];
        let given: Vec<String> =
            parts.into_iter().filter(|(_, v)| !v.is_empty()).map(|(k, v)| format!("{k}={v}")).collect();
        f.write_str(&given.join(","))
    }
}

impl fmt::Display for Causal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Causal::None => f.write_str("none"),
            Causal::All => f.write_str("all"),
            Causal::Mask(flags) => {
                flags.iter().try_for_each(|flag| f.write_str(if *flag { "1" } else { "0" }))
            }
        }
    }
}
