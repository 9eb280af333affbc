//! A service with graceful shutdown, and with metrics for Prometheus.
//!
//! `smc` with the features `tokio` and `metrics`. These lines are not those of a service over TCP:
//!
//! ```ignore
//! use smc::tokio::{TcpListener, TcpStream}; // before: use tokio::net::{TcpListener, TcpStream};
//! smc::metrics::record(&endpoint, "service"); // when metrics are read
//! endpoint.close().await;                     // at the end: what was sent is delivered
//! ```

use std::net::SocketAddr;
use std::time::Duration;

use axum::{Router, routing};
use futures::{SinkExt as _, StreamExt as _};
use metrics_exporter_prometheus::PrometheusBuilder;
use smc::Endpoint;
use smc::tokio::{TcpListener, TcpStream};
use smc_framework_examples::{CLIENTS, Result, check, get};
use tokio::time::timeout;
use tokio_util::codec::{Framed, LinesCodec};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

type Lines = Framed<TcpStream, LinesCodec>;

/// How long connections may take to end.
const GRACE: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() -> Result {
    let endpoint = smc::tokio::endpoint()?;
    let metrics = serve_metrics(endpoint.clone()).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    // In a service this follows from SIGTERM (`tokio::signal::unix`).
    let stop = CancellationToken::new();
    let service = tokio::spawn(serve(listener, stop.clone()));

    check("service", &endpoint, || ask(addr)).await?;
    let (_connection, text) = get(metrics).await?;
    let counted = format!(" {CLIENTS}");
    text.lines()
        .find(|line| line.starts_with("smc_connections_total") && line.ends_with(&counted))
        .ok_or("the counter of connections is another")?;

    let (mut idle, _mode) = ask(addr).await?;
    stop.cancel();
    service.await??;
    if let Some(end) = idle.next().await {
        return Err(format!("in place of the end of the stream: {end:?}").into());
    }
    endpoint.close().await;
    Ok(())
}

async fn serve(listener: TcpListener, stop: CancellationToken) -> Result {
    let connections = TaskTracker::new();
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, _peer)) => drop(connections.spawn(answer(stream, stop.clone()))),
            // Such as a lack of descriptors; the listener pauses before it goes on.
            Err(error) => eprintln!("accept: {error}"),
        }
    }
    drop(listener); // further clients are refused
    connections.close();
    Ok(timeout(GRACE, connections.wait()).await?)
}

/// Answers until the client or the service ends; a request that was read has its answer.
async fn answer(stream: TcpStream, stop: CancellationToken) -> Result {
    let mut lines = Framed::new(stream, LinesCodec::new());
    while let Some(Some(line)) = stop.run_until_cancelled(lines.next()).await {
        line?;
        let mode = lines.get_ref().mode().to_string();
        lines.send(mode).await?;
    }
    Ok(())
}

async fn ask(addr: SocketAddr) -> Result<(Lines, String)> {
    let mut lines = Framed::new(TcpStream::connect(addr).await?, LinesCodec::new());
    lines.send("mode?").await?;
    let answer = lines.next().await.ok_or("no answer")??;
    Ok((lines, answer))
}

/// Serves the counters over plain TCP; returns where.
async fn serve_metrics(endpoint: Endpoint) -> Result<String> {
    let recorder = PrometheusBuilder::new().install_recorder()?;
    let render = async move || {
        smc::metrics::record(&endpoint, "service");
        recorder.render()
    };
    let app = Router::new().route("/metrics", routing::get(render));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let uri = format!("http://{}/metrics", listener.local_addr()?);
    tokio::spawn(axum::serve(listener, app).into_future());
    Ok(uri)
}
