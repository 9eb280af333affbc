//! A protocol of lines by tokio-util's `Framed` over SMC.
//!
//! `smc` with the feature `tokio`. One line differs from TCP:
//!
//! ```ignore
//! use smc::tokio::{TcpListener, TcpStream}; // before: use tokio::net::{TcpListener, TcpStream};
//! ```

use futures::{SinkExt as _, StreamExt as _};
use smc::tokio::{TcpListener, TcpStream};
use smc_framework_examples::{Result, check};
use tokio_util::codec::{Framed, LinesCodec};

#[tokio::main]
async fn main() -> Result {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _peer)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    check("Framed", &smc::tokio::endpoint()?, || async {
        let mut lines = Framed::new(TcpStream::connect(addr).await?, LinesCodec::new());
        lines.send("mode?").await?;
        let answer = lines.next().await.ok_or("no answer")??;
        Ok((lines, answer))
    })
    .await
}

async fn serve(stream: TcpStream) -> Result {
    let mut lines = Framed::new(stream, LinesCodec::new());
    while let Some(_line) = lines.next().await.transpose()? {
        let mode = lines.get_ref().mode().to_string();
        lines.send(mode).await?;
    }
    Ok(())
}
