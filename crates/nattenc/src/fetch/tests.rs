//! Whole fetches against a server of the test's own, which misbehaves as it is told.

use super::http::Settings;
use super::lock::Lock;
use super::pip::{FindLinks, Sources};
use super::session::Session;
use super::unpack::tests::{Item, tar_gz, tar_xz, zip};
use super::url::Url;
use super::*;
use crate::failure::{Class, class};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the server does with one request for a path; after the last of a script it behaves well.
#[derive(Debug, Clone)]
enum Act {
    /// An error status.
    Status(u16),
    /// The whole length is announced and this much of the body comes.
    Cut(usize),
    /// The whole body although a range was asked for.
    IgnoreRange,
    /// A redirect.
    To(String),
    /// These bytes in place of the body.
    Instead(Vec<u8>),
    /// The body, without a length.
    Endless(Vec<u8>),
}

#[derive(Default)]
struct Site {
    bodies: BTreeMap<String, Vec<u8>>,
    scripts: BTreeMap<String, Vec<Act>>,
    /// `METHOD path range authorization`, as they came.
    log: Vec<String>,
    /// The Authorization that every path wants.
    password: Option<String>,
}

#[derive(Clone)]
struct Server {
    site: Arc<Mutex<Site>>,
    base: String,
}

impl Server {
    fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let server = Server { site: Arc::default(), base };
        let site = Arc::clone(&server.site);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let site = Arc::clone(&site);
                std::thread::spawn(move || answer(stream.unwrap(), &site));
            }
        });
        server
    }

    fn put(&self, path: &str, body: &[u8]) {
        self.site.lock().unwrap().bodies.insert(path.to_owned(), body.to_vec());
    }

    fn script(&self, path: &str, acts: &[Act]) {
        self.site.lock().unwrap().scripts.insert(path.to_owned(), acts.to_vec());
    }

    fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.site.lock().unwrap().log)
    }

    /// Serves files of a project, listed in one of the two forms.
    fn project(&self, form: Form, name: &str, files: &[(&str, Vec<u8>)]) {
        let mut page = String::new();
        for (file, body) in files {
            self.put(&format!("/files/{file}"), body);
            let hash = fs::sha256_of(body);
            let link = match form {
                Form::Json => format!(
                    r#"{}{{"filename": "{file}", "url": "../../files/{file}", "hashes": {{"sha256": "{hash}"}}, "size": {}}}"#,
                    if page.is_empty() { "" } else { "," },
                    body.len()
                ),
                Form::Html => format!("<a href='../../files/{file}#sha256={hash}'>{file}</a>\n"),
                Form::Bare => format!("<a href='../../files/{file}'>{file}</a>\n"),
            };
            page.push_str(&link);
        }
        if form == Form::Json {
            page = format!(r#"{{"meta": {{"api-version": "1.1"}}, "name": "{name}", "files": [{page}]}}"#);
        }
        self.put(&format!("/simple/{name}/"), page.as_bytes());
    }
}

fn answer(stream: TcpStream, site: &Mutex<Site>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (mut range, mut authorization) = (None, String::new());
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim().split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "range" => range = value.trim().strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok(),
            "authorization" => authorization = value.trim().to_owned(),
            _ => {}
        }
    }
    let (body, act, allowed) = {
        let mut site = site.lock().unwrap();
        site.log.push(format!("{method} {path} {range:?} {authorization}"));
        let script = site.scripts.get_mut(&path).filter(|s| !s.is_empty()).map(|s| s.remove(0));
        let allowed = site.password.as_ref().is_none_or(|p| *p == authorization);
        (site.bodies.get(&path).cloned(), script, allowed)
    };
    let mut out = stream;
    let mut send = |status: &str, headers: &str, length: Option<usize>, body: &[u8]| {
        let length = length.map(|l| format!("Content-Length: {l}\r\n")).unwrap_or_default();
        write!(out, "HTTP/1.1 {status}\r\nConnection: close\r\n{length}{headers}\r\n").ok()?;
        if method != "HEAD" {
            out.write_all(body).ok()?;
        }
        out.flush().ok()
    };
    if !allowed {
        return send("401 Unauthorized", "", Some(0), b"");
    }
    let Some(body) = body else { return send("404 Not Found", "", Some(0), b"") };
    let (mut range, mut body, mut cut) = (range, body, None);
    match act {
        Some(Act::Status(code)) => return send(&format!("{code} No"), "", Some(0), b""),
        Some(Act::To(url)) => return send("302 Found", &format!("Location: {url}\r\n"), Some(0), b""),
        Some(Act::Endless(other)) => return send("200 OK", "", None, &other),
        Some(Act::Cut(at)) => cut = Some(at),
        Some(Act::IgnoreRange) => range = None,
        Some(Act::Instead(other)) => body = other,
        None => {}
    }
    let (status, headers, from) = match range {
        Some(from) if from < body.len() => {
            let last = body.len() - 1;
            ("206 Partial Content", format!("Content-Range: bytes {from}-{last}/{}\r\n", body.len()), from)
        }
        Some(_) => return send("416 Range Not Satisfiable", "", Some(0), b""),
        None => ("200 OK", String::new(), 0),
    };
    let end = cut.unwrap_or(body.len()).max(from);
    send(status, &headers, Some(body.len() - from), &body[from..end])
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Json,
    Html,
    /// HTML without hashes.
    Bare,
}

