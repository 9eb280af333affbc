//! The reading task of one end.

use std::io::{self, IoSliceMut};
use std::task::{Context, Poll};

use super::ends::Reading;
use super::oracle::{Oracle, Progress, SideTask};
use super::plan::{Plan, Shape, size};
use super::retained_guards::RetainedGuards;
use super::side::{limited, rest};
use crate::Rng;

/// Reads until the end or, with a number, for that many operations.
pub(super) struct Reader<'o> {
    oracle: &'o Oracle,
    side: usize,
    rng: Rng,
    scale: usize,
    left: Option<usize>,
    /// Waits never longer than a few polls: there is only one task for both directions.
    is_hasty: bool,
    /// Guards that are still held.
    guards: RetainedGuards<'o>,
}

impl<'o> Reader<'o> {
    pub(super) fn new(oracle: &'o Oracle, side: usize, plan: &Plan) -> Self {
        Self {
            guards: RetainedGuards::new(oracle, side),
            oracle,
            side,
            rng: Rng::new(plan.rng.clone().bits() ^ 1),
            scale: plan.scale,
            left: plan.reads,
            is_hasty: plan.shape == Shape::Whole,
        }
    }

    /// Everything, in a task of its own. Returns what is held in the end.
    pub(super) async fn run(mut self, end: &mut impl Reading) -> RetainedGuards<'o> {
        while self.step(end).await != Some(Progress::Ended) {}
        self.oracle.doing(self.side, SideTask::Reader, "done");
        self.oracle.reader_left(self.side, self.left.is_some());
        self.guards
    }

    /// Lets go of all guards, because the task waits for more outside of here.
    pub(super) fn let_go(&mut self) {
        while self.guards.release_one(&mut self.rng) {}
    }

    /// What is held in the end.
    pub(super) fn into_guards(self) -> RetainedGuards<'o> {
        self.guards
    }

    /// One operation; `None` if it was dropped while it waited.
    pub(super) async fn step(&mut self, end: &mut impl Reading) -> Option<Progress> {
        if self.left == Some(0) || self.oracle.is_broken() {
            return Some(Progress::Ended);
        }
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        let is_hasty = self.is_hasty || self.rng.chance(200);
        let polls = is_hasty.then(|| 1 + self.rng.below(3));
        if self.rng.chance(200) {
            self.guards.release_one(&mut self.rng);
        }
        match self.rng.below(15) {
            0..=3 => self.read(end, polls).await,
            4 => self.read_vectored(end, polls).await,
            5 | 6 => self.fill_buf(end, polls).await,
            7 => self.peek(end, polls).await,
            8 => Some(self.try_read(end, "try_read")),
            9 => Some(self.try_several(end)),
            10 => self.readable(end, polls).await,
            11..=13 => self.guard(end, polls).await,
            _ => {
                rest(self.rng.below(20)).await;
                Some(Progress::Open)
            }
        }
    }

    async fn read(&mut self, end: &mut impl Reading, polls: Option<usize>) -> Option<Progress> {
        let (oracle, side) = (self.oracle, self.side);
        let mut buf = self.buffer();
        self.wait("read", polls, |cx| {
            let result = end.poll_read(cx, &mut [IoSliceMut::new(&mut buf)]);
            result.map(|result| judge(oracle, side, "read", &buf, result))
        })
        .await
    }

    async fn read_vectored(
        &mut self,
        end: &mut impl Reading,
        polls: Option<usize>,
    ) -> Option<Progress> {
        let (oracle, side) = (self.oracle, self.side);
        let split = self.rng.below(100);
        let mut buf = self.buffer();
        self.wait("read_vectored", polls, |cx| {
            let middle = buf.len() * split / 100;
            let (one, two) = buf.split_at_mut(middle);
            let mut bufs = [
                IoSliceMut::new(one),
                IoSliceMut::new(&mut []),
                IoSliceMut::new(two),
            ];
            let result = end.poll_read(cx, &mut bufs);
            result.map(|result| judge(oracle, side, "read_vectored", &buf, result))
        })
        .await
    }

    async fn fill_buf(&mut self, end: &mut impl Reading, polls: Option<usize>) -> Option<Progress> {
        let (oracle, side) = (self.oracle, self.side);
        let share = self.rng.below(7);
        let wrong = [1 + self.rng.below(100_000), usize::MAX][self.rng.below(2)];
        let mut buf = self.buffer();
        self.wait("fill_buf", polls, |cx| {
            let filled = end.poll_fill(cx, &mut |bytes| {
                // Nothing, a part, or everything; or more than that, which is everything as well.
                let taken = bytes.len() * share.min(3) / 3;
                oracle.seen(side, bytes, taken);
                match share {
                    5.. => bytes.len().saturating_add(wrong),
                    _ => taken,
                }
            });
            match filled {
                None => {
                    let result = end.poll_read(cx, &mut [IoSliceMut::new(&mut buf)]);
                    result.map(|result| judge(oracle, side, "read", &buf, result))
                }
                Some(filled) => {
                    filled.map(|result| oracle.read(side, "fill_buf", usize::MAX, &result))
                }
            }
        })
        .await
    }

    async fn guard(&mut self, end: &mut impl Reading, polls: Option<usize>) -> Option<Progress> {
        let (oracle, side) = (self.oracle, self.side);
        let mut buf = self.buffer();
        let at = oracle.read_position(side);
        let taken = self
            .wait("guard", polls, |cx| match end.poll_guard(cx, buf.len()) {
                None => {
                    let result = end.poll_read(cx, &mut [IoSliceMut::new(&mut buf)]);
                    result.map(|result| (judge(oracle, side, "read", &buf, result), None))
                }
                Some(taken) => taken.map(|taken| {
                    let bytes = taken.as_deref().unwrap_or_default();
                    oracle.seen(side, bytes, bytes.len());
                    let count = taken.as_ref().map(|guard| guard.len());
                    let count = count.map_err(|error| io::Error::from(error.kind()));
                    let verdict = oracle.read(side, "guard", buf.len(), &count);
                    (verdict, taken.ok())
                }),
            })
            .await;
        let (verdict, guard) = taken?;
        if let Some(guard) = guard {
            self.guards.take(at, guard, &mut self.rng);
        }
        Some(verdict)
    }

    async fn peek(&mut self, end: &mut impl Reading, polls: Option<usize>) -> Option<Progress> {
        let (oracle, side) = (self.oracle, self.side);
        let mut buf = self.buffer();
        self.wait("peek", polls, |cx| {
            end.poll_peek(cx, &mut buf).map(|result| {
                if let Ok(count) = &result {
                    oracle.seen(side, &buf[..*count], 0);
                }
                oracle.read(side, "peek", buf.len(), &result)
            })
        })
        .await
    }

    fn try_read(&mut self, end: &impl Reading, how: &str) -> Progress {
        let (oracle, side) = (self.oracle, self.side);
        let mut buf = self.buffer();
        let result = end.try_read(&mut [IoSliceMut::new(&mut buf)]);
        judge(oracle, side, how, &buf, result)
    }

    fn try_several(&mut self, end: &impl Reading) -> Progress {
        let (oracle, side) = (self.oracle, self.side);
        if self.rng.chance(500) {
            let split = self.rng.below(100);
            let mut buf = self.buffer();
            let middle = buf.len() * split / 100;
            let (one, two) = buf.split_at_mut(middle);
            let result = end.try_read(&mut [IoSliceMut::new(one), IoSliceMut::new(two)]);
            return judge(oracle, side, "try_read_vectored", &buf, result);
        }
        let limit = size(&mut self.rng, self.scale);
        let mut collected = Vec::with_capacity(3 + limit.max(1));
        collected.extend([0xaa; 3]);
        let limit = collected.capacity() - 3;
        let result = end.try_read_buf(&mut collected);
        let count = *result.as_ref().unwrap_or(&0);
        oracle.require(collected.len() == 3 + count, || {
            format!(
                "try_read_buf gives {count} and appends {}",
                collected.len() - 3
            )
        });
        oracle.seen(side, &collected[3..], count);
        oracle.read(side, "try_read_buf", limit, &result)
    }

    async fn readable(&mut self, end: &mut impl Reading, polls: Option<usize>) -> Option<Progress> {
        {
            let mut readable = end.readable();
            let ready = self
                .wait("readable", polls, |cx| readable.as_mut().poll(cx))
                .await?;
            self.oracle
                .require(ready.is_ok(), || format!("readable: {ready:?}"));
        }
        let mut buf = self.buffer();
        buf.push(0);
        let result = end.try_read(&mut [IoSliceMut::new(&mut buf)]);
        let would_block = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
        let has_waited = result.as_ref().is_err_and(would_block);
        self.oracle
            .require(!has_waited, || "readable, but a read would wait".into());
        Some(judge(
            self.oracle,
            self.side,
            "try_read when readable",
            &buf,
            result,
        ))
    }

    /// Polls until ready, or a limited number of times. Lets go of guards while it waits: what it
    /// waits for may need their space.
    async fn wait<T>(
        &mut self,
        what: &str,
        polls: Option<usize>,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Option<T> {
        self.oracle.doing(self.side, SideTask::Reader, what);
        let (guards, rng) = (&mut self.guards, &mut self.rng);
        let poll = |cx: &mut Context<'_>| {
            let result = poll(cx);
            if result.is_pending() && guards.release_one(rng) {
                cx.waker().wake_by_ref();
            }
            result
        };
        let result = limited(poll, polls).await;
        if result.is_none() {
            self.oracle.cancelled(self.side, what);
        }
        result
    }

    /// A buffer of random length.
    fn buffer(&mut self) -> Vec<u8> {
        vec![0x55; size(&mut self.rng, self.scale)]
    }
}

fn judge(
    oracle: &Oracle,
    side: usize,
    how: &str,
    buf: &[u8],
    result: io::Result<usize>,
) -> Progress {
    if let Ok(count) = &result {
        oracle.seen(side, &buf[..(*count).min(buf.len())], *count);
    }
    oracle.read(side, how, buf.len(), &result)
}
