//! Connected and listening sockets.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use smc_core::runtime::{Acceptor, Socket};

use super::executor::{Core, TaskWait};
use super::fast_open::{self, Syn};
use super::net::{CopiedBytes, Net};
use super::pipe::Pipe;

/// One end of a connection.
pub(super) struct VirtualSocket {
    core: Arc<Core>,
    local: SocketAddr,
    peer: SocketAddr,
    rx: Arc<Pipe>,
    tx: Arc<Pipe>,
    settings: Mutex<Settings>,
    opening: Mutex<Opening>,
    itself: Weak<Self>,
}

/// How far the connection is, of a client with TCP Fast Open.
#[derive(Default)]
enum Opening {
    #[default]
    Established,
    /// The SYN waits for data.
    Deferred(Syn),
    /// There is no SYN-ACK yet.
    SynSent,
}

#[derive(Default)]
struct Settings {
    nodelay: bool,
    linger: Option<Duration>,
}

impl VirtualSocket {
    /// Both ends of a connection.
    pub(super) fn pair(core: &Arc<Core>, ends: [SocketAddr; 2]) -> (Arc<Self>, Arc<Self>) {
        let [there, back] = [Pipe::new(Arc::clone(core)), Pipe::new(Arc::clone(core))];
        let [first, second] = ends;
        let make = |[local, peer]: [SocketAddr; 2], rx: &Arc<Pipe>, tx: &Arc<Pipe>| {
            Arc::new_cyclic(|itself| Self {
                core: Arc::clone(core),
                local,
                peer,
                rx: Arc::clone(rx),
                tx: Arc::clone(tx),
                settings: Mutex::default(),
                opening: Mutex::default(),
                itself: Weak::clone(itself),
            })
        };
        let other = make([second, first], &there, &back);
        (make(ends, &back, &there), other)
    }

    /// The SYN of this end, which is the client's, waits for data.
    pub(super) fn defer(&self, syn: Syn) {
        *self.opening() = Opening::Deferred(syn);
    }

    /// Sends a packet. Returns when it arrives.
    pub(super) fn send_packet(&self, data: &[u8]) -> Option<Duration> {
        self.tx.write_packet(data).ok().map(|(_, arrival)| arrival)
    }

    /// The SYN-ACK is there.
    pub(super) fn establish(&self) {
        *self.opening() = Opening::Established;
        self.tx.wake_writer();
    }

    /// There is no listener.
    pub(super) fn refuse(&self) {
        self.rx.refuse();
        self.tx.refuse();
    }

    pub(super) fn has_end(&self, is_it: impl Fn(SocketAddr) -> bool) -> bool {
        is_it(self.local) || is_it(self.peer)
    }

    /// Copies what this end sends.
    pub(super) fn copy_sent(&self, copy: CopiedBytes) {
        self.tx.copy(copy);
    }

    /// Loses what this end sends behind so many bytes.
    pub(super) fn truncate(&self, len: usize) {
        self.tx.truncate(len);
    }

    /// Whether the connection is broken.
    pub(super) fn is_reset(&self) -> bool {
        self.rx.is_reset()
    }

    /// Breaks the connection in both directions.
    pub(super) fn reset(&self) {
        self.rx.reset();
        self.tx.reset();
    }

    fn poll_to_read<T>(
        &self,
        cx: &mut Context<'_>,
        attempt: impl FnOnce() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        // Registered first, as a reader that might sleep has to be.
        self.rx.set_reader(cx.waker());
        self.poll_of(attempt(), TaskWait::Read(self.local, self.peer))
    }

    fn poll_to_write<T>(
        &self,
        cx: &mut Context<'_>,
        attempt: impl FnOnce() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        self.tx.set_writer(cx.waker());
        self.poll_of(attempt(), TaskWait::Write(self.local, self.peer))
    }

