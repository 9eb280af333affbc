//! Hardly a copy: samples are computed in the peer's memory, and handed to another thread where
//! they are.
//!
//! ```text
//! cargo run -p smc-examples --bin zero_copy_write
//! ```
//!
//! `reserve_exact` gives the next free piece of the peer's receive ring, or a private buffer for
//! the one frame in each round that goes past the end of the ring; `commit` shows it to the peer.
//! There `read_guard` takes pieces off the stream without copying them; they go to a worker as
//! `Bytes`, and their space goes back to the writer when the worker has dropped them. Take the
//! promise about peers away, and the program does the same by way of private buffers.

#![allow(unsafe_code, reason = "the promise about peers is an unsafe function")]

use std::error::Error;
use std::sync::mpsc;
use std::thread;

use futures_lite::{AsyncWriteExt, future};
use smc::{Endpoint, Stream, mem::TrustPeers};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    smol::block_on(async {
        let (writer, reader) = (endpoint()?, endpoint()?);
        let listener = reader.bind("127.0.0.1:0").await?;
        let addr = listener.local_addr()?;
        let (accepted, connected) = future::zip(listener.accept(), writer.connect(addr)).await;
        let (stream, _) = accepted?;
        println!("samples over {}", stream.mode());

        let (sum, sent) = future::zip(add_up(stream), produce(connected?)).await;
        sent?;
        println!("{SAMPLES} samples, sum {}", sum?);
        Ok(())
    })
}

fn endpoint() -> Result<Endpoint> {
    // SAFETY: the only peers of these endpoints are each other, and both leave memory alone that
    // is not theirs at the moment.
    let trust = unsafe { TrustPeers::new() };
    Ok(smc::smol()?.trust_peers(trust).build()?)
}

/// Computes one byte after the other, right where the peer will read it.
async fn produce(mut stream: Stream) -> Result<()> {
    let mut samples = (0..SAMPLES).map(sample);
    while samples.len() > 0 {
        let mut space = stream.reserve_exact(samples.len().min(FRAME)).await?;
        let len = space.len();
        for (byte, sample) in space.as_mut_slice().iter_mut().zip(&mut samples) {
            *byte = sample;
        }
        space.commit(len).await?;
    }
    stream.close().await?;
    Ok(())
}

/// Takes pieces off the stream and has them added up elsewhere.
async fn add_up(mut stream: Stream) -> Result<u64> {
    let (pieces, work) = mpsc::channel::<bytes::Bytes>();
    let worker = thread::spawn(move || {
        let sums = work
            .iter()
            .map(|bytes| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>());
        sums.sum::<u64>()
    });
    loop {
        let guard = stream.read_guard(FRAME).await?;
        if guard.is_empty() {
            break;
        }
        // The worker needs nothing from this task to finish, so that this task may wait for more.
        pieces.send(guard.into_bytes())?;
    }
    drop(pieces);
    let sum = worker.join().map_err(|_| "the worker panicked")?;
    let expected: u64 = (0..SAMPLES).map(|at| u64::from(sample(at))).sum();
    if sum == expected {
        Ok(sum)
    } else {
        Err(format!("the sum is {sum} and not {expected}").into())
    }
}

fn sample(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 24) as u8
}

const SAMPLES: usize = 10_000_000;
const FRAME: usize = 64 * 1024;
