//! The writing half of an SMC stream.

use std::future::Future as _;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use smc_wire::cdc::ConsumerWord;

use super::busy_poll::BusyPoll;
use super::conn::{Conn, PeerElement, len_u32, len_usize};
use super::copy_mode::CopyModeSelector;
use super::deadlines::Deadline;
use super::half::{Half, poll_until};
use super::in_place::PRIVATE_MAX;
use super::rdma::RdmaConn;
use crate::device::SubmitError;
use crate::error::{CloseReason, Error, Phase};
use crate::mem::sync::Ordering;
use crate::mem::{Element, RingWriter, TrustPeers};
use crate::proto::conn::SendHalf;
use crate::proto::conn::rdma::DeliveryStatus;

/// The writing half.
#[derive(Debug)]
pub(crate) struct Sender {
    conn: Arc<Conn>,
    path: SendPath,
    busy_poll: BusyPoll,
    trust: Option<TrustPeers>,
    /// A buffer for reservations that are not in place.
    pub(crate) spare: Box<[u8]>,
    /// Until when a closing stream waits for delivery; unchanged when a task stops waiting.
    delivery_deadline: Option<Deadline>,
}

/// Where written data is copied to.
#[derive(Debug)]
enum SendPath {
    /// Into the peer's element.
    Direct(SendWindow),
    /// Into the local staging ring, from which links write it into the peer's.
    Rdma(Arc<RdmaConn>),
}

/// The send window: the writing half's state of the peer's element.
#[derive(Debug)]
struct SendWindow {
    half: SendHalf,
    /// The peer's consumer word as of the last read.
    seen: u64,
    /// The flag of a blocked writer is published.
    blocked: bool,
    /// The request for an update is published as well.
    has_requested_update: bool,
    /// The number of retries at the time when the device refused data.
    refused_at: Option<u32>,
    /// The exclusive right to write there.
    writer: RingWriter,
    copy_mode: CopyModeSelector,
}

impl Sender {
    pub(crate) fn new(conn: Arc<Conn>, polling: Duration, trust: Option<TrustPeers>) -> Self {
        let path = match conn.peer() {
            PeerElement::Mapped { ring, .. }
            | PeerElement::Moved { ring, .. }
            | PeerElement::Lost { ring } => SendPath::Direct(SendWindow {
                half: SendHalf::new(*ring),
                seen: 0,
                blocked: false,
                has_requested_update: false,
                refused_at: None,
                writer: RingWriter::new(),
                copy_mode: CopyModeSelector::new(matches!(conn.peer(), PeerElement::Mapped { .. })),
            }),
            PeerElement::Rdma(rdma) => SendPath::Rdma(Arc::clone(rdma)),
        };
        Self {
            conn,
            path,
            busy_poll: BusyPoll::new(polling),
            trust,
            spare: Box::default(),
            delivery_deadline: None,
        }
    }

    /// Writes as much as there is space for: `None` if there is none now.
    pub(crate) fn try_write(&mut self, bufs: &[IoSlice<'_>]) -> Result<Option<usize>, Error> {
        let space = self.read_space()?;
        match &mut self.path {
            SendPath::Direct(window) if space > 0 => window.write(&self.conn, bufs, space),
            _ if bufs.iter().all(|buf| buf.is_empty()) => Ok(Some(0)),
            SendPath::Rdma(rdma) if space > 0 => match rdma.write(bufs) {
                // The peer has just closed.
                0 => self.conn.write_end().map(|()| None),
                count => Ok(Some(count)),
            },
            _ => Ok(None),
        }
    }

    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        poll_until(self, cx, |half| half.try_write(bufs))
    }

    /// Waits until a reservation of at least `least` bytes is possible. Returns the reserved space,
    /// at most `most`.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] when there is never space for so many.
    pub(crate) fn poll_space(
        &mut self,
        cx: &mut Context<'_>,
        least: usize,
        most: usize,
    ) -> Poll<Result<ReservedSpace, Error>> {
        poll_until(self, cx, |half| half.try_reserve(least, most))
    }

    fn try_reserve(&mut self, least: usize, most: usize) -> Result<Option<ReservedSpace>, Error> {
        let space = len_usize(self.read_space()?);
        if space < least {
            return self.handle_lack_of_space(least, space);
        }
        if let (SendPath::Direct(window), true) = (&self.path, self.is_mapped()) {
            let until_end = window.until_end();
            if until_end >= least {
                return Ok(Some(ReservedSpace {
                    len: most.min(space).min(until_end),
                    is_in_place: true,
                }));
            }
        }
        Ok(Some(ReservedSpace::private(space, least, most)))
    }