/// Keeps what it is told.
#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Told {
    fn take(&self) -> String {
        std::mem::take(&mut *self.0.lock().unwrap()).join("\n")
    }
}

impl Progress for Told {
    fn begin(&self, what: &str, bytes: Option<u64>) -> u64 {
        self.0.lock().unwrap().push(format!("begin {what} {bytes:?}"));
        0
    }

    fn advance(&self, _id: u64, bytes: u64) {
        self.0.lock().unwrap().push(format!("advance {bytes}"));
    }

    fn end(&self, _id: u64, outcome: &str) {
        self.0.lock().unwrap().push(format!("end {outcome}"));
    }
}

struct Bench {
    dir: tempfile::TempDir,
    server: Server,
    options: Options,
    told: Told,
}

const CUTLASS: &str =
    "#pragma once\n#define CUTLASS_MAJOR 4\n# define CUTLASS_MINOR   3\n#define CUTLASS_PATCH 5\n";

fn sdist(marker: &str) -> Vec<u8> {
    tar_gz(&[
        ("natten-0.21.7/csrc/a.cu", 0o644, marker),
        ("natten-0.21.7/third_party/cutlass/include/cutlass/version.h", 0o644, CUTLASS),
        ("natten-0.21.7/scripts/autogen.py", 0o755, "text"),
    ])
}

const SDIST: &str = "natten-0.21.7.tar.gz";
const SDIST_PATH: &str = "/files/natten-0.21.7.tar.gz";

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            home: dir.path().join("home"),
            lock_file: dir.path().join("nattenc.lock"),
            offline: false,
            locked: false,
            python: None,
        };
        Bench { dir, server: Server::start(), options, told: Told::default() }
    }

    /// With the sdist of natten there.
    fn with_sdist(form: Form) -> Bench {
        let bench = Bench::new();
        bench.server.project(form, "natten", &[(SDIST, sdist("kernel"))]);
        bench
    }

    fn sources(&self) -> Sources {
        let settings = Settings {
            pause: Duration::from_millis(1),
            timeout: Duration::from_secs(5),
            attempts: 4,
            ..Settings::default()
        };
        let index = Url::parse(&format!("{}/simple", self.server.base)).unwrap();
        Sources { find_links: Vec::new(), indexes: vec![index], settings }
    }

    fn natten(&self) -> anyhow::Result<Tree> {
        natten_in(&Session::with(&self.options, &self.told, self.sources()).unwrap(), "0.21.7")
    }

    fn wheels(&self, target: Target) -> anyhow::Result<Tree> {
        let wanted = [("nvidia-cuda-nvcc", "13.0.88"), ("nvidia_nvvm", "13.0.88")];
        let wanted = wanted.map(|(p, v)| (p.to_owned(), v.to_owned())).into();
        wheels_in(
            &Session::with(&self.options, &self.told, self.sources()).unwrap(),
            "cuda-13.0",
            &wanted,
            target,
        )
    }

    fn redist(&self) -> anyhow::Result<Tree> {
        let session = Session::with(&self.options, &self.told, self.sources()).unwrap();
        let components = ["cuda_nvcc", "cuda_cudart"].map(str::to_owned);
        redist_in(
            &session,
            "12.8.1",
            &format!("{}/redist/", self.server.base),
            &components,
            Target::X86_64Linux,
        )
    }

    fn lock(&self) -> String {
        fs::read_if_exists(&self.options.lock_file)
            .unwrap()
            .map_or_else(String::new, |b| String::from_utf8(b).unwrap())
    }

    fn blobs(&self) -> Vec<String> {
        let path = self.options.home.join("blobs/sha256");
        if !path.is_dir() {
            return Vec::new();
        }
        fs::list(&path).unwrap().iter().map(|p| p.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    }

    fn fail(&self, result: anyhow::Result<Tree>, expected: Class, parts: &[&str]) {
        let error = result.unwrap_err();
        let failure = error.downcast_ref::<Failure>().unwrap_or_else(|| panic!("no class: {error:?}"));
        let shown = format!("{error:#}\nhint: {}", failure.hint.as_deref().unwrap_or("none"));
        assert_eq!(failure.class, expected, "{shown}");
        for part in parts {
            assert!(shown.contains(part), "{part:?} is not in: {shown}");
        }
        assert!(failure.hint.is_some(), "{shown}");
    }
}

#[test]
fn first_use_pins_and_unpacks_and_second_use_needs_no_network() {
    for form in [Form::Json, Form::Html, Form::Bare] {
        let mut bench = Bench::with_sdist(form);
        let tree = bench.natten().unwrap();
        assert_eq!(fs::read_text(&tree.root.join("csrc/a.cu")).unwrap(), "kernel", "{form:?}");
        assert!(tree.root.ends_with("natten-0.21.7"));
        assert_eq!(cutlass_version(&tree).unwrap(), "4.3.5");
        let hash = fs::sha256_of(&sdist("kernel"));
        assert_eq!(bench.blobs(), std::slice::from_ref(&hash));
        let lock = bench.lock();
        let pinned = format!("file = \"{SDIST}\"\nsize = {}\nsha256 = \"{hash}\"\n", sdist("kernel").len());
        assert!(lock.contains(&pinned), "{form:?}: {lock}");
        assert!(!lock.contains("127.0.0.1"));
        assert!(bench.told.take().contains(&format!("begin pinned {SDIST} sha256:{hash}")));
        verify_tree(&bench.options, &tree).unwrap();

        bench.server.take_log();
        bench.options.offline = true;
        bench.options.locked = true;
        fs::remove_dir(&bench.options.home.join("locks")).unwrap();
        assert_eq!(bench.natten().unwrap(), tree);
        // So a store that cannot be written serves as well.
        assert!(!bench.options.home.join("locks").exists());
        assert_eq!(bench.server.take_log(), Vec::<String>::new());
        assert_eq!(bench.told.take(), "");
        assert_eq!(bench.lock(), lock);
    }
}

