//! Pings: messages that the server sends back.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::super::figure::Latencies;
use super::super::transport::Duplex;

/// Sends everything back; at the end of the stream sends the number of bytes.
pub(super) async fn serve<S: Duplex>(mut stream: S, len: usize) -> Result<()> {
    let mut ping = vec![0; len];
    let mut bytes = 0_u64;
    loop {
        match stream.read(&mut ping).await? {
            0 => break,
            count => {
                stream.write_all(&ping[..count]).await?;
                bytes += count as u64;
            }
        }
    }
    stream.write_all(&bytes.to_be_bytes()).await?;
    stream.shutdown().await?;
    Ok(())
}

/// The client's side of such a stream.
pub(super) struct PingClient<S> {
    stream: S,
    ping: Vec<u8>,
    trips: u64,
}

impl<S: Duplex> PingClient<S> {
    pub(super) fn new(stream: S, len: usize) -> Self {
        Self {
            stream,
            ping: vec![0x5a; len],
            trips: 0,
        }
    }

    pub(super) fn stream(&self) -> &S {
        &self.stream
    }

    pub(super) async fn trip(&mut self) -> Result<()> {
        self.stream.write_all(&self.ping).await?;
        self.stream.read_exact(&mut self.ping).await?;
        self.trips += 1;
        Ok(())
    }

    /// Sends one ping after the other for a time. Returns the latency of each.
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
        let _ended = self.stream.read(&mut self.ping).await;
    }

    /// Ends in order. Fails unless the server has seen as many bytes.
    pub(super) async fn end(mut self) -> Result<u64> {
        self.stream.shutdown().await?;
        let mut seen = [0; 8];
        self.stream.read_exact(&mut seen).await?;
        let (seen, sent) = (
            u64::from_be_bytes(seen),
            self.trips * self.ping.len() as u64,
        );
        ensure!(seen == sent, "the server saw {seen} bytes of {sent}");
        Ok(self.trips)
    }
}
