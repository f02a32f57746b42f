//! nattenc builds NATTEN's CUDA kernels.
#![forbid(unsafe_code)]

pub mod bounded;
pub mod catalog;
pub mod ci;
pub mod cli;
pub mod config;
pub mod cost;
pub mod cutlass;
pub mod env;
pub mod execute;
pub mod failure;
pub mod fetch;
pub mod fs;
pub mod generate;
pub mod graph;
pub mod link;
pub mod package;
pub mod pipeline;
pub mod plan;
pub mod regen;
pub mod report;
pub mod supply;
pub mod toolkit;
pub mod verify;