#[test]
fn a_wrong_byte_is_an_integrity_failure_and_nothing_is_kept() {
    let bench = Bench::with_sdist(Form::Json);
    let mut wrong = sdist("kernel");
    let middle = wrong.len() / 2;
    wrong[middle] ^= 1;
    bench.server.script(SDIST_PATH, &[Act::Instead(wrong.clone()), Act::Instead(wrong.clone())]);
    let (expected, got) = (fs::sha256_of(&sdist("kernel")), fs::sha256_of(&wrong));
    // Before there is a pin, and with one: the same.
    for _ in 0..2 {
        let url = format!("{}{SDIST_PATH}", bench.server.base);
        bench.fail(
            bench.natten(),
            Class::Integrity,
            &[SDIST, &expected, &got, &url, "nattenc fetch --accept"],
        );
        assert_eq!(bench.blobs(), Vec::<String>::new());
        assert_eq!(bench.lock(), "");
    }
    bench.natten().unwrap();
}

#[test]
fn an_index_that_disagrees_with_the_lock_stops_and_accept_takes_it() {
    let mut bench = Bench::with_sdist(Form::Json);
    let old = bench.natten().unwrap();
    let lock = bench.lock();
    bench.server.project(Form::Json, "natten", &[(SDIST, sdist("changed"))]);
    // As long as the store has the pinned tree, the index is not even asked.
    assert_eq!(bench.natten().unwrap(), old);
    let store = std::mem::replace(&mut bench.options.home, bench.dir.path().join("other"));
    let (expected, got) = (fs::sha256_of(&sdist("kernel")), fs::sha256_of(&sdist("changed")));
    let accepts = format!("`nattenc fetch --accept {SDIST}`");
    bench.fail(bench.natten(), Class::Integrity, &[SDIST, &expected, &got, &accepts]);
    assert_eq!(bench.lock(), lock);
    bench.options.home = store;
    verify_tree(&bench.options, &old).unwrap();

    // Accepting something that then cannot be fetched leaves the lock as it was.
    bench.server.script(SDIST_PATH, &[Act::Status(403)]);
    bench.fail(accept(&bench.options, SDIST, || bench.natten()), Class::Config, &["403"]);
    assert_eq!(bench.lock(), lock);
    let new = accept(&bench.options, SDIST, || bench.natten()).unwrap();
    assert_ne!(new.digest, old.digest);
    assert!(bench.lock().contains(&got) && !bench.lock().contains(&expected));
    assert_eq!(fs::read_text(&old.root.join("csrc/a.cu")).unwrap(), "kernel");
    bench.fail(
        accept(&bench.options, "natten.zip", || bench.natten()),
        Class::Config,
        &["\"natten.zip\"", SDIST],
    );
    bench.options.locked = true;
    bench.fail(accept(&bench.options, SDIST, || bench.natten()), Class::Config, &["--locked"]);
}

#[test]
fn what_is_missing_from_the_lock_is_named_under_locked_and_offline() {
    for (locked, offline, flag) in
        [(true, false, "--locked"), (false, true, "--offline"), (true, true, "--locked")]
    {
        let mut bench = Bench::with_sdist(Form::Json);
        (bench.options.locked, bench.options.offline) = (locked, offline);
        bench.fail(bench.natten(), Class::Config, &["nattenc.lock", "natten 0.21.7", flag, "nattenc fetch"]);
        bench.fail(
            bench.wheels(Target::X86_64Linux),
            Class::Config,
            &["nvidia-cuda-nvcc 13.0.88 for x86_64-linux, nvidia-nvvm 13.0.88 for x86_64-linux"],
        );
        assert_eq!(bench.server.take_log(), Vec::<String>::new());
    }
}

#[test]
fn offline_works_from_blobs_and_names_what_it_lacks() {
    let mut bench = Bench::with_sdist(Form::Json);
    let tree = bench.natten().unwrap();
    bench.options.offline = true;
    bench.server.take_log();
    fs::remove_dir(&bench.options.home.join("trees")).unwrap();
    assert_eq!(bench.natten().unwrap(), tree);
    // A tree that lost a file is made again, and the user told.
    fs::remove_file(&tree.root.join("csrc/a.cu")).unwrap();
    bench.told.take();
    assert_eq!(bench.natten().unwrap(), tree);
    assert!(bench.told.take().contains("damaged"));
    verify_tree(&bench.options, &tree).unwrap();

    let blob = bench.options.home.join("blobs/sha256").join(fs::sha256_of(&sdist("kernel")));
    fs::write(&blob, b"rotten").unwrap();
    assert_eq!(bench.natten().unwrap(), tree);
    fs::remove_dir(&bench.options.home.join("trees")).unwrap();
    bench.fail(bench.natten(), Class::Integrity, &[SDIST, "damaged in the store", "nattenc fetch"]);
    fs::remove_file(&blob).unwrap();
    bench.fail(bench.natten(), Class::Config, &["--offline", SDIST, "nattenc fetch"]);
    assert_eq!(bench.server.take_log(), Vec::<String>::new());

    fs::write(&blob, b"rotten").unwrap();
    bench.options.offline = false;
    assert_eq!(bench.natten().unwrap(), tree);
    assert!(bench.told.take().contains("fetched again"));
}

