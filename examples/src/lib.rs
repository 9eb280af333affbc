//! Small programs that use the SMC crates; see `src/bin`.

/// The example of the project's README, so that it compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[derive(Debug)]
pub struct Readme;
