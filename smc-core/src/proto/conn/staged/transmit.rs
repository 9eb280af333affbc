use smc_wire::cdc::{CdcR, ProducerFlags, StateFlags};
use smc_wire::cursor::{Cursor, Ring};
use smc_wire::types::AlertToken;

use super::flight::{Flight, Kind, Said};
use super::position::{gap, newer, place};
use super::post::{PeerWrite, Post, PostId};
use crate::device::Piece;
use crate::error::PeerMisbehaved;

/// The sending side of one SMC-R connection.
///
/// Positions are counted in bytes from the start of the stream; cursors and offsets follow from
/// them. The staging ring and the peer's ring carry the same stream, so that one count gives both
/// places:
///
/// ```text
///   completed          sent         prepared
///       |---------------|--------------|           staging ring: kept until completed
///           |-----------|----------------------|   peer's ring: written until consumed
///       consumed       sent             consumed + size
/// ```
///
/// Urgent data is never sent. An update is requested only after a failover: what the peer said of
/// its space may have been lost, and a Linux peer says it again only when it reads something. So
/// there has to be something that it can read, and while the connection could move, the last byte
/// of the peer's ring is [kept back](Self::keep_spare).
#[derive(Debug)]
pub struct Transmit {
    staging: Ring,
    peer: Ring,
    token: AlertToken,
    /// Start of the peer's element in its RMB.
    base: u64,
    /// More held data than this is sent although payload is in flight.
    cork: u32,

    prepared: u64,
    /// Handed out for posting.
    sent: u64,
    /// The most that was ever handed out: above `sent` between a failover and the next push.
    reach: u64,
    completed: u64,
    consumed: u64,
    /// Corking holds nothing back below this.
    uncorked: u64,
    peer_consumer: Cursor,

    consumer: Cursor,
    /// State flags to be said as soon as all data is handed out.
    wanted: StateFlags,
    /// Sequence number of the newest CDC that is completed, and its flags.
    last_completed: u16,
    completed_state: StateFlags,
    /// Sequence number of the one completed before it: what a validation says.
    ///
    /// The newest may still be in the receive queue of the peer's old device when the validation
    /// comes in that of another one, and a Linux peer would take it for lost and kill the
    /// connection. Linux says one less too (docs/spec/failover.md#validation). Nothing is missed by
    /// that: the full CDC behind the validation says all that the late one says, whose data was
    /// written before it.
    validated: u16,
    said: Level,
    due: Due,
    /// Bytes of the peer's ring that are kept back: none, or one.
    spare: u32,
    /// The connection has moved, and the peer has not said since that it read anything.
    asks: bool,
    /// The peer has moved too: what it says now arrives.
    peer_moved: bool,
    flight: Flight,
    undo: Option<Undo>,
    /// An abort goes at once.
    aborts: bool,
    /// The peer reads nothing more.
    unheard: bool,
    /// Data was discarded that was staged.
    is_cut: bool,
    killed: bool,
}

/// What became of everything staged and of the end behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delivery {
    /// Not completed yet.
    Pending,
    /// The peer has it: it was completed, or the peer has read all of it and closed.
    Done,
    /// Some of it never gets there, or was not read: the peer has closed, or this side has aborted.
    Lost,
}

/// Settings of [`Transmit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransmitConfig {
    /// While payload is in flight, new data is held back up to this many bytes, or half of the
    /// staging ring if that is less (64 KiB unless set). 0 holds nothing back.
    pub autocork: u32,
}

impl Default for TransmitConfig {
    fn default() -> Self {
        Self {
            autocork: 64 * 1024,
        }
    }
}