#[test]
fn downloads_survive_what_servers_do() {
    let body = sdist("kernel");
    let half = body.len() / 2;
    for (acts, requests, what) in [
        (vec![Act::Status(500), Act::Status(503), Act::Status(429)], vec!["None"; 4], "errors, then success"),
        (vec![Act::Cut(half)], vec!["None", "Some(half)"], "a cut body goes on where it stopped"),
        (
            vec![Act::Cut(half), Act::IgnoreRange],
            vec!["None", "Some(half)"],
            "a server without ranges starts anew",
        ),
        (
            vec![Act::Cut(half), Act::Status(416)],
            vec!["None", "Some(half)", "None"],
            "a refused range starts anew",
        ),
        (
            vec![Act::Cut(5), Act::Status(500), Act::Cut(half), Act::Status(500), Act::Status(500)],
            vec!["None", "Some(5)", "Some(5)", "Some(half)", "Some(half)", "Some(half)"],
            "progress renews the patience",
        ),
        (
            vec![Act::Endless(body[..half].to_vec())],
            vec!["None", "Some(half)"],
            "an end without a length is noticed",
        ),
    ] {
        let bench = Bench::with_sdist(Form::Json);
        bench.server.script(SDIST_PATH, &acts);
        bench.natten().unwrap_or_else(|e| panic!("{what}: {e}"));
        let log: Vec<String> = bench.server.take_log();
        let ranges: Vec<&str> =
            log.iter().filter(|l| l.contains("/files/")).map(|l| l.split(' ').nth(2).unwrap()).collect();
        let requests: Vec<String> = requests.iter().map(|r| r.replace("half", &half.to_string())).collect();
        assert_eq!(ranges, requests, "{what}");
        assert_eq!(bench.blobs().len(), 1, "{what}");
        let told = bench.told.take();
        let advanced: usize =
            told.lines().filter_map(|l| l.strip_prefix("advance ")?.parse::<usize>().ok()).sum();
        assert_eq!(advanced, body.len(), "{what}: {told}");
    }
}

#[test]
fn downloads_that_never_succeed_end_with_the_cause() {
    for (acts, expected, message) in [
        (vec![Act::Status(500); 4], Class::Config, "HTTP 500 (4 tries without progress)"),
        (vec![Act::Status(401)], Class::Config, "access refused (HTTP 401)"),
        (vec![Act::Status(404)], Class::Config, "the server has no such file"),
        (vec![Act::Status(418)], Class::Config, "HTTP status 418"),
        (vec![Act::To("loop".to_owned()); 11], Class::Config, "redirects"),
        (vec![Act::Cut(0); 4], Class::Config, "broke off after 0 bytes"),
        (vec![Act::Endless(Vec::new()); 4], Class::Integrity, "ended after 0 of"),
        (vec![Act::Endless(vec![b'x'; 1 << 20])], Class::Integrity, "longer than it should be"),
        (vec![Act::To("http://index.example/x".to_owned())], Class::Config, "plain http cannot be trusted"),
        (vec![Act::To("ftp://index.example/x".to_owned())], Class::Config, "unusable URL"),
    ] {
        let bench = Bench::with_sdist(Form::Json);
        bench.server.put("/files/loop", b"");
        bench.server.script("/files/loop", &vec![Act::To("loop".to_owned()); 20]);
        bench.server.script(SDIST_PATH, &acts);
        bench.fail(bench.natten(), expected, &[message]);
        assert_eq!(bench.lock(), "", "{message}");
    }
    let bench = Bench::new();
    bench.fail(bench.natten(), Class::Config, &["natten 0.21.7", "versions there: none"]);
    let mut sources = bench.sources();
    sources.indexes = vec![Url::parse("http://127.0.0.1:9/simple").unwrap()];
    let session = Session::with(&bench.options, &bench.told, sources).unwrap();
    bench.fail(
        natten_in(&session, "0.21.7"),
        Class::Config,
        &["127.0.0.1:9", "3 tries without progress", "--offline"],
    );
}

#[test]
fn a_rotten_start_from_an_earlier_run_is_thrown_away() {
    let bench = Bench::with_sdist(Form::Json);
    let hash = fs::sha256_of(&sdist("kernel"));
    let part = bench.options.home.join("blobs/sha256").join(format!("{hash}.part"));
    for rotten in [&b"not this file"[..], &vec![b'x'; 1 << 20]] {
        fs::write(&part, rotten).unwrap();
        bench.natten().unwrap();
        assert_eq!(bench.blobs(), std::slice::from_ref(&hash));
        fs::remove_dir(&bench.options.home).unwrap();
    }
}

