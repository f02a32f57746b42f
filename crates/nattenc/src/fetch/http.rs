//! Gets pages and files over http, https and file URLs, as pip is configured: proxy, certificates,
//! trusted hosts, credentials, patience.
//!
//! Redirects are followed here and not by the library, because each hop decides anew whether its host
//! is secure enough and whether it may see the credentials.

use super::url::{Url, redact};
use crate::failure::{Class, Failure};
use crate::{env, fs};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::tls::{Certificate, ClientCert, PemItem, RootCerts, TlsConfig, parse_pem};

/// What pip knows about reaching its index.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    /// Certificate bundle, a file or a directory; else the environment's, the system's, the built-in one.
    pub(super) cert: Option<PathBuf>,
    /// A PEM file with a client certificate and its key.
    pub(super) client_cert: Option<PathBuf>,
    /// Proxy URL; else the environment's.
    pub(super) proxy: Option<String>,
    /// Longest silence, in connecting and in each read.
    pub(super) timeout: Duration,
    /// Tries without any progress before giving up.
    pub(super) attempts: u32,
    /// First pause between tries; each further one is twice as long.
    pub(super) pause: Duration,
    /// `host` or `host:port`: plain http and bad certificates are accepted from these.
    pub(super) trusted: Vec<String>,
    /// The `Authorization` value for every request to the origin of a URL.
    pub(super) credentials: Vec<(Url, String)>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            cert: None,
            client_cert: None,
            proxy: None,
            timeout: Duration::from_secs(15),
            attempts: 5,
            pause: Duration::from_millis(250),
            trusted: Vec::new(),
            credentials: Vec::new(),
        }
    }
}

/// Fetches; shared by all threads.
pub(super) struct Client {
    verifying: ureq::Agent,
    trusting: ureq::Agent,
    roots: String,
    settings: Settings,
}

/// Why one try failed.
enum Trouble {
    /// Another try may succeed.
    Passing(String),
    /// As [`Trouble::Passing`], but the server ended the file as if it were whole.
    Short(String),
    /// Nobody answers there; few further tries make sense.
    Unreachable(String),
    /// The server has no such thing.
    Missing,
    /// No further try.
    Final(anyhow::Error),
}

impl From<anyhow::Error> for Trouble {
    fn from(error: anyhow::Error) -> Self {
        Trouble::Final(error)
    }
}

fn last(failure: Failure) -> Trouble {
    let hint = failure
        .hint
        .clone()
        .unwrap_or_else(|| "check pip's index and proxy (`python3 -m pip config list`)".to_owned());
    Trouble::Final(failure.hint(hint).into())
}

struct Answer {
    body: Box<dyn Read>,
    /// Offset in the file that the body starts at.
    from: u64,
    length: Option<u64>,
}

/// A page, and where it finally came from (its links are relative to that).
pub(super) struct Page {
    /// Its URL after redirects.
    pub(super) url: Url,
    /// Its bytes.
    pub(super) bytes: Vec<u8>,
}

/// Larger than any index page; what exceeds it is not one.
const PAGE_LIMIT: u64 = 256 << 20;
const HOPS: usize = 10;

impl Client {
    /// A client; fails where a certificate or proxy setting cannot be used.
    pub(super) fn new(settings: Settings) -> anyhow::Result<Client> {
        let (roots, shown) = roots(settings.cert.as_deref())?;
        let client_cert = settings.client_cert.as_deref().map(client_certificate).transpose()?;
        let agent = |verify: bool| -> anyhow::Result<ureq::Agent> {
            let tls = TlsConfig::builder()
                .root_certs(roots.clone())
                .client_cert(client_cert.clone())
                .disable_verification(!verify)
                .build();
            let mut config = ureq::Agent::config_builder()
                .tls_config(tls)
                .http_status_as_error(false)
                .max_redirects(0)
                .max_redirects_will_error(false)
                .user_agent(concat!("nattenc/", env!("CARGO_PKG_VERSION")))
                .timeout_connect(Some(settings.timeout))
                .timeout_resolve(Some(settings.timeout))
                .timeout_per_read(Some(settings.timeout))
                .timeout_per_write(Some(settings.timeout));
            if let Some(proxy) = &settings.proxy {
                let proxy = ureq::Proxy::new(proxy).map_err(|e| {
                    Failure::config(format!("pip's proxy {:?} cannot be used: {e}", redact(proxy)))
                        .hint("correct `proxy` in pip's configuration (`python3 -m pip config debug`)")
                })?;
                config = config.proxy(Some(proxy));
            }
            Ok(config.build().new_agent())
        };
        Ok(Client { verifying: agent(true)?, trusting: agent(false)?, roots: shown, settings })
    }

