//! The writing half of a stream.

use std::future::Future as _;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use smc_wire::cdc::ConsumerWord;

use super::super::busy_poll::BusyPoll;
use super::super::conn::{
    Conn, ConnCounters, DirectConn, HalfCounters, PeerDmb, RdmaConn, SendOps, TransportOps as _,
    len_u32, len_usize,
};
use super::super::copy_mode::{CopyModeSelector, LONG_COPY_MIN};
use super::super::lifetime::Deadline;
use super::in_place::ReservedSpace;
use super::tcp::TcpWriter;
use super::wait::{Ready, StreamHalf, delegate, now_or_never, poll_until};
use crate::device::SubmitError;
use crate::error::{CloseReason, Error, Phase};
use crate::mem::sync::Ordering;
use crate::mem::{Element, OutOfBounds, RingWriter, TrustPeers};
use crate::proto::conn::SendCursors;
use crate::proto::conn::rdma::StreamDelivery;

/// The writing half of a stream: SMC-D, SMC-R or TCP.
pub(crate) enum Writer {
    Direct(SmcWriter<DirectWriter>),
    Rdma(SmcWriter<Arc<RdmaConn>>),
    Tcp(TcpWriter),
}

impl Writer {
    delegate! {
        pub(crate) fn poll_write(
            &mut self,
            cx: &mut Context<'_>,
            bufs: &[IoSlice<'_>]
        ) -> Poll<io::Result<usize>>;

        pub(crate) fn try_write(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize>;

        pub(crate) fn shutdown(&mut self) -> io::Result<()>;

        /// As [`Writer::shutdown`], and waits until the delivery of written data does not depend on
        /// this process.
        pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

        /// As [`Stream::send_queue_len`](super::Stream::send_queue_len).
        pub(super) fn queue_len(&mut self) -> io::Result<usize>;

        fn poll_reserve(
            &mut self,
            cx: &mut Context<'_>,
            min: usize,
            max: usize
        ) -> Poll<io::Result<ReservedSpace>>;

        /// The buffer of reservations that are not in the peer's memory.
        pub(super) fn scratch(&mut self) -> &mut Box<[u8]>;
    }

    /// Waits until a reservation of at least `min` bytes, and one, is possible. Returns the
    /// reserved space, at most `max`; empty if that is 0.
    #[inline]
    pub(super) fn poll_space(
        &mut self,
        cx: &mut Context<'_>,
        min: usize,
        max: usize,
    ) -> Poll<io::Result<ReservedSpace>> {
        if min > max {
            return Poll::Ready(Err(MIN_ABOVE_MAX.into()));
        }
        if max == 0 {
            return Poll::Ready(Ok(ReservedSpace {
                len: 0,
                is_in_place: matches!(self, Self::Direct(half) if half.transport.element.is_some()),
            }));
        }
        self.poll_reserve(cx, min.max(1), max)
    }

    /// The writer of a reservation in place.
    pub(super) fn in_place(&mut self) -> Result<&mut DirectWriter, Error> {
        match self {
            Self::Direct(half) => Ok(&mut half.transport),
            Self::Rdma(_) | Self::Tcp(_) => Err(NOT_RESERVED),
        }
    }

    /// Sends the first `len` bytes of a reservation in place.
    pub(super) fn commit_reserved(&mut self, len: usize) -> Result<(), Error> {
        match self {
            Self::Direct(half) => half.commit_reserved(len),
            Self::Rdma(_) | Self::Tcp(_) => Err(NOT_RESERVED),
        }
    }
}

impl Ready for Writer {
    delegate! {
        fn conn(&mut self) -> Option<Arc<Conn>>;
        fn is_ready(&mut self) -> bool;
        fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
    }
}

/// The writing half of an SMC stream.
pub(crate) struct SmcWriter<P> {
    conn: Arc<Conn>,
    transport: P,
    busy_poll: BusyPoll,
    counters: Arc<ConnCounters>,
    /// A buffer for reservations that are not in place.
    scratch: Box<[u8]>,
    /// Until when a closing stream waits for delivery; unchanged when a task stops waiting.
    delivery_deadline: Option<Deadline>,
}

impl<P: SendOps> SmcWriter<P> {
    pub(super) fn new(transport: P, conn: &Arc<Conn>, polling: Duration) -> Self {
        Self {
            conn: Arc::clone(conn),
            transport,
            busy_poll: BusyPoll::new(polling, &conn.driver.pollers),
            counters: Arc::clone(&conn.counters),
            scratch: Box::default(),
            delivery_deadline: None,
        }
    }

    #[inline]
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        poll_until(self, cx, |half| half.write_now(bufs))
    }

    #[inline]
    fn try_write(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        now_or_never(self.write_now(bufs))
    }

    /// Writes as much as there is space for: `None` if there is none now.
    #[inline(always)]
    fn write_now(&mut self, bufs: &[IoSlice<'_>]) -> Result<Option<usize>, Error> {
        match self.read_space()? {
            0 => Ok(bufs.iter().all(|buf| buf.is_empty()).then_some(0)),
            space => {
                let written = self.transport.write(&self.conn, bufs, space);
                if let Ok(Some(count @ 1..)) = written {
                    self.counters.sent.add_request(count);
                }
                written
            }
        }
    }

    /// Waits until a reservation of at least `min` bytes is possible. Returns the reserved space,
    /// at most `max`.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] when there is never space for so many.
    fn poll_reserve(
        &mut self,
        cx: &mut Context<'_>,
        min: usize,
        max: usize,
    ) -> Poll<io::Result<ReservedSpace>> {
        poll_until(self, cx, |half| half.try_reserve(min, max))
    }

    fn try_reserve(&mut self, min: usize, max: usize) -> Result<Option<ReservedSpace>, Error> {
        let available = self.read_space()?;
        let space = len_usize(available);
        if space < min {
            let capacity = len_usize(self.transport.capacity());
            if min > capacity {
                return Err(never_fits(min, capacity));
            }
            self.transport.request_space(&self.conn, available);
            return Ok(None);
        }
        let in_place = self.transport.in_place_space(available);
        Ok(Some(match in_place >= min {
            true => ReservedSpace {
                len: max.min(in_place),
                is_in_place: true,
            },
            false => ReservedSpace::private(space, min, max),
        }))
    }

    fn queue_len(&self) -> io::Result<usize> {
        Ok(len_usize(self.transport.undelivered()))
    }

    fn scratch(&mut self) -> &mut Box<[u8]> {
        &mut self.scratch
    }

    /// Waits until there is space or writing has ended.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        poll_until(self, cx, |half| Ok(half.is_ready().then_some(())))
    }

    fn conn(&self) -> Option<Arc<Conn>> {
        Some(Arc::clone(&self.conn))
    }

    /// Whether a write would not wait; also true when it would fail.
    fn is_ready(&mut self) -> bool {
        match self.read_space() {
            Ok(0) => false,
            // Only the driver schedules retries at a busy device.
            Ok(_) => !self.transport.is_refused(&self.conn),
            Err(_) => true,
        }
    }

    /// Shuts writing down, behind the written data.
    fn shutdown(&mut self) -> io::Result<()> {
        self.conn.shutdown_write();
        Ok(())
    }

    /// Shuts writing down, and waits until delivery does not depend on this side: the data is in
    /// the peer's memory, and so is the end behind it. The close timeout bounds the wait.
    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.conn.shutdown_write();
        let delivered = poll_until(self, cx, |half| half.try_shutdown());
        if delivered.is_pending() {
            let new = || self.conn.driver.close_deadline();
            let deadline = self.delivery_deadline.get_or_insert_with(new);
            if Pin::new(deadline).poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
        self.delivery_deadline = None;
        match delivered {
            Poll::Ready(delivered) => Poll::Ready(delivered),
            Poll::Pending => Poll::Ready(Err(Error::TimedOut(Phase::Delivery).into())),
        }
    }

    fn try_shutdown(&self) -> Result<Option<()>, Error> {
        match (self.conn.delivery(), self.conn.abort_cause()) {
            (StreamDelivery::Done, _) => Ok(Some(())),
            (_, Some(error)) => Err(error),
            (StreamDelivery::Lost, None) if self.conn.is_shut_by_abort() => {
                Err(Error::Closed(CloseReason::Local))
            }
            (StreamDelivery::Lost, None) => Err(Error::Closed(CloseReason::Reset)),
            (StreamDelivery::Pending, None) => Ok(None),
        }
    }

    /// Bytes that can be written now; an error if writing has ended.
    #[inline(always)]
    fn read_space(&mut self) -> Result<u32, Error> {
        let space = self.transport.space(&self.conn)?;
        if self.conn.has_ended() {
            self.conn.write_end()?;
        }
        Ok(space)
    }
}

impl SmcWriter<DirectWriter> {
    fn commit_reserved(&mut self, len: usize) -> Result<(), Error> {
        if len == 0 {
            return Ok(());
        }
        let space = self.transport.reserved_space(&self.conn)?;
        if self.conn.has_ended() {
            self.conn.write_end()?;
        }
        if len > len_usize(space) {
            return Err(NOT_RESERVED);
        }
        self.transport.publish(&self.conn, len_u32(len), space);
        self.counters.sent.add_request(len);
        Ok(())
    }
}

impl<P: SendOps> StreamHalf for SmcWriter<P> {
    fn conn(&self) -> &Arc<Conn> {
        &self.conn
    }

