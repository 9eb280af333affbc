//! What both ends did so far, and what follows from it.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::end_report::{Claims, EndReport};
use super::plan::Plan;
use super::{Rules, Tally};

/// The oracle of a run; both ends report their operations to it.
pub(super) struct Oracle {
    pub(super) rules: Rules,
    pub(super) is_smc: bool,
    /// The other end is in another process. What depends on it is kept for [`compare`].
    ///
    /// [`compare`]: super::compare
    is_alone: bool,
    plans: String,
    state: Mutex<OracleState>,
}

#[derive(Default)]
struct OracleState {
    /// By the side that writes.
    directions: [Direction; 2],
    sides: [Side; 2],
    tally: Tally,
    violation: Option<String>,
    /// What an end that is alone cannot judge.
    claims: Claims,
    history: VecDeque<String>,
    waker: Option<Waker>,
}

/// One direction of the stream.
#[derive(Default)]
struct Direction {
    /// Bytes that may have been written: a write is under way.
    offered: u64,
    written: u64,
    read: u64,
    /// The writer shut its side down, or dropped it.
    is_shut: bool,
}

/// One end of the stream.
#[derive(Default)]
struct Side {
    closed: Option<Closed>,
    /// Reads no more, so that its writer must not wait for the peer.
    is_stopping: bool,
    has_ended: bool,
    /// Halves about to be dropped, and halves that were.
    dropped: u8,
    ended_halves: u8,
    /// What its tasks do now.
    now: [String; 2],
    /// The writer, to be notified when the reader stops.
    writer: Option<Waker>,
}

/// How an end was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closed {
    InOrder,
    WithReset,
    /// Depends on what was on its way.
    Either,
}

/// The task of a side that reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SideTask {
    Reader,
    Writer,
}

/// What a read or write came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Goes on.
    Open,
    /// No more of this direction.
    Ended,
}

impl Oracle {
    /// For both ends, or for one if the other one is in another process.
    pub(super) fn new(
        mut rules: Rules,
        plans: &[Plan; 2],
        is_smc: bool,
        is_alone: bool,
    ) -> Arc<Self> {
        rules.is_exact &= !is_alone;
        Arc::new(Self {
            rules,
            is_smc,
            is_alone,
            plans: format!("0: {:?}\n1: {:?}", plans[0], plans[1]),
            state: Mutex::default(),
        })
    }

    // ---- Writing -------------------------------------------------------------------------------

    /// Where the next byte written by this side goes.
    pub(super) fn write_position(&self, side: usize) -> u64 {
        self.state().directions[side].written
    }

    /// A write of `len` bytes is tried now.
    pub(super) fn offer(&self, side: usize, len: usize) {
        let mut state = self.state();
        let direction = &mut state.directions[side];
        direction.offered = direction.written + len as u64;
    }

    /// The write waits: nothing was written.
    pub(super) fn withdraw(&self, side: usize) {
        let mut state = self.state();
        let direction = &mut state.directions[side];
        direction.offered = direction.written;
    }

