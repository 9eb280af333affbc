//! The sending half of an SMC-R connection: what to post next, and from where after a failover.

use smc_wire::cdc::{CdcR, ProducerFlags, StateFlags};
use smc_wire::cursor::{Cursor, Ring, Span};
use smc_wire::types::AlertToken;

use super::due::{Due, LastCdc, Undo};
use super::in_flight::{InFlight, PostKind, PostedCdc};
use super::position::{cursor_at, distance, newer};
use super::post::{PeerWrite, Post, PostId};
use crate::device::Piece;
use crate::error::PeerMisbehaved;

/// The sending side of one SMC-R connection.
///
/// Positions are counted in bytes from the start of the stream; cursors and offsets are computed
/// from them. The staging ring and the peer's ring contain the same stream, so that one count gives
/// both positions:
///
/// ```text
///   completed        posted        prepared
///       |---------------|--------------|           staging ring: used until completed
///           |-----------|----------------------|   peer's ring: used until consumed
///       consumed     posted            consumed + size
/// ```
///
/// Urgent data is never sent. An update is requested only after a failover: the consumer cursor
/// that the peer sent before may be lost, and a Linux peer sends it again only after it reads data.
/// So there has to be data for it to read: if the connection could move, the last byte of the
/// peer's ring is [reserved](Self::reserve_byte).
#[derive(Debug)]
pub struct Transmit {
    staging: Ring,
    peer: Ring,
    token: AlertToken,
    /// Offset of the peer's element in its RMB.
    base: u64,
    /// Data above this length is posted although payload is in flight.
    cork_limit: u32,

    prepared: u64,
    /// Returned by [`Transmit::poll_post`].
    posted: u64,
    /// The highest value of `posted`: above it between a failover and the next post.
    max_posted: u64,
    completed: u64,
    consumed: u64,
    /// Data before this position is posted without corking.
    uncorked: u64,
    peer_consumer: Cursor,

    consumer: Cursor,
    /// State flags to send when all data is posted.
    queued_flags: StateFlags,
    /// Sequence number of the newest completed CDC, and its flags.
    last_completed: u16,
    completed_state: StateFlags,
    /// Sequence number of the CDC completed before it, which a validation states.
    ///
    /// The newest CDC may still be in the receive queue of the peer's old device when the
    /// validation arrives on another device. A Linux peer would then consider the CDC lost and
    /// abort the connection. Linux states one less too (docs/spec/failover.md#validation). Nothing
    /// is lost by this: the full CDC behind the validation repeats the contents of the late one,
    /// whose data was written before it.
    validated: u16,
    last_cdc: LastCdc,
    due: Due,
    /// Changes since the last post, each of which has to be stated to the peer.
    changes: u32,
    /// Bytes of the peer's ring that are reserved: none, or one.
    reserved: u32,
    /// The connection has moved, and the peer has freed nothing since.
    requests_update: bool,
    /// The peer has moved too: its messages arrive from now on.
    peer_moved: bool,
    pub(super) in_flight: InFlight,
    undo: Option<Undo>,
    /// An abort is sent at once.
    aborts: bool,
    /// The peer reads no more data.
    is_peer_closed: bool,
    /// Staged data was discarded.
    is_truncated: bool,
    is_aborted: bool,
}

/// Delivery of everything staged and of the end of stream behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamDelivery {
    /// Not completed yet.
    Pending,
    /// The peer has it: it was completed, or the peer has read all of it and closed.
    Done,
    /// Some of it is not delivered or not read: the peer has closed, or this side has aborted.
    Lost,
}

/// While payload is in flight, new data is corked up to this many bytes, or half of the staging
/// ring if that is less.
pub const AUTOCORK: u32 = 64 * 1024;