    /// A page, or `None` where the server has none at that URL.
    pub(super) fn page(&self, url: &Url, accept: &str) -> anyhow::Result<Option<Page>> {
        self.patiently(url, |_| {
            let (answer, url) = self.open(url, "GET", accept, 0)?;
            let mut bytes = Vec::new();
            let read = answer.body.take(PAGE_LIMIT + 1).read_to_end(&mut bytes);
            read.map_err(|e| Trouble::Passing(format!("the answer broke off: {e}")))?;
            if bytes.len() as u64 > PAGE_LIMIT {
                return Err(last(Failure::config(format!("{url}: longer than any index page"))));
            }
            Ok(Page { url, bytes })
        })
    }

    /// The size of a file that the server states, where it states one.
    pub(super) fn size(&self, url: &Url) -> anyhow::Result<Option<u64>> {
        Ok(self.patiently(url, |_| Ok(self.open(url, "HEAD", "*/*", 0)?.0.length))?.flatten())
    }

    /// Downloads into `part`, going on where an earlier try stopped. `advance` is told of new bytes.
    /// `None` where the server has no such file. The bytes are on the disk but not verified.
    pub(super) fn download(
        &self,
        url: &Url,
        part: &Path,
        size: Option<u64>,
        advance: &dyn Fn(u64),
    ) -> anyhow::Result<Option<()>> {
        let mut best = if part.is_file() { fs::size(part)? } else { 0 };
        advance(best);
        self.patiently(url, |moved| {
            let mut have = if part.is_file() { fs::size(part)? } else { 0 };
            if size.is_some_and(|s| have > s) {
                fs::remove_file(part)?;
                have = 0;
            }
            if have > 0 && size == Some(have) {
                return Ok(());
            }
            let mut answer = self.open(url, "GET", "*/*", have)?.0;
            let mut file = if answer.from == have && have > 0 { fs::open_append(part)? } else { fs::create(part)? };
            have = answer.from;
            let expected = size.or(answer.length.map(|l| have + l));
            let mut buffer = vec![0u8; 1 << 17];
            loop {
                let n = match answer.body.read(&mut buffer) {
                    Ok(n) => n,
                    Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                    Err(e) => return Err(Trouble::Passing(format!("the download broke off after {have} bytes: {e}"))),
                };
                if n == 0 {
                    break;
                }
                fs::write_all(&mut file, part, &buffer[..n])?;
                have += n as u64;
                if have > best {
                    advance(have - best);
                    best = have;
                    moved();
                }
                if let Some(size) = size.filter(|s| have > *s) {
                    drop(file);
                    fs::remove_file(part)?;
                    let failure = Failure::integrity(format!(
                        "{url}: the file is longer than it should be\n  expected {size} bytes\n  got      more than that"
                    ));
                    return Err(last(failure.hint("try again; a proxy or mirror may have sent something else")));
                }
            }
            if let Some(expected) = expected.filter(|e| have < *e) {
                return Err(Trouble::Short(format!("the file ended after {have} of {expected} bytes")));
            }
            fs::sync(&file, part)?;
            Ok(())
        })
    }

    /// Tries until success or a final failure. `once` calls its argument whenever it got further than
    /// ever before, which starts the count of tries anew.
    fn patiently<T>(
        &self,
        url: &Url,
        mut once: impl FnMut(&dyn Fn()) -> Result<T, Trouble>,
    ) -> anyhow::Result<Option<T>> {
        let moved = std::cell::Cell::new(false);
        let mut failures = 0;
        loop {
            let patience = if url.scheme == "file" { 1 } else { self.settings.attempts };
            let (limit, class, what) = match once(&|| moved.set(true)) {
                Ok(value) => return Ok(Some(value)),
                Err(Trouble::Missing) => return Ok(None),
                Err(Trouble::Final(error)) => return Err(error),
                Err(Trouble::Passing(what)) => (patience, Class::Config, what),
                Err(Trouble::Short(what)) => (patience, Class::Integrity, what),
                Err(Trouble::Unreachable(what)) => (patience.min(3), Class::Config, what),
            };
            failures = if moved.replace(false) { 1 } else { failures + 1 };
            if failures >= limit {
                return Err(Failure::new(class, format!("{url}: {what} ({failures} tries without progress)"))
                    .hint("check the network and pip's index, proxy and certificates (`python3 -m pip config list`), or use --offline with a filled store")
                    .into());
            }
            std::thread::sleep(self.settings.pause * 2u32.saturating_pow(failures - 1));
        }
    }

