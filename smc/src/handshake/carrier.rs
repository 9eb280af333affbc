//! The carrier of handshake messages: the connection itself, or a side channel.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::net::{SocketAddr, SocketAddrV6};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use crate::busy_poll::{BusyPoll, PollStep};
use crate::conn::PeerLocality;
use crate::endpoint::EndpointInner;
use crate::lifetime::Deadline;
use crate::mutex::Mutex;
use crate::negotiate::{Credentials, Delivery, Offer, SideChannel, Withdrawn};
use crate::proto::Role;
use crate::runtime::{Runtime, Socket};

use super::READ_MAX;

/// The carrier of one handshake.
pub(super) enum Carrier<'a> {
    Tcp(TcpCarrier<'a>),
    Unix(UnixCarrier<'a>),
    SideChannel(SideChannelCarrier<'a>),
}

/// The TCP connection of the stream itself.
pub(super) struct TcpCarrier<'a> {
    socket: &'a dyn Socket,
    under_way: Option<&'a TcpHandshake<'a>>,
    /// A client's.
    offer: Option<&'a mut OfferOnTcp>,
}

/// A client's offer on a TCP connection whose server is to expect CLC.
#[derive(Debug)]
pub(super) struct OfferOnTcp {
    offer: Box<dyn Offer>,
    state: OfferState,
}

/// Whether the server is known to expect CLC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfferState {
    /// Not before TCP's handshake is complete: the PROPOSAL is data of the SYN.
    Unproven,
    Smc,
    /// It does not, and has got the PROPOSAL all the same.
    Plain,
}

impl OfferOnTcp {
    pub(super) fn proven(offer: Box<dyn Offer>) -> Self {
        let state = OfferState::Smc;
        Self { offer, state }
    }

    pub(super) fn unproven(offer: Box<dyn Offer>) -> Self {
        let state = OfferState::Unproven;
        Self { offer, state }
    }

    pub(super) fn state(&self) -> OfferState {
        self.state
    }
}

impl TcpCarrier<'_> {
    /// Reads nothing from a server that does not expect CLC.
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_usable(cx))?;
        self.socket.poll_read(cx, buf)
    }

    /// Writes to such a server nothing but the data of the SYN.
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_usable(cx))?;
        self.socket.poll_write(cx, &[IoSlice::new(bytes)])
    }

    /// Waits for the end of TCP's handshake, unless that has yet to begin; fails if it shows that
    /// the server does not expect CLC.
    fn poll_usable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(OfferOnTcp { offer, state }) = self.offer.as_deref_mut() else {
            return Poll::Ready(Ok(()));
        };
        if *state == OfferState::Unproven {
            // It is writable before the first write, and then no more before TCP's handshake is
            // complete or has failed: what comes next reports why.
            ready!(self.socket.poll_writable(cx))?;
            if self.socket.peer_addr().is_ok() {
                *state = match offer.connected(self.socket) {
                    Delivery::OnTcp => OfferState::Smc,
                    Delivery::Delivered | Delivery::Plain => OfferState::Plain,
                };
            }
        }
        Poll::Ready(match *state {
            OfferState::Plain => Err(io::ErrorKind::ConnectionAborted.into()),
            OfferState::Unproven | OfferState::Smc => Ok(()),
        })
    }
}

/// The UNIX socket of the stream itself, of which the system reports the process at the other end.
pub(super) struct UnixCarrier<'a> {
    reader: UnixReader<'a>,
    process: Credentials,
    role: Role,
}

/// The other end of a connection on which it sends CLC itself.
#[derive(Default)]
pub(crate) struct ClcPeer {
    /// Of a UNIX socket.
    pub(super) process: Option<Credentials>,
    /// What was read from a UNIX socket already.
    pub(super) received: Vec<u8>,
    /// How long it may take to the first byte of an answer, if that is less than for a message.
    pub(super) answer_within: Option<Duration>,
}

/// Reads a UNIX socket, which costs a system call each time: more than a message at once.
pub(super) struct UnixReader<'a> {
    socket: &'a dyn Socket,
    /// What was read and not taken.
    ahead: Vec<u8>,
    busy_poll: BusyPoll,
    runtime: &'a dyn Runtime,
    /// When the first byte has to be there.
    deadline: Option<Deadline>,
}

/// The handshakes of an endpoint on TCP, by their own and their peers' addresses. They show which
/// connections an endpoint has with itself. Counted: each network namespace has its own addresses,
/// and the sockets of an endpoint may be in several.
#[derive(Debug, Default)]
pub(crate) struct TcpHandshakes(Mutex<HashMap<[SocketAddr; 2], usize>>);

