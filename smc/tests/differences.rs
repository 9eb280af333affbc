//! The table of differences from tokio's and std's types, which is a page of the manual: it names
//! all methods, and those that are the same are called with both types.

#![cfg(feature = "tokio")]
#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]
#![allow(
    unused_variables,
    unused_mut,
    deprecated,
    dropping_copy_types,
    reason = "all calls have one form"
)]
#![allow(
    clippy::needless_borrow,
    clippy::drop_non_drop,
    reason = "borrowed explicitly where a shared reference is enough, and dropped whatever it is"
)]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use smc::Stream;
use smc::tokio::{tcp as smc_tcp, unix as smc_unix};
use tokio::io::{Interest, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream, tcp, unix};

const MANUAL: &str = include_str!("../src/manual/differences.md");

/// Pairs of types, with what is called of both. Returns the names of the methods.
macro_rules! same {
    ($($theirs:ty, $ours:ty: { $($name:ident: |$end:ident, $cx:ident| $call:expr;)* })*) => {{
        $($(
            let _both = (
                |mut $end: $theirs, $cx: &mut std::task::Context<'_>| drop($call),
                |mut $end: $ours, $cx: &mut std::task::Context<'_>| drop($call),
            );
        )*)*
        BTreeSet::from([$($(stringify!($name)),*),*])
    }};
}

