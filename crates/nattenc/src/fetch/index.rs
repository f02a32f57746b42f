//! The simple API of a package index: PEP 691 JSON and PEP 503 HTML in, candidates out; and which file
//! of a release is the wheel for a target.

use super::Target;
use super::url::{Url, percent_decode};
use crate::failure::Failure;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// What we can read, the best first.
pub(super) const ACCEPT: &str =
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1";

/// One file that an index or a directory offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    /// File name.
    pub(super) file: String,
    /// Where it is.
    pub(super) url: Url,
    /// Its SHA-256 as the index states it.
    pub(super) sha256: Option<String>,
    /// Its size as the index states it.
    pub(super) size: Option<u64>,
    /// Why it should no longer be used, where the index says so.
    pub(super) yanked: Option<String>,
}

/// A project's name as indexes write it in URLs (PEP 503).
pub(super) fn normalize(project: &str) -> String {
    let mut name = String::new();
    for part in project.split(['-', '_', '.']).filter(|p| !p.is_empty()) {
        if !name.is_empty() {
            name.push('-');
        }
        name.push_str(&part.to_ascii_lowercase());
    }
    name
}

/// Parses a page, whichever of the two forms it has.
pub(super) fn parse(url: &Url, bytes: &[u8]) -> anyhow::Result<Vec<Candidate>> {
    let text = String::from_utf8_lossy(bytes);
    if text.trim_start().starts_with('{') { parse_json(url, &text) } else { Ok(parse_html(url, &text)) }
}

#[derive(Deserialize)]
struct JsonPage {
    meta: Meta,
    files: Vec<JsonFile>,
}

#[derive(Deserialize)]
struct Meta {
    #[serde(rename = "api-version")]
    api_version: String,
}

#[derive(Deserialize)]
struct JsonFile {
    filename: String,
    url: String,
    #[serde(default)]
    hashes: BTreeMap<String, String>,
    size: Option<u64>,
    #[serde(default)]
    yanked: Yanked,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Yanked {
    Flag(bool),
    Reason(String),
}

impl Default for Yanked {
    fn default() -> Self {
        Yanked::Flag(false)
    }
}

fn parse_json(url: &Url, text: &str) -> anyhow::Result<Vec<Candidate>> {
    let malformed = |what: String| {
        Failure::config(format!("{url}: not an answer of the simple API: {what}"))
            .hint("check pip's index URL (`python3 -m pip config list`)")
    };
    let page: JsonPage = serde_json::from_str(text).map_err(|e| malformed(e.to_string()))?;
    if page.meta.api_version.split('.').next() != Some("1") {
        return Err(malformed(format!("api-version {:?} is newer than 1", page.meta.api_version)).into());
    }
    let mut candidates = Vec::new();
    for file in page.files {
        candidates.push(Candidate {
            url: url.join(&file.url).map_err(|e| malformed(format!("{}: {e}", file.filename)))?,
            sha256: file.hashes.get("sha256").and_then(|h| hash(h)),
            size: file.size,
            yanked: match file.yanked {
                Yanked::Flag(false) => None,
                Yanked::Flag(true) => Some(String::new()),
                Yanked::Reason(reason) => Some(reason),
            },
            file: file.filename,
        });
    }
    Ok(candidates)
}

fn hash(text: &str) -> Option<String> {
    (text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())).then(|| text.to_ascii_lowercase())
}

/// Links whose target cannot be parsed are passed over: a page may hold any.
fn parse_html(url: &Url, text: &str) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        if let Some(comment) = rest.strip_prefix("!--") {
            rest = comment.find("-->").map_or("", |end| &comment[end + 3..]);
            continue;
        }
        let is_anchor = rest.starts_with(['a', 'A']) && rest[1..].starts_with(char::is_whitespace);
        if !is_anchor {
            continue;
        }
        let (attributes, after) = attributes(&rest[1..]);
        rest = after;
        let Some(mut target) = attributes.get("href").and_then(|href| url.join(href).ok()) else { continue };
        let sha256 = target
            .fragment
            .as_deref()
            .and_then(|fragment| fragment.split('&').find_map(|pair| hash(pair.strip_prefix("sha256=")?)));
        target.fragment = None;
        candidates.push(Candidate {
            file: target.file_name(),
            sha256,
            size: None,
            yanked: attributes.get("data-yanked").cloned(),
            url: target,
        });
    }
    candidates
}

