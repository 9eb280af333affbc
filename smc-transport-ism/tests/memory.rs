//! Memory of a fabric is free again when both sides have released it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use futures_lite::future::block_on;
use smc_core::device::{Attachment, Device as _, Direct as _, Dmb};
use smc_testkit::on::On;
use smc_testkit::streams::connect;
use smc_transport_ism::IsmDevice;
use smc_wire::types::DeclineCode;
use support::{Kind, World};

/// All buffers of a fabric that a device can have, each used by its peer.
fn take_all(ours: &IsmDevice, theirs: &IsmDevice) -> Vec<(Arc<dyn Dmb>, Arc<dyn Attachment>)> {
    let nocopy = theirs.nocopy().unwrap();
    std::iter::from_fn(|| {
        let dmb = block_on(ours.register(theirs.gid(), LEN)).ok()?;
        let attached = block_on(nocopy.attach(ours.gid(), dmb.token())).unwrap();
        Some((dmb, attached))
    })
    .collect()
}

fn drain(device: &IsmDevice) {
    for _ in 0..2 {
        device.drain(&mut |_| ()).unwrap();
        device.arm().unwrap();
    }
    device.drain(&mut |_| ()).unwrap();
}

#[test]
fn memory_is_free_for_others_when_the_peer_releases_it_last() {
    let world = World::with_len(Kind::Directory, true, 4 << 20);
    let (ours, theirs) = (world.device(), world.device());
    let (dmbs, attached): (Vec<_>, Vec<_>) = take_all(&ours, &theirs).into_iter().unzip();
    let count = dmbs.len();
    assert!(count > 2);
    drain(&ours);
    drop(dmbs);
    drop(attached);
    drain(&ours);
    assert_eq!(take_all(&theirs, &ours).len(), count);
}

#[test]
fn memory_is_free_for_others_when_a_region_is_dropped_last() {
    let world = World::with_len(Kind::Directory, true, 4 << 20);
    let (ours, theirs) = (world.device(), world.device());
    let (dmbs, attached): (Vec<_>, Vec<_>) = take_all(&ours, &theirs).into_iter().unzip();
    let count = dmbs.len();
    let regions: Vec<_> = dmbs.iter().map(|dmb| dmb.region().clone()).collect();
    drop((attached, dmbs));
    assert_eq!(take_all(&theirs, &ours).len(), 0);
    drop(regions);
    assert_eq!(take_all(&theirs, &ours).len(), count);
}

#[test]
fn a_memory_limit_makes_buffers_smaller_and_then_causes_fallback() {
    On::Smol.run(async {
        let world = World::new(Kind::Directory, false);
        let client = world.endpoint(On::Smol);
        let limited = |bytes| world.builder(On::Smol).memory_limit(bytes).build().unwrap();
        let server = limited(32 << 20);
        let listener = server.bind("127.0.0.1:0").await.unwrap();
        let (ours, theirs) = connect(&client, &listener).await;
        let short = theirs.recv_buffer_size().unwrap();
        assert!(short > 1 << 18 && short < 1 << 19, "{short}");
        assert_eq!(ours.recv_buffer_size(), Some(short), "as the server's");
        assert_eq!(server.memory().used(), 2 << 19, "both buffers");
        drop((ours, theirs));
        while server.memory().used() > 0 {
            async_io::Timer::after(Duration::from_millis(1)).await;
        }

        let server = limited(1 << 14);
        let listener = server.bind("127.0.0.1:0").await.unwrap();
        let (ours, theirs) = connect(&client, &listener).await;
        assert_eq!(theirs.fallback_reason().unwrap().local, DeclineCode::MEM);
        assert_eq!(ours.fallback_reason().unwrap().peer, Some(DeclineCode::MEM));
        assert_eq!(server.memory().used(), 0);
    });
}

const LEN: usize = 1 << 18;