#[test]
fn what_is_the_same_in_the_manual_can_be_called_with_both_types() {
    let stream = same! {
        TcpStream, smc::tokio::TcpStream: {
            into_split: |end, cx| end.into_split();
            linger: |end, cx| end.linger().map(|time| time.map(|time| time.as_secs()));
            local_addr: |end, cx| end.local_addr().map(|addr| addr.port());
            nodelay: |end, cx| end.nodelay().map(|on| !on);
            peek: |end, cx| (&end).peek(&mut [0]);
            peer_addr: |end, cx| end.peer_addr().map(|addr| addr.port());
            poll_peek: |end, cx| (&end).poll_peek(cx, &mut ReadBuf::new(&mut [0]));
            poll_read_ready: |end, cx| (&end).poll_read_ready(cx);
            poll_write_ready: |end, cx| (&end).poll_write_ready(cx);
            quickack: |end, cx| end.quickack().map(|on| !on);
            readable: |end, cx| (&end).readable();
            ready: |end, cx| (&end).ready(Interest::READABLE);
            set_nodelay: |end, cx| end.set_nodelay(true);
            set_quickack: |end, cx| end.set_quickack(true);
            set_ttl: |end, cx| end.set_ttl(1);
            set_zero_linger: |end, cx| end.set_zero_linger();
            split: |end, cx| end.split();
            take_error: |end, cx| end.take_error().map(|error| error.map(|error| error.kind()));
            try_read: |end, cx| (&end).try_read(&mut [0]);
            try_read_buf: |end, cx| (&end).try_read_buf(&mut Vec::new());
            try_read_vectored: |end, cx| (&end).try_read_vectored(&mut []);
            try_write: |end, cx| (&end).try_write(&[0]);
            try_write_vectored: |end, cx| (&end).try_write_vectored(&[]);
            ttl: |end, cx| end.ttl().map(u64::from);
            writable: |end, cx| (&end).writable();
        }
        (), (): {
            connect: |end, cx| (TcpStream::connect("a:1"), smc::tokio::TcpStream::connect("a:1"));
        }
    };
    assert_eq!(section("tokio's `TcpStream`").same, stream);

    let halves = same! {
        tcp::ReadHalf<'_>, smc_tcp::ReadHalf<'_>: {
            local_addr: |end, cx| end.local_addr().map(|addr| addr.port());
            peek: |end, cx| end.peek(&mut [0]);
            peer_addr: |end, cx| end.peer_addr().map(|addr| addr.port());
            poll_peek: |end, cx| end.poll_peek(cx, &mut ReadBuf::new(&mut [0]));
            readable: |end, cx| (&end).readable();
            try_read: |end, cx| (&end).try_read(&mut [0]);
            try_read_buf: |end, cx| (&end).try_read_buf(&mut Vec::new());
            try_read_vectored: |end, cx| (&end).try_read_vectored(&mut []);
        }
        tcp::WriteHalf<'_>, smc_tcp::WriteHalf<'_>: {
            local_addr: |end, cx| end.local_addr().map(|addr| addr.port());
            peer_addr: |end, cx| end.peer_addr().map(|addr| addr.port());
            try_write: |end, cx| (&end).try_write(&[0]);
            try_write_vectored: |end, cx| (&end).try_write_vectored(&[]);
            writable: |end, cx| (&end).writable();
        }
    };
    assert_eq!(section("tokio's `ReadHalf` and `WriteHalf`").same, halves);

    let halves = same! {
        tcp::OwnedReadHalf, smc_tcp::OwnedReadHalf: {
            local_addr: |end, cx| end.local_addr().map(|addr| addr.port());
            peek: |end, cx| end.peek(&mut [0]);
            peer_addr: |end, cx| end.peer_addr().map(|addr| addr.port());
            poll_peek: |end, cx| end.poll_peek(cx, &mut ReadBuf::new(&mut [0]));
            readable: |end, cx| (&end).readable();
            try_read: |end, cx| (&end).try_read(&mut [0]);
            try_read_buf: |end, cx| (&end).try_read_buf(&mut Vec::new());
            try_read_vectored: |end, cx| (&end).try_read_vectored(&mut []);
        }
        tcp::OwnedWriteHalf, smc_tcp::OwnedWriteHalf: {
            forget: |end, cx| end.forget();
            local_addr: |end, cx| end.local_addr().map(|addr| addr.port());
            peer_addr: |end, cx| end.peer_addr().map(|addr| addr.port());
            try_write: |end, cx| (&end).try_write(&[0]);
            try_write_vectored: |end, cx| (&end).try_write_vectored(&[]);
            writable: |end, cx| (&end).writable();
        }
        (tcp::OwnedReadHalf, tcp::OwnedWriteHalf), (smc_tcp::OwnedReadHalf, smc_tcp::OwnedWriteHalf): {
            reunite: |end, cx| end.0.reunite(end.1);
        }
        (tcp::OwnedWriteHalf, tcp::OwnedReadHalf), (smc_tcp::OwnedWriteHalf, smc_tcp::OwnedReadHalf): {
            reunite: |end, cx| end.0.reunite(end.1);
        }
    };
    let owned = "tokio's `OwnedReadHalf` and `OwnedWriteHalf`";
    assert_eq!(section(owned).same, halves);

    let listener = same! {
        TcpListener, smc::tokio::TcpListener: {
            accept: |end, cx| (&end).accept();
            local_addr: |end, cx| end.local_addr().map(|addr| addr.port());
            poll_accept: |end, cx| (&end).poll_accept(cx);
        }
        (), (): {
            bind: |end, cx| (TcpListener::bind("a:1"), smc::tokio::TcpListener::bind("a:1"));
            from_std: |end, cx| (TcpListener::from_std, smc::tokio::TcpListener::from_std);
        }
    };
    assert_eq!(section("tokio's `TcpListener`").same, listener);
    assert_eq!(section("tokio's `TcpSocket`").same, BTreeSet::new());

    let stream = same! {
        UnixStream, smc::tokio::UnixStream: {
            into_split: |end, cx| drop(end.into_split());
            local_addr: |end, cx| end.local_addr().map(|addr| addr.is_unnamed());
            peer_addr: |end, cx| end.peer_addr().map(|addr| addr.is_unnamed());
            peer_cred: |end, cx| end.peer_cred().map(|cred| (cred.uid(), cred.gid(), cred.pid()));
            poll_read_ready: |end, cx| (&end).poll_read_ready(cx);
            poll_write_ready: |end, cx| (&end).poll_write_ready(cx);
            readable: |end, cx| (&end).readable();
            ready: |end, cx| (&end).ready(Interest::READABLE);
            split: |end, cx| drop(end.split());
            take_error: |end, cx| end.take_error().map(|error| error.map(|error| error.kind()));
            try_read: |end, cx| (&end).try_read(&mut [0]);
            try_read_buf: |end, cx| (&end).try_read_buf(&mut Vec::new());
            try_read_vectored: |end, cx| (&end).try_read_vectored(&mut []);
            try_write: |end, cx| (&end).try_write(&[0]);
            try_write_vectored: |end, cx| (&end).try_write_vectored(&[]);
            writable: |end, cx| (&end).writable();
        }
        (), (): {
            connect: |end, cx| (UnixStream::connect("a"), smc::tokio::UnixStream::connect("a"));
            connect_addr: |end, cx| (UnixStream::connect_addr, smc::tokio::UnixStream::connect_addr);
        }
    };
    assert_eq!(section("tokio's `UnixStream`").same, stream);

    let halves = same! {
        unix::ReadHalf<'_>, smc_unix::ReadHalf<'_>: {
            local_addr: |end, cx| end.local_addr().map(|addr| addr.is_unnamed());
            peer_addr: |end, cx| end.peer_addr().map(|addr| addr.is_unnamed());
            readable: |end, cx| (&end).readable();
            try_read: |end, cx| (&end).try_read(&mut [0]);
            try_read_buf: |end, cx| (&end).try_read_buf(&mut Vec::new());
            try_read_vectored: |end, cx| (&end).try_read_vectored(&mut []);
        }
        unix::OwnedWriteHalf, smc_unix::OwnedWriteHalf: {
            forget: |end, cx| end.forget();
            try_write: |end, cx| (&end).try_write(&[0]);
            try_write_vectored: |end, cx| (&end).try_write_vectored(&[]);
            writable: |end, cx| (&end).writable();
        }
        (unix::OwnedReadHalf, unix::OwnedWriteHalf), (smc_unix::OwnedReadHalf, smc_unix::OwnedWriteHalf): {
            reunite: |end, cx| end.0.reunite(end.1);
        }
    };
    assert_eq!(section("tokio's halves of `UnixStream`").same, halves);

    let listener = same! {
        UnixListener, smc::tokio::UnixListener: {
            accept: |end, cx| (&end).accept();
            local_addr: |end, cx| end.local_addr().map(|addr| addr.is_unnamed());
            poll_accept: |end, cx| (&end).poll_accept(cx);
        }
        (), (): {
            bind: |end, cx| (UnixListener::bind("a"), smc::tokio::UnixListener::bind("a"));
            bind_addr: |end, cx| (UnixListener::bind_addr, smc::tokio::UnixListener::bind_addr);
            from_std: |end, cx| (UnixListener::from_std, smc::tokio::UnixListener::from_std);
        }
    };
    assert_eq!(section("tokio's `UnixListener`").same, listener);
}

