//! Fabrics between processes, some of which are killed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::env;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use futures_lite::future::block_on;
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use smc::Stream;
use smc_core::device::{Device as _, DeviceError, Direct as _, Event};
use smc_transport_ism::IsmDevice;
use smc_wire::types::Gid;
use support::{Kind, On, World, await_event, builder, pattern, place, wait_until_ready};

/// Entry point of child processes; does nothing in the process of the tests.
#[test]
fn other_process() {
    let Ok(arguments) = env::var(ROLE) else {
        return;
    };
    let mut words = arguments.split(' ');
    let mut next = || words.next().unwrap().to_owned();
    match next().as_str() {
        "exhaust" => exhaust(&next(), &next()),
        "serve" => On::Tokio.run(async move { serve(&next(), &next()).await }),
        "join" => join(&next()),
        "limited" => limited(&next(), &next()),
        other => panic!("no role {other}"),
    }
}

/// Fails to create a fabric because of a limit on the length of files.
fn limited(fabric: &str, limit: &str) {
    let limits = Rlimit {
        current: Some(limit.parse().unwrap()),
        maximum: getrlimit(Resource::Fsize).maximum,
    };
    setrlimit(Resource::Fsize, limits).unwrap();
    let refused = IsmDevice::builder(place(Path::new(fabric))).build();
    let text = refused.unwrap_err().to_string();
    assert!(text.contains(&format!("RLIMIT_FSIZE is {limit}")), "{text}");
    println!("ready");
    std::thread::park();
}

#[test]
fn a_limit_on_the_length_of_files_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let fabric = dir.path().join("fabric");
    let mut other = start(&format!("limited {} 1048576", fabric.display()));
    wait_until_ready(&mut other.0);
}

/// Allocates all the memory of a fabric and does not release it.
fn exhaust(fabric: &str, peer: &str) {
    let device = IsmDevice::builder(place(Path::new(fabric)))
        .build()
        .unwrap();
    let peer: Gid = peer.parse().unwrap();
    let mut dmbs = Vec::new();
    let mut len = device.limits().max_dmb_len;
    while len >= 1 << 14 {
        match block_on(device.register(peer, len)) {
            Ok(dmb) => dmbs.push(dmb),
            Err(DeviceError::NoMemory | DeviceError::Exhausted) => len /= 2,
            Err(error) => panic!("{error}"),
        }
    }
    println!("ready {}", device.gid());
    std::thread::park();
}

/// Echoes all received data, on any number of streams.
async fn serve(fabric: &str, runtime_dir: &str) {
    let device = IsmDevice::builder(place(Path::new(fabric)))
        .build()
        .unwrap();
    let endpoint = builder(On::Tokio, Path::new(runtime_dir)).device(Arc::new(device));
    let endpoint = endpoint.build().unwrap();
    let listener = endpoint.bind("127.0.0.1:0").await.unwrap();
    println!("ready {}", listener.local_addr().unwrap());
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let (from, to) = stream.into_split();
            let _any = futures_lite::io::copy(from, to).await;
        });
    }
}

/// Joins and leaves a fabric, without end.
fn join(fabric: &str) {
    println!("ready");
    loop {
        let device = IsmDevice::builder(place(Path::new(fabric))).build();
        drop(device);
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
                let [mut doomed, mut other] = [0, 1].map(|_| {
                    start(&format!(
                        "serve {} {}",
                        world.address().display(),
                        world.dir().display()
                    ))
                });
                let [to_doomed, to_other] =
                    [&mut doomed, &mut other].map(|child| wait_until_ready(&mut child.0));
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
                    let error = stream.read(&mut [0; 8]).await.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
                }
                echo(&mut steady, 300_000).await.unwrap();
            });
        }
    }
}

/// Sends `len` bytes and receives them back.
async fn echo(stream: &mut Stream, len: usize) -> std::io::Result<()> {
    let sent: Vec<u8> = (0..len).map(pattern).collect();
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
            let mut child = start(&format!(
                "exhaust {} {}",
                world.address().display(),
                ours.gid()
            ));
            let gid: Gid = wait_until_ready(&mut child.0).parse().unwrap();
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
    let mut child = start(&format!(
        "exhaust {} {}",
        world.address().display(),
        third.gid()
    ));
    wait_until_ready(&mut child.0);
    drop(child);
    block_on(ours.register(third.gid(), ours.limits().max_dmb_len)).unwrap();
}

#[test]
fn processes_killed_while_they_join_and_leave() {
    for kind in [Kind::Directory, Kind::Server] {
        let world = World::with_len(kind, false, 4 << 20);
        let (ours, peer) = (world.device(), world.device());
        for round in 0..15_u32 {
            let mut child = start(&format!("join {}", world.address().display()));
            wait_until_ready(&mut child.0);
            // At different moments of its loop.
            (0..round * 20_000).for_each(|_| std::hint::spin_loop());
            drop(child);
            ours.drain(&mut |_| {}).unwrap();
            block_on(ours.register(peer.gid(), 1 << 16)).unwrap();
        }
        let _next = world.device();
    }
}

/// A process that is killed when this is dropped.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn start(arguments: &str) -> Other {
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "other_process", "--nocapture"])
        .env(ROLE, arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    Other(child.unwrap())
}

/// Makes this program another process.
const ROLE: &str = "SMC_ISM_ROLE";