/// The attributes of a tag from behind its name on, and what follows the tag.
fn attributes(text: &str) -> (BTreeMap<String, String>, &str) {
    let mut found = BTreeMap::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '/');
        if rest.is_empty() {
            return (found, rest);
        }
        if let Some(after) = rest.strip_prefix('>') {
            return (found, after);
        }
        let end = rest.find(|c: char| c.is_whitespace() || "=>/".contains(c)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end.max(1).min(rest.len()));
        rest = after.trim_start();
        let mut value = "";
        if let Some(after) = rest.strip_prefix('=') {
            let after = after.trim_start();
            match after.chars().next() {
                Some(quote @ ('"' | '\'')) => {
                    let inner = &after[1..];
                    let end = inner.find(quote).unwrap_or(inner.len());
                    value = &inner[..end];
                    rest = inner.get(end + 1..).unwrap_or("");
                }
                _ => {
                    let end = after.find(|c: char| c.is_whitespace() || c == '>').unwrap_or(after.len());
                    (value, rest) = after.split_at(end);
                }
            }
        }
        found.entry(name.to_ascii_lowercase()).or_insert_with(|| unescape(value));
    }
}

fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let decoded = rest.find(';').and_then(|end| {
            let name = &rest[1..end];
            let char = match name {
                "amp" => Some('&'),
                "lt" => Some('<'),
                "gt" => Some('>'),
                "quot" => Some('"'),
                "apos" => Some('\''),
                _ => name.strip_prefix('#').and_then(|n| {
                    let code = match n.strip_prefix(['x', 'X']) {
                        Some(hex) => u32::from_str_radix(hex, 16),
                        None => n.parse(),
                    };
                    code.ok().and_then(char::from_u32)
                }),
            };
            char.map(|c| (c, end + 1))
        });
        match decoded {
            Some((c, length)) => {
                out.push(c);
                rest = &rest[length..];
            }
            None => {
                out.push('&');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// What a wheel's file name says.
struct WheelName<'a> {
    project: String,
    version: &'a str,
    python: &'a str,
    platforms: Vec<&'a str>,
}

fn wheel_name(file: &str) -> Option<WheelName<'_>> {
    let parts: Vec<&str> = file.strip_suffix(".whl")?.split('-').collect();
    // A sixth part is the build tag, in the third place.
    let (project, version, python, platform) = match parts[..] {
        [project, version, python, _, platform] | [project, version, _, python, _, platform] => {
            (project, version, python, platform)
        }
        _ => return None,
    };
    Some(WheelName { project: normalize(project), version, python, platforms: platform.split('.').collect() })
}

/// The version that a file name states, where it is a wheel or sdist of `project`.
fn version_of(file: &str, project: &str) -> Option<String> {
    let file_text = String::from_utf8(percent_decode(file)).ok()?;
    if let Some(wheel) = wheel_name(&file_text) {
        return (wheel.project == project).then(|| wheel.version.to_owned());
    }
    let (name, version) = file_text.strip_suffix(".tar.gz")?.rsplit_once('-')?;
    (normalize(name) == project).then(|| version.to_owned())
}

fn fits(file: &str, project: &str, version: &str, target: Target) -> bool {
    wheel_name(file).is_some_and(|wheel| {
        wheel.project == project
            && wheel.version == version
            && wheel.python.split('.').any(|tag| tag == "py3")
            && wheel.platforms.iter().any(|p| target.takes_platform(p))
    })
}

/// The name of the one sdist of a release among `files`.
pub(super) fn choose_sdist<'a>(
    files: &BTreeSet<&'a str>,
    project: &str,
    version: &str,
) -> anyhow::Result<&'a str> {
    let name = normalize(project);
    let matches: Vec<&str> = files
        .iter()
        .copied()
        .filter(|f| f.ends_with(".tar.gz") && version_of(f, &name).as_deref() == Some(version))
        .collect();
    one(&matches, files, project, version, "source archive (.tar.gz)")
}

