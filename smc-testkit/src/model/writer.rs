//! The writing task of one end.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use super::ends::{Ask, Fill, Writing};
use super::oracle::{Oracle, Progress, SideTask, byte_at};
use super::plan::{Finish, Plan, Shape, size};
use super::side::{limited, rest};
use crate::Rng;

/// Writes for a number of operations, then finishes.
pub(super) struct Writer<'o> {
    oracle: &'o Oracle,
    side: usize,
    rng: Rng,
    scale: usize,
    left: usize,
    finish: Finish,
    /// Waits never longer than a few polls: there is only one task for both directions.
    is_hasty: bool,
}

impl<'o> Writer<'o> {
    pub(super) fn new(oracle: &'o Oracle, side: usize, plan: &Plan) -> Self {
        Self {
            oracle,
            side,
            rng: Rng::new(plan.rng.clone().bits() ^ 2),
            scale: plan.scale,
            left: plan.writes,
            finish: plan.finish,
            is_hasty: plan.shape == Shape::Whole,
        }
    }

    /// Everything, in a task of its own.
    pub(super) async fn run(mut self, end: &mut impl Writing) {
        while self.step(end).await != Some(Progress::Ended) {}
        self.finish(end).await;
        self.oracle.doing(self.side, SideTask::Writer, "done");
    }

    /// One operation; `None` if it was dropped while it waited.
    pub(super) async fn step(&mut self, end: &mut impl Writing) -> Option<Progress> {
        if self.left == 0 || self.oracle.is_broken() {
            return Some(Progress::Ended);
        }
        self.left -= 1;
        let is_hasty = self.is_hasty || self.rng.chance(150);
        let polls = is_hasty.then(|| 1 + self.rng.below(3));
        match self.rng.below(13) {
            0..=3 => self.write(end, polls).await,
            4 | 5 => self.write_vectored(end, polls).await,
            6 => Some(self.try_write(end)),
            7 => self.writable(end, polls).await,
            8 => {
                let flushed = self.wait("flush", polls, |cx| end.poll_flush(cx)).await?;
                self.oracle
                    .require(flushed.is_ok(), || format!("flush: {flushed:?}"));
                Some(Progress::Open)
            }
            9..=11 => self.put(end, polls).await,
            _ => {
                rest(self.rng.below(20)).await;
                Some(Progress::Open)
            }
        }
    }

    /// Shuts writing down as planned, and checks that it is.
    pub(super) async fn finish(&mut self, end: &mut impl Writing) {
        if self.finish == Finish::Nothing {
            return;
        }
        self.oracle.doing(self.side, SideTask::Writer, "shutdown");
        // Twice is no error.
        for _ in 0..=self.rng.below(2) {
            self.oracle.shut(self.side);
            let direct = if self.finish == Finish::Shutdown {
                end.shutdown()
            } else {
                None
            };
            let result = match direct {
                Some(result) => result,
                // Dropped, it has shut writing down all the same.
                None => {
                    let polls = self.is_hasty.then_some(3);
                    let closed = self.wait("close", polls, |cx| end.poll_close(cx));
                    closed.await.unwrap_or(Ok(()))
                }
            };
            self.oracle.shut_down(self.side, &result);
        }
        let result = self.attempt(end, "try_write after shutdown", &[1, 2, 3]);
        self.oracle.require(result == Progress::Ended, || {
            "a write after shutdown is taken".into()
        });
    }

    async fn write(&mut self, end: &mut impl Writing, polls: Option<usize>) -> Option<Progress> {
        let (oracle, side) = (self.oracle, self.side);
        let data = self.data();
        self.wait("write", polls, |cx| {
            oracle.offer(side, data.len());
            let result = end.poll_write(cx, &[IoSlice::new(&data)]);
            record_result(oracle, side, "write", data.len(), result)
        })
        .await
    }

    async fn write_vectored(
        &mut self,
        end: &mut impl Writing,
        polls: Option<usize>,
    ) -> Option<Progress> {
        let (oracle, side) = (self.oracle, self.side);
        let data = self.data();
        let (one, rest) = data.split_at(self.rng.below(data.len() + 1));
        let (two, three) = rest.split_at(self.rng.below(rest.len() + 1));
        let bufs = [one, &[], two, three].map(IoSlice::new);
        self.wait("write_vectored", polls, |cx| {
            oracle.offer(side, data.len());
            let result = end.poll_write(cx, &bufs);
            record_result(oracle, side, "write_vectored", data.len(), result)
        })
        .await
    }