/// A handshake of [`TcpHandshakes`] while it is under way.
pub(super) struct TcpHandshake<'a> {
    all: &'a TcpHandshakes,
    addresses: [SocketAddr; 2],
}

impl TcpHandshakes {
    pub(super) fn add(&self, local: SocketAddr, peer: SocketAddr) -> TcpHandshake<'_> {
        // Not the flow label of IPv6, which the ends may see differently.
        let canonical = |at: SocketAddr| match at {
            SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_none() => {
                SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id()).into()
            }
            _ => SocketAddr::new(at.ip().to_canonical(), at.port()),
        };
        let addresses = [canonical(local), canonical(peer)];
        *self.0.lock().entry(addresses).or_default() += 1;
        TcpHandshake {
            all: self,
            addresses,
        }
    }
}

impl TcpHandshake<'_> {
    /// Whether the same endpoint has the handshake at the other end.
    fn is_with_itself(&self) -> bool {
        let [local, peer] = self.addresses;
        self.all.0.lock().contains_key(&[peer, local])
    }
}

impl Drop for TcpHandshake<'_> {
    fn drop(&mut self) {
        if let Entry::Occupied(mut count) = self.all.0.lock().entry(self.addresses) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// A side channel (out of band of TCP), which only processes of one host have.
pub(super) struct SideChannelCarrier<'a> {
    side_channel: &'a mut dyn SideChannel,
    role: ChannelRole<'a>,
    /// A message was sent and the peer not yet notified.
    sent: bool,
    busy_poll: BusyPoll,
    endpoint: &'a EndpointInner,
}

enum ChannelRole<'a> {
    /// A client waits until it has received a message.
    Client(Option<AnswerWait<'a>>),
    /// A server publishes progress next at this time.
    Server(Option<Deadline>),
}

/// A client's wait for the first message of the server.
struct AnswerWait<'a> {
    /// Bytes on it come from a server without SMC.
    tcp_socket: &'a dyn Socket,
    /// The end of the wait for progress of the server.
    timer: Option<Deadline>,
    /// The last progress count of the server; set once TCP is polled, too.
    progress: Option<u64>,
}

impl<'a> Carrier<'a> {
    /// The connection itself. `under_way` is a handshake on TCP, `offer` that of a client there.
    pub(super) fn on_socket(
        endpoint: &'a EndpointInner,
        socket: &'a dyn Socket,
        peer: ClcPeer,
        role: Role,
        under_way: Option<&'a TcpHandshake<'a>>,
        offer: Option<&'a mut OfferOnTcp>,
    ) -> Self {
        let Some(process) = peer.process else {
            return Self::Tcp(TcpCarrier {
                socket,
                under_way,
                offer,
            });
        };
        let groups = &endpoint.groups;
        let reader = UnixReader {
            ahead: peer.received,
            deadline: peer.answer_within.map(|within| groups.after(within)),
            ..UnixReader::new(endpoint, socket)
        };
        Self::Unix(UnixCarrier {
            reader,
            process,
            role,
        })
    }

    /// A client's side channel, after the PROPOSAL was delivered on it, and its TCP connection.
    pub(super) fn client(
        endpoint: &'a EndpointInner,
        side_channel: &'a mut dyn SideChannel,
        tcp_socket: &'a dyn Socket,
    ) -> Self {
        let wait = AnswerWait {
            tcp_socket,
            timer: None,
            progress: None,
        };
        Self::side_channel(endpoint, side_channel, ChannelRole::Client(Some(wait)))
    }

    /// A server's side channel, on which the PROPOSAL was delivered.
    pub(super) fn server(
        endpoint: &'a EndpointInner,
        side_channel: &'a mut dyn SideChannel,
    ) -> Self {
        Self::side_channel(endpoint, side_channel, ChannelRole::Server(None))
    }

    fn side_channel(
        endpoint: &'a EndpointInner,
        side_channel: &'a mut dyn SideChannel,
        role: ChannelRole<'a>,
    ) -> Self {
        Self::SideChannel(SideChannelCarrier {
            side_channel,
            role,
            sent: false,
            busy_poll: BusyPoll::new(endpoint.config.polling, &endpoint.handshake_pollers),
            endpoint,
        })
    }

