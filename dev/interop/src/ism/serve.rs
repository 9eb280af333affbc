//! The side that does what the other one asks for.

use std::io::ErrorKind;
use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use smc::{Endpoint, ListenOptions, Stream};

use super::job::{End, Job, exchange, exchange_randomly};
use super::model::EndReports;

/// Serves until the process is killed. Tells how each stream has ended.
pub(super) async fn serve(endpoint: &Endpoint, at: SocketAddr) -> Result<()> {
    let options = ListenOptions::new().max_early_data(EARLY_DATA_MAX);
    let listener = endpoint
        .bind_with(at, &options)
        .await
        .with_context(|| format!("listen at {at}"))?;
    let reports = EndReports::default();
    println!("listening");
    loop {
        let (stream, _) = listener.accept().await.context("accept")?;
        let reports = reports.clone();
        let answering = async move {
            match answer(stream, &reports).await {
                Ok(how) => println!("ended {how}"),
                Err(error) => println!("ended broken: {error:#}"),
            }
        };
        smol::spawn(answering).detach();
    }
}

async fn answer(mut stream: Stream, reports: &EndReports) -> Result<&'static str> {
    let how = "in order";
    match Job::receive(&mut stream).await? {
        Job::Echo => {
            let (from, to) = stream.into_split();
            futures_lite::io::copy(from, to).await?;
        }
        Job::Exchange { seed, len } => exchange(stream, End::Server, seed, len).await?,
        Job::Random { seed } => exchange_randomly(stream, End::Server, seed).await?,
        Job::Model { seed } => reports.run_end(stream, seed).await?,
        Job::SendReport { seed } => reports.send_report(stream, seed).await?,
        Job::Abort => {
            stream.peek(&mut [0]).await?;
        }
        Job::BeAborted => {
            stream.write_all(b"this is not read").await?;
            let read = stream.read(&mut [0; 8]).await;
            let error = read.err().context("an end in order instead of an abort")?;
            ensure!(error.kind() == ErrorKind::ConnectionReset, "{error}");
            return Ok("aborted as expected");
        }
    }
    Ok(how)
}

/// A job is shorter.
const EARLY_DATA_MAX: usize = 64;