/// The name of the one wheel of a release for `target` among `files`.
pub(super) fn choose_wheel<'a>(
    files: &BTreeSet<&'a str>,
    project: &str,
    version: &str,
    target: Target,
) -> anyhow::Result<&'a str> {
    let name = normalize(project);
    let matches: Vec<&str> = files.iter().copied().filter(|f| fits(f, &name, version, target)).collect();
    one(&matches, files, project, version, &format!("wheel for {target}"))
}

fn one<'a>(
    matches: &[&'a str],
    files: &BTreeSet<&'a str>,
    project: &str,
    version: &str,
    what: &str,
) -> anyhow::Result<&'a str> {
    if let [single] = matches {
        return Ok(single);
    }
    let name = normalize(project);
    let list = |items: Vec<&str>| if items.is_empty() { "none".to_owned() } else { items.join("\n    ") };
    if matches.len() > 1 {
        return Err(Failure::config(format!(
            "{project} {version}: the index has several files that are a {what}:\n    {}",
            list(matches.to_vec())
        ))
        .hint("point pip at an index where one file is right")
        .into());
    }
    let of_version: Vec<&str> =
        files.iter().copied().filter(|f| version_of(f, &name).as_deref() == Some(version)).collect();
    let versions: BTreeSet<String> = files.iter().filter_map(|f| version_of(f, &name)).collect();
    let mut versions: Vec<&str> = versions.iter().map(String::as_str).collect();
    versions.sort_by_key(|v| version_order(v));
    Err(Failure::config(format!(
        "{project} {version}: the index has no {what}\n  files of {version}:\n    {}\n  versions there: {}",
        list(of_version),
        if versions.is_empty() { "none".to_owned() } else { versions.join(" ") },
    ))
    .hint("name a version that is there, or an index that has this one (`python3 -m pip config list` shows pip's)")
    .into())
}

