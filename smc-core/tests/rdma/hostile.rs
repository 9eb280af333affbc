//! Peers that break the rules of the data path, or say unusual things.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use smc_core::io::Endpoint;
use smc_core::wire::cdc::{CdcR, ProducerFlags};
use smc_core::wire::cursor::Cursor;
use smc_core::wire::llc::{ByteOrder, DeleteLink, DeleteLinkReason, Dialect};

use crate::meddler::Meddler;
use crate::world::{World, connect, eid, listen, transfer};

/// A client whose messages the server sees changed.
fn meddled(world: &World) -> (Endpoint, Endpoint, Arc<Meddler>) {
    let client = world.device("a0", 1);
    let meddler = Meddler::new(world.device("b0", 2));
    let server = world.endpoint_on(vec![meddler.clone()], |builder| builder.ueid(eid()));
    (world.endpoint(&[&client]), server, meddler)
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
        let world = World::new(40);
        let (client, server, meddler) = meddled(&world);
        world.block_on(async {
            let listener = listen(&server).await;
            let (mut ours, mut theirs) = connect(&client, &listener).await;
            let (mut other, mut others) = connect(&client, &listener).await;
            transfer(&mut ours, &mut theirs, 100).await;
            transfer(&mut other, &mut others, 100).await;
            meddler.change_once(move |cdc| {
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
            transfer(&mut other, &mut others, 50_000).await;
            transfer(&mut others, &mut other, 50_000).await;
        });
    }
}

#[test]
fn messages_for_nobody_and_rubbish_are_dropped() {
    let world = World::new(41);
    let (client, server, meddler) = meddled(&world);
    world.block_on(async {
        let listener = listen(&server).await;
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        let mut round = 0_u8;
        meddler.meddle(move |message| {
            round = round.wrapping_add(1);
            let mut stranger = message.to_vec();
            if let Some(token) = stranger.get_mut(4..8) {
                token.copy_from_slice(&[0xff, round, 3, 4]);
            }
            let rubbish = vec![round; usize::from(round)];
            let short = message[..message.len() / 2].to_vec();
            vec![stranger, rubbish, short, message.to_vec(), message.to_vec()]
        });
        transfer(&mut ours, &mut theirs, 200_000).await;
        transfer(&mut theirs, &mut ours, 200_000).await;
    });
}

#[test]
fn delete_link_for_all_ends_the_group_of_both() {
    let world = World::new(42);
    let (client, server, meddler) = meddled(&world);
    world.block_on(async {
        let listener = listen(&server).await;
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        transfer(&mut ours, &mut theirs, 100).await;
        theirs.write_all(b"said before").await.expect("writes");
        world.sleep(Duration::from_millis(1)).await;
        meddler.meddle(|message| {
            let dialect = Dialect::V2(ByteOrder::Little);
            let all = DeleteLink::all(dialect, false, DeleteLinkReason::OPERATOR);
            let mut bytes = vec![0; all.encoded_len()];
            all.emit(&mut bytes).expect("fits");
            vec![message.to_vec(), bytes]
        });
        ours.write_all(b"the last drop").await.expect("writes");
        let mut got = [0; 13];
        theirs.read_exact(&mut got).await.expect("what came before");
        let error = theirs.read(&mut [0; 10]).await.expect_err("is aborted");
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
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
        meddler.meddle(|message| vec![message.to_vec()]);
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        transfer(&mut ours, &mut theirs, 100).await;
    });
}

#[test]
fn urgent_data_is_answered_with_an_update_once_it_is_read() {
    let world = World::new(43);
    let ours_seen = Meddler::new(world.device("a0", 1));
    let theirs_seen = Meddler::new(world.device("b0", 2));
    let client = world.endpoint_on(vec![ours_seen.clone()], |builder| builder.ueid(eid()));
    let server = world.endpoint_on(vec![theirs_seen.clone()], |builder| builder.ueid(eid()));
    world.block_on(async {
        let listener = listen(&server).await;
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        transfer(&mut ours, &mut theirs, 100).await;
        theirs_seen.change_once(|cdc| {
            cdc.producer_flags |= ProducerFlags::URGENT_PENDING | ProducerFlags::URGENT_PRESENT;
            true
        });
        let updates = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&updates);
        ours_seen.meddle(move |message| {
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
