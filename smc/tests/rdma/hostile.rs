//! Peers that break the rules of the data path, or say unusual things.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use smc::Endpoint;
use smc_core::device::Access;
use smc_core::wire::cdc::{CdcR, ProducerFlags};
use smc_core::wire::cursor::Cursor;
use smc_core::wire::llc::{self, ByteOrder, DeleteLink, DeleteLinkReason, Dialect};
use smc_testkit::middleware::{Trace, What};
use smc_testkit::streams::{
    connect, expect_error, expect_rest_and_error, expect_write_error, transfer, transfer_both_ways,
};
use smc_testkit::world::{RdmaWorld, SERVER, eid, is_smcr, rdma_pair};

use crate::interceptor::Interceptor;

/// A client whose messages the server sees changed.
fn intercepted(world: &RdmaWorld) -> (Endpoint, Endpoint, Arc<Interceptor>) {
    let client = world.device("a0", 1);
    let interceptor = Interceptor::new(world.device("b0", 2));
    let server = world.endpoint_on(vec![interceptor.clone()], |builder| builder.ueid(eid()));
    (world.endpoint(&[&client]), server, interceptor)
}

#[test]
fn a_peer_that_never_confirms_deletions_gets_no_more_buffers_in_its_group() {
    let world = RdmaWorld::new(47);
    let (client, server, interceptor) = intercepted(&world);
    interceptor.set_filter(|message| match llc::Message::parse(message) {
        // A message of an unknown type in its place: each one takes a receive credit.
        Ok(llc::Message::DeleteRkey(answer)) if answer.class == llc::Class::Response => {
            vec![[&[0x2f], &message[1..]].concat()]
        }
        _ => vec![message.to_vec()],
    });
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        for _ in 0..4 {
            let mut pairs = Vec::new();
            for _ in 0..200 {
                pairs.push(connect(&client, &listener).await);
            }
        }
        // One deletion at a time, each for two seconds.
        world.sleep(Duration::from_secs(60)).await;
        let groups = server.rdma_groups();
        let retiring: Vec<_> = groups.iter().map(|group| group.retiring).collect();
        assert!(
            retiring.iter().all(|buffers| *buffers <= 510),
            "{retiring:?}"
        );
        let all: usize = retiring.iter().sum();
        assert!(all < 800, "further connections have another group");
        // A connection stays, and its group ends with it.
        transfer(&mut ours, &mut theirs, 1000).await;
        drop((ours, theirs));
        world.sleep(Duration::from_secs(60)).await;
        let left = server.rdma_groups();
        assert!(left.is_empty(), "{left:?}");
    });
}

#[test]
fn a_peer_cannot_write_into_the_buffers_of_another_peer() {
    let world = RdmaWorld::new(45);
    let victim = world.endpoint(&[&world.device("a0", 1)]);
    let device = Interceptor::new(world.device("c0", 3));
    let hostile = world.endpoint_on(vec![device.clone()], |builder| builder.ueid(eid()));
    let (traced, journal) = Trace::with_journal(world.device("b0", 2));
    let server = world.endpoint_on(vec![traced], |builder| builder.ueid(eid()));
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let (mut ours, mut theirs) = connect(&victim, &listener).await;
        let rmb = journal
            .take()
            .into_iter()
            .find_map(|record| match record.what {
                What::MemoryRegistered {
                    access: Access::RemoteWrite,
                    result: Ok(rmb),
                    ..
                } => Some(rmb),
                _ => None,
            });
        let (mut attacking, mut attacked) = connect(&hostile, &listener).await;
        assert!(is_smcr(&ours) && is_smcr(&attacking));

        let (rkey, addr) = rmb.expect("the server has registered a receive buffer");
        device.aim_at(rkey, addr);
        attacking.write_all(b"forged").await.expect("is staged");
        expect_error(&mut attacked, ErrorKind::ConnectionAborted).await;
        // What it would have overwritten arrives as it was sent.
        transfer(&mut ours, &mut theirs, 100_000).await;
    });
}

