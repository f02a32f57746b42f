//! Holds the kernel tables against upstream's own generators.

mod entries;
pub mod oracle;
