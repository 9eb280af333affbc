//! SMC-R over RDMA verbs: the transport for hosts whose network cards support RoCE.
//!
//! An [`RdmaDevice`] is a transport device for `smc-core`: give it to an endpoint, and streams to
//! hosts that have one too, or a kernel that supports SMC-R, move their data by RDMA. Soft-RoCE,
//! which turns any network interface into an RDMA device, will do.
//!
//! ```text
//!   Link  = queue pair (RC)             one per peer and path, with its own buffers for messages
//!    |  \
//!    |   `-- post: WRITE, WRITE, SEND   one chain; the message is signalled and solicited
//!    v
//!   completion queues -- channel --.    one for receives, one for posts
//!   asynchronous events -----------+-- epoll set = the doorbell
//!   removal of device nodes -------'
//! ```
//!
//! # How it works
//!
//! * All links of a device share two completion queues, one for receives and one for posts, long
//!   enough for everything that they may have posted. Completions name their link by a number that
//!   is not used twice, so what a dropped link leaves behind is never taken for an event of
//!   another, also where queue pair numbers come back.
//! * A received message is copied out and its buffer posted again before the message is handed on:
//!   the peer finds a buffer also while the application does not read. Posting and draining
//!   allocate nothing; only messages of other lengths than 44 bytes do.
//! * Posting takes a lock of the link, for no longer than the driver takes to queue the requests.
//!   Messages are copied into the request where the device allows it.
//! * Set-up does not block the executor: queue pairs and registrations are made on up to two
//!   threads of the device, and queue pairs are connected, which waits for the peer's hardware
//!   address, on up to sixteen. 4096 calls of the first kind and 256 of the other one may wait;
//!   then the next one fails with `EBUSY`, and its stream is TCP. A call whose future is dropped is
//!   not made, or what it makes is freed.
//! * [`drain`] takes no system call while the device is not armed, except for an occasional poll
//!   at what happens rarely.
//! * A link goes down when a request fails, when its port is no longer active, when its GID
//!   disappears, or with the device. Its queue pair is stopped before [`LinkDown`] is reported.
//!   What a completion states concerns that link alone, unless it is `IBV_WC_FATAL_ERR`;
//!   asynchronous events about the queue pair or the device are [failures of the
//!   device](smc_core::device::LinkFailure::Device).
//! * Some devices, soft-RoCE among them, are removed only when no process has them open, and their
//!   removal waits for that. The device node disappears first; that is reported as [`DeviceGone`],
//!   and the device closes when it and everything made by it is dropped.
//!
//! # Parameters
//!
//! Queue pairs are reliable connected, with partition key index 0, endless retries for a peer
//! without receive buffers, and 0.06 ms until peers try again in that case. Cards get an
//! acknowledgement timeout of 134 ms (code 15) and 7 retries, as from Linux: a link with data
//! under way is given up about a second after its path fails. Soft-RoCE takes 7 retries for endless
//! and gets 537 ms (code 17) and 6, about four seconds. (It counts timeouts also while the peer
//! has no receive buffers, so there a peer that takes nothing at all for some ten seconds counts as
//! dead, too.)
//!
//! Hop limit 1, or 64 through a gateway, and the peer's MAC are what SMC-R requires of a path, and
//! the hop limit is asked for. The kernel's RDMA core resolves both by itself for queue pairs of
//! user space: it resolves the MAC as IP does, and packets leave with a hop limit of its own,
//! commonly 64. So a direct path is not kept from passing a router, as it is between kernels.
//!
//! [`Builder`] sets the depth of the queues, the traffic class of packets, and whether devices may
//! access buffers in any order.
//!
//! # When a process ends
//!
//! What a stream has written waits in its send buffer until the peer's memory has it, and is lost
//! with the process before: at most `send_buffer` bytes for each stream (256 KiB unless set).
//! Closing a stream and waiting for that (`close`, tokio's `shutdown`), or `Endpoint::close` after
//! streams were dropped, leaves nothing behind. Where it was not waited for, the peer gets a part
//! of the data and then an error, not the end of the stream.
//!
//! # What it takes
//!
//! To build: cmake and libclang. To run: `libibverbs.so.1` with a driver for the device, access to
//! its node below `/dev/infiniband`, and enough locked memory (`ulimit -l`), about 270 KiB per link
//! besides the buffers of connections, or 650 KiB where a receive takes a single span of memory.
//! The library is loaded when it is first used; where it or a device is missing, that is an
//! [`OpenError`], and [`probe()`] states what each device lacks.
//!
//! # Child processes
//!
//! A process may make child processes while a device is open, by [`Command`](std::process::Command)
//! or `fork`. A child that goes on without `exec` must leave alone what it has inherited: devices,
//! links, registered memory and streams. It must not drop them either, which would destroy queue
//! pairs of the parent, so it ends by `exec` or `_exit`. Descriptors of a device are closed by
//! `exec`.
//!
//! The parent's memory stays what the device sees. Newer kernels, from about 5.12 on, copy
//! registered pages for the child. Where the library does not find that, it is told to keep them
//! out of the child (`ibv_fork_init`), which an access to them ends by SIGSEGV then. That is done
//! before the first device is listed or opened, and is an [`OpenError`] if another user of the
//! library in the process has registered memory without it before. Buffers of streams and links
//! have their pages for themselves, so a child misses nothing else; memory that a program registers
//! by itself should have, too ([`Region::try_anonymous`](smc_core::mem::Region::try_anonymous)).
//!
//! # Example
//!
//! Two links of one device, connected to each other. A stream does all this by itself.
//!
//! ```
//! use smc_core::device::{Access, Device, Event, OpId, Piece, Rdma, Route, Write};
//! use smc_core::mem::Region;
//! use smc_transport_rdma::RdmaDevice;
//!
//! # futures_lite::future::block_on(async {
//! let usable = |report: &smc_transport_rdma::DeviceReport| report.usable.is_ok();
//! let Some(found) = smc_transport_rdma::probe().ok().and_then(|all| all.into_iter().find(usable))
//! else {
//!     println!("skipped: no RDMA device");
//!     return Ok(());
//! };
//! let device = RdmaDevice::open(&found.name)?;
//! let addresses = device.addresses();
//! # let at = addresses.iter().find(|at| at.gid.ipv4().is_some()).unwrap();
//! # let _ = "
//! let at = &addresses[0];
//! # ";
//!
//! // Links reach memory of their own protection domain only.
//! let domain = device.protection_domain().await?;
//! // Each end sends the other its address; with SMC that travels in the handshake.
//! let (near, far) = (domain.open_link(at).await?, domain.open_link(at).await?);
//! let (here, there) = (near.local(), far.local());
//! let near = near.connect(there, Route::SameSubnet).await?;
//! let far = far.connect(here, Route::SameSubnet).await?;
//!
//! let from = domain.register(&Region::anonymous(4096), Access::Local).await?;
//! let to = domain.register(&Region::anonymous(4096), Access::RemoteWrite).await?;
//! from.region().copy_in(0, b"hello")?;
//! let hello = Write {
//!     from: &*from,
//!     first: Piece { at: 0, len: 5 },
//!     second: Piece::default(),
//!     rkey: to.rkey(),
//!     to: to.addr(),
//! };
//! near.post(OpId(1), &[hello], &[0; 44])?;
//!
//! let mut events = Vec::new();
//! while !events.iter().any(|event| matches!(event, Event::Received { .. })) {
//!     device.drain(&mut |event| events.push(event))?; // a driver arms and sleeps in between
//! }
//! let mut data = [0; 5];
//! to.region().copy_out(0, &mut data)?;
//! assert_eq!(&data, b"hello");
//! # drop(far);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! [`drain`]: smc_core::device::Device::drain
//! [`LinkDown`]: smc_core::device::Event::LinkDown
//! [`DeviceGone`]: smc_core::device::Event::DeviceGone

mod async_events;
mod buffers;
mod completion;
mod config;
mod device;
mod domain;
mod doorbell;
mod error;
mod hardware_counters;
mod link;
mod links;
mod memory;
mod offload;
mod port;
mod probe;
mod retry_policy;
mod teardown;
mod verbs;

pub use config::Builder;
pub use device::RdmaDevice;
pub use error::OpenError;
pub use port::PortState;
pub use probe::{DeviceReport, PortReport, Unusable, probe};
