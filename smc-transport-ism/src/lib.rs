//! SMC-D between virtual machines, their host, and processes that share nothing but some memory.
//!
//! An [`IsmDevice`] is a transport device for `smc-core`, modelled on the ISM device of s390: it
//! has a GID and a CHID, moves data into buffers of its peers, signals, and sends events. Use it
//! between a host and its guests, between guests, and between processes. Within one host
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
//!  [ header | slots: GID, sleeping, ready, mailbox | granules: claim, token, .. | data ]
//!                                  memory of the fabric
//! ```
//!
//! # How it works
//!
//! * A *fabric* is shared memory and a way to wake its devices: a directory of files and sockets,
//!   or an ivshmem [`Server`] with QEMU's `ivshmem-doorbell` devices. Its address is a
//!   [`FabricAddress`]. It assigns each device a *slot*, whose generation is incremented each time
//!   the slot is taken.
//! * Buffers are allocated as runs of *granules* of 16 KiB, by compare and swap on one word per
//!   granule that names the owner and its generation. There is no lock that a dead process could
//!   hold. A device that needs memory reclaims what dead devices have left, once no writer uses it.
//! * A token has 40 random bits and the granule index of its buffer; the granule names the writer
//!   that may use it. [`move_data`] is one copy and a few words; with *nocopy*, an option set when
//!   the fabric is created, streams write in place.
//! * A signal sets a bit only for a buffer that was [armed], and wakes only a device that sleeps.
//! * The CHID is 0xFF00 to 0xFFFE, from the random id of the fabric, so devices of two fabrics
//!   mostly detect at once that they have no common memory. An endpoint with devices of two fabrics
//!   that have the same CHID, one of 255, offers only the first one. The GID has 128 random bits.
//! * The fabric detects the end of a process, guest or server, and reports it as
//!   [`Event::PeerGone`] or [`Event::DeviceGone`]; `docs/ism.md` states the delays.
//!
//! # Trust model
//!
//! Every process that maps the memory can read and write all of it, so the processes have to trust
//! each other with their *data*. No other trust is needed: a device checks every value of the
//! shared memory before use, so that no value makes it access memory outside the fabric, panic, or
//! block. Guests that must not see each other's data need separate fabrics.
//!
//! A process that forks with a device open must not use it in the child. The child has the slot of
//! its parent, and with an ivshmem server it cannot notify peers: the asynchronous I/O context for
//! that is not inherited.
//!
//! # Example
//!
//! Two devices, here in one process. A stream does these steps itself.
//!
//! ```
//! use std::io::IoSlice;
//!
//! use smc_core::device::{Device, Direct, Event, Signal};
//! use smc_core::mem::sync::Ordering;
//! use smc_transport_ism::{IsmDevice, FabricAddress};
//!
//! # futures_lite::future::block_on(async {
//! # let dir = tempfile::TempDir::new()?;
//! let address = FabricAddress::directory(dir.path()).with_len(4 << 20);
//! let reader = IsmDevice::builder(address.clone()).build()?;
//! let writer = IsmDevice::builder(address).build()?;
//!
//! // The reader's buffer, for the writer alone.
//! let buffer = reader.register(writer.gid(), 1 << 16).await?;
//! buffer.arm();
//!
//! // The token travels in the handshake of a connection.
//! let word = 42_u64.to_ne_bytes();
//! writer.move_data(reader.gid(), buffer.token(), 8, &[IoSlice::new(&word)], Signal::Yes)?;
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
mod random;
mod region;
mod shared;

pub use config::Builder;
pub use device::IsmDevice;
pub use fabric::{FabricAddress, Server, ServerBuilder};
