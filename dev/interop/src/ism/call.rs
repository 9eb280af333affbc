//! The side that runs scenarios with a server.

use std::future::Future;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use smc::{ConnectOptions, Endpoint, Stream};

use super::job::{End, Job, exchange, exchange_randomly};
use super::model;

/// Runs all scenarios without killed processes.
pub(super) async fn call(endpoint: &Endpoint, to: SocketAddr, bulk: u64) -> Result<bool> {
    let mut all_well = true;
    all_well &= scenario("echo", echo(endpoint, to)).await;
    all_well &= scenario("random pieces", random(endpoint, to)).await;
    all_well &= scenario("the stream model", model::scenario(endpoint, to)).await;
    all_well &= scenario("bulk both ways", bulk_both_ways(endpoint, to, bulk)).await;
    all_well &= scenario("half close", half_close(endpoint, to)).await;
    all_well &= scenario("abort by the server", abort_by_server(endpoint, to)).await;
    all_well &= scenario("abort by the client", abort_by_client(endpoint, to)).await;
    all_well &= scenario("fifty connections", fifty(endpoint, to)).await;
    all_well &= scenario("early data", early_data(endpoint, to)).await;
    endpoint.close().await;
    Ok(all_well)
}

/// Opens streams, has them used, and waits until the server has ended.
pub(super) async fn hold(endpoint: &Endpoint, to: SocketAddr) -> Result<bool> {
    let streams = open_some(endpoint, to).await?;
    println!("holding");
    for mut stream in streams {
        let read = stream.read(&mut [0; 8]).await;
        let error = read
            .err()
            .context("an end in order of a server that was killed")?;
        let is_right = matches!(
            error.kind(),
            ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset
        );
        ensure!(is_right, "{error}");
    }
    println!("all streams ended with an error");
    Ok(true)
}

/// Opens streams, has them used, and does so again when a line comes, with a new one too.
pub(super) async fn keep(endpoint: &Endpoint, to: SocketAddr) -> Result<bool> {
    let mut streams = open_some(endpoint, to).await?;
    println!("keeping");
    smol::unblock(|| std::io::stdin().read_line(&mut String::new())).await?;
    streams.push(open(endpoint, to, Job::Echo).await?);
    for stream in &mut streams {
        echo_once(stream, 300_000).await?;
    }
    println!("streams to others go on");
    Ok(true)
}

/// Uses one stream.
pub(super) async fn ping(endpoint: &Endpoint, to: SocketAddr, is_tcp: bool) -> Result<bool> {
    let mut stream = endpoint
        .connect(to)
        .await
        .with_context(|| format!("connect to {to}"))?;
    ensure!(stream.mode().is_smc() != is_tcp, "{}", stream.mode());
    println!("{}", stream.mode());
    Job::Echo.ask(&mut stream).await?;
    echo_once(&mut stream, 1000).await?;
    Ok(true)
}

async fn open_some(endpoint: &Endpoint, to: SocketAddr) -> Result<Vec<Stream>> {
    let mut streams = Vec::new();
    for _ in 0..HELD {
        let mut stream = open(endpoint, to, Job::Echo).await?;
        echo_once(&mut stream, 1000).await?;
        streams.push(stream);
    }
    Ok(streams)
}

async fn scenario(name: &str, run: impl Future<Output = Result<String>>) -> bool {
    let started = Instant::now();
    let outcome = run.await;
    let seconds = started.elapsed().as_secs_f64();
    match &outcome {
        Ok(words) => println!("{name}: {words} ({seconds:.2} s)"),
        Err(error) => println!("FAILED {name}: {error:#} ({seconds:.2} s)"),
    }
    outcome.is_ok()
}

pub(super) async fn open(endpoint: &Endpoint, to: SocketAddr, job: Job) -> Result<Stream> {
    let mut stream = endpoint
        .connect(to)
        .await
        .with_context(|| format!("connect to {to}"))?;
    ensure!(stream.mode().is_smc(), "{}", stream.mode());
    job.ask(&mut stream).await?;
    Ok(stream)
}

