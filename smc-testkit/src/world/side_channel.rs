//! A way beside TCP, in memory.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::mem::take;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use smc_core::negotiate::SideChannel;

use super::messages;

/// One end of it. What is sent arrives when it is flushed, or when this end is dropped.
#[derive(Debug)]
pub struct SideChannelPipe {
    lanes: Arc<Mutex<[Lane; 2]>>,
    /// Where this end writes; it reads the other one.
    side: usize,
    /// The client does not wait for an answer any more.
    is_withdrawn: bool,
}

#[derive(Debug, Default)]
struct Lane {
    held: Vec<u8>,
    arrived: VecDeque<u8>,
    ended: bool,
    /// Of the end that reads it.
    reader: Option<Waker>,
}

impl SideChannelPipe {
    /// Both ends.
    #[must_use]
    pub fn pair() -> (Self, Self) {
        let lanes = Arc::default();
        let end = |side| Self {
            lanes: Arc::clone(&lanes),
            side,
            is_withdrawn: false,
        };
        (end(0), end(1))
    }

    /// The end of a server whose client has withdrawn its offer.
    #[must_use]
    pub fn withdrawn(mut self) -> Self {
        self.is_withdrawn = true;
        self
    }

    /// Delivers bytes at once.
    pub fn deliver(&self, bytes: &[u8]) {
        self.hold(bytes);
        self.release(false);
    }

    /// Reads exactly one message.
    pub async fn message(&self) -> Vec<u8> {
        messages::message(async |buf| self.next(buf).await).await
    }

    /// Reads everything that still comes.
    pub async fn rest(&self) -> Vec<u8> {
        let mut rest = Vec::new();
        let mut part = [0; 64];
        loop {
            match self.next(&mut part).await {
                0 => return rest,
                count => rest.extend(&part[..count]),
            }
        }
    }

    async fn next(&self, buf: &mut [u8]) -> usize {
        poll_fn(|cx| self.poll(Some(cx), buf)).await
    }

    fn hold(&self, bytes: &[u8]) {
        self.lanes.lock().expect(INTACT)[self.side]
            .held
            .extend(bytes);
    }

    fn release(&self, ended: bool) {
        let reader = {
            let lane = &mut self.lanes.lock().expect(INTACT)[self.side];
            let held = take(&mut lane.held);
            lane.arrived.extend(held);
            lane.ended |= ended;
            lane.reader.take()
        };
        reader.into_iter().for_each(Waker::wake);
    }

    /// A few bytes at a time, so that messages come in pieces.
    fn poll(&self, cx: Option<&mut Context<'_>>, buf: &mut [u8]) -> Poll<usize> {
        let lane = &mut self.lanes.lock().expect(INTACT)[1 - self.side];
        let count = buf.len().min(lane.arrived.len()).min(PIECE);
        if count == 0 && !lane.ended {
            lane.reader = cx.map(|cx| cx.waker().clone());
            return Poll::Pending;
        }
        for (to, from) in buf.iter_mut().zip(lane.arrived.drain(..count)) {
            *to = from;
        }
        Poll::Ready(count)
    }
}

impl SideChannel for SideChannelPipe {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        if self.is_withdrawn {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        self.hold(message);
        Ok(())
    }

    fn is_withdrawn(&self) -> bool {
        self.is_withdrawn
    }

    fn flush(&mut self) {
        self.release(false);
    }

    fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.poll(None, buf) {
            Poll::Ready(count) => Ok(count),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll(Some(cx), buf).map(Ok)
    }
}

impl Drop for SideChannelPipe {
    fn drop(&mut self) {
        self.release(true);
    }
}

/// Bytes that are read at a time.
const PIECE: usize = 7;

const INTACT: &str = "no call panics while it holds the lock";