impl Transmit {
    /// A connection on which nothing was sent yet.
    ///
    /// `peer` is the ring in the peer's RMB and `base` the offset of its element there in bytes,
    /// (index - 1) times the size of an element. `token` is the alert token that the peer announced
    /// for the connection. `autocork` is [`AUTOCORK`]; 0 disables corking.
    #[must_use]
    pub fn new(staging: Ring, peer: Ring, token: AlertToken, base: u64, autocork: u32) -> Self {
        Self {
            staging,
            peer,
            token,
            base,
            cork_limit: autocork.min(staging.size() / 2),
            prepared: 0,
            posted: 0,
            max_posted: 0,
            completed: 0,
            consumed: 0,
            uncorked: 0,
            peer_consumer: Cursor::START,
            consumer: Cursor::START,
            queued_flags: StateFlags::empty(),
            last_completed: 0,
            completed_state: StateFlags::empty(),
            validated: 0,
            last_cdc: LastCdc::default(),
            due: Due::default(),
            changes: 0,
            reserved: 0,
            requests_update: false,
            peer_moved: false,
            in_flight: InFlight::new(),
            undo: None,
            aborts: false,
            is_peer_closed: false,
            is_truncated: false,
            is_aborted: false,
        }
    }

    /// As [`Transmit::new`], where the peer has received the first `early` bytes of the stream with
    /// the handshake: fewer than its ring has.
    #[must_use]
    pub fn behind(self, early: u32) -> Self {
        let at = u64::from(early);
        Self {
            prepared: at,
            posted: at,
            max_posted: at,
            completed: at,
            uncorked: at,
            ..self
        }
    }

    // ---- Staging -------------------------------------------------------------------------------

    /// Bytes that can be copied into the staging ring now.
    #[must_use]
    pub fn space(&self) -> u32 {
        self.staging
            .size()
            .saturating_sub(distance(self.completed, self.prepared))
    }

    /// Offset in the staging ring of the next byte to copy; the space may wrap around its end.
    #[must_use]
    pub fn at(&self) -> u32 {
        cursor_at(self.staging, self.prepared).count
    }

    /// `count` bytes were copied to [`Transmit::at`]; a number above the space counts as the space.
    ///
    /// No bytes are accepted after [flags that end the stream](Self::set_flags) were set, or after
    /// the peer has closed. Returns the number of bytes accepted.
    pub fn stage(&mut self, count: u32) -> u32 {
        if !self.queued_flags.is_empty() || self.is_peer_closed || self.is_aborted {
            return 0;
        }
        let count = count.min(self.space());
        self.prepared = self.prepared.saturating_add(u64::from(count));
        self.changes = self.changes.saturating_add(1);
        count
    }

    /// Everything staged so far is posted without waiting for a completion.
    pub fn uncork(&mut self) {
        self.uncorked = self.prepared;
    }

    /// Bytes that are staged and not posted.
    #[must_use]
    pub fn unposted(&self) -> u32 {
        distance(self.posted, self.prepared)
    }

    // ---- Contents of the next CDC --------------------------------------------------------------

    /// Data was read up to `cursor`, which has to be sent to the peer.
    ///
    /// It replaces an update that was not posted yet. It is sent with the next payload, or in a CDC
    /// without payload, of which one at a time is in flight.
    pub fn set_consumer(&mut self, cursor: Cursor) {
        self.consumer = cursor;
        self.due.update = !self.aborts;
        self.changes = self.changes.saturating_add(1);
    }

    /// Flags to send in addition to those sent before.
    ///
    /// [`SENDING_DONE`](StateFlags::SENDING_DONE) and [`CLOSED`](StateFlags::CLOSED) follow the
    /// staged data, which is uncorked. [`ABORTED`](StateFlags::ABORTED) is sent at once: data that
    /// was not posted is discarded (call [`Transmit::unposted`] before to find out whether there is
    /// any), and of the other flags only those already sent are repeated.
    pub fn set_flags(&mut self, flags: StateFlags) {
        self.queued_flags.insert(flags);
        if flags.contains(StateFlags::ABORTED) {
            self.aborts = true;
            self.due.update = false;
        }
        self.discard();
        self.uncork();
    }

    /// Sends an abort behind the staged data, instead of an orderly close: the peer gets all data,
    /// and the information that its own data was not read.
    pub fn abort_after_data(&mut self) {
        self.queued_flags.insert(StateFlags::ABORTED);
        self.uncork();
    }

    // ---- Posting -------------------------------------------------------------------------------

    /// Whether there is a post now: something is due that waits neither for a completion nor for
    /// space at the peer.
    #[must_use]
    pub fn can_post(&self) -> bool {
        let is_open = !self.is_aborted && !self.in_flight.is_full();
        is_open
            && (self.due.validation
                || self.pushable() > 0
                || self.is_cdc_only_due(self.flags_after(self.posted)))
    }