async fn echo_once(stream: &mut Stream, len: usize) -> Result<()> {
    let sent: Vec<u8> = (0..len).map(|at| (at * 7 % 251) as u8).collect();
    let mut received = vec![0; len];
    stream.write_all(&sent).await.context("write")?;
    stream.read_exact(&mut received).await.context("read")?;
    ensure!(sent == received, "another echo");
    Ok(())
}

async fn echo(endpoint: &Endpoint, to: SocketAddr) -> Result<String> {
    const ROUNDS: u32 = 500;
    let mut stream = open(endpoint, to, Job::Echo).await?;
    let mode = stream.mode().to_string();
    let started = Instant::now();
    for _ in 0..ROUNDS {
        echo_once(&mut stream, 14).await?;
    }
    let each = started.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS);
    Ok(format!("{mode}, {each:.0} us a round trip"))
}

async fn random(endpoint: &Endpoint, to: SocketAddr) -> Result<String> {
    const SEEDS: u64 = 25;
    for seed in 0..SEEDS {
        let stream = open(endpoint, to, Job::Random { seed }).await?;
        let exchanged = exchange_randomly(stream, End::Client, seed).await;
        exchanged.with_context(|| format!("seed {seed}"))?;
    }
    Ok(format!("{SEEDS} streams"))
}

async fn bulk_both_ways(endpoint: &Endpoint, to: SocketAddr, len: u64) -> Result<String> {
    let seed = 0x6275_6c6b;
    let stream = open(endpoint, to, Job::Exchange { seed, len }).await?;
    exchange(stream, End::Client, seed, len).await?;
    Ok(format!("{len} bytes each way, every one checked"))
}

async fn half_close(endpoint: &Endpoint, to: SocketAddr) -> Result<String> {
    let mut stream = open(endpoint, to, Job::Echo).await?;
    stream.write_all(b"the last words").await?;
    stream.close().await?;
    let mut received = Vec::new();
    stream.read_to_end(&mut received).await?;
    ensure!(received == b"the last words", "another echo");
    Ok("earlier data came back".to_owned())
}

async fn abort_by_server(endpoint: &Endpoint, to: SocketAddr) -> Result<String> {
    let mut stream = open(endpoint, to, Job::Abort).await?;
    stream.write_all(b"this is not read").await?;
    let read = stream.read(&mut [0; 8]).await;
    let error = read.err().context("an end in order instead of an abort")?;
    ensure!(error.kind() == ErrorKind::ConnectionReset, "{error}");
    Ok("received as a reset".to_owned())
}

async fn abort_by_client(endpoint: &Endpoint, to: SocketAddr) -> Result<String> {
    let stream = open(endpoint, to, Job::BeAborted).await?;
    stream.peek(&mut [0]).await?;
    drop(stream);
    Ok("done; the server reports the result".to_owned())
}

async fn fifty(endpoint: &Endpoint, to: SocketAddr) -> Result<String> {
    let mut streams = Vec::new();
    for _ in 0..50 {
        streams.push(open(endpoint, to, Job::Echo).await?);
    }
    for _ in 0..3 {
        for stream in &mut streams {
            echo_once(stream, 5000).await?;
        }
    }
    Ok("all at once".to_owned())
}

/// The job comes with the PROPOSAL: there is a link group.
async fn early_data(endpoint: &Endpoint, to: SocketAddr) -> Result<String> {
    const STREAMS: u32 = 20;
    let options = ConnectOptions::new().early_data(Job::Echo.bytes());
    for number in 0..STREAMS {
        let mut stream = endpoint.connect_with(to, &options).await?;
        ensure!(
            stream.early_data_accepted(),
            "not taken by stream {number}, which is {}",
            stream.mode()
        );
        echo_once(&mut stream, 300_000).await?;
    }
    Ok(format!("taken by {STREAMS} streams"))
}

/// Streams that are held.
pub(super) const HELD: usize = 5;
