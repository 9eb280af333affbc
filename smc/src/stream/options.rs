//! Options and facts of a stream, which its halves have as well: each with its documentation once.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::net::sockopt;

use super::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, Stream, WriteHalf};
use crate::error::Error;
use crate::mem::sync::Ordering;
use crate::proto::conn::ConnState;

/// When TCP probes a silent peer (`SO_KEEPALIVE`), for [`Stream::set_tcp_keepalive`]. The names are
/// those of the crate `socket2`.
///
/// What is `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpKeepalive {
    /// Silence before the first probe (`TCP_KEEPIDLE`).
    pub time: Option<Duration>,
    /// Time between two probes (`TCP_KEEPINTVL`).
    pub interval: Option<Duration>,
    /// Probes without an answer before the connection fails (`TCP_KEEPCNT`).
    pub retries: Option<u32>,
}

impl TcpKeepalive {
    /// Parameters that change nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            time: None,
            interval: None,
            retries: None,
        }
    }

    /// Sets the silence before the first probe, rounded up to seconds.
    #[must_use]
    pub const fn with_time(mut self, time: Duration) -> Self {
        self.time = Some(time);
        self
    }

    /// Sets the time between two probes, rounded up to seconds.
    #[must_use]
    pub const fn with_interval(mut self, interval: Duration) -> Self {
        self.interval = Some(interval);
        self
    }

    /// Sets the number of probes without an answer before the connection fails.
    #[must_use]
    pub const fn with_retries(mut self, retries: u32) -> Self {
        self.retries = Some(retries);
        self
    }

    fn of(socket: impl AsFd) -> io::Result<Self> {
        Ok(Self {
            time: Some(sockopt::tcp_keepidle(&socket)?),
            interval: Some(sockopt::tcp_keepintvl(&socket)?),
            retries: Some(sockopt::tcp_keepcnt(&socket)?),
        })
    }

    /// Sets the parameters, and then switches probes on.
    fn set(self, socket: impl AsFd) -> io::Result<()> {
        if let Some(time) = self.time {
            sockopt::set_tcp_keepidle(&socket, time)?;
        }
        if let Some(interval) = self.interval {
            sockopt::set_tcp_keepintvl(&socket, interval)?;
        }
        if let Some(retries) = self.retries {
            sockopt::set_tcp_keepcnt(&socket, retries)?;
        }
        Ok(sockopt::set_socket_keepalive(&socket, true)?)
    }
}

