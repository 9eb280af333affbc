//! `smc::smol` in place of `smol::net`, and the default endpoint on smol.
//!
//! Each test runs in a process of its own, with a runtime directory of its own.

#![cfg(feature = "smol")]
#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};

use futures_lite::future::zip;
use futures_lite::{AsyncReadExt, AsyncWriteExt};
use smc::Mode;
use smc::smol::{TcpListener, TcpStream};
use smc_testkit::port::HeldPort;
use smc_testkit::process::run_alone;
use smol::block_on;

/// A service and its client, for the types that a `use` declaration brings in.
macro_rules! service {
    ($module:ident: $($types:tt)+) => {
        mod $module {
            use std::io::{Error, ErrorKind, Result};
            use std::net::{Shutdown, SocketAddr};

            use futures_lite::prelude::*;
            use smol::io::{BufReader, copy, split};
            #[allow(
                unused_imports,
                reason = "extension traits of both kinds, which must not make a call ambiguous"
            )]
            use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
            use $($types)+;

            pub(super) async fn run() -> Result<()> {
                let listener = TcpListener::bind("127.0.0.1:0").await?;
                let addr = listener.local_addr()?;
                let server = smol::spawn(serve(listener.clone()));
                echo(addr).await?;
                lines(addr).await?;
                clones(addr).await?;
                halves(addr).await?;
                server.cancel().await;
                accept(listener, addr).await
            }

            async fn serve(listener: TcpListener) -> Result<()> {
                let mut incoming = listener.incoming();
                while let Some(stream) = incoming.next().await {
                    let stream = stream?;
                    stream.set_nodelay(true)?;
                    smol::spawn(async move { copy(stream.clone(), stream).await }).detach();
                }
                Ok(())
            }

            async fn accept(listener: TcpListener, addr: SocketAddr) -> Result<()> {
                let client = smol::spawn(TcpStream::connect(addr));
                let (stream, peer) = listener.accept().await?;
                assert_eq!(stream.peer_addr()?, peer);
                assert_eq!(client.await?.local_addr()?, peer);
                Ok(())
            }

            async fn echo(addr: SocketAddr) -> Result<()> {
                let mut stream = TcpStream::connect(addr).await?;
                assert_eq!(stream.peer_addr()?, addr);
                stream.write_all(b"hello").await?;
                stream.flush().await?;
                let mut read = [0; 5];
                assert!(stream.peek(&mut read).await? > 0);
                stream.read_exact(&mut read).await?;
                assert_eq!(&read, b"hello");
                stream.close().await?;
                assert_eq!(stream.read_to_end(&mut Vec::new()).await?, 0);
                Ok(())
            }

            async fn lines(addr: SocketAddr) -> Result<()> {
                let stream = TcpStream::connect(addr).await?;
                let mut writer = stream.clone();
                writer.write_all(b"one\ntwo\n").await?;
                writer.shutdown(Shutdown::Write)?;
                let mut lines = BufReader::new(stream).lines();
                let mut next = async || lines.next().await.transpose();
                assert_eq!(next().await?.as_deref(), Some("one"));
                assert_eq!(next().await?.as_deref(), Some("two"));
                assert_eq!(next().await?, None);
                Ok(())
            }

            async fn clones(addr: SocketAddr) -> Result<()> {
                let mut stream = TcpStream::connect(addr).await?;
                let mut clone = stream.clone();
                let reader = smol::spawn(async move {
                    let mut read = vec![0; 300_000];
                    clone.read_exact(&mut read).await.map(|()| read)
                });
                stream.write_all(&vec![7; 300_000]).await?;
                match reader.await?.iter().all(|byte| *byte == 7) {
                    true => Ok(()),
                    false => Err(Error::from(ErrorKind::InvalidData)),
                }
            }

            async fn halves(addr: SocketAddr) -> Result<()> {
                let (mut read, mut write) = split(TcpStream::connect(addr).await?);
                write.write_all(b"hello").await?;
                read.read_exact(&mut [0; 5]).await?;
                Ok(())
            }
        }
    };
}