    fn busy_poll(&mut self) -> &mut BusyPoll {
        &mut self.busy_poll
    }

    fn counters(&self) -> &HalfCounters {
        &self.counters.sent
    }

    fn register(&self, waker: &Waker) {
        self.conn.writer.register(waker);
    }

    fn arm(&self) {
        self.transport.arm();
    }

    fn poll_device(&self) -> bool {
        self.transport.poll_device(&self.conn)
    }
}

/// Writes into the peer's element: its cursors and its copy mode.
pub(crate) struct DirectWriter {
    direct: Arc<DirectConn>,
    /// The peer's element, if it is mapped; otherwise the device moves data there.
    element: Option<Element>,
    cursors: SendCursors,
    /// The peer's consumer word as of the last read.
    seen: u64,
    /// The flag of a blocked writer is published.
    blocked: bool,
    /// The request for an update is published as well.
    has_requested_update: bool,
    /// The number of retries at the time when the device refused data.
    refused_at: Option<u32>,
    /// The exclusive right to write there.
    ring: RingWriter,
    copy_mode: CopyModeSelector,
    trust: Option<TrustPeers>,
}

impl DirectWriter {
    pub(super) fn new(direct: Arc<DirectConn>, trust: Option<TrustPeers>) -> Self {
        let element = match &direct.peer {
            PeerDmb::Mapped { element, .. } => Some(element.clone()),
            PeerDmb::Moved { .. } | PeerDmb::Lost => None,
        };
        Self {
            cursors: SendCursors::new(direct.peer_ring)
                .with_rewind(direct.allows_rewind())
                .behind(direct.sent_early),
            seen: 0,
            blocked: false,
            has_requested_update: false,
            refused_at: None,
            ring: RingWriter::new(),
            copy_mode: CopyModeSelector::new(element.is_some(), direct.peer_ring.size()),
            trust,
            element,
            direct,
        }
    }

