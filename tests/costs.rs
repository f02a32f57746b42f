//! The scripts around the cost table, on builds that are made up: what a fit finds is what was put in.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "black-box tests start real programs and lay out real files; a test may panic"
)]

mod support;

use serde_json::{Value, json};
use std::process::Command;
use support::{Project, root};

/// Runs a script of this project and returns what it printed.
fn script(name: &str, args: &[&str]) -> String {
    let output = Command::new("python3").arg(root().join("scripts").join(name)).args(args).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{name}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// The plan of `args` and the history of a build of it, where cicc takes two seconds and `cicc(kernel)` per
/// kernel, and all other jobs one second.
fn sample(project: &Project, args: &[&str], cicc: impl Fn(&str) -> f64) -> (String, String) {
    let plan = project.run(&[&["plan", "--variant", "cu130", "--no-share", "--json"], args].concat());
    plan.check(0, &[]);
    let value: Value = serde_json::from_str(&plan.stdout).unwrap();
    let mut history = serde_json::Map::new();
    let mut add = |kind: &str, label: String, cpu: f64| {
        history.insert(format!("{kind} {label}"), json!({ "cpu": cpu, "memory": 100 << 20 }));
    };
    for unit in value["units"].as_array().unwrap() {
        let label = format!("{}/{}", unit["section"].as_str().unwrap(), unit["name"].as_str().unwrap());
        let kernels: f64 =
            unit["kernels"].as_array().unwrap().iter().map(|name| cicc(name.as_str().unwrap())).sum();
        for kind in ["preprocess", "cudafe++", "fatbinary", "host"] {
            add(kind, label.clone(), 1.0);
        }
        for capability in ["80", "90"] {
            add("preprocess", format!("{label}/compute_{capability}"), 1.0);
            add("cicc", format!("{label}/compute_{capability}"), 2.0 + kernels);
            add("ptxas", format!("{label}/sm_{capability}"), 1.0);
        }
    }
    project.write("plan.json", &plan.stdout);
    project.write("history.json", &Value::Object(history).to_string());
    let path = |name: &str| project.path(name).display().to_string();
    (path("plan.json"), path("history.json"))
}

const FMHA: &[&str] = &["--family", "fmha", "--policy", "fine", "--capability", "8.0,9.0"];

#[test]
fn fit_finds_what_sets_kernels_apart_and_leaves_other_rows_alone() {
    let project = Project::new();
    let backward = |name: &str| name.contains("_backward");
    let (plan, history) = sample(&project, FMHA, |name| if backward(name) { 6.0 } else { 1.5 });
    let shipped = std::fs::read_to_string(root().join("templates/cuda/costs.toml")).unwrap();
    let fit = || {
        project.write("costs.toml", &shipped);
        let table = project.path("costs.toml").display().to_string();
        let printed = script("fit-costs.py", &["--sample", &plan, &history, "--table", &table]);
        (printed, project.read("costs.toml"))
    };
    let (printed, fitted) = fit();
    assert_eq!((&printed, &fitted), (&fit().0, &fit().1), "the same inputs give the same bytes");
    let line = printed.lines().find(|l| l.starts_with("fmha ") && l.contains("cicc")).unwrap();
    let error: f64 = line.split_whitespace().nth(4).unwrap().parse().unwrap();
    assert!(error < 3.0, "{line}");
    let (old, new): (toml::Table, toml::Table) =
        (toml::from_str(&shipped).unwrap(), toml::from_str(&fitted).unwrap());
    let weight = |feature: &str| new["family"]["fmha"]["cicc"]["cpu"]["weights"][feature].as_float().unwrap();
    let ratio = weight("direction=backward") / weight("direction=forward");
    assert!((2.5..4.5).contains(&ratio), "{ratio}");
    for (family, rows) in old["family"].as_table().unwrap() {
        assert_eq!(rows == &new["family"][family], family != "fmha", "{family}");
    }
    // --check writes nothing.
    project.write("costs.toml", &shipped);
    let table = project.path("costs.toml").display().to_string();
    script("fit-costs.py", &["--sample", &plan, &history, "--table", &table, "--check"]);
    assert_eq!(project.read("costs.toml"), shipped);
}

#[test]
fn predictions_are_compared_with_what_was_measured() {
    let project = Project::new();
    let (plan, history) = sample(&project, FMHA, |_| 2.0);
    let rows: Value =
        serde_json::from_str(&script("bench-predict.py", &[&plan, &history, "--json"])).unwrap();
    let plan: Value = serde_json::from_str(&project.read("plan.json")).unwrap();
    let units = plan["units"].as_array().unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 2 * units.len());
    for (row, unit) in rows.as_array().unwrap().iter().step_by(2).zip(units) {
        // Preprocessing, cicc and ptxas.
        let kernels = unit["kernels"].as_array().unwrap().len() as f64;
        assert_eq!(row["measured"].as_f64().unwrap(), 1.0 + 2.0 + 2.0 * kernels + 1.0, "{row}");
    }
    let text = script("bench-predict.py", &[&project.path("plan.json").display().to_string(), &history]);
    assert!(text.contains("unit and gencode") && text.contains("whole unit"), "{text}");
}