    /// The locality of the peer, as proven by the carrier.
    pub(super) fn locality(&self) -> PeerLocality {
        match self {
            Self::Tcp(..) => PeerLocality::Unknown,
            Self::Unix(unix) => PeerLocality::SameHost(unix.role),
            Self::SideChannel(channel) => PeerLocality::SameHost(match channel.role {
                ChannelRole::Client(_) => Role::Client,
                ChannelRole::Server(_) => Role::Server,
            }),
        }
    }

    /// The process at the other end, where the carrier shows it.
    pub(super) fn credentials(&self) -> Option<Credentials> {
        match self {
            Self::Unix(unix) => Some(unix.process),
            Self::Tcp(tcp) => {
                let is_own = tcp.under_way.is_some_and(TcpHandshake::is_with_itself);
                is_own.then(Credentials::own)
            }
            Self::SideChannel(channel) => channel.side_channel.credentials(),
        }
    }

    /// Sends a message, until the time given.
    pub(super) async fn send(
        &mut self,
        runtime: &dyn Runtime,
        until: Instant,
        message: &[u8],
    ) -> io::Result<()> {
        let mut timer = None;
        let mut rest = message;
        poll_fn(|cx| {
            while !rest.is_empty() {
                match self.poll_write(cx, rest) {
                    Poll::Ready(Ok(count)) => rest = rest.get(count..).unwrap_or_default(),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {
                        let timer = timer.get_or_insert_with(|| runtime.timer(until));
                        let late = timer.as_mut().poll(cx);
                        return late.map(|()| Err(io::ErrorKind::TimedOut.into()));
                    }
                }
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Writes some of a message.
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(tcp) => tcp.poll_write(cx, bytes),
            Self::Unix(unix) => unix.reader.socket.poll_write(cx, &[IoSlice::new(bytes)]),
            Self::SideChannel(channel) => {
                channel.sent = true;
                channel.side_channel.send(bytes)?;
                Poll::Ready(Ok(bytes.len()))
            }
        }
    }

    /// Notifies the peer of sent messages.
    pub(super) fn flush(&mut self) {
        if let Self::SideChannel(channel) = self {
            if std::mem::take(&mut channel.sent) {
                channel.side_channel.flush();
            }
        }
    }

    /// Publishes progress to the client while the device works on the answer.
    pub(super) fn publish_progress(&mut self, cx: &mut Context<'_>) {
        if let Self::SideChannel(channel) = self {
            channel.publish_progress(cx);
        }
    }

    /// Whether the peer has the CONFIRM already, according to its answer.
    pub(super) fn is_confirmed(&self) -> bool {
        match self {
            Self::Tcp(..) | Self::Unix(_) => false,
            Self::SideChannel(channel) => channel.side_channel.is_confirmed(),
        }
    }

    /// Reads received bytes; 0 at the end.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(tcp) => tcp.poll_read(cx, buf),
            Self::Unix(unix) => unix.reader.poll_read(cx, buf),
            Self::SideChannel(channel) => channel.poll_read(cx, buf),
        }
    }

    /// Whether this is a UNIX socket of which nothing was read behind the last message.
    pub(super) fn is_unix_without_unread(&self) -> bool {
        matches!(self, Self::Unix(unix) if unix.reader.ahead.is_empty())
    }

    /// What was read behind the last message.
    pub(super) fn take_unread(&mut self) -> Vec<u8> {
        match self {
            Self::Unix(unix) => std::mem::take(&mut unix.reader.ahead),
            Self::Tcp(..) | Self::SideChannel(_) => Vec::new(),
        }
    }
}

impl<'a> UnixReader<'a> {
    pub(super) fn new(endpoint: &'a EndpointInner, socket: &'a dyn Socket) -> Self {
        Self {
            socket,
            ahead: Vec::new(),
            busy_poll: BusyPoll::new(endpoint.config.polling, &endpoint.handshake_pollers),
            runtime: &*endpoint.runtime,
            deadline: None,
        }
    }

    /// What was read.
    pub(super) fn into_ahead(self) -> Vec<u8> {
        self.ahead
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if self.ahead.is_empty() {
            ready!(self.poll_fill(cx))?;
        }
        let count = self.ahead.len().min(buf.len());
        for (to, from) in buf.iter_mut().zip(self.ahead.drain(..count)) {
            *to = from;
        }
        Poll::Ready(Ok(count))
    }

