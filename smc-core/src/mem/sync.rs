//! The atomics of this crate, in one place so that they can be found and swapped for a model.

pub use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
