//! Instructions on the data path of a stream, counted by callgrind: the same on a busy machine as
//! on an idle one.

#![allow(unsafe_code, reason = "the promise about peers is an unsafe function")]
#![allow(
    missing_docs,
    unused_qualifications,
    clippy::unwrap_used,
    reason = "benchmark functions, and the expansion of macros"
)]

use std::hint::black_box;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_io::{AsyncRead as _, AsyncWrite as _};
use gungraun::prelude::*;
use smc::{Builder, Policy, Stream};
use smc_core::mem::{Element, Region, TrustPeers};
use smc_testkit::memory_device::MemFabric;
use smc_testkit::runtime::VirtualRuntime;

const LEN: usize = 100;

/// Two ends of a stream whose device is memory of this process. Boxed, or moving it would count.
struct Pair {
    writer: Stream,
    reader: Stream,
    runtime: VirtualRuntime,
}

impl Pair {
    /// Both ends have been used once, and `messages` are on their way.
    fn with(messages: usize, nocopy: bool) -> Box<Self> {
        let runtime = VirtualRuntime::new(1);
        let fabric = MemFabric::new(1).with_nocopy(nocopy);
        let endpoint = |name| {
            Builder::new()
                .device(fabric.device(name))
                .runtime(runtime.handle())
                .negotiation(Arc::new(smc_core::negotiate::Assume::new()))
                .policy(Policy::Require)
                .polling(Duration::ZERO)
                // SAFETY: the peer is the other endpoint of this pair, with streams of smc-core.
                .trust_peers(unsafe { TrustPeers::new() })
                .build()
                .unwrap()
        };
        let (client, server) = (endpoint("mem0"), endpoint("mem1"));
        let (writer, reader) = runtime.block_on(async {
            let listener = server.bind("127.0.0.1:4000").await.unwrap();
            let (writer, accepted) =
                futures_lite::future::zip(client.connect("127.0.0.1:4000"), listener.accept())
                    .await;
            (writer.unwrap(), accepted.unwrap().0)
        });
        let pair = Box::new(Self {
            writer,
            reader,
            runtime,
        });
        pair.writer.try_write(&[1; LEN]).unwrap();
        pair.reader.try_read(&mut [0; LEN]).unwrap();
        for _ in 0..messages {
            pair.writer.try_write(&[2; LEN]).unwrap();
        }
        pair
    }

    /// As with two messages, after a guard of the reader was dropped.
    fn guarded() -> Box<Self> {
        let mut pair = Self::with(3, true);
        let guard = pair.runtime.block_on(pair.reader.read_guard(LEN));
        drop(guard.unwrap());
        pair
    }
}

fn element() -> Element {
    Element::new(Region::anonymous(1 << 16)).unwrap()
}

#[library_benchmark]
#[bench::first(element())]
fn ring_write_100(element: Element) -> Element {
    black_box(&element)
        .write(black_box(64), &black_box([3; LEN]))
        .unwrap();
    element
}

#[library_benchmark]
#[bench::first(element())]
fn ring_read_100(element: Element) -> (Element, [u8; LEN]) {
    let mut to = [0; LEN];
    black_box(&element).read(black_box(64), &mut to).unwrap();
    (element, to)
}

#[library_benchmark]
#[bench::nocopy(Pair::with(0, true))]
#[bench::copy(Pair::with(0, false))]
fn stream_write_100(pair: Box<Pair>) -> Box<Pair> {
    black_box(&pair.writer)
        .try_write(&black_box([4; LEN]))
        .unwrap();
    pair
}

#[library_benchmark]
#[bench::nocopy(Pair::with(0, true))]
fn stream_poll_write_100(mut pair: Box<Pair>) -> Box<Pair> {
    let mut cx = Context::from_waker(Waker::noop());
    let written = Pin::new(&mut pair.writer).poll_write(&mut cx, &black_box([4; LEN]));
    assert!(black_box(written).is_ready());
    pair
}

// Memory of the peer, written in place and published.
#[library_benchmark]
#[bench::nocopy(Pair::with(0, true))]
fn stream_reserve_commit_100(mut pair: Box<Pair>) -> Box<Pair> {
    let mut cx = Context::from_waker(Waker::noop());
    let Poll::Ready(space) = black_box(&mut pair.writer).poll_reserve_exact(&mut cx, LEN) else {
        panic!("there is space");
    };
    let mut space = space.unwrap();
    space.as_mut_slice().fill(black_box(4));
    assert!(black_box(space.poll_commit(&mut cx, LEN)).is_ready());
    drop(space);
    pair
}

// A guard taken and released; the first guard of a stream allocates their shared state.
#[library_benchmark]
#[bench::not_the_first(Pair::guarded())]
fn stream_read_guard_100(mut pair: Box<Pair>) -> Box<Pair> {
    let mut cx = Context::from_waker(Waker::noop());
    let guard = black_box(&mut pair.reader).poll_read_guard(&mut cx, LEN);
    assert!(black_box(guard).is_ready());
    pair
}

#[library_benchmark]
#[bench::one_of_two(Pair::with(2, true))]
#[bench::the_last(Pair::with(1, true))]
fn stream_read_100(pair: Box<Pair>) -> (Box<Pair>, [u8; LEN]) {
    let mut to = [0; LEN];
    black_box(&pair.reader).try_read(&mut to).unwrap();
    (pair, to)
}

#[library_benchmark]
#[bench::one_of_two(Pair::with(2, true))]
fn stream_poll_read_100(mut pair: Box<Pair>) -> (Box<Pair>, [u8; LEN]) {
    let mut to = [0; LEN];
    let mut cx = Context::from_waker(Waker::noop());
    assert!(black_box(Pin::new(&mut pair.reader).poll_read(&mut cx, &mut to)).is_ready());
    (pair, to)
}

#[library_benchmark]
#[bench::empty(Pair::with(0, true))]
fn stream_read_nothing(pair: Box<Pair>) -> Box<Pair> {
    let read = black_box(&pair.reader).try_read(&mut [0; LEN]);
    assert!(black_box(read).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock));
    pair
}

// A poll that finds nothing and parks.
#[library_benchmark]
#[bench::empty(Pair::with(0, true))]
fn stream_poll_nothing(mut pair: Box<Pair>) -> Box<Pair> {
    let mut cx = Context::from_waker(Waker::noop());
    let read = Pin::new(&mut pair.reader).poll_read(&mut cx, &mut [0; LEN]);
    assert!(matches!(black_box(read), Poll::Pending));
    pair
}

// What a runtime does with a stream's driver when nothing has happened.
#[library_benchmark]
#[bench::empty(Pair::with(0, true))]
fn driver_idle(pair: Box<Pair>) -> Box<Pair> {
    black_box(&pair.runtime).run_for(Duration::ZERO);
    pair
}

library_benchmark_group!(
    name = hot,
    benchmarks = [
        ring_write_100,
        ring_read_100,
        stream_write_100,
        stream_poll_write_100,
        stream_reserve_commit_100,
        stream_read_guard_100,
        stream_read_100,
        stream_poll_read_100,
        stream_read_nothing,
        stream_poll_nothing,
        driver_idle
    ]
);

main!(library_benchmark_groups = hot);
