//! Joining and leaving a fabric, with the possible errors.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use futures_lite::future::block_on;
use smc_core::device::{Device as _, DeviceError, Direct as _, Event, PeerEvent, PeerEvents as _};
use smc_transport_ism::{FabricAddress, IsmDevice, Server};
use smc_wire::types::Gid;
use support::{Kind, Serving, World, await_event};

fn build(address: FabricAddress) -> Result<IsmDevice, DeviceError> {
    IsmDevice::builder(address).build()
}

fn memory(dir: &Path) -> File {
    let path = dir.join("memory");
    File::options().read(true).write(true).open(path).unwrap()
}

#[test]
fn devices_of_one_fabric_have_its_chid_and_different_gids() {
    for kind in [Kind::Directory, Kind::Server] {
        let world = World::new(kind, false);
        let devices = [world.device(), world.device(), world.device()];
        assert!(
            devices
                .iter()
                .all(|device| device.chid() == devices[0].chid())
        );
        assert!(
            devices
                .iter()
                .all(|device| device.fabric_id() == devices[0].fabric_id())
        );
        assert_ne!(devices[0].gid(), devices[1].gid());
        assert_eq!(
            [0, 1, 2],
            [0, 1, 2].map(|index: usize| devices[index].slot())
        );
        assert_eq!(devices[2].others(), 2);
    }
}

#[test]
fn a_directory_whose_parent_is_missing_is_named_and_neither_is_created() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("no/such");
    let error = build(FabricAddress::directory(&path))
        .unwrap_err()
        .to_string();
    let text = format!(
        "make directory {}: no such file or directory (os error 2)",
        path.display()
    );
    assert_eq!(error, text);
    assert!(!dir.path().join("no").exists());
}

#[test]
fn a_device_reports_a_peer_that_leaves_and_its_slot_is_reused() {
    for kind in [Kind::Directory, Kind::Server] {
        let world = World::new(kind, false);
        let (stays, leaves) = (world.device(), world.device());
        let (gid, slot) = (leaves.gid(), leaves.slot());
        block_on(stays.reach(gid)).unwrap();
        drop(leaves);
        await_event(&stays, |event| *event == Event::PeerGone(gid));
        assert!(block_on(stays.reach(gid)).is_err());
        assert_eq!(stays.peers(), 0);
        // The server assigns numbers in order, and so reaches all slots.
        let next = loop {
            let next = world.device();
            // As its driver does: the server sends few descriptors to a device that does not read.
            stays.drain(&mut |_| {}).unwrap();
            if next.slot() == slot {
                break next;
            }
        };
        assert_ne!(next.gid(), gid);
        block_on(stays.reach(next.gid())).unwrap();
    }
}

#[test]
fn a_device_whose_socket_file_was_removed_publishes_it_again() {
    let world = World::new(Kind::Directory, false);
    let device = world.device();
    let name = world.address().join("0.sock");
    fs::remove_file(&name).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while !name.exists() {
        assert!(Instant::now() < deadline);
        device.drain(&mut |_| {}).unwrap();
    }
    let next = world.device();
    assert_ne!(next.slot(), device.slot());
    block_on(next.reach(device.gid())).unwrap();
    drop(device);
    assert!(!name.exists());
}

#[test]
fn a_device_does_not_publish_its_socket_in_a_directory_with_other_memory() {
    let world = World::new(Kind::Directory, false);
    let old = world.device();
    for name in ["0.sock", "memory", "lock"] {
        fs::remove_file(world.address().join(name)).unwrap();
    }
    let new = world.device();
    assert_ne!(new.fabric_id(), old.fabric_id());
    drop(old);
    assert!(
        world.address().join("0.sock").exists(),
        "it is that of the new one"
    );
    drop(new);
}

