//! Streams with the traits of futures-io whose clones are the same stream, for each kind of socket.

/// Implements a stream type around `Arc<Stream>`.
macro_rules! stream_type {
    ($stream:ident) => {
        impl $stream {
            /// As [`Stream::shutdown_how`].
            ///
            /// # Errors
            ///
            /// As [`Stream::shutdown_how`].
            pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
                self.0.shutdown_how(how)
            }

            /// The stream, if this is its only clone; otherwise this clone.
            ///
            /// # Errors
            ///
            /// This clone.
            pub fn try_into_stream(self) -> Result<Stream, Self> {
                Arc::try_unwrap(self.0).map_err(Self)
            }
        }

        impl From<Stream> for $stream {
            fn from(stream: Stream) -> Self {
                Self(Arc::new(stream))
            }
        }

        impl Deref for $stream {
            type Target = Stream;

            fn deref(&self) -> &Stream {
                &self.0
            }
        }

        impl fmt::Debug for $stream {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl AsyncRead for $stream {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                Pin::new(&mut &*self.0).poll_read(cx, buf)
            }

            fn poll_read_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &mut [IoSliceMut<'_>],
            ) -> Poll<io::Result<usize>> {
                Pin::new(&mut &*self.0).poll_read_vectored(cx, bufs)
            }
        }

        impl AsyncWrite for $stream {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &[u8],
            ) -> Poll<io::Result<usize>> {
                Pin::new(&mut &*self.0).poll_write(cx, buf)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                Pin::new(&mut &*self.0).poll_write_vectored(cx, bufs)
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Pin::new(&mut &*self.0).poll_flush(cx)
            }

            fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Pin::new(&mut &*self.0).poll_close(cx)
            }
        }
    };
}

pub(super) use stream_type;
