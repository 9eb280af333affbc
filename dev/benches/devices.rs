//! Instructions of devices that move data, between two devices of one process.

#![allow(
    missing_docs,
    unused_qualifications,
    clippy::unwrap_used,
    reason = "benchmark functions, and the expansion of macros"
)]

use std::hint::black_box;
use std::io::IoSlice;
use std::sync::Arc;

use futures_lite::future::{block_on, or, yield_now};
use gungraun::prelude::*;
use smc_core::Domain;
use smc_core::device::{Device, Direct, Dmb, Signal};
use smc_transport_ism::{FabricAddress, IsmDevice};
use smc_transport_loop::LoopDevice;
use tempfile::TempDir;

/// A writer and the buffer of a reader that is awake. Boxed, or moving it would count.
struct Pair<D> {
    writer: D,
    buffer: Arc<dyn Dmb>,
    reader: D,
    _dir: TempDir,
}

impl<D: Device + Direct> Pair<D> {
    fn new(make: impl Fn(&TempDir) -> D) -> Box<Self> {
        let dir = TempDir::new().unwrap();
        let (writer, reader) = (make(&dir), make(&dir));
        let listening = async {
            loop {
                for device in [&writer, &reader] {
                    device.drain(&mut |_| {}).unwrap();
                }
                yield_now().await;
            }
        };
        let prepare = async {
            writer.reach(reader.gid()).await?;
            reader.register(writer.gid(), 1 << 20).await
        };
        let buffer = block_on(or(prepare, listening)).unwrap();
        let pair = Self {
            writer,
            buffer,
            reader,
            _dir: dir,
        };
        // The first write includes set-up.
        pair.put(&[1; 100], Signal::Yes);
        Box::new(pair)
    }

    fn put(&self, data: &[u8], signal: Signal) {
        let data = [IoSlice::new(data)];
        let moved =
            self.writer
                .move_data(self.reader.gid(), self.buffer.token(), 64, &data, signal);
        moved.unwrap();
    }
}

fn ism() -> Box<Pair<IsmDevice>> {
    Pair::new(|dir| {
        let place = FabricAddress::directory(dir.path()).with_len(4 << 20);
        IsmDevice::builder(place).build().unwrap()
    })
}

fn by_loop() -> Box<Pair<LoopDevice>> {
    Pair::new(|dir| {
        let device = LoopDevice::builder()
            .domain(Domain::directory(dir.path()))
            .nocopy(false);
        device.build().unwrap()
    })
}

// Payload of a stream.
#[library_benchmark]
#[bench::data(ism())]
fn ism_move_100(pair: Box<Pair<IsmDevice>>) -> Box<Pair<IsmDevice>> {
    pair.put(&black_box([2; 100]), Signal::No);
    pair
}

// A cursor, with a signal for which no task waits.
#[library_benchmark]
#[bench::cursor(ism())]
fn ism_move_8(pair: Box<Pair<IsmDevice>>) -> Box<Pair<IsmDevice>> {
    pair.put(&black_box([3; 8]), Signal::Yes);
    pair
}

#[library_benchmark]
#[bench::data(by_loop())]
fn loop_move_100(pair: Box<Pair<LoopDevice>>) -> Box<Pair<LoopDevice>> {
    pair.put(&black_box([2; 100]), Signal::No);
    pair
}

#[library_benchmark]
#[bench::cursor(by_loop())]
fn loop_move_8(pair: Box<Pair<LoopDevice>>) -> Box<Pair<LoopDevice>> {
    pair.put(&black_box([3; 8]), Signal::Yes);
    pair
}

library_benchmark_group!(
    name = devices,
    benchmarks = [ism_move_100, ism_move_8, loop_move_100, loop_move_8]
);

main!(library_benchmark_groups = devices);
