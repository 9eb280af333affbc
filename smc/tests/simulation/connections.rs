//! A connection of a schedule: the operations of its ends, and what they come to.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::task::{Poll, Waker};

use smc::{FallbackReason, Mode};

use super::effects::Effects;
use super::schedule::{End, Policy};

/// A rule that was broken: its name, which stays the same when a schedule is made shorter, and what
/// happened.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) kind: String,
    pub(crate) what: String,
}

impl Violation {
    pub(crate) fn new(kind: impl Into<String>, what: impl Into<String>) -> Self {
        let (kind, what) = (kind.into(), what.into());
        Self { kind, what }
    }
}

pub(crate) type Verdict = Result<(), Violation>;

/// What a connect asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) number: u8,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) early: usize,
    pub(crate) policy: Policy,
    pub(crate) give_up: u32,
    pub(crate) model: u64,
}

/// A connection, judged as it is used.
pub(crate) struct Connection {
    pub(crate) request: Request,
    pub(crate) effects: Effects,
    state: Mutex<State>,
    /// By end.
    queues: [Mutex<Queue>; 2],
    /// Tasks of the client's host own both ends.
    pub(crate) is_used_at_random: AtomicBool,
}

#[derive(Default)]
struct State {
    /// By the end that writes.
    directions: [Direction; 2],
    ends: [EndState; 2],
    /// The server's end is that of an attempt that the client has given up.
    is_repeated: bool,
    /// Another stream of the server has data of the client.
    has_second_data: bool,
}

/// One direction of the stream.
#[derive(Clone, Copy, Debug, Default)]
struct Direction {
    /// Bytes that may have been written: a write is under way.
    offered: u64,
    written: u64,
    read: u64,
    /// The writer has shut it down.
    is_shut: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct EndState {
    /// Of its stream.
    pub(crate) mode: Option<Mode>,
    /// Why there is no stream.
    pub(crate) error: Option<String>,
    /// Why SMC was declined where the policy requires it.
    pub(crate) declined: Option<FallbackReason>,
    /// It was dropped, or is about to be.
    is_closed: bool,
    /// With a linger time of zero.
    has_reset: bool,
}

/// An operation of the writing half.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WriteOp {
    Write(usize),
    Shutdown,
    /// Drops the stream, with a linger time of zero or without.
    Close(bool),
    /// Shuts writing down, and there are no more operations.
    Finish,
}

/// Operations that wait for their turn.
#[derive(Default)]
struct Queue {
    writes: VecDeque<WriteOp>,
    /// Bytes to read.
    reads: usize,
    /// Both halves are in one task.
    waker: Option<Waker>,
}

impl Connection {
    pub(crate) fn new(request: Request, effects: Effects) -> Self {
        Self {
            request,
            effects,
            state: Mutex::default(),
            queues: [Mutex::default(), Mutex::default()],
            is_used_at_random: AtomicBool::new(false),
        }
    }

    // ---- Operations ----------------------------------------------------------------------------

    pub(crate) fn write(&self, end: End, op: WriteOp) {
        self.enqueue(end, |queue| queue.writes.push_back(op));
    }

    pub(crate) fn read(&self, end: End, len: usize) {
        self.enqueue(end, |queue| queue.reads = queue.reads.saturating_add(len));
    }

    /// Ends both directions: shuts writing down, and reads to the end.
    pub(crate) fn finish(&self, end: End) {
        self.write(end, WriteOp::Finish);
        self.read(end, usize::MAX);
    }

