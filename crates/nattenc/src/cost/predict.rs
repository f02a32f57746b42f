//! What a build will take, from its plan alone: no toolkit, no dry run. The jobs are those of
//! `graph::compile` and `link`.

use super::memory::{Expected, Profile};
use super::simulate::{self, Task};
use super::{Load, Table};
use crate::graph::{Cost, Kind};
use crate::plan::{Plan, UnitPlan};
use serde::Serialize;

/// What a whole build takes, where nothing is in the cache.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    /// CPU seconds of all jobs.
    pub cpu_seconds: f64,
    /// Seconds from the first job's start to the last one's end.
    pub wall_seconds: f64,
    /// The compiler processes at once that this holds for.
    pub jobs: usize,
    /// The memory budget that it holds for, bytes.
    pub memory_budget: u64,
    /// What jobs that run at once hold together, at most, bytes.
    pub peak_memory: u64,
    /// The largest single job, bytes.
    pub largest_job_memory: u64,
    /// The unit that it belongs to.
    pub largest_job_unit: String,
    /// Static archive, shared library and all beside them, bytes.
    pub artifact_bytes: u64,
    /// By unit, in the plan's order.
    pub units: Vec<UnitPrediction>,
}

/// What one unit takes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UnitPrediction {
    /// `core/fna_011`.
    pub unit: String,
    /// CPU seconds of all its jobs.
    pub cpu_seconds: f64,
    /// CPU seconds of those that serve all capabilities: host preprocessing, cudafe++, fatbinary, host compile.
    pub host_seconds: f64,
    /// Its largest job, bytes.
    pub peak_memory: u64,
    /// Its object, bytes.
    pub object_bytes: u64,
    /// By gencode, in the plan's order.
    pub gencodes: Vec<GencodePrediction>,
}

/// What one front end run of a unit takes, with the assembler runs that follow from it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GencodePrediction {
    /// `compute_90a`.
    pub virtual_arch: String,
    /// CPU seconds of preprocessing and cicc.
    pub front_seconds: f64,
    /// By machine code.
    pub codes: Vec<CodePrediction>,
}

/// What one assembler run takes and makes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CodePrediction {
    /// `sm_90a`.
    pub code: String,
    /// CPU seconds of ptxas.
    pub ptxas_seconds: f64,
    /// The cubin, uncompressed.
    pub cubin_bytes: u64,
}

/// Predicts a build of `plan` with at most `jobs` processes at once in `memory` bytes.
pub fn of(plan: &Plan, jobs: usize, memory: u64, table: &Table) -> Prediction {
    let units: Vec<UnitPrediction> = plan.units.iter().map(|u| unit(u, table)).collect();
    let tasks = tasks(&plan.units, table);
    let outcome = simulate::run(&tasks, jobs, memory);
    let largest = units.iter().reduce(|a, b| if b.peak_memory > a.peak_memory { b } else { a });
    Prediction {
        cpu_seconds: tasks.iter().map(|task| task.seconds).sum(),
        wall_seconds: outcome.wall,
        jobs,
        memory_budget: memory,
        peak_memory: outcome.peak_memory,
        largest_job_memory: largest.map_or(0, |u| u.peak_memory),
        largest_job_unit: largest.map_or_else(String::new, |u| u.unit.clone()),
        // An object is in the archive and in the shared library.
        artifact_bytes: table.artifact.bytes + 2 * units.iter().map(|u| u.object_bytes).sum::<u64>(),
        units,
    }
}

/// Per unit of a plan its label and its CPU seconds.
pub fn costs(plan: &Plan, table: &Table) -> Vec<(String, f64)> {
    plan.units.iter().map(|u| (u.label(), unit(u, table).cpu_seconds)).collect()
}

