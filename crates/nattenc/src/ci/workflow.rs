//! The workflow files that run the jobs of each [`Event`]: generated, and compared with those of a checkout.

use super::Event;
use crate::config::Ci;
use crate::generate::{self, Template};
use serde::Serialize;
use std::collections::BTreeMap;

/// Where the platform looks for workflows, relative to build.toml.
pub const DIR: &str = ".github/workflows";

/// One workflow.
#[derive(Serialize)]
struct Workflow<'a> {
    event: &'a str,
    runner: &'a str,
}

impl Template for Workflow<'_> {
    const NAME: &'static str = "ci/workflow.yml.tera";
}

/// File name and text of every workflow. An error is a defect of the template.
pub fn files(ci: &Ci) -> anyhow::Result<BTreeMap<String, String>> {
    Event::ALL
        .iter()
        .map(|event| {
            let text = generate::render(&Workflow { event: event.word(), runner: &ci.runner })?;
            Ok((format!("{}.yml", event.word()), text))
        })
        .collect()
}