/// The same at a UNIX socket.
macro_rules! unix_service {
    ($module:ident: $($types:tt)+) => {
        mod $module {
            use std::io::Result;
            use std::net::Shutdown;
            use std::path::Path;

            use futures_lite::prelude::*;
            use smol::io::{BufReader, copy};
            use $($types)+;

            pub(super) async fn run(path: &Path) -> Result<()> {
                let listener = UnixListener::bind(path)?;
                assert_eq!(listener.local_addr()?.as_pathname(), Some(path));
                let server = smol::spawn(serve(listener.clone()));
                echo(path).await?;
                lines(path).await?;
                server.cancel().await;
                let (mut one, mut other) = UnixStream::pair()?;
                one.write_all(b"hello").await?;
                other.read_exact(&mut [0; 5]).await?;
                let client = smol::spawn(UnixStream::connect(path.to_owned()));
                let (_stream, peer) = listener.accept().await?;
                assert!(peer.is_unnamed());
                assert!(client.await?.local_addr()?.is_unnamed());
                Ok(())
            }

            async fn serve(listener: UnixListener) -> Result<()> {
                let mut incoming = listener.incoming();
                while let Some(stream) = incoming.next().await {
                    let stream = stream?;
                    smol::spawn(async move { copy(stream.clone(), stream).await }).detach();
                }
                Ok(())
            }

            async fn echo(path: &Path) -> Result<()> {
                let mut stream = UnixStream::connect(path).await?;
                assert_eq!(stream.peer_addr()?.as_pathname(), Some(path));
                stream.write_all(b"hello").await?;
                let mut read = [0; 5];
                stream.read_exact(&mut read).await?;
                assert_eq!(&read, b"hello");
                stream.close().await?;
                assert_eq!(stream.read_to_end(&mut Vec::new()).await?, 0);
                Ok(())
            }

            async fn lines(path: &Path) -> Result<()> {
                let stream = UnixStream::connect(path).await?;
                let mut writer = stream.clone();
                writer.write_all(b"one\ntwo\n").await?;
                writer.shutdown(Shutdown::Write)?;
                let mut lines = BufReader::new(stream).lines();
                let mut next = async || lines.next().await.transpose();
                assert_eq!(next().await?.as_deref(), Some("one"));
                assert_eq!(next().await?.as_deref(), Some("two"));
                assert_eq!(next().await?, None);
                Ok(())
            }
        }
    };
}

service!(before: smol::net::{TcpListener, TcpStream});
service!(after: smc::smol::{TcpListener, TcpStream});
unix_service!(unix_before: smol::net::unix::{UnixListener, UnixStream});
unix_service!(unix_after: smc::smol::{UnixListener, UnixStream});

/// Runs the calling test in a process with a runtime directory of its own. True there.
fn is_alone() -> bool {
    let dir = tempfile::tempdir().unwrap();
    let errors = run_alone(|command| {
        for name in [
            "SMC_POLICY",
            "SMC_RECV_BUFFER",
            "SMC_POLLING",
            "SMC_SOCKET_REUSE",
        ] {
            command.env_remove(name);
        }
        command.env("SMC_RUNTIME_DIR", dir.path());
    });
    errors.is_none()
}

#[test]
fn a_service_changes_its_use_declarations_only() {
    if is_alone() {
        block_on(before::run()).unwrap();
        block_on(after::run()).unwrap();
    }
}

#[test]
fn a_service_at_a_unix_socket_changes_its_use_declarations_only() {
    if is_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.sock");
        block_on(unix_before::run(&path)).unwrap();
        std::fs::remove_file(&path).unwrap();
        block_on(unix_after::run(&path)).unwrap();
    }
}

#[test]
fn both_ends_of_a_unix_socket_are_smc_d() {
    if !is_alone() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.sock");
    block_on(async {
        let listener = smc::smol::UnixListener::bind(&path).unwrap();
        let connecting = smc::smol::UnixStream::connect(&path);
        let (connected, accepted) = zip(connecting, listener.accept()).await;
        for stream in [connected.unwrap(), accepted.unwrap().0] {
            assert!(matches!(stream.mode(), Mode::SmcD { .. }), "{stream:?}");
        }
    });
}

#[test]
fn both_ends_are_smc_d() {
    if !is_alone() {
        return;
    }
    block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (connected, accepted) = zip(TcpStream::connect(addr), listener.accept()).await;
        let (mut near, (mut far, _peer)) = (connected.unwrap(), accepted.unwrap());
        near.write_all(b"hello").await.unwrap();
        far.read_exact(&mut [0; 5]).await.unwrap();
        for stream in [near, far] {
            assert!(matches!(stream.mode(), Mode::SmcD { .. }), "{stream:?}");
        }
        assert_eq!(smc::smol::endpoint().unwrap().listener_infos().len(), 1);
    });
}

#[test]
fn names_and_several_addresses_are_tried_in_order() {
    if !is_alone() {
        return;
    }
    block_on(async {
        let refused = HeldPort::of(Ipv4Addr::LOCALHOST).unwrap();
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let bound = [taken.local_addr().unwrap(), ([127, 0, 0, 1], 0).into()];
        let listener = TcpListener::bind(&bound[..]).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let accept = async || listener.accept().await.unwrap();

        let addresses = [refused.addr(), addr];
        let (stream, _) = zip(TcpStream::connect(&addresses[..]), accept()).await;
        assert_eq!(stream.unwrap().peer_addr().unwrap(), addr);
        let name = format!("localhost:{}", addr.port());
        let (stream, _) = zip(TcpStream::connect(name), accept()).await;
        assert_eq!(stream.unwrap().peer_addr().unwrap(), addr);

        let error = TcpStream::connect(refused.addr()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let none: &[SocketAddr] = &[];
        let error = TcpStream::connect(none).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let error = TcpListener::bind(none).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn a_socket_that_listens_is_taken_over() {
    if !is_alone() {
        return;
    }
    block_on(async {
        let passed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = passed.local_addr().unwrap();
        let listener = TcpListener::try_from(passed).unwrap();
        let (connected, accepted) = zip(TcpStream::connect(addr), listener.accept()).await;
        for stream in [connected.unwrap(), accepted.unwrap().0] {
            assert!(matches!(stream.mode(), Mode::SmcD { .. }), "{stream:?}");
        }
    });
}