    /// Handles a lack of space: temporary, or permanent.
    #[cold]
    fn handle_lack_of_space(
        &mut self,
        least: usize,
        space: usize,
    ) -> Result<Option<ReservedSpace>, Error> {
        let ring = match &self.path {
            SendPath::Direct(window) => window.half.ring().size(),
            SendPath::Rdma(rdma) => rdma.capacity(),
        };
        if least > len_usize(ring) {
            return Err(NEVER_FITS);
        }
        match &mut self.path {
            SendPath::Direct(window) if space > 0 => window.request_space(&self.conn),
            _ => {}
        }
        Ok(None)
    }

    /// Whether a reservation is in the peer's memory.
    pub(crate) fn is_mapped(&self) -> bool {
        matches!(self.conn.peer(), PeerElement::Mapped { .. })
    }

    pub(crate) fn is_trusted(&self) -> bool {
        self.trust.is_some()
    }

    /// Copies into a reservation in place, at `offset`.
    pub(crate) fn put_at(&mut self, offset: usize, data: &[u8]) -> Result<(), Error> {
        let (element, window) = self.mapped()?;
        let at = len_usize(window.half.at()) + offset;
        let put = window
            .copy_mode
            .copy(data.len(), |mode| element.write_with(mode, at, data));
        put.map_err(|_| NOT_RESERVED)
    }

    /// Copies out of a reservation in place.
    pub(crate) fn copy_reserved(&mut self, to: &mut [u8]) {
        if let Ok((element, window)) = self.mapped() {
            // It was reserved, so it is inside.
            let _inside = element.read(len_usize(window.half.at()), to);
        }
    }

    /// The first `len` bytes of a reservation in place; none unless peers are trusted.
    pub(crate) fn reserved_mut(&mut self, len: usize) -> &mut [u8] {
        let trust = self.trust;
        match (self.mapped(), trust) {
            (Ok((element, window)), Some(trust)) if len > 0 => {
                let at = len_usize(window.half.at());
                let space = window.writer.slice_mut(element, at, len, trust);
                space.unwrap_or_default()
            }
            _ => &mut [],
        }
    }

    /// Sends the first `len` bytes of a reservation in place.
    pub(crate) fn commit_reserved(&mut self, len: usize) -> Result<(), Error> {
        if len == 0 {
            return Ok(());
        }
        let space = self.read_space()?;
        match &mut self.path {
            SendPath::Direct(window) if len <= len_usize(space) => {
                window.publish(&self.conn, len_u32(len), space);
                Ok(())
            }
            _ => Err(NOT_RESERVED),
        }
    }

    /// The peer's element and the send window, if it is mapped.
    fn mapped(&mut self) -> Result<(&Element, &mut SendWindow), Error> {
        match (self.conn.peer(), &mut self.path) {
            (PeerElement::Mapped { element, .. }, SendPath::Direct(window)) => {
                Ok((element, window))
            }
            _ => Err(NOT_RESERVED),
        }
    }

    /// Waits until there is space or writing has ended.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        poll_until(self, cx, |half| Ok(half.is_ready().then_some(())))
    }

    pub(crate) fn shared(&self) -> Arc<Conn> {
        Arc::clone(&self.conn)
    }

    /// Whether a write would not wait; also true when it would fail.
    pub(crate) fn is_ready(&mut self) -> bool {
        match (self.read_space(), &self.path) {
            (Ok(0), _) => false,
            // Only the driver schedules retries at a busy device.
            (Ok(_), SendPath::Direct(window)) if window.refused_at.is_some() => {
                window.refused_at != Some(self.conn.retries())
            }
            _ => true,
        }
    }

    /// Shuts writing down, behind the written data.
    pub(crate) fn shutdown(&mut self) {
        self.conn.shutdown_write();
    }

    /// Shuts writing down, and waits until delivery does not depend on this side: the data is in
    /// the peer's memory, and so is the end behind it. The close timeout bounds the wait.
    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.conn.shutdown_write();
        let delivered = poll_until(self, cx, |half| half.try_shutdown());
        if delivered.is_pending() {
            let new = || self.conn.close_deadline();
            let deadline = self.delivery_deadline.get_or_insert_with(new);
            if Pin::new(deadline).poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
        self.delivery_deadline = None;
        match delivered {
            Poll::Ready(delivered) => Poll::Ready(delivered),
            Poll::Pending => Poll::Ready(Err(Error::TimedOut(Phase::Delivery))),
        }
    }

    fn try_shutdown(&self) -> Result<Option<()>, Error> {
        match (self.conn.delivery(), self.conn.abort_cause()) {
            (DeliveryStatus::Done, _) => Ok(Some(())),
            (_, Some(error)) => Err(error),
            (DeliveryStatus::Lost, None) => Err(Error::Closed(CloseReason::Reset)),
            (DeliveryStatus::Pending, None) => Ok(None),
        }
    }

    /// Bytes that can be written now, after reading the peer's updates.
    #[inline(always)]
    fn read_space(&mut self) -> Result<u32, Error> {
        let space = match &mut self.path {
            SendPath::Direct(window) => window.read_space(&self.conn)?,
            SendPath::Rdma(rdma) => rdma.space(),
        };
        if self.conn.ended() {
            self.conn.write_end()?;
        }
        Ok(space)
    }
}

