//! What memory files hold, as the system counts it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::collections::HashMap;
use std::io::IoSlice;
use std::os::linux::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use common::{DrivenDevice, World, builder, start, without_device};
use futures_lite::future::block_on;
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use smc::{Endpoint, Mode};
use smc_core::device::{Attachment, Device, Direct, Dmb, Operations, Signal};
use smc_core::mem::Region;
use smc_testkit::middleware::{Trace, What};
use smc_testkit::on::{self, On};
use smc_testkit::process::{Child, Role};
use smc_testkit::resources::{alone, limit_file_size};
use smc_testkit::streams::{connect, expect_rest, listen, patterned};
use smc_testkit::wait::{TIMEOUT, until};
use smc_wire::cdc::ProducerWord;
use smc_wire::cursor::Cursor;
use smc_wire::types::DeclineCode;
use tempfile::TempDir;

/// What helpers do.
#[test]
fn helper_process() {
    let Some(role) = Role::current() else { return };
    match role.name() {
        "sink" => sink(&role),
        "limited" => limited(&role),
        "flood" => flood(&role),
        other => panic!("no role {other}"),
    }
}

/// Reads all that comes on each connection. Drops all of them when the test says so.
fn sink(role: &Role) {
    On::Tokio.run_unbounded(async {
        let endpoint = endpoint(role.dir());
        let listener = listen(&endpoint).await;
        role.send(listener.local_addr().unwrap());
        let mut readers = tokio::task::JoinSet::new();
        let asking = role.clone();
        let mut asked = tokio::task::spawn_blocking(move || asking.recv());
        let order = loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let (mut stream, _) = accepted.unwrap();
                    readers.spawn(async move {
                        let mut buf = vec![0; 1 << 16];
                        while stream.read(&mut buf).await.is_ok_and(|count| count > 0) {}
                    });
                }
                order = &mut asked => break order.unwrap(),
            }
        };
        if order.is_some() {
            readers.shutdown().await;
            role.send("dropped");
            let role = role.clone();
            let asked = tokio::task::spawn_blocking(move || role.recv());
            assert_eq!(asked.await.unwrap(), None, "nothing more to do");
        }
    });
}

/// Serves a long answer to each client that connects, none of which may read it at first.
fn flood(role: &Role) {
    let (cgroup, limit) = (role.recv().unwrap(), role.recv().unwrap());
    let answer: usize = role.parse();
    if !cgroup.is_empty() {
        std::fs::write(cgroup, std::process::id().to_string()).unwrap();
    }
    On::Tokio.run_unbounded(async {
        let mut builder = builder(On::Tokio, true, role.dir());
        if let Ok(limit) = limit.parse() {
            builder = builder.memory_limit(limit);
        }
        let endpoint = builder.build().unwrap();
        let listener = listen(&endpoint).await;
        role.send(listener.local_addr().unwrap());
        tokio::spawn(async move {
            let answer: Arc<[u8]> = patterned(answer).into();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let answer = Arc::clone(&answer);
                tokio::spawn(async move {
                    stream.write_all(&answer).await.unwrap();
                    stream.close().await.unwrap();
                });
            }
        });
        loop {
            let asking = role.clone();
            let asked = tokio::task::spawn_blocking(move || asking.recv());
            if asked.await.unwrap().is_none() {
                break;
            }
            role.send(endpoint.memory().limit());
            role.send(endpoint.memory().used());
        }
    });
}

/// Connects with a limit on the length of files, and reports the result.
fn limited(role: &Role) {
    let addr = role.recv().unwrap();
    let limit: u64 = role.parse();
    limit_file_size(limit);
    let long = usize::try_from(limit + 1).unwrap();
    let refused = smc_core::mem::memory_file("smc-test", long).unwrap_err();
    let text = smc_core::device::DeviceError::from(refused).to_string();
    assert!(text.contains(&format!("RLIMIT_FSIZE is {limit}")), "{text}");
    On::Tokio.run_unbounded(async {
        let endpoint = endpoint(role.dir());
        let mut stream = endpoint.connect(&*addr).await.unwrap();
        stream.write_all(&[1; 1000]).await.unwrap();
        let conns = endpoint.connections();
        let ring = conns
            .iter()
            .find_map(|conn| Some(conn.smc.as_ref()?.recv_buffer));
        role.send(match ring {
            Some(len) => format!("smc {len}"),
            None => "tcp".to_owned(),
        });
    });
}

