//! Set-ups that end in a DECLINE, and streams that are TCP then.

use std::sync::Arc;
use std::time::Duration;

use smc::{Endpoint, FallbackCause, Stream};
use smc_core::device::DeviceError;
use smc_core::negotiate::Never;
use smc_core::wire::types::{DeclineCode, Eid};
use smc_negotiate_local::Local;
use smc_testkit::streams::{connect, transfer_both_ways};
use smc_testkit::world::{RdmaWorld, SERVER, eid, is_smcr, rdma_pair};

/// The reasons on both sides of a stream that works as TCP.
async fn codes(ours: &mut Stream, theirs: &mut Stream) -> [DeclineCode; 2] {
    transfer_both_ways(ours, theirs, 10_000).await;
    [ours, theirs].map(|stream| {
        let reason = stream.fallback_reason().expect("it is TCP");
        reason.peer.unwrap_or(reason.local)
    })
}

async fn declined(client: &Endpoint, server: &Endpoint) -> [DeclineCode; 2] {
    let listener = server.bind(SERVER).await.expect("a free port");
    let (mut ours, mut theirs) = connect(client, &listener).await;
    codes(&mut ours, &mut theirs).await
}

#[test]
fn without_a_common_eid() {
    let world = RdmaWorld::new(100);
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    let other: Eid = "OTHER".parse().expect("a valid EID");
    let client = world.endpoint(&[&a]);
    let server = world.endpoint_on(vec![b.clone()], |builder| builder.ueid(other));
    world.block_on(async {
        let code = DeclineCode::NOSMCDEV;
        assert_eq!(code.0, 0x0303_0000);
        assert_eq!(declined(&client, &server).await, [code; 2]);
        assert_eq!((a.links().len(), b.links().len()), (0, 0));
    });
}

#[test]
fn without_a_device_of_the_server() {
    let world = RdmaWorld::new(101);
    let a = world.device("a0", 1);
    let (client, server) = (world.endpoint(&[&a]), world.endpoint(&[]));
    world.block_on(async {
        let [ours, theirs] = declined(&client, &server).await;
        assert_eq!(ours, theirs);
        assert_eq!((a.links().len(), a.registrations()), (0, 0));
    });
}

#[test]
fn without_a_queue_pair() {
    for which in 0..2 {
        let world = RdmaWorld::new(102);
        let devices = [world.device("a0", 1), world.device("b0", 2)];
        let endpoints = [0, 1].map(|at| world.endpoint(&[&devices[at]]));
        world.block_on(async {
            devices[which].set_max_links(0);
            let listener = endpoints[1].bind(SERVER).await.expect("a free port");
            let (mut ours, mut theirs) = connect(&endpoints[0], &listener).await;
            let [ours, theirs] = codes(&mut ours, &mut theirs).await;
            assert_eq!(ours, theirs);
            world.sleep(Duration::from_secs(5)).await;
            for (device, endpoint) in devices.iter().zip(&endpoints) {
                assert_eq!((device.links().len(), device.registrations()), (0, 0));
                assert!(endpoint.link_groups().is_empty() && endpoint.rdma_groups().is_empty());
            }
            // With one it works.
            devices[which].set_max_links(10);
            let (ours, _theirs) = connect(&endpoints[0], &listener).await;
            assert!(is_smcr(&ours));
        });
    }
}

#[test]
fn without_memory() {
    for which in 0..2 {
        for error in [DeviceError::NoMemory, DeviceError::Exhausted] {
            let world = RdmaWorld::new(103);
            let devices = [world.device("a0", 1), world.device("b0", 2)];
            let endpoints = [0, 1].map(|at| world.endpoint(&[&devices[at]]));
            world.block_on(async {
                let listener = endpoints[1].bind(SERVER).await.expect("a free port");
                devices[which].refuse_registrations(vec![error.clone(); 20]);
                let (mut ours, mut theirs) = connect(&endpoints[0], &listener).await;
                let [ours, theirs] = codes(&mut ours, &mut theirs).await;
                assert_eq!((ours, theirs), (DeclineCode::MEM, DeclineCode::MEM));
                devices[which].refuse_registrations([]);
                world.sleep(Duration::from_secs(5)).await;
                for endpoint in &endpoints {
                    assert!(endpoint.rdma_groups().is_empty());
                }
            });
        }
    }
}

#[test]
fn without_a_link_that_works() {
    let world = RdmaWorld::new(104);
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    let (client, server) = (world.endpoint(&[&a]), world.endpoint(&[&b]));
    world.block_on(async {
        world.network().cut();
        let begin = world.elapsed();
        let listener = server.bind(SERVER).await.expect("a free port");
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        let codes = codes(&mut ours, &mut theirs).await;
        assert_eq!(codes, [DeclineCode::TIMEOUT_CL; 2]);
        let causes = [ours, theirs].map(|stream| stream.fallback_reason().expect("TCP").cause);
        let is_local = |cause| matches!(cause, &FallbackCause::ConfirmLink(_));
        assert!(causes.iter().any(is_local), "{causes:?}");
        assert!(world.elapsed() - begin < Duration::from_secs(6));
        world.sleep(Duration::from_secs(5)).await;
        assert_eq!((a.links().len(), b.links().len()), (0, 0));
        assert_eq!((a.registrations(), b.registrations()), (0, 0));
        assert!(client.link_groups().is_empty() && server.link_groups().is_empty());
    });
}

#[test]
fn endpoints_that_agree_beside_tcp_only_find_no_one_over_a_network() {
    let world = RdmaWorld::new(105);
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    let client = world.endpoint_on(vec![a], |builder| {
        builder.ueid(eid()).negotiation(Arc::new(Local::new()))
    });
    let server = world.endpoint_on(vec![b], |builder| {
        builder.ueid(eid()).negotiation(Arc::new(Never::new()))
    });
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        // No transport of the client works beside TCP, so nothing was offered.
        assert_eq!(
            codes(&mut ours, &mut theirs).await,
            [DeclineCode::PEERNOSMC, DeclineCode::PEERNOSMC]
        );
    });
}