#[test]
fn what_a_crash_left_does_not_disturb_the_next_run() {
    let bench = Bench::with_sdist(Form::Json);
    let tree = bench.natten().unwrap();
    let trees = bench.options.home.join("trees");
    fs::rename(&trees.join(&tree.digest), &trees.join(format!(".tmp-{}", tree.digest))).unwrap();
    fs::remove_file(&trees.join(format!(".tmp-{}/complete.json", tree.digest))).unwrap();
    fs::write(&trees.join(".tmp-0123/parts/0/x"), b"half").unwrap();
    assert_eq!(bench.natten().unwrap(), tree);
    assert_eq!(fs::list(&trees).unwrap(), [trees.join(&tree.digest)]);
}

#[test]
fn runs_at_the_same_time_fetch_once() {
    let bench = Bench::with_sdist(Form::Json);
    let trees: Vec<Tree> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..4).map(|_| scope.spawn(|| bench.natten().unwrap())).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    assert!(trees.iter().all(|t| *t == trees[0]));
    assert_eq!(bench.server.take_log().iter().filter(|l| l.contains("/files/")).count(), 1);
}

#[test]
fn credentials_go_to_their_origin_only_and_are_never_shown() {
    let bench = Bench::with_sdist(Form::Json);
    let other = Server::start();
    other.put("/moved", &sdist("kernel"));
    let header = super::http::basic("user:s3cret");
    bench.server.site.lock().unwrap().password = Some(header.clone());
    bench.fail(bench.natten(), Class::Config, &["HTTP 401", "netrc"]);
    bench.server.take_log();
    // The other server has another port, so another origin.
    bench.server.script(SDIST_PATH, &[Act::To(format!("{}/moved", other.base))]);
    let mut sources = bench.sources();
    sources.settings.credentials = vec![(sources.indexes[0].clone(), header.clone())];
    let session = Session::with(&bench.options, &bench.told, sources).unwrap();
    natten_in(&session, "0.21.7").unwrap();
    assert!(bench.server.take_log().iter().all(|l| l.ends_with(&header)));
    assert_eq!(other.take_log(), ["GET /moved None "]);
    let shown = bench.told.take() + &bench.lock();
    assert!(!shown.contains("s3cret") && !shown.contains(&header));
}

