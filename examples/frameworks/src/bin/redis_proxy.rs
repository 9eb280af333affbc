//! The crate redis as it is, through `smc proxy`, with a server over SMC (`src/resp.rs`).
//!
//! No line of the client differs. The operator starts the proxy, and gives clients its address:
//!
//! ```text
//! smc proxy --listen tcp:127.0.0.1:6379 --to SERVER:6379
//! ```
//!
//! A Redis server as it is has a second proxy: `smc proxy --listen :6379 --to tcp:127.0.0.1:6379`.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use redis::AsyncCommands as _;
use smc::tokio::TcpListener;
use smc_framework_examples::{CLIENTS, Result, open, resp};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

#[tokio::main]
async fn main() -> Result {
    let program = std::env::current_exe()?.with_file_name("smc");
    if !program.exists() {
        println!("skipped: {} was not built", program.display());
        return Ok(());
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let to = listener.local_addr()?;
    tokio::spawn(resp::serve(listener));

    let (mut proxy, at) = start(&program, to).await?;
    let client = redis::Client::open(format!("redis://{at}/"))?;
    let connections = open(|| async {
        let mut connection = client.get_multiplexed_async_connection().await?;
        let answer = connection.get("mode").await?;
        Ok((connection, answer))
    })
    .await?;
    let count = connections.len();
    println!("redis through smc proxy: {count} of {CLIENTS} connections are SMC-D at the server");
    proxy.kill().await?;
    Ok(())
}

/// Starts the proxy; returns it with the address that it listens at.
async fn start(program: &Path, to: SocketAddr) -> Result<(Child, String)> {
    let mut proxy = Command::new(program)
        .args([
            "proxy",
            "--listen",
            "tcp:127.0.0.1:0",
            "--to",
            &to.to_string(),
        ])
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(proxy.stderr.take().ok_or("no output")?).lines();
    // smc proxy: listening at tcp:127.0.0.1:6379, for 127.0.0.1:7000
    let line = lines.next_line().await?.unwrap_or_default();
    match line
        .split_once("tcp:")
        .and_then(|(_, rest)| rest.split_once(','))
    {
        Some((at, _to)) => Ok((proxy, at.to_owned())),
        None => Err(format!("no address: {line}").into()),
    }
}
