//! The eventfds of an ivshmem server, which all its clients have: none is closed by the server's
//! thread, or by one that drives a device.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use smc_core::device::Device as _;
use smc_testkit::resources::open_descriptors_of;
use smc_testkit::slow_close::block_closing_threads;
use smc_testkit::wait::until;
use support::{Kind, World};

#[test]
fn eventfds_of_clients_are_closed_on_the_closing_threads() {
    let far = block_closing_threads();
    let before = open_descriptors_of("[eventfd]");
    let world = World::with_len(Kind::Server, false, 8 << 20);
    let first = world.device();
    let with_one = open_descriptors_of("[eventfd]");
    let second = world.device();
    // The eventfd of the second client: the server has it, the second device, and the first one
    // when it has read the server's messages.
    let others_are_known = || {
        first.drain(&mut |_| {}).unwrap();
        open_descriptors_of("[eventfd]") == with_one + 6
    };
    until(others_are_known, || {
        "the second client is not known".to_owned()
    });
    drop((first, second, world));
    assert_eq!(open_descriptors_of("[eventfd]"), before + 6);
    drop(far);
    let are_closed = || open_descriptors_of("[eventfd]") == before;
    until(are_closed, || "they stay open".to_owned());
}
