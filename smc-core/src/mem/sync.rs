//! The atomics of this crate, in one place so that loom can replace them in a model, and the
//! mutexes and wakers of code that a model runs.
//!
//! With `--cfg smc_loom` they are those of loom, which tries every order in which threads can take
//! their steps and every value that a load may see: see `model`. Such a build only runs models.

#[cfg(not(smc_loom))]
pub use {
    crate::mutex::Mutex,
    atomic_waker::AtomicWaker,
    std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(smc_loom)]
pub use {
    loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering},
    model::{AtomicU64, AtomicWaker, Mutex, fence},
};

/// Prevents the compiler from moving memory accesses past it; it emits no instruction.
pub use std::sync::atomic::compiler_fence;

#[cfg(smc_loom)]
pub mod model;
