//! Fake toolkits of every layout and defect; the real ones in tests that are run on demand.

use super::*;
use crate::config::{Provider, Variant};
use crate::execute::process;
use crate::failure::{Class, block, class};
use crate::fs;

mod memo;

/// A directory with fake toolkits, a fake gcc, and nothing else in PATH but the system's tools.
struct World {
    dir: tempfile::TempDir,
    around: Surroundings,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // Real paths, so that they can be compared with resolved ones.
        let root = fs::real_path(dir.path()).unwrap();
        let mut world =
            World { dir, around: Surroundings { local: root.join("usr/local"), ..Surroundings::default() } };
        world.around.path = "/usr/bin:/bin".to_owned();
        world.make("host", "12.8", "12.8.93");
        world.around.path = format!("{}:/usr/bin:/bin", world.path("host/fake/host").display());
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        fs::real_path(self.dir.path()).unwrap().join(name)
    }

    fn make(&self, name: &str, release: &str, version: &str) -> PathBuf {
        let home = self.path(name);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fake-toolkit/make.sh");
        let argv = ["/bin/sh", &script.display().to_string(), &home.display().to_string(), release, version];
        let command = self.around.command(argv.map(str::to_owned).into(), Path::new("/"));
        let made = process::capture(&command).unwrap();
        assert!(made.success(), "{}", made.output);
        home
    }

    /// A program of the fake host.
    fn script(&self, path: &Path, text: &str) {
        fs::write(path, text.as_bytes()).unwrap();
        fs::set_mode(path, 0o755).unwrap();
    }

    fn link(&self, target: &Path, name: &str) -> PathBuf {
        let at = self.path(name);
        fs::symlink(target, &at).unwrap();
        at
    }

    fn at(&self, home: &Path) -> anyhow::Result<Toolkit> {
        at(home, "CUDA_HOME", &self.around, &Plain)
    }

    fn refused(&self, home: &Path) -> String {
        let error = self.at(home).expect_err("refused");
        assert_eq!(class(&error), Class::Toolchain, "{error:?}");
        block(&error)
    }
}

fn variant(name: &str, release: Release, providers: &[Provider]) -> Variant {
    Variant {
        name: name.to_owned(),
        release,
        providers: providers.to_vec(),
        wheels: BTreeMap::new(),
        redist: providers.contains(&Provider::Redist).then(|| crate::config::Redist {
            version: format!("{release}.1"),
            components: Vec::new(),
            url: None,
        }),
        served_by: None,
        capabilities: BTreeMap::new(),
    }
}

fn variants() -> Vec<Variant> {
    use Provider::{Installed, Redist, Wheels};
    vec![
        variant("cu124", Release::new(12, 4), &[Installed]),
        variant("cu128", Release::new(12, 8), &[Installed, Redist]),
        variant("cu130", Release::new(13, 0), &[Wheels, Installed]),
    ]
}

fn unavailable(provider: Provider) -> anyhow::Result<Supplied> {
    Ok(Supplied::Unavailable(match provider {
        Provider::Redist => "NATTENC_REDIST_URL is not set".to_owned(),
        _ => "not fetched yet".to_owned(),
    }))
}

