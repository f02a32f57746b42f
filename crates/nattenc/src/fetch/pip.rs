//! Asks pip where it looks for packages: its option parser merges pip.conf (global, user, site),
//! PIP_CONFIG_FILE and every PIP_* variable, and knows its own default index. Nothing is installed.

use super::http::{Settings, basic};
use super::url::{Url, redact};
use crate::env;
use crate::execute::process::{CommandLine, capture, search};
use crate::failure::Failure;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where to look, in order, and how to get there.
#[derive(Debug, Clone)]
pub(super) struct Sources {
    /// Local directories, pages and files that list or are candidates.
    pub(super) find_links: Vec<FindLinks>,
    /// Base URLs of simple indexes.
    pub(super) indexes: Vec<Url>,
    /// For the client.
    pub(super) settings: Settings,
}

/// One `--find-links` value.
#[derive(Debug, Clone)]
pub(super) enum FindLinks {
    /// A directory that holds files.
    Directory(PathBuf),
    /// A page of links.
    Page(Url),
}

// Written to run on any python3 with any pip of the last years. The empty entry of sys.path would let a
// file of the current directory stand in for a library.
const SCRIPT: &str = r#"
import sys
sys.path[:] = [p for p in sys.path if p]
import json
try:
    from pip._internal.commands import create_command
except ImportError as error:
    print(json.dumps({"missing": str(error)}))
    sys.exit(0)
options, _ = create_command("download").parser.parse_args([])
indexes = [] if options.no_index else [options.index_url] + list(options.extra_index_urls or [])
netrc = []
try:
    from pip._vendor.requests.utils import get_netrc_auth
    for url in indexes:
        found = get_netrc_auth(url)
        if found:
            netrc.append([url, found[0], found[1]])
except Exception:
    pass
print(json.dumps({
    "indexes": indexes,
    "find_links": list(options.find_links or []),
    "trusted": list(options.trusted_hosts or []),
    "cert": options.cert or None,
    "client_cert": options.client_cert or None,
    "proxy": options.proxy or None,
    "timeout": float(options.timeout),
    "retries": int(options.retries),
    "netrc": netrc,
}))
"#;

#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Missing { missing: String },
    Options(Options),
}

#[derive(Deserialize)]
struct Options {
    indexes: Vec<String>,
    find_links: Vec<String>,
    trusted: Vec<String>,
    cert: Option<PathBuf>,
    client_cert: Option<PathBuf>,
    proxy: Option<String>,
    timeout: f64,
    retries: u32,
    netrc: Vec<(String, String, String)>,
}

/// Asks the pip of `python` (else NATTENC_PYTHON, else python3 of PATH).
pub(super) fn ask(python: Option<&Path>) -> anyhow::Result<Sources> {
    let python = locate(python)?;
    let shown = python.display().to_string();
    let command = CommandLine {
        argv: vec![shown.clone(), "-c".to_owned(), SCRIPT.to_owned()],
        env: env::all(),
        cwd: PathBuf::from("."),
    };
    let finished = capture(&command).map_err(|e| e.context("pip is asked where packages come from"))?;
    if !finished.success() {
        let said = finished.output.lines().rev().map(str::trim).find(|l| !l.is_empty()).unwrap_or("nothing");
        return Err(Failure::config(format!("{shown}: pip cannot read its configuration: {}", redact(said)))
            .hint(format!("run `{shown} -m pip config debug` and correct what it names"))
            .into());
    }
    let line = finished.stdout.lines().rev().find(|l| l.starts_with('{')).unwrap_or("");
    match serde_json::from_str(line) {
        Ok(Answer::Options(options)) => sources(options),
        Ok(Answer::Missing { missing }) => Err(Failure::toolchain(format!("{shown} has no usable pip: {missing}"))
            .hint("install pip for it (`python3 -m ensurepip --upgrade`, or the distribution's python3-pip), or name another python3 in NATTENC_PYTHON")
            .into()),
        Err(e) => Err(Failure::toolchain(format!("{shown}: not the answer of a python3: {e}"))
            .hint("name a python3 that has pip in NATTENC_PYTHON")
            .into()),
    }
}

