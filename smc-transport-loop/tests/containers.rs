//! Processes in namespaces of their own that share nothing but a runtime directory.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::process::Command;

use common::{DrivenDevice, names, socket_name};
use smc_core::device::Event;
use smc_testkit::process::{Child, ENTRY, Role, command_by};
use smc_wire::types::{DmbToken, Gid};
use tempfile::TempDir;

const ROUNDS: u64 = 50;

/// What helpers do.
#[test]
fn helper_process() {
    let Some(role) = Role::current() else { return };
    let us = DrivenDevice::in_dir(role.dir());
    role.send(us.gid());
    let (them, begins) = (role.parse::<Gid>(), role.name() == "begins");
    let dmb = us.register(them);
    role.send(dmb.token().0);
    let attached = us.attach(them, DmbToken(role.parse()));
    let mut last = 0;
    for round in 1..=ROUNDS {
        if !begins {
            last = us.wait_word(&*dmb, 8, last);
            assert_eq!(last, round);
        }
        attached.region().copy_in(8, &round.to_ne_bytes()).unwrap();
        attached.signal().unwrap();
        if begins {
            last = us.wait_word(&*dmb, 8, last);
            assert_eq!(last, round);
        }
    }
    role.send("done");
    match role.recv().as_deref() {
        // Waits for the other one to be killed.
        Some("wait") => {
            us.wait(Event::PeerGone(them));
            us.wait_names(role.dir(), &[socket_name(us.gid())]);
        }
        Some(other) => panic!("{other}"),
        None => return,
    }
    role.send("noticed");
    assert_eq!(role.recv(), None);
}

/// A helper in fresh namespaces.
fn contained(flags: &[&str], role: &str, dir: &TempDir) -> Child {
    let launcher = [&["unshare"], flags, &["--"]].concat();
    Child::spawn(command_by(&launcher, ENTRY), role, dir.path().display())
}

fn can_unshare(flags: &[&str]) -> bool {
    let tried = Command::new("unshare")
        .args(flags)
        .args(["--", "true"])
        .output();
    let can = tried.is_ok_and(|output| output.status.success());
    if !can {
        println!("skipped: this user cannot make namespaces with unshare {flags:?}");
    }
    can
}

/// Both exchange data; the first is killed; the second reports the loss.
fn exchange_then_kill(flags: &[&str]) {
    if !can_unshare(flags) {
        return;
    }
    let dir = TempDir::new().unwrap();
    let mut first = contained(flags, "begins", &dir);
    let mut second = contained(flags, "answers", &dir);
    let (first_gid, second_gid) = (first.parse::<Gid>(), second.parse::<Gid>());
    first.send(second_gid);
    second.send(first_gid);
    let (first_token, second_token) = (DmbToken(first.parse()), DmbToken(second.parse()));
    first.send(second_token.0);
    second.send(first_token.0);
    assert_eq!(
        (first.recv(), second.recv()),
        ("done".into(), "done".into())
    );
    second.send("wait");
    first.kill();
    assert_eq!(second.recv(), "noticed");
    second.finish();
    assert!(names(dir.path()).is_empty());
}

#[test]
fn containers_share_memory() {
    exchange_then_kill(&["--net", "--mount"]);
}

/// Process numbers of one mean nothing in the other.
#[test]
fn containers_with_process_ids_of_their_own_share_memory() {
    exchange_then_kill(&[
        "--net",
        "--mount",
        "--ipc",
        "--uts",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
}
