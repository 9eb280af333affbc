//! SMC-D between processes and containers of one Linux host.
//!
//! A [`LoopDevice`] is a transport device for `smc-core`: give it to an endpoint, and streams
//! between two processes that both have one, and share a runtime directory, move their data
//! through shared memory. Nothing is needed but an ordinary user: no kernel module, no capability.
//! Use it for whatever runs on one host; it does not reach other hosts or virtual machines.
//!
//! ```text
//!        process A                                              process B
//!   +-----------------+   d-<GID of B>.sock in the        +-----------------+
//!   | LoopDevice      | --- runtime directory ----------> | LoopDevice      |
//!   |                 |   HELLO + signal page             |                 |
//!   |                 |   "memory for slot 0" + memfd     |                 |
//!   |                 | <--- d-<GID of A>.sock ---------- |                 |
//!   +-----------------+                                   +-----------------+
//!    |  own buffers: read             written by B:  |  |  attached buffers
//!    v                                               v  v
//!   [ sealed memfd: CDC block | ring ]     [ signal page: armed, ready, sleeping ]
//!    ^                                               |
//!    +---------------- eventfd, if A sleeps ---------+
//! ```
//!
//! # How it works
//!
//! * A device has CHID 0xFFFF and a GID of 96 random bits and the number of its user, which on TCP
//!   is offered to the own host only. It listens on a socket named after the GID, and opens one
//!   channel to each peer it has to do with; the peer does the same.
//! * A buffer (DMB) is a memory file of one of the standard sizes, 16 KiB to 512 MiB, sealed
//!   against changes of its length. [`register`] passes it to the peer, which checks and maps it
//!   and closes the descriptor; then the owner closes its own. At rest a buffer takes no
//!   descriptor, and a peer takes four. The peer has everything before it gets the token, so
//!   [`attach`] never waits.
//! * With *nocopy* (the default) streams write in place, into the device's mapping of the peer's
//!   buffer; without, they write through [`move_data`], which is one copy into the same mapping.
//!   Each device chooses for its own writes: devices that differ can be peers.
//! * A signal costs a fence and a load unless the owner [armed] the buffer. Then a bit is set in
//!   the *signal page*, some shared memory per pair of devices, and if the owner sleeps its eventfd
//!   is written. A wake-up polls the peers that have signalled and the bits that are set, not all
//!   buffers.
//! * A buffer that is dropped stays in a pool, on both sides, for the next connection of the same
//!   two devices ([`Builder::pool`]), unless more than its first 64 KiB were used. That takes no
//!   system call, descriptor or message. It gets a fresh token; writes under the old one are
//!   refused, and memory is used again only after the peer has released all references to it. It is
//!   zeroed first. The stale bytes would be no secret, since this peer wrote them; but a stale CDC
//!   block would be taken for a valid one.
//! * A dropped buffer of which more was used is unmapped as soon as neither side uses it: regions
//!   and attachments may outlive the buffer. The owner unmaps it first; if the peer releases it
//!   last, it signals the buffer, which the owner has armed for this. The peer unmaps it when it
//!   finds in the signal page that the owner has, and the system has the pages then.
//! * When a peer's process ends, however it ends, its channels close, and the device reports
//!   [`Event::PeerGone`] at the next drain. Memory stays valid while references to it exist. The
//!   device also removes the socket that a killed process left behind, and so does every device
//!   when it starts.
//!
//! # Trust model
//!
//! Peers are processes of the users of the device's [`Domain`](smc_core::Domain); the kernel
//! vouches for the user (`SO_PEERCRED`). The peer behind a GID is the process that listens at its
//! socket in the runtime directory of the user whose number the GID contains, which other users
//! must not be able to change. A user cannot take the GID of another user's device. A token is 64
//! random bits, and is known to one peer only.
//!
//! A peer can write the buffers that were registered for it and the signal page that it shares with
//! this one, at any time, and nothing else. It can make the driver run, and thereby use some time
//! and address space. It cannot make this process touch memory that goes away, read or write what
//! belongs to others, or wait for it. All that it writes is checked before it is used.
//!
//! # Runtime directories
//!
//! A [`Domain`](smc_core::Domain) defines in which runtime directories devices find each other;
//! give the same one to the device ([`Builder::domain`]) and to the endpoint's negotiation.
//! Containers have to mount the same directory; they need not share namespaces if they are of one
//! user, see [`Domain::shared`](smc_core::Domain::shared). A device whose name is removed there is
//! published again within a second.
//!
//! A process that forks without `exec` shares its sockets with the child, so its end is noticed
//! only after that of the child.
//!
//! # Example
//!
//! Two devices, here in one process. A stream does all this by itself.
//!
//! ```
//! use smc_core::Domain;
//! use smc_core::device::{Device, Direct, Event};
//! use smc_core::mem::sync::Ordering;
//! use smc_transport_loop::LoopDevice;
//!
//! # futures_lite::future::block_on(async {
//! # let dir = tempfile::TempDir::new()?;
//! let domain = Domain::directory(dir.path());
//! let reader = LoopDevice::builder().domain(domain.clone()).build()?;
//! let writer = LoopDevice::builder().domain(domain).build()?;
//!
//! // The reader's buffer, for the writer alone.
//! let buffer = reader.register(writer.gid(), 1 << 16).await?;
//! buffer.arm();
//!
//! // The token travels in the handshake of a connection.
//! let nocopy = writer.nocopy().expect("on by default");
//! let attached = nocopy.attach(reader.gid(), buffer.token()).await?;
//! attached.region().store(8, 42, Ordering::Release)?;
//! attached.signal()?;
//!
//! reader.drain(&mut |event| assert_eq!(event, Event::Signalled(buffer.token())))?;
//! assert_eq!(buffer.region().load(8, Ordering::Acquire)?, 42);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! [`register`]: smc_core::device::Direct::register
//! [`move_data`]: smc_core::device::Direct::move_data
//! [`attach`]: smc_core::device::Nocopy::attach
//! [armed]: smc_core::device::Dmb::arm
//! [`Event::PeerGone`]: smc_core::device::Event::PeerGone

mod active;
mod channel;
mod config;
mod device;
mod directory;
mod doorbell;
mod local_buffers;
mod mappings;
mod peer;
mod peer_buffers;
mod peers;
mod pool;
mod random;
mod region;
mod released;
mod send_queue;
mod signal_page;

#[cfg(test)]
#[cfg(smc_loom)]
mod models;

pub use config::Builder;
pub use device::LoopDevice;