impl SendWindow {
    /// Bytes from the write position to the end of the ring.
    fn until_end(&self) -> usize {
        len_usize(self.half.ring().size().saturating_sub(self.half.at()))
    }

    /// Space in the peer's ring.
    #[inline(always)]
    fn read_space(&mut self, conn: &Conn) -> Result<u32, Error> {
        let raw = conn.local.consumer().load(Ordering::Acquire);
        if raw != self.seen {
            self.handle_consumer_word(conn, raw)?;
        }
        Ok(self.half.space())
    }

    /// Handles a changed consumer word of the peer, which happens once for many writes.
    #[inline(never)]
    fn handle_consumer_word(&mut self, conn: &Conn, raw: u64) -> Result<(), Error> {
        let word = ConsumerWord::from_ne(raw);
        if let Err(what) = self.half.handle_consumer(word.cursor) {
            return Err(conn.misbehaved(what));
        }
        if !word.state_flags.is_empty() {
            conn.handle_peer_flags();
        }
        self.seen = raw;
        Ok(())
    }

    /// Requests an update from the peer, once.
    fn request_space(&mut self, conn: &Conn) {
        if !self.has_requested_update {
            self.has_requested_update = true;
            self.blocked = true;
            conn.request_update();
        }
    }

    /// Writes as much as there is `space` for.
    fn write(
        &mut self,
        conn: &Conn,
        bufs: &[IoSlice<'_>],
        space: u32,
    ) -> Result<Option<usize>, Error> {
        match self.copy_payload(conn, bufs, space) {
            Ok(0) => Ok(Some(0)),
            Ok(count) => {
                self.publish(conn, count, space);
                Ok(Some(len_usize(count)))
            }
            Err(error) => self.handle_refusal(conn, error),
        }
    }

    /// Handles a refusal of data by the device.
    #[cold]
    fn handle_refusal(&mut self, conn: &Conn, error: SubmitError) -> Result<Option<usize>, Error> {
        match error {
            // There is space, but the device is busy, and does not report when it is not.
            SubmitError::WouldBlock => {
                self.refused_at = Some(conn.retries());
                conn.schedule_retry();
                Ok(None)
            }
            error => {
                conn.handle_submit_error(error);
                conn.write_end()?;
                Err(Error::Bug("device refused_at data of a live connection"))
            }
        }
    }

    /// Publishes `count` bytes that were copied into the peer's ring, which had `space`.
    #[inline(always)]
    fn publish(&mut self, conn: &Conn, count: u32, space: u32) {
        let full = count == space;
        if full != self.blocked {
            self.blocked = full;
            self.has_requested_update = false;
            conn.publish_blocked(full);
        }
        let producer = self.half.commit(count);
        conn.publish_producer(producer);
    }

    /// Copies into the ring as much as there is `space` for. Returns how many bytes that is.
    #[inline(always)]
    fn copy_payload(
        &mut self,
        conn: &Conn,
        bufs: &[IoSlice<'_>],
        space: u32,
    ) -> Result<u32, SubmitError> {
        let ring = self.half.ring().size();
        let mut at = self.half.at();
        let mut count = 0;
        for buf in bufs {
            let part = &buf[..buf.len().min(len_usize(space - count))];
            if part.is_empty() {
                continue;
            }
            self.copy_mode
                .copy(part.len(), move |mode| conn.write_payload(mode, at, part))?;
            count += len_u32(part.len());
            at += len_u32(part.len());
            if at >= ring {
                at -= ring;
            }
        }
        Ok(count)
    }
}

impl Half for Sender {
    fn conn(&self) -> &Arc<Conn> {
        &self.conn
    }

    fn busy_poll(&mut self) -> &mut BusyPoll {
        &mut self.busy_poll
    }

    fn register(&self, waker: &Waker) {
        self.conn.register_writer(waker);
    }

    /// The completion of posts frees staging space, and is the delivery.
    fn arm(&self) {
        match &self.path {
            SendPath::Direct(_) => self.conn.arm(),
            SendPath::Rdma(rdma) => rdma.await_sent(),
        }
    }
}

/// The space of a reservation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReservedSpace {
    pub(crate) len: usize,
    /// In the peer's memory.
    pub(crate) is_in_place: bool,
}

impl ReservedSpace {
    /// A private buffer, with `space` for its content.
    pub(crate) fn private(space: usize, least: usize, most: usize) -> Self {
        Self {
            len: most.min(space.min(PRIVATE_MAX).max(least)),
            is_in_place: false,
        }
    }
}

/// A ring has space for as many bytes as it is long.
pub(crate) const NEVER_FITS: Error =
    Error::misuse("reservation is longer than the ring that it is written to");

/// A reservation is inside of the free space, and no other write happens during it.
const NOT_RESERVED: Error = Error::Bug("reservation outside of the free space");
