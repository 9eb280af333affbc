//! `smc::tokio` in place of `tokio::net`, and the default endpoint of a runtime.
//!
//! Each test runs in a process of its own, with a runtime directory of its own.

#![cfg(feature = "tokio")]
#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use futures_lite::StreamExt as _;
use futures_lite::future::{block_on, zip};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use smc::tokio::{TcpListener, TcpStream, UnixListener, UnixStream};
use smc::{FallbackCause, Mode};
use smc_testkit::port::HeldPort;
use smc_testkit::process::run_alone;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

/// A service and its client, for the types that a `use` declaration brings in.
macro_rules! service {
    ($module:ident: $($types:tt)+) => {
        mod $module {
            #[allow(
                unused_imports,
                reason = "extension traits of both kinds, which must not make a call ambiguous"
            )]
            use futures_lite::prelude::*;
            use tokio::io::{
                AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Interest, copy,
            };
            use $($types)+;

            pub(super) async fn run() -> std::io::Result<()> {
                let listener = TcpListener::bind("127.0.0.1:0").await?;
                let addr = listener.local_addr()?;
                let server = tokio::spawn(serve(listener));
                tokio::try_join!(echo(addr), lines(addr), readiness(addr), halves(addr))?;
                server.abort();
                Ok(())
            }

            async fn serve(listener: TcpListener) -> std::io::Result<()> {
                loop {
                    let (mut stream, peer) = listener.accept().await?;
                    assert_eq!(stream.peer_addr()?, peer);
                    stream.set_nodelay(true)?;
                    tokio::spawn(async move {
                        let (mut read, mut write) = stream.split();
                        copy(&mut read, &mut write).await
                    });
                }
            }

            async fn echo(addr: std::net::SocketAddr) -> std::io::Result<()> {
                let mut stream = TcpStream::connect(addr).await?;
                assert_eq!(stream.peer_addr()?, addr);
                assert!(stream.take_error()?.is_none());
                stream.write_all(b"hello").await?;
                stream.write_u16(7).await?;
                stream.flush().await?;
                let mut read = [0; 5];
                assert_eq!(stream.peek(&mut read).await?, 5);
                stream.read_exact(&mut read).await?;
                assert_eq!((&read, stream.read_u16().await?), (b"hello", 7));
                stream.shutdown().await?;
                assert_eq!(stream.read_to_end(&mut Vec::new()).await?, 0);
                Ok(())
            }

            async fn lines(addr: std::net::SocketAddr) -> std::io::Result<()> {
                let (read, mut write) = TcpStream::connect(addr).await?.into_split();
                write.write_all(b"one\ntwo\n").await?;
                drop(write); // shuts writing down
                let mut lines = BufReader::new(read).lines();
                assert_eq!(lines.next_line().await?.as_deref(), Some("one"));
                assert_eq!(lines.next_line().await?.as_deref(), Some("two"));
                assert_eq!(lines.next_line().await?, None);
                Ok(())
            }

            async fn readiness(addr: std::net::SocketAddr) -> std::io::Result<()> {
                let stream = TcpStream::connect(addr).await?;
                let nothing = stream.try_read(&mut [0; 5]).unwrap_err();
                assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
                stream.writable().await?;
                assert_eq!(stream.try_write(b"hello")?, 5);
                assert!(stream.ready(Interest::READABLE).await?.is_readable());
                stream.readable().await?;
                assert!(stream.try_read(&mut [0; 5])? > 0);
                Ok(())
            }

            async fn halves(addr: std::net::SocketAddr) -> std::io::Result<()> {
                let (mut read, mut write) = TcpStream::connect(addr).await?.into_split();
                let (other, _) = TcpStream::connect(addr).await?.into_split();
                let write_all = tokio::spawn(async move {
                    write.write_all(&vec![7; 300_000]).await.map(|()| write)
                });
                read.read_exact(&mut vec![0; 300_000]).await?;
                let error = other.reunite(write_all.await??).unwrap_err();
                let stream: TcpStream = read.reunite(error.1).unwrap();
                drop(stream);
                Ok(())
            }
        }
    };
}

