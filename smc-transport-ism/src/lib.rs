//! SMC-D between virtual machines and processes that share nothing but some memory.

#![deny(unsafe_code)]

mod config;
mod device;
mod fabric;
mod node;
mod owned;
mod peers;
mod random;
mod region;
mod shared;

pub use config::Builder;
pub use device::IsmDevice;
pub use fabric::{Place, Server, ServerBuilder};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. What it guards is changed in steps that do not panic, so poison says nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