fn endpoint(dir: &Path) -> Endpoint {
    builder(On::Tokio, true, dir).build().unwrap()
}

/// Bytes that the memory files hold which these processes have mapped. `None` where a process may
/// not look at them.
fn resident(processes: &[u32]) -> Option<u64> {
    let mut files = HashMap::new();
    for process in processes {
        let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
        for line in maps.lines().filter(|line| line.contains("memfd:smc-dmb")) {
            let (range, _) = line.split_once(' ').unwrap();
            match std::fs::metadata(format!("/proc/{process}/map_files/{range}")) {
                Ok(file) => drop(files.insert(file.st_ino(), file.st_blocks() * 512)),
                // It was unmapped meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(_) => return None,
            }
        }
    }
    Some(files.values().sum())
}

fn resident_here() -> Option<u64> {
    let resident = resident(&[std::process::id()]);
    if resident.is_none() {
        println!("skipped: this user may not look at mapped files");
    }
    resident
}

fn text(processes: &[u32], most: u64) -> String {
    format!("{:?} bytes instead of {most}", resident(processes))
}

struct Pair {
    ours: DrivenDevice,
    theirs: DrivenDevice,
    _dir: TempDir,
}

impl Pair {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let (ours, theirs) = DrivenDevice::pair(&dir);
        Self {
            ours,
            theirs,
            _dir: dir,
        }
    }

    /// A long buffer of ours, all of it written by the peer.
    fn written(&self) -> (Arc<dyn Dmb>, Arc<dyn Attachment>) {
        let dmb = block_on(self.ours.device.register(self.theirs.gid(), LONG)).unwrap();
        let attached = self.theirs.attach(self.ours.gid(), dmb.token());
        attached.region().copy_in(0, &vec![7; LONG]).unwrap();
        (dmb, attached)
    }

    fn drive(&self) {
        for device in [&self.ours, &self.theirs] {
            device.drain();
            device.arm();
            device.drain();
        }
    }

    fn wait_for(&self, buffers: u64) {
        let most = buffers * POOLED + SIGNAL_PAGES;
        let ours = [std::process::id()];
        let is_so = || {
            self.drive();
            resident(&ours).unwrap() <= most
        };
        until(is_so, || text(&ours, most));
    }
}

/// Lets no other test run that counts what is resident; `None`, and says why, if this user may not.
fn alone_with_maps() -> Option<MutexGuard<'static, ()>> {
    let alone = alone();
    resident_here().map(|_| alone)
}

#[test]
fn pages_of_a_dropped_buffer_are_given_back_in_either_order() {
    let Some(_alone) = alone_with_maps() else {
        return;
    };
    for peer_is_first in [true, false] {
        let pair = Pair::new();
        let (dmbs, attached): (Vec<_>, Vec<_>) = (0..20).map(|_| pair.written()).unzip();
        assert!(resident_here().unwrap() >= 20 * LONG as u64);
        if peer_is_first {
            drop(attached);
            drop(dmbs);
        } else {
            drop(dmbs);
            drop(attached);
        }
        pair.wait_for(20);
    }
}

#[test]
fn drivers_that_sleep_are_woken_to_give_pages_back() {
    let Some(_alone) = alone_with_maps() else {
        return;
    };
    let pair = Pair::new();
    let (dmb, attached) = pair.written();
    drop(dmb);
    pair.drive();
    drop(attached);
    for device in [&pair.ours, &pair.theirs] {
        assert!(device.park(TIMEOUT), "not woken");
        device.drain();
    }
    assert!(resident_here().unwrap() <= POOLED + SIGNAL_PAGES);
}