/// The same over a UNIX socket.
macro_rules! unix_service {
    ($module:ident: $($types:tt)+) => {
        mod $module {
            use std::path::Path;

            #[allow(
                unused_imports,
                reason = "extension traits of both kinds, which must not make a call ambiguous"
            )]
            use futures_lite::prelude::*;
            use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, copy};
            use $($types)+;

            pub(super) async fn run(path: &Path) -> std::io::Result<()> {
                let listener = UnixListener::bind(path)?;
                let addr = listener.local_addr()?;
                assert_eq!(addr.as_pathname(), Some(path).filter(|path| path.is_absolute()));
                let server = tokio::spawn(serve(listener));
                echo(path).await?;
                halves(path).await?;
                server.abort();
                let _aborted = server.await; // the name is free then
                let (mut one, mut other) = UnixStream::pair()?;
                one.write_all(b"hello").await?;
                other.read_exact(&mut [0; 5]).await?;
                Ok(())
            }

            async fn serve(listener: UnixListener) -> std::io::Result<()> {
                loop {
                    let (mut stream, peer) = listener.accept().await?;
                    assert!(peer.is_unnamed());
                    assert_eq!(stream.peer_cred()?.uid(), rustix::process::geteuid().as_raw());
                    tokio::spawn(async move {
                        let (mut read, mut write) = stream.split();
                        copy(&mut read, &mut write).await
                    });
                }
            }

            async fn echo(path: &Path) -> std::io::Result<()> {
                let mut stream = UnixStream::connect(path).await?;
                let peer = stream.peer_addr()?;
                assert_eq!(peer.as_pathname(), Some(path).filter(|path| path.is_absolute()));
                assert!(stream.local_addr()?.is_unnamed());
                assert!(stream.take_error()?.is_none());
                stream.write_all(b"hello").await?;
                stream.readable().await?;
                assert!(stream.try_read(&mut [0; 5])? > 0);
                stream.shutdown().await?;
                stream.read_to_end(&mut Vec::new()).await?;
                Ok(())
            }

            async fn halves(path: &Path) -> std::io::Result<()> {
                let (read, mut write) = UnixStream::connect(path).await?.into_split();
                write.write_all(b"one\ntwo\n").await?;
                let mut lines = BufReader::new(read).lines();
                assert_eq!(lines.next_line().await?.as_deref(), Some("one"));
                drop(write); // shuts writing down
                assert_eq!(lines.next_line().await?.as_deref(), Some("two"));
                assert_eq!(lines.next_line().await?, None);
                let (read, write) = UnixStream::connect(path).await?.into_split();
                let stream: UnixStream = read.reunite(write).unwrap();
                drop(stream);
                Ok(())
            }
        }
    };
}

service!(before: tokio::net::{TcpListener, TcpStream});
service!(after: smc::tokio::{TcpListener, TcpStream});
unix_service!(unix_before: tokio::net::{UnixListener, UnixStream});
unix_service!(unix_after: smc::tokio::{UnixListener, UnixStream});

/// Runs the calling test in a process with this runtime directory and these variables. `None`
/// there, and here what it wrote to standard error.
fn alone_with(variables: &[(&str, &str)]) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    run_alone(|command| {
        for name in [
            "SMC_POLICY",
            "SMC_RECV_BUFFER",
            "SMC_POLLING",
            "SMC_SOCKET_REUSE",
        ] {
            command.env_remove(name);
        }
        command.env("SMC_RUNTIME_DIR", dir.path());
        command.envs(variables.iter().copied());
    })
}

/// The modes of a client and of its server.
async fn modes() -> [Mode; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (connected, accepted) = zip(TcpStream::connect(addr), listener.accept()).await;
    let (mut near, (mut far, _peer)) = (connected.unwrap(), accepted.unwrap());
    near.write_all(b"hello").await.unwrap();
    far.read_exact(&mut [0; 5]).await.unwrap();
    [near.mode().clone(), far.mode().clone()]
}

async fn assert_smc_d() {
    for mode in modes().await {
        assert!(matches!(mode, Mode::SmcD { .. }), "{mode}");
    }
}

#[test]
fn a_service_changes_its_use_declarations_only() {
    if alone_with(&[]).is_some() {
        return;
    }
    let runtime = Runtime::new().unwrap();
    runtime.block_on(before::run()).unwrap();
    runtime.block_on(after::run()).unwrap();
}