    /// What became of a write of `len` bytes.
    pub(super) fn written(
        &self,
        side: usize,
        how: &str,
        len: usize,
        result: &io::Result<usize>,
    ) -> Progress {
        let mut state = self.state();
        state.note(side, how, len, result);
        // That is known of both ends only when all have ended.
        let peer = state.sides[1 - side].closed;
        let is_peer_closed = self.is_alone || peer.is_some();
        let is_blind = !self.rules.is_exact || state.directions[side].is_shut;
        let direction = &mut state.directions[side];
        match result {
            Ok(count) => {
                direction.written += *count as u64;
                direction.offered = direction.written;
                let count = *count;
                let is_shut = direction.is_shut;
                state.require(count <= len, || format!("wrote {count} bytes of {len}"));
                state.require(count > 0 || len == 0, || "wrote nothing".into());
                state.require(count == 0 || !is_shut, || "wrote after shutdown".into());
                let is_late = self.is_smc && is_peer_closed && count > 0;
                state.require(!is_late || is_blind, || {
                    "wrote to a peer that has closed".into()
                });
                Progress::Open
            }
            Err(error) => {
                direction.offered = direction.written;
                let is_shut = direction.is_shut;
                // An endpoint that ends closes in order what was shut down for writing.
                let may_end = self.rules.may_abort && state.directions[1 - side].is_shut;
                match error.kind() {
                    io::ErrorKind::WouldBlock => return Progress::Open,
                    // TCP reports the peer's close with either.
                    io::ErrorKind::BrokenPipe => {
                        let has_reset = self.is_smc && peer == Some(Closed::WithReset);
                        let is_due = is_shut || (is_peer_closed && !has_reset) || may_end;
                        state.require(is_due, || {
                            format!("write found a broken pipe, the peer closed: {peer:?}")
                        });
                    }
                    io::ErrorKind::ConnectionReset => {
                        state.tally.resets += 1;
                        let is_in_order = self.is_smc && peer == Some(Closed::InOrder);
                        let is_due = is_peer_closed && !is_in_order;
                        state.require(is_due || self.rules.may_abort, || {
                            format!("write found a reset, the peer closed: {peer:?}")
                        });
                    }
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::TimedOut
                        if self.rules.may_abort =>
                    {
                        state.tally.aborts += 1;
                    }
                    _ => state.require(false, || format!("write failed: {error}")),
                }
                Progress::Ended
            }
        }
    }

    /// The writer shuts its side down, or drops it.
    pub(super) fn shut(&self, side: usize) {
        let mut state = self.state();
        state.log(side, "shut".into());
        state.directions[side].is_shut = true;
    }

    /// What shutting down came to: it fails only if the peer has not read everything.
    pub(super) fn shut_down(&self, side: usize, result: &io::Result<()>) {
        let mut state = self.state();
        let is_peer_closed = self.is_alone || state.sides[1 - side].closed.is_some();
        let kind = result.as_ref().err().map(io::Error::kind);
        let is_due = match kind {
            None => true,
            Some(io::ErrorKind::ConnectionReset) => is_peer_closed || self.rules.may_abort,
            Some(io::ErrorKind::ConnectionAborted | io::ErrorKind::TimedOut) => {
                self.rules.may_abort
            }
            Some(_) => false,
        };
        state.require(is_due, || format!("shutdown: {result:?}"));
    }

    // ---- Reading -------------------------------------------------------------------------------

    /// Bytes were seen at the read position and `taken` of them taken.
    pub(super) fn seen(&self, side: usize, bytes: &[u8], taken: usize) {
        let mut state = self.state();
        let direction = &mut state.directions[1 - side];
        let at = direction.read;
        let until = at + bytes.len() as u64;
        let is_invented = !self.is_alone && until > direction.offered;
        direction.read += taken as u64;
        state.claims.seen = state.claims.seen.max(until);
        state.tally.bytes += taken as u64;
        let wrong = first_wrong(1 - side, at, bytes);
        state.require(wrong.is_none(), || {
            format!(
                "side {side} read {} bytes at {at}, number {wrong:?} is wrong",
                bytes.len()
            )
        });
        state.require(!is_invented, || {
            format!("side {side} read bytes that were not written")
        });
    }

    /// Where the next byte read by this side comes from.
    pub(super) fn read_position(&self, side: usize) -> u64 {
        self.state().directions[1 - side].read
    }

    /// Bytes that this side took at `at` are let go of now.
    pub(super) fn released(&self, side: usize, at: u64, bytes: &[u8]) {
        let wrong = first_wrong(1 - side, at, bytes);
        let mut state = self.state();
        state.log(side, format!("releases {} bytes at {at}", bytes.len()));
        state.require(wrong.is_none(), || {
            format!(
                "side {side} held {} bytes at {at}, number {wrong:?} has changed",
                bytes.len()
            )
        });
    }