    fn enqueue(&self, end: End, add: impl FnOnce(&mut Queue)) {
        let waker = {
            let mut queue = lock(&self.queues[end as usize]);
            add(&mut queue);
            queue.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    pub(crate) async fn next_write(&self, end: End) -> WriteOp {
        self.next(end, |queue| queue.writes.pop_front()).await
    }

    /// Waits until something is to be read; states how much.
    pub(crate) async fn next_read(&self, end: End) -> usize {
        self.next(end, |queue| Some(queue.reads).filter(|left| *left > 0))
            .await
    }

    async fn next<T>(&self, end: End, take: impl Fn(&mut Queue) -> Option<T>) -> T {
        poll_fn(|cx| {
            let mut queue = lock(&self.queues[end as usize]);
            if let Some(taken) = take(&mut queue) {
                return Poll::Ready(taken);
            }
            queue.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    // ---- Set-up --------------------------------------------------------------------------------

    /// There is a stream at this end; returns whether it is to be used. A client whose early
    /// CONFIRM was not answered connects again, and the listener has both streams; and the SYN may
    /// have arrived twice.
    pub(crate) fn opened(&self, end: End, mode: &Mode) -> Result<bool, Violation> {
        let mut state = self.state();
        if state.ends[end as usize].mode.is_some() {
            state.is_repeated = self.effects.may_fail();
            let kind = "accepted twice";
            return match state.is_repeated || self.effects.on_syns {
                true => Ok(false),
                false => Err(Violation::new(kind, self.describe(&state))),
            };
        }
        state.ends[end as usize].mode = Some(mode.clone());
        if end == End::Client {
            state.directions[0].written = self.request.early as u64;
        }
        Ok(true)
    }

    /// Another stream of the server has data, as that of a second attempt may have.
    pub(crate) fn second_has_data(&self, mode: &Mode) -> Verdict {
        let mut state = self.state();
        state.has_second_data = true;
        let may_have = state.is_repeated && state.directions[0].read == 0;
        match may_have {
            true => Ok(()),
            false => Err(Violation::new(
                "data on two streams",
                format!("{mode}: {}", self.describe(&state)),
            )),
        }
    }

    /// Whether the server's end is that of an attempt that the client has given up.
    pub(crate) fn is_repeated(&self) -> bool {
        self.state().is_repeated
    }

    /// The client has no stream: what it has offered may have arrived all the same.
    pub(crate) fn failed(&self, error: String, declined: Option<FallbackReason>) {
        let mut state = self.state();
        let client = &mut state.ends[0];
        client.error = Some(error);
        client.declined = declined;
        client.is_closed = true;
    }

    /// Whether there may be no stream at the client.
    pub(crate) fn may_fail(&self) -> bool {
        let [_, server] = self.ends();
        // A reset of TCP overtakes the DECLINE before it, and early data that the server did not
        // take with the PROPOSAL is written before the connect ends.
        let has_early = self.request.early > 0;
        let is_reset =
            server.is_closed && server.mode.is_some_and(|mode| has_early || !mode.is_smc());
        is_reset || self.effects.may_fail()
    }

    /// Whether the server has a stream, if the client has one. A TCP connection that the client has
    /// reset may end before the server has read the DECLINE.
    pub(crate) fn is_accepted(&self) -> bool {
        let [client, server] = self.ends();
        let is_lost = |mode: &Mode| client.has_reset && !mode.is_smc();
        server.mode.is_some() || client.mode.as_ref().is_none_or(is_lost)
    }

    /// Whether a random use has streams of this host.
    pub(crate) fn occupies(&self, host: usize) -> bool {
        let is_its_own = [self.request.from, self.request.to].contains(&host);
        is_its_own && self.is_used_at_random.load(Ordering::Relaxed)
    }

    /// Early data is offered from now on.
    pub(crate) fn offer_early(&self) {
        self.state().directions[0].offered = self.request.early as u64;
    }

    pub(crate) fn ends(&self) -> [EndState; 2] {
        self.state().ends.clone()
    }

    // ---- Streams -------------------------------------------------------------------------------

    /// The next bytes of a direction.
    pub(crate) fn offer(&self, end: End, len: usize) -> Vec<u8> {
        let mut state = self.state();
        let direction = &mut state.directions[end as usize];
        direction.offered = direction.written + len as u64;
        let number = self.request.number;
        (direction.written..direction.offered)
            .map(|at| byte_at(number, end, at))
            .collect()
    }

    pub(crate) fn wrote(&self, end: End, result: &io::Result<usize>) -> Verdict {
        let mut state = self.state();
        let direction = &mut state.directions[end as usize];
        match result {
            Ok(count) => {
                direction.written += *count as u64;
                let is_fine = *count > 0 && direction.written <= direction.offered;
                self.require(&state, is_fine, "wrong count of a write")
            }
            Err(error) => {
                let is_due = match error.kind() {
                    io::ErrorKind::BrokenPipe => direction.is_shut,
                    _ => false,
                };
                self.require_end(&state, end, is_due, "write", error)
            }
        }
    }

    /// Writing is shut down now.
    pub(crate) fn shut(&self, end: End) {
        self.state().directions[end as usize].is_shut = true;
    }

    pub(crate) fn shut_down(&self, end: End, result: &io::Result<()>) -> Verdict {
        match result {
            Ok(()) => Ok(()),
            Err(error) => self.require_end(&self.state(), end, false, "shutdown", error),
        }
    }

    /// This end is dropped soon, with a linger time of zero.
    pub(crate) fn resets(&self, end: End) {
        self.state().ends[end as usize].has_reset = true;
    }

    /// This end is dropped now.
    pub(crate) fn closed(&self, end: End) {
        self.state().ends[end as usize].is_closed = true;
    }

    /// What a read came to.
    pub(crate) fn took(&self, end: End, bytes: &[u8], result: &io::Result<usize>) -> Verdict {
        let mut state = self.state();
        let peer = end.other();
        let direction = &mut state.directions[peer as usize];
        match result {
            Ok(0) => {
                let Direction {
                    read,
                    written,
                    is_shut,
                    ..
                } = *direction;
                let has_ended = is_shut || state.ends[peer as usize].is_closed;
                let is_truncated = self.is_truncated(&state, end) || state.is_repeated;
                self.require(
                    &state,
                    has_ended || is_truncated,
                    "end of stream without cause",
                )?;
                // A connect that has failed may have sent a part.
                let is_whole = read == written || state.ends[0].error.is_some();
                self.require(
                    &state,
                    is_whole || is_truncated,
                    "end of stream before the last byte",
                )
            }
            Ok(count) => {
                let number = self.request.number;
                let mut places = bytes[..*count].iter().zip(direction.read..);
                let wrong = places.find(|(byte, at)| **byte != byte_at(number, peer, *at));
                direction.read += *count as u64;
                lock(&self.queues[end as usize]).sub_reads(*count);
                let is_invented = direction.read > direction.offered;
                self.require(&state, wrong.is_none(), "wrong byte")?;
                let is_second = state.has_second_data && end == End::Server;
                self.require(&state, !is_second, "data on two streams")?;
                self.require(&state, !is_invented, "more bytes than were written")
            }
            Err(error) => self.require_end(&state, end, false, "read", error),
        }
    }

    /// TCP that has lost bytes reads an end.
    fn is_truncated(&self, state: &State, end: End) -> bool {
        let mode = state.ends[end as usize].mode.as_ref();
        mode.is_some_and(|mode| !mode.is_smc()) && self.effects.on_tcp
    }

    /// Whether an operation of this end may fail.
    fn require_end(
        &self,
        state: &State,
        end: End,
        is_due: bool,
        what: &str,
        error: &io::Error,
    ) -> Verdict {
        let is_of_the_end = matches!(
            error.kind(),
            io::ErrorKind::BrokenPipe
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
        );
        // A server whose device cannot attach the client's buffer.
        let is_of_memory = error.kind() == io::ErrorKind::Other && self.effects.on_memory;
        let mode = state.ends[end as usize].mode.as_ref();
        let may_abort = mode.is_some_and(|mode| self.effects.may_abort(mode));
        // The other end may have found the TCP connection lost while this one is SMC, or the link,
        // and have declined.
        let may_be_half = self.effects.may_fail() || self.effects.on_modes;
        let is_half = !self.has_one_mode(state) && may_be_half;
        let is_closed = state.ends[end.other() as usize].is_closed;
        let is_explained = is_of_memory
            || is_of_the_end && (may_abort || is_closed || is_half || state.is_repeated);
        if is_due || is_explained {
            return Ok(());
        }
        let kind = format!("{what} fails without cause: {:?}", error.kind());
        Err(Violation::new(
            kind,
            format!("{error}: {}", self.describe(state)),
        ))
    }

    fn has_one_mode(&self, state: &State) -> bool {
        let mut modes = state
            .ends
            .iter()
            .map(|end| end.mode.as_ref().map(Mode::is_smc));
        modes.next() == modes.next()
    }

    fn require(&self, state: &State, holds: bool, kind: &str) -> Verdict {
        match holds {
            true => Ok(()),
            false => Err(Violation::new(kind, self.describe(state))),
        }
    }

    pub(crate) fn description(&self) -> String {
        self.describe(&self.state())
    }

    fn describe(&self, state: &State) -> String {
        let Request {
            number, from, to, ..
        } = self.request;
        let mut text = format!("connection {number} from {from} to {to}");
        for (end, direction) in state.ends.iter().zip(&state.directions) {
            let mode = end.mode.as_ref().map(ToString::to_string);
            let error = end.error.as_ref();
            text += &format!(
                "\n  {mode:?} {error:?} closed: {}, {direction:?}",
                end.is_closed
            );
        }
        text
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Queue {
    fn sub_reads(&mut self, count: usize) {
        if self.reads != usize::MAX {
            self.reads = self.reads.saturating_sub(count);
        }
    }
}

impl End {
    pub(crate) const BOTH: [Self; 2] = [Self::Client, Self::Server];

    pub(crate) fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// The byte that an end writes at a position.
fn byte_at(number: u8, end: End, at: u64) -> u8 {
    let mixed = at ^ (u64::from(number) << 40) ^ ((end as u64) << 56);
    mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0]
}

/// The first bytes of a client.
pub(crate) fn early_data(number: u8, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| byte_at(number, End::Client, at))
        .collect()
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no task panics while it holds a lock")
}
