//! Compiles the C ABI's host side with the machine's C++ compiler against a made-up CUDA runtime, and
//! runs its tests: no toolkit, no device.

use std::collections::BTreeMap;
use std::path::Path;

use super::{host_sources, registry, support_files};
use crate::execute::process::{self, CommandLine, Finished};
use crate::{env, fs};

/// The tests' own files, under the names that their includes use.
const FILES: &[(&str, &str)] = &[
    ("cuda_runtime.h", include_str!("../../../natten-kernels/csrc/test/cuda_runtime.h")),
    ("support.h", include_str!("../../../natten-kernels/csrc/test/support.h")),
    ("cutlass/cutlass.h", include_str!("../../../natten-kernels/csrc/test/cutlass.h")),
    ("cute/tensor.hpp", include_str!("../../../natten-kernels/csrc/test/tensor.hpp")),
    ("natten/cuda/utils/cutlass.cuh", "#pragma once\n"),
    ("host_test.cpp", include_str!("../../../natten-kernels/csrc/test/host_test.cpp")),
    ("tiled_test.cpp", include_str!("../../../natten-kernels/csrc/test/tiled_test.cpp")),
    ("blackwell_test.cpp", include_str!("../../../natten-kernels/csrc/test/blackwell_test.cpp")),
    ("merge_test.cpp", include_str!("../../../natten-kernels/csrc/test/merge_test.cpp")),
];

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
    for (name, text) in FILES {
        put(root.path(), name, text);
    }
    put(root.path(), "registry.cpp", &registry(&super::tests::every_unit(), "{}", &BTreeMap::new()).unwrap());
    let flags = ["g++", "-std=c++17", "-I.", "-Wall", "-Wextra", "-Werror"];
    run(root.path(), &[&flags[..], &["-fsyntax-only", "registry.cpp"]].concat());
    for (source, program) in [
        ("host_test.cpp", "./host_test"),
        ("tiled_test.cpp", "./tiled_test"),
        ("blackwell_test.cpp", "./blackwell_test"),
        ("merge_test.cpp", "./merge_test"),
    ] {
        run(root.path(), &[&flags[..], host_sources(), &[source, "-pthread", "-o", program]].concat());
        run(root.path(), &[program]);
    }
}
