//! A server of hyper 1 over SMC.
//!
//! `smc` with the feature `tokio`. One line differs from a server over TCP:
//!
//! ```ignore
//! use smc::tokio::TcpListener; // before: use tokio::net::TcpListener;
//! ```

use std::convert::Infallible;

use hyper::Response;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use smc::tokio::{TcpListener, TcpStream};
use smc_framework_examples::{Result, check, get};

#[tokio::main]
async fn main() -> Result {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let uri = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((stream, _peer)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    check("hyper", &smc::tokio::endpoint()?, || get(uri.clone())).await
}

async fn serve(stream: TcpStream) -> hyper::Result<()> {
    let mode = stream.mode().to_string();
    let service = service_fn(|_request| {
        let answer = Response::new(mode.clone());
        async { Ok::<_, Infallible>(answer) }
    });
    http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await
}