    /// Handles a changed consumer word of the peer, which happens once for many writes.
    #[inline(never)]
    fn handle_consumer_word(&mut self, conn: &Conn, raw: u64) -> Result<(), Error> {
        let word = ConsumerWord::from_ne(raw);
        if let Err(what) = self.cursors.handle_consumer(word.cursor) {
            return Err(conn.misbehaved(what));
        }
        if !word.state_flags.is_empty() {
            conn.handle_peer_flags();
        }
        self.seen = raw;
        Ok(())
    }

    /// Looks at the peer's consumer word. Returns whether it has changed.
    #[inline(always)]
    fn poll_consumer(&mut self, conn: &Conn) -> Result<bool, Error> {
        let raw = conn.local.consumer().load(Ordering::Acquire);
        let is_new = raw != self.seen;
        if is_new {
            self.handle_consumer_word(conn, raw)?;
        }
        Ok(is_new)
    }

    /// As [`SendOps::space`] while there is a reservation, which has a position in the ring.
    #[inline]
    fn reserved_space(&mut self, conn: &Conn) -> Result<u32, Error> {
        self.poll_consumer(conn)?;
        Ok(self.cursors.space())
    }

    /// Handles a refusal of data by the device.
    #[cold]
    fn handle_refusal(&mut self, conn: &Conn, error: SubmitError) -> Result<Option<usize>, Error> {
        if error == SubmitError::WouldBlock {
            // There is space, but the device is busy, and does not report when it is not.
            self.refused_at = Some(conn.retries());
            conn.handle_submit_error(error);
            return Ok(None);
        }
        conn.handle_submit_error(error);
        conn.write_end()?;
        Err(Error::Bug("device refused data of a live connection"))
    }