fn wheel_files() -> [(&'static str, Vec<u8>); 5] {
    let nvcc = |tag: &str| {
        zip(&[
            ("nvidia/__init__.py", 0o644, ""),
            ("nvidia/cu13/bin/nvcc", 0o644, tag),
            ("nvidia/cu13/bin/crt/link.stub", 0o644, "stub"),
            ("nvidia_cuda_nvcc-13.0.88.dist-info/RECORD", 0o644, ""),
        ])
    };
    let nvvm: &[Item<'_>] =
        &[("nvidia/__init__.py", 0o644, ""), ("nvidia/cu13/nvvm/bin/cicc", 0o644, "cicc")];
    [
        ("nvidia_cuda_nvcc-13.0.88-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", nvcc("x86")),
        ("nvidia_cuda_nvcc-13.0.88-py3-none-manylinux2014_aarch64.manylinux_2_17_aarch64.whl", nvcc("arm")),
        ("nvidia_cuda_nvcc-13.0.88-py3-none-win_amd64.whl", nvcc("windows")),
        ("nvidia_nvvm-13.0.88-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl", zip(nvvm)),
        ("nvidia_nvvm-13.0.88-py3-none-manylinux2014_aarch64.whl", zip(nvvm)),
    ]
}

fn serve_wheels(server: &Server, form: Form) {
    let files = wheel_files();
    server.project(form, "nvidia-cuda-nvcc", &files[..3]);
    server.project(form, "nvidia-nvvm", &files[3..]);
}

#[test]
fn wheels_make_one_toolkit_and_are_pinned_for_every_target() {
    use std::os::unix::fs::PermissionsExt;
    for form in [Form::Json, Form::Html, Form::Bare] {
        let bench = Bench::new();
        serve_wheels(&bench.server, form);
        let tree = bench.wheels(Target::X86_64Linux).unwrap();
        assert!(tree.root.ends_with("tree/nvidia/cu13"));
        assert_eq!(fs::read_text(&tree.root.join("bin/nvcc")).unwrap(), "x86");
        for (path, mode) in [("bin/nvcc", 0o755), ("nvvm/bin/cicc", 0o755), ("bin/crt/link.stub", 0o644)] {
            let found = tree.root.join(path).metadata().unwrap().permissions().mode() & 0o777;
            assert_eq!(found, mode, "{path}");
        }
        verify_tree(&bench.options, &tree).unwrap();
        let lock = Lock::load(&bench.options.lock_file).unwrap();
        let pins: Vec<(&str, &str, Option<u64>)> =
            lock.pins().map(|p| (p.key.name.as_str(), p.key.platform.as_str(), p.size)).collect();
        let files = wheel_files().map(|(_, body)| Some(body.len() as u64));
        // Without hashes in the index, only what was downloaded can be pinned.
        let all = [
            ("nvidia-cuda-nvcc", "aarch64-linux", files[1]),
            ("nvidia-cuda-nvcc", "x86_64-linux", files[0]),
            ("nvidia-nvvm", "aarch64-linux", files[4]),
            ("nvidia-nvvm", "x86_64-linux", files[3]),
        ];
        assert_eq!(pins, if form == Form::Bare { vec![all[1], all[3]] } else { all.to_vec() }, "{form:?}");
        let log = bench.server.take_log();
        assert!(!log.iter().any(|l| l.starts_with("GET") && l.contains("aarch64")), "{log:?}");

        let other = bench.wheels(Target::Aarch64Linux).unwrap();
        assert_ne!(other.digest, tree.digest);
        assert_eq!(fs::read_text(&other.root.join("bin/nvcc")).unwrap(), "arm");
    }
}

#[test]
fn the_digest_of_a_tree_follows_from_content_alone() {
    let digest = |form: Form| {
        let bench = Bench::new();
        serve_wheels(&bench.server, form);
        bench.wheels(Target::X86_64Linux).unwrap().digest
    };
    assert_eq!(digest(Form::Json), digest(Form::Bare));
}

#[test]
fn wheels_that_are_no_toolkit_are_refused() {
    for (path, message) in
        [("nvidia/cuda_nvcc/bin/nvcc", "hold none"), ("nvidia/cu12/bin/nvcc", "cu12 and cu13")]
    {
        let bench = Bench::new();
        serve_wheels(&bench.server, Form::Json);
        let files = wheel_files();
        let (nvcc, nvvm) = (files[0].0, files[3].0);
        let other = zip(&[(path, 0o644, "x")]);
        bench.server.project(Form::Json, "nvidia-cuda-nvcc", &[(nvcc, other.clone())]);
        if message.contains("none") {
            bench.server.project(Form::Json, "nvidia-nvvm", &[(nvvm, other)]);
        }
        bench.fail(bench.wheels(Target::X86_64Linux), Class::Toolchain, &["cuda-13.0", message]);
        assert!(!bench.options.lock_file.exists());
    }
}

#[test]
fn links_of_pip_serve_before_the_index() {
    let bench = Bench::new();
    let links = bench.dir.path().join("links dir");
    fs::write(&links.join(SDIST), &sdist("kernel")).unwrap();
    fs::write(&links.join("unrelated.txt"), b"x").unwrap();
    let fetch = |find_links: Vec<FindLinks>, indexes: Vec<Url>| {
        let sources = Sources { find_links, indexes, ..bench.sources() };
        natten_in(&Session::with(&bench.options, &bench.told, sources).unwrap(), "0.21.7")
    };
    let tree = fetch(vec![FindLinks::Directory(links.clone())], Vec::new()).unwrap();
    assert_eq!(tree.files[0].size, Some(sdist("kernel").len() as u64));
    assert!(!bench.lock().contains("links"));
    // A directory whose file is not the pinned one: the index may have the right one.
    fs::remove_dir(&bench.options.home).unwrap();
    fs::write(&links.join(SDIST), &sdist("changed")).unwrap();
    bench.fail(fetch(vec![FindLinks::Directory(links.clone())], Vec::new()), Class::Integrity, &["--accept"]);
    bench.server.project(Form::Html, "natten", &[(SDIST, sdist("kernel"))]);
    let index = bench.sources().indexes;
    assert_eq!(fetch(vec![FindLinks::Directory(links)], index).unwrap().digest, tree.digest);
    // A page of links is as good.
    fs::remove_dir(&bench.options.home).unwrap();
    let page = Url::parse(&format!("{}/simple/natten/", bench.server.base)).unwrap();
    assert_eq!(fetch(vec![FindLinks::Page(page)], Vec::new()).unwrap().digest, tree.digest);
}

#[test]
fn a_withdrawn_file_is_used_when_pinned_exactly_and_the_user_told() {
    let bench = Bench::with_sdist(Form::Html);
    let page = format!("<a data-yanked='bad build' href='../../files/{SDIST}'>x</a>");
    bench.server.put("/simple/natten/", page.as_bytes());
    bench.natten().unwrap();
    assert!(bench.told.take().contains(&format!("{SDIST} was withdrawn by its publisher: bad build")));
}

fn serve_redist(server: &Server) {
    let nvcc = tar_xz(&[
        ("cuda_nvcc-linux-x86_64-12.8.93-archive/LICENSE", 0o644, "nvcc's"),
        ("cuda_nvcc-linux-x86_64-12.8.93-archive/bin/nvcc", 0o755, "nvcc"),
        ("cuda_nvcc-linux-x86_64-12.8.93-archive/nvvm/bin/cicc", 0o755, "cicc"),
    ]);
    let cudart = tar_xz(&[
        ("cuda_cudart-linux-x86_64-12.8.90-archive/LICENSE", 0o644, "cudart's"),
        ("cuda_cudart-linux-x86_64-12.8.90-archive/lib/libcudart.so", 0o777, "-> libcudart.so.12"),
        ("cuda_cudart-linux-x86_64-12.8.90-archive/lib/libcudart.so.12", 0o755, "cudart"),
        ("cuda_cudart-linux-x86_64-12.8.90-archive/lib64", 0o777, "-> lib"),
    ]);
    let mut manifest = serde_json::json!({"release_date": "2025-03-05", "release_label": "12.8.1"});
    for (component, archive) in [("cuda_nvcc", nvcc), ("cuda_cudart", cudart)] {
        let mut entry = serde_json::json!({"name": component, "version": "12.8.93"});
        for platform in ["linux-x86_64", "linux-sbsa"] {
            let path = format!("{component}/{platform}/{component}-{platform}-archive.tar.xz");
            entry[platform] = serde_json::json!({
                "relative_path": path, "sha256": fs::sha256_of(&archive), "size": archive.len().to_string(),
            });
            server.put(&format!("/redist/{path}"), &archive);
        }
        manifest[component] = entry;
    }
    server.put("/redist/redistrib_12.8.1.json", manifest.to_string().as_bytes());
}

const NVCC_ARCHIVE: &str = "cuda_nvcc/linux-x86_64/cuda_nvcc-linux-x86_64-archive.tar.xz";

#[test]
fn redistributable_components_make_one_toolkit() {
    use std::os::unix::fs::PermissionsExt;
    let mut bench = Bench::new();
    serve_redist(&bench.server);
    let tree = bench.redist().unwrap();
    for (path, text) in [
        ("bin/nvcc", "nvcc"),
        ("nvvm/bin/cicc", "cicc"),
        ("lib/libcudart.so", "cudart"),
        ("lib64/libcudart.so", "cudart"),
        ("LICENSES/cuda_nvcc/LICENSE", "nvcc's"),
        ("LICENSES/cuda_cudart/LICENSE", "cudart's"),
    ] {
        assert_eq!(fs::read_text(&tree.root.join(path)).unwrap(), text);
    }
    assert_eq!(tree.root.join("bin/nvcc").metadata().unwrap().permissions().mode() & 0o777, 0o755);
    verify_tree(&bench.options, &tree).unwrap();
    let lock = Lock::load(&bench.options.lock_file).unwrap();
    assert_eq!(lock.pins().count(), 4);
    assert!(bench.lock().contains(&format!("platform = \"linux-x86_64\"\nfile = \"{NVCC_ARCHIVE}\"")));
    assert!(!bench.lock().contains("127.0.0.1"));
    bench.options.offline = true;
    assert_eq!(bench.redist().unwrap(), tree);
}

#[test]
fn a_redistributable_archive_with_a_wrong_byte_is_refused() {
    let bench = Bench::new();
    serve_redist(&bench.server);
    let path = format!("/redist/{NVCC_ARCHIVE}");
    let mut wrong = bench.server.site.lock().unwrap().bodies[&path].clone();
    let expected = fs::sha256_of(&wrong);
    *wrong.last_mut().unwrap() ^= 1;
    bench.server.script(&path, &[Act::Instead(wrong.clone())]);
    bench.fail(bench.redist(), Class::Integrity, &[NVCC_ARCHIVE, &expected, &fs::sha256_of(&wrong)]);
    assert!(!bench.blobs().iter().any(|b| b.starts_with(&expected)));
    assert_eq!(bench.lock(), "");
    bench.redist().unwrap();

    // A manifest that changed since it was pinned.
    fs::remove_dir(&bench.options.home).unwrap();
    let manifest = bench.server.site.lock().unwrap().bodies["/redist/redistrib_12.8.1.json"].clone();
    let changed = String::from_utf8(manifest).unwrap().replace(&expected, &"0".repeat(64));
    bench.server.put("/redist/redistrib_12.8.1.json", changed.as_bytes());
    bench.fail(bench.redist(), Class::Integrity, &[&expected, &"0".repeat(64), "nattenc fetch --accept"]);
}

#[test]
fn a_redist_provider_that_is_misconfigured_says_how() {
    let bench = Bench::new();
    serve_redist(&bench.server);
    let session = Session::with(&bench.options, &bench.told, bench.sources()).unwrap();
    let base = format!("{}/redist", bench.server.base);
    let run = |release: &str, base: &str, component: &str| {
        redist_in(&session, release, base, &[component.to_owned()], Target::X86_64Linux)
    };
    bench.fail(
        run("12.9.0", &base, "cuda_nvcc"),
        Class::Config,
        &["redistrib_12.9.0.json", "no such manifest"],
    );
    bench.fail(run("12.8.1", &base, "cuda_nvc"), Class::Config, &["\"cuda_nvc\"", "cuda_cudart cuda_nvcc"]);
    bench.fail(run("../x", &base, "cuda_nvcc"), Class::Config, &["\"../x\""]);
    bench.fail(run("12.8.1", "redist.example/cuda", "cuda_nvcc"), Class::Config, &["no scheme"]);
    bench.fail(run("12.8.1", "http://redist.example/", "cuda_nvcc"), Class::Config, &["plain http"]);
}

#[test]
fn a_tree_from_a_local_directory_is_checked_alike() {
    let bench = Bench::new();
    serve_redist(&bench.server);
    let local = bench.dir.path().join("mirror");
    for (path, body) in &bench.server.site.lock().unwrap().bodies {
        fs::write(&local.join(path.trim_start_matches("/redist/")), body).unwrap();
    }
    let session = Session::with(&bench.options, &bench.told, bench.sources()).unwrap();
    let base = Url::of_file(&local).request();
    let run = || redist_in(&session, "12.8.1", &base, &["cuda_nvcc".to_owned()], Target::X86_64Linux);
    let archive = local.join(NVCC_ARCHIVE);
    let good = fs::read(&archive).unwrap();
    fs::write(&archive, &good[..good.len() - 1]).unwrap();
    bench.fail(run(), Class::Integrity, &["ended after"]);
    let mut wrong = good.clone();
    wrong[20] ^= 1;
    fs::write(&archive, &wrong).unwrap();
    bench.fail(run(), Class::Integrity, &["expected sha256", "got      sha256"]);
    fs::write(&archive, &good).unwrap();
    run().unwrap();
}

#[test]
fn a_source_without_its_cutlass_headers_is_refused() {
    let bench = Bench::with_sdist(Form::Json);
    let tree = bench.natten().unwrap();
    let header = tree.root.join("third_party/cutlass/include/cutlass/version.h");
    fs::write(&header, b"#define CUTLASS_MAJOR 4\n").unwrap();
    assert!(cutlass_version(&tree).unwrap_err().to_string().contains("CUTLASS_MINOR"));
    fs::remove_file(&header).unwrap();
    assert_eq!(class(&cutlass_version(&tree).unwrap_err()), Class::Integrity);
}

#[test]
fn the_store_lies_where_the_environment_says() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().to_str().unwrap();
    fs::write(&dir.path().join("file"), b"").unwrap();
    let home = |variables: &[(&str, &str)]| {
        let value =
            |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.replace("BASE", base));
        home_of(&|name| value(name).map(OsString::from), Duration::from_secs(2))
    };
    for (variables, below) in [
        (&[("NATTENC_HOME", "BASE/a"), ("XDG_CACHE_HOME", "BASE/b"), ("HOME", "BASE/c")][..], "a"),
        (&[("NATTENC_HOME", ""), ("XDG_CACHE_HOME", "BASE/b"), ("HOME", "BASE/c")], "b/nattenc"),
        (&[("HOME", "BASE/c")], "c/.cache/nattenc"),
    ] {
        assert_eq!(home(variables).unwrap(), dir.path().join(below));
        assert!(dir.path().join(below).is_dir());
    }
    for (variables, message) in [
        (&[("NATTENC_HOME", "some/where")][..], "NATTENC_HOME: \"some/where\""),
        (&[("XDG_CACHE_HOME", "~/x")], "XDG_CACHE_HOME: \"~/x\""),
        (&[("NATTENC_HOME", "BASE/file")], "/file\""),
        (&[("NATTENC_HOME", "BASE/file/below")], "NATTENC_HOME: "),
        (&[("NATTENC_HOME", "/proc/nattenc")], "NATTENC_HOME: \"/proc/nattenc\""),
        (&[], "none of NATTENC_HOME"),
    ] {
        let error = home(variables).unwrap_err();
        assert_eq!(class(&error), Class::Config, "{error}");
        assert!(error.to_string().contains(message), "{error}");
    }
    fs::pipe(&dir.path().join("dead/digests.json"));
    let error = home(&[("NATTENC_HOME", "BASE/dead")]).unwrap_err();
    assert_eq!(class(&error), Class::Resource, "{error}");
    assert!(error.to_string().ends_with("/dead: the store gives no answer within 2 s"), "{error}");
}

