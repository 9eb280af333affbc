//! Two processes on one host.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::time::Duration;

use common::{DrivenDevice, device, names, socket_name, start};
use smc_core::device::Event;
use smc_core::mem::sync::Ordering;
use smc_testkit::process::Role;
use smc_wire::types::{DmbToken, Gid};
use tempfile::TempDir;

const PRODUCER: usize = 8;
const ROUNDS: u64 = 200;

/// What helpers do; a test of its own name that does nothing in the process of the tests.
#[test]
fn helper_process() {
    let Some(role) = Role::current() else { return };
    match role.name() {
        "echo" => echo(&role, true),
        "echo by copy" => echo(&role, false),
        "idle" => common::idle(&role),
        other => panic!("no role {other}"),
    }
}

/// Answers every word with the next number.
fn echo(role: &Role, nocopy: bool) {
    let device = DrivenDevice::new(device(role.dir()).nocopy(nocopy));
    role.send(device.gid());
    let peer = role.parse::<Gid>();
    let theirs = DmbToken(role.parse());
    let dmb = device.register(peer);
    role.send(dmb.token().0);
    let attached = nocopy.then(|| device.attach(peer, theirs));
    let mut last = 0;
    while last < ROUNDS {
        last = device.wait_word(&*dmb, PRODUCER, last);
        let answer = (last + 1_000_000).to_ne_bytes();
        match &attached {
            Some(attached) => {
                attached.region().copy_in(PRODUCER, &answer).unwrap();
                attached.signal().unwrap();
            }
            None => device.write(peer, theirs, 8, &answer).unwrap(),
        }
    }
    assert_eq!(role.recv(), None, "nothing more to do");
}

fn ping_pong(role: &str, nocopy: bool) {
    let dir = TempDir::new().unwrap();
    let device = DrivenDevice::new(device(dir.path()).nocopy(nocopy));
    let mut helper = start(role, &dir);
    let peer = helper.parse::<Gid>();
    let dmb = device.register(peer);
    helper.send(device.gid());
    helper.send(dmb.token().0);
    let theirs = DmbToken(helper.parse());
    let attached = nocopy.then(|| device.attach(peer, theirs));
    let mut last = 0;
    for round in 1..=ROUNDS {
        match &attached {
            Some(attached) => {
                let region = attached.region();
                region.store(PRODUCER, round, Ordering::Release).unwrap();
                attached.signal().unwrap();
            }
            None => device.write(peer, theirs, 8, &round.to_ne_bytes()).unwrap(),
        }
        last = device.wait_word(&*dmb, PRODUCER, last);
        assert_eq!(last, round + 1_000_000);
    }
    helper.finish();
    device.wait(Event::PeerGone(peer));
    device.wait_names(dir.path(), &[socket_name(device.gid())]);
}

#[test]
fn processes_write_into_each_others_buffers() {
    ping_pong("echo", true);
}

#[test]
fn processes_move_data_by_copy() {
    ping_pong("echo by copy", false);
}

#[test]
fn sockets_of_ended_processes_are_removed_and_others_are_not() {
    let dir = TempDir::new().unwrap();
    let mut dead = start("idle", &dir);
    let dead_gid = dead.parse::<Gid>();
    dead.kill();
    assert_eq!(names(dir.path()), [socket_name(dead_gid)]);
    let living = DrivenDevice::in_dir(dir.path());
    assert_eq!(names(dir.path()), [socket_name(living.gid())]);
    let other = DrivenDevice::in_dir(dir.path());
    assert_eq!(names(dir.path()).len(), 2);
    assert!(
        !living.park(Duration::from_millis(20)),
        "the sweep does not disturb live devices"
    );
    drop((living, other));
    assert!(names(dir.path()).is_empty());
}
