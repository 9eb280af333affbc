//! hyper-util's client over SMC, with its pool of connections.
//!
//! `smc` with the feature `hyper-util`. One line differs from a client over TCP:
//!
//! ```ignore
//! let client = Client::builder(TokioExecutor::new()).build(Connector::new());
//! // before: let client = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
//! ```

use std::sync::Arc;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use http_body_util::{BodyExt as _, Empty};
use hyper::Uri;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use smc::tokio::TcpListener;
use smc::{Connector, SmcConnectInfo};
use smc_framework_examples::{CLIENTS, Result, check};
use tokio::sync::Barrier;

#[tokio::main]
async fn main() -> Result {
    let uri = serve().await?;
    let client = Client::builder(TokioExecutor::new()).build::<_, Empty<Bytes>>(Connector::new());
    check("hyper-util", &smc::tokio::endpoint()?, || async {
        let response = client.get(uri.clone()).await?;
        // What the response says of its connection.
        let connection = response.extensions().get::<SmcConnectInfo>().cloned();
        let body = response.into_body().collect().await?.to_bytes();
        Ok((
            connection.ok_or("no connection")?,
            String::from_utf8(body.into())?,
        ))
    })
    .await
}

/// A server that answers when there are as many requests as clients, so that the client's pool
/// cannot use a connection twice.
async fn serve() -> Result<Uri> {
    let all = Arc::new(Barrier::new(CLIENTS));
    let mode = |ConnectInfo(connection): ConnectInfo<SmcConnectInfo>| async move {
        all.wait().await;
        connection.mode.to_string()
    };
    let app = Router::new().route("/", get(mode));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let uri = format!("http://{}/", listener.local_addr()?).parse()?;
    let service = app.into_make_service_with_connect_info::<SmcConnectInfo>();
    tokio::spawn(axum::serve(listener, service).into_future());
    Ok(uri)
}