#[test]
fn pages_are_given_back_after_the_last_of_several_attachments() {
    let Some(_alone) = alone_with_maps() else {
        return;
    };
    let pair = Pair::new();
    let (dmb, first) = pair.written();
    let second = pair.theirs.attach(pair.ours.gid(), dmb.token());
    drop(dmb);
    drop(first);
    pair.drive();
    second.region().copy_in(LONG - 3, b"end").unwrap();
    assert!(resident_here().unwrap() >= LONG as u64);
    drop(second);
    pair.wait_for(1);
}

#[test]
fn a_region_that_outlives_its_buffer_keeps_its_bytes_and_then_gives_its_pages_back() {
    let Some(_alone) = alone_with_maps() else {
        return;
    };
    let pair = Pair::new();
    let (dmb, attached) = pair.written();
    let kept: Region = dmb.region().part(LONG - 4, 4).unwrap();
    drop(attached);
    drop(dmb);
    pair.drive();
    let mut bytes = [0; 4];
    kept.copy_out(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 4], "given back while it was in use");
    drop(kept);
    pair.wait_for(1);
}

#[test]
fn memory_of_many_connections_is_back_in_the_system_after_they_are_closed() {
    let Some(_alone) = alone_with_maps() else {
        return;
    };
    for server_is_first in [false, true] {
        let dir = TempDir::new().unwrap();
        let mut server = start("sink", &dir);
        let addr = server.recv();
        let processes = [std::process::id(), server.id()];
        On::Tokio.run_unbounded(async {
            let endpoint = endpoint(dir.path());
            let mut open = Vec::new();
            for _ in 0..50 {
                let mut stream = endpoint.connect(&*addr).await.unwrap();
                stream.write_all(&vec![1; 2 * LONG]).await.unwrap();
                open.push(stream);
            }
            assert!(resident(&processes).unwrap() >= 50 * LONG as u64);
            if server_is_first {
                server.send("drop");
                assert_eq!(server.recv(), "dropped");
                // The end, or a reset where something was not read yet.
                for stream in &mut open {
                    assert!(!stream.read(&mut [0]).await.is_ok_and(|count| count > 0));
                }
            }
            drop(open);
            let most = 2 * 50 * POOLED + SIGNAL_PAGES;
            on::until(
                || resident(&processes).unwrap() <= most,
                || text(&processes, most),
            )
            .await;
        });
        server.finish();
    }
}

#[test]
fn pages_that_were_read_are_given_back_though_the_peer_takes_its_cursor_back() {
    let Some(_alone) = alone_with_maps() else {
        return;
    };
    let world = World::new(On::Smol, false);
    let (hostile, journal) = Trace::with_journal(Arc::new(world.device().build().unwrap()));
    let client =
        without_device(On::Smol, world.dir()).device(Arc::clone(&hostile) as Arc<dyn Device>);
    let client = client.build().unwrap();
    let server = world.endpoint();
    On::Smol.run(async {
        let listener = listen(&server).await;
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        ours.write_all(&[1]).await.unwrap();
        let moved = journal.take().into_iter().find_map(|it| match it.what {
            What::Moved {
                peer, to, at: 8, ..
            } => Some((peer, to)),
            _ => None,
        });
        let (peer, token) = moved.expect("a cursor");
        let show = |cursor| {
            let Operations::Direct(device) = hostile.operations() else {
                panic!("SMC-D");
            };
            let word = ProducerWord { cursor }.to_ne().to_ne_bytes();
            let word = [IoSlice::new(&word)];
            device
                .move_data(peer, token, 8, &word, Signal::Yes)
                .unwrap();
        };
        // All but one byte of the ring, of which the peer has written one.
        let count = u32::try_from(theirs.recv_buffer_size().unwrap() - 1).unwrap();
        show(Cursor { wrap: 0, count });
        let mut data = vec![0; count as usize];
        theirs.read_exact(&mut data).await.unwrap();
        assert!(resident_here().unwrap() >= u64::from(count));
        show(Cursor::START);
        drop((ours, theirs));
        let (ours, most) = ([std::process::id()], 2 * POOLED + SIGNAL_PAGES);
        on::until(|| resident(&ours).unwrap() <= most, || text(&ours, most)).await;
    });
}