    /// Publishes `count` bytes that were copied into the peer's ring, which had `space`.
    #[inline(always)]
    fn publish(&mut self, conn: &Conn, count: u32, space: u32) {
        let full = count == space;
        if full != self.blocked {
            self.blocked = full;
            self.has_requested_update = false;
            if full {
                conn.counters.sent.add_full();
            }
            self.direct.publish_blocked(conn, full);
        }
        let producer = self.cursors.commit(count);
        self.direct.publish_producer(conn, producer);
    }

    /// Copies into the ring as much as there is `space` for. Returns how many bytes that is.
    #[inline(always)]
    fn copy_payload(&mut self, bufs: &[IoSlice<'_>], space: u32) -> Result<u32, SubmitError> {
        let ring = self.cursors.ring();
        let mut cursor = self.cursors.producer();
        let mut count = 0;
        for buf in bufs {
            let left = len_usize(space - count);
            let part = &buf[..buf.len().min(left)];
            if part.is_empty() {
                continue;
            }
            let (at, fills) = (cursor.count, part.len() == left);
            match &self.element {
                Some(element) => copy(element, &mut self.copy_mode, len_usize(at), part, fills)
                    .map_err(|_| SubmitError::OutOfBounds)?,
                None => self.direct.peer.move_payload(ring, at, part)?,
            }
            count += len_u32(part.len());
            cursor = ring.advance(cursor, len_u32(part.len()));
        }
        Ok(count)
    }
}

/// Copies into the ring at offset `at`; long data in the faster mode. `fills` states whether it
/// fills the ring.
#[inline(always)]
fn copy(
    element: &Element,
    mode: &mut CopyModeSelector,
    at: usize,
    data: &[u8],
    fills: bool,
) -> Result<(), OutOfBounds> {
    if data.len() < LONG_COPY_MIN {
        return element.write(at, data);
    }
    element.write_with(mode.next(), at, data)?;
    mode.copied(data.len(), fills);
    Ok(())
}

/// Operations on a reservation in place.
impl DirectWriter {
    pub(super) fn is_trusted(&self) -> bool {
        self.trust.is_some()
    }

    /// Copies into a reservation, at `offset`.
    pub(super) fn put_at(&mut self, offset: usize, data: &[u8]) -> Result<(), Error> {
        let element = self.element.as_ref().ok_or(NOT_RESERVED)?;
        let at = len_usize(self.cursors.at()) + offset;
        let fills = self.blocked;
        copy(element, &mut self.copy_mode, at, data, fills).map_err(|_| NOT_RESERVED)
    }

