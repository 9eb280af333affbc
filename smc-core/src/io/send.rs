//! The writing half of an SMC stream.

use std::io::IoSlice;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use smc_wire::cdc::ConsumerWord;

use super::conn::{Conn, PeerElement, len_u32, len_usize};
use super::poll::{Half, poll_until};
use super::rdma::Staged;
use super::spin::Spin;
use crate::device::SubmitError;
use crate::error::Error;
use crate::mem::sync::Ordering;
use crate::proto::conn::SendHalf;

/// The writing half.
#[derive(Debug)]
pub(crate) struct Sender {
    conn: Arc<Conn>,
    way: Way,
    spin: Spin,
}

/// Where what is written goes first.
#[derive(Debug)]
enum Way {
    /// Into the peer's element.
    Direct(Window),
    /// Into a ring of ours, from which links write it into the peer's.
    Staged(Arc<Staged>),
}

/// What the writing half knows of the peer's element.
#[derive(Debug)]
struct Window {
    half: SendHalf,
    /// The peer's consumer word as it was looked at last.
    seen: u64,
    /// The peer was told that we wait for space.
    blocked: bool,
}

impl Sender {
    pub(crate) fn new(conn: Arc<Conn>, polling: Duration) -> Self {
        let way = match conn.peer() {
            PeerElement::Mapped { ring, .. } | PeerElement::Moved { ring, .. } => {
                Way::Direct(Window {
                    half: SendHalf::new(*ring),
                    seen: 0,
                    blocked: false,
                })
            }
            PeerElement::Staged(staged) => Way::Staged(Arc::clone(staged)),
        };
        Self {
            conn,
            way,
            spin: Spin::new(polling),
        }
    }

    /// Writes what there is space for: `None` if there is none now.
    pub(crate) fn try_write(&mut self, bufs: &[IoSlice<'_>]) -> Result<Option<usize>, Error> {
        let space = len_usize(self.look()?);
        let wanted: usize = bufs.iter().map(|buf| buf.len()).sum();
        if wanted == 0 {
            return Ok(Some(0));
        }
        match &mut self.way {
            _ if space == 0 => Ok(None),
            Way::Direct(window) => window.write(&self.conn, bufs, wanted.min(space), space),
            Way::Staged(staged) => match staged.write(bufs) {
                // The peer has closed this moment.
                0 => self.conn.write_end().map(|()| None),
                count => Ok(Some(count)),
            },
        }
    }

    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        let written = poll_until(self, cx, |half| half.try_write(bufs));
        match &self.way {
            // Space, yet nothing written: the device is busy, and no report will come of that.
            Way::Direct(window) if written.is_pending() && window.half.space() > 0 => {
                self.conn.ask_again();
            }
            _ => {}
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

    /// Shuts writing down. The peer hears of it behind what was written.
    pub(crate) fn shutdown(&mut self) {
        self.conn.shutdown_write();
    }

    /// Bytes that can be written now, after a look at what the peer said.
    fn look(&mut self) -> Result<u32, Error> {
        let space = match &mut self.way {
            Way::Direct(window) => window.look(&self.conn)?,
            Way::Staged(staged) => staged.space(),
        };
        if self.conn.ended() {
            self.conn.write_end()?;
        }
        Ok(space)
    }
}

impl Window {
    /// Space in the peer's ring.
    fn look(&mut self, conn: &Conn) -> Result<u32, Error> {
        let raw = conn.local.consumer().load(Ordering::Acquire);
        if raw != self.seen {
            let word = ConsumerWord::from_ne(raw);
            if let Err(what) = self.half.handle_consumer(word.cursor) {
                return Err(conn.misbehaved(what));
            }
            if !word.state_flags.is_empty() {
                conn.note_peer();
            }
            self.seen = raw;
        }
        Ok(self.half.space())
    }

    /// Writes `count` bytes, for which there is space.
    fn write(
        &mut self,
        conn: &Conn,
        bufs: &[IoSlice<'_>],
        count: usize,
        space: usize,
    ) -> Result<Option<usize>, Error> {
        match self.put(conn, bufs, count) {
            Ok(()) => {}
            Err(SubmitError::WouldBlock) => return Ok(None),
            Err(error) => {
                conn.submit_failed(error);
                conn.write_end()?;
                return Err(Error::Bug("device refused data of a live connection"));
            }
        }
        let full = count == space;
        if full != self.blocked {
            self.blocked = full;
            conn.say_blocked(full);
        }
        let producer = self.half.commit(len_u32(count));
        conn.say_producer(producer);
        Ok(Some(count))
    }

    fn put(&self, conn: &Conn, bufs: &[IoSlice<'_>], count: usize) -> Result<(), SubmitError> {
        let ring = self.half.ring().size();
        let mut at = self.half.at();
        let mut left = count;
        for buf in bufs {
            let part = &buf[..buf.len().min(left)];
            if part.is_empty() {
                continue;
            }
            conn.put(at, part)?;
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
