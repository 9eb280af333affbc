//! All operations of one end, from the first one until it is dropped.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_lite::future::{yield_now, zip};
use smc::{Interest, Stream};
use smc_core::runtime::Runtime;

use super::ends::{Reading, Writing};
use super::oracle::{Oracle, Progress, SideTask};
use super::plan::{Plan, Shape};
use super::reader::Reader;
use super::retained_guards::RetainedGuards;
use super::writer::Writer;

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
    let guards;
    match plan.shape {
        Shape::Owned => {
            let (read, write) = stream.into_split();
            return in_two_tasks(read, write, true, side, plan, oracle, &*runtime).await;
        }
        Shape::Shared => {
            let stream = Arc::new(stream);
            let same = Arc::clone(&stream);
            return in_two_tasks(same, stream, false, side, plan, oracle, &*runtime).await;
        }
        Shape::Whole => guards = whole(&mut stream, side, &mut plan, &oracle).await,
        Shape::Split => {
            let (mut read, mut write) = stream.split();
            let reading = Reader::new(&oracle, side, &plan).run(&mut read);
            let writing = Writer::new(&oracle, side, &plan).run(&mut write);
            (guards, ()) = zip(reading, writing).await;
        }
        Shape::Reunited => {
            let (mut read, mut write) = stream.into_split();
            let reading = Reader::new(&oracle, side, &plan).run(&mut read);
            let writing = Writer::new(&oracle, side, &plan).run(&mut write);
            (guards, ()) = zip(reading, writing).await;
            match write.reunite(read) {
                Ok(whole) => stream = whole,
                Err(error) => return oracle.require(false, || format!("reunite: {error}")),
            }
        }
    }
    oracle.close(side, linger);
    drop(stream);
    drop(guards);
    oracle.side_ended(side);
}

/// Reads in a task of its own. Dropping what is written to may shut writing down.
async fn in_two_tasks(
    mut read: impl Reading + 'static,
    mut write: impl Writing,
    is_shutting: bool,
    side: usize,
    plan: Plan,
    oracle: Arc<Oracle>,
    runtime: &dyn Runtime,
) {
    let linger = plan.has_zero_linger;
    let (judge, reading) = (Arc::clone(&oracle), plan.clone());
    runtime.spawn(Box::pin(async move {
        let guards = Reader::new(&judge, side, &reading).run(&mut read).await;
        judge.drop_half(side, false, linger);
        drop(read);
        drop(guards);
        judge.half_ended(side);
    }));
    Writer::new(&oracle, side, &plan).run(&mut write).await;
    oracle.drop_half(side, is_shutting, linger);
    drop(write);
    oracle.half_ended(side);
}

/// Reads and writes in one task, in turn, and waits only for both directions at once.
async fn whole<'o>(
    stream: &mut Stream,
    side: usize,
    plan: &mut Plan,
    oracle: &'o Oracle,
) -> RetainedGuards<'o> {
    let mut reader = Reader::new(oracle, side, plan);
    let mut writer = Writer::new(oracle, side, plan);
    let (mut reads, mut writes) = (true, true);
    while reads || writes {
        let mut has_done = false;
        if reads && plan.rng.chance(600) {
            let step = reader.step(stream).await;
            has_done |= step.is_some();
            reads = step != Some(Progress::Ended);
        }
        if writes && plan.rng.chance(600) {
            let step = writer.step(stream).await;
            has_done |= step.is_some();
            // An end that reads no more must not wait for space either.
            writes = step != Some(Progress::Ended) && (reads || step.is_some());
            if !writes {
                writer.finish(stream).await;
            }
        }
        if !has_done && reads {
            reader.let_go();
            oracle.doing(
                side,
                SideTask::Reader,
                &format!("ready(read, write: {writes})"),
            );
            let is_ready = ready_for(stream, writes, plan.rng.chance(500)).await;
            oracle.require(is_ready.is_ok(), || format!("ready: {is_ready:?}"));
        }
    }
    oracle.doing(side, SideTask::Reader, "done");
    reader.into_guards()
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
    let interest = match writes {
        true => Interest::READABLE | Interest::WRITABLE,
        false => Interest::READABLE,
    };
    stream.ready(interest).await.map(|_| ())
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
        yield_now().await;
    }
}
