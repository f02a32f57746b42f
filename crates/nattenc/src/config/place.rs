//! Where in a file something stands, and a list of everything wrong with it.

use crate::failure::Failure;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A place in a file: `build.toml:12:5`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file, named as it was given.
    pub file: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

impl Place {
    /// The place of byte `offset` of `text`.
    pub fn of(file: &Path, text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        Place {
            file: file.to_path_buf(),
            line: before.matches('\n').count() + 1,
            column: before[start..].chars().count() + 1,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file.display(), self.line, self.column)
    }
}

/// Everything wrong with one file, reported together.
#[derive(Debug)]
pub(super) struct Problems<'a> {
    pub(super) file: &'a Path,
    pub(super) text: &'a str,
    list: Vec<(Place, String)>,
}

impl<'a> Problems<'a> {
    pub(super) fn new(file: &'a Path, text: &'a str) -> Self {
        Problems { file, text, list: Vec::new() }
    }

    pub(super) fn place(&self, span: &Range<usize>) -> Place {
        Place::of(self.file, self.text, span.start)
    }

    pub(super) fn add(&mut self, at: Place, message: impl Into<String>) {
        self.list.push((at, message.into()));
    }

    /// A configuration failure with one line per problem, by place; success where there is none.
    pub(super) fn finish(&mut self) -> anyhow::Result<()> {
        self.list.sort();
        self.list.dedup();
        let lines: Vec<String> = self.list.iter().map(|(at, message)| format!("{at}: {message}")).collect();
        let message = match lines.as_slice() {
            [] => return Ok(()),
            [one] => one.clone(),
            many => format!("{}: {} problems\n  {}", self.file.display(), many.len(), many.join("\n  ")),
        };
        let first = &self.list[0].0;
        Err(Failure::config(message)
            .hint(format!("correct {} at line {}", first.file.display(), first.line))
            .into())
    }
}

/// The known word that `word` was probably meant to be.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let fold = |text: &str| text.to_ascii_lowercase().replace('_', "-");
    let word = fold(word);
    known
        .into_iter()
        .map(|candidate| (distance(&word, &fold(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len().max(word.len()) / 3).min(3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Single-character insertions, removals and replacements between two words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let cost = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// `did you mean "x"? known: …`, for messages about unknown words.
pub(super) fn suggestion(word: &str, known: &[&str]) -> String {
    let list = known.join(" ");
    match nearest(word, known.iter().copied()) {
        Some(meant) => format!("did you mean \"{meant}\"? known: {list}"),
        None => format!("known: {list}"),
    }
}
