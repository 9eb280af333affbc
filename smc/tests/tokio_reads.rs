//! Streams that stayed TCP, read by tokio into buffers that are not clear.

#![cfg(feature = "tokio")]
#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::future::poll_fn;
use std::io::Write;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener};
use std::pin::Pin;
use std::thread;

use smc::{Builder, Stream};
use tokio::io::{AsyncRead, ReadBuf};

#[test]
fn whatever_the_room_all_bytes_come_in_order_and_then_the_end() {
    for space in [1, 700, 8 * 1024, 16 * 1024, 16 * 1024 + 1, 300_000] {
        let sent: Vec<u8> = (0..400_000_u32).map(|at| (at % 251) as u8).collect();
        let sent = &sent[..sent.len().min(space * 1000)];
        let read = with_peer_that_sends(&[&sent[..100], &sent[100..]], async |mut stream| {
            let mut read = Vec::new();
            while read_some(&mut stream, space, &mut read).await > 0 {}
            read
        });
        assert!(read == sent, "{} bytes of {}", read.len(), sent.len());
    }
}

#[test]
fn what_is_in_the_buffer_already_stays() {
    let read = with_peer_that_sends(&[b"hello, ", b"world"], async |mut stream| {
        let mut space = [MaybeUninit::uninit(); 64];
        let mut buf = ReadBuf::uninit(&mut space);
        buf.put_slice(b"Oh: ");
        while buf.filled().len() < 16 {
            let before = buf.filled().len();
            poll_fn(|cx| Pin::new(&mut stream).poll_read(cx, &mut buf))
                .await
                .unwrap();
            assert!(buf.filled().len() > before, "the stream ended early");
        }
        buf.filled().to_vec()
    });
    assert_eq!(read, b"Oh: hello, world");
}

#[test]
fn the_receive_queue_has_what_was_not_read() {
    with_peer_that_sends(&[b"hello, world"], async |mut stream| {
        // The peer has written everything at once.
        stream.readable().await.unwrap();
        assert_eq!(stream.recv_queue_len().unwrap(), 12);
        let peeked = stream.peek(&mut [0; 64]).await.unwrap();
        assert_eq!(peeked, 12);
        tokio::io::AsyncReadExt::read_exact(&mut stream, &mut [0; 5])
            .await
            .unwrap();
        assert_eq!(stream.recv_queue_len().unwrap(), 7);
        let buffered = futures_lite::AsyncBufReadExt::fill_buf(&mut stream).await;
        assert_eq!(buffered.unwrap(), b", world");
        assert_eq!(stream.recv_queue_len().unwrap(), 7, "is in a buffer here");
        let kind = stream.send_queue_len().unwrap_err().kind();
        assert_eq!(kind, std::io::ErrorKind::Unsupported);
    });
}

/// Reads once into a buffer of unwritten bytes. Returns the number of bytes.
async fn read_some(stream: &mut Stream, space: usize, into: &mut Vec<u8>) -> usize {
    let mut space = vec![MaybeUninit::uninit(); space];
    let mut buf = ReadBuf::uninit(&mut space);
    poll_fn(|cx| Pin::new(&mut *stream).poll_read(cx, &mut buf))
        .await
        .unwrap();
    into.extend_from_slice(buf.filled());
    buf.filled().len()
}

/// What `reader` makes of a connection to a plain socket that writes these and closes.
fn with_peer_that_sends<T>(writes: &[&[u8]], reader: impl AsyncFnOnce(Stream) -> T) -> T {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut peer, _) = listener.accept().unwrap();
            for data in writes {
                peer.write_all(data).unwrap();
            }
        });
        runtime.block_on(async {
            let endpoint = Builder::tokio().build().unwrap();
            let stream = endpoint.connect(at).await.unwrap();
            assert!(stream.fallback_reason().is_some());
            reader(stream).await
        })
    })
}
