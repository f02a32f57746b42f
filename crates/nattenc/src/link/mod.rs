//! Objects to libraries: host sources, a static archive and a shared library, as further jobs of the
//! same graph, so that linking has the same skip, log and failure rules as compiling.

use crate::failure::Failure;
use crate::graph::{Cost, Graph, Input, Job, JobId, Kind, Source, Tree};
use std::sync::Arc;

/// The scratch directory and log of everything that is linked.
const SCRATCH: &str = "link";

/// The static archive's file name.
pub const ARCHIVE: &str = "libnatten_kernels.a";

/// The shared library's file name.
pub const SHARED: &str = "libnatten_kernels.so";

/// What links need of the toolkit and the host.
pub struct Tools {
    /// The host C++ compiler, absolute.
    pub host: String,
    /// `ar`, absolute.
    pub archiver: String,
    /// The toolkit's header directory, relative to a scratch directory.
    pub include: String,
    /// The CUDA runtime to link, relative to a scratch directory.
    pub runtime: Runtime,
}

/// How the CUDA runtime comes into the libraries.
pub enum Runtime {
    /// This archive.
    Static(String),
    /// The shared library in this directory.
    Shared(String),
}

/// The jobs at the end of the graph.
pub struct Ends {
    /// Writes [`ARCHIVE`].
    pub archive: JobId,
    /// Writes [`SHARED`].
    pub shared: JobId,
}

/// Whether a job is one of those that [`jobs`] adds: it compiles no unit.
pub fn is_own(job: &Job) -> bool {
    job.scratch == SCRATCH
}

/// Adds the jobs that make both libraries of `units` (name and the job whose first output is the object)
/// and of `sources` (C++ file name and text). `exports` are the shared library's symbols.
pub fn jobs(
    graph: &mut Graph,
    units: &[(String, JobId)],
    sources: &[(String, Arc<str>)],
    exports: &[String],
    tools: &Tools,
) -> Ends {
    let mut objects: Vec<Input> = units
        .iter()
        .map(|(name, id)| Input { name: format!("{name}.o"), source: Source::Output(*id, 0) })
        .collect();
    for (name, text) in sources {
        let id = graph.add(host_compile(name, text, tools));
        objects.push(Input { name: object_name(name), source: Source::Output(id, 0) });
    }
    let archive = graph.add(archive(objects.clone(), tools));
    let shared = graph.add(shared(objects, exports, tools));
    Ends { archive, shared }
}

fn object_name(source: &str) -> String {
    let stem = source.rsplit_once('.').map_or(source, |(stem, _)| stem);
    format!("host_{}.o", stem.replace('/', "_"))
}

fn job(kind: Kind, label: &str, tool: &str, program: &str, output: &str) -> Job {
    Job {
        kind,
        scratch: SCRATCH.to_owned(),
        label: label.to_owned(),
        tool: tool.to_owned(),
        program: program.to_owned(),
        args: Vec::new(),
        inputs: Vec::new(),
        outputs: vec![output.to_owned()],
        trees: Vec::new(),
        depfile: None,
        estimate: Cost { cpu: 1.0, memory: 200 << 20 },
    }
}

fn host_compile(name: &str, text: &Arc<str>, tools: &Tools) -> Job {
    let object = object_name(name);
    let depfile = format!("{object}.d");
    let flags = "-std=c++17 -O2 -fPIC -fvisibility=hidden -fvisibility-inlines-hidden -fno-strict-aliasing -Wall -DNDEBUG -frandom-seed=nattenc -Iinc";
    let mut args: Vec<String> = flags.split(' ').map(str::to_owned).collect();
    args.extend(["-isystem".to_owned(), tools.include.clone()]);
    args.extend(["-MD", "-MF", &depfile, "-c", name, "-o", &object].map(str::to_owned));
    Job {
        args,
        inputs: vec![Input { name: name.to_owned(), source: Source::Text(Arc::clone(text)) }],
        trees: vec![Tree::Toolkit, Tree::Support],
        depfile: Some(depfile),
        ..job(Kind::Host, &format!("host/{name}"), "host", &tools.host, &object)
    }
}

