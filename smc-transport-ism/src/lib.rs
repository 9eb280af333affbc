//! SMC-D between virtual machines, their host, and processes that share nothing but some memory.
//!
//! An [`IsmDevice`] is a transport device for `smc-core`, modelled on the ISM device of s390: it has
//! a GID and a CHID, moves data into buffers of its peers, signals, and sends events. Use it between
//! a host and its guests, between guests, and between processes. Within one host
//! `smc-transport-loop` does the same with memory that only two processes share, so prefer that
//! where it reaches.
//!
//! ```text
//!   process on the host                 guest                        guest
//!  +-------------------+       +--------------------+       +--------------------+
//!  | IsmDevice, slot 1 |       | IsmDevice, slot 2  |       | IsmDevice, slot 3  |
//!  +-------------------+       +--------------------+       +--------------------+
//!     |      |  eventfd           |  BAR 2    |  BAR 0: doorbell    |        |
//!     v      +----------------<---|-----------+------------->-------|--------+
//!  [ header | slots: GID, sleeping, ready bits, mail | granules: claim, token, .. | data ]
//!                                  memory of the fabric
//! ```
//!
//! # How it works
//!
//! * A *fabric* ([`Place`]) is some memory and a way to wake whoever uses it: a directory of files
//!   and sockets, or an ivshmem [`Server`] with QEMU's `ivshmem-doorbell` devices. It gives each
//!   device a *slot*; the slot's generation counts up each time it is taken.
//! * Memory for buffers is given out in runs of *granules* of 16 KiB, by compare and swap on one
//!   word per granule that names the owner and its generation. There is no lock that somebody could
//!   die with, and what a dead device has left is taken back by whoever needs it, once nobody
//!   writes there any more.
//! * A token has 40 random bits and names the place of its buffer, which says who may write it.
//!   [`move_data`] is one copy and a few words; with *nocopy*, which the maker of a fabric switches
//!   on, streams write in place.
//! * A signal sets a bit only for a buffer that was [armed], and rings only a device that sleeps.
//! * The CHID is 0xFF00 to 0xFFFE, from the random number of the fabric, so devices of two fabrics
//!   mostly see at once that they cannot meet. The GID has 128 random bits.
//! * The end of a process, guest or server is noticed by the fabric, and reported as
//!   [`Event::PeerGone`] or [`Event::DeviceGone`]; see `docs/ism.md` for how soon.
//!
//! # Whom it trusts
//!
//! All who can use the memory can read and write all of it, so they have to be trusted with each
//! other's *data*. They need not be trusted otherwise: whatever is in the memory is checked before
//! it is used, so that nobody can make a device touch memory that is not the fabric's, panic, or
//! wait. Give guests that must not see each other's data fabrics of their own.
//!
//! A process that forks with a device open must not use it in the child. The child has the slot of its
//! parent, and at a server it cannot ring: asynchronous I/O, by which that is done, is not inherited.
//!
//! # Example
//!
//! Two devices, here in one process. A stream does all this by itself.
//!
//! ```
//! use std::io::IoSlice;
//!
//! use smc_core::device::{Device, Direct, Event, Signal};
//! use smc_core::mem::sync::Ordering;
//! use smc_transport_ism::{IsmDevice, Place};
//!
//! # futures_lite::future::block_on(async {
//! # let dir = tempfile::TempDir::new()?;
//! let place = Place::directory(dir.path()).with_len(4 << 20);
//! let reader = IsmDevice::builder(place.clone()).build()?;
//! let writer = IsmDevice::builder(place).build()?;
//!
//! // The reader's buffer, for the writer alone.
//! let buffer = reader.register(writer.gid(), 1 << 16).await?;
//! buffer.arm();
//!
//! // The token travels in the handshake of a connection.
//! let word = 42_u64.to_ne_bytes();
//! writer.move_data(buffer.token(), 8, &[IoSlice::new(&word)], Signal::Yes)?;
//!
//! reader.drain(&mut |event| assert_eq!(event, Event::Signalled(buffer.token())))?;
//! assert_eq!(buffer.region().load(8, Ordering::Acquire)?, 42);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! [`move_data`]: smc_core::device::Direct::move_data
//! [armed]: smc_core::device::Dmb::arm
//! [`Event::PeerGone`]: smc_core::device::Event::PeerGone
//! [`Event::DeviceGone`]: smc_core::device::Event::DeviceGone

mod config;
mod device;
mod fabric;
#[cfg(test)]
#[cfg(smc_loom)]
mod models;
mod node;
mod owned_buffers;
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
