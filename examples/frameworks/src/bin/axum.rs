//! axum over SMC: server, peer and mode in a handler, graceful shutdown.
//!
//! `smc` with the feature `axum08`. One line differs from a server over TCP:
//!
//! ```ignore
//! use smc::tokio::TcpListener; // before: use tokio::net::TcpListener;
//! ```
//!
//! Here `ConnectInfo<SmcConnectInfo>` tells peer and mode. One with `ConnectInfo<SocketAddr>` works
//! with `listener.tap_io(|_| ())` (`axum::serve::ListenerExt`).

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use smc::SmcConnectInfo;
use smc::tokio::TcpListener;
use smc_framework_examples::{Result, check};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result {
    let app = Router::new().route("/", get(mode));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;

    let stop = CancellationToken::new();
    let service = app.into_make_service_with_connect_info::<SmcConnectInfo>();
    let server =
        axum::serve(listener, service).with_graceful_shutdown(stop.clone().cancelled_owned());
    let server = tokio::spawn(server.into_future());

    check("axum", &smc::tokio::endpoint()?, || {
        smc_framework_examples::get(format!("http://{addr}/"))
    })
    .await?;
    stop.cancel();
    Ok(server.await??)
}

async fn mode(ConnectInfo(connection): ConnectInfo<SmcConnectInfo>) -> String {
    connection.mode.to_string()
}
