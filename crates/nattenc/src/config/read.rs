//! Walks a TOML document by hand, so that every problem in it is found at once and has a place.

use super::CapabilityEntry;
use super::check::Gate;
use super::place::{Place, Problems, nearest, suggestion};
use crate::plan::capability::CapabilityRequest;
use std::path::Path;
use std::str::FromStr;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A value with the place where it stands.
#[derive(Debug, Clone)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) at: Place,
}

/// One table of a document, whose keys are taken one by one; what is left is unknown.
pub(super) struct Table<'a, 'b> {
    /// `[section.core]`, or `build.toml` for the whole.
    pub(super) name: String,
    pub(super) at: Place,
    entries: &'b DeTable<'a>,
}

/// Parses `text`. All syntax errors are reported, and then nothing else: what follows one is guesswork.
pub(super) fn document<'a>(
    problems: &mut Problems<'_>,
    text: &'a str,
) -> anyhow::Result<Spanned<DeTable<'a>>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let at = Place::of(problems.file, text, error.span().map_or(0, |span| span.start));
        problems.add(at, error.message().trim().replace('\n', "; ").to_ascii_lowercase());
    }
    problems.finish()?;
    Ok(table)
}

/// What a value is, and how to write it as the string that was wanted.
fn as_written(value: &Spanned<DeValue<'_>>, problems: &Problems<'_>) -> String {
    let written = problems.text.get(value.span()).unwrap_or_default();
    match value.get_ref() {
        DeValue::Integer(_) | DeValue::Float(_) | DeValue::Datetime(_) | DeValue::Boolean(_) => {
            let kind = value.get_ref().type_str();
            let article = if kind.starts_with('i') { "an" } else { "a" };
            format!("{written} is {article} {kind} where a string is wanted; write \"{written}\" in quotes")
        }
        DeValue::Array(_) => "an array stands where a string is wanted".to_owned(),
        DeValue::Table(_) => "a table stands where a string is wanted".to_owned(),
        DeValue::String(_) => format!("{written} is not usable here"),
    }
}

impl<'a, 'b> Table<'a, 'b> {
    pub(super) fn root(file: &Path, table: &'b Spanned<DeTable<'a>>, problems: &Problems<'_>) -> Self {
        Table { name: file.display().to_string(), at: problems.place(&(0..0)), entries: table.get_ref() }
    }

    /// Refuses every key that is not in `known`.
    pub(super) fn only(&self, known: &[&str], problems: &mut Problems<'_>) {
        for key in self.entries.keys() {
            let word: &str = key.get_ref();
            if !known.contains(&word) {
                let at = problems.place(&key.span());
                problems
                    .add(at, format!("unknown key \"{word}\" in {}; {}", self.name, suggestion(word, known)));
            }
        }
    }