#[test]
fn a_service_at_a_unix_socket_changes_its_use_declarations_only() {
    if alone_with(&[]).is_some() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let runtime = Runtime::new().unwrap();
    for (name, is_abstract) in [("app", false), ("app", true)] {
        let path = directory.path().join(name);
        let path = match is_abstract {
            true => PathBuf::from(format!("\0{}", path.display())),
            false => path,
        };
        runtime.block_on(unix_before::run(&path)).unwrap();
        let _removed = std::fs::remove_file(&path);
        runtime.block_on(unix_after::run(&path)).unwrap();
    }
}

#[test]
fn both_ends_of_a_unix_socket_are_smc_d() {
    if alone_with(&[]).is_some() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.sock");
    Runtime::new().unwrap().block_on(async {
        let listener = UnixListener::bind(&path).unwrap();
        let mut clients = Vec::new();
        for _ in 0..100 {
            clients.push(tokio::spawn(UnixStream::connect(path.clone())));
        }
        let mut servers = Vec::new();
        for _ in 0..100 {
            servers.push(listener.accept().await.unwrap().0);
        }
        for client in clients {
            servers.push(client.await.unwrap().unwrap());
        }
        for stream in servers {
            assert!(matches!(stream.mode(), Mode::SmcD { .. }), "{stream:?}");
        }
    });
}

#[test]
fn both_ends_are_smc_d() {
    let Some(errors) = alone_with(&[]) else {
        return Runtime::new().unwrap().block_on(assert_smc_d());
    };
    assert_eq!(errors, "");
}

