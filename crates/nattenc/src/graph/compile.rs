//! Plan and dry runs to compile jobs: one preprocessing, cicc and ptxas per (unit, gencode), one
//! cudafe++, fatbinary and host compile per unit.

use super::dryrun::{DryRun, Phase, Tool};
use super::{Graph, Input, Job, JobId, Kind, Source, Tree};
use crate::config::Release;
use crate::cost::{Load, Table};
use crate::plan::UnitPlan;
use crate::plan::capability::Capability;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The file name of every unit in its scratch directory. One name for all, so that one dry run serves
/// every unit with the same flags and gencodes.
pub const UNIT_FILE: &str = "unit.cu";

/// What the names of all files begin with that the phases of a unit write.
const UNIT_STEM: &str = "unit.";

/// The flags of every unit that change code, as upstream's CMake passes them.
pub const FLAGS: &[&str] = &[
    "-O3",
    "-std=c++17",
    "--use_fast_math",
    "--expt-relaxed-constexpr",
    "--extended-lambda",
    "-DNDEBUG",
    "-DNATTEN_WITH_CUTLASS",
    "-DCUTLASS_ENABLE_TENSOR_CORE_MMA=1",
    "-Xcompiler",
    "-fno-strict-aliasing,-fPIC,-fvisibility=hidden,-frandom-seed=nattenc",
];

/// In the place of -O3 where only the host's part of a unit is compiled.
const HOST_OPTIMISATION: &str = "-O1";

/// Where the headers are, in order, relative to a scratch directory.
pub const INCLUDES: &[&str] = &["inc", "inc/shim", "src/csrc/include", "src/third_party/cutlass/include"];

/// The flag that compresses fatbins: `--compress-mode` came with 12.8, and `size` needs a 12.4 driver.
pub fn compression(release: Release) -> Vec<&'static str> {
    if release >= Release::new(12, 8) {
        vec!["--compress-mode=size"]
    } else {
        vec!["-Xfatbin", "-compress-all"]
    }
}

/// The arguments of the nvcc call whose phases make a unit's object.
pub fn nvcc_args(unit: &UnitPlan, compress: &[&str], host: &str) -> Vec<String> {
    let mut args: Vec<String> = FLAGS.iter().map(|s| (*s).to_owned()).collect();
    args.extend(compress.iter().map(|s| (*s).to_owned()));
    args.extend(unit.flags.iter().cloned());
    args.extend(INCLUDES.iter().map(|dir| format!("-I{dir}")));
    args.extend(["-ccbin".to_owned(), host.to_owned()]);
    assert!(!unit.gencodes.is_empty(), "{}: a unit without a gencode", unit.label());
    for gencode in &unit.gencodes {
        args.extend(["-gencode".to_owned(), gencode.to_string()]);
    }
    args.extend(["-c", UNIT_FILE, "-o", "unit.o"].map(str::to_owned));
    args
}

/// Adds a unit's jobs to the graph; returns the job that writes its object, `unit.o`.
///
/// `tools` gives, by name, the program that a phase's bare tool name stands for, relative to the
/// scratch directory. Fails where the phases do not fit together, with what is missing.
pub fn unit(
    graph: &mut Graph,
    plan: &UnitPlan,
    text: &Arc<str>,
    dry: &DryRun,
    tools: &BTreeMap<String, String>,
    table: &Table,
) -> Result<JobId, String> {
    match phases(graph, plan, text, dry, tools, table)?.last() {
        Some(id) if graph.jobs()[*id].kind == Kind::Host => Ok(*id),
        _ => Err("the dry run does not end with a host compile".to_owned()),
    }
}

/// Adds the jobs that make a unit's PTX and cubins, as [`unit()`] does, and none of those after them.
/// Returns them all.
pub fn device(
    graph: &mut Graph,
    plan: &UnitPlan,
    text: &Arc<str>,
    dry: &DryRun,
    tools: &BTreeMap<String, String>,
    table: &Table,
) -> Result<Vec<JobId>, String> {
    let mut dry = dry.clone();
    dry.phases.retain(|phase| !matches!(phase.tool, Tool::Fatbinary | Tool::HostCompile));
    phases(graph, plan, text, &dry, tools, table)
}