#[test]
fn what_is_the_same_as_of_std_can_be_called_with_both_types() {
    let stream = same! {
        std::net::TcpStream, Stream: {
            local_addr: |end, cx| end.local_addr().map(|addr| addr.port());
            nodelay: |end, cx| end.nodelay().map(|on| !on);
            peer_addr: |end, cx| end.peer_addr().map(|addr| addr.port());
            set_nodelay: |end, cx| end.set_nodelay(true);
            set_ttl: |end, cx| end.set_ttl(1);
            take_error: |end, cx| end.take_error().map(|error| error.map(|error| error.kind()));
            ttl: |end, cx| end.ttl().map(u64::from);
        }
    };
    assert_eq!(section("std's `TcpStream`").same, stream);
}

#[cfg(feature = "smol")]
#[test]
fn what_is_the_same_as_of_smol_can_be_called_with_both_types() {
    use smol::net::unix::{UnixListener, UnixStream};
    use smol::net::{TcpListener, TcpStream};
    use std::net::Shutdown;

    let stream = same! {
        TcpStream, smc::smol::TcpStream: {
            local_addr: |end, cx| end.local_addr().map(|addr| addr.port());
            nodelay: |end, cx| end.nodelay().map(|on| !on);
            peek: |end, cx| (&end).peek(&mut [0]);
            peer_addr: |end, cx| end.peer_addr().map(|addr| addr.port());
            set_nodelay: |end, cx| end.set_nodelay(true);
            set_ttl: |end, cx| end.set_ttl(1);
            shutdown: |end, cx| end.shutdown(Shutdown::Both);
            ttl: |end, cx| end.ttl().map(u64::from);
        }
        (), (): {
            connect: |end, cx| (TcpStream::connect("a:1"), smc::smol::TcpStream::connect("a:1"));
        }
    };
    assert_eq!(section("smol's `TcpStream`").same, stream);

    let listener = same! {
        TcpListener, smc::smol::TcpListener: {
            accept: |end, cx| (&end).accept();
            incoming: |end, cx| (&end).incoming();
            local_addr: |end, cx| end.local_addr().map(|addr| addr.port());
        }
        (), (): {
            bind: |end, cx| (TcpListener::bind("a:1"), smc::smol::TcpListener::bind("a:1"));
        }
    };
    assert_eq!(section("smol's `TcpListener`").same, listener);

    let stream = same! {
        UnixStream, smc::smol::UnixStream: {
            local_addr: |end, cx| end.local_addr().map(|addr| addr.is_unnamed());
            peer_addr: |end, cx| end.peer_addr().map(|addr| addr.is_unnamed());
            shutdown: |end, cx| end.shutdown(Shutdown::Both);
        }
        (), (): {
            connect: |end, cx| (UnixStream::connect("a"), smc::smol::UnixStream::connect("a"));
        }
    };
    assert_eq!(section("smol's `UnixStream`").same, stream);

    let listener = same! {
        UnixListener, smc::smol::UnixListener: {
            accept: |end, cx| (&end).accept();
            incoming: |end, cx| (&end).incoming();
            local_addr: |end, cx| end.local_addr().map(|addr| addr.is_unnamed());
        }
        (), (): {
            bind: |end, cx| (UnixListener::bind("a"), smc::smol::UnixListener::bind("a"));
        }
    };
    assert_eq!(section("smol's `UnixListener`").same, listener);
}