/// A key that sorts versions by their numbers; good enough for a list to read.
fn version_order(version: &str) -> (Vec<u64>, String) {
    (
        version.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect(),
        version.to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "8417236b74db079b2d23899ec8f77514fb2dc73d4bbd6b346a45b6967fc05ffb";

    #[test]
    fn project_names_normalize_as_indexes_do() {
        for (name, normal) in
            [("nvidia_cuda_nvcc", "nvidia-cuda-nvcc"), ("Foo.Bar--baz", "foo-bar-baz"), ("natten", "natten")]
        {
            assert_eq!(normalize(name), normal);
        }
    }

    #[test]
    fn wheels_are_chosen_by_project_version_python_and_platform() {
        use Target::{Aarch64Linux as A, X86_64Linux as X};
        let name = "nvidia-cuda-nvcc";
        for (file, target, fine) in [
            ("nvidia_cuda_nvcc-13.0.88-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", X, true),
            ("nvidia_cuda_nvcc-13.0.88-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", A, false),
            ("nvidia_cuda_nvcc-13.0.88-py3-none-manylinux2014_aarch64.manylinux_2_17_aarch64.whl", A, true),
            ("nvidia_cuda_nvcc-13.0.88-py3-none-manylinux2014_sbsa.whl", A, true),
            ("nvidia_cuda_nvcc-13.0.88-py3-none-win_amd64.whl", X, false),
            ("nvidia_cuda_nvcc-13.0.88-1-py2.py3-none-manylinux1_x86_64.whl", X, true),
            ("nvidia_cuda_nvcc-13.0.88-cp311-none-manylinux1_x86_64.whl", X, false),
            ("nvidia_cuda_nvcc-13.0.8-py3-none-manylinux1_x86_64.whl", X, false),
            ("nvidia_cuda_nvcc_cu12-13.0.88-py3-none-manylinux1_x86_64.whl", X, false),
            ("nvidia-cuda-nvcc-13.0.88.tar.gz", X, false),
        ] {
            assert_eq!(fits(file, name, "13.0.88", target), fine, "{file} {target}");
        }
    }

    #[test]
    fn html_pages_give_what_json_pages_give() {
        let url = Url::parse("https://index.example/simple/natten/").unwrap();
        let html = format!(
            "<!DOCTYPE html><!-- <a href=\"commented.whl\"> --><body><abbr>x</abbr>\n\
             <A class=x HREF='../../f/natten-0.21.7.tar.gz#sha256={HASH}' data-requires-python=\"&gt;=3.9\">natten</A>\n\
             <a data-yanked=\"broken &amp; old\" href=\"/f/natten-0.21.5.tar.gz?a=1&amp;b=2#md5=00\">old</a>\
             <a href=natten-1%2B2.tar.gz>unquoted</a><a name=x>no target</a><a href=\"mailto:x@example\">no file</a>"
        );
        let json = format!(
            r#"{{"meta": {{"api-version": "1.3"}}, "name": "natten", "files": [
            {{"filename": "natten-0.21.7.tar.gz", "url": "../../f/natten-0.21.7.tar.gz", "hashes": {{"sha256": "{HASH}"}}, "yanked": false}},
            {{"filename": "natten-0.21.5.tar.gz", "url": "/f/natten-0.21.5.tar.gz?a=1&b=2", "hashes": {{"md5": "00"}}, "yanked": "broken & old"}},
            {{"filename": "natten-1+2.tar.gz", "url": "natten-1%2B2.tar.gz", "hashes": {{}}}}]}}"#
        );
        let from_html = parse(&url, html.as_bytes()).unwrap();
        assert_eq!(from_html, parse(&url, json.as_bytes()).unwrap());
        assert_eq!(from_html[0].sha256.as_deref(), Some(HASH));
        assert_eq!(from_html[1].url.request(), "https://index.example/f/natten-0.21.5.tar.gz?a=1&b=2");
        assert_eq!(from_html[1].yanked.as_deref(), Some("broken & old"));
    }

    #[test]
    fn torn_html_ends_without_a_panic() {
        let url = Url::parse("https://index.example/").unwrap();
        for text in [
            "<a",
            "<a ",
            "<a href",
            "<a href=",
            "<a href=\"x",
            "<!--",
            "<a =x>",
            "<a href='é'é>",
            "<a &#xffffffff;>",
        ] {
            parse(&url, text.as_bytes()).unwrap();
        }
        assert_eq!(unescape("a&amp;b&#43;&#x2B;&bogus;&"), "a&b++&bogus;&");
    }

    #[test]
    fn a_newer_api_is_refused() {
        let url = Url::parse("https://index.example/").unwrap();
        let error = parse(&url, br#"{"meta": {"api-version": "2.0"}, "files": []}"#).unwrap_err();
        assert!(error.to_string().contains("\"2.0\""), "{error}");
        assert!(parse(&url, b"{").is_err());
    }

    #[test]
    fn what_is_missing_comes_with_what_is_there() {
        let files: BTreeSet<&str> = [
            "natten-0.21.10.tar.gz",
            "natten-0.21.7.tar.gz",
            "natten-0.21.7-py3-none-win_amd64.whl",
            "other-0.21.7.tar.gz",
        ]
        .into();
        assert_eq!(choose_sdist(&files, "NATTEN", "0.21.7").unwrap(), "natten-0.21.7.tar.gz");
        let error = choose_sdist(&files, "natten", "0.22").unwrap_err().to_string();
        assert!(error.contains("versions there: 0.21.7 0.21.10"), "{error}");
        let error = choose_wheel(&files, "natten", "0.21.7", Target::X86_64Linux).unwrap_err().to_string();
        assert!(
            error.contains("natten-0.21.7-py3-none-win_amd64.whl") && error.contains("x86_64-linux"),
            "{error}"
        );
        let twice: BTreeSet<&str> =
            ["a-1-py3-none-manylinux1_x86_64.whl", "a-1-2-py3-none-manylinux1_x86_64.whl"].into();
        let error = choose_wheel(&twice, "a", "1", Target::X86_64Linux).unwrap_err().to_string();
        assert!(error.contains("several"), "{error}");
    }
}
