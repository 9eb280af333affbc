//! axum: `axum::serve(listener, app)`, and `ConnectInfo<SmcConnectInfo>`.

use std::future::{Future, pending};
use std::io;
use std::net::SocketAddr;

use ::axum::extract::connect_info::Connected;
use ::axum::serve::{IncomingStream, Listener as AxumListener};

use super::SmcConnectInfo;
use crate::listener::Listener;
use crate::stream::Stream;
use crate::tokio::{TcpListener, TcpStream};

/// Repeats `accept` until it succeeds. The listener itself pauses after an error, such as a lack of
/// descriptors. One that has ended, as its endpoint was closed, accepts nothing: this waits.
async fn accept_next<S, F>(accept: impl Fn() -> F) -> (S, SocketAddr)
where
    F: Future<Output = io::Result<(S, SocketAddr)>>,
{
    loop {
        match accept().await {
            Ok(accepted) => return accepted,
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => pending().await,
            Err(error) => warn!("accept failed", error = error),
        }
    }
}

macro_rules! listener {
    ($($listener:ty => $stream:ty;)+) => {$(
        impl AxumListener for $listener {
            type Io = $stream;
            type Addr = SocketAddr;

            async fn accept(&mut self) -> (Self::Io, Self::Addr) {
                accept_next(|| Self::accept(self)).await
            }

            fn local_addr(&self) -> io::Result<SocketAddr> {
                Self::local_addr(self)
            }
        }

        impl Connected<IncomingStream<'_, $listener>> for SmcConnectInfo {
            fn connect_info(stream: IncomingStream<'_, $listener>) -> Self {
                let peer = *stream.remote_addr();
                let io: &Stream = stream.io();
                Self {
                    remote_addr: Some(peer),
                    ..io.into()
                }
            }
        }
    )+};
}

listener! {
    Listener => Stream;
    TcpListener => TcpStream;
}