    /// One request, redirects followed; the answer has status 200 or 206.
    fn open(&self, url: &Url, method: &str, accept: &str, from: u64) -> Result<(Answer, Url), Trouble> {
        let mut url = url.clone();
        for _ in 0..HOPS {
            if url.scheme == "file" {
                return Ok((open_file(&url)?, url));
            }
            let trusted = self.is_trusted(&url);
            if url.scheme == "http" && !trusted && !url.is_loopback() {
                let failure = Failure::config(format!("{url}: plain http cannot be trusted"));
                return Err(last(
                    failure.hint(format!("use https, or name {} in pip's trusted-host", url.host)),
                ));
            }
            let agent = if trusted { &self.trusting } else { &self.verifying };
            let mut request =
                if method == "HEAD" { agent.head(url.request()) } else { agent.get(url.request()) };
            request = request.header("Accept", accept);
            if accept == "*/*" {
                // A file's bytes are pinned as they are: no transport coding on top.
                request = request.header("Accept-Encoding", "identity");
            }
            if from > 0 {
                request = request.header("Range", format!("bytes={from}-"));
            }
            if let Some(value) = self.authorization(&url) {
                request = request.header("Authorization", value);
            }
            let answer =
                if url.is_loopback() { request.config().proxy(None).build().call() } else { request.call() };
            let answer = answer.map_err(|e| self.trouble(&url, &e))?;
            let header =
                |name: &str| answer.headers().get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
            let status = answer.status().as_u16();
            match status {
                200 | 206 => {
                    let from = if status == 206 {
                        range_start(header("Content-Range").as_deref(), from)?
                    } else {
                        0
                    };
                    let length = header("Content-Length").and_then(|l| l.parse().ok());
                    return Ok((
                        Answer { body: Box::new(answer.into_body().into_reader()), from, length },
                        url,
                    ));
                }
                301 | 302 | 303 | 307 | 308 => {
                    let target = header("Location")
                        .ok_or_else(|| Trouble::Passing("a redirect to nowhere".to_owned()))?;
                    url = url.join(&target).map_err(|e| {
                        last(Failure::config(format!("{url}: redirected to an unusable URL: {e}")))
                    })?;
                }
                404 | 410 => return Err(Trouble::Missing),
                401 | 403 | 407 => {
                    let failure = Failure::config(format!("{url}: access refused (HTTP {status})"));
                    return Err(last(
                        failure.hint("check the user and password in pip's index URL or in ~/.netrc"),
                    ));
                }
                // What was kept of an earlier try is no start of this file.
                416 if from > 0 => return self.open(&url, method, accept, 0),
                408 | 425 | 429 | 500..=599 => return Err(Trouble::Passing(format!("HTTP {status}"))),
                _ => return Err(last(Failure::config(format!("{url}: unexpected HTTP status {status}")))),
            }
        }
        Err(last(Failure::config(format!("{url}: more than {HOPS} redirects"))))
    }

    fn is_trusted(&self, url: &Url) -> bool {
        let with_port = format!("{}:{}", url.host, url.origin().2);
        self.settings
            .trusted
            .iter()
            .any(|t| t.eq_ignore_ascii_case(&url.host) || t.eq_ignore_ascii_case(&with_port))
    }

    fn authorization(&self, url: &Url) -> Option<String> {
        let own = url.userinfo.as_deref().map(basic);
        own.or_else(|| {
            let known = self.settings.credentials.iter().find(|(of, _)| of.origin() == url.origin());
            known.map(|(_, header)| header.clone())
        })
    }

    fn trouble(&self, url: &Url, error: &ureq::Error) -> Trouble {
        use ureq::Error as E;
        let text = redact(&error.to_string());
        match error {
            E::Rustls(_) | E::Tls(_) | E::Pem(_) => self.insecure(url, &text),
            E::Io(e) if e.kind() == ErrorKind::InvalidData => self.insecure(url, &text),
            E::Io(e)
                if matches!(
                    e.kind(),
                    ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable
                ) =>
            {
                Trouble::Unreachable(text)
            }
            // What a failed getaddrinfo says has no kind of its own.
            E::Io(e) if e.to_string().starts_with("failed to lookup address") => Trouble::Unreachable(text),
            E::HostNotFound | E::ConnectionFailed => Trouble::Unreachable(text),
            E::Http(_) | E::BadUri(_) | E::InvalidProxyUrl => last(Failure::config(format!("{url}: {text}"))),
            _ => Trouble::Passing(text),
        }
    }

    fn insecure(&self, url: &Url, text: &str) -> Trouble {
        let failure =
            Failure::config(format!("{url}: no secure connection: {text}\n  certificates: {}", self.roots))
                .hint("name the right certificate bundle in PIP_CERT or in pip's `cert` option");
        last(failure)
    }
}