#[test]
fn events_go_from_device_to_device() {
    for kind in [Kind::Directory, Kind::Server] {
        let world = World::new(kind, false);
        let (one, two) = (world.device(), world.device());
        for event in [
            PeerEvent::TestRequest,
            PeerEvent::TestResponse,
            PeerEvent::Shutdown,
        ] {
            one.signal_event(two.gid(), event).unwrap();
            let from = one.gid();
            await_event(&two, |seen| *seen == Event::Peer { from, event });
        }
    }
}

#[test]
fn two_devices_with_one_gid() {
    for kind in [Kind::Directory, Kind::Server] {
        let world = World::new(kind, false);
        let gid = Gid::new(0x1234, 0x5678);
        let device = || IsmDevice::builder(world.fabric_address()).gid(gid).build();
        let first = device().unwrap();
        match device() {
            Err(DeviceError::NotPermitted(why)) => assert!(why.contains("GID"), "{why}"),
            other => panic!("{other:?}"),
        }
        drop(first);
        // The end of the first may be detected with a delay.
        while device().is_err() {
            std::thread::yield_now();
        }
    }
    let half = IsmDevice::builder(FabricAddress::directory("/nowhere")).gid(Gid::native(5));
    assert!(matches!(half.build(), Err(DeviceError::Invalid(_))));
}

#[test]
fn a_full_fabric() {
    let dir = tempfile::tempdir().unwrap();
    let address = FabricAddress::directory(dir.path())
        .with_len(2 << 20)
        .with_devices(2);
    let devices = [
        build(address.clone()).unwrap(),
        build(address.clone()).unwrap(),
    ];
    assert!(matches!(build(address), Err(DeviceError::Exhausted)));
    drop(devices);

    let path = dir.path().join("sock");
    let server = Server::builder(&path).len(2 << 20).devices(1);
    let _serving = Serving::start(server.bind().unwrap());
    let _first = build(FabricAddress::server(&path)).unwrap();
    assert!(matches!(
        build(FabricAddress::server(&path)),
        Err(DeviceError::Exhausted)
    ));
}

#[test]
fn used_up_memory_is_exhausted_or_short() {
    for kind in [Kind::Directory, Kind::Server] {
        let world = World::with_len(kind, false, 2 << 20);
        let (owner, writer) = (world.device(), world.device());
        let register = |len| block_on(owner.register(writer.gid(), len));
        let longest = owner.limits().max_dmb_len;
        let mut dmbs = Vec::new();
        let short = loop {
            match register(longest) {
                Ok(dmb) => dmbs.push(dmb),
                Err(error) => break error,
            }
        };
        assert_eq!(short, DeviceError::NoMemory);
        let none = loop {
            match register(1 << 14) {
                Ok(dmb) => dmbs.push(dmb),
                Err(error) => break error,
            }
        };
        assert_eq!(none, DeviceError::Exhausted);
        dmbs.clear();
        register(longest).unwrap();
        assert_eq!(owner.dmbs(), 0);
    }
}

