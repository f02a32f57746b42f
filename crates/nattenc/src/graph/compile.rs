//! Plan and dry runs to compile jobs: one preprocessing, cicc and ptxas per (unit, gencode), one
//! cudafe++, fatbinary and host compile per unit.

use super::dryrun::{DryRun, Phase, Tool};
use super::{Graph, Input, Job, JobId, Kind, Source, Tree};
use crate::cost::{Load, Table};
use crate::plan::UnitPlan;
use crate::plan::capability::Capability;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The file name of every unit in its scratch directory. One name for all, so that one dry run serves
/// every unit with the same flags and gencodes.
pub const UNIT_FILE: &str = "unit.cu";

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
    match phases(graph, plan, text, dry, (tools, table), |_| true)?.last() {
        Some(id) if graph.jobs()[*id].kind == Kind::Host => Ok(*id),
        _ => Err("the dry run does not end with a host compile".to_owned()),
    }
}

/// Adds the jobs that make a unit's PTX and cubins, as [`unit`] does, and none of those after them.
/// Returns them all.
pub fn device(
    graph: &mut Graph,
    plan: &UnitPlan,
    text: &Arc<str>,
    dry: &DryRun,
    tools: &BTreeMap<String, String>,
    table: &Table,
) -> Result<Vec<JobId>, String> {
    let before_fatbin = |tool| !matches!(tool, Tool::Fatbinary | Tool::HostCompile);
    phases(graph, plan, text, dry, (tools, table), before_fatbin)
}

/// Adds the jobs of the phases that are wanted, and returns them.
fn phases(
    graph: &mut Graph,
    plan: &UnitPlan,
    text: &Arc<str>,
    dry: &DryRun,
    (tools, table): (&BTreeMap<String, String>, &Table),
    wanted: impl Fn(Tool) -> bool,
) -> Result<Vec<JobId>, String> {
    let scratch = plan.name.clone();
    let mut made: BTreeMap<String, (JobId, usize)> = BTreeMap::new();
    let mut added = Vec::new();
    for phase in dry.phases.iter().filter(|p| wanted(p.tool)) {
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
            inputs.push(Input { name, source });
        }
        let outputs = phase.writes();
        if outputs.is_empty() {
            return Err(format!("{}: its arguments name no output", phase.program));
        }
        let (kind, tool, trees, depfile) = match phase.tool {
            Tool::Preprocess => {
                let all = vec![Tree::Toolkit, Tree::Sources, Tree::Support];
                (Kind::Preprocess, "host", all, Some(format!("{}.d", outputs[0])))
            }
            Tool::Cudafe => (Kind::Cudafe, "cudafe++", vec![], None),
            Tool::Cicc => (Kind::Cicc, "cicc", vec![], None),
            Tool::Ptxas => (Kind::Ptxas, "ptxas", vec![], None),
            Tool::Fatbinary => (Kind::Fatbinary, "fatbinary", vec![], None),
            Tool::HostCompile => (Kind::Host, "host", vec![Tree::Toolkit], Some(format!("{}.d", outputs[0]))),
        };
        let id = graph.add(Job {
            kind,
            scratch: scratch.clone(),
            label: label(plan, phase),
            tool: tool.to_owned(),
            program: tools.get(tool).cloned().unwrap_or_else(|| phase.program.clone()),
            args: arguments(phase, plan, depfile.as_deref()),
            inputs,
            outputs: outputs.clone(),
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
/// nvcc resolved, becomes a name of ours that is unique per unit; headers read are listed; the host's
/// launch code, which is not hot, is optimised little.
fn arguments(phase: &Phase, plan: &UnitPlan, depfile: Option<&str>) -> Vec<String> {
    let mut args = phase.args.clone();
    if let Some(at) = args.iter().position(|a| a == "--orig_src_path_name") {
        args[at + 1] = format!("nattenc/{}/{}.cu", plan.family, plan.name);
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
    use crate::plan::capability::CapabilityRequest;
    use crate::plan::gencode::Gencode;

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
        assert_eq!(names, ["unit.compute_90.cudafe1.cpp", "unit.compute_90.cudafe1.stub.c", "unit.fatbin.c"]);
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
    fn shared_ptx_has_one_front_end_and_several_assemblers() {
        let dry =
            dryrun::parse(include_str!("../../../../tests/recorded/nvcc-13.0.88/dryrun-keep-shared-ptx.txt"))
                .unwrap();
        let plan = UnitPlan {
            name: "fna_011".into(),
            section: "core".into(),
            family: "fna".into(),
            kernels: vec![],
            capabilities: vec![],
            gencodes: vec![],
            flags: vec![],
        };
        let mut graph = Graph::default();
        unit(&mut graph, &plan, &Arc::from("text"), &dry, &BTreeMap::new(), table().unwrap()).unwrap();
        let of = |kind: Kind| -> Vec<&Job> { graph.jobs().iter().filter(|j| j.kind == kind).collect() };
        let labels: Vec<&str> = of(Kind::Ptxas).iter().map(|j| j.label.as_str()).collect();
        let sm = ["core/fna_011/sm_80", "core/fna_011/sm_90", "core/fna_011/sm_100", "core/fna_011/sm_120"];
        assert_eq!(labels, sm);
        let ptx: Vec<&str> = of(Kind::Ptxas).iter().map(|j| j.inputs[0].name.as_str()).collect();
        assert_eq!(ptx, [["unit.compute_80.ptx"; 2], ["unit.compute_100.ptx"; 2]].concat());
        assert_eq!(of(Kind::Cicc).len(), 2);
        // The fatbin has every cubin, and the PTX that is kept.
        assert_eq!(of(Kind::Fatbinary)[0].inputs.len(), 5);
    }
}
