//! Streams and halves with the traits of tokio, for each kind of socket.

/// Implements a stream type around [`Stream`](crate::Stream), and makes its halves.
macro_rules! stream_types {
    ($stream:ident) => {
        impl $stream {
            /// Waits until reading or writing, whichever is of interest, would not wait. Cancel
            /// safe.
            ///
            /// # Errors
            ///
            /// When the runtime's reactor is gone.
            pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
                let wanted = match (interest.is_readable(), interest.is_writable()) {
                    (true, true) => stream::Interest::READABLE | stream::Interest::WRITABLE,
                    (false, true) => stream::Interest::WRITABLE,
                    _ => stream::Interest::READABLE,
                };
                let found = self.0.ready(wanted).await?;
                let mut ready = Ready::EMPTY;
                if found.readable {
                    ready |= Ready::READABLE;
                }
                if found.writable {
                    ready |= Ready::WRITABLE;
                }
                Ok(ready)
            }

            /// As [`Stream::poll_peek`].
            ///
            /// # Errors
            ///
            /// As reading.
            pub fn poll_peek(
                &self,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<usize>> {
                let count = ready!(self.0.poll_peek(cx, buf.initialize_unfilled()))?;
                buf.advance(count);
                Poll::Ready(Ok(count))
            }

            /// Splits into halves that borrow the stream, for use in one task.
            pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
                let (read, write) = self.0.split();
                (ReadHalf(read), WriteHalf(write))
            }

            /// Splits into halves that can move to different tasks. Dropping the writing half shuts
            /// writing down, unless it was forgotten.
            #[must_use]
            pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
                let (read, write) = self.0.into_split();
                (OwnedReadHalf(read), OwnedWriteHalf(write))
            }
        }

        impl From<$stream> for Stream {
            fn from(stream: $stream) -> Self {
                stream.0
            }
        }

        /// The reading half of `split`.
        pub struct ReadHalf<'a>(stream::ReadHalf<'a>);

        /// The writing half of `split`.
        pub struct WriteHalf<'a>(stream::WriteHalf<'a>);

        /// The reading half of `into_split`.
        pub struct OwnedReadHalf(stream::OwnedReadHalf);

        /// The writing half of `into_split`. Dropping it shuts writing down.
        pub struct OwnedWriteHalf(stream::OwnedWriteHalf);

        peek!(ReadHalf<'_>, OwnedReadHalf);

        impl OwnedReadHalf {
            /// Puts the halves of one stream together again.
            ///
            /// # Errors
            ///
            /// [`ReuniteError`] with both halves when they are of different streams.
            pub fn reunite(self, write: OwnedWriteHalf) -> Result<$stream, ReuniteError> {
                reunite(self, write)
            }
        }

        impl OwnedWriteHalf {
            /// Puts the halves of one stream together again.
            ///
            /// # Errors
            ///
            /// [`ReuniteError`] with both halves when they are of different streams.
            pub fn reunite(self, read: OwnedReadHalf) -> Result<$stream, ReuniteError> {
                reunite(read, self)
            }

            /// Drops the half without shutting writing down.
            pub fn forget(self) {
                self.0.forget();
            }
        }

        fn reunite(read: OwnedReadHalf, write: OwnedWriteHalf) -> Result<$stream, ReuniteError> {
            match read.0.reunite(write.0) {
                Ok(stream) => Ok($stream(stream)),
                Err(stream::ReuniteError(read, write)) => {
                    Err(ReuniteError(OwnedReadHalf(read), OwnedWriteHalf(write)))
                }
            }
        }

        /// The halves are not of one stream; both are returned.
        #[derive(Debug, thiserror::Error)]
        #[error("tried to reunite halves that are not from the same socket")]
        #[expect(
            clippy::exhaustive_structs,
            reason = "tokio's error has these two fields as well"
        )]
        pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

        wrapper! {
            $stream: Stream;
            ReadHalf<'a>: stream::ReadHalf<'a>;
            WriteHalf<'a>: stream::WriteHalf<'a>;
            OwnedReadHalf: stream::OwnedReadHalf;
            OwnedWriteHalf: stream::OwnedWriteHalf;
        }
        read!($stream, ReadHalf<'_>, OwnedReadHalf);
        buf_read!(ReadHalf<'_>, OwnedReadHalf);
        write!($stream, WriteHalf<'_>, OwnedWriteHalf);
    };
}

macro_rules! peek {
    ($($half:ty),+) => {$(
        impl $half {
            /// As [`Stream::peek`].
            ///
            /// # Errors
            ///
            /// As reading.
            pub async fn peek(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                self.0.peek(buf).await
            }

            /// As `peek` for use in a poll function.
            ///
            /// # Errors
            ///
            /// As reading.
            pub fn poll_peek(
                &mut self,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<usize>> {
                let count = ready!(self.0.poll_peek(cx, buf.initialize_unfilled()))?;
                buf.advance(count);
                Poll::Ready(Ok(count))
            }
        }
    )+};
}

/// Types with tokio's traits alone, of those that have the traits of futures-io, too.
macro_rules! wrapper {
    ($($type:ident $(<$lifetime:lifetime>)?: $inner:ty;)+) => {$(
        impl $(<$lifetime>)? Deref for $type $(<$lifetime>)? {
            type Target = $inner;

            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }

        impl $(<$lifetime>)? From<$inner> for $type $(<$lifetime>)? {
            fn from(inner: $inner) -> Self {
                Self(inner)
            }
        }

        impl $(<$lifetime>)? fmt::Debug for $type $(<$lifetime>)? {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}

macro_rules! read {
    ($($type:ty),+) => {$(
        impl AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                AsyncRead::poll_read(Pin::new(&mut self.get_mut().0), cx, buf)
            }
        }
    )+};
}

/// Not for the stream: `split` would be that of tokio's `AsyncBufReadExt`, where it is in scope.
macro_rules! buf_read {
    ($($type:ty),+) => {$(
        impl AsyncBufRead for $type {
            fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
                AsyncBufRead::poll_fill_buf(Pin::new(&mut self.get_mut().0), cx)
            }

            fn consume(self: Pin<&mut Self>, amt: usize) {
                AsyncBufRead::consume(Pin::new(&mut self.get_mut().0), amt);
            }
        }
    )+};
}

macro_rules! write {
    ($($type:ty),+) => {$(
        impl AsyncWrite for $type {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &[u8],
            ) -> Poll<io::Result<usize>> {
                AsyncWrite::poll_write(Pin::new(&mut self.get_mut().0), cx, buf)
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                AsyncWrite::poll_flush(Pin::new(&mut self.get_mut().0), cx)
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                AsyncWrite::poll_shutdown(Pin::new(&mut self.get_mut().0), cx)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                AsyncWrite::poll_write_vectored(Pin::new(&mut self.get_mut().0), cx, bufs)
            }

            fn is_write_vectored(&self) -> bool {
                self.0.is_write_vectored()
            }
        }
    )+};
}

pub(super) use {buf_read, peek, read, stream_types, wrapper, write};
