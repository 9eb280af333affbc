//! Streams of SMC-D against a peer that has a device and no endpoint, and what they ask of their
//! own device.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::sync::Arc;

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use smc_core::device::Signal;
use smc_testkit::middleware::{Journal, Trace, What};
use smc_testkit::streams::patterned;
use smc_testkit::world::{ScriptedDevice, World, meet_smc};

/// The signals of the moves since the last call.
fn signals(journal: &Journal) -> Vec<(usize, Signal)> {
    let records = journal.take().into_iter();
    let moves = records.filter_map(|record| match record.what {
        What::Moved { len, signal, .. } => Some((len, signal)),
        _ => None,
    });
    moves.collect()
}

#[test]
fn a_word_that_is_followed_by_the_producer_cursor_has_no_signal_of_its_own() {
    let world = World::new().with_fabric(|fabric| fabric.with_nocopy(false));
    let (traced, journal) = Trace::with_journal(Arc::new(world.device("client")));
    let client = world.host_on(ScriptedDevice::around(traced), |builder| builder);
    let server = world.host_with("server", |builder| builder.recv_buffer(16 * 1024));
    world.block_on(async {
        let (mut ours, mut theirs) = meet_smc(&client, &server).await;
        let ring = ours.send_buffer_size().unwrap();
        ours.write_all(b"x").await.unwrap();
        assert_eq!(signals(&journal), [(1, Signal::No), (8, Signal::Yes)]);
        // The last byte of the ring, so that the flag of a blocked writer is set.
        ours.write_all(&patterned(ring - 1)).await.unwrap();
        let filled = [(ring - 1, Signal::No), (8, Signal::No), (8, Signal::Yes)];
        assert_eq!(signals(&journal), filled);
        // And cleared again.
        theirs.read_exact(&mut vec![0; ring]).await.unwrap();
        ours.write_all(b"y").await.unwrap();
        let freed = [(1, Signal::No), (8, Signal::No), (8, Signal::Yes)];
        assert_eq!(signals(&journal), freed);
        // Flags that end the stream signal.
        ours.close().await.unwrap();
        assert_eq!(signals(&journal), [(8, Signal::Yes)]);
    });
}
