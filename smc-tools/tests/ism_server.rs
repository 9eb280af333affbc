//! `smc ism-server`, and how it ends.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, poll};
use smc_core::device::{Device as _, DeviceError, Doorbell, Event};
use smc_transport_ism::{FabricAddress, IsmDevice};

#[test]
fn a_server_that_is_asked_to_end_removes_its_files() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let mut server = start(&path);
        let device = IsmDevice::builder(FabricAddress::server(&path))
            .build()
            .unwrap();
        kill(pid(&server), signal).unwrap();
        assert!(server.wait().unwrap().success());
        assert!(!path.exists());
        await_end(&device);
    }
}

#[test]
fn a_server_that_is_killed_is_replaced_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sock");
    let mut server = start(&path);
    let old = IsmDevice::builder(FabricAddress::server(&path))
        .build()
        .unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    await_end(&old);
    let mut next = start(&path);
    let new = IsmDevice::builder(FabricAddress::server(&path))
        .build()
        .unwrap();
    assert_ne!(new.fabric_id(), old.fabric_id());
    next.kill().unwrap();
    next.wait().unwrap();
}

/// A server that listens.
fn start(path: &Path) -> Child {
    let mut server = Command::new(env!("CARGO_BIN_EXE_smc"))
        .arg("ism-server")
        .arg(path)
        .args(["--size", "2M"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.starts_with("fabric "), "{line}");
    server
}

fn await_end(device: &IsmDevice) {
    let Doorbell::Fd(doorbell) = device.doorbell() else {
        panic!("no descriptor");
    };
    device.arm().unwrap();
    let mut is_gone = false;
    while !is_gone {
        device
            .drain(&mut |event| is_gone |= event == Event::DeviceGone)
            .unwrap();
        if !is_gone {
            poll(&mut [PollFd::new(&doorbell, PollFlags::IN)], None).unwrap();
        }
    }
    match device.drain(&mut |_| {}) {
        Err(DeviceError::Gone(why)) => assert!(why.contains("server"), "{why}"),
        other => panic!("{other:?}"),
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap())
}
