//! The writing half of an SMC stream.

use std::io::IoSlice;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use smc_wire::cdc::ConsumerWord;

use super::conn::{Conn, len_u32, len_usize};
use super::poll::{Half, poll_until};
use super::spin::Spin;
use crate::device::SubmitError;
use crate::error::Error;
use crate::mem::sync::Ordering;
use crate::proto::conn::SendHalf;

/// Writes into the peer's element.
#[derive(Debug)]
pub(crate) struct Sender {
    conn: Arc<Conn>,
    half: SendHalf,
    /// The peer's consumer word as it was looked at last.
    seen: u64,
    /// The peer was told that we wait for space.
    blocked: bool,
    spin: Spin,
}

impl Sender {
    pub(crate) fn new(conn: Arc<Conn>, polling: Duration) -> Self {
        Self {
            half: SendHalf::new(conn.peer_ring()),
            conn,
            seen: 0,
            blocked: false,
            spin: Spin::new(polling),
        }
    }

    /// Writes what there is space for: `None` if there is none now.
    pub(crate) fn try_write(&mut self, bufs: &[IoSlice<'_>]) -> Result<Option<usize>, Error> {
        let space = self.look()?;
        let wanted: usize = bufs.iter().map(|buf| buf.len()).sum();
        if wanted == 0 {
            return Ok(Some(0));
        }
        let count = wanted.min(len_usize(space));
        if count == 0 {
            return Ok(None);
        }
        match self.put(bufs, count) {
            Ok(()) => {}
            Err(SubmitError::WouldBlock) => return Ok(None),
            Err(error) => {
                self.conn.submit_failed(error);
                self.conn.write_end()?;
                return Err(Error::Bug("device refused data of a live connection"));
            }
        }
        let full = count == len_usize(space);
        if full != self.blocked {
            self.blocked = full;
            self.conn.say_blocked(full);
        }
        let producer = self.half.commit(len_u32(count));
        self.conn.say_producer(producer);
        Ok(Some(count))
    }

    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        let written = poll_until(self, cx, |half| half.try_write(bufs));
        if written.is_pending() && self.half.space() > 0 {
            // Space, yet nothing written: the device is busy, and no report will come of that.
            self.conn.ask_again();
        }
        written
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
        !matches!(self.look(), Ok(0))
    }

    /// Shuts writing down; what was written is in the peer's memory already.
    pub(crate) fn shutdown(&mut self) {
        self.conn.shutdown_write();
    }

    /// Space in the peer's ring, after a look at what the peer said.
    fn look(&mut self) -> Result<u32, Error> {
        let raw = self.conn.local.consumer().load(Ordering::Acquire);
        if raw != self.seen {
            let word = ConsumerWord::from_ne(raw);
            if let Err(what) = self.half.handle_consumer(word.cursor) {
                return Err(self.conn.misbehaved(what));
            }
            if !word.state_flags.is_empty() {
                self.conn.note_peer();
            }
            self.seen = raw;
        }
        if self.conn.ended() {
            self.conn.write_end()?;
        }
        Ok(self.half.space())
    }

    fn put(&self, bufs: &[IoSlice<'_>], count: usize) -> Result<(), SubmitError> {
        let ring = self.half.ring().size();
        let mut at = self.half.at();
        let mut left = count;
        for buf in bufs {
            let part = &buf[..buf.len().min(left)];
            if part.is_empty() {
                continue;
            }
            self.conn.put(at, part)?;
            left -= part.len();
            at += len_u32(part.len());
            if at >= ring {
                at -= ring;
            }
        }
        Ok(())
    }
}

impl Half for Sender {
    fn conn(&self) -> &Arc<Conn> {
        &self.conn
    }

    fn spin(&mut self) -> &mut Spin {
        &mut self.spin
    }

    fn register(&self, waker: &Waker) {
        self.conn.register_writer(waker);
    }
}
