//! An echo server and its client on tokio, each with an endpoint of its own.
//!
//! `cargo run -p smc-examples --bin echo_tokio` runs both in one process. To run them apart:
//!
//! ```text
//! cargo run -p smc-examples --bin echo_tokio -- serve 127.0.0.1:7007
//! cargo run -p smc-examples --bin echo_tokio -- send 127.0.0.1:7007 hello
//! ```

use std::env;
use std::error::Error;

use smc::{Endpoint, Listener};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<_> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", addr] => serve(endpoint()?.bind(addr).await?).await,
        ["send", addr, words] => send(addr, words).await,
        [] => {
            let listener = endpoint()?.bind("127.0.0.1:0").await?;
            let addr = listener.local_addr()?.to_string();
            let server = tokio::spawn(serve(listener));
            send(&addr, "hello").await?;
            server.abort();
            Ok(())
        }
        _ => Err("arguments: [serve ADDR | send ADDR WORDS]".into()),
    }
}

fn endpoint() -> Result<Endpoint> {
    Ok(smc::tokio()?.build()?)
}

async fn serve(listener: Listener) -> Result<()> {
    loop {
        let (stream, peer) = listener.accept().await?;
        println!("server: {peer} over {}", stream.mode());
        tokio::spawn(async move {
            // Works the same for clients that support TCP only.
            let (mut from, mut to) = stream.into_split();
            if let Err(error) = tokio::io::copy(&mut from, &mut to).await {
                eprintln!("server: {peer}: {error}");
            }
        });
    }
}

async fn send(addr: &str, words: &str) -> Result<()> {
    let mut stream = endpoint()?.connect(addr).await?;
    println!("client: connected over {}", stream.mode());
    stream.write_all(words.as_bytes()).await?;
    AsyncWriteExt::shutdown(&mut stream).await?;
    let mut back = String::new();
    stream.read_to_string(&mut back).await?;
    println!("client: sent {words:?}, received {back:?}");
    if back == words {
        Ok(())
    } else {
        Err("the echo differs from what was sent".into())
    }
}
