//! What a connection is used for: the first byte names it, the rest is the job's own.

use std::io;
use std::time::{Duration, Instant};

use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};

use super::net::Duplex;

/// A job, by the byte that asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Job {
    /// Send everything back.
    Echo = b'e',
    /// Read to the end, then report how many bytes came.
    Sink = b's',
    /// Send every 14 bytes back.
    Pong = b'p',
}

/// Does what the client at the other end asks for.
pub(super) async fn serve(mut stream: Box<dyn Duplex>) -> io::Result<()> {
    let mut asked = [0];
    stream.read_exact(&mut asked).await?;
    match asked[0] {
        asked if asked == Job::Echo as u8 => echo(stream).await,
        asked if asked == Job::Sink as u8 => sink(stream).await,
        asked if asked == Job::Pong as u8 => pong(stream).await,
        asked => {
            let what = format!("unknown job {asked:#04x}");
            Err(io::Error::new(io::ErrorKind::InvalidData, what))
        }
    }
}

async fn echo(mut stream: Box<dyn Duplex>) -> io::Result<()> {
    let mut buf = vec![0; READ_LEN];
    loop {
        match stream.read(&mut buf).await? {
            0 => return stream.close().await,
            count => stream.write_all(&buf[..count]).await?,
        }
    }
}

async fn sink(mut stream: Box<dyn Duplex>) -> io::Result<()> {
    let mut buf = vec![0; READ_LEN];
    let mut total = 0_u64;
    loop {
        match stream.read(&mut buf).await? {
            0 => break,
            count => total += count as u64,
        }
    }
    stream.write_all(&total.to_be_bytes()).await?;
    stream.close().await
}

async fn pong(mut stream: Box<dyn Duplex>) -> io::Result<()> {
    let mut ball = [0; PING_LEN];
    loop {
        match stream.read_exact(&mut ball).await {
            Ok(()) => stream.write_all(&ball).await?,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return stream.close().await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Writes `len` bytes again and again. Returns how many writes a second arrived at the other end.
pub(super) async fn one_way(
    mut stream: Box<dyn Duplex>,
    len: usize,
    time: Duration,
) -> io::Result<f64> {
    let data = vec![0x5a; len];
    stream.write_all(&[Job::Sink as u8]).await?;
    let start = Instant::now();
    let mut writes = 0_u64;
    // The clock costs as much as a small write, so it is checked now and then only.
    let burst = (BURST_LEN / len).clamp(1, 1000);
    while start.elapsed() < time {
        for _ in 0..burst {
            stream.write_all(&data).await?;
        }
        writes += burst as u64;
    }
    stream.close().await?;
    let mut total = [0; 8];
    stream.read_exact(&mut total).await?;
    let elapsed = start.elapsed();
    if u64::from_be_bytes(total) != writes * len as u64 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "bytes got lost or were invented",
        ));
    }
    Ok(writes as f64 / elapsed.as_secs_f64())
}

/// Sends 14 bytes and waits for them to come back, again and again. Returns the median round trip.
pub(super) async fn round_trip(
    mut stream: Box<dyn Duplex>,
    time: Duration,
) -> io::Result<Duration> {
    stream.write_all(&[Job::Pong as u8]).await?;
    let mut ball = *b"fourteen bytes";
    let mut trips = Vec::new();
    let start = Instant::now();
    let mut before = start;
    while before - start < time {
        stream.write_all(&ball).await?;
        stream.read_exact(&mut ball).await?;
        let now = Instant::now();
        trips.push(now - before);
        before = now;
    }
    stream.close().await?;
    // The first ones wake both sides up.
    let mut warm = trips.split_off(trips.len() / 10);
    let middle = warm.len() / 2;
    Ok(*warm.select_nth_unstable(middle).1)
}

/// Bytes read at a time by the servers of all transports.
const READ_LEN: usize = 128 * 1024;

/// The ball of sockperf's ping-pong.
pub(super) const PING_LEN: usize = 14;

/// Bytes between two readings of the clock.
const BURST_LEN: usize = 256 * 1024;
