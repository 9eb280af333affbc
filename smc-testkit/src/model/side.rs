//! The life of one end, from the first operation until it is dropped.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use smc::Interest;
use smc::Stream;
use smc_core::runtime::Runtime;

use super::kept::Kept;
use super::oracle::{Oracle, Task, Verdict};
use super::plan::{Plan, Shape};
use super::reader::Reader;
use super::writer::Writer;
use crate::Rng;

/// Uses a stream as planned, and drops it.
pub(super) async fn live(
    mut stream: Stream,
    side: usize,
    mut plan: Plan,
    oracle: Arc<Oracle>,
    runtime: Arc<dyn Runtime>,
) {
    if plan.has_zero_linger {
        let set = stream.set_zero_linger();
        oracle.require(set.is_ok(), || format!("set_zero_linger: {set:?}"));
    }
    let linger = plan.has_zero_linger;
    // Outlives the stream, unless that is in two tasks.
    let mut kept = None;
    match plan.shape {
        Shape::Owned => {
            let (mut read, mut write) = stream.into_split();
            let (reading, writing) = (plan.clone(), plan);
            let judge = Arc::clone(&oracle);
            runtime.spawn(Box::pin(async move {
                let kept = reader(&judge, side, &reading).run(&mut read).await;
                judge.drop_half(side, false, linger);
                drop(read);
                drop(kept);
                judge.half_over(side);
            }));
            writer(&oracle, side, &writing).run(&mut write).await;
            oracle.drop_half(side, true, linger);
            drop(write);
            oracle.half_over(side);
            return;
        }
        Shape::Shared => {
            let mut stream = Arc::new(stream);
            let (reading, writing) = (plan.clone(), plan);
            let (judge, mut same) = (Arc::clone(&oracle), Arc::clone(&stream));
            runtime.spawn(Box::pin(async move {
                let _none = reader(&judge, side, &reading).run(&mut same).await;
                judge.drop_half(side, false, linger);
                drop(same);
                judge.half_over(side);
            }));
            writer(&oracle, side, &writing).run(&mut stream).await;
            oracle.drop_half(side, false, linger);
            drop(stream);
            oracle.half_over(side);
            return;
        }
        Shape::Whole => kept = Some(whole(&mut stream, side, &mut plan, &oracle).await),
        Shape::Split => {
            let (mut read, mut write) = stream.split();
            let reading = reader(&oracle, side, &plan).run(&mut read);
            let writing = writer(&oracle, side, &plan).run(&mut write);
            both(async { kept = Some(reading.await) }, writing).await;
        }
        Shape::Reunited => {
            let (mut read, mut write) = stream.into_split();
            let reading = reader(&oracle, side, &plan).run(&mut read);
            let writing = writer(&oracle, side, &plan).run(&mut write);
            both(async { kept = Some(reading.await) }, writing).await;
            match write.reunite(read) {
                Ok(whole) => stream = whole,
                Err(error) => return oracle.require(false, || format!("reunite: {error}")),
            }
        }
    }
    oracle.close(side, linger);
    drop(stream);
    drop(kept);
    oracle.side_over(side);
}

/// Reads and writes in one task, in turn, and waits only for both directions at once.
async fn whole<'o>(
    stream: &mut Stream,
    side: usize,
    plan: &mut Plan,
    oracle: &'o Oracle,
) -> Kept<'o> {
    let mut reader = reader(oracle, side, plan).hasty();
    let mut writer = writer(oracle, side, plan).hasty();
    let (mut reads, mut writes) = (true, true);
    while reads || writes {
        let mut has_done = false;
        if reads && plan.rng.chance(600) {
            let step = reader.step(stream).await;
            has_done |= step.is_some();
            reads = step != Some(Verdict::Over);
        }
        if writes && plan.rng.chance(600) {
            let step = writer.step(stream).await;
            has_done |= step.is_some();
            // Who reads no more must not wait for space either.
            writes = step != Some(Verdict::Over) && (reads || step.is_some());
            if !writes {
                writer.finish(stream).await;
            }
        }
        if !has_done && reads {
            reader.let_go();
            oracle.doing(side, Task::Reader, &format!("ready(read, write: {writes})"));
            let is_ready = ready_for(stream, writes, plan.rng.chance(500)).await;
            oracle.require(is_ready.is_ok(), || format!("ready: {is_ready:?}"));
        }
    }
    oracle.doing(side, Task::Reader, "done");
    reader.into_kept()
}

/// Waits until reading, or either direction, is ready, in one of two ways.
async fn ready_for(stream: &Stream, writes: bool, is_polled: bool) -> std::io::Result<()> {
    if is_polled {
        return poll_fn(|cx| {
            if stream.poll_read_ready(cx)?.is_ready() {
                return Poll::Ready(Ok(()));
            }
            if writes {
                stream.poll_write_ready(cx)
            } else {
                Poll::Pending
            }
        })
        .await;
    }
    let readable = Interest::READABLE;
    let interest = if writes {
        readable | Interest::WRITABLE
    } else {
        readable
    };
    stream.ready(interest).await.map(|_| ())
}

fn reader<'o>(oracle: &'o Oracle, side: usize, plan: &Plan) -> Reader<'o> {
    let rng = Rng::new(plan.rng.clone().bits() ^ 1);
    Reader::new(oracle, side, rng, plan.scale, plan.reads)
}

fn writer<'o>(oracle: &'o Oracle, side: usize, plan: &Plan) -> Writer<'o> {
    let rng = Rng::new(plan.rng.clone().bits() ^ 2);
    Writer::new(oracle, side, rng, plan.scale, (plan.writes, plan.finish))
}

/// Runs two futures to their ends.
async fn both(first: impl Future<Output = ()>, second: impl Future<Output = ()>) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut has_first, mut has_second) = (false, false);
    poll_fn(|cx| {
        has_first = has_first || first.as_mut().poll(cx).is_ready();
        has_second = has_second || second.as_mut().poll(cx).is_ready();
        if has_first && has_second {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

/// Polls until ready, or for a number of times; `None` then.
pub(super) async fn limited<T>(
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    mut polls: Option<usize>,
) -> Option<T> {
    poll_fn(|cx| match (poll(cx), &mut polls) {
        (Poll::Ready(result), _) => Poll::Ready(Some(result)),
        (Poll::Pending, None) => Poll::Pending,
        (Poll::Pending, Some(0 | 1)) => Poll::Ready(None),
        (Poll::Pending, Some(left)) => {
            *left -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

/// Lets others run for a number of turns.
pub(super) async fn rest(turns: usize) {
    for _ in 0..turns {
        let mut has_been_here = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut has_been_here, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}
