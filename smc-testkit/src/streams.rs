//! Streams between two endpoints, and what is expected of them.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::io::{self, ErrorKind};

pub use futures::future::join_all;
use futures_lite::future::zip;
use futures_lite::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use smc::{Endpoint, Listener, Stream};

/// A new stream between an endpoint and a listener: the client's and the server's end.
///
/// # Panics
///
/// If either of the two fails.
pub async fn connect(client: &Endpoint, listener: &Listener) -> (Stream, Stream) {
    let addr = listener.local_addr().unwrap();
    let (connected, accepted) = zip(client.connect(addr), listener.accept()).await;
    (connected.unwrap(), accepted.unwrap().0)
}

/// The same, where both ends have to be SMC.
///
/// # Panics
///
/// If an end is TCP, or as [`connect`].
pub async fn connect_smc(client: &Endpoint, listener: &Listener) -> (Stream, Stream) {
    let (connected, accepted) = connect(client, listener).await;
    for stream in [&connected, &accepted] {
        assert!(stream.mode().is_smc(), "{}", stream.mode());
    }
    (connected, accepted)
}

/// So many streams between an endpoint and a listener.
///
/// # Panics
///
/// As [`connect`].
pub async fn connect_many(
    client: &Endpoint,
    listener: &Listener,
    count: usize,
) -> Vec<(Stream, Stream)> {
    let mut streams = Vec::new();
    for _ in 0..count {
        streams.push(connect(client, listener).await);
    }
    streams
}

/// A new stream between two endpoints of this host, by a listener of its own.
///
/// # Panics
///
/// As [`connect`].
pub async fn pair(client: &Endpoint, server: &Endpoint) -> (Stream, Stream) {
    connect(client, &listen(server).await).await
}

/// A listener at any port of this host.
///
/// # Panics
///
/// If there is none.
pub async fn listen(server: &Endpoint) -> Listener {
    server.bind("127.0.0.1:0").await.unwrap()
}

/// Byte `at` of a recognisable stream.
#[must_use]
pub fn pattern(at: usize) -> u8 {
    ((7 * at + 13 * (at >> 8)) & 255) as u8
}

/// The first bytes of that stream.
#[must_use]
pub fn patterned(len: usize) -> Vec<u8> {
    (0..len).map(pattern).collect()
}

/// Checks bytes of that stream, of which the first is at `start`.
///
/// # Panics
///
/// At the first byte that is wrong.
pub fn check_pattern(start: usize, bytes: &[u8]) {
    for (at, byte) in (start..).zip(bytes) {
        assert_eq!(*byte, pattern(at), "byte {at}");
    }
}

/// Reads so many bytes, which have to be these.
///
/// # Panics
///
/// If other bytes come, or fewer.
pub async fn expect(stream: &mut (impl AsyncRead + Unpin), bytes: impl AsRef<[u8]>) {
    let expected = bytes.as_ref();
    let mut read = vec![0; expected.len()];
    stream.read_exact(&mut read).await.unwrap();
    assert!(read == expected, "{}", difference(&read, expected));
}

/// Reads to the end of the stream, up to which these bytes have to come.
///
/// # Panics
///
/// If other bytes come, or the stream ends otherwise.
pub async fn expect_rest(stream: &mut (impl AsyncRead + Unpin), bytes: impl AsRef<[u8]>) {
    let (read, end) = read_all(stream).await;
    let expected = bytes.as_ref();
    assert!(read == expected, "{}", difference(&read, expected));
    end.unwrap();
}

/// Reads these bytes, and then an error of this kind.
///
/// # Panics
///
/// If other bytes come, or the stream ends otherwise.
pub async fn expect_rest_and_error(
    stream: &mut (impl AsyncRead + Unpin),
    bytes: impl AsRef<[u8]>,
    kind: ErrorKind,
) {
    let (read, end) = read_all(stream).await;
    let expected = bytes.as_ref();
    assert!(read == expected, "{}", difference(&read, expected));
    assert_eq!(end.unwrap_err().kind(), kind);
}

/// A read fails with an error of this kind.
///
/// # Panics
///
/// If it reads something, or fails otherwise.
pub async fn expect_error(stream: &mut (impl AsyncRead + Unpin), kind: ErrorKind) {
    let error = stream.read(&mut [0; 8]).await.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
}

/// A write fails with an error of this kind.
///
/// # Panics
///
/// If it writes something, or fails otherwise.
pub async fn expect_write_error(stream: &mut (impl AsyncWrite + Unpin), kind: ErrorKind) {
    let error = stream.write(b"refused").await.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
}

/// What arrives before the end of a stream, and the end.
pub async fn read_all(stream: &mut (impl AsyncRead + Unpin)) -> (Vec<u8>, io::Result<()>) {
    let mut read = Vec::new();
    let end = stream.read_to_end(&mut read).await;
    (read, end.map(drop))
}

/// Long sequences are compared by their lengths, and short ones are shown.
fn difference(read: &[u8], expected: &[u8]) -> String {
    match read.len().max(expected.len()) {
        ..=200 => format!("{read:?} instead of {expected:?}"),
        _ => format!(
            "{} bytes, and not the {} expected",
            read.len(),
            expected.len()
        ),
    }
}

/// A word each way.
///
/// # Panics
///
/// If it does not arrive.
pub async fn ping_pong((client, server): &mut (Stream, Stream)) {
    client.write_all(b"ping").await.unwrap();
    expect(server, b"ping").await;
    server.write_all(b"pong").await.unwrap();
    expect(client, b"pong").await;
}

/// Sends the pattern one way, and compares what arrives.
///
/// # Panics
///
/// If something else arrives.
pub async fn transfer(from: &mut Stream, to: &mut Stream, len: usize) {
    let data = patterned(len);
    let (sent, ()) = zip(from.write_all(&data), expect(to, &data)).await;
    sent.unwrap();
}

/// The same in both directions, one after the other.
///
/// # Panics
///
/// If something else arrives.
pub async fn transfer_both_ways(client: &mut Stream, server: &mut Stream, len: usize) {
    transfer(client, server, len).await;
    transfer(server, client, len).await;
}