macro_rules! options {
    ($($type:ty),+) => {$(
        impl $type {
            /// The state of an SMC connection as smcss names it; `None` for TCP.
            #[must_use]
            pub fn state(&self) -> Option<ConnState> {
                self.shared.conn().map(|conn| conn.state())
            }

            /// Size in bytes of the local ring, which the peer writes: the requested size or less.
            /// Over SMC-D it is 32 bytes less than the receive buffer, which has a CDC block as
            /// well.
            ///
            /// `None` for TCP, where the system decides.
            #[must_use]
            pub fn recv_buffer_size(&self) -> Option<usize> {
                self.shared.conn().map(|conn| conn.local.ring_len())
            }

            /// Size in bytes of the peer's ring, which this side writes: the peer's choice. `None`
            /// for TCP.
            #[must_use]
            pub fn peer_recv_buffer_size(&self) -> Option<usize> {
                let ring = self.shared.conn()?.peer_ring();
                usize::try_from(ring.size()).ok()
            }

            /// The descriptor of the TCP socket, for its options. Data does not pass there when the
            /// stream is SMC. `None` with a runtime that has no sockets of the system.
            #[must_use]
            pub fn tcp_fd(&self) -> Option<BorrowedFd<'_>> {
                self.shared.exposed_fd()
            }

            /// Whether small writes are sent at once. SMC does not delay them, so there the setting
            /// is stored and has no effect.
            ///
            /// # Errors
            ///
            /// As `getsockopt(2)`, for TCP.
            pub fn nodelay(&self) -> io::Result<bool> {
                match self.shared.conn() {
                    Some(conn) => Ok(conn.nodelay.load(Ordering::Relaxed)),
                    None => self.shared.socket.nodelay(),
                }
            }

            /// Sets `TCP_NODELAY`; see [`Stream::nodelay`].
            ///
            /// # Errors
            ///
            /// As `setsockopt(2)`, for TCP.
            pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
                match self.shared.conn() {
                    Some(conn) => {
                        conn.nodelay.store(on, Ordering::Relaxed);
                        Ok(())
                    }
                    None => self.shared.socket.set_nodelay(on),
                }
            }

            /// The setting of [`Stream::set_linger`].
            ///
            /// # Errors
            ///
            /// As `getsockopt(2)`.
            pub fn linger(&self) -> io::Result<Option<Duration>> {
                match self.shared.conn() {
                    Some(conn) => Ok(*conn.linger.lock()),
                    None => self.shared.socket.linger(),
                }
            }

            /// Sets how long written data is sent after the stream, or both its halves, were
            /// dropped, as `SO_LINGER`; zero means that dropping resets it. Unlike with `SO_LINGER`
            /// dropping never waits.
            ///
            /// Over SMC-R what was not sent when the time has passed is dropped, and the peer sees
            /// an abort. [`Builder::close_timeout`](crate::Builder::close_timeout) is the limit for
            /// longer times, and without one. Over SMC-D everything written is in the peer's
            /// memory, so only zero has an effect.
            ///
            /// # Errors
            ///
            /// As `setsockopt(2)`.
            pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
                match self.shared.conn() {
                    Some(conn) => {
                        *conn.linger.lock() = linger;
                        Ok(())
                    }
                    None => self.shared.socket.set_linger(linger),
                }
            }

            /// As [`Stream::set_linger`] with zero: dropping the stream resets it.
            ///
            /// An [`OwnedWriteHalf`] that is dropped shuts writing down before that, unless it was
            /// [forgotten](OwnedWriteHalf::forget).
            ///
            /// # Errors
            ///
            /// As `setsockopt(2)`.
            pub fn set_zero_linger(&self) -> io::Result<()> {
                self.set_linger(Some(Duration::ZERO))
            }

            /// Whether `SO_KEEPALIVE` of the TCP socket is set.
            ///
            /// # Errors
            ///
            /// As `getsockopt(2)`; `Unsupported` with a runtime that has no sockets of the system.
            pub fn keepalive(&self) -> io::Result<bool> {
                Ok(sockopt::socket_keepalive(self.shared.tcp()?)?)
            }

            /// `SO_KEEPALIVE` of the TCP socket. It keeps the entries of a connection in the tables
            /// of firewalls. An SMC stream does not end with its TCP connection once the peer has
            /// sent something: it ends with its device or link.
            ///
            /// # Errors
            ///
            /// As `setsockopt(2)`.
            pub fn set_keepalive(&self, on: bool) -> io::Result<()> {
                self.shared.note_exposed();
                self.shared.socket.set_keepalive(on)
            }

            /// When TCP probes a silent peer, if [`Stream::keepalive`] is on: all fields are there.
            ///
            /// # Errors
            ///
            /// As [`Stream::keepalive`].
            pub fn tcp_keepalive(&self) -> io::Result<TcpKeepalive> {
                TcpKeepalive::of(self.shared.tcp()?)
            }

            /// Sets when TCP probes a silent peer, and then `SO_KEEPALIVE`; see
            /// [`Stream::set_keepalive`].
            ///
            /// # Errors
            ///
            /// As `setsockopt(2)`, where the parameters before the one that failed are set;
            /// `Unsupported` with a runtime that has no sockets of the system.
            pub fn set_tcp_keepalive(&self, params: &TcpKeepalive) -> io::Result<()> {
                self.shared.note_exposed();
                params.set(self.shared.tcp()?)
            }

            /// `IP_TTL` of the TCP socket. Data of an SMC stream does not pass there.
            ///
            /// # Errors
            ///
            /// As [`Stream::keepalive`].
            pub fn ttl(&self) -> io::Result<u32> {
                Ok(sockopt::ip_ttl(self.shared.tcp()?)?)
            }

            /// Sets [`Stream::ttl`].
            ///
            /// # Errors
            ///
            /// As `setsockopt(2)`; `Unsupported` with a runtime that has no sockets of the system.
            pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
                Ok(sockopt::set_ip_ttl(self.shared.tcp()?, ttl)?)
            }

            /// `TCP_QUICKACK` of the TCP socket: whether it acknowledges received data at once. The
            /// system changes it again as it sees fit. Data of an SMC stream does not pass there.
            ///
            /// # Errors
            ///
            /// As [`Stream::keepalive`].
            pub fn quickack(&self) -> io::Result<bool> {
                Ok(sockopt::tcp_quickack(self.shared.tcp()?)?)
            }

            /// Sets [`Stream::quickack`].
            ///
            /// # Errors
            ///
            /// As [`Stream::set_ttl`].
            pub fn set_quickack(&self, on: bool) -> io::Result<()> {
                Ok(sockopt::set_tcp_quickack(self.shared.tcp()?, on)?)
            }

            /// Takes the error that ended the stream, if one did: `SO_ERROR`. Each later call, of
            /// the stream or a half of it, returns `None`. Over SMC that has no effect on reading
            /// and writing, which fail as before.
            ///
            /// # Errors
            ///
            /// As `getsockopt(2)`.
            pub fn take_error(&self) -> io::Result<Option<io::Error>> {
                match self.shared.conn() {
                    Some(conn) => Ok(conn.take_error().map(Error::into)),
                    None => self.shared.socket.take_error(),
                }
            }
        }
    )+};
}

options!(
    Stream,
    ReadHalf<'_>,
    OwnedReadHalf,
    WriteHalf<'_>,
    OwnedWriteHalf
);