/// Runs `then` with a request for `name` in `world`.
fn asking<T>(
    world: &World,
    name: &str,
    toolkit: Option<&Path>,
    supply: &dyn Fn(Provider) -> anyhow::Result<Supplied>,
    then: impl FnOnce(&Request<'_>) -> T,
) -> T {
    let all = variants();
    then(&Request {
        toolkit,
        variant: all.iter().find(|v| v.name == name).unwrap(),
        variants: &all,
        surroundings: &world.around,
        supply,
        digests: &Plain,
    })
}

fn found(world: &World, name: &str) -> anyhow::Result<Toolkit> {
    asking(world, name, None, &unavailable, locate)
}

#[test]
fn a_whole_toolkit_is_described() {
    let world = World::new();
    let home = world.make("cuda", "12.8", "12.8.93");
    let toolkit = world.at(&home).unwrap();
    assert_eq!((toolkit.release, toolkit.version.as_str()), (Release::new(12, 8), "12.8.93"));
    assert_eq!(toolkit.home, home);
    assert_eq!(toolkit.include, home.join("include"));
    assert_eq!(toolkit.cudart, Cudart::Static(home.join("lib64/libcudart_static.a")));
    assert_eq!(toolkit.capabilities.iter().map(ToString::to_string).collect::<Vec<_>>(), ["8.0", "9.0"]);
    assert_eq!(toolkit.bound, Bound { gcc: Some(14), clang: Some(19) });
    assert_eq!((toolkit.host.version.as_str(), toolkit.host.ccbin.as_deref()), ("12.2.0", None));
    assert_eq!(
        toolkit.tools.keys().map(String::as_str).collect::<Vec<_>>(),
        ["cc1plus", "cicc", "cudafe++", "fatbinary", "gcc", "nvcc", "ptxas"]
    );
    assert_eq!(toolkit.tools["ptxas"].sha256, fs::sha256(&home.join("bin/ptxas")).unwrap());
    assert_eq!(toolkit.warnings, Vec::<String>::new());
    assert!(serde_json::to_string(&toolkit).unwrap().contains("\"static\""));
}

#[test]
fn homes_of_every_layout_are_found() {
    let world = World::new();
    let home = world.make("opt/cuda-12.8", "12.8", "12.8.93");

    // A symlink to the home: the real one is what counts.
    let link = world.link(&home, "opt/cuda");
    assert_eq!(world.at(&link).unwrap().home, home);
    // nvcc itself a symlink elsewhere.
    let bin = world.path("elsewhere/bin");
    fs::create_dir(&bin).unwrap();
    world.link(&home.join("bin/nvcc"), "elsewhere/bin/nvcc");
    assert_eq!(world.at(&world.path("elsewhere")).unwrap().home, home);

    // conda: headers and libraries in targets/.
    let conda = world.make("conda", "12.8", "12.8.93");
    let target =
        conda.join("targets").join(if cfg!(target_arch = "aarch64") { "sbsa-linux" } else { "x86_64-linux" });
    fs::create_dir(&target).unwrap();
    fs::rename(&conda.join("include"), &target.join("include")).unwrap();
    fs::rename(&conda.join("lib64"), &target.join("lib")).unwrap();
    let toolkit = world.at(&conda).unwrap();
    assert_eq!(toolkit.include, target.join("include"));
    assert_eq!(toolkit.cudart.path(), target.join("lib/libcudart_static.a"));

    // Debian: /usr/bin/nvcc is a script, the home is under /usr/lib, headers and libraries are not.
    let debian = world.make("usr/lib/nvidia-cuda-toolkit", "12.8", "12.8.93");
    let triplet = if cfg!(target_arch = "aarch64") { "aarch64-linux-gnu" } else { "x86_64-linux-gnu" };
    fs::rename(&debian.join("nvvm/bin/cicc"), &debian.join("bin/cicc")).unwrap();
    fs::rename(&debian.join("include"), &world.path("usr/include")).unwrap();
    fs::rename(&debian.join("lib64"), &world.path("usr/lib").join(triplet)).unwrap();
    fs::create_dir(&world.path("usr/bin")).unwrap();
    world.script(
        &world.path("usr/bin/nvcc"),
        &format!("#!/bin/sh\nexec {}/bin/nvcc \"$@\"\n", debian.display()),
    );
    for home in [debian.clone(), world.path("usr")] {
        let toolkit = world.at(&home).unwrap();
        assert_eq!((&toolkit.home, &toolkit.nvcc), (&debian, &debian.join("bin/nvcc")));
        assert_eq!(toolkit.include, world.path("usr/include"));
        assert_eq!(toolkit.cudart.path(), world.path("usr/lib").join(triplet).join("libcudart_static.a"));
    }

    // Only a shared runtime.
    let shared = world.make("shared", "12.8", "12.8.93");
    fs::rename(&shared.join("lib64/libcudart_static.a"), &shared.join("lib64/libcudart.so.12")).unwrap();
    assert_eq!(world.at(&shared).unwrap().cudart, Cudart::Shared(shared.join("lib64/libcudart.so.12")));
}

#[test]
fn parts_that_are_missing_or_disagree_are_each_named() {
    let world = World::new();
    let home = world.make("cuda", "12.8", "12.8.93");
    let other = world.make("other", "12.4", "12.4.131");
    for part in ["nvvm/bin/cicc", "bin/ptxas", "include/cuda_runtime_api.h", "lib64/libcudart_static.a"] {
        fs::copy(&other.join(part), &home.join(part)).unwrap();
    }
    fs::remove_file(&home.join("bin/fatbinary")).unwrap();
    fs::remove_file(&home.join("include/crt/host_config.h")).unwrap();
    fs::write(&home.join("fake/capabilities"), b"what?\n").unwrap();
    let text = world.refused(&home);
    for line in [
        "(CUDA_HOME): cuda 12.8.93 is not whole",
        "cicc is of cuda 12.4.131: ",
        "ptxas is of cuda 12.4.131: ",
        "headers is of cuda 12.4: ",
        "cudart is of cuda 12.4: ",
        "fatbinary is missing from ",
        "crt/host_config.h is missing from ",
        "nvcc --list-gpu-code lists no capability, it printed \"what?\"",
        "next step:  install one complete toolkit",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains("cudafe++"), "{text}");
}

#[test]
fn banners_with_noise_are_read_and_those_without_a_release_are_quoted() {
    let world = World::new();
    let home = world.make("cuda", "12.8", "12.8.93");
    let say = |text: &str| fs::write(&home.join("fake/version"), text.as_bytes()).unwrap();
    say("module: loading cuda\nCuda compilation tools, release 12.8, V12.8.93\nwrapper: done\n");
    assert_eq!(world.at(&home).unwrap().version, "12.8.93");
    say("");
    assert!(world.refused(&home).contains("--version names no release (exit code 0), it printed nothing"));
    say("hello\n\"world\"\n3\n4\n");
    assert!(world.refused(&home).contains("it printed \"hello\", \"\\\"world\\\"\", \"3\""));
    fs::remove_file(&home.join("fake/version")).unwrap();
    world.script(&home.join("bin/nvcc"), "#!/bin/sh\necho broken >&2\nexit 3\n");
    assert!(world.refused(&home).contains("(exit code 3), it printed \"broken\""));
    world.script(&home.join("bin/nvcc"), "#!/nonexistent\n");
    assert!(world.refused(&home).contains("cannot start"));
    fs::write(&home.join("bin/nvcc"), b"").unwrap();
    fs::set_mode(&home.join("bin/nvcc"), 0o644).unwrap();
    assert!(world.refused(&home).contains("cannot start"));
}

#[test]
fn homes_that_are_none_say_which_would_be() {
    let world = World::new();
    let home = world.make("cuda", "12.8", "12.8.93");
    for (path, message, hint) in [
        (home.join("bin"), "has no bin/nvcc", home.display().to_string()),
        (home.join("bin/nvcc"), "is no directory", home.display().to_string()),
        (world.path("absent"), "is no directory", "the directory that holds bin/nvcc".to_owned()),
        (home.join("include/crt"), "has no bin/nvcc", "name".to_owned()),
    ] {
        let text = world.refused(&path);
        assert!(text.contains(message) && text.contains(&hint), "{}: {text}", path.display());
    }
}

#[test]
fn a_later_minor_warns_and_another_major_is_refused() {
    let world = World::new();
    for (release, warned) in
        [("13.0", false), ("13.2", false), ("13.9", true), ("12.9", false), ("12.10", true)]
    {
        let home = world.make(&format!("cuda-{release}"), release, &format!("{release}.1"));
        let warnings = world.at(&home).unwrap().warnings;
        assert_eq!(!warnings.is_empty(), warned, "{release}: {warnings:?}");
    }
    for release in ["14.0", "11.8"] {
        let home = world.make(&format!("cuda-{release}"), release, &format!("{release}.1"));
        let text = world.refused(&home);
        assert!(
            text.contains(&format!("cuda {release} is not supported: this nattenc knows 12.x and 13.x")),
            "{text}"
        );
    }
}

#[test]
fn the_documented_order_decides() {
    let mut world = World::new();
    for name in ["home", "path", "usr/local/cuda-12.8", "usr/local/cuda-12.4", "inpath", "explicit", "redist"]
    {
        let release = if name.ends_with("12.4") { ("12.4", "12.4.131") } else { ("12.8", "12.8.93") };
        world.make(name, release.0, release.1);
    }
    let redist = Supplied::Home(world.path("redist"));
    let supply = |provider: Provider| match provider {
        Provider::Redist => Ok(redist.clone()),
        other => unavailable(other),
    };
    world.around.cuda_home = Some(world.path("home").display().to_string());
    world.around.cuda_path = Some(world.path("path").display().to_string());
    world.around.path = format!("{}:{}", world.path("inpath/bin").display(), world.around.path);
    let origin = |world: &World, toolkit: Option<&Path>| {
        asking(world, "cu128", toolkit, &supply, locate).unwrap().origin
    };
    assert_eq!(origin(&world, Some(&world.path("explicit"))), "--toolkit");
    assert_eq!(origin(&world, None), "CUDA_HOME");
    world.around.cuda_home = None;
    assert_eq!(origin(&world, None), "CUDA_PATH");
    world.around.cuda_path = None;
    assert_eq!(origin(&world, None), world.path("usr/local/cuda-12.8").display().to_string());
    fs::remove_dir(&world.path("usr/local/cuda-12.8")).unwrap();
    assert_eq!(origin(&world, None), "PATH");
    fs::remove_dir(&world.path("inpath")).unwrap();
    assert_eq!(origin(&world, None), "redist");

    // Wheels come first where the variant lists them first.
    let wheels = world.make("wheels", "13.0", "13.0.88");
    world.around.cuda_home = Some(world.make("installed", "13.0", "13.0.88").display().to_string());
    let supply = |_: Provider| Ok(Supplied::Home(wheels.clone()));
    assert_eq!(asking(&world, "cu130", None, &supply, locate).unwrap().origin, "wheels");
    assert_eq!(found(&world, "cu130").unwrap().origin, "CUDA_HOME");
}

#[test]
fn what_was_named_and_is_broken_is_never_passed_over() {
    let mut world = World::new();
    world.make("usr/local/cuda-12.8", "12.8", "12.8.93");
    for (value, class_, message) in [
        (
            ":/opt/cuda-12.8",
            Class::Config,
            "CUDA_HOME: value \":/opt/cuda-12.8\" is a list, where one directory is wanted",
        ),
        ("/opt/cuda:/opt/other", Class::Config, "is a list"),
        ("opt/cuda", Class::Config, "CUDA_HOME: value \"opt/cuda\" is no absolute path"),
        ("\"/opt/cuda\"", Class::Config, "has quotes or blanks around it"),
        ("/opt/cuda ", Class::Config, "CUDA_HOME: value \"/opt/cuda \" has quotes or blanks around it"),
        ("/nonexistent", Class::Toolchain, "CUDA_HOME: toolkit \"/nonexistent\" is no directory"),
        ("/usr", Class::Toolchain, "CUDA_HOME: toolkit \"/usr\" has no bin/nvcc"),
    ] {
        world.around.cuda_home = Some(value.to_owned());
        let error = found(&world, "cu128").expect_err(value);
        assert_eq!(class(&error), class_, "{value}");
        assert!(error.to_string().contains(message), "{value}: {error}");
        assert!(block(&error).contains("bin/nvcc"), "the next step: {}", block(&error));
    }
    world.around.cuda_home = None;
    world.around.cuda_path = Some("relative".to_owned());
    assert!(found(&world, "cu128").unwrap_err().to_string().contains("CUDA_PATH: value \"relative\""));
    world.around.cuda_path = None;
    let error = asking(&world, "cu128", Some(Path::new("/nowhere")), &unavailable, locate).unwrap_err();
    assert_eq!(error.to_string(), "--toolkit: toolkit \"/nowhere\" is no directory");
    // A broken one that merely lies about is named and passed over.
    fs::remove_file(&world.path("usr/local/cuda-12.8/bin/ptxas")).unwrap();
    let text = found(&world, "cu128").unwrap_err().to_string();
    assert!(text.contains("ptxas is missing from"), "{text}");
    // What a provider fails with is not swallowed.
    let failing = |_: Provider| Err(Failure::integrity("wrong bytes").into());
    let error = asking(&world, "cu130", None, &failing, locate).unwrap_err();
    assert_eq!(class(&error), Class::Integrity);
}

#[test]
fn without_the_release_everything_seen_and_every_way_out_is_listed() {
    let mut world = World::new();
    let old = world.make("cuda-12.4", "12.4", "12.4.131");
    world.make("usr/local/cuda-12.6", "12.6", "12.6.85");
    world.around.cuda_home = Some(old.display().to_string());
    let error = found(&world, "cu128").unwrap_err();
    let text = block(&error).replace(&world.path("").display().to_string(), "/");
    assert_eq!(
        text,
        "error: no toolkit of cuda 12.8 for variant cu128
  seen:
    CUDA_HOME /cuda-12.4: is cuda 12.4.131, cu128 needs 12.8
    CUDA_PATH: not set
    /usr/local/cuda-12.8: not there
    /usr/local/cuda-12.6: is cuda 12.6.85, cu128 needs 12.8
    PATH: no nvcc
    redist: NATTENC_REDIST_URL is not set
  to get cuda 12.8: install cuda 12.8 and point --toolkit or CUDA_HOME at it, or set NATTENC_REDIST_URL to the directory that holds redistrib_12.8.1.json
  would build here now: cu130 (wheels from the package index), cu124 (/cuda-12.4)

  class:      toolchain (exit code 3)
  unit:       -
  diagnostic: -
  log:        -
  next step:  install cuda 12.8 and point --toolkit or CUDA_HOME at it; or build another variant: --variant cu130
"
    );
    // Explicitly asked for: nothing else is looked at.
    let error = asking(&world, "cu128", Some(&old), &unavailable, locate).unwrap_err().to_string();
    assert!(error.contains("--toolkit ") && error.contains("is cuda 12.4.131, cu128 needs 12.8"), "{error}");
    assert!(!error.contains("PATH: "), "{error}");
}

#[test]
fn the_host_compiler_is_the_one_that_was_asked_for_or_a_failure() {
    let mut world = World::new();
    let home = world.make("cuda", "12.8", "12.8.93");
    let gcc = world.path("host/fake/host/gcc");
    for (value, found) in [
        (gcc.display().to_string(), true),
        (gcc.parent().unwrap().display().to_string(), true),
        ("gcc".to_owned(), true),
        ("/nonexistent".to_owned(), false),
        ("g++-99".to_owned(), false),
    ] {
        world.around.ccbin = Some(value.clone());
        match world.at(&home) {
            Ok(toolkit) => {
                assert!(found, "{value}");
                assert_eq!((toolkit.host.path, toolkit.host.ccbin), (gcc.clone(), Some(value)));
            }
            Err(error) => {
                assert!(!found, "{value}: {error}");
                assert_eq!(error.to_string(), format!("NVCC_CCBIN: value {value:?} leads to no compiler"));
            }
        }
    }
    world.around.ccbin = None;
    fs::write(&world.path("host/fake/gcc-version"), b"no version\n").unwrap();
    assert!(world.refused(&home).contains("its version cannot be read, it printed \"no version\""));
    fs::write(&world.path("host/fake/gcc-version"), b"12.2.0\n").unwrap();
    fs::remove_file(&world.path("host/fake/host/cc1plus")).unwrap();
    assert!(world.refused(&home).contains("has no C++ compiler (cc1plus)"));
    world.around.path = "/nonexistent".to_owned();
    assert!(world.refused(&home).contains("no host compiler: no gcc in PATH"));
    let clang = "#!/bin/sh\ncase $1 in --version) echo 'Debian clang version 18.1.8';; -dumpversion) echo 18.1.8;; *) exit 97;; esac\n";
    world.around = Surroundings { path: "/usr/bin:/bin".to_owned(), ..world.around.clone() };
    world.script(&world.path("clang++-18"), clang);
    world.around.ccbin = Some(world.path("clang++-18").display().to_string());
    let host = world.at(&home).unwrap().host;
    assert_eq!((host.kind, host.major(), host.cc1plus), (Kind::Clang, 18, None));
}

fn calls(home: &Path, word: &str) -> usize {
    let log = fs::read_if_exists(&home.join("fake/calls")).unwrap().unwrap_or_default();
    String::from_utf8(log).unwrap().lines().filter(|line| line.contains(word)).count()
}

#[test]
fn one_probe_finds_an_unusable_host_compiler() {
    let mut world = World::new();
    let home = world.make("cuda", "12.8", "12.8.93");
    let scratch = world.path("scratch");
    fs::write(&world.path("host/fake/gcc-version"), b"16.1.0\n").unwrap();
    let toolkit = world.at(&home).unwrap();
    let say = "host_config.h:143:2: error: #error -- unsupported GNU version! gcc versions later than 14 are not supported!\n";
    fs::write(&home.join("fake/fail"), say.as_bytes()).unwrap();
    let hosts = world.path("host/fake/host");
    let error = probe(&toolkit, &scratch, &world.around).unwrap_err();
    assert_eq!(class(&error), Class::Toolchain);
    let message = error.to_string();
    assert!(message.contains("gcc is GCC 16.1.0, and cuda 12.8.93 supports GCC up to 14"), "{message}");
    assert!(
        block(&error).contains("diagnostic: host_config.h:143:2: error: #error -- unsupported GNU version!")
    );
    assert_eq!(calls(&home, "-c probe.cu"), 1);
    assert_eq!(calls(&home, "-gencode arch=compute_90,code=sm_90"), 1);

    world.around.path = format!("{}:/bin", hosts.display());
    for name in ["g++-13", "g++-16", "clang++-18"] {
        world.script(&hosts.join(name), "#!/bin/sh\nexit 97\n");
    }
    let error = probe(&toolkit, &scratch, &world.around).unwrap_err();
    let hint = format!("next step:  set NVCC_CCBIN={}/g++-13", hosts.display());
    assert!(block(&error).contains(&hint), "{}", block(&error));
    assert!(error.to_string().contains("g++-16, ") && error.to_string().contains("clang++-18"), "{error}");
}

#[test]
fn a_probe_tolerates_noise_and_believes_only_an_object() {
    let world = World::new();
    let home = world.make("cuda", "12.8", "12.8.93");
    let toolkit = world.at(&home).unwrap();
    let scratch = world.path("scratch");
    let run = || probe(&toolkit, &scratch, &world.around);
    run().unwrap();
    fs::write(&home.join("fake/noise"), b"nvcc warning : something about errors\n").unwrap();
    run().unwrap();
    fs::write(&home.join("fake/silent"), b"").unwrap();
    let text = run().unwrap_err().to_string();
    assert!(text.contains("ended with exit code 0 but wrote no object; it printed \"nvcc warning"), "{text}");
    fs::remove_file(&home.join("fake/noise")).unwrap();
    assert!(run().unwrap_err().to_string().contains("it printed nothing"));
    fs::write(&home.join("fake/fail"), b"line\nprobe.cu(1): error: no\n").unwrap();
    let error = run().unwrap_err();
    assert!(error.to_string().contains("cannot compile an empty kernel (exit code 1)"), "{error}");
    assert!(block(&error).contains("diagnostic: probe.cu(1): error: no\n"));
}

#[test]
fn a_flag_that_this_nvcc_does_not_know_is_named_with_its_section() {
    let world = World::new();
    let home = world.make("cuda", "12.8", "12.8.93");
    let toolkit = world.at(&home).unwrap();
    let scratch = world.path("scratch");
    let run = |flags: &[&str]| {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        probe_flags(&toolkit, "hopper", &flags, &scratch, &world.around)
    };
    run(&[]).unwrap();
    assert_eq!(calls(&home, "probe.cu"), 0);
    run(&["-lineinfo"]).unwrap();
    let error = run(&["-lineinfo", "--bogus=size"]).unwrap_err();
    assert_eq!(class(&error), Class::Config);
    assert!(
        error
            .to_string()
            .starts_with("[section.hopper]: cuda-flags: \"--bogus=size\" is not accepted by nvcc 12.8.93"),
        "{error}"
    );
    assert_eq!(calls(&home, "--bogus"), 1);
}

#[test]
fn no_gpu_is_ever_asked_for() {
    let mut world = World::new();
    let marker = world.path("marker");
    let bin = world.path("bin");
    fs::create_dir(&bin).unwrap();
    world.script(&bin.join("nvidia-smi"), &format!("#!/bin/sh\ntouch {}\nexit 9\n", marker.display()));
    world.around.path = format!("{}:{}", bin.display(), world.around.path);
    world.around.cuda_home = Some(world.make("cuda", "12.8", "12.8.93").display().to_string());
    let toolkit = found(&world, "cu128").unwrap();
    probe(&toolkit, &world.path("scratch"), &world.around).unwrap();
    asking(&world, "cu128", None, &unavailable, |request| doctor(request, &[], Path::new("/")));
    assert!(!marker.exists());
}

#[test]
fn a_repointed_link_is_followed_anew() {
    let mut world = World::new();
    let (old, new) = (world.make("cuda-12.8", "12.8", "12.8.93"), world.make("cuda-13.0", "13.0", "13.0.88"));
    let link = world.link(&old, "cuda");
    world.around.cuda_home = Some(link.display().to_string());
    let before = found(&world, "cu128").unwrap();
    fs::symlink(&new, &link).unwrap();
    let after = found(&world, "cu130").unwrap();
    assert_ne!(before.tools["cicc"].sha256, after.tools["cicc"].sha256);
    let paths = serde_json::to_string(&after).unwrap();
    assert!(!paths.contains("12.8"), "{paths}");
}

#[test]
fn the_doctor_tells_every_candidate_and_why() {
    let mut world = World::new();
    let home = world.make("cuda-12.8", "12.8", "12.8.93");
    world.make("usr/local/cuda-12.8", "12.8", "12.8.93");
    world.make("usr/local/cuda-12.4", "12.4", "12.4.131");
    let broken = world.make("usr/local/cuda-12.9", "12.8", "12.8.93");
    fs::copy(&world.path("usr/local/cuda-12.4/bin/ptxas"), &broken.join("bin/ptxas")).unwrap();
    world.link(&home, "usr/local/cuda");
    world.around.cuda_home = Some(home.display().to_string());
    world.around.ignored = vec!["NVCC_APPEND_FLAGS".to_owned()];
    let store = world.path("store");
    let report = asking(&world, "cu128", None, &unavailable, |request| {
        doctor(request, &[("store", &store)], Path::new("/"))
    });
    assert!(report.healthy());
    let text = report.to_string().replace(&world.path("").display().to_string(), "/");
    let parts = "cicc 12.8.93, cudafe++ 12.8.93, cudart 12.8, fatbinary 12.8.93, headers 12.8, nvcc 12.8.93, ptxas 12.8.93";
    let expected = format!(
        "variant cu128: needs cuda 12.8

toolkits, in the order in which they are considered
  taken   CUDA_HOME /cuda-12.8: is cuda 12.8.93
          {parts}
  -       CUDA_PATH: not set
  later   /usr/local/cuda-12.8: is cuda 12.8.93, but CUDA_HOME comes first
          {parts}
  later   /usr/local/cuda: the same as CUDA_HOME
          {parts}
  no      /usr/local/cuda-12.4: is cuda 12.4.131, cu128 needs 12.8
  broken  /usr/local/cuda-12.9: toolkit /usr/local/cuda-12.9 (/usr/local/cuda-12.9): cuda 12.8.93 is not whole
            ptxas is of cuda 12.4.131: /usr/local/cuda-12.9/bin/ptxas
          {}
  -       PATH: no nvcc
  -       redist: NATTENC_REDIST_URL is not set
  nvcc lists 8.0 9.0
  would build here now: cu130 (wheels from the package index), cu128 (/cuda-12.8), cu124 (/usr/local/cuda-12.4)

host compiler
  /host/fake/host/gcc GCC 12.2.0, the toolkit takes up to 14
",
        parts.replace("ptxas 12.8.93", "ptxas 12.4.131")
    );
    assert!(text.starts_with(&expected), "{text}\nexpected:\n{expected}");
    for word in
        ["\nmachine\n  memory ", "  cpus ", "  store /store: ", "NVCC_APPEND_FLAGS is set and not passed on"]
    {
        assert!(text.contains(word), "{word}\n{text}");
    }
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["candidates"][0]["outcome"], "taken");
    assert_eq!(json["candidates"][2]["outcome"], "later");

    world.around.cuda_home = Some("relative".to_owned());
    let report = asking(&world, "cu128", None, &unavailable, |request| doctor(request, &[], Path::new("/")));
    assert!(!report.healthy());
    assert!(
        report.to_string().contains("broken  environment: CUDA_HOME: value \"relative\" is no absolute path")
    );
}

#[test]
#[ignore = "needs a real toolkit in CUDA_HOME"]
fn a_real_toolkit_is_whole_and_compiles() {
    let around = Surroundings::read().unwrap();
    let home = around.cuda_home.clone().unwrap();
    let toolkit = at(Path::new(&home), "CUDA_HOME", &around, &Plain).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    probe(&toolkit, scratch.path(), &around).unwrap();
    let error =
        probe_flags(&toolkit, "core", &["--bogus=1".to_owned()], scratch.path(), &around).unwrap_err();
    println!("{}\n{}", serde_json::to_string_pretty(&toolkit).unwrap(), block(&error));
    let account = Account::of(&toolkit.nvcc, &around).unwrap();
    for (what, version) in layout::parts(&toolkit.home, &account, &Plain).unwrap().versions {
        println!("{what} {version}");
        assert_ne!(version, "unknown", "{what}");
    }
}
