//! What will be built, and what will not, with reasons.

pub mod capability;
pub mod gencode;
