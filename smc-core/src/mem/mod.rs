//! Memory that a peer may write at any time.
//!
//! This is the only place of the crate with `unsafe` in it. A [`Region`] is a span of bytes that
//! may be shared with another process, which can change any byte at any moment, also when it is
//! buggy or hostile. So a region is never borrowed as `&[u8]`: it offers copies, and loads and
//! stores of whole words. Copied bytes are private and can be checked before they are used.

#![allow(
    unsafe_code,
    reason = "the one module that touches shared memory through pointers"
)]

pub mod sync;

mod bit_set;
mod element;
mod mapped;
mod region;
#[cfg(smc_loom)]
mod shadow;
mod wake_flag;

pub use bit_set::{BitSet, Taken, take_bits};
#[doc(hidden)]
pub use element::RingWriter;
pub use element::{Element, HEADER_LEN, TrustPeers};
pub(crate) use mapped::WipedOnFork;
pub use mapped::{MemoryError, check_file_size, memory_file};
#[doc(hidden)]
pub use region::{CopyMode, HAS_NON_TEMPORAL};
pub use region::{OutOfBounds, Region, WORDWISE_MAX};
pub use wake_flag::WakeFlag;

#[cfg(test)]
mod tests;

#[cfg(test)]
#[cfg(smc_loom)]
mod models;