    /// The next post, if there is one. It counts as posted when this returns.
    ///
    /// The writes and the CDC have to be posted together, on the queue pair of the link to which
    /// the connection is bound, in the given order.
    pub fn poll_post(&mut self) -> Option<Post> {
        if !self.can_post() {
            return None;
        }
        if self.due.validation {
            return Some(self.post_validation());
        }
        let count = self.pushable();
        let posted = self.posted.saturating_add(u64::from(count));
        let state = self.flags_after(posted);
        let blocked = match count {
            0 => self.last_cdc.flags.contains(ProducerFlags::WRITER_BLOCKED),
            _ => self.unposted() >= self.usable_space(),
        };
        let undo = self.undo_state();
        let spans = self.spans(count);
        let flags = &mut self.last_cdc.flags;
        flags.set(ProducerFlags::WRITER_BLOCKED, blocked);
        let requests_update = (blocked && self.requests_update) || self.due.probe;
        flags.set(ProducerFlags::UPDATE_REQUESTED, requests_update);
        self.posted = posted;
        self.max_posted = self.max_posted.max(posted);
        self.last_cdc.state = state;
        self.last_cdc.sequence = self.last_cdc.sequence.wrapping_add(1);
        self.due = Due::default();
        let coalesced = std::mem::take(&mut self.changes).saturating_sub(1);
        let cdc = CdcR {
            producer: self.producer(),
            consumer: self.consumer,
            producer_flags: self.last_cdc.flags,
            state_flags: state,
            ..CdcR::new(self.last_cdc.sequence, self.token)
        };
        let posted_cdc = PostedCdc {
            sequence: self.last_cdc.sequence,
            posted,
            state,
        };
        let id = self.in_flight.push(if count == 0 {
            PostKind::CdcOnly(posted_cdc)
        } else {
            PostKind::Payload(posted_cdc)
        });
        self.undo = Some(Undo { id, ..undo });
        Some(Post {
            id,
            spans,
            cdc,
            coalesced,
        })
    }

    /// Cancels the post returned last, for which the device had no space.
    ///
    /// Its contents become due again. Without such a post nothing happens.
    pub fn cancel_post(&mut self) {
        let Some(undo) = self.undo.take() else { return };
        if !self.in_flight.remove_last(undo.id) {
            return;
        }
        // A correct peer has not consumed data that was not posted.
        self.posted = undo.posted.max(self.consumed);
        self.max_posted = undo.max_posted.max(self.posted);
        self.last_cdc = undo.last_cdc;
        self.due = self.due.and(undo.due);
        self.changes = self.changes.max(undo.changes);
        self.discard();
    }

    /// The CDC of this post is completed, and with it all posts before. Returns the number of bytes
    /// freed in the staging ring.
    ///
    /// A post that is not in flight, such as one from before a failover, frees nothing.
    pub fn handle_completed(&mut self, post: PostId) -> u32 {
        let before = self.completed;
        let Self {
            in_flight,
            completed,
            last_completed,
            completed_state,
            validated,
            ..
        } = self;
        in_flight.complete(post, |posted_cdc| {
            *validated = std::mem::replace(last_completed, posted_cdc.sequence);
            *completed_state = posted_cdc.state;
            *completed = posted_cdc.posted.max(*completed);
        });
        distance(before, self.completed)
    }

    // ---- Input from the peer -------------------------------------------------------------------

    /// A consumer cursor received from the peer. Returns how many bytes of the peer's ring it
    /// freed; they may be free in the staging ring as well.
    ///
    /// # Errors
    ///
    /// When the cursor is outside the ring or passes the data written. Nothing is changed then. A
    /// cursor behind the known one frees nothing.
    pub fn handle_peer(&mut self, consumer: Cursor) -> Result<u32, PeerMisbehaved> {
        let (consumer, freed) = newer(self.peer, self.peer_consumer, consumer)?;
        let consumed = self.consumed.saturating_add(u64::from(freed));
        if consumed > self.max_posted {
            return Err(PeerMisbehaved::PassedTheData);
        }
        self.consumed = consumed;
        self.peer_consumer = consumer;
        self.skip_consumed();
        if freed > 0 {
            self.requests_update = false;
            self.uncork();
        }
        Ok(freed)
    }

