//! A ball that goes there and back.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};

use super::super::figure::Latencies;
use super::super::transport::Duplex;

/// Sends every ball back; at the end of the stream sends their number.
pub(super) async fn serve<S: Duplex>(mut stream: S, len: usize) -> Result<()> {
    let mut ball = vec![0; len];
    let mut trips = 0_u64;
    loop {
        match stream.read_exact(&mut ball).await {
            Ok(()) => {
                stream.write_all(&ball).await?;
                trips += 1;
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error.into()),
        }
    }
    stream.write_all(&trips.to_be_bytes()).await?;
    stream.close().await?;
    Ok(())
}

/// The client's side of such a stream.
pub(super) struct Player<S> {
    stream: S,
    ball: Vec<u8>,
    trips: u64,
}

impl<S: Duplex> Player<S> {
    pub(super) fn new(stream: S, len: usize) -> Self {
        Self {
            stream,
            ball: vec![0x5a; len],
            trips: 0,
        }
    }

    pub(super) fn stream(&self) -> &S {
        &self.stream
    }

    pub(super) async fn trip(&mut self) -> Result<()> {
        self.stream.write_all(&self.ball).await?;
        self.stream.read_exact(&mut self.ball).await?;
        self.trips += 1;
        Ok(())
    }

    /// Trips one after the other for a time, each with its latency.
    pub(super) async fn play(&mut self, time: Duration) -> Result<Latencies> {
        let mut latencies = Latencies::new()?;
        let start = Instant::now();
        let mut before = start;
        while before - start < time {
            self.trip().await?;
            let now = Instant::now();
            latencies.record((now - before).as_nanos());
            before = now;
        }
        Ok(latencies)
    }

    /// Waits for what does not come: the end of an idle connection.
    pub(super) async fn idle(mut self) {
        let _ended = self.stream.read(&mut self.ball).await;
    }

    /// Ends in order. Fails unless the server has seen as many trips.
    pub(super) async fn end(mut self) -> Result<u64> {
        self.stream.close().await?;
        let mut seen = [0; 8];
        self.stream.read_exact(&mut seen).await?;
        let (seen, trips) = (u64::from_be_bytes(seen), self.trips);
        ensure!(
            seen == trips,
            "the server saw {seen} round trips of {trips}"
        );
        Ok(trips)
    }
}
