//! Socket activation: a service manager such as systemd listens, and passes its socket on.
//!
//! `smc` with the feature `tokio`. One line differs from TCP:
//!
//! ```ignore
//! use smc::tokio::TcpListener; // before: use tokio::net::TcpListener;
//! ```
//!
//! Without a passed socket the program takes the part of the service manager, and of clients. The
//! socket has to belong to the user of the service: see the manual's cookbook.

use std::env::current_exe;
use std::io;
use std::os::fd::OwnedFd;

use listenfd::ListenFd;
use smc::tokio::{TcpListener, TcpStream};
use smc_framework_examples::{Result, check};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

#[tokio::main]
async fn main() -> Result {
    match ListenFd::from_env().take_tcp_listener(0)? {
        Some(passed) => serve(TcpListener::from_std(passed)?).await,
        None => activate().await,
    }
}

async fn serve(listener: TcpListener) -> Result {
    loop {
        let (mut stream, _peer) = listener.accept().await?;
        tokio::spawn(async move {
            let mode = stream.mode().to_string();
            stream.write_all(mode.as_bytes()).await
        });
    }
}

async fn activate() -> Result {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let addr = listener.local_addr()?;
    let mut service = start(listener)?;
    // The client that starts a service has plain TCP: nothing announces the listener yet.
    tokio::net::TcpStream::connect(addr)
        .await?
        .read_to_end(&mut Vec::new())
        .await?;

    check("socket activation", &smc::tokio::endpoint()?, || async {
        let mut stream = TcpStream::connect(addr).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok((stream, answer))
    })
    .await?;
    Ok(service.kill().await?)
}

/// Starts this program with the socket as descriptor 3, as `sd_listen_fds(3)` describes it.
fn start(listener: std::net::TcpListener) -> io::Result<Child> {
    let script = r#"export LISTEN_PID=$$ LISTEN_FDS=1; exec "$0" 3<&0 </dev/null"#;
    Command::new("sh")
        .args(["-c", script])
        .arg(current_exe()?)
        .stdin(OwnedFd::from(listener))
        .kill_on_drop(true)
        .spawn()
}