    /// The peer has closed or aborted and reads no more data: data that is not posted is discarded,
    /// and flags no longer wait for it. No payload follows.
    pub fn handle_peer_closed(&mut self) {
        self.is_peer_closed = true;
        self.discard();
    }

    /// Bytes that can be written into the peer's ring, as far as known.
    #[must_use]
    pub fn peer_space(&self) -> u32 {
        self.peer
            .size()
            .saturating_sub(distance(self.consumed, self.posted))
    }

    /// Local producer cursor: the end of the data written into the peer's ring, as the last CDC
    /// states.
    #[must_use]
    pub fn producer(&self) -> Cursor {
        cursor_at(self.peer, self.posted)
    }

    /// The consumer cursor for the peer, and the flags of the last CDC.
    #[must_use]
    pub fn published_words(&self) -> (Cursor, ProducerFlags, StateFlags) {
        (self.consumer, self.last_cdc.flags, self.last_cdc.state)
    }

    /// The alert token that the peer has announced.
    #[must_use]
    pub fn token(&self) -> AlertToken {
        self.token
    }

    // ---- Failover and end ----------------------------------------------------------------------

    /// The connection could move to another link: the last byte of the peer's ring is reserved from
    /// now on, for use after a failover.
    pub fn reserve_byte(&mut self) {
        // A ring of one byte has to be used.
        self.reserved = self.peer.size().saturating_sub(1).min(1);
    }

    /// The connection is bound to another link, because the old one is down.
    ///
    /// Everything that was not completed is posted again: first a validation, then one full CDC,
    /// behind all data that was written before and not completed. The full CDC is posted in every
    /// state, also without data, because a flag or an update may have been lost.
    pub fn failover(&mut self) {
        if self.is_aborted {
            return;
        }
        self.in_flight.clear();
        self.undo = None;
        self.posted = self.completed;
        self.skip_consumed();
        self.discard();
        self.due.validation = true;
        self.due.full = true;
        self.requests_update = true;
        self.peer_moved = false;
    }

    /// The peer has moved to the new link as well, as its messages there show.
    ///
    /// Messages that it sent over the old link may be lost, its consumer cursor for example. If
    /// there is no space, the reserved byte is posted now, with a request for an update.
    pub fn handle_peer_moved(&mut self) {
        self.peer_moved = true;
        if self.requests_update {
            self.uncork();
        }
    }

    /// Sends a request for an update, so that the peer posts corked data.
    ///
    /// A Linux peer corks data while earlier data is in flight. On a link whose failure it did not
    /// detect, this would have no end; a request for an update makes it try again
    /// (docs/spec/data-path.md#receiving). A peer without data does not answer.
    pub fn probe(&mut self) {
        self.due.probe = true;
    }

    /// Nothing more is posted, and completions have no effect.
    ///
    /// To notify the peer, call [`set_flags`](Self::set_flags) with
    /// [`ABORTED`](StateFlags::ABORTED) and post before this call.
    pub fn abort(&mut self) {
        self.is_aborted = true;
        self.in_flight.clear();
        self.undo = None;
    }

    /// Whether there is something to post that the peer has space for: it is posted as soon as a
    /// post in flight is completed.
    #[must_use]
    pub fn has_pending_post(&self) -> bool {
        let Due {
            validation,
            full,
            update,
            probe,
        } = self.due;
        let has_payload = self.unposted() > 0 && self.usable_space() > 0;
        let has_flags = self.last_cdc.state != self.flags_after(self.posted);
        !self.is_aborted && (has_payload || has_flags || validation || full || update || probe)
    }

