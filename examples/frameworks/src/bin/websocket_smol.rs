//! WebSockets by async-tungstenite over SMC, on smol.
//!
//! `smc` with the feature `smol`. One line differs from TCP:
//!
//! ```ignore
//! use smc::smol::{TcpListener, TcpStream}; // before: use smol::net::{TcpListener, TcpStream};
//! ```

use async_tungstenite::{accept_async, client_async};
use futures::StreamExt as _;
use smc::smol::{TcpListener, TcpStream};
use smc_framework_examples::{Result, check};

fn main() -> Result {
    smol::block_on(run())
}

async fn run() -> Result {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    let server = smol::spawn(async move {
        while let Ok((stream, _peer)) = listener.accept().await {
            smol::spawn(serve(stream)).detach();
        }
    });
    check(
        "async-tungstenite on smol",
        &smc::smol::endpoint()?,
        || async {
            let stream = TcpStream::connect(addr).await?;
            let (mut socket, _response) = client_async(format!("ws://{addr}/"), stream).await?;
            let answer = socket.next().await.ok_or("no answer")??;
            Ok((socket, answer.into_text()?.to_string()))
        },
    )
    .await?;
    server.cancel().await;
    Ok(())
}

async fn serve(stream: TcpStream) -> Result {
    let mut socket = accept_async(stream).await?;
    let mode = socket.get_ref().mode().to_string();
    socket.send(mode.into()).await?;
    while let Some(_message) = socket.next().await.transpose()? {}
    Ok(())
}
