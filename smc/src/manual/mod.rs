//! The manual, chapter by chapter. It contains documentation only.
//!
//! | to find out | read |
//! |---|---|
//! | how to do a common task, in lines to copy | [`cookbook`] |
//! | which transport connects two ends, and what users and containers need | [`transports`] |
//! | why a stream is TCP, and what to do about it | [`fallback`] |
//! | what an operator can set by the environment | [`environment`] |
//! | how a stream ends, and what a process has to do before it ends | [`closing`] |
//! | what a connection takes of memory, and how to bound it | [`memory`] |
//! | how to write and read without copies, and what has to be trusted for it | [`zero_copy`] |
//! | which methods of tokio's and std's types there are, and what they do differently | [`differences`] |
//! | how to write a transport | [`writing_a_device`] |
//! | where to look when something is wrong | [`debugging`] |
//!
//! The protocol itself is described in the repository's `docs/spec`.

#[doc = include_str!("cookbook.md")]
pub mod cookbook {}

#[doc = include_str!("transports.md")]
pub mod transports {}

#[doc = include_str!("fallback.md")]
pub mod fallback {}

#[doc = include_str!("environment.md")]
pub mod environment {}

#[doc = include_str!("closing.md")]
pub mod closing {}

#[doc = include_str!("memory.md")]
pub mod memory {}

#[doc = include_str!("zero_copy.md")]
pub mod zero_copy {}

#[doc = include_str!("differences.md")]
pub mod differences {}

#[doc = include_str!("writing_a_device.md")]
pub mod writing_a_device {}

#[doc = include_str!("debugging.md")]
pub mod debugging {}