    /// What became of a read into a buffer of `len` bytes; the bytes were `seen`.
    pub(super) fn read(
        &self,
        side: usize,
        how: &str,
        len: usize,
        result: &io::Result<usize>,
    ) -> Progress {
        let mut state = self.state();
        state.note(side, how, len, result);
        let peer = state.sides[1 - side].closed;
        let direction = &state.directions[1 - side];
        let (read, written, is_shut) = (direction.read, direction.written, direction.is_shut);
        match result {
            Ok(count) if *count > 0 || len == 0 => {
                state.require(*count <= len, || format!("read {count} bytes into {len}"));
                Progress::Open
            }
            Ok(_) if self.is_alone => {
                state.tally.ends += 1;
                state.claims.end = Some(read);
                Progress::Ended
            }
            Ok(_) => {
                state.tally.ends += 1;
                state.require(read == written, || {
                    format!("side {side} reads the end at {read}, {written} bytes were written")
                });
                let may_end = is_shut || matches!(peer, Some(Closed::InOrder | Closed::Either));
                state.require(may_end, || {
                    format!("side {side} reads an end without cause")
                });
                let is_reset = peer == Some(Closed::WithReset) && self.rules.is_exact;
                state.require(!is_reset || !self.is_smc, || {
                    format!("side {side} reads an end, but the peer has reset")
                });
                Progress::Ended
            }
            Err(error) => {
                match error.kind() {
                    io::ErrorKind::WouldBlock => return Progress::Open,
                    io::ErrorKind::ConnectionReset if self.is_alone => {
                        state.tally.resets += 1;
                        state.claims.is_reset = true;
                    }
                    io::ErrorKind::ConnectionReset => {
                        state.tally.resets += 1;
                        let is_due = matches!(peer, Some(Closed::WithReset | Closed::Either));
                        state.require(is_due || self.rules.may_abort, || {
                            format!("side {side} reads a reset, the peer closed: {peer:?}")
                        });
                    }
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::TimedOut
                        if self.rules.may_abort =>
                    {
                        state.tally.aborts += 1;
                    }
                    _ => state.require(false, || format!("read failed: {error}")),
                }
                Progress::Ended
            }
        }
    }

    // ---- Closing -------------------------------------------------------------------------------

    /// The reader of a side has ended. With `is_stopping` it left early, and its writer must not
    /// wait any more.
    pub(super) fn reader_left(&self, side: usize, is_stopping: bool) {
        let mut state = self.state();
        state.sides[side].is_stopping |= is_stopping;
        let writer = state.sides[side].writer.take();
        drop(state);
        if let Some(writer) = writer {
            writer.wake();
        }
    }