/// The `Authorization` value of a percent-encoded `user:password`.
pub(super) fn basic(userinfo: &str) -> String {
    let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
    let mut bytes = super::url::percent_decode(user);
    bytes.push(b':');
    bytes.extend(super::url::percent_decode(password));
    format!("Basic {}", base64(&bytes))
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let byte = |i: usize| usize::from(group.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let digit = char::from(DIGITS[bits >> (18 - 6 * i) & 63]);
            text.push(if i <= group.len() { digit } else { '=' });
        }
    }
    text
}

fn range_start(content_range: Option<&str>, asked: u64) -> Result<u64, Trouble> {
    let start = content_range
        .and_then(|r| r.trim().strip_prefix("bytes"))
        .and_then(|r| r.trim().split('-').next())
        .and_then(|r| r.trim().parse::<u64>().ok());
    match start {
        Some(start) if start == asked => Ok(start),
        _ => Err(Trouble::Passing(format!("asked for bytes from {asked} on, got {content_range:?}"))),
    }
}

fn open_file(url: &Url) -> Result<Answer, Trouble> {
    let path =
        url.file_path().ok_or_else(|| last(Failure::config(format!("{url}: a file of another machine"))))?;
    if !path.is_file() {
        return Err(Trouble::Missing);
    }
    let length = Some(fs::size(&path)?);
    Ok(Answer { body: Box::new(fs::open(&path)?), from: 0, length })
}

/// Root certificates in pip's order, and words for where they come from.
pub(super) fn roots(pip: Option<&Path>) -> anyhow::Result<(RootCerts, String)> {
    // Where Linux distributions keep the system's bundle.
    const SYSTEM: [&str; 4] = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/ca-bundle.pem",
        "/etc/ssl/cert.pem",
    ];
    let chosen = pip.map(|p| ("pip's cert option", p.to_path_buf())).or_else(|| {
        let variables = ["PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"];
        variables.into_iter().find_map(|v| env::path(v).map(|p| (v, p)))
    });
    let chosen = chosen.or_else(|| {
        SYSTEM.iter().map(PathBuf::from).find(|p| p.is_file()).map(|p| ("the system's bundle", p))
    });
    let Some((whose, path)) = chosen else {
        return Ok((RootCerts::WebPki, "those built into nattenc".to_owned()));
    };
    let shown = format!("{} ({whose})", path.display());
    let files = if path.is_dir() {
        fs::list(&path)?.into_iter().filter(|p| p.is_file()).collect()
    } else {
        vec![path]
    };
    let mut certificates: Vec<Certificate<'static>> = Vec::new();
    for file in files {
        let bytes = fs::read(&file).map_err(|e| e.context(format!("certificates of {shown}")))?;
        certificates.extend(parse_pem(&bytes).filter_map(Result::ok).filter_map(|item| match item {
            PemItem::Certificate(certificate) => Some(certificate),
            _ => None,
        }));
    }
    if certificates.is_empty() {
        return Err(Failure::config(format!("{shown}: holds no PEM certificate"))
            .hint("name a certificate bundle in PIP_CERT, or unset it")
            .into());
    }
    Ok((RootCerts::from(certificates), shown))
}

fn client_certificate(path: &Path) -> anyhow::Result<ClientCert> {
    let bytes = fs::read(path).map_err(|e| e.context("pip's client-cert"))?;
    let (mut chain, mut key) = (Vec::new(), None);
    for item in parse_pem(&bytes).filter_map(Result::ok) {
        match item {
            PemItem::Certificate(certificate) => chain.push(certificate),
            PemItem::PrivateKey(private) => key = Some(private),
            _ => {}
        }
    }
    match key {
        Some(key) if !chain.is_empty() => Ok(ClientCert::new_with_certs(&chain, key)),
        _ => Err(Failure::config(format!(
            "{}: pip's client-cert lacks a certificate or a private key",
            path.display()
        ))
        .hint("put both into one PEM file")
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_decoded_before_they_are_encoded() {
        for (userinfo, header) in [
            ("Aladdin:open%20sesame", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
            ("token", "Basic dG9rZW46"),
            ("a:b", "Basic YTpi"),
            ("u:p%3A%40", "Basic dTpwOkA="),
        ] {
            assert_eq!(basic(userinfo), header, "{userinfo}");
        }
    }

    #[test]
    fn a_range_that_was_not_asked_for_is_not_appended() {
        for (header, asked, fine) in [
            (Some("bytes 5-9/10"), 5, true),
            (Some("bytes 0-9/10"), 5, false),
            (Some("items 5-9/10"), 5, false),
            (None, 5, false),
        ] {
            assert_eq!(range_start(header, asked).is_ok(), fine, "{header:?}");
        }
    }
}
