//! Userspace Shared Memory Communications: byte streams with TCP's habits that move their data
//! through shared memory.
//!
//! A program connects and accepts as it would with TCP. Both ends then find out in a handshake of
//! three messages (CLC) whether there is a better path between them, and use it; if anything is
//! missing, the stream simply stays TCP. [`io::Stream::mode`] tells which it is, and why.
//!
//! Use it where both ends are on one host (SMC-D over a loopback device) and round trips or
//! message rate matter. Do not use it where a stream crosses a network without RDMA: it will be
//! TCP with a slightly longer set-up.
//!
//! ```text
//!             you                              the peer
//!              | bytes                            ^ bytes
//!      +-------v--------+                 +-------+--------+
//!      | Stream         |    crate::io    | Stream         |    async shell
//!      +-------+--------+                 +-------^--------+
//!      +-------v--------+                 +-------+--------+
//!      | cursors, flags |   crate::proto  | cursors, flags |    sans-I/O
//!      +---+--------+---+                 +---^--------^---+
//!     data |        | CDC                     |        |
//!      +---v--------v---+                 +---+--------+---+
//!      | device         | ==== memory ==> | device         |    crate::device
//!      +----------------+                 +----------------+
//!
//!   TCP socket --> CLC --> handshake --> link group --> connection
//!                            +-- declined --> the same stream over the same TCP socket
//! ```
//!
//! Rooms, in the order in which bytes pass them: [`io`] (endpoints, listeners, streams, runtimes),
//! [`proto`] (the protocol without I/O), [`mem`] (memory that others write; but for system calls the only unsafe code),
//! [`device`] (what a transport has to offer). [`error`] has all errors and [`config`] the
//! defaults. Devices live in crates of their own, such as `smc-transport-loop`.
//!
//! # Memory
//!
//! What a connection takes of a process, and how to bound it:
//!
//! | | SMC-D: own buffer and the peer's | SMC-R: RMB and staging ring |
//! |---|---|---|
//! | size unless set | 4 MiB each ([`RECV_BUFFER`](config::RECV_BUFFER)), less if the device has less | 1 MiB ([`RMB`](config::RMB)) and 256 KiB ([`SEND_BUFFER`](config::SEND_BUFFER)) |
//! | idle, never used | a page or two of each | all of it, pinned |
//! | busy | a stream goes round in its ring: in time all of both | all of it |
//! | after close | at most the first 64 KiB of each, as long as the device keeps it for the next connection to that peer (`Builder::pool` of the device) | all of it, as long as the link group keeps it for its next connection |
//! | while one side still has the stream, or guards | as before | as before |
//!
//! The system charges a page of shared memory to the cgroup of the process that touches it first,
//! which mostly is the one that writes: a server that sends pays for the receive buffers of its
//! clients. So both buffers count for each process, and a client's buffer is not larger than its
//! server's: `recv_buffer` of a listener bounds both.
//!
//! [`Builder::memory_limit`](io::Builder::memory_limit) bounds what connections take together: own
//! buffers at their full size while they are registered, and until the peer has let go of them; what
//! devices and link groups keep of unused ones; peers' buffers at their full size until both sides
//! have let go, and 64 KiB of each that stays mapped; 16 KiB for each peer of a loop device, and 32 KiB
//! for each 64 places of its buffers, of which 64 KiB more may be used where the limit leaves nothing.
//! Without it all endpoints of a process share a quarter of the memory of the machine or, if that is
//! less, of what the process's cgroups allow (`memory.max` of version 2, `memory.limit_in_bytes` of
//! version 1, with those above them), as found when the first of them is built. [`Endpoint::memory`]
//! tells limit and use.
//!
//! A new connection gets buffers of at most a 64th of what is left, so sizes fall before memory ends:
//! of 2 GiB of a machine or container, 512 MiB are for connections, the first 32 of which have 4 MiB in
//! each direction, the next 32 have 2 MiB, and so on. When even the smallest, 16 KiB, do not fit, the
//! stream is TCP with reason 0x01010000. What is kept unused is given back before that, also by other
//! endpoints with the same limit. Not counted: the application's and TCP's own buffers, and the memory
//! of an ISM fabric, all of which is taken at once by the process that makes it. A client cannot make
//! its server's buffer smaller: with a limit of its own it is TCP sooner, when less than 16 KiB and
//! twice the server's buffer is left. Several processes in one container each have the default: give
//! them limits.
//!
//! A memory file longer than the process's `RLIMIT_FSIZE` is not made: the buffer is smaller, or the
//! stream TCP.
//!
//! # How streams end
//!
//! A connection that one end was told is made reaches the other, and so do bytes that were written,
//! wherever either end ends; but see below for SMC-R, and a listener may get a stream that its client
//! gave up while it was made. What the peer reads behind them:
//!
//! | this end | over SMC-D | over SMC-R |
//! |---|---|---|
//! | shuts down writing, or drops the stream | end of stream | end of stream |
//! | drops it with received data unread | `ConnectionReset` | `ConnectionReset` |
//! | drops it, then the runtime or `main` ends | end of stream | end of stream if all was sent, else an error |
//! | drops it and awaits [`Endpoint::close`] before that | end of stream | end of stream |
//! | has shut it down for writing and has it at [`Endpoint::close`] | end of stream | end of stream |
//! | has it open for writing at [`Endpoint::close`] or [`Endpoint::shutdown`](io::Endpoint::shutdown) | `ConnectionReset` or `ConnectionAborted` | the same |
//! | `process::exit` with the stream open, `SIGKILL` | `ConnectionAborted` | the same, when the link is found dead |
//!
//! What this end sees when the runtime of its endpoint ends while it has the stream: what has arrived
//! can be read, and over SMC-D what there is space for can be written; whatever would wait fails with
//! `ConnectionAborted` ([`How::Runtime`](error::How::Runtime)). The peer sees the end that follows.
//!
//! [`Endpoint::close`]: io::Endpoint::close
//!
//! Over SMC-D a write that has returned is in the peer's memory, which outlives the writer: on the
//! loop device as long as the peer has the buffer, on an ISM device as long as the fabric is there.
//! Over SMC-R up to [`Builder::send_buffer`](io::Builder::send_buffer) bytes of each stream may still
//! be here, and dropping a stream does not wait for them: the runtime goes on sending, a process that
//! exits does not. Close streams and wait for it (`close`, tokio's `shutdown`), or call
//! [`Endpoint::close`] when they are dropped or shut down. A closed endpoint makes no more streams.
//!
//! `process::exit`, and a signal that ends the process, run no destructors, so a stream that is open then is cut off as by a kill: over
//! SMC-D all bytes arrive, but not the end of the stream. With TCP the system would send it.
//!
//! The TCP connection under a stream carries nothing by then, and its end means nothing. Between
//! processes of one host the client ends it by RST (`SO_LINGER` of zero), so that no port stays in
//! TIME_WAIT: captures and counters of resets show one for each such connection. Others end by FIN.
//!
//! # Features
//!
//! None is on by default, and none changes what others do.
//!
//! | feature | adds |
//! |---|---|
//! | `tokio` | tokio's I/O traits on streams and halves |
//! | `runtime-tokio` | [`io::runtime`]'s adapter for tokio |
//! | `runtime-smol` | [`io::runtime`]'s adapter for smol |
//! | `syn-option` | negotiation by TCP option, as kernels do it: `io::negotiate::option` |

pub mod config;
pub mod device;
pub mod error;
pub mod io;
pub mod mem;
pub mod proto;
pub mod random;
mod shares;
mod source;

pub use config::Policy;
pub use error::{Error, FallbackCause, FallbackReason};
pub use io::negotiate::Domain;
pub use io::{Endpoint, Listener, Mode, Stream};
pub use smc_wire as wire;