/// The python3 to use: the one given, else NATTENC_PYTHON's, else that of PATH.
pub fn locate(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let path_variable = env::text("PATH")?.unwrap_or_default();
    let named = given.map(|p| ("python", p.to_path_buf()));
    if let Some((who, path)) = named.or_else(|| env::path("NATTENC_PYTHON").map(|p| ("NATTENC_PYTHON", p))) {
        // A bare name is one of PATH, as a shell takes it.
        let found = match path.to_str() {
            Some(name) if !name.contains('/') => search(name, &path_variable),
            _ => path.is_file().then(|| path.clone()),
        };
        return found.ok_or_else(|| {
            Failure::toolchain(format!("{who}: there is no {path:?}"))
                .hint("name a python3 that has pip, or none for the one of PATH")
                .into()
        });
    }
    search("python3", &path_variable).ok_or_else(|| {
        Failure::toolchain("no python3 in PATH, and its pip knows where packages come from")
            .hint("install python3 with pip, or name one in NATTENC_PYTHON")
            .into()
    })
}

fn sources(options: Options) -> anyhow::Result<Sources> {
    let mut credentials = Vec::new();
    let mut indexes = Vec::new();
    for text in &options.indexes {
        let mut url = parse(text, "index URL")?;
        if let Some(userinfo) = url.userinfo.take() {
            credentials.push((url.clone(), basic(&userinfo)));
        }
        indexes.push(url);
    }
    for (text, user, password) in &options.netrc {
        let mut url = parse(text, "index URL")?;
        url.userinfo = None;
        credentials.push((url, basic(&format!("{}:{}", encode(user), encode(password)))));
    }
    let mut find_links = Vec::new();
    for text in &options.find_links {
        if text.contains("://") {
            let mut url = parse(text, "find-links")?;
            if let Some(userinfo) = url.userinfo.take() {
                credentials.push((url.clone(), basic(&userinfo)));
            }
            match url.file_path() {
                Some(path) if path.is_dir() => find_links.push(FindLinks::Directory(path)),
                _ => find_links.push(FindLinks::Page(url)),
            }
        } else {
            let path = Path::new(text);
            if path.is_dir() {
                find_links.push(FindLinks::Directory(crate::fs::real_path(path)?));
            } else if path.is_file() {
                find_links.push(FindLinks::Page(Url::of_file(&crate::fs::real_path(path)?)));
            }
            // One that is not there: pip passes it over too.
        }
    }
    let settings = Settings {
        cert: options.cert,
        client_cert: options.client_cert,
        proxy: options.proxy,
        timeout: Duration::try_from_secs_f64(options.timeout.max(1.0)).unwrap_or(Duration::from_secs(15)),
        attempts: options.retries.saturating_add(1).min(10),
        trusted: options.trusted,
        credentials,
        ..Settings::default()
    };
    Ok(Sources { find_links, indexes, settings })
}

fn parse(text: &str, what: &str) -> anyhow::Result<Url> {
    Url::parse(text).map_err(|e| {
        Failure::config(format!("pip's {what} {:?} cannot be used: {e}", redact(text)))
            .hint("correct it in pip's configuration (`python3 -m pip config debug` shows where it is set)")
            .into()
    })
}

