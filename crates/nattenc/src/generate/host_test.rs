//! Compiles the C ABI's host side with the machine's C++ compiler against a made-up CUDA runtime, and
//! runs its tests: no toolkit, no device.

use std::collections::BTreeMap;
use std::path::Path;

use super::{host_sources, registry, support_files};
use crate::execute::process::{self, CommandLine, Finished};
use crate::{env, fs};

const TEST: &str = include_str!("../../../natten-kernels/csrc/test/host_test.cpp");
const RUNTIME: &str = include_str!("../../../natten-kernels/csrc/test/cuda_runtime.h");

fn run(cwd: &Path, argv: &[&str]) -> Finished {
    let path = env::text("PATH").unwrap().unwrap_or_default();
    let command = CommandLine {
        argv: argv.iter().map(ToString::to_string).collect(),
        env: BTreeMap::from([("PATH".to_owned(), path)]),
        cwd: cwd.to_owned(),
    };
    let finished = process::capture(&command).unwrap();
    assert!(finished.success(), "{command}\n{}", finished.output);
    finished
}

fn put(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir(path.parent().unwrap()).unwrap();
    fs::write(&path, text.as_bytes()).unwrap();
}

#[test]
fn the_host_side_keeps_its_claims() {
    let root = tempfile::tempdir().unwrap();
    for (name, text) in support_files() {
        put(root.path(), name, text);
    }
    put(root.path(), "cuda_runtime.h", RUNTIME);
    put(root.path(), "host_test.cpp", TEST);
    put(root.path(), "registry.cpp", &registry(&super::tests::every_unit(), "{}", &BTreeMap::new()).unwrap());
    let flags = ["g++", "-std=c++17", "-I.", "-Wall", "-Wextra", "-Werror"];
    run(root.path(), &[&flags[..], &["-fsyntax-only", "registry.cpp"]].concat());
    run(
        root.path(),
        &[&flags[..], host_sources(), &["host_test.cpp", "-pthread", "-o", "host_test"]].concat(),
    );
    run(root.path(), &["./host_test"]);
}