/// Predicts one unit.
pub fn unit(unit: &UnitPlan, table: &Table) -> UnitPrediction {
    let jobs = jobs(unit, table);
    let mut gencodes = Vec::new();
    for gencode in &unit.gencodes {
        let load = Load::device(unit, gencode, None);
        let front = table.cost(Kind::Preprocess, &load).cpu + table.cost(Kind::Cicc, &load).cpu;
        let mut made = Vec::new();
        for real in &gencode.real {
            let load = Load::device(unit, gencode, Some(real.number()));
            made.push(CodePrediction {
                code: real.sm(),
                ptxas_seconds: table.cost(Kind::Ptxas, &load).cpu,
                cubin_bytes: table.cubin(&load),
            });
        }
        gencodes.push(GencodePrediction {
            virtual_arch: gencode.virtual_arch.compute(),
            front_seconds: front,
            codes: made,
        });
    }
    let cpu_seconds: f64 = jobs.iter().map(|(_, cost, _)| cost.cpu).sum();
    let device: f64 = gencodes
        .iter()
        .map(|g| g.front_seconds + g.codes.iter().map(|code| code.ptxas_seconds).sum::<f64>())
        .sum();
    UnitPrediction {
        unit: unit.label(),
        cpu_seconds,
        host_seconds: cpu_seconds - device,
        peak_memory: jobs.iter().map(|(_, cost, _)| cost.memory).max().unwrap_or(0),
        object_bytes: table.object(&Load::host(unit), &Load::images(unit)),
        gencodes,
    }
}

/// The jobs of one unit: kind, cost, and the jobs before it that it needs.
fn jobs(unit: &UnitPlan, table: &Table) -> Vec<(Kind, Cost, Vec<usize>)> {
    let host = Load::host(unit);
    let mut jobs = vec![
        (Kind::Preprocess, table.cost(Kind::Preprocess, &host), vec![]),
        (Kind::Cudafe, table.cost(Kind::Cudafe, &host), vec![0]),
    ];
    let cudafe = 1;
    let (mut images, mut stub) = (Vec::new(), cudafe);
    for gencode in &unit.gencodes {
        let load = Load::device(unit, gencode, None);
        jobs.push((Kind::Preprocess, table.cost(Kind::Preprocess, &load), vec![]));
        jobs.push((Kind::Cicc, table.cost(Kind::Cicc, &load), vec![cudafe, jobs.len() - 1]));
        stub = jobs.len() - 1;
        if gencode.ptx || gencode.real.is_empty() {
            images.push(stub);
        }
        for real in &gencode.real {
            let load = Load::device(unit, gencode, Some(real.number()));
            images.push(jobs.len());
            jobs.push((Kind::Ptxas, table.cost(Kind::Ptxas, &load), vec![stub]));
        }
    }
    let fatbinary = jobs.len();
    jobs.push((Kind::Fatbinary, table.cost(Kind::Fatbinary, &Load::images(unit)), images));
    jobs.push((Kind::Host, table.cost(Kind::Host, &host), vec![cudafe, stub, fatbinary]));
    jobs
}

