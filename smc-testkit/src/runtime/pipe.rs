//! One direction of a TCP connection.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use super::executor::{Alarm, Core};
use super::net::CopiedBytes;

/// Bytes on their way from a writer to a reader.
pub(super) struct Pipe {
    core: Arc<Core>,
    state: Mutex<PipeState>,
}

#[derive(Default)]
struct PipeState {
    /// Pieces with the time of their arrival, in order.
    pieces: VecDeque<(Duration, VecDeque<u8>)>,
    len: usize,
    /// Where everything written goes as well.
    copy: Option<CopiedBytes>,
    /// Bytes that are not lost; `None` for all.
    kept: Option<usize>,
    /// When the end of the stream arrives.
    end: Option<Duration>,
    /// The connection was reset, or refused; what has arrived can still be read.
    is_reset: bool,
    /// There was no listener.
    is_refused: bool,
    /// The error was given to the reader's side.
    is_reset_told: bool,
    /// The reader shut its side down: reads end at once.
    is_read_shut: bool,
    /// The reader is gone.
    is_reader_gone: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// What a reader finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Bytes,
    End,
    Reset,
    Nothing,
}

impl Pipe {
    pub(super) fn new(core: Arc<Core>) -> Arc<Self> {
        Arc::new(Self {
            core,
            state: Mutex::default(),
        })
    }

    /// Takes bytes out, or with `is_peek` only checks them: all that have arrived.
    pub(super) fn read(&self, buf: &mut [u8], is_peek: bool) -> io::Result<usize> {
        let limit = match is_peek {
            true => buf.len(),
            false => self.limit(buf.len()),
        };
        let now = self.core.elapsed();
        let mut state = self.state();
        match state.found(now) {
            Found::Nothing => return Err(io::ErrorKind::WouldBlock.into()),
            Found::End => return Ok(0),
            Found::Reset => {
                state.is_reset_told = true;
                return Err(state.reset_error());
            }
            Found::Bytes => {}
        }
        let arrived = state.pieces.iter().take_while(|(at, _)| *at <= now);
        let bytes = arrived.flat_map(|(_, piece)| piece.iter());
        let mut count = 0;
        for (to, byte) in buf.iter_mut().take(limit).zip(bytes) {
            *to = *byte;
            count += 1;
        }
        if is_peek {
            return Ok(count);
        }
        let mut left = count;
        while let Some((_, piece)) = state.pieces.front_mut().filter(|_| left > 0) {
            let part = left.min(piece.len());
            piece.drain(..part);
            left -= part;
            if piece.is_empty() {
                state.pieces.pop_front();
            }
        }
        state.len -= count;
        let writer = state.writer.take();
        drop(state);
        wake(writer);
        Ok(count)
    }

    pub(super) fn write(self: &Arc<Self>, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        let wanted = bufs.iter().map(|buf| buf.len()).sum();
        self.write_at_most(bufs, wanted, self.limit(wanted))
    }

    /// Writes the data of a packet. Returns how much, and when it arrives.
    pub(super) fn write_packet(self: &Arc<Self>, data: &[u8]) -> io::Result<(usize, Duration)> {
        let count = self.write_at_most(&[io::IoSlice::new(data)], data.len(), data.len())?;
        let last = self.state().pieces.back().map(|(at, _)| *at);
        Ok((count, last.unwrap_or_else(|| self.core.elapsed())))
    }

