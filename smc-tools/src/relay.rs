//! Copying of a byte stream, with a half close at its end.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::task::coop::consume_budget;

/// Why copying ended before the end of the stream. `tokio::io::copy` does not say on which side.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The source failed.
    Read(io::Error),
    /// The destination failed.
    Write(io::Error),
}

/// Copies up to the end of the stream, and shuts the destination down then: the half close is
/// passed on after all data. `copied` counts the bytes that were written.
pub(crate) async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    copied: &mut u64,
) -> Result<(), Broken> {
    let mut buf = vec![0; MIN_BUFFER];
    loop {
        let count = from.read(&mut buf).await.map_err(Broken::Read)?;
        if count == 0 {
            return shut_down(to).await.map_err(Broken::Write);
        }
        to.write_all(&buf[..count]).await.map_err(Broken::Write)?;
        *copied += count as u64;
        if count == buf.len() && count < MAX_BUFFER {
            buf.resize(2 * count, 0);
        }
        // SMC streams have no budget of their own.
        consume_budget().await;
    }
}

/// Shuts a destination down, and waits until a stream has delivered its data. A peer may take its
/// time with that, as long as it is alive.
async fn shut_down(mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    to.flush().await?;
    loop {
        match to.shutdown().await {
            // The peer's buffer is full; the connection still exists.
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            result => return result,
        }
    }
}

/// The buffer of a connection with short messages, of which there may be many.
const MIN_BUFFER: usize = 8 << 10;
/// The buffer of a connection with much data. More is no faster.
const MAX_BUFFER: usize = 128 << 10;