    fn get(&self, key: &str) -> Option<(&'b Spanned<std::borrow::Cow<'a, str>>, &'b Spanned<DeValue<'a>>)> {
        self.entries.iter().find(|(name, _)| name.get_ref() == key)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// The place of a key, else of the table.
    pub(super) fn place(&self, key: &str, problems: &Problems<'_>) -> Place {
        self.get(key).map_or_else(|| self.at.clone(), |(_, value)| problems.place(&value.span()))
    }

    /// Requires a key. A key that only looks like it has been reported as unknown already.
    pub(super) fn require(&self, key: &str, example: &str, problems: &mut Problems<'_>) {
        let alike = |other: &str| nearest(other, [key]).is_some();
        if !self.entries.keys().any(|other| other.get_ref() == key || alike(other.get_ref())) {
            problems.add(self.at.clone(), format!("{} has no {key}; write {example}", self.name));
        }
    }

    pub(super) fn string(&self, key: &str, problems: &mut Problems<'_>) -> Option<At<String>> {
        let (_, value) = self.get(key)?;
        let found = string(value, problems);
        if let Err(message) = &found {
            let at = problems.place(&value.span());
            problems.add(at, format!("{key}: {message}"));
        }
        found.ok()
    }

    /// A string that parses as `T`, whose error says what to write.
    pub(super) fn parsed<T: FromStr<Err = String>>(
        &self,
        key: &str,
        problems: &mut Problems<'_>,
    ) -> Option<At<T>> {
        let text = self.string(key, problems)?;
        parse(key, text, problems)
    }

    pub(super) fn boolean(&self, key: &str, problems: &mut Problems<'_>) -> Option<bool> {
        let (_, value) = self.get(key)?;
        if let DeValue::Boolean(yes) = value.get_ref() {
            return Some(*yes);
        }
        let at = problems.place(&value.span());
        problems.add(at, format!("{key}: write true or false, without quotes"));
        None
    }

    /// A whole number of 1 or more.
    pub(super) fn whole(&self, key: &str, problems: &mut Problems<'_>) -> Option<usize> {
        let (_, value) = self.get(key)?;
        if let DeValue::Integer(number) = value.get_ref()
            && let Some(number) = number.as_str().parse().ok().filter(|n| *n > 0)
        {
            return Some(number);
        }
        let at = problems.place(&value.span());
        problems.add(at, format!("{key}: write a whole number of 1 or more, without quotes"));
        None
    }

    /// An array's elements; `None` where the key is absent or no array.
    fn array(&self, key: &str, problems: &mut Problems<'_>) -> Option<Vec<&'b Spanned<DeValue<'a>>>> {
        let (_, value) = self.get(key)?;
        if let DeValue::Array(items) = value.get_ref() {
            return Some(items.iter().collect());
        }
        let at = problems.place(&value.span());
        let written = problems.text.get(value.span()).unwrap_or_default();
        problems.add(at, format!("{key}: a list is wanted; write {key} = [{written}]"));
        None
    }

    pub(super) fn strings(&self, key: &str, problems: &mut Problems<'_>) -> Option<Vec<At<String>>> {
        let items = self.array(key, problems)?;
        let mut found = Vec::new();
        for item in items {
            let at = problems.place(&item.span());
            match string(item, problems) {
                Ok(text) => found.push(text),
                Err(message) => problems.add(at, format!("{key}: {message}")),
            }
        }
        Some(found)
    }

    pub(super) fn parsed_list<T: FromStr<Err = String>>(
        &self,
        key: &str,
        problems: &mut Problems<'_>,
    ) -> Option<Vec<At<T>>> {
        let texts = self.strings(key, problems)?;
        Some(texts.into_iter().filter_map(|text| parse(key, text, problems)).collect())
    }

    pub(super) fn table(&self, key: &str, problems: &mut Problems<'_>) -> Option<Table<'a, 'b>> {
        let (name, value) = self.get(key)?;
        let at = problems.place(&name.span());
        if let DeValue::Table(entries) = value.get_ref() {
            return Some(Table { name: format!("[{key}]"), at, entries });
        }
        problems.add(at, format!("\"{key}\" is a table; write it as [{key}]"));
        None
    }

    /// The tables `[key.<name>]`, in the order of the file.
    pub(super) fn tables(&self, key: &str, problems: &mut Problems<'_>) -> Vec<(At<String>, Table<'a, 'b>)> {
        let Some(parent) = self.table(key, problems) else { return Vec::new() };
        let mut found = Vec::new();
        for (name, value) in parent.entries {
            let (word, at) = (name.get_ref().to_string(), problems.place(&name.span()));
            if let DeValue::Table(entries) = value.get_ref() {
                let table = Table { name: format!("[{key}.{word}]"), at: at.clone(), entries };
                found.push((At { value: word, at }, table));
            } else {
                problems.add(at, format!("\"{word}\" in [{key}] is a table; write it as [{key}.<name>]"));
            }
        }
        found.sort_by(|a, b| a.0.at.cmp(&b.0.at));
        found
    }

    /// `cuda-minver` and `cuda-maxver` of `what`.
    pub(super) fn gate(&self, what: &str, problems: &mut Problems<'_>) -> Gate {
        let gate = Gate {
            minver: self.parsed("cuda-minver", problems),
            maxver: self.parsed("cuda-maxver", problems),
        };
        gate.check(what, problems);
        gate
    }

    /// All keys and their strings.
    pub(super) fn string_map(&self, problems: &mut Problems<'_>) -> Vec<(String, At<String>)> {
        let keys: Vec<String> = self.entries.keys().map(|key| key.get_ref().to_string()).collect();
        keys.into_iter().filter_map(|key| Some((key.clone(), self.string(&key, problems)?))).collect()
    }

    /// The tables of a list; `example` is one. None where the key is absent.
    pub(super) fn inline_tables(
        &self,
        key: &str,
        example: &str,
        problems: &mut Problems<'_>,
    ) -> Vec<Table<'a, 'b>> {
        let mut tables = Vec::new();
        for item in self.array(key, problems).into_iter().flatten() {
            let at = problems.place(&item.span());
            if let DeValue::Table(entries) = item.get_ref() {
                tables.push(Table { name: format!("an entry of {key}"), at, entries });
            } else {
                problems.add(at, format!("{key}: a table is wanted; write {example}"));
            }
        }
        tables
    }

    /// The capabilities of a section: strings, or tables with a gate of their own.
    pub(super) fn capabilities(
        &self,
        key: &str,
        problems: &mut Problems<'_>,
    ) -> Option<Vec<CapabilityEntry>> {
        let items = self.array(key, problems)?;
        let mut entries = Vec::new();
        for item in items {
            let at = problems.place(&item.span());
            let (request, gate) = if let DeValue::Table(table) = item.get_ref() {
                let table = Table { name: format!("an entry of {key}"), at, entries: table };
                table.only(&["cap", "cuda-minver", "cuda-maxver"], problems);
                table.require("cap", "cap = \"10.0\"", problems);
                let request = table.parsed::<CapabilityRequest>("cap", problems);
                (request, table.gate(&format!("an entry of {key}"), problems))
            } else {
                match string(item, problems) {
                    Ok(text) => (parse(key, text, problems), Gate::default()),
                    Err(message) => {
                        problems.add(at, format!("{key}: {message}"));
                        (None, Gate::default())
                    }
                }
            };
            if let Some(request) = request {
                entries.push(CapabilityEntry {
                    request: request.value,
                    minver: gate.minver.map(|m| m.value),
                    maxver: gate.maxver.map(|m| m.value),
                    at: request.at,
                });
            }
        }
        Some(entries)
    }
}

fn string(value: &Spanned<DeValue<'_>>, problems: &Problems<'_>) -> Result<At<String>, String> {
    match value.get_ref() {
        DeValue::String(text) => Ok(At { value: text.to_string(), at: problems.place(&value.span()) }),
        _ => Err(as_written(value, problems)),
    }
}

fn parse<T: FromStr<Err = String>>(
    key: &str,
    text: At<String>,
    problems: &mut Problems<'_>,
) -> Option<At<T>> {
    match text.value.parse::<T>() {
        Ok(value) => Some(At { value, at: text.at }),
        Err(message) => {
            problems.add(text.at, format!("{key}: {message}"));
            None
        }
    }
}

/// The edition, before anything else is looked at: a file of a later edition may mean anything.
pub(super) fn edition(root: &Table<'_, '_>, problems: &mut Problems<'_>) -> bool {
    let Some((_, value)) = root.get("edition") else {
        root.require("edition", "edition = 1", problems);
        return true;
    };
    let at = problems.place(&value.span());
    match value.get_ref() {
        DeValue::Integer(number) if number.as_str() == "1" && number.radix() == 10 => true,
        DeValue::Integer(number) => {
            let number = number.as_str().to_owned();
            problems.add(at, format!("edition {number} is not known to this nattenc, which reads edition 1"));
            false
        }
        _ => {
            problems.add(at, "edition: write edition = 1, a number without quotes");
            false
        }
    }
}