    fn write_at_most(
        self: &Arc<Self>,
        bufs: &[io::IoSlice<'_>],
        wanted: usize,
        limit: usize,
    ) -> io::Result<usize> {
        let travel = self.core.options.latency + self.jitter();
        let now = self.core.elapsed();
        let mut state = self.state();
        if state.is_reset || state.end.is_some() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if wanted == 0 {
            return Ok(0);
        }
        if state.is_reader_gone {
            // As TCP: the first write after the peer has closed is answered with a reset.
            state.is_reset = true;
            return Ok(wanted);
        }
        let space = self.core.options.capacity.saturating_sub(state.len);
        if space == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let bytes = bufs.iter().flat_map(|buf| buf.iter().copied());
        let mut piece: VecDeque<u8> = bytes.take(limit.min(space)).collect();
        let count = piece.len();
        let at = state.after_the_last(now + travel);
        if let Some(copy) = &state.copy {
            let mut copy = copy.lock().unwrap_or_else(PoisonError::into_inner);
            copy.extend(&piece);
        }
        if let Some(kept) = &mut state.kept {
            piece.truncate(*kept);
            *kept -= piece.len();
            if *kept == 0 {
                state.end = Some(at);
            }
        }
        state.len += piece.len();
        if !piece.is_empty() {
            state.pieces.push_back((at, piece));
        }
        drop(state);
        self.deliver(at);
        Ok(count)
    }

    /// Copies what is written from now on.
    pub(super) fn copy(&self, copy: CopiedBytes) {
        self.state().copy = Some(copy);
    }

    /// Loses everything behind the next bytes: there the stream ends for the reader.
    pub(super) fn truncate(&self, len: usize) {
        self.state().kept = Some(len);
    }

    /// Ends the stream behind what was written.
    pub(super) fn finish(self: &Arc<Self>) {
        let at = self.core.elapsed() + self.core.options.latency;
        let mut state = self.state();
        if state.end.is_some() || state.is_reset {
            return;
        }
        let at = state.after_the_last(at);
        state.end = Some(at);
        let writer = state.writer.take();
        drop(state);
        wake(writer);
        self.deliver(at);
    }

    /// Breaks the connection, for reader and writer. What is on its way is lost.
    pub(super) fn reset(&self) {
        let now = self.core.elapsed();
        let mut state = self.state();
        state.is_reset = true;
        let arrived = state.pieces.partition_point(|(at, _)| *at <= now);
        let lost = state.pieces.split_off(arrived);
        state.len -= lost.iter().map(|(_, piece)| piece.len()).sum::<usize>();
        let wakers = (state.reader.take(), state.writer.take());
        drop(state);
        wake(wakers.0.into_iter().chain(wakers.1));
    }

    pub(super) fn is_reset(&self) -> bool {
        self.state().is_reset
    }

    /// There is no listener for the connection.
    pub(super) fn refuse(&self) {
        self.state().is_refused = true;
        self.reset();
    }

    pub(super) fn shut_reading(&self) {
        let mut state = self.state();
        state.is_read_shut = true;
        let reader = state.reader.take();
        drop(state);
        wake(reader);
    }

    /// The reader closed. Says whether it left something unread.
    pub(super) fn leave_reading(&self) -> bool {
        let mut state = self.state();
        state.is_reader_gone = true;
        let has_unread = state.len > 0;
        let writer = state.writer.take();
        drop(state);
        wake(writer);
        has_unread
    }

    pub(super) fn is_readable(&self) -> bool {
        self.state().found(self.core.elapsed()) != Found::Nothing
    }

    pub(super) fn is_writable(&self) -> bool {
        let state = self.state();
        state.is_broken() || state.len < self.core.options.capacity
    }

    /// Whether writes fail.
    pub(super) fn is_broken(&self) -> bool {
        self.state().is_broken()
    }

    pub(super) fn set_reader(&self, waker: &Waker) {
        let waker = Some(waker.clone());
        let old = std::mem::replace(&mut self.state().reader, waker);
        drop(old);
    }

    pub(super) fn set_writer(&self, waker: &Waker) {
        let waker = Some(waker.clone());
        let old = std::mem::replace(&mut self.state().writer, waker);
        drop(old);
    }

    pub(super) fn wake_writer(&self) {
        let writer = self.state().writer.take();
        wake(writer);
    }

    pub(super) fn wake_reader(&self) {
        let reader = self.state().reader.take();
        wake(reader);
    }

    /// The reset, if it was not reported yet.
    pub(super) fn take_error(&self) -> Option<io::Error> {
        let mut state = self.state();
        let is_news = state.is_reset && !std::mem::replace(&mut state.is_reset_told, true);
        is_news.then(|| state.reset_error())
    }

    fn deliver(self: &Arc<Self>, at: Duration) {
        if at <= self.core.elapsed() {
            self.wake_reader();
        } else {
            self.core.set_alarm(at, Alarm::Deliver(Arc::clone(self)));
        }
    }

    /// How much one call moves of what it could.
    fn limit(&self, len: usize) -> usize {
        match self.core.options.fragment {
            Some(most) if len > 0 => len.min(1 + self.core.below(most)),
            _ => len,
        }
    }

    fn jitter(&self) -> Duration {
        let most = usize::try_from(self.core.options.jitter.as_nanos()).unwrap_or(usize::MAX);
        Duration::from_nanos(u64::try_from(self.core.below(most)).unwrap_or(0))
    }

    fn state(&self) -> MutexGuard<'_, PipeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PipeState {
    fn found(&self, now: Duration) -> Found {
        let has_arrived = |at: Duration| at <= now;
        if self.is_read_shut {
            Found::End
        } else if self.pieces.front().is_some_and(|(at, _)| has_arrived(*at)) {
            Found::Bytes
        } else if self.is_reset {
            Found::Reset
        } else if self.pieces.is_empty() && self.end.is_some_and(has_arrived) {
            Found::End
        } else {
            Found::Nothing
        }
    }

    fn is_broken(&self) -> bool {
        self.is_reset || self.end.is_some() || self.is_reader_gone
    }

    fn reset_error(&self) -> io::Error {
        match self.is_refused {
            true => io::ErrorKind::ConnectionRefused.into(),
            false => io::ErrorKind::ConnectionReset.into(),
        }
    }

    /// Bytes do not overtake each other.
    fn after_the_last(&self, at: Duration) -> Duration {
        self.pieces.back().map_or(at, |(last, _)| at.max(*last))
    }
}

/// Outside of any lock: a waker may do anything.
fn wake(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}