/// Adds the jobs of all phases, and returns them.
fn phases(
    graph: &mut Graph,
    plan: &UnitPlan,
    text: &Arc<str>,
    dry: &DryRun,
    tools: &BTreeMap<String, String>,
    table: &Table,
) -> Result<Vec<JobId>, String> {
    let mut made: BTreeMap<String, (JobId, usize)> = BTreeMap::new();
    let mut added = Vec::new();
    for phase in &dry.phases {
        let mut inputs = Vec::new();
        let mut reads = phase.reads();
        if phase.tool == Tool::HostCompile {
            reads.extend(hidden_reads(dry));
        }
        for name in reads {
            let source = if name == UNIT_FILE {
                Source::Text(Arc::clone(text))
            } else {
                let (job, output) = made.get(&name).ok_or_else(|| {
                    format!("{}: no earlier phase of the dry run writes {name}", phase.program)
                })?;
                Source::Output(*job, *output)
            };
            // The cubins of a fatbin must not have one name.
            let name = if phase.tool == Tool::Fatbinary { name } else { plain(&name) };
            inputs.push(Input { name, source });
        }
        let outputs = phase.writes();
        if outputs.is_empty() {
            return Err(format!("{}: its arguments name no output", phase.program));
        }
        let (kind, tool, trees, depfile) = match phase.tool {
            Tool::Preprocess => {
                let all = vec![Tree::Toolkit, Tree::Sources, Tree::Support];
                (Kind::Preprocess, "host", all, Some(format!("{}.d", plain(&outputs[0]))))
            }
            Tool::Cudafe => (Kind::Cudafe, "cudafe++", vec![], None),
            Tool::Cicc => (Kind::Cicc, "cicc", vec![], None),
            Tool::Ptxas => (Kind::Ptxas, "ptxas", vec![], None),
            Tool::Fatbinary => (Kind::Fatbinary, "fatbinary", vec![], None),
            Tool::HostCompile => {
                (Kind::Host, "host", vec![Tree::Toolkit], Some(format!("{}.d", plain(&outputs[0]))))
            }
        };
        let id = graph.add(Job {
            kind,
            scratch: scratch(plan, phase, &outputs[0]),
            label: label(plan, phase),
            tool: tool.to_owned(),
            program: tools.get(tool).cloned().unwrap_or_else(|| phase.program.clone()),
            args: arguments(phase, plan, depfile.as_deref()),
            inputs,
            outputs: outputs.iter().map(|name| plain(name)).collect(),
            trees,
            depfile,
            estimate: table.cost(kind, &load(plan, phase)),
        });
        for (index, name) in outputs.into_iter().enumerate() {
            made.insert(name, (id, index));
        }
        added.push(id);
    }
    Ok(added)
}

/// What the host compile reads beyond its argv: the generated C++ ends by including the stub that
/// cudafe++ was told of, and that stub includes the fatbin's C text. Both names stand in other
/// phases' arguments.
fn hidden_reads(dry: &DryRun) -> Vec<String> {
    let find = |tool: Tool, flag: &str| {
        dry.phases.iter().rfind(|p| p.tool == tool).and_then(|p| p.after(flag)).map(str::to_owned)
    };
    let stub = find(Tool::Cudafe, "--stub_file_name");
    let fatbin = find(Tool::Cicc, "--include_file_name");
    stub.into_iter().chain(fatbin).collect()
}

/// What the phase works on, for the cost table: its kernels, and the gencode that they are compiled for.
fn load<'a>(plan: &'a UnitPlan, phase: &Phase) -> Load<'a> {
    let capability = architecture(phase).and_then(|arch| Capability::from_nvcc(&arch));
    let gencode = capability.and_then(|capability| {
        plan.gencodes.iter().find(|gencode| match phase.tool {
            Tool::Ptxas => gencode.real.contains(&capability),
            // Preprocessing is told the number alone.
            _ => gencode.virtual_arch.number() == capability.number(),
        })
    });
    match gencode {
        Some(gencode) => Load::device(plan, gencode, capability.map(Capability::number)),
        None if phase.tool == Tool::Fatbinary => Load::images(plan),
        None => Load::host(plan),
    }
}

/// Whether a part of a file name says for what device it is.
fn is_of_device(part: &str) -> bool {
    let number = part.strip_prefix("compute_").or_else(|| part.strip_prefix("sm_"));
    number.is_some_and(|number| number.starts_with(|c: char| c.is_ascii_digit()))
}

/// A file's name as nvcc has it where a unit is compiled for one device alone: what a job does, and so its key, must
/// not depend on what else the unit is compiled for.
fn plain(name: &str) -> String {
    name.split('.').filter(|part| !is_of_device(part)).collect::<Vec<_>>().join(".")
}

/// Where a phase runs: since names are the same for all devices, each has a directory of its own in the unit's.
fn scratch(plan: &UnitPlan, phase: &Phase, output: &str) -> String {
    let Some(arch) = architecture(phase) else { return plan.name.clone() };
    let parts: Vec<&str> = output.split('.').filter(|part| is_of_device(part)).collect();
    format!("{}/{}", plan.name, if parts.is_empty() { arch } else { parts.join(".") })
}

fn label(plan: &UnitPlan, phase: &Phase) -> String {
    match architecture(phase) {
        Some(arch) => format!("{}/{arch}", plan.label()),
        None => plan.label(),
    }
}