    /// Whether everything staged, and every flag, was posted.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.is_aborted
            || (self.posted == self.prepared
                && !self.due.full
                && self.last_cdc.state == self.flags_after(self.posted))
    }

    /// Delivery of everything staged and of the end of stream
    /// ([`SENDING_DONE`](StateFlags::SENDING_DONE) or [`CLOSED`](StateFlags::CLOSED)).
    ///
    /// Completed data is in the peer's memory, and completed messages are in its receive queue:
    /// they are delivered even if this side is gone (docs/spec/closing.md#waiting-for-delivery).
    #[must_use]
    pub fn delivery(&self) -> StreamDelivery {
        let end = StateFlags::SENDING_DONE | StateFlags::CLOSED;
        let has_end = self.completed_state.intersects(end);
        if self.is_truncated || (self.is_peer_closed && self.consumed < self.posted) {
            StreamDelivery::Lost
        } else if self.is_peer_closed || (has_end && self.completed >= self.prepared) {
            StreamDelivery::Done
        } else {
            StreamDelivery::Pending
        }
    }

    /// Whether nothing is left to post, and nothing in flight: the staging ring can be released.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.is_aborted || (self.is_flushed() && !self.due.update && self.in_flight.is_empty())
    }

    // ---- Helpers -------------------------------------------------------------------------------

    /// Drops data that was not posted, if the peer is not to receive it.
    fn discard(&mut self) {
        if self.is_peer_closed || self.aborts {
            self.is_truncated |= self.prepared > self.max_posted;
            self.prepared = self.max_posted;
        }
        if self.is_peer_closed {
            // Nor is anything written again: the buffer may not belong to the peer any more.
            self.posted = self.max_posted;
        }
    }

    /// Bytes of the next post.
    fn pushable(&self) -> u32 {
        let unposted = self.unposted();
        // After a failover nothing is in flight, so data that is posted again is never corked.
        let corked = self.in_flight.has_payload()
            && self.posted >= self.uncorked
            && unposted <= self.cork_limit;
        if corked {
            return 0;
        }
        // The producer cursor must not go back behind a position the peer may have seen.
        unposted.min(
            self.usable_space()
                .max(distance(self.posted, self.max_posted)),
        )
    }

    /// Bytes of the peer's ring that may be used.
    fn usable_space(&self) -> u32 {
        let reserved = match self.requests_update && self.peer_moved {
            true => 0,
            false => self.reserved,
        };
        self.peer_space().saturating_sub(reserved)
    }

    /// Whether a CDC without payload is due, and allowed.
    fn is_cdc_only_due(&self, flags: StateFlags) -> bool {
        if self.due.full {
            return true;
        }
        let new = flags.difference(self.last_cdc.state);
        if self.in_flight.has_cdc_only() {
            // An abort is not delayed: the link may be about to fail.
            return new.contains(StateFlags::ABORTED);
        }
        self.due.update || self.due.probe || !new.is_empty()
    }

    /// The state flags of a CDC behind this many bytes.
    fn flags_after(&self, posted: u64) -> StateFlags {
        if self.aborts {
            self.last_cdc.state.union(StateFlags::ABORTED)
        } else if posted == self.prepared {
            self.last_cdc.state.union(self.queued_flags)
        } else {
            self.last_cdc.state
        }
    }

    fn post_validation(&mut self) -> Post {
        let undo = self.undo_state();
        self.due.validation = false;
        let id = self.in_flight.push(PostKind::Validation);
        self.undo = Some(Undo { id, ..undo });
        Post {
            id,
            spans: Default::default(),
            cdc: CdcR::failover(self.validated, self.token),
            coalesced: 0,
        }
    }

    /// Source and destination of the next `count` bytes.
    fn spans(&self, count: u32) -> [PeerWrite; 2] {
        let mut from = self.posted;
        self.peer.spans(self.producer().count, count).map(|to| {
            let pieces = self.pieces(from, to.len);
            from = from.saturating_add(u64::from(to.len));
            PeerWrite {
                pieces,
                at: self.base.saturating_add(u64::from(to.at)),
            }
        })
    }

    /// Position of `count` bytes of the stream in the staging ring.
    fn pieces(&self, from: u64, count: u32) -> [Piece; 2] {
        let at = cursor_at(self.staging, from).count;
        let spans = self.staging.spans(at, count);
        spans.map(|Span { at, len }| Piece { at, len })
    }

    /// Data that the peer has read is not written again, though its completion was lost.
    fn skip_consumed(&mut self) {
        if self.consumed > self.posted {
            self.posted = self.consumed;
            self.completed = self.completed.max(self.consumed);
        }
    }

    fn undo_state(&self) -> Undo {
        Undo {
            id: PostId::default(),
            posted: self.posted,
            max_posted: self.max_posted,
            last_cdc: self.last_cdc,
            due: self.due,
            changes: self.changes,
        }
    }
}
