//! Fabrics between processes, some of which are killed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io::ErrorKind;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use futures_lite::future::block_on;
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use smc::Stream;
use smc_core::device::{Device as _, DeviceError, Direct as _, Event};
use smc_testkit::on::On;
use smc_testkit::process::{Child, ENTRY, Role, command};
use smc_testkit::resources::limit_file_size;
use smc_testkit::streams::{expect_error, listen, patterned};
use smc_transport_ism::IsmDevice;
use smc_wire::types::Gid;
use support::{Kind, World, await_event, builder, fabric_address};

/// Entry point of child processes.
#[test]
fn helper_process() {
    let Some(role) = Role::current() else { return };
    match role.name() {
        "exhaust" => exhaust(&role),
        "serve" => On::Tokio.run_unbounded(serve(&role)),
        "join" => join(&role),
        "limited" => limited(&role),
        other => panic!("no role {other}"),
    }
}

fn open(role: &Role) -> Result<IsmDevice, DeviceError> {
    IsmDevice::builder(fabric_address(role.dir())).build()
}

/// Fails to create a fabric because of a limit on the length of files.
fn limited(role: &Role) {
    let limit = role.arg(1);
    limit_file_size(limit.parse().unwrap());
    let text = open(role).unwrap_err().to_string();
    assert!(text.contains(&format!("RLIMIT_FSIZE is {limit}")), "{text}");
    role.send("refused");
}

#[test]
fn a_limit_on_the_length_of_files_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let fabric = dir.path().join("fabric");
    let mut other = start("limited", &fabric, "1048576");
    assert_eq!(other.recv(), "refused");
}

/// Allocates all the memory of a fabric and does not release it.
fn exhaust(role: &Role) {
    let device = open(role).unwrap();
    let peer: Gid = role.arg(1).parse().unwrap();
    let mut dmbs = Vec::new();
    let mut len = device.limits().max_dmb_len;
    while len >= 1 << 14 {
        match block_on(device.register(peer, len)) {
            Ok(dmb) => dmbs.push(dmb),
            Err(DeviceError::NoMemory | DeviceError::Exhausted) => len /= 2,
            Err(error) => panic!("{error}"),
        }
    }
    role.send(device.gid());
    role.stay();
}

/// Echoes all received data, on any number of streams.
async fn serve(role: &Role) {
    let endpoint = builder(On::Tokio, Path::new(role.arg(1))).device(Arc::new(open(role).unwrap()));
    let listener = listen(&endpoint.build().unwrap()).await;
    role.send(listener.local_addr().unwrap());
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let (from, to) = stream.into_split();
            let _any = futures_lite::io::copy(from, to).await;
        });
    }
}

/// Joins and leaves a fabric, without end.
fn join(role: &Role) {
    role.send("ready");
    loop {
        drop(open(role));
    }
}

#[test]
fn streams_between_processes_and_a_server_that_is_killed() {
    for kind in [Kind::Directory, Kind::Server] {
        for nocopy in [false, true] {
            On::Tokio.run(async {
                let world = World::new(kind, nocopy);
                // Creates the fabric with its options.
                let client = world.endpoint(On::Tokio);
                let serve = || {
                    start(
                        "serve",
                        &world.address(),
                        &world.dir().display().to_string(),
                    )
                };
                let (mut doomed, mut other) = (serve(), serve());
                let (to_doomed, to_other) = (doomed.recv(), other.recv());
                let mut steady = client.connect(to_other).await.unwrap();
                let mut streams = Vec::new();
                for _ in 0..5 {
                    let stream = client.connect(&to_doomed[..]).await.unwrap();
                    assert!(stream.mode().is_smc(), "{}", stream.mode());
                    streams.push(stream);
                }
                for stream in streams.iter_mut().chain([&mut steady]) {
                    echo(stream, 300_000).await.unwrap();
                }
                drop(doomed);
                for stream in &mut streams {
                    expect_error(stream, ErrorKind::ConnectionAborted).await;
                }
                echo(&mut steady, 300_000).await.unwrap();
            });
        }
    }
}

/// Sends `len` bytes and receives them back.
async fn echo(stream: &mut Stream, len: usize) -> std::io::Result<()> {
    let sent = patterned(len);
    let mut received = vec![0; len];
    for (out, back) in sent.chunks(10_000).zip(received.chunks_mut(10_000)) {
        stream.write_all(out).await?;
        stream.read_exact(back).await?;
    }
    assert!(sent == received);
    Ok(())
}

#[test]
fn memory_of_a_process_that_was_killed_is_taken_back() {
    for kind in [Kind::Directory, Kind::Server] {
        let world = World::with_len(kind, false, 4 << 20);
        let (ours, third) = (world.device(), world.device());
        for _ in 0..3 {
            let mut child = start("exhaust", &world.address(), &ours.gid().to_string());
            let gid: Gid = child.parse();
            block_on(ours.reach(gid)).unwrap();
            let register = |len| block_on(ours.register(third.gid(), len));
            assert_eq!(register(1 << 14).unwrap_err(), DeviceError::Exhausted);
            drop(child);
            await_event(&ours, |event| *event == Event::PeerGone(gid));
            register(ours.limits().max_dmb_len).unwrap();
        }
    }
}

/// No device was connected to the child, so none was notified of its end.
#[test]
fn the_end_of_an_unconnected_process_is_detected_when_its_memory_is_needed() {
    let world = World::with_len(Kind::Directory, false, 4 << 20);
    let (ours, third) = (world.device(), world.device());
    let mut child = start("exhaust", &world.address(), &third.gid().to_string());
    child.recv();
    drop(child);
    block_on(ours.register(third.gid(), ours.limits().max_dmb_len)).unwrap();
}

#[test]
fn processes_killed_while_they_join_and_leave() {
    for kind in [Kind::Directory, Kind::Server] {
        let world = World::with_len(kind, false, 4 << 20);
        let (ours, peer) = (world.device(), world.device());
        for round in 0..15_u32 {
            let mut child = start("join", &world.address(), "");
            child.recv();
            // At different moments of its loop.
            (0..round * 20_000).for_each(|_| std::hint::spin_loop());
            drop(child);
            ours.drain(&mut |_| {}).unwrap();
            block_on(ours.register(peer.gid(), 1 << 16)).unwrap();
        }
        let _next = world.device();
    }
}

fn start(role: &str, fabric: &Path, argument: &str) -> Child {
    let mut command = command(ENTRY);
    command.stderr(Stdio::null());
    Child::spawn(command, role, format!("{} {argument}", fabric.display()))
}
