//! Reading without a copy: counts lines in the peer's data where the peer has put it.
//!
//! ```text
//! cargo run -p smc-examples --bin zero_copy_read
//! ```
//!
//! `zero_copy_write` has the other end of it, and data that is held.
//!
//! `fill_buf` borrows the next bytes of the receive ring and `consume` gives their space back to
//! the writer. Unless the endpoint trusts its peers these bytes are a private copy, because memory
//! that another process can change must not be borrowed as `&[u8]`; here both ends are this
//! program.

#![allow(unsafe_code, reason = "the promise about peers is an unsafe function")]

use std::error::Error;

use futures_lite::{AsyncBufReadExt, AsyncWriteExt, future};
use smc::{Stream, mem::TrustPeers};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    smol::block_on(async {
        // SAFETY: the only peer of this endpoint is the one below, which writes bytes of a ring
        // only while they are free.
        let trust = unsafe { TrustPeers::new() };
        let reader = smc::smol()?.trust_peers(trust).build()?;
        let writer = smc::smol()?.build()?;

        let listener = reader.bind("127.0.0.1:0").await?;
        let addr = listener.local_addr()?;
        let (accepted, connected) = future::zip(listener.accept(), writer.connect(addr)).await;
        let (stream, _) = accepted?;
        println!("reading over {}", stream.mode());

        let (lines, written) = future::zip(count_lines(stream), write_lines(connected?)).await;
        written?;
        println!("{} lines", lines?);
        Ok(())
    })
}

async fn write_lines(mut stream: Stream) -> Result<()> {
    for number in 0..LINES {
        stream
            .write_all(format!("line {number}\n").as_bytes())
            .await?;
    }
    stream.close().await?;
    Ok(())
}

async fn count_lines(mut stream: Stream) -> Result<usize> {
    let mut lines = 0;
    loop {
        let bytes = stream.fill_buf().await?;
        let len = bytes.len();
        if len == 0 {
            break;
        }
        lines += bytes.iter().filter(|byte| **byte == b'\n').count();
        stream.consume(len);
    }
    if lines == LINES {
        Ok(lines)
    } else {
        Err(format!("{lines} lines of {LINES}").into())
    }
}

const LINES: usize = 100_000;
