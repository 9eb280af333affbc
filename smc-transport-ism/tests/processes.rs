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
use smc_core::Stream;
use smc_core::device::{Device as _, DeviceError, Direct as _, Event};
use smc_transport_ism::IsmDevice;
use smc_wire::types::Gid;
use support::{Kind, On, World, await_event, builder, pattern, place, wait_until_ready};

/// What other processes do; a test that does nothing in the process of the tests.
#[test]
fn other_process() {
    let Ok(arguments) = env::var(ROLE) else {
        return;
    };
    let mut words = arguments.split(' ');
    let mut next = || words.next().unwrap().to_owned();
    match next().as_str() {
        "hoard" => hoard(&next(), &next()),
        "serve" => On::Tokio.run(async move { serve(&next(), &next()).await }),
        "join" => join(&next()),
        "limited" => limited(&next(), &next()),
        other => panic!("no role {other}"),
    }
}

/// Makes a fabric with a limit on the length of files, which does not do.
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

/// Takes all the memory of a fabric and keeps it.
fn hoard(fabric: &str, peer: &str) {
    let device = IsmDevice::builder(place(Path::new(fabric)))
        .build()
        .unwrap();
    let peer: Gid = peer.parse().unwrap();
    let mut kept = Vec::new();
    let mut len = device.limits().max_dmb_len;
    while len >= 1 << 14 {
        match block_on(device.register(peer, len)) {
            Ok(dmb) => kept.push(dmb),
            Err(DeviceError::NoMemory | DeviceError::Exhausted) => len /= 2,
            Err(error) => panic!("{error}"),
        }
    }
    println!("ready {}", device.gid());
    std::thread::park();
}

/// Echoes whatever comes, on any number of streams.
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

/// Comes to a fabric and goes again, without end.
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
                // Makes the fabric, with the options that it is to have.
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

/// Sends so many bytes and gets them back.
async fn echo(stream: &mut Stream, len: usize) -> std::io::Result<()> {
    let sent: Vec<u8> = (0..len).map(pattern).collect();
    let mut heard = vec![0; len];
    for (out, back) in sent.chunks(10_000).zip(heard.chunks_mut(10_000)) {
        stream.write_all(out).await?;
        stream.read_exact(back).await?;
    }
    assert!(sent == heard);
    Ok(())
}

#[test]
fn memory_of_a_process_that_was_killed_is_taken_back() {
    for kind in [Kind::Directory, Kind::Server] {
        let world = World::with_len(kind, false, 4 << 20);
        let (ours, third) = (world.device(), world.device());
        for _ in 0..3 {
            let mut hoarder = start(&format!(
                "hoard {} {}",
                world.address().display(),
                ours.gid()
            ));
            let gid: Gid = wait_until_ready(&mut hoarder.0).parse().unwrap();
            block_on(ours.reach(gid)).unwrap();
            let register = |len| block_on(ours.register(third.gid(), len));
            assert_eq!(register(1 << 14).unwrap_err(), DeviceError::Exhausted);
            drop(hoarder);
            await_event(&ours, |event| *event == Event::PeerGone(gid));
            register(ours.limits().max_dmb_len).unwrap();
        }
    }
}

/// Nobody had to do with the hoarder, so nobody was told of its end.
#[test]
fn the_end_of_a_stranger_is_found_out_when_it_matters() {
    let world = World::with_len(Kind::Directory, false, 4 << 20);
    let (ours, third) = (world.device(), world.device());
    let mut hoarder = start(&format!(
        "hoard {} {}",
        world.address().display(),
        third.gid()
    ));
    wait_until_ready(&mut hoarder.0);
    drop(hoarder);
    block_on(ours.register(third.gid(), ours.limits().max_dmb_len)).unwrap();
}

#[test]
fn processes_killed_while_they_come_and_go() {
    for kind in [Kind::Directory, Kind::Server] {
        let world = World::with_len(kind, false, 4 << 20);
        let (ours, peer) = (world.device(), world.device());
        for round in 0..15_u32 {
            let mut child = start(&format!("join {}", world.address().display()));
            wait_until_ready(&mut child.0);
            // At odd moments of what it does.
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