#[test]
fn bad_cursors_end_their_connection_and_no_other() {
    type Change = fn(&mut CdcR);
    let changes: [(&str, Change); 4] = [
        ("a producer outside of the ring", |cdc| {
            cdc.producer.count = 1 << 30
        }),
        ("a producer that passes the space", |cdc| {
            cdc.producer = Cursor { wrap: 2, count: 77 };
        }),
        ("a consumer outside of the ring", |cdc| {
            cdc.consumer.count = 1 << 30
        }),
        ("a consumer that passes the data", |cdc| {
            cdc.consumer = Cursor {
                wrap: 0,
                count: 5000,
            };
        }),
    ];
    for (what, change) in changes {
        let world = RdmaWorld::new(40);
        let (client, server, interceptor) = intercepted(&world);
        world.block_on(async {
            let listener = server.bind(SERVER).await.expect("a free port");
            let (mut ours, mut theirs) = connect(&client, &listener).await;
            let (mut other, mut others) = connect(&client, &listener).await;
            transfer(&mut ours, &mut theirs, 100).await;
            transfer(&mut other, &mut others, 100).await;
            interceptor.change_once(move |cdc| {
                change(cdc);
                true
            });
            ours.write_all(b"0123456789").await.expect("writes");
            let error = loop {
                match theirs.read(&mut [0; 100]).await {
                    Ok(count) => assert!(count > 0, "{what}"),
                    Err(error) => break error,
                }
            };
            assert_ne!(error.kind(), ErrorKind::UnexpectedEof, "{what}");
            drop(theirs);
            let mut rest = Vec::new();
            let error = ours.read_to_end(&mut rest).await.expect_err(what);
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{what}");
            transfer_both_ways(&mut other, &mut others, 50_000).await;
        });
    }
}

#[test]
fn validations_of_messages_that_never_come_end_their_connections_and_drain_no_device_each() {
    let world = RdmaWorld::new(47);
    let (a0, a1) = (world.device("a0", 1), world.device("a1", 3));
    let devices = [world.device("b0", 2), world.device("b1", 4)];
    let (interceptors, both) = Interceptor::pair(&devices);
    let client = world.endpoint(&[&a0, &a1]);
    let server = world.endpoint_on(both, |builder| builder.ueid(eid()));
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let first = connect(&client, &listener).await;
        world.sleep(Duration::from_secs(1)).await;
        // Connections are on both links in turn.
        let mut pairs = vec![first];
        for _ in 1..4 {
            pairs.push(connect(&client, &listener).await);
        }
        for (ours, theirs) in &mut pairs {
            transfer(ours, theirs, 1000).await;
        }
        for interceptor in &interceptors {
            interceptor.set_filter(|message| match CdcR::parse(message) {
                Ok(mut cdc) => {
                    cdc.producer_flags = ProducerFlags::FAILOVER_VALIDATION;
                    cdc.sequence = cdc.sequence.wrapping_add(1000);
                    vec![cdc.to_bytes().to_vec(); 128]
                }
                Err(_) => vec![message.to_vec()],
            });
        }
        // Both devices have theirs when the first of them is drained.
        devices.iter().for_each(|device| device.set_lag(true));
        for (ours, _) in &mut pairs[..2] {
            ours.write_all(b"x").await.expect("writes");
        }
        world.sleep(Duration::from_millis(10)).await;
        interceptors.iter().for_each(|it| _ = it.take_drains());
        devices.iter().for_each(|device| device.set_lag(false));
        world.sleep(Duration::from_millis(10)).await;
        for interceptor in &interceptors {
            let drains = interceptor.take_drains();
            assert!((1..=20).contains(&drains), "{drains} for 128 messages");
            interceptor.set_filter(|message| vec![message.to_vec()]);
        }
        for (_, theirs) in &mut pairs[..2] {
            expect_error(theirs, ErrorKind::ConnectionAborted).await;
        }
        for (ours, theirs) in &mut pairs[2..] {
            transfer_both_ways(ours, theirs, 50_000).await;
        }
    });
}