impl Transmit {
    /// A connection on which nothing was said yet.
    ///
    /// `peer` is the ring in the peer's RMB and `base` its offset there in bytes, (index - 1)
    /// times the size of an element. `token` is what the peer announced for the connection.
    #[must_use]
    pub fn new(
        staging: Ring,
        peer: Ring,
        token: AlertToken,
        base: u64,
        config: TransmitConfig,
    ) -> Self {
        Self {
            staging,
            peer,
            token,
            base,
            cork: config.autocork.min(staging.size() / 2),
            prepared: 0,
            sent: 0,
            reach: 0,
            completed: 0,
            consumed: 0,
            uncorked: 0,
            peer_consumer: Cursor::START,
            consumer: Cursor::START,
            wanted: StateFlags::empty(),
            last_completed: 0,
            completed_state: StateFlags::empty(),
            validated: 0,
            said: Level::default(),
            due: Due::default(),
            spare: 0,
            asks: false,
            peer_moved: false,
            flight: Flight::new(),
            undo: None,
            aborts: false,
            unheard: false,
            is_cut: false,
            killed: false,
        }
    }

    // ---- Staging -------------------------------------------------------------------------------

    /// Bytes that can be copied into the staging ring now.
    #[must_use]
    pub fn space(&self) -> u32 {
        self.staging
            .size()
            .saturating_sub(gap(self.completed, self.prepared))
    }

    /// Offset in the staging ring of the next byte to copy there; the space may pass its end.
    #[must_use]
    pub fn at(&self) -> u32 {
        place(self.staging, self.prepared).count
    }

    /// The staging ring.
    #[must_use]
    pub fn staging(&self) -> Ring {
        self.staging
    }

    /// `count` bytes were copied to [`Transmit::at`]; more than the space counts as the space.
    ///
    /// Nothing is taken once an end of the stream is [to be said](Self::set_flags), or the peer has
    /// closed. Returns what was taken.
    pub fn stage(&mut self, count: u32) -> u32 {
        if !self.wanted.is_empty() || self.unheard || self.killed {
            return 0;
        }
        let count = count.min(self.space());
        self.prepared = self.prepared.saturating_add(u64::from(count));
        count
    }

    /// Everything staged so far is to go without waiting for a completion.
    pub fn uncork(&mut self) {
        self.uncorked = self.prepared;
    }

    /// Bytes that are staged and not handed out for posting.
    #[must_use]
    pub fn unsent(&self) -> u32 {
        gap(self.sent, self.prepared)
    }

    // ---- What the next CDC has to say ----------------------------------------------------------

    /// We have read up to here, and the peer has to hear of it.
    ///
    /// An update that was not posted yet is replaced. It goes with the next payload, or in a CDC of
    /// its own, of which one at a time is in flight.
    pub fn set_consumer(&mut self, cursor: Cursor) {
        self.consumer = cursor;
        self.due.update = !self.aborts;
    }

    /// Flags to say in addition to those said before.
    ///
    /// [`SENDING_DONE`](StateFlags::SENDING_DONE) and [`CLOSED`](StateFlags::CLOSED) follow what is
    /// staged, which nothing holds back any more. [`ABORTED`](StateFlags::ABORTED) goes at once:
    /// what was not handed out is discarded ([`Transmit::unsent`] tells before whether there is
    /// something), and of the others only those that were said are repeated.
    pub fn set_flags(&mut self, flags: StateFlags) {
        self.wanted.insert(flags);
        if flags.contains(StateFlags::ABORTED) {
            self.aborts = true;
            self.due.update = false;
        }
        self.discard();
        self.uncork();
    }

    /// An abort is to be said behind what is staged, instead of a close in order: the peer gets
    /// everything, and hears that its own data was not read.
    pub fn abort_behind(&mut self) {
        self.wanted.insert(StateFlags::ABORTED);
        self.uncork();
    }

    // ---- Posting -------------------------------------------------------------------------------