#[test]
fn names_and_several_addresses_are_tried_in_order() {
    if alone_with(&[]).is_some() {
        return;
    }
    Runtime::new().unwrap().block_on(async {
        let refused = HeldPort::of(Ipv4Addr::LOCALHOST).unwrap();
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let bound = [taken.local_addr().unwrap(), ([127, 0, 0, 1], 0).into()];
        let listener = TcpListener::bind(&bound[..]).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let accept = async || listener.accept().await.unwrap();

        let addresses = [refused.addr(), addr];
        let (stream, _) = zip(TcpStream::connect(&addresses[..]), accept()).await;
        assert_eq!(stream.unwrap().peer_addr().unwrap(), addr);
        let (stream, _) = zip(TcpStream::connect(("localhost", addr.port())), accept()).await;
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
    if alone_with(&[]).is_some() {
        return;
    }
    Runtime::new().unwrap().block_on(async {
        let passed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = passed.local_addr().unwrap();
        let listener = TcpListener::try_from(passed).unwrap();
        let (connected, accepted) = zip(TcpStream::connect(addr), listener.accept()).await;
        for stream in [connected.unwrap(), accepted.unwrap().0] {
            assert!(matches!(stream.mode(), Mode::SmcD { .. }), "{stream:?}");
        }
    });
}

#[test]
fn each_runtime_has_an_endpoint_as_long_as_it_lasts() {
    if alone_with(&[]).is_some() {
        return;
    }
    let (first, second) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let connections = async || smc::tokio::endpoint().unwrap().connections().len();
    let open = async || {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (connected, accepted) = zip(TcpStream::connect(addr), listener.accept()).await;
        (connected.unwrap(), accepted.unwrap().0)
    };
    let of_first = first.block_on(open());
    assert_eq!(first.block_on(connections()), 2);
    assert_eq!(second.block_on(connections()), 0);
    second.block_on(assert_smc_d());

    // A stream may be used on another runtime while that of its endpoint runs.
    let (mut near, mut far) = of_first;
    second.block_on(async {
        near.write_all(b"hello").await.unwrap();
        far.read_exact(&mut [0; 5]).await.unwrap();
    });
    drop(first);
    let error = second.block_on(near.read(&mut [0; 5])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
    second.block_on(assert_smc_d());
    for _ in 0..3 {
        Runtime::new().unwrap().block_on(assert_smc_d());
    }
}

#[test]
fn outside_of_a_runtime_there_is_an_error() {
    if alone_with(&[]).is_some() {
        return;
    }
    let addr = SocketAddr::from(([127, 0, 0, 1], 1));
    let listening = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for error in [
        block_on(TcpStream::connect(addr)).unwrap_err(),
        block_on(TcpListener::bind(addr)).unwrap_err(),
        TcpListener::from_std(listening).unwrap_err(),
        smc::tokio::endpoint().map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}

#[test]
fn the_policy_never_makes_streams_tcp() {
    if alone_with(&[("SMC_POLICY", "never")]).is_some() {
        return;
    }
    for mode in Runtime::new().unwrap().block_on(modes()) {
        let reason = mode.fallback_reason().expect("a stream over TCP");
        assert_eq!(reason.cause, FallbackCause::Policy, "{mode}");
    }
}

#[test]
fn a_variable_without_meaning_is_one_line_and_has_no_effect() {
    let Some(errors) = alone_with(&[("SMC_POLICY", "bad")]) else {
        let runtime = Runtime::new().unwrap();
        runtime.block_on(assert_smc_d());
        return Runtime::new().unwrap().block_on(assert_smc_d());
    };
    assert_eq!(errors.lines().count(), 1, "{errors}");
    let begin = "smc: SMC_POLICY=\"bad\" has no effect: ";
    assert!(errors.starts_with(begin), "{errors}");
}

#[test]
fn without_a_runtime_directory_streams_are_tcp_with_the_cause() {
    if alone_with(&[("SMC_RUNTIME_DIR", "/proc/none/smc")]).is_some() {
        return;
    }
    for mode in Runtime::new().unwrap().block_on(modes()) {
        let reason = mode.fallback_reason().expect("a stream over TCP");
        assert!(reason.to_string().contains("/proc/none/smc"), "{mode}");
    }
}

#[test]
fn a_lack_of_descriptors_at_the_first_use_passes() {
    if alone_with(&[]).is_some() {
        return;
    }
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
    };
    runtime().unwrap().block_on(async {
        tokio::time::pause();
        let limit = getrlimit(Resource::Nofile);
        let in_use = std::fs::read_dir("/proc/self/fd").unwrap().count();
        let few = Some(in_use as u64 + 2);
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: few,
                ..limit
            },
        )
        .unwrap();
        let endpoint = smc::tokio::endpoint().unwrap();
        setrlimit(Resource::Nofile, limit).unwrap();
        assert_eq!(endpoint.devices().count(), 0);
        for mode in modes().await {
            let reason = mode.fallback_reason().expect("a stream over TCP");
            let cause = reason.cause.to_string();
            assert!(
                cause.starts_with("default endpoint has no device: "),
                "{cause}"
            );
        }
        tokio::time::advance(Duration::from_secs(10)).await;
        tokio::time::resume();
        assert_smc_d().await;
    });
}

#[test]
fn without_a_descriptor_at_the_first_use_no_setting_is_lost() {
    if alone_with(&[("SMC_POLICY", "never")]).is_some() {
        return;
    }
    Runtime::new().unwrap().block_on(async {
        let limit = getrlimit(Resource::Nofile);
        let none = Some(3);
        let current = Rlimit {
            current: none,
            ..limit
        };
        setrlimit(Resource::Nofile, current).unwrap();
        let error = smc::tokio::endpoint().map(drop).unwrap_err();
        setrlimit(Resource::Nofile, limit).unwrap();
        assert!(error.to_string().contains("os error 24"), "{error}");
        for mode in modes().await {
            let reason = mode.fallback_reason().expect("a stream over TCP");
            assert_eq!(reason.cause, FallbackCause::Policy, "{mode}");
        }
    });
}

#[test]
fn names_are_removed_when_the_runtime_ends() {
    if alone_with(&[]).is_some() {
        return;
    }
    let dir = std::env::var_os("SMC_RUNTIME_DIR").unwrap();
    let names = || std::fs::read_dir(&dir).unwrap().count();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(assert_smc_d());
    assert!(names() > 0);
    drop(runtime);
    smc_testkit::wait::until(|| names() == 0, || format!("{} names", names()));
}

#[test]
fn incoming_ends_with_its_listener() {
    if alone_with(&[]).is_some() {
        return;
    }
    Runtime::new().unwrap().block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let mut incoming = listener.into_incoming();
        let (connected, accepted) = zip(TcpStream::connect(addr), incoming.next()).await;
        let accepted = accepted.unwrap().unwrap();
        assert_eq!(
            accepted.peer_addr().unwrap(),
            connected.unwrap().local_addr().unwrap()
        );
        smc::tokio::endpoint().unwrap().close().await;
        let error = incoming.next().await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(incoming.next().await.is_none());
    });
}