    /// Copies out of a reservation.
    pub(super) fn copy_reserved(&self, to: &mut [u8]) {
        if let Some(element) = &self.element {
            // It was reserved, so it is inside.
            let _inside = element.read(len_usize(self.cursors.at()), to);
        }
    }

    /// The first `len` bytes of a reservation; none unless peers are trusted.
    pub(super) fn reserved_mut(&mut self, len: usize) -> &mut [u8] {
        match (&self.element, self.trust) {
            (Some(element), Some(trust)) if len > 0 => {
                let at = len_usize(self.cursors.at());
                let space = self.ring.slice_mut(element, at, len, trust);
                space.unwrap_or_default()
            }
            _ => &mut [],
        }
    }
}

impl SendOps for DirectWriter {
    #[inline(always)]
    fn space(&mut self, conn: &Conn) -> Result<u32, Error> {
        if self.poll_consumer(conn)? {
            self.cursors.rewind();
        }
        Ok(self.cursors.space())
    }

    #[inline(always)]
    fn write(
        &mut self,
        conn: &Conn,
        bufs: &[IoSlice<'_>],
        space: u32,
    ) -> Result<Option<usize>, Error> {
        match self.copy_payload(bufs, space) {
            Ok(0) => Ok(Some(0)),
            Ok(count) => {
                self.publish(conn, count, space);
                Ok(Some(len_usize(count)))
            }
            Err(error) => self.handle_refusal(conn, error),
        }
    }

    fn capacity(&self) -> u32 {
        self.cursors.ring().size()
    }

    fn undelivered(&self) -> u32 {
        match self.direct.has_pending() {
            // Not more than that, from the position that the device has accepted.
            true => self
                .cursors
                .ring()
                .size()
                .saturating_sub(self.cursors.space()),
            false => 0,
        }
    }

    fn in_place_space(&self, space: u32) -> usize {
        let [until_end, _] = self.cursors.ring().spans(self.cursors.at(), space);
        self.element
            .as_ref()
            .map_or(0, |_| len_usize(until_end.len))
    }

    #[cold]
    fn request_space(&mut self, conn: &Conn, space: u32) {
        if space > 0 && !self.has_requested_update {
            self.has_requested_update = true;
            self.blocked = true;
            self.direct.request_update(conn);
        }
    }

    fn is_refused(&self, conn: &Conn) -> bool {
        self.refused_at == Some(conn.retries())
    }

    fn arm(&self) {
        self.direct.arm();
    }

    fn poll_device(&self, _conn: &Conn) -> bool {
        true
    }
}

/// A reservation waits for this number of bytes, and there is never space for more than `max`.
#[cold]
pub(crate) fn never_fits(min: usize, max: usize) -> Error {
    let what = format!("a reservation has at most {max} bytes here, and {min} were requested");
    Error::Misuse(what.into())
}

const MIN_ABOVE_MAX: Error = Error::misuse("reservation of at least more than it may have");

/// A reservation is inside of the free space, and no other write happens during it.
const NOT_RESERVED: Error = Error::Bug("reservation outside of the free space");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{HEADER_LEN, Region};

    #[test]
    fn long_copies_alone_are_measured() -> Result<(), OutOfBounds> {
        let element = Element::new(Region::anonymous(HEADER_LEN + LONG_COPY_MIN))?;
        let mut mode = CopyModeSelector::new(true, element.ring_len() as u32);
        let data = [1; LONG_COPY_MIN];
        for _ in 0..1000 {
            copy(&element, &mut mode, 0, &data[1..], false)?;
        }
        assert!(!mode.is_measured());
        copy(&element, &mut mode, 0, &data, true)?;
        assert_eq!(mode.is_measured(), crate::mem::HAS_NON_TEMPORAL);
        Ok(())
    }
}
