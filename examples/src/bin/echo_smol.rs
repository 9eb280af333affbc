//! An echo server and its client on smol, each with an endpoint of its own.
//!
//! `cargo run -p smc-examples --bin echo_smol` runs both in one process. To run them apart:
//!
//! ```text
//! cargo run -p smc-examples --bin echo_smol -- serve 127.0.0.1:7007
//! cargo run -p smc-examples --bin echo_smol -- send 127.0.0.1:7007 hello
//! ```

use std::env;
use std::error::Error;

use smc::{Endpoint, Listener};
use smol::io::{AsyncReadExt, AsyncWriteExt};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    smol::block_on(run())
}

async fn run() -> Result<()> {
    let args: Vec<_> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", addr] => serve(endpoint()?.bind(addr).await?).await,
        ["send", addr, words] => send(addr, words).await,
        [] => {
            let listener = endpoint()?.bind("127.0.0.1:0").await?;
            let addr = listener.local_addr()?.to_string();
            let server = smol::spawn(serve(listener));
            send(&addr, "hello").await?;
            server.cancel().await;
            Ok(())
        }
        _ => Err("arguments: [serve ADDR | send ADDR WORDS]".into()),
    }
}

fn endpoint() -> Result<Endpoint> {
    Ok(smc::smol()?.build()?)
}

async fn serve(listener: Listener) -> Result<()> {
    loop {
        let (stream, peer) = listener.accept().await?;
        println!("server: {peer} over {}", stream.mode());
        smol::spawn(async move {
            // Works the same for clients that support TCP only.
            let (from, to) = stream.into_split();
            if let Err(error) = smol::io::copy(from, to).await {
                eprintln!("server: {peer}: {error}");
            }
        })
        .detach();
    }
}

async fn send(addr: &str, words: &str) -> Result<()> {
    let mut stream = endpoint()?.connect(addr).await?;
    println!("client: connected over {}", stream.mode());
    stream.write_all(words.as_bytes()).await?;
    stream.close().await?;
    let mut back = String::new();
    stream.read_to_string(&mut back).await?;
    println!("client: sent {words:?}, received {back:?}");
    if back == words {
        Ok(())
    } else {
        Err("the echo differs from what was sent".into())
    }
}