#[test]
fn all_methods_of_tokios_types_are_in_the_manual() {
    let Some(source) = source_of("tokio-1.") else {
        println!("skipped: the source of tokio is not found");
        return;
    };
    for (files, name) in [
        (&["tcp/stream"][..], "tokio's `TcpStream`"),
        (&["tcp/split"], "tokio's `ReadHalf` and `WriteHalf`"),
        (
            &["tcp/split_owned"],
            "tokio's `OwnedReadHalf` and `OwnedWriteHalf`",
        ),
        (&["tcp/listener"], "tokio's `TcpListener`"),
        (&["tcp/socket"], "tokio's `TcpSocket`"),
        (&["unix/stream"], "tokio's `UnixStream`"),
        (
            &["unix/split", "unix/split_owned"],
            "tokio's halves of `UnixStream`",
        ),
        (&["unix/listener"], "tokio's `UnixListener`"),
    ] {
        let texts = files.iter().map(|file| {
            let path = source.join(format!("src/net/{file}.rs"));
            std::fs::read_to_string(&path).unwrap()
        });
        let texts: Vec<_> = texts.collect();
        let methods: BTreeSet<_> = texts.iter().flat_map(|text| methods(text)).collect();
        assert_eq!(section(name).all, methods, "{name}");
    }
}

#[cfg(feature = "smol")]
#[test]
fn all_methods_of_smols_types_are_in_the_manual() {
    let Some(source) = source_of("async-net-2.") else {
        println!("skipped: the source of async-net, which has smol's types, is not found");
        return;
    };
    for (file, name) in [
        ("tcp", "TcpStream"),
        ("tcp", "TcpListener"),
        ("unix", "UnixStream"),
        ("unix", "UnixListener"),
    ] {
        let text = std::fs::read_to_string(source.join(format!("src/{file}.rs"))).unwrap();
        let (_, rest) = text.split_once(&format!("\nimpl {name} {{")).unwrap();
        let (its, _) = rest.split_once("\n}\n").unwrap();
        let heading = format!("smol's `{name}`");
        assert_eq!(section(&heading).all, methods(its), "{name}");
    }
}

/// The methods of a table.
struct Section {
    all: BTreeSet<&'static str>,
    same: BTreeSet<&'static str>,
}

/// The table under a heading of the page.
fn section(heading: &str) -> Section {
    let mut sections = MANUAL.split("\n# ").skip(1);
    let section = sections.find(|section| section.lines().next() == Some(heading));
    let rows = section.unwrap().lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let name = cells.next()?.trim_end_matches('`');
        Some((name, cells.next()?))
    });
    let rows: Vec<_> = rows.collect();
    for (name, how) in &rows {
        let known = ["same", "differs", "not there"];
        assert!(known.contains(how), "{heading}, {name}: {how}");
    }
    let same = rows.iter().filter(|(_, how)| *how == "same");
    Section {
        same: same.map(|(name, _)| *name).collect(),
        all: rows.iter().map(|(name, _)| *name).collect(),
    }
}

/// The names of public functions in a source file.
fn methods(text: &str) -> BTreeSet<&str> {
    let lines = text.lines().filter_map(|line| {
        let rest = line.trim_start().strip_prefix("pub ")?;
        let rest = rest.strip_prefix("async ").unwrap_or(rest);
        let rest = rest.strip_prefix("const ").unwrap_or(rest);
        let name = rest.strip_prefix("fn ")?;
        name.split(['(', '<']).next()
    });
    lines.collect()
}

/// The folder of the package that this test is built with, whose folder begins with this.
fn source_of(package: &str) -> Option<PathBuf> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--format-version", "1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut paths = text.split("\"manifest_path\":\"").skip(1);
    let manifest = paths.find_map(|rest| {
        let (path, _) = rest.split_once('"')?;
        path.contains(&format!("/{package}"))
            .then(|| PathBuf::from(path))
    });
    Some(manifest?.parent()?.to_owned())
}