#[test]
fn small_messages_keep_few_pages_however_many_there_are() {
    let Some(_alone) = alone_with_maps() else {
        return;
    };
    for nocopy in [true, false] {
        let world = World::new(On::Smol, nocopy);
        let (client, server) = (world.endpoint(), world.endpoint());
        On::Smol.run(async {
            let listener = listen(&server).await;
            let (mut ours, mut theirs) = connect(&client, &listener).await;
            let (request, answer) = (patterned(100), patterned(300));
            let mut buf = [0; 300];
            for _ in 0..20_000 {
                ours.write_all(&request).await.unwrap();
                theirs.read_exact(&mut buf[..100]).await.unwrap();
                assert_eq!(buf[..100], request);
                theirs.write_all(&answer).await.unwrap();
                ours.read_exact(&mut buf).await.unwrap();
                assert_eq!(buf[..], answer);
            }
            let (ours, most) = ([std::process::id()], 128 << 10);
            assert!(resident(&ours).unwrap() <= most, "{}", text(&ours, most));
        });
    }
}

fn connected_with_file_size_limit(bytes: u64) -> String {
    let dir = TempDir::new().unwrap();
    let mut server = start("sink", &dir);
    let mut client = start("limited", &dir);
    client.send(server.recv());
    client.send(bytes);
    let outcome = client.recv();
    client.finish();
    server.finish();
    outcome
}

#[test]
fn a_limit_on_the_length_of_files_makes_the_buffer_smaller() {
    let _alone = alone();
    let limit = 3 << 20;
    let outcome = connected_with_file_size_limit(limit);
    assert_eq!(outcome, format!("smc {}", 2 << 20));
}

#[test]
fn a_limit_on_the_length_of_files_that_is_too_low_for_shared_memory_leaves_tcp() {
    let _alone = alone();
    for limit in [1 << 20, 1 << 14, 0] {
        assert_eq!(connected_with_file_size_limit(limit), "tcp", "{limit}");
    }
}