/// What a phase compiles for, as nvcc spells it; `None` where it is the host.
fn architecture(phase: &Phase) -> Option<String> {
    match phase.tool {
        Tool::Cicc => phase.after("-arch").map(str::to_owned),
        Tool::Ptxas => phase.args.iter().find_map(|a| a.strip_prefix("-arch=")).map(str::to_owned),
        Tool::Preprocess => phase
            .args
            .iter()
            .find_map(|a| a.strip_prefix("-D__CUDA_ARCH__="))
            .and_then(|a| a.parse::<u32>().ok())
            .map(|arch| format!("compute_{}", arch / 10)),
        Tool::Cudafe | Tool::Fatbinary | Tool::HostCompile => None,
    }
}

/// The phase's arguments with what makes them the same everywhere and cheap: the unit's full path, which
/// nvcc resolved, becomes a name of ours that is unique per unit; files have their plain names; headers read are
/// listed; the host's launch code, which is not hot, is optimised little.
fn arguments(phase: &Phase, plan: &UnitPlan, depfile: Option<&str>) -> Vec<String> {
    let mut args = phase.args.clone();
    if let Some(at) = args.iter().position(|a| a == "--orig_src_path_name") {
        args[at + 1] = format!("nattenc/{}/{}.cu", plan.family, plan.name);
    }
    for arg in args.iter_mut().filter(|arg| arg.starts_with(UNIT_STEM)) {
        *arg = plain(arg);
    }
    if phase.tool == Tool::HostCompile {
        for arg in args.iter_mut().filter(|a| *a == "-O3") {
            HOST_OPTIMISATION.clone_into(arg);
        }
    }
    if let Some(depfile) = depfile {
        args.extend(["-MD", "-MF", depfile].map(str::to_owned));
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::table;
    use crate::graph::dryrun;
    use crate::plan::capability::{Capability, CapabilityRequest};
    use crate::plan::gencode::Gencode;
    use crate::plan::totals::Jobs;

    fn two_gencodes() -> (Graph, JobId) {
        let dry = dryrun::parse(include_str!(
            "../../../../tests/recorded/nvcc-13.0.88/dryrun-keep-two-gencodes.txt"
        ))
        .unwrap();
        let requests: [CapabilityRequest; 2] = ["8.0".parse().unwrap(), "9.0+PTX".parse().unwrap()];
        let plan = UnitPlan {
            name: "fna_011".into(),
            section: "core".into(),
            family: "fna".into(),
            kernels: vec![],
            capabilities: vec![],
            gencodes: requests.into_iter().map(Gencode::of).collect(),
            flags: vec![],
        };
        let mut graph = Graph::default();
        let object =
            unit(&mut graph, &plan, &Arc::from("text"), &dry, &BTreeMap::new(), table().unwrap()).unwrap();
        (graph, object)
    }

    #[test]
    fn host_compile_waits_for_the_last_gencodes_stub_and_the_fatbin() {
        let (graph, object) = two_gencodes();
        let names: Vec<&str> = graph.jobs()[object].inputs.iter().map(|i| i.name.as_str()).collect();
        assert_eq!(names, ["unit.cudafe1.cpp", "unit.cudafe1.stub.c", "unit.fatbin.c"]);
    }

    #[test]
    fn source_path_in_every_phase_is_ours() {
        let (graph, _) = two_gencodes();
        let paths: Vec<&String> = graph
            .jobs()
            .iter()
            .filter_map(|j| j.args.iter().position(|a| a == "--orig_src_path_name").map(|at| &j.args[at + 1]))
            .collect();
        assert_eq!(paths, ["nattenc/fna/fna_011.cu"; 3]);
        assert!(graph.jobs().iter().all(|j| j.args.iter().all(|a| !a.contains("/work-dir"))));
    }

    #[test]
    fn device_jobs_are_labelled_with_their_architecture() {
        let (graph, _) = two_gencodes();
        let labels: Vec<&str> = graph.jobs().iter().map(|j| j.label.as_str()).collect();
        assert_eq!(
            labels,
            [
                "core/fna_011",
                "core/fna_011",
                "core/fna_011/compute_80",
                "core/fna_011/compute_80",
                "core/fna_011/sm_80",
                "core/fna_011/compute_90",
                "core/fna_011/compute_90",
                "core/fna_011/sm_90",
                "core/fna_011",
                "core/fna_011"
            ]
        );
    }

    #[test]
    fn what_a_device_job_does_is_the_same_whatever_else_the_unit_is_compiled_for() {
        let jobs = |text: &str, gencodes: Vec<Gencode>| {
            let plan = UnitPlan { gencodes, ..shared_plan() };
            let dry = dryrun::parse(text).unwrap();
            let mut graph = Graph::default();
            unit(&mut graph, &plan, &Arc::from("text"), &dry, &BTreeMap::new(), table().unwrap()).unwrap();
            let mut jobs: BTreeMap<(String, Kind), String> = BTreeMap::new();
            for job in graph.jobs() {
                let inputs: Vec<&String> = job.inputs.iter().map(|input| &input.name).collect();
                let what = format!("{:?} {inputs:?} {:?} {:?}", job.args, job.outputs, job.depfile);
                jobs.insert((job.label.clone(), job.kind), what);
            }
            // Files of one directory that two jobs write must not have one name.
            let outputs = graph.jobs().iter().flat_map(|j| j.outputs.iter().map(|o| (&j.scratch, o)));
            let count = graph.jobs().iter().map(|job| job.outputs.len()).sum::<usize>();
            assert_eq!(outputs.collect::<std::collections::BTreeSet<_>>().len(), count);
            jobs
        };
        let two = include_str!("../../../../tests/recorded/nvcc-13.0.88/dryrun-keep-two-gencodes.txt");
        let shared = include_str!("../../../../tests/recorded/nvcc-13.0.88/dryrun-keep-shared-ptx.txt");
        let two = jobs(two, ["8.0", "9.0+PTX"].map(|c| Gencode::of(c.parse().unwrap())).to_vec());
        let shared = jobs(shared, shared_plan().gencodes);
        let mut both = Vec::new();
        for (job, what) in &two {
            // Preprocessing and the host compile are told the list of all devices, the fatbin holds them.
            if let Some(other) = shared.get(job)
                && !matches!(job.1, Kind::Preprocess | Kind::Fatbinary | Kind::Host)
            {
                assert_eq!(what, other, "{job:?}");
                both.push(job.1);
            }
        }
        assert_eq!(both, [Kind::Cudafe, Kind::Cicc, Kind::Ptxas, Kind::Ptxas]);
    }

    fn shared_plan() -> UnitPlan {
        let capability = |text: &&str| text.parse::<Capability>().unwrap();
        let code = |from: &str, real: &[&str], ptx| Gencode {
            virtual_arch: capability(&from),
            real: real.iter().map(capability).collect(),
            ptx,
        };
        UnitPlan {
            name: "fna_011".into(),
            section: "core".into(),
            family: "fna".into(),
            kernels: vec![],
            capabilities: vec![],
            gencodes: vec![code("8.0", &["8.0", "9.0"], false), code("10.0", &["10.0", "12.0"], true)],
            flags: vec![],
        }
    }

    #[test]
    fn device_part_ends_with_the_cubins() {
        let dry =
            dryrun::parse(include_str!("../../../../tests/recorded/nvcc-13.0.88/dryrun-keep-shared-ptx.txt"))
                .unwrap();
        let plan = UnitPlan { gencodes: vec![], ..shared_plan() };
        let mut graph = Graph::default();
        let jobs =
            device(&mut graph, &plan, &Arc::from("text"), &dry, &BTreeMap::new(), table().unwrap()).unwrap();
        assert_eq!(jobs, (0..graph.jobs().len()).collect::<Vec<_>>());
        assert_eq!(graph.jobs().last().unwrap().label, "core/fna_011/sm_120");
    }

    #[test]
    fn shared_ptx_has_one_front_end_and_several_assemblers() {
        let dry =
            dryrun::parse(include_str!("../../../../tests/recorded/nvcc-13.0.88/dryrun-keep-shared-ptx.txt"))
                .unwrap();
        let plan = shared_plan();
        let mut graph = Graph::default();
        unit(&mut graph, &plan, &Arc::from("text"), &dry, &BTreeMap::new(), table().unwrap()).unwrap();
        assert_eq!(Jobs::of_unit(&plan).sum(), graph.jobs().len());
        let of = |kind: Kind| -> Vec<&Job> { graph.jobs().iter().filter(|j| j.kind == kind).collect() };
        let labels: Vec<&str> = of(Kind::Ptxas).iter().map(|j| j.label.as_str()).collect();
        let sm = ["core/fna_011/sm_80", "core/fna_011/sm_90", "core/fna_011/sm_100", "core/fna_011/sm_120"];
        assert_eq!(labels, sm);
        let cicc = of(Kind::Cicc);
        let front = |j: &Job| match j.inputs[0].source {
            Source::Output(id, _) => graph.jobs()[id].label.clone(),
            Source::Text(_) => String::new(),
        };
        let ptx: Vec<String> = of(Kind::Ptxas).into_iter().map(front).collect();
        let fronts = [&cicc[0].label, &cicc[1].label];
        assert_eq!(ptx.iter().collect::<Vec<_>>(), [[fronts[0]; 2], [fronts[1]; 2]].concat());
        assert_eq!(of(Kind::Cicc).len(), 2);
        // The fatbin has every cubin, and the PTX that is kept.
        assert_eq!(of(Kind::Fatbinary)[0].inputs.len(), 5);
    }
}