    /// What has to be posted next, if anything. It counts as posted when this returns.
    ///
    /// The writes and the CDC belong together, on the queue pair of the link that the connection
    /// is bound to, in the order in which they are given.
    pub fn poll_post(&mut self) -> Option<Post> {
        if self.killed || self.flight.is_full() {
            return None;
        }
        if self.due.validation {
            return Some(self.validation());
        }
        let count = self.pushable();
        let sent = self.sent.saturating_add(u64::from(count));
        let state = self.flags_behind(sent);
        if count == 0 && !self.is_bare_due(state) {
            return None;
        }
        let blocked = match count {
            0 => self.said.flags.contains(ProducerFlags::WRITER_BLOCKED),
            _ => self.unsent() >= self.room(),
        };
        let undo = self.undo_point();
        let spans = self.spans(count);
        let flags = &mut self.said.flags;
        flags.set(ProducerFlags::WRITER_BLOCKED, blocked);
        let asks = (blocked && self.asks) || self.due.nudge;
        flags.set(ProducerFlags::UPDATE_REQUESTED, asks);
        self.sent = sent;
        self.reach = self.reach.max(sent);
        self.said.state = state;
        self.said.sequence = self.said.sequence.wrapping_add(1);
        self.due = Due::default();
        let cdc = CdcR {
            producer: self.producer(),
            consumer: self.consumer,
            producer_flags: self.said.flags,
            state_flags: state,
            ..CdcR::new(self.said.sequence, self.token)
        };
        let said = Said {
            sequence: self.said.sequence,
            sent,
            state,
        };
        let id = self.flight.push(if count == 0 {
            Kind::Bare(said)
        } else {
            Kind::Payload(said)
        });
        self.undo = Some(Undo { id, ..undo });
        Some(Post { id, spans, cdc })
    }

    /// Takes back the post handed out last, which the device had no room for.
    ///
    /// What it would have said is due again. Nothing happens without such a post.
    pub fn unpost(&mut self) {
        let Some(undo) = self.undo.take() else { return };
        if !self.flight.take_back(undo.id) {
            return;
        }
        // Nobody honest has consumed what was not posted.
        self.sent = undo.sent.max(self.consumed);
        self.reach = undo.reach.max(self.sent);
        self.said = undo.said;
        self.due = self.due.and(undo.due);
        self.discard();
    }

    /// The CDC of this post is completed, and with it all posted before. Returns the bytes that
    /// became free in the staging ring.
    ///
    /// A post that is not in flight, such as one of before a failover, frees nothing.
    pub fn handle_sent(&mut self, post: PostId) -> u32 {
        let before = self.completed;
        let Self {
            flight,
            completed,
            last_completed,
            completed_state,
            validated,
            ..
        } = self;
        flight.complete(post, |said| {
            *validated = std::mem::replace(last_completed, said.sequence);
            *completed_state = said.state;
            *completed = said.sent.max(*completed);
        });
        gap(before, self.completed)
    }