/// A cgroup with 256 MiB of memory, removed when dropped.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Result<Self, String> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let of = |kind: &str, option: &str| {
            let mut mounts = mounts.lines().filter_map(|line| line.split_once(" - "));
            let (mount, _) = mounts.find(|(_, device)| {
                device.starts_with(kind) && device.split([' ', ',']).any(|it| it == option)
            })?;
            mount.split(' ').nth(4).map(PathBuf::from)
        };
        let version_1 = of("cgroup ", "memory").map(|at| (at, "memory.limit_in_bytes"));
        let version_2 = of("cgroup2 ", "rw").map(|at| (at, "memory.max"));
        let name = format!("smc-test-{}", std::process::id());
        for (at, file) in version_1.into_iter().chain(version_2) {
            let path = at.join(&name);
            if std::fs::create_dir(&path).is_err() {
                continue;
            }
            let cgroup = Self(path);
            match std::fs::write(cgroup.0.join(file), (256 << 20).to_string()) {
                Ok(()) => return Ok(cgroup),
                Err(_) => drop(cgroup),
            }
        }
        Err("no cgroup with a limit on memory can be made".to_owned())
    }

    fn procs(&self) -> String {
        self.0.join("cgroup.procs").to_str().unwrap().to_owned()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Processes that were killed leave it a moment later.
        for _ in 0..1000 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A hundred clients of a server that has a long answer for each, of which nothing is read until
/// all are connected. Returns how many streams were SMC, the sizes of the server's buffers, and
/// what the server said of its memory before and after.
struct Flood {
    smc: usize,
    sizes: Vec<usize>,
    limit: usize,
    used: usize,
    used_after: usize,
    /// What memory files resident when all were connected.
    resident: Option<u64>,
}

impl Flood {
    fn run(cgroup: Option<&Cgroup>, limit: Option<usize>, answer: usize) -> Self {
        let dir = TempDir::new().unwrap();
        let mut server = start("flood", &dir);
        server.send(cgroup.map(Cgroup::procs).unwrap_or_default());
        server.send(limit.map(|bytes| bytes.to_string()).unwrap_or_default());
        server.send(answer);
        let addr = server.recv();
        let flood = On::Tokio.run_unbounded(async {
            let endpoint = endpoint(dir.path());
            let answer = patterned(answer);
            let mut open = Vec::new();
            for _ in 0..100 {
                open.push(endpoint.connect(&*addr).await.unwrap());
            }
            // So long that all servers' tasks have written what they can.
            tokio::time::sleep(Duration::from_millis(500)).await;
            let sizes = open.iter().filter_map(|stream| match stream.mode() {
                Mode::SmcD { .. } => Some(stream.recv_buffer_size().unwrap()),
                Mode::Tcp { reason, .. } => {
                    let codes = [Some(reason.local), reason.peer];
                    assert!(codes.contains(&Some(DeclineCode::MEM)), "{reason}");
                    None
                }
                mode => panic!("{mode}"),
            });
            let sizes: Vec<_> = sizes.collect();
            server.send("how much");
            let (limit, used) = (server.recv(), server.recv());
            let resident = resident(&[std::process::id(), server.id()]);
            for stream in &mut open {
                expect_rest(stream, &answer).await;
            }
            drop(open);
            let used_after = settled_use(&mut server).await;
            Self {
                smc: sizes.len(),
                sizes,
                limit: limit.parse().unwrap(),
                used: used.parse().unwrap(),
                used_after,
                resident,
            }
        });
        server.finish();
        flood
    }
}

/// What the server uses when connections have ended.
async fn settled_use(server: &mut Child) -> usize {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        server.send("how much");
        let (_, used) = (server.recv(), server.recv());
        let used = used.parse().unwrap();
        if used <= POOLS || Instant::now() > deadline {
            return used;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn a_memory_limit_makes_buffers_smaller_and_then_leaves_tcp() {
    let _alone = alone();
    let limit = 4 << 20;
    let flood = Flood::run(None, Some(limit), 200_000);
    assert_eq!(flood.limit, limit);
    assert!(flood.used <= limit, "{} bytes", flood.used);
    assert!(flood.smc >= 10 && flood.smc < 100, "{} SMC", flood.smc);
    let (largest, smallest) = (flood.sizes.iter().max(), flood.sizes.iter().min());
    assert!(largest > smallest, "{:?}", flood.sizes);
    assert!(flood.used_after <= POOLS, "{} bytes", flood.used_after);
    match flood.resident {
        Some(resident) => assert!(resident <= limit as u64, "{resident} bytes"),
        None => println!("skipped: this user may not look at mapped files"),
    }
}

#[test]
fn without_memory_for_any_buffer_streams_are_tcp() {
    let _alone = alone();
    let flood = Flood::run(None, Some(1 << 14), 200_000);
    assert_eq!((flood.smc, flood.used_after <= POOLS), (0, true));
}

#[test]
fn a_server_in_a_small_container_lives_through_a_flood() {
    let _alone = alone();
    let cgroup = match Cgroup::new() {
        Ok(cgroup) => cgroup,
        Err(why) => return println!("skipped: {why}"),
    };
    let flood = Flood::run(Some(&cgroup), None, 3_000_000);
    assert_eq!(flood.limit, 64 << 20, "a quarter of the cgroup's");
    assert!(flood.used <= flood.limit, "{} bytes", flood.used);
    assert!(flood.smc >= 10, "{} SMC", flood.smc);
    let (largest, smallest) = (flood.sizes.iter().max(), flood.sizes.iter().min());
    assert!(largest > smallest, "{:?}", flood.sizes);
}

/// The pooled bytes of a hundred buffers on either side, and of the signal pages.
const POOLS: usize = 2 * 100 * (1 << 16) + (1 << 18);
const LONG: usize = 4 << 20;
/// The resident bytes of an unused buffer.
const POOLED: u64 = 1 << 16;
/// Pages of the signal pages of two devices.
const SIGNAL_PAGES: u64 = 1 << 18;