    async fn put<W: Writing>(&mut self, end: &mut W, polls: Option<usize>) -> Option<Progress> {
        let (oracle, side) = (self.oracle, self.side);
        // On TCP a commit that is dropped may have written a part, and does not report how much.
        if !W::RESERVES || !oracle.is_smc {
            return self.write(end, polls).await;
        }
        let fill = match self.rng.below(7) {
            0 | 1 => Fill::Pieces,
            2 | 3 => Fill::Stream,
            4 | 5 => Fill::Slice,
            _ => Fill::Abandon,
        };
        let data = self.data();
        let most = 1 + self.rng.below(data.len() + 1);
        let len = match fill {
            Fill::Abandon => 0,
            _ => data.len(),
        };
        let ask = match self.rng.below(4) {
            0 | 1 => Ask::Any,
            2 => Ask::Exact,
            _ => Ask::Half,
        };
        let mut future = end.put(&data, ask, most, fill);
        self.wait("put", polls, |cx| {
            oracle.offer(side, len);
            match future.as_mut().poll(cx) {
                // Nothing was asked for, or more than can be.
                Poll::Ready(Ok(0)) => {
                    oracle.withdraw(side);
                    Poll::Ready(Progress::Open)
                }
                result => record_result(oracle, side, "put", len, result),
            }
        })
        .await
    }

    fn try_write(&mut self, end: &impl Writing) -> Progress {
        let data = self.data();
        self.attempt(end, "try_write", &data)
    }

    async fn writable(&mut self, end: &mut impl Writing, polls: Option<usize>) -> Option<Progress> {
        {
            let mut writable = end.writable();
            let ready = self
                .wait("writable", polls, |cx| writable.as_mut().poll(cx))
                .await?;
            self.oracle
                .require(ready.is_ok(), || format!("writable: {ready:?}"));
        }
        let mut data = self.data();
        if data.is_empty() {
            data.push(byte_at(self.side, self.oracle.write_position(self.side)));
        }
        let (oracle, side) = (self.oracle, self.side);
        oracle.offer(side, data.len());
        let result = end.try_write(&[IoSlice::new(&data)]);
        let would_block = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
        let has_waited = result.as_ref().is_err_and(would_block);
        oracle.require(!has_waited || !oracle.rules.is_exact, || {
            "writable, but a write would wait".into()
        });
        Some(oracle.written(side, "try_write when writable", data.len(), &result))
    }

    fn attempt(&self, end: &impl Writing, how: &str, data: &[u8]) -> Progress {
        self.oracle.offer(self.side, data.len());
        let (one, two) = data.split_at(data.len() / 2);
        let result = if data.len() % 2 == 0 {
            end.try_write(&[IoSlice::new(one), IoSlice::new(two)])
        } else {
            end.try_write(&[IoSlice::new(data)])
        };
        self.oracle.written(self.side, how, data.len(), &result)
    }

    /// Polls until ready, a limited number of times, or until the reader of this side has left.
    async fn wait<T>(
        &self,
        what: &str,
        polls: Option<usize>,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Option<T> {
        self.oracle.doing(self.side, SideTask::Writer, what);
        let poll = |cx: &mut Context<'_>| match poll(cx) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => self.oracle.poll_stopping(self.side, cx).map(|()| None),
        };
        let result = limited(poll, polls).await.flatten();
        if result.is_none() {
            self.oracle.cancelled(self.side, what);
        }
        result
    }

    /// The next bytes of this direction, a random number of them.
    fn data(&mut self) -> Vec<u8> {
        let at = self.oracle.write_position(self.side);
        let len = size(&mut self.rng, self.scale) as u64;
        (at..at + len).map(|at| byte_at(self.side, at)).collect()
    }
}

fn record_result(
    oracle: &Oracle,
    side: usize,
    how: &str,
    len: usize,
    result: Poll<io::Result<usize>>,
) -> Poll<Progress> {
    match result {
        Poll::Ready(result) => Poll::Ready(oracle.written(side, how, len, &result)),
        Poll::Pending => {
            oracle.withdraw(side);
            Poll::Pending
        }
    }
}