    /// Posts whose completion was not reported.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.flight.len()
    }

    // ---- What the peer says --------------------------------------------------------------------

    /// The peer's consumer cursor has this value now. Returns how many bytes of its ring that
    /// freed; they may be free in the staging ring as well.
    ///
    /// # Errors
    ///
    /// When the cursor is outside the ring or passes what was written. Nothing is changed then. One
    /// that lies behind frees nothing.
    pub fn handle_peer(&mut self, consumer: Cursor) -> Result<u32, PeerMisbehaved> {
        let (consumer, freed) = newer(self.peer, self.peer_consumer, consumer)?;
        let consumed = self.consumed.saturating_add(u64::from(freed));
        if consumed > self.reach {
            return Err(PeerMisbehaved::PassedTheData);
        }
        self.consumed = consumed;
        self.peer_consumer = consumer;
        self.skip_consumed();
        if freed > 0 {
            self.asks = false;
            self.uncork();
        }
        Ok(freed)
    }

    /// The peer has closed or aborted: nobody reads what is not handed out, so it is discarded, and
    /// flags wait for it no longer. No payload follows.
    pub fn handle_peer_closed(&mut self) {
        self.unheard = true;
        self.discard();
    }

    /// Bytes that can be written into the peer's ring, as far as we know.
    #[must_use]
    pub fn peer_space(&self) -> u32 {
        self.peer
            .size()
            .saturating_sub(gap(self.consumed, self.sent))
    }

    /// The peer's ring.
    #[must_use]
    pub fn peer_ring(&self) -> Ring {
        self.peer
    }

    /// How far we have written into the peer's ring, as the last CDC said.
    #[must_use]
    pub fn producer(&self) -> Cursor {
        place(self.peer, self.sent)
    }

    // ---- Moving and ending ---------------------------------------------------------------------

    /// The connection could move to another link: the last byte of the peer's ring is kept back
    /// from now on, for a failover.
    pub fn keep_spare(&mut self) {
        // A ring of one byte has to be used.
        self.spare = self.peer.size().saturating_sub(1).min(1);
    }

    /// The connection is bound to another link, because the old one is down.
    ///
    /// Everything that was not completed is forgotten and sent again: a validation comes first,
    /// then one full CDC, behind all data that was written before and not completed. That is so
    /// in every state, also without data, because a flag or an update may have been lost.
    pub fn failover(&mut self) {
        if self.killed {
            return;
        }
        self.flight.clear();
        self.undo = None;
        self.sent = self.completed;
        self.skip_consumed();
        self.discard();
        self.due.validation = true;
        self.due.full = true;
        self.asks = true;
        self.peer_moved = false;
    }

    /// The peer has moved to the new link as well, as its messages there show.
    ///
    /// What it said over the old link before may be lost, its consumer cursor for one. If there is
    /// no space, the byte that was kept back goes now, and asks.
    pub fn handle_peer_moved(&mut self) {
        self.peer_moved = true;
        if self.asks {
            self.uncork();
        }
    }

    /// Has the peer push what it holds back.
    ///
    /// A Linux peer holds data back while earlier data is in flight. On a link that failed without
    /// its noticing that is for ever; but a wish for an update makes it try
    /// (docs/spec/data-path.md#receiving). It says nothing if there is nothing.
    pub fn nudge(&mut self) {
        self.due.nudge = true;
    }

    /// Nothing is said any more, and completions mean nothing.
    ///
    /// To tell the peer, [`set_flags`](Self::set_flags) with
    /// [`ABORTED`](StateFlags::ABORTED) and post before.
    pub fn kill(&mut self) {
        self.killed = true;
        self.flight.clear();
        self.undo = None;
    }

    /// Whether something waits to be posted that the peer would take now: it goes as soon as
    /// something that is in flight is completed.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let Due {
            validation,
            full,
            update,
            nudge,
        } = self.due;
        let has_payload = self.unsent() > 0 && self.room() > 0;
        let has_flags = self.said.state != self.flags_behind(self.sent);
        !self.killed && (has_payload || has_flags || validation || full || update || nudge)
    }

    /// Whether everything staged, and every flag, was handed out for posting.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.killed
            || (self.sent == self.prepared
                && !self.due.full
                && self.said.state == self.flags_behind(self.sent))
    }

    /// What became of everything staged and of the word that no more comes
    /// ([`SENDING_DONE`](StateFlags::SENDING_DONE)).
    ///
    /// What is completed is in the peer's memory and among what it has received: it gets there
    /// whatever becomes of this side (docs/spec/closing.md#waiting-for-delivery).
    #[must_use]
    pub fn delivery(&self) -> Delivery {
        let has_end = self.completed_state.contains(StateFlags::SENDING_DONE);
        if self.is_cut || (self.unheard && self.consumed < self.sent) {
            Delivery::Lost
        } else if self.unheard || (has_end && self.completed >= self.prepared) {
            Delivery::Done
        } else {
            Delivery::Pending
        }
    }

    /// Whether nothing is left to post, and nothing in flight: the staging ring can be released.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.killed || (self.is_flushed() && !self.due.update && self.flight.is_empty())
    }

    // ---- Helpers -------------------------------------------------------------------------------

    /// Drops what was not handed out, if nobody is to get it.
    fn discard(&mut self) {
        if self.unheard || self.aborts {
            self.is_cut |= self.prepared > self.reach;
            self.prepared = self.reach;
        }
        if self.unheard {
            // Nor is anything written a second time: the buffer may not be the peer's any more.
            self.sent = self.reach;
        }
    }

    /// Bytes that go with the next post.
    fn pushable(&self) -> u32 {
        let held = self.unsent();
        // Nothing is in flight behind a failover, so what has to be said again is never held.
        let corked = self.flight.has_payload() && self.sent >= self.uncorked && held <= self.cork;
        if corked {
            return 0;
        }
        // The producer cursor must not go back behind what the peer may have seen.
        held.min(self.room().max(gap(self.sent, self.reach)))
    }

    /// Bytes of the peer's ring that may be used.
    fn room(&self) -> u32 {
        let spare = match self.asks && self.peer_moved {
            true => 0,
            false => self.spare,
        };
        self.peer_space().saturating_sub(spare)
    }

    /// Whether a CDC without payload has to go, and may.
    fn is_bare_due(&self, flags: StateFlags) -> bool {
        if self.due.full {
            return true;
        }
        let new = flags.difference(self.said.state);
        if self.flight.has_bare() {
            // An abort waits for nothing: the link may be about to go.
            return new.contains(StateFlags::ABORTED);
        }
        self.due.update || self.due.nudge || !new.is_empty()
    }

    /// The state flags of a CDC behind this many bytes.
    fn flags_behind(&self, sent: u64) -> StateFlags {
        if self.aborts {
            self.said.state.union(StateFlags::ABORTED)
        } else if sent == self.prepared {
            self.said.state.union(self.wanted)
        } else {
            self.said.state
        }
    }

    fn validation(&mut self) -> Post {
        let undo = self.undo_point();
        self.due.validation = false;
        let id = self.flight.push(Kind::Validation);
        self.undo = Some(Undo { id, ..undo });
        Post {
            id,
            spans: Default::default(),
            cdc: CdcR::failover(self.validated, self.token),
        }
    }

    /// Where the next `count` bytes come from and go to.
    fn spans(&self, count: u32) -> [PeerWrite; 2] {
        let at = self.producer().count;
        let first = count.min(self.peer.size().saturating_sub(at));
        let second = count.saturating_sub(first);
        let behind = self.sent.saturating_add(u64::from(first));
        [
            PeerWrite {
                pieces: self.pieces(self.sent, first),
                at: self.base.saturating_add(u64::from(at)),
            },
            PeerWrite {
                pieces: self.pieces(behind, second),
                at: self.base,
            },
        ]
    }

    /// Where `count` bytes of the stream are in the staging ring.
    fn pieces(&self, from: u64, count: u32) -> [Piece; 2] {
        let at = place(self.staging, from).count;
        let first = count.min(self.staging.size().saturating_sub(at));
        let second = count.saturating_sub(first);
        [Piece { at, len: first }, Piece { at: 0, len: second }]
    }

    /// What the peer has read need not be written again, though its completion was lost.
    fn skip_consumed(&mut self) {
        if self.consumed > self.sent {
            self.sent = self.consumed;
            self.completed = self.completed.max(self.consumed);
        }
    }

    fn undo_point(&self) -> Undo {
        Undo {
            id: PostId::default(),
            sent: self.sent,
            reach: self.reach,
            said: self.said,
            due: self.due,
        }
    }
}

/// What the last CDC said apart from cursors.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    sequence: u16,
    flags: ProducerFlags,
    state: StateFlags,
}

/// What has to be posted apart from payload and new state flags.
#[derive(Clone, Copy, Debug, Default)]
struct Due {
    /// A failover validation, before anything else.
    validation: bool,
    /// A CDC with everything, held back by nothing.
    full: bool,
    /// A CDC with our consumer cursor.
    update: bool,
    /// A CDC with the wish for an update.
    nudge: bool,
}

impl Due {
    fn and(self, other: Self) -> Self {
        Self {
            validation: self.validation || other.validation,
            full: self.full || other.full,
            update: self.update || other.update,
            nudge: self.nudge || other.nudge,
        }
    }
}

/// What was before the last post.
#[derive(Clone, Copy, Debug)]
struct Undo {
    id: PostId,
    sent: u64,
    reach: u64,
    said: Level,
    due: Due,
}
