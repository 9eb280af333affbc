//! An echo server over SMC whose counters Prometheus can read.
//!
//! ```text
//! cargo run -p smc-examples --bin prometheus -- 127.0.0.1:7007 127.0.0.1:9464
//! curl http://127.0.0.1:9464/metrics
//! ```
//!
//! Without arguments it serves and reads itself once, on ports of its own.

use std::env;
use std::error::Error;
use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use smc::{Endpoint, Listener};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<_> = env::args().skip(1).collect();
    // The recorder of the whole program. What it has counted is rendered for each scrape.
    let recorder = PrometheusBuilder::new().install_recorder()?;
    let endpoint = smc::tokio()?.build()?;
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [echo, scrapes] => {
            let (listener, scrapes) = (
                endpoint.bind(echo).await?,
                TcpListener::bind(scrapes).await?,
            );
            let (echo, at) = (listener.local_addr()?, scrapes.local_addr()?);
            eprintln!("echo server at {echo}, metrics at http://{at}/metrics");
            tokio::spawn(serve(listener));
            answer_scrapes(scrapes, endpoint, recorder).await
        }
        [] => {
            let listener = endpoint.bind("127.0.0.1:0").await?;
            let echo = listener.local_addr()?;
            let scrapes = TcpListener::bind("127.0.0.1:0").await?;
            let at = scrapes.local_addr()?;
            tokio::spawn(serve(listener));
            tokio::spawn(answer_scrapes(scrapes, endpoint.clone(), recorder));
            let mut stream = endpoint.connect(echo).await?;
            stream.write_all(b"hello").await?;
            stream.read_exact(&mut [0; 5]).await?;
            print!("{}", scrape(at).await?);
            Ok(())
        }
        _ => Err("arguments: [ECHO_ADDR SCRAPE_ADDR]".into()),
    }
}

async fn serve(listener: Listener) -> Result<()> {
    loop {
        let (mut stream, _client) = listener.accept().await?;
        tokio::spawn(async move {
            let mut buf = vec![0; 64 * 1024];
            while let Ok(count @ 1..) = stream.read(&mut buf).await {
                if stream.write_all(&buf[..count]).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// Answers each HTTP request with the counters.
async fn answer_scrapes(
    listener: TcpListener,
    endpoint: Endpoint,
    recorder: PrometheusHandle,
) -> Result<()> {
    loop {
        let (mut stream, _client) = listener.accept().await?;
        // The request is read so far that the client is not reset; which it is does not matter.
        let mut request = [0; 4096];
        let _request = timeout(REQUEST_TIME, stream.read(&mut request)).await;
        smc::metrics::record(&endpoint, "echo");
        let text = recorder.render();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            text.len()
        );
        // A client that has gone is no reason to end.
        let _sent = stream.write_all(format!("{head}{text}").as_bytes()).await;
    }
}

/// How long a client may take to send its request.
const REQUEST_TIME: Duration = Duration::from_secs(1);

async fn scrape(at: std::net::SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect(at).await?;
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: example\r\n\r\n")
        .await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (_head, body) = answer.split_once("\r\n\r\n").ok_or("no body")?;
    Ok(body.to_owned())
}