/// The jobs of a whole build.
fn tasks(units: &[UnitPlan], table: &Table) -> Vec<Task> {
    const SMALL: u64 = 100 << 20;
    let mut tasks = Vec::new();
    let mut objects = Vec::new();
    for unit in units {
        let first = tasks.len();
        for (kind, cost, needs) in jobs(unit, table) {
            let expected = Expected { cpu: cost.cpu, peak: cost.memory, profile: Profile::of_kind(kind) };
            tasks.push(Task::new(&expected, needs.into_iter().map(|need| first + need).collect()));
        }
        objects.push(tasks.len() - 1);
    }
    objects.push(tasks.len());
    tasks.push(Task::flat(Cost { cpu: table.artifact.host, memory: SMALL }, vec![]));
    tasks.push(Task::flat(Cost { cpu: table.artifact.link, memory: SMALL }, objects));
    tasks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{self, Kernel};
    use crate::cost::table;
    use crate::graph::{Graph, compile, dryrun};
    use crate::plan::capability::{Capability, CapabilityRequest};
    use crate::plan::gencode::Gencode;
    use std::sync::Arc;

    /// A unit of all fna kernels whose name begins so.
    fn fna(prefix: &str, gencodes: Vec<Gencode>) -> UnitPlan {
        let kernels: Vec<&'static Kernel> = catalog::catalog()
            .unwrap()
            .family("fna")
            .unwrap()
            .kernels()
            .filter(|k| k.name.starts_with(prefix))
            .collect();
        assert!(!kernels.is_empty(), "{prefix}");
        UnitPlan {
            name: "fna_011".into(),
            section: "core".into(),
            family: "fna".into(),
            kernels,
            capabilities: vec![],
            gencodes,
            flags: vec![],
        }
    }

    fn gencode(text: &str) -> Gencode {
        Gencode::of(text.parse::<CapabilityRequest>().unwrap())
    }

    fn seconds(unit: &UnitPlan) -> f64 {
        super::unit(unit, table().unwrap()).cpu_seconds
    }

    #[test]
    fn jobs_are_those_of_the_graph_with_the_same_costs_and_needs() {
        let dry = dryrun::parse(include_str!(
            "../../../../tests/recorded/nvcc-13.0.88/dryrun-keep-two-gencodes.txt"
        ))
        .unwrap();
        let unit = fna("fna2d_64x64x32_sm", vec![gencode("8.0"), gencode("9.0+PTX")]);
        let table = table().unwrap();
        let mut graph = Graph::default();
        compile::unit(&mut graph, &unit, &Arc::from("text"), &dry, &std::collections::BTreeMap::new(), table)
            .unwrap();
        let mut real: Vec<(Kind, String)> =
            graph.jobs().iter().map(|j| (j.kind, format!("{:?}", j.estimate))).collect();
        let predicted = jobs(&unit, table);
        let mut ours: Vec<(Kind, String)> =
            predicted.iter().map(|(kind, cost, _)| (*kind, format!("{cost:?}"))).collect();
        // The same longest way to the end, too.
        let cpu: Vec<f64> = graph.jobs().iter().map(|job| job.estimate.cpu).collect();
        let longest = graph.remaining(&cpu).into_iter().fold(0.0, f64::max);
        let tasks = tasks(std::slice::from_ref(&unit), table);
        let wall = simulate::run(&tasks, 99, u64::MAX).wall - table.artifact.link;
        assert!((wall - longest).abs() < 1e-9, "{wall} {longest}");
        real.sort();
        ours.sort();
        assert_eq!(ours, real);
    }

    #[test]
    fn sharing_and_pruning_save_what_they_leave_out() {
        let [sm80, sm90] = [Capability::new(8, 0), Capability::new(9, 0)];
        let both = fna("fna2d_64x64x32_sm80", vec![Gencode::sass(sm80), Gencode::sass(sm90)]);
        let shared = Gencode { virtual_arch: sm80, real: vec![sm80, sm90], ptx: false };
        let shared = fna("fna2d_64x64x32_sm80", vec![shared]);
        let one = fna("fna2d_64x64x32_sm80", vec![Gencode::sass(sm80)]);
        assert!(seconds(&one) < seconds(&shared) && seconds(&shared) < seconds(&both));
        // Kernels that the capability cannot run cost little, but something.
        let dead = fna("fna2d_64x64x32_sm", vec![Gencode::sass(sm80)]);
        let more = fna("fna2d_64x64x", vec![Gencode::sass(sm80)]);
        assert!(seconds(&one) < seconds(&dead) && seconds(&dead) < seconds(&more));
    }

    #[test]
    fn sizes_grow_with_kernels_and_images() {
        let table = table().unwrap();
        let size = |unit: &UnitPlan| super::unit(unit, table).object_bytes;
        let one = fna("fna2d_64x64x32_sm80", vec![gencode("8.0")]);
        let two = fna("fna2d_64x64x32_sm80", vec![gencode("8.0"), gencode("9.0")]);
        let more = fna("fna2d_64x64x", vec![gencode("8.0")]);
        assert!(size(&one) < size(&two) && size(&one) < size(&more));
        let predicted = super::unit(&two, table);
        let codes: Vec<&str> =
            predicted.gencodes.iter().flat_map(|g| &g.codes).map(|c| c.code.as_str()).collect();
        assert_eq!(codes, ["sm_80", "sm_90"]);
        let parts: f64 = predicted
            .gencodes
            .iter()
            .map(|g| g.front_seconds + g.codes.iter().map(|c| c.ptxas_seconds).sum::<f64>())
            .sum();
        assert!((parts + predicted.host_seconds - predicted.cpu_seconds).abs() < 1e-9);
    }
}