    /// Whether the writer of a side should give up waiting; keeps the waker.
    pub(super) fn poll_stopping(&self, side: usize, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.sides[side].is_stopping {
            return Poll::Ready(());
        }
        state.sides[side].writer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// A half, or a share of the stream, is dropped now; the second one closes the stream.
    pub(super) fn drop_half(&self, side: usize, is_shutting: bool, has_zero_linger: bool) {
        if is_shutting {
            self.shut(side);
        }
        let is_last = {
            let mut state = self.state();
            state.sides[side].dropped += 1;
            state.sides[side].dropped == 2
        };
        if is_last {
            self.close(side, has_zero_linger);
        }
    }

    /// A half has ended; the side ends with the second.
    pub(super) fn half_ended(&self, side: usize) {
        let is_last = {
            let mut state = self.state();
            state.sides[side].ended_halves += 1;
            state.sides[side].ended_halves == 2
        };
        if is_last {
            self.side_ended(side);
        }
    }

    /// The stream is dropped now.
    pub(super) fn close(&self, side: usize, has_zero_linger: bool) {
        let mut state = self.state();
        state.claims.has_zero_linger = has_zero_linger;
        let incoming = &state.directions[1 - side];
        let has_unread = incoming.written > incoming.read;
        // A peer that still writes may be in time to leave something unread.
        let is_quiet = incoming.is_shut && incoming.offered == incoming.read;
        let closed = match (has_zero_linger, has_unread) {
            (true, _) => Closed::WithReset,
            (_, true) if self.rules.is_exact && self.is_smc => Closed::WithReset,
            // What is still on its way, or was taken out of a TCP socket by `fill_buf`, does not
            // count as unread.
            (_, true) => Closed::Either,
            (_, false) if self.rules.is_exact || is_quiet => Closed::InOrder,
            (_, false) => Closed::Either,
        };
        state.log(side, format!("closes {closed:?}"));
        state.sides[side].closed = Some(closed);
    }

    // ---- The run -------------------------------------------------------------------------------

    /// A future was dropped while it waited.
    pub(super) fn cancelled(&self, side: usize, how: &str) {
        let mut state = self.state();
        state.tally.cancelled += 1;
        state.log(side, format!("{how} cancelled"));
    }

    /// What a task waits for, for the report of a stuck run.
    pub(super) fn doing(&self, side: usize, task: SideTask, what: &str) {
        let slot = usize::from(task == SideTask::Writer);
        let mut state = self.state();
        let now = &mut state.sides[side].now[slot];
        now.clear();
        now.push_str(what);
    }

    pub(super) fn require(&self, holds: bool, what: impl FnOnce() -> String) {
        self.state().require(holds, what);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.state().violation.is_some()
    }

    /// Both tasks of a side have ended and its stream is gone.
    pub(super) fn side_ended(&self, side: usize) {
        let mut state = self.state();
        state.sides[side].has_ended = true;
        state.wake();
    }

    /// Whether these ends have ended, or a rule was broken.
    pub(super) fn poll_ended(&self, sides: Range<usize>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.violation.is_some() || state.sides[sides].iter().all(|side| side.has_ended) {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// What an end that is alone did, once it has ended.
    pub(super) fn report(&self, side: usize) -> EndReport {
        let state = self.state();
        let out = &state.directions[side];
        EndReport {
            written: out.written,
            is_shut: out.is_shut,
            read: state.directions[1 - side].read,
            claims: state.claims,
            tally: state.tally,
        }
    }

    pub(super) fn outcome(&self) -> Result<Tally, String> {
        let state = self.state();
        state.violation.clone().map_or(Ok(state.tally), Err)
    }

    /// The ends that are not done, and what each does.
    pub(super) fn waiting(&self) -> String {
        let state = self.state();
        let mut text = String::new();
        let sides = state.sides.iter().enumerate();
        for (number, side) in sides.filter(|(_, side)| !side.has_ended) {
            let [reader, writer] = &side.now;
            text += &format!("side {number} reader: {reader}, writer: {writer}; ");
        }
        for (number, direction) in state.directions.iter().enumerate() {
            let Direction {
                written,
                read,
                is_shut,
                ..
            } = direction;
            text += &format!("side {number} wrote {written} (shut: {is_shut}), {read} read; ");
        }
        text
    }

    pub(super) fn history(&self) -> String {
        let state = self.state();
        let lines: Vec<_> = state.history.iter().map(String::as_str).collect();
        format!("smc: {}\n{}\n{}", self.is_smc, self.plans, lines.join("\n"))
    }

    fn state(&self) -> MutexGuard<'_, OracleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OracleState {
    fn require(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds && self.violation.is_none() {
            self.violation = Some(what());
            self.wake();
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn note(&mut self, side: usize, how: &str, len: usize, result: &io::Result<usize>) {
        self.tally.operations += 1;
        let result = match result {
            Ok(count) => format!("{how}({len}) = {count}"),
            Err(error) => format!("{how}({len}) = {:?}", error.kind()),
        };
        self.log(side, result);
    }

    fn log(&mut self, side: usize, what: String) {
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        let (written, read) = (
            self.directions[side].written,
            self.directions[1 - side].read,
        );
        let line = format!("side {side} (wrote {written}, read {read}): {what}");
        self.history.push_back(line);
    }
}

/// The byte that a side writes at a position.
pub(super) fn byte_at(side: usize, at: u64) -> u8 {
    let mixed = (at ^ (side as u64) << 63).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed.to_be_bytes()[0]
}

/// Which of these bytes is not what a side writes from this position on.
fn first_wrong(side: usize, at: u64, bytes: &[u8]) -> Option<usize> {
    let mut bytes = bytes.iter().zip(at..);
    bytes.position(|(byte, at)| *byte != byte_at(side, at))
}

/// Lines of history that are kept.
const HISTORY: usize = 40;