#[test]
fn tokens_tell_nothing_of_other_tokens() {
    let world = RdmaWorld::new(45);
    let (client, server, interceptor) = intercepted(&world);
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let tokens = Arc::clone(&seen);
    interceptor.set_filter(move |message| {
        if let Ok(cdc) = CdcR::parse(message) {
            tokens.lock().expect("a token").insert(cdc.token.get());
        }
        vec![message.to_vec()]
    });
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let mut streams = Vec::new();
        for _ in 0..10 {
            let (mut ours, mut theirs) = connect(&client, &listener).await;
            transfer(&mut ours, &mut theirs, 100).await;
            streams.push((ours, theirs));
        }
    });
    let seen: Vec<_> = seen.lock().expect("tokens").iter().copied().collect();
    assert_eq!(seen.len(), 10);
    let gaps = seen.iter().zip(seen.iter().skip(1)).map(|(a, b)| b - a);
    assert!(gaps.min() > Some(1), "{seen:?}");
}

#[test]
fn messages_with_unknown_tokens_and_malformed_ones_are_dropped() {
    let world = RdmaWorld::new(41);
    let (client, server, interceptor) = intercepted(&world);
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        let mut round = 0_u8;
        interceptor.set_filter(move |message| {
            round = round.wrapping_add(1);
            let mut unknown = message.to_vec();
            if let Some(token) = unknown.get_mut(4..8) {
                token.copy_from_slice(&[0xff, round, 3, 4]);
            }
            let rubbish = vec![round; usize::from(round)];
            let short = message[..message.len() / 2].to_vec();
            vec![unknown, rubbish, short, message.to_vec(), message.to_vec()]
        });
        transfer_both_ways(&mut ours, &mut theirs, 200_000).await;
    });
}

#[test]
fn delete_link_for_all_ends_the_group_of_both() {
    let world = RdmaWorld::new(42);
    let (client, server, interceptor) = intercepted(&world);
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        transfer(&mut ours, &mut theirs, 100).await;
        theirs.write_all(b"said before").await.expect("writes");
        world.sleep(Duration::from_millis(1)).await;
        interceptor.set_filter(|message| {
            let dialect = Dialect::V2(ByteOrder::Little);
            let all = DeleteLink::all(dialect, false, DeleteLinkReason::OPERATOR);
            let mut bytes = vec![0; all.encoded_len()];
            all.emit(&mut bytes).expect("fits");
            vec![message.to_vec(), bytes]
        });
        ours.write_all(b"the last drop").await.expect("writes");
        let mut got = [0; 13];
        theirs.read_exact(&mut got).await.expect("what came before");
        expect_error(&mut theirs, ErrorKind::ConnectionAborted).await;
        let mut said = Vec::new();
        let error = ours.read_to_end(&mut said).await.expect_err("is aborted");
        assert!(
            matches!(
                error.kind(),
                ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset
            ),
            "{error}"
        );
        drop((ours, theirs));
        world.sleep(Duration::from_secs(3)).await;
        for endpoint in [&client, &server] {
            assert!(endpoint.rdma_groups().is_empty());
            assert!(endpoint.connections().is_empty());
        }
        // The next one makes another group.
        interceptor.set_filter(|message| vec![message.to_vec()]);
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        transfer(&mut ours, &mut theirs, 100).await;
    });
}

