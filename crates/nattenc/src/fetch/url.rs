//! URLs as package indexes use them: parse, join, and a form that is safe to print.
//!
//! Not a general URL library: http, https and file, no IDNA. Credentials live in the value and never
//! in its printed form.

use std::fmt;
use std::path::{Path, PathBuf};

/// One absolute URL. `Display` leaves out credentials and query, which may be secret.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Url {
    /// Lowercase scheme.
    pub(super) scheme: String,
    /// `user:password` as written.
    pub(super) userinfo: Option<String>,
    /// Lowercase host; IPv6 keeps its brackets; empty for file URLs.
    pub(super) host: String,
    /// Port, where the URL names one.
    pub(super) port: Option<u16>,
    /// Path from the first slash on, percent-encoded as written.
    path: String,
    /// Text after `?`.
    query: Option<String>,
    /// Text after `#`.
    pub(super) fragment: Option<String>,
}

impl Url {
    /// Parses an absolute URL; the reason where it is none that can be fetched.
    pub(super) fn parse(text: &str) -> Result<Url, String> {
        let (scheme, rest) = split_scheme(text).ok_or("it has no scheme")?;
        if !matches!(scheme.as_str(), "http" | "https" | "file") {
            return Err(format!("scheme {scheme:?} is not one of http, https, file"));
        }
        if let Some(bad) = text.chars().find(|c| c.is_whitespace() || c.is_control()) {
            return Err(format!("it holds the character {bad:?}"));
        }
        let rest = rest.strip_prefix("//").ok_or("`//` is missing after the scheme")?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at(end);
        let (userinfo, host_port) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user.to_owned()), host),
            None => (None, authority),
        };
        let (host, port) = match host_port.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (
                host,
                Some(port.parse::<u16>().map_err(|_| format!("port {port:?} is not a number up to 65535"))?),
            ),
            _ => (host_port, None),
        };
        if host.is_empty() && scheme != "file" {
            return Err("it has no host".to_owned());
        }
        let (tail, fragment) = split_at(tail, '#');
        let (path, query) = split_at(tail, '?');
        Ok(Url {
            scheme,
            userinfo,
            host: host.to_ascii_lowercase(),
            port,
            path: if path.is_empty() { "/".to_owned() } else { path.to_owned() },
            query,
            fragment,
        })
    }

    /// The file URL of an absolute path.
    pub(super) fn of_file(path: &Path) -> Url {
        use std::os::unix::ffi::OsStrExt;
        let mut encoded = String::new();
        for byte in path.as_os_str().as_bytes() {
            if byte.is_ascii_alphanumeric() || b"/-._~+=,@".contains(byte) {
                encoded.push(char::from(*byte));
            } else {
                encoded.push('%');
                encoded.push_str(&crate::fs::hex(&[*byte]).to_ascii_uppercase());
            }
        }
        Url {
            scheme: "file".to_owned(),
            userinfo: None,
            host: String::new(),
            port: None,
            path: encoded,
            query: None,
            fragment: None,
        }
    }

    /// The path that a file URL means.
    pub(super) fn file_path(&self) -> Option<PathBuf> {
        use std::os::unix::ffi::OsStringExt;
        let local = self.scheme == "file" && (self.host.is_empty() || self.host == "localhost");
        local.then(|| PathBuf::from(std::ffi::OsString::from_vec(percent_decode(&self.path))))
    }

    /// What `reference` means in a page at this URL.
    pub(super) fn join(&self, reference: &str) -> Result<Url, String> {
        let reference = reference.trim();
        if split_scheme(reference).is_some() {
            return Url::parse(reference);
        }
        if reference.starts_with("//") {
            return Url::parse(&format!("{}:{reference}", self.scheme));
        }
        let (rest, fragment) = split_at(reference, '#');
        let (path, query) = split_at(rest, '?');
        let mut url = Url { fragment, ..self.clone() };
        if path.is_empty() {
            url.query = query.or_else(|| self.query.clone());
            return Ok(url);
        }
        url.query = query;
        let whole = if path.starts_with('/') {
            path.to_owned()
        } else {
            let directory = self.path.rfind('/').map_or("/", |slash| &self.path[..=slash]);
            format!("{directory}{path}")
        };
        url.path = without_dots(&whole);
        Ok(url)
    }

    /// The URL of `relative` in the directory that this URL names, with or without its last slash.
    pub(super) fn below(&self, relative: &str) -> Url {
        let path = format!("{}/{relative}", self.path.trim_end_matches('/'));
        Url { path, query: None, fragment: None, ..self.clone() }
    }

    /// The text to request: no credentials, no fragment.
    pub(super) fn request(&self) -> String {
        let query = self.query.as_ref().map(|q| format!("?{q}")).unwrap_or_default();
        format!("{}{query}", self.shown())
    }

    fn shown(&self) -> String {
        let port = self.port.map(|p| format!(":{p}")).unwrap_or_default();
        format!("{}://{}{port}{}", self.scheme, self.host, self.path)
    }

    /// Scheme, host and port: what credentials are bound to.
    pub(super) fn origin(&self) -> (String, String, u16) {
        let default = if self.scheme == "http" { 80 } else { 443 };
        (self.scheme.clone(), self.host.clone(), self.port.unwrap_or(default))
    }

    /// The last part of the path, percent-decoded.
    pub(super) fn file_name(&self) -> String {
        let last = self.path.rsplit('/').next().unwrap_or("");
        String::from_utf8_lossy(&percent_decode(last)).into_owned()
    }

    /// Is the host this very machine?
    pub(super) fn is_loopback(&self) -> bool {
        self.host == "localhost"
            || self.host.ends_with(".localhost")
            || self.host == "[::1]"
            || self.host.parse::<std::net::Ipv4Addr>().is_ok_and(|a| a.is_loopback())
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

fn split_scheme(text: &str) -> Option<(String, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let legal = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    legal.then(|| (scheme.to_ascii_lowercase(), rest))
}

fn split_at(text: &str, mark: char) -> (&str, Option<String>) {
    match text.split_once(mark) {
        Some((before, after)) => (before, Some(after.to_owned())),
        None => (text, None),
    }
}

fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    for (i, part) in parts.iter().enumerate() {
        let last = i + 1 == parts.len();
        match *part {
            "." | ".." => {
                if *part == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            part => kept.push(part),
        }
    }
    format!("/{}", kept.join("/"))
}

/// Bytes of a percent-encoded text; a stray `%` stands for itself.
pub(super) fn percent_decode(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let digit = |i: usize| bytes.get(i).and_then(|b| char::from(*b).to_digit(16));
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        match (bytes[i], digit(i + 1), digit(i + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push(u8::try_from(high * 16 + low).unwrap_or(b'%'));
                i += 3;
            }
            (byte, ..) => {
                out.push(byte);
                i += 1;
            }
        }
    }
    out
}

