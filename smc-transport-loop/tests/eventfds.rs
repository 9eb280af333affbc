//! The eventfds of two devices, which either has: none is closed by a thread that drops a device.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::DrivenDevice;
use smc_testkit::resources::open_descriptors_of;
use smc_testkit::slow_close::block_closing_threads;
use smc_testkit::wait::until;
use tempfile::TempDir;

#[test]
fn eventfds_of_peers_are_closed_on_the_closing_threads() {
    let dir = TempDir::new().unwrap();
    let far = block_closing_threads();
    let before = open_descriptors_of("[eventfd]");
    let (ours, theirs) = DrivenDevice::pair(&dir);
    let dmb = ours.register(theirs.gid());
    drop(theirs.attach(ours.gid(), dmb.token()));
    ours.drain();
    drop((dmb, ours, theirs));
    // Each has one for the other, and that of the other.
    assert_eq!(open_descriptors_of("[eventfd]"), before + 4);
    drop(far);
    until(
        || open_descriptors_of("[eventfd]") <= before,
        || "they stay open".to_owned(),
    );
}