#[test]
fn urgent_data_is_answered_with_an_update_once_it_is_read() {
    let world = RdmaWorld::new(43);
    let ours_seen = Interceptor::new(world.device("a0", 1));
    let theirs_seen = Interceptor::new(world.device("b0", 2));
    let client = world.endpoint_on(vec![ours_seen.clone()], |builder| builder.ueid(eid()));
    let server = world.endpoint_on(vec![theirs_seen.clone()], |builder| builder.ueid(eid()));
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        transfer(&mut ours, &mut theirs, 100).await;
        theirs_seen.change_once(|cdc| {
            cdc.producer_flags |= ProducerFlags::URGENT_PENDING | ProducerFlags::URGENT_PRESENT;
            true
        });
        let updates = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&updates);
        ours_seen.set_filter(move |message| {
            if CdcR::parse(message).is_ok_and(|cdc| cdc.consumer.count == 101) {
                count.fetch_add(1, Ordering::Relaxed);
            }
            vec![message.to_vec()]
        });
        ours.write_all(b"!").await.expect("writes");
        world.sleep(Duration::from_millis(1)).await;
        assert_eq!(updates.load(Ordering::Relaxed), 0);
        theirs.read_exact(&mut [0; 1]).await.expect("reads");
        world.sleep(Duration::from_millis(1)).await;
        assert_eq!(updates.load(Ordering::Relaxed), 1);
        transfer(&mut ours, &mut theirs, 1000).await;
    });
}

#[test]
fn a_task_that_waits_polls_a_device_with_events_without_end_few_times() {
    let world = RdmaWorld::new(311);
    let near = world.device("a0", 1);
    let far = Interceptor::new(world.device("b0", 2));
    let client = world.endpoint(&[&near]);
    let server = world.endpoint_on(vec![far.clone()], |builder| {
        builder.ueid(eid()).polling(Duration::from_millis(1))
    });
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        transfer(&mut ours, &mut theirs, 1000).await;
        far.set_flooded(true);
        far.take_drains();
        let read = futures_lite::future::poll_once(theirs.read(&mut [0])).await;
        assert!(read.is_none());
        let drains = far.take_drains();
        assert!((1..=8).contains(&drains), "{drains} drains in one poll");
        far.set_flooded(false);
    });
}

/// A TCP connection of another process can name the key before that, so that two streams had one
/// buffer afterwards.
#[test]
fn a_stream_whose_rmb_the_peer_has_revoked_writes_no_more() {
    let world = RdmaWorld::new(79);
    let (client, server, b) = intercepted(&world);
    world.block_on(async {
        let (is_due, keys) = (
            Arc::new(AtomicBool::new(false)),
            Arc::<Mutex<Vec<_>>>::default(),
        );
        let (when, announced) = (Arc::clone(&is_due), Arc::clone(&keys));
        b.set_filter(move |message| {
            let mut messages = vec![message.to_vec()];
            if let Ok(llc::Message::ConfirmRkey(
                confirm @ llc::ConfirmRkey {
                    class: llc::RkeyClass::Request,
                    ..
                },
            )) = llc::Message::parse(message)
            {
                announced
                    .lock()
                    .expect("works")
                    .push((confirm.dialect, confirm.rkey));
            }
            if when.swap(false, Ordering::Relaxed) {
                let (dialect, rkey) = announced.lock().expect("works")[0];
                let keys = [llc::WireRkey::from(rkey)];
                let delete = llc::DeleteRkey::request(dialect, &keys);
                let mut bytes = vec![0; delete.encoded_len()];
                delete.emit(&mut bytes).expect("works");
                messages.push(bytes);
            }
            messages
        });
        let listener = server.bind(SERVER).await.expect("works");
        let (_ours, _theirs) = connect(&client, &listener).await;
        // The second one is announced on the link.
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        transfer_both_ways(&mut ours, &mut theirs, 1000).await;
        is_due.store(true, Ordering::Relaxed);
        // Behind the announcement for a third one.
        let (_further_ours, _further_theirs) = connect(&client, &listener).await;
        world.sleep(Duration::from_millis(10)).await;
        // Into the staging ring, from where it is written no further.
        theirs.write_all(&[9; 100]).await.expect("has space");
        world.sleep(Duration::from_millis(10)).await;
        expect_write_error(&mut theirs, ErrorKind::ConnectionAborted).await;
        expect_rest_and_error(&mut ours, &[], ErrorKind::ConnectionReset).await;
    });
}
