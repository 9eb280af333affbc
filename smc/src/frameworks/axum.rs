//! axum: `axum::serve(listener, app)`, and `ConnectInfo<SmcConnectInfo>`.

use std::future::pending;
use std::io;
use std::net::SocketAddr;

use ::axum::extract::connect_info::Connected;
use ::axum::serve::{IncomingStream, Listener as AxumListener};
use ::tokio::net::unix;

use super::SmcConnectInfo;
use crate::address::UnixAddr;
use crate::incoming::is_end;
use crate::listener::Listener;
use crate::stream::Stream;
use crate::tokio;
use crate::unix::UnixListener;

/// After an error `accept` is repeated: the listener itself pauses, as for a lack of descriptors.
/// One that has ended, as its endpoint was closed, accepts nothing: this waits.
async fn handle_error(listener: &Listener, error: &io::Error) {
    listener.warn_not_accepted(error);
    if is_end(error) {
        pending::<()>().await;
    }
}

macro_rules! listener {
    ($($listener:ty => $stream:ty, $addr:ty, $tcp:expr;)+) => {$(
        impl AxumListener for $listener {
            type Io = $stream;
            type Addr = $addr;

            async fn accept(&mut self) -> (Self::Io, Self::Addr) {
                loop {
                    match Self::accept(self).await {
                        Ok(accepted) => return accepted,
                        Err(error) => handle_error(self.inner(), &error).await,
                    }
                }
            }

            fn local_addr(&self) -> io::Result<$addr> {
                Self::local_addr(self)
            }
        }

        impl Connected<IncomingStream<'_, $listener>> for SmcConnectInfo {
            fn connect_info(stream: IncomingStream<'_, $listener>) -> Self {
                let remote_addr = $tcp(stream.remote_addr());
                let io: &Stream = stream.io();
                Self {
                    remote_addr,
                    ..io.into()
                }
            }
        }
    )+};
}

listener! {
    Listener => Stream, SocketAddr, |peer: &SocketAddr| Some(*peer);
    UnixListener => Stream, UnixAddr, |_| None;
    tokio::TcpListener => tokio::TcpStream, SocketAddr, |peer: &SocketAddr| Some(*peer);
    tokio::UnixListener => tokio::UnixStream, unix::SocketAddr, |_| None;
}
