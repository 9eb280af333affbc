//! axum: `axum::serve(listener, app)`, and `ConnectInfo<SmcConnectInfo>`.

use std::future::pending;
use std::io;
use std::net::SocketAddr;

use ::axum::extract::connect_info::Connected;
use ::axum::serve::{IncomingStream, Listener as AxumListener};

use super::SmcConnectInfo;
use crate::incoming::is_end;
use crate::listener::Listener;
use crate::stream::Stream;
use crate::tokio::{TcpListener, TcpStream};

/// Repeats `accept` until it succeeds. The listener itself pauses after an error, such as a lack of
/// descriptors. One that has ended, as its endpoint was closed, accepts nothing: this waits.
async fn accept_next(listener: &Listener) -> (Stream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                listener.warn_not_accepted(&error);
                if is_end(&error) {
                    pending::<()>().await;
                }
            }
        }
    }
}

macro_rules! listener {
    ($($listener:ty => $stream:ty;)+) => {$(
        impl AxumListener for $listener {
            type Io = $stream;
            type Addr = SocketAddr;

            async fn accept(&mut self) -> (Self::Io, Self::Addr) {
                let (stream, peer) = accept_next(self).await;
                (stream.into(), peer)
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