fn encode(text: &str) -> String {
    text.replace('%', "%25").replace(':', "%3A")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{Class, class};

    fn fake(answer: &str, code: i32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("python3");
        crate::fs::write(&path, format!("#!/bin/sh\ncat <<'END'\n{answer}\nEND\nexit {code}\n").as_bytes())
            .unwrap();
        crate::fs::set_mode(&path, 0o755).unwrap();
        (dir, path)
    }

    #[test]
    fn what_pip_says_is_what_is_used() {
        let links = tempfile::tempdir().unwrap();
        let answer = format!(
            r#"a warning on stdout
{{"indexes": ["https://u:p%40@one.example/simple", "https://two.example/simple/"],
"find_links": ["{}", "/not/there", "https://w:x@links.example/page.html"], "trusted": ["two.example"], "cert": "/c.pem",
"client_cert": null, "proxy": "http://proxy.example:3128", "timeout": 180.0, "retries": 2,
"netrc": [["https://two.example/simple/", "n", "r:s"]]}}"#,
            links.path().display()
        )
        .replace(",\n", ", ");
        let (_dir, python) = fake(&answer, 0);
        let sources = ask(Some(&python)).unwrap();
        let shown: Vec<String> = sources.indexes.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["https://one.example/simple", "https://two.example/simple/"]);
        assert!(sources.indexes.iter().all(|u| u.userinfo.is_none()));
        let headers: Vec<_> =
            sources.settings.credentials.iter().map(|(u, h)| (u.host.as_str(), h.as_str())).collect();
        let expected = [
            ("one.example", basic("u:p%40")),
            ("two.example", basic("n:r%3As")),
            ("links.example", basic("w:x")),
        ];
        assert_eq!(headers, expected.iter().map(|(h, b)| (*h, b.as_str())).collect::<Vec<_>>());
        assert_eq!(sources.find_links.len(), 2);
        assert_eq!(sources.settings.attempts, 3);
        assert_eq!(sources.settings.timeout, Duration::from_secs(180));
        assert_eq!(sources.settings.trusted, ["two.example"]);
    }

    #[test]
    fn a_python_that_does_not_help_is_refused_with_the_fix() {
        for (answer, code, expected, message) in [
            (
                r#"{"missing": "No module named 'pip'"}"#,
                0,
                Class::Toolchain,
                "no usable pip: No module named 'pip'",
            ),
            ("noise", 0, Class::Toolchain, "not the answer of a python3"),
            ("bad value: https://u:secret@h/", 2, Class::Config, "https://***@h/"),
        ] {
            let (_dir, python) = fake(answer, code);
            let error = ask(Some(&python)).unwrap_err();
            assert_eq!(class(&error), expected, "{answer}");
            assert!(error.to_string().contains(message), "{error}");
            assert!(error.downcast_ref::<Failure>().unwrap().hint.is_some());
        }
        let error = ask(Some(Path::new("/no/such/python3"))).unwrap_err();
        assert_eq!(class(&error), Class::Toolchain);
        assert!(error.to_string().contains("\"/no/such/python3\""), "{error}");
    }

    #[test]
    fn pips_own_configuration_decides() {
        let dir = tempfile::tempdir().unwrap();
        let conf = dir.path().join("pip.conf");
        crate::fs::write(
            &conf,
            b"[global]\nindex-url = https://file.example/simple\ntimeout = 7\n[download]\ntrusted-host = file.example\n",
        )
        .unwrap();
        let wrapper = |name: &str, variables: &str| {
            let path = dir.path().join(name);
            let script = format!(
                "#!/bin/sh\nexport PIP_CONFIG_FILE='{}' NETRC='{}'\nunset PIP_INDEX_URL PIP_FIND_LINKS\n{variables}\nexec python3 \"$@\"\n",
                conf.display(),
                dir.path().join("netrc").display()
            );
            crate::fs::write(&path, script.as_bytes()).unwrap();
            crate::fs::set_mode(&path, 0o755).unwrap();
            path
        };
        crate::fs::write(&dir.path().join("netrc"), b"machine more.example login n password pw\n").unwrap();
        let plain = match ask(Some(&wrapper(
            "plain",
            "PIP_EXTRA_INDEX_URL=https://more.example/simple; export PIP_EXTRA_INDEX_URL",
        ))) {
            // A machine without pip has nothing to test here.
            Err(e) if class(&e) == Class::Toolchain => return,
            other => other.unwrap(),
        };
        let shown: Vec<String> = plain.indexes.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["https://file.example/simple", "https://more.example/simple"]);
        assert_eq!(plain.settings.trusted, ["file.example"]);
        let credentials: Vec<_> =
            plain.settings.credentials.iter().map(|(u, h)| (u.host.as_str(), h.clone())).collect();
        assert_eq!(credentials, [("more.example", basic("n:pw"))]);
        let none = ask(Some(&wrapper("none", "export PIP_NO_INDEX=1"))).unwrap();
        assert_eq!(none.indexes, []);
        let broken = ask(Some(&wrapper("broken", "export PIP_TIMEOUT=soon"))).unwrap_err();
        assert_eq!(class(&broken), Class::Config, "{broken}");
    }
}