    fn poll_of<T>(&self, result: io::Result<T>, wait: TaskWait) -> Poll<io::Result<T>> {
        match result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.core.waits_for(wait);
                Poll::Pending
            }
            result => Poll::Ready(result),
        }
    }

    /// Writes what TCP takes: first of all the data of the SYN, and then nothing before SYN-ACK.
    fn write(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut opening = self.opening();
        match &*opening {
            Opening::Established => {
                drop(opening);
                self.tx.write(bufs)
            }
            Opening::SynSent if !self.tx.is_broken() => Err(io::ErrorKind::WouldBlock.into()),
            Opening::SynSent => self.tx.write(bufs),
            Opening::Deferred(_) => {
                let bytes = bufs.iter().flat_map(|buf| buf.iter().copied());
                let mut data: Vec<u8> = bytes.take(fast_open::DATA_MAX).collect();
                let (written, arrival) = self.tx.write_packet(&data)?;
                data.truncate(written);
                let before = std::mem::replace(&mut *opening, Opening::SynSent);
                drop(opening);
                if let Opening::Deferred(syn) = before {
                    syn.send(Weak::clone(&self.itself), data, arrival);
                }
                Ok(written)
            }
        }
    }

    fn opening(&self) -> MutexGuard<'_, Opening> {
        self.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Socket for VirtualSocket {
    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_to_read(cx, || self.rx.read(buf, false))
    }

    fn poll_peek(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_to_read(cx, || self.rx.read(buf, true))
    }

    fn poll_write(&self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.poll_to_write(cx, || self.write(bufs))
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_to_read(cx, || ready_if(self.rx.is_readable()))
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_to_write(cx, || {
            let waits = matches!(*self.opening(), Opening::SynSent);
            ready_if(self.tx.is_writable() && (!waits || self.tx.is_broken()))
        })
    }

    fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.rx.read(buf, false)
    }

    fn try_write(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write(bufs)
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            self.rx.shut_reading();
        }
        if matches!(how, Shutdown::Write | Shutdown::Both) {
            self.tx.finish();
        }
        Ok(())
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        match *self.opening() {
            Opening::Established => Ok(self.peer),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.settings().nodelay = on;
        Ok(())
    }

    fn path_mtu(&self) -> Option<u32> {
        let wrapping = if self.core.options.ipsec { 76 } else { 0 };
        Some(MTU - wrapping)
    }

    fn nodelay(&self) -> io::Result<bool> {
        Ok(self.settings().nodelay)
    }

    fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.settings().linger = linger;
        Ok(())
    }

    fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(self.settings().linger)
    }

    fn set_keepalive(&self, _on: bool) -> io::Result<()> {
        // A simulated peer is never silent without a reason.
        Ok(())
    }

    fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.rx.take_error())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for VirtualSocket {
    fn drop(&mut self) {
        // As TCP: unread data or a linger time of zero turn closing into a reset, and so does a
        // SYN-ACK that finds the socket closed.
        let has_unread = self.rx.leave_reading();
        let is_opening = matches!(*self.opening(), Opening::SynSent);
        if has_unread || is_opening || self.settings().linger == Some(Duration::ZERO) {
            self.reset();
        } else {
            self.tx.finish();
        }
    }
}

/// The length of packets of the virtual network, as of Ethernet.
pub(super) const MTU: u32 = 1500;

impl fmt::Debug for VirtualSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualSocket")
            .field("local", &self.local)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

fn ready_if(is_ready: bool) -> io::Result<()> {
    match is_ready {
        true => Ok(()),
        false => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// A listening socket.
pub(super) struct VirtualAcceptor {
    core: Arc<Core>,
    net: Weak<Net>,
    local: SocketAddr,
    backlog: usize,
    has_fast_open: bool,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Arc<VirtualSocket>>,
    acceptor: Option<Waker>,
}

impl VirtualAcceptor {
    pub(super) fn new(
        core: Arc<Core>,
        net: Weak<Net>,
        local: SocketAddr,
        backlog: usize,
        has_fast_open: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            core,
            net,
            local,
            backlog,
            has_fast_open,
            queue: Mutex::default(),
        })
    }

    /// Whether it takes data of SYNs.
    pub(super) fn has_fast_open(&self) -> bool {
        self.has_fast_open
    }

    /// Adds a connection that was made; false if there is no space.
    pub(super) fn offer(&self, socket: Arc<VirtualSocket>) -> bool {
        let mut queue = self.queue();
        if queue.waiting.len() >= self.backlog {
            return false;
        }
        queue.waiting.push_back(socket);
        let acceptor = queue.acceptor.take();
        drop(queue);
        acceptor.into_iter().for_each(Waker::wake);
        true
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Acceptor for VirtualAcceptor {
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Arc<dyn Socket>, SocketAddr)>> {
        let mut queue = self.queue();
        if let Some(socket) = queue.waiting.pop_front() {
            let peer = socket.peer;
            return Poll::Ready(Ok((socket, peer)));
        }
        let old = queue.acceptor.replace(cx.waker().clone());
        drop(queue);
        drop(old);
        self.core.waits_for(TaskWait::Accept(self.local));
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for VirtualAcceptor {
    fn drop(&mut self) {
        if let Some(net) = self.net.upgrade() {
            net.stop_listening(self.local);
        }
        let queue = std::mem::take(&mut *self.queue());
        queue.waiting.iter().for_each(|socket| socket.reset());
    }
}

impl fmt::Debug for VirtualAcceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualAcceptor")
            .field("local", &self.local)
            .finish_non_exhaustive()
    }
}