fn archive(objects: Vec<Input>, tools: &Tools) -> Job {
    // D: no times and owners in the archive.
    let mut args = vec!["crsD".to_owned(), ARCHIVE.to_owned()];
    args.extend(objects.iter().map(|o| o.name.clone()));
    Job { args, inputs: objects, ..job(Kind::Archive, ARCHIVE, "ar", &tools.archiver, ARCHIVE) }
}

fn shared(mut objects: Vec<Input>, exports: &[String], tools: &Tools) -> Job {
    const SCRIPT: &str = "exports.map";
    let names: String = exports.iter().map(|name| format!("    {name};\n")).collect();
    let script = format!("{{\n  global:\n{names}  local: *;\n}};\n");
    let flags = format!(
        "-shared -fPIC -o {SHARED} -Wl,-soname,{SHARED} -Wl,-z,defs -Wl,-z,noexecstack -Wl,--build-id=none -Wl,--version-script={SCRIPT} -static-libgcc"
    );
    let mut args: Vec<String> = flags.split(' ').map(str::to_owned).collect();
    args.extend(objects.iter().map(|o| o.name.clone()));
    match &tools.runtime {
        Runtime::Static(path) => args.push(path.clone()),
        Runtime::Shared(dir) => args.extend([format!("-L{dir}"), "-lcudart".to_owned()]),
    }
    // The C++ runtime is inside, so that the library needs the C library alone; named as a file because
    // the host compiler may be the C driver, which knows no -static-libstdc++.
    args.extend(["-l:libstdc++.a", "-lm", "-ldl", "-lrt", "-lpthread"].map(str::to_owned));
    objects.push(Input { name: SCRIPT.to_owned(), source: Source::Text(Arc::from(script)) });
    Job {
        args,
        inputs: objects,
        trees: vec![Tree::Toolkit],
        ..job(Kind::Link, SHARED, "link", &tools.host, SHARED)
    }
}

/// The functions that a C header declares with `NATTEN_API`, in its order.
pub fn exports(header: &str) -> Vec<String> {
    header
        .lines()
        .filter_map(|line| line.strip_prefix("NATTEN_API "))
        .filter_map(|rest| rest.split_once('('))
        .filter_map(|(before, _)| before.rsplit([' ', '*']).next())
        .map(str::to_owned)
        .collect()
}

/// Where `ar` is, as the `cc` crate finds it for this machine.
pub fn archiver(target: &str) -> anyhow::Result<String> {
    let command = cc::Build::new()
        .cargo_metadata(false)
        .target(target)
        .host(target)
        .opt_level(2)
        .try_get_archiver()
        .map_err(|e| Failure::toolchain(format!("no archiver found: {e}")).hint("install binutils"))?;
    Ok(command.get_program().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = include_str!("../../../natten-kernels/include/natten_kernels.h");

    #[test]
    fn exports_are_the_functions_of_the_header() {
        let names = exports(HEADER);
        assert_eq!(
            names
                .iter()
                .filter(|n| n.ends_with("ward") || n.contains("permute") || n.contains("delta"))
                .count(),
            37
        );
        for name in ["natten_last_error", "natten_build_info", "natten_kernel_info_at", "natten_na2d_forward"]
        {
            assert!(names.iter().any(|n| n == name), "{name} is missing of {names:?}");
        }
        assert!(names.iter().all(|n| n.starts_with("natten_")), "{names:?}");
    }

    #[test]
    fn both_libraries_hold_every_object() {
        let mut graph = Graph::default();
        let tools = Tools {
            host: "/usr/bin/g++".into(),
            archiver: "/usr/bin/ar".into(),
            include: "tk/include".into(),
            runtime: Runtime::Static("tk/lib/libcudart_static.a".into()),
        };
        let unit = graph.add(job(Kind::Host, "core/fna_011", "host", "g++", "unit.o"));
        let ends =
            jobs(&mut graph, &[("fna_011".into(), unit)], &[("abi.cpp".into(), Arc::from(""))], &[], &tools);
        for end in [ends.archive, ends.shared] {
            let args = &graph.jobs()[end].args;
            assert!(
                args.iter().any(|a| a == "fna_011.o") && args.iter().any(|a| a == "host_abi.o"),
                "{args:?}"
            );
        }
    }
}
