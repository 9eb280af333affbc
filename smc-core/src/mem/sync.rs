//! The atomics of this crate, in one place so that they can be found and swapped for a model.
//!
//! With `--cfg smc_loom` they are those of loom, which tries every order in which threads can take
//! their steps and every value that a load may see: see `model`. Such a build does nothing but run
//! models.

#[cfg(not(smc_loom))]
pub use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

#[cfg(smc_loom)]
pub use {
    loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering},
    model::{AtomicU64, fence},
};

/// Keeps the compiler from moving accesses to memory past it; the processor does not see it.
pub use std::sync::atomic::compiler_fence;

#[cfg(smc_loom)]
pub mod model;