/// `text` with the credentials of every URL in it replaced, for messages that quote other programs.
pub(super) fn redact(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let end = after
            .find(|c: char| c == '/' || c.is_whitespace() || c == '\'' || c == '"')
            .unwrap_or(after.len());
        let (authority, tail) = after.split_at(end);
        match authority.rsplit_once('@') {
            Some((_, host)) => {
                out.push_str("***@");
                out.push_str(host);
            }
            None => out.push_str(authority),
        }
        rest = tail;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_resolve_as_a_browser_would() {
        let base = Url::parse("https://u:p@Index.Example:8443/simple/natten/?x=1").unwrap();
        for (reference, whole) in [
            ("natten-1.tar.gz#sha256=ab", "https://index.example:8443/simple/natten/natten-1.tar.gz"),
            ("../../packages/a%20b.whl", "https://index.example:8443/packages/a%20b.whl"),
            ("/files/./x/../y.whl?token=t", "https://index.example:8443/files/y.whl?token=t"),
            ("//files.example/y.whl", "https://files.example/y.whl"),
            ("http://other.example/y.whl", "http://other.example/y.whl"),
            ("../../../../y", "https://index.example:8443/y"),
            ("?page=2", "https://index.example:8443/simple/natten/?page=2"),
        ] {
            assert_eq!(base.join(reference).unwrap().request(), whole, "{reference}");
        }
        assert_eq!(base.join("x#sha256=ab").unwrap().fragment.as_deref(), Some("sha256=ab"));
        assert_eq!(base.join("/x").unwrap().origin(), base.origin());
    }

    #[test]
    fn what_cannot_be_fetched_is_refused_with_its_reason() {
        for (text, reason) in [
            ("index.example/simple", "no scheme"),
            ("ftp://index.example/", "\"ftp\""),
            ("https:///simple", "no host"),
            ("https://h:99999/", "99999"),
            ("https://h/a b", "' '"),
            ("https:h/", "//"),
        ] {
            let error = Url::parse(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn neither_display_nor_debug_shows_secrets() {
        let url = Url::parse("https://user:s3cret@h/p?signature=s3cret").unwrap();
        assert_eq!(format!("{url} {url:?}"), "https://h/p https://h/p");
        assert_eq!(
            redact("no https://a:s3cret@h/x, 'http://t@k' ://"),
            "no https://***@h/x, 'http://***@k' ://"
        );
    }

    #[test]
    fn file_urls_keep_any_path() {
        let path = Path::new("/a b/%41/ü.whl");
        let url = Url::of_file(path);
        assert_eq!(url.file_path().as_deref(), Some(path));
        assert_eq!(Url::parse(&url.request()).unwrap().file_path().as_deref(), Some(path));
        assert_eq!(url.file_name(), "ü.whl");
        assert_eq!(Url::parse("file://elsewhere/x").unwrap().file_path(), None);
    }

    #[test]
    fn loopback_is_this_machine_only() {
        for (host, loopback) in [
            ("localhost", true),
            ("127.0.0.1", true),
            ("[::1]", true),
            ("127.0.0.1.example", false),
            ("h", false),
        ] {
            assert_eq!(Url::parse(&format!("http://{host}:1/")).unwrap().is_loopback(), loopback, "{host}");
        }
    }
}
