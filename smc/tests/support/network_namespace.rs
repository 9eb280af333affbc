//! Tests that change what belongs to the network of a machine.

use std::process::Command;
use std::thread;

use nix::sched::{CloneFlags, unshare};

/// Runs `test` on a thread in a network namespace of its own, in which the loopback interface is
/// up. Says why if that cannot be.
pub(crate) fn in_network_namespace(test: impl FnOnce() + Send + 'static) {
    let run = move || {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            return println!("skipped: why: cannot make a network namespace: {error}");
        }
        let mut up = Command::new("ip");
        match up.args(["link", "set", "lo", "up"]).status() {
            Ok(status) if status.success() => {}
            other => return println!("skipped: why: needs iproute2: {other:?}"),
        }
        test();
    };
    thread::spawn(run).join().expect("the scenario passes");
}