    /// Reads what there is; nothing at the end.
    ///
    /// Polls for a while: a socket that is never waited for need not be registered with the
    /// reactor.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut buf = [0; READ_MAX];
        let read = loop {
            match self.socket.try_read(&mut buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => {
                    self.busy_poll.hit();
                    break read;
                }
            }
            match self.busy_poll.miss_of_call() {
                PollStep::Again => {}
                PollStep::Yield => {
                    self.runtime.yield_now(cx);
                    return Poll::Pending;
                }
                PollStep::Park => match self.socket.poll_read(cx, &mut buf) {
                    Poll::Ready(read) => break read,
                    Poll::Pending => {
                        let deadline = self.deadline.as_mut();
                        let late = deadline.is_some_and(|it| Pin::new(it).poll(cx).is_ready());
                        return match late {
                            true => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                            false => Poll::Pending,
                        };
                    }
                },
            }
        };
        self.deadline = None;
        let count = read?;
        self.ahead
            .extend_from_slice(buf.get(..count).unwrap_or(&buf));
        Poll::Ready(Ok(()))
    }
}

impl SideChannelCarrier<'_> {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let read = self.poll_side_channel(cx, buf);
        if read.is_ready() {
            self.end_wait();
            self.busy_poll.hit();
        }
        read
    }

    fn poll_side_channel(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            if let Some(read) = self.read(buf) {
                return Poll::Ready(read);
            }
            match self.busy_poll.miss() {
                PollStep::Again => {}
                PollStep::Yield => {
                    self.endpoint.runtime.yield_now(cx);
                    return Poll::Pending;
                }
                PollStep::Park => break,
            }
        }
        match self.watch(cx) {
            AnswerState::None => self.side_channel.poll_read(cx, buf),
            // It may be data behind an answer.
            AnswerState::Plain => Poll::Ready(self.read(buf).unwrap_or(Ok(0))),
            AnswerState::NoProgress => match self.side_channel.withdraw() {
                Withdrawn::Free => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                // The answer has just arrived, or the offer can no longer be withdrawn.
                Withdrawn::Taken => {
                    self.end_wait();
                    self.side_channel.poll_read(cx, buf)
                }
            },
        }
    }

    fn read(&mut self, buf: &mut [u8]) -> Option<io::Result<usize>> {
        match self.side_channel.try_read(buf) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            read => Some(read),
        }
    }

    /// Checks whether an answer can still be expected.
    fn watch(&mut self, cx: &mut Context<'_>) -> AnswerState {
        let ChannelRole::Client(Some(wait)) = &mut self.role else {
            return AnswerState::None;
        };
        let EndpointInner { groups, config, .. } = self.endpoint;
        // Data on TCP is rare, so TCP is not polled at first.
        let first = PLAIN_CHECK_DELAY.min(config.answer_timeout);
        loop {
            if wait.progress.is_some() && wait.tcp_socket.poll_readable(cx).is_ready() {
                return AnswerState::Plain;
            }
            let timer = wait.timer.get_or_insert_with(|| groups.after(first));
            if Pin::new(&mut *timer).poll(cx).is_pending() {
                return AnswerState::None;
            }
            // A late task was not scheduled in time, and so the server may not have been.
            let is_late = timer.is_overdue(NOT_SCHEDULED);
            let progress = self.side_channel.progress();
            let time = match wait.progress.replace(progress) {
                Some(before) if before == progress && !is_late => return AnswerState::NoProgress,
                Some(_) => config.answer_timeout,
                None => config.answer_timeout - first,
            };
            wait.timer = Some(groups.after(time));
        }
    }

    fn end_wait(&mut self) {
        if let ChannelRole::Client(wait) = &mut self.role {
            *wait = None;
        }
    }

    fn publish_progress(&mut self, cx: &mut Context<'_>) {
        let ChannelRole::Server(next) = &mut self.role else {
            return;
        };
        let groups = &self.endpoint.groups;
        loop {
            let timer = next.get_or_insert_with(|| groups.after(PROGRESS_INTERVAL));
            if Pin::new(timer).poll(cx).is_pending() {
                return;
            }
            self.side_channel.publish_progress();
            *next = None;
        }
    }
}

/// The state of the server, as far as a client knows it before an answer.
enum AnswerState {
    None,
    /// Unexpected data has arrived on TCP.
    Plain,
    /// The server made no progress until the timeout.
    NoProgress,
}

/// Delay from which a task counts as not scheduled in time.
const NOT_SCHEDULED: Duration = Duration::from_millis(20);

/// Interval at which a server publishes progress. Clients wait several times as long.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(40);

/// How long a client waits for an answer before it polls TCP, too. Polling costs system calls, and
/// announced listeners normally answer.
const PLAIN_CHECK_DELAY: Duration = Duration::from_millis(10);