#[test]
fn memory_that_is_too_small() {
    let dir = tempfile::tempdir().unwrap();
    let small = |len| build(FabricAddress::directory(dir.path()).with_len(len));
    for len in [0, 1, 4096, 100_000] {
        match small(len) {
            Err(DeviceError::Invalid(why)) => assert!(why.contains("too small"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    let server = Server::builder(dir.path().join("sock")).len(1 << 16).bind();
    assert!(matches!(server, Err(DeviceError::Invalid(_))));
    let server = Server::builder(dir.path().join("sock")).len(3 << 20).bind();
    assert!(matches!(server, Err(DeviceError::Invalid(_))));
    small(1 << 21).unwrap();
}

#[test]
fn a_corrupted_header() {
    let dir = tempfile::tempdir().unwrap();
    let address = FabricAddress::directory(dir.path()).with_len(2 << 20);
    let there = build(address.clone()).unwrap();
    let file = memory(dir.path());
    for (at, expected) in [
        (0, "not the memory"),
        (8, "another version"),
        (0x28, "number of"),
    ] {
        let mut before = [0; 8];
        file.read_exact_at(&mut before, at).unwrap();
        file.write_all_at(&[0x55; 8], at).unwrap();
        match build(address.clone()) {
            Err(DeviceError::Invalid(why)) => assert!(why.contains(expected), "{why}"),
            other => panic!("{other:?}"),
        }
        // Devices that have opened the fabric before are not affected.
        there.drain(&mut |_| {}).unwrap();
        file.write_all_at(&before, at).unwrap();
    }
    drop(there);
    // When all devices have gone, the memory is created again, whatever is in it.
    file.write_all_at(&[0x55; 4096], 0).unwrap();
    build(address).unwrap();
}

#[test]
fn a_device_that_is_marked_as_dead_reports_it() {
    let dir = tempfile::tempdir().unwrap();
    let address = FabricAddress::directory(dir.path()).with_len(2 << 20);
    let (victim, other) = (build(address.clone()).unwrap(), build(address).unwrap());
    block_on(other.reach(victim.gid())).unwrap();
    // The state of slot 0, as if another machine had taken it: generation 99, live.
    memory(dir.path())
        .write_all_at(&(99_u64 << 32 | 2).to_ne_bytes(), 0x1000)
        .unwrap();
    let gid = victim.gid();
    // A device that joins makes all others check their peers.
    let _third = build(FabricAddress::directory(dir.path())).unwrap();
    await_event(&other, |event| *event == Event::PeerGone(gid));
    await_event(&victim, |event| *event == Event::DeviceGone);
    assert!(matches!(victim.arm(), Err(DeviceError::Gone(_))));
    assert!(block_on(victim.reach(other.gid())).is_err());
}

#[test]
fn a_directory_that_others_can_change_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("open");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(
        build(FabricAddress::directory(&path)),
        Err(DeviceError::NotPermitted(_))
    ));
}

#[test]
fn a_link_in_the_place_of_the_directory_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (target, link) = (dir.path().join("target"), dir.path().join("link"));
    fs::create_dir(&target).unwrap();
    fs::set_permissions(&target, Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let error = build(FabricAddress::directory(&link)).unwrap_err();
    assert!(error.to_string().contains("link"), "{error}");
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
    // A link above it is for the administrator to make.
    let above = dir.path().join("above");
    std::os::unix::fs::symlink(dir.path(), &above).unwrap();
    build(FabricAddress::directory(above.join("target"))).unwrap();
}

#[test]
fn a_server_that_ends_and_its_successor() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sock");
    let serve = || Serving::start(Server::builder(&path).len(2 << 20).bind().unwrap());
    assert!(matches!(
        build(FabricAddress::server(&path)),
        Err(DeviceError::Gone(_))
    ));
    let serving = serve();
    let second = Server::builder(&path).len(2 << 20).bind();
    assert!(matches!(second, Err(DeviceError::NotPermitted(_))));
    let old = [
        build(FabricAddress::server(&path)).unwrap(),
        build(FabricAddress::server(&path)).unwrap(),
    ];
    block_on(old[0].reach(old[1].gid())).unwrap();
    drop(serving);
    for device in &old {
        await_event(device, |event| *event == Event::DeviceGone);
        match device.drain(&mut |_| {}) {
            Err(DeviceError::Gone(why)) => assert!(why.contains("server"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    let _serving = serve();
    let new = build(FabricAddress::server(&path)).unwrap();
    assert_ne!(new.fabric_id(), old[0].fabric_id());
    assert!(block_on(new.reach(old[0].gid())).is_err());
}

#[test]
fn a_directory_of_a_server_and_memory_of_a_directory_are_no_fabric() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(
        build(FabricAddress::pci("../../etc")),
        Err(DeviceError::Invalid(_))
    ));
    assert!(build(FabricAddress::server(dir.path())).is_err());
    assert!(build(FabricAddress::directory("/proc/self/mem")).is_err());
}
