//! tokio-util: its trait of listeners.

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use ::tokio_util::net::Listener as AnyListener;

use crate::listener::Listener;
use crate::stream::Stream;
use crate::tokio::{TcpListener, TcpStream};

macro_rules! listener {
    ($($listener:ty => $stream:ty;)+) => {$(
        impl AnyListener for $listener {
            type Io = $stream;
            type Addr = SocketAddr;

            fn poll_accept(
                &mut self,
                cx: &mut Context<'_>,
            ) -> Poll<io::Result<(Self::Io, Self::Addr)>> {
                Self::poll_accept(self, cx)
            }

            fn local_addr(&self) -> io::Result<SocketAddr> {
                Self::local_addr(self)
            }
        }
    )+};
}

listener! {
    Listener => Stream;
    TcpListener => TcpStream;
}
