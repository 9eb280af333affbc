//! Two connected streams.

use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::task::{Context, Poll};

use super::Stream;
use crate::endpoint::Endpoint;
use crate::error::{CloseReason, Error};
use crate::listener::Listener;

impl Stream {
    /// Two connected streams of one endpoint: the client's, then the server's. For tests, as
    /// `UnixStream::pair` of std.
    ///
    /// They are connected by a listener at a free port of 127.0.0.1, which is closed again; other
    /// clients that connect there meanwhile are closed. Policy, devices and negotiation of the
    /// endpoint decide whether they are SMC, as for [`Endpoint::connect`]. Dropping the future
    /// cancels the connection.
    ///
    /// ```
    /// # #[cfg(feature = "smol")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
    /// use smc::{Builder, Stream};
    ///
    /// # smol::block_on(async {
    /// let endpoint = Builder::smol().build()?;
    /// let (mut client, mut server) = Stream::pair(&endpoint).await?;
    /// client.write_all(b"hello").await?;
    /// drop(client);
    /// let mut read = String::new();
    /// server.read_to_string(&mut read).await?;
    /// assert_eq!(read, "hello");
    /// # Ok(())
    /// # })
    /// # }
    /// # #[cfg(not(feature = "smol"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Endpoint::bind`], [`Endpoint::connect`] and [`Listener::accept`]; [`Error::Closed`]
    /// with [`CloseReason::DuringHandshake`] if the server's end fails, or its policy requires SMC
    /// and the client's does not.
    pub async fn pair(endpoint: &Endpoint) -> Result<(Self, Self), Error> {
        let listener = endpoint.bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let client = endpoint.connect(listener.local_addr()?).await?;
        let from = client.local_addr()?;
        let server = poll_fn(|cx| poll_accept_from(&listener, &client, from, cx)).await?;
        Ok((client, server))
    }
}

/// Accepts the stream of a client with this address. Nothing is written to the client before that,
/// so that only the end of its stream makes it readable.
fn poll_accept_from(
    listener: &Listener,
    client: &Stream,
    from: SocketAddr,
    cx: &mut Context<'_>,
) -> Poll<Result<Stream, Error>> {
    while let Poll::Ready(accepted) = listener.poll_accept(cx) {
        match accepted {
            Ok((server, peer)) if peer == from => return Poll::Ready(Ok(server)),
            Ok(_other) => {}
            Err(error) => return Poll::Ready(Err(error.into())),
        }
    }
    match client.poll_read_ready(cx) {
        Poll::Ready(Ok(())) => Poll::Ready(Err(Error::Closed(CloseReason::DuringHandshake))),
        Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
        Poll::Pending => Poll::Pending,
    }
}