#[test]
fn a_lock_of_a_later_format_stops_before_anything_is_fetched() {
    let bench = Bench::with_sdist(Form::Json);
    fs::write(&bench.options.lock_file, b"version = 9\n").unwrap();
    bench.fail(bench.natten(), Class::Config, &["nattenc.lock:1:", "version 9"]);
    assert_eq!(bench.server.take_log(), Vec::<String>::new());
    assert_eq!(bench.lock(), "version = 9\n");
}

#[test]
fn silence_is_noticed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let silent = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut request = [0; 4096];
        let _ = stream.read(&mut request);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nstart");
        // Held open until the client gives up.
        while stream.read(&mut request).is_ok_and(|n| n > 0) {}
    });
    let bench = Bench::new();
    let mut sources = bench.sources();
    sources.indexes = vec![Url::parse(&format!("http://{address}/simple")).unwrap()];
    sources.settings.timeout = Duration::from_millis(200);
    sources.settings.attempts = 1;
    let session = Session::with(&bench.options, &bench.told, sources).unwrap();
    bench.fail(natten_in(&session, "0.21.7"), Class::Config, &["broke off", "timeout"]);
    silent.join().unwrap();
}

fn committed_lock() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../nattenc.lock")
}

#[test]
fn the_committed_lock_is_as_nattenc_writes_it_and_serves_every_target() {
    let lock = Lock::load(&committed_lock()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    lock.save(&dir.path().join("nattenc.lock")).unwrap();
    assert_eq!(
        fs::read_text(&dir.path().join("nattenc.lock")).unwrap(),
        fs::read_text(&committed_lock()).unwrap()
    );
    for pin in lock.pins().filter(|p| p.key.kind == Kind::Wheel) {
        for target in Target::ALL {
            let key = Key { platform: target.to_string(), ..pin.key.clone() };
            assert!(lock.get(&key).is_some(), "{key} is not pinned");
        }
    }
}

#[test]
#[ignore = "asks pip's package index"]
fn the_committed_lock_agrees_with_the_index() {
    let bench = Bench::new();
    let session = Session::new(&bench.options, &Silent);
    for pin in Lock::load(&committed_lock()).unwrap().pins().filter(|p| p.key.kind != Kind::Redist) {
        session::Source::locate(&IndexSource(&session), pin).unwrap();
    }
}
