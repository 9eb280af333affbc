//! SMC-R over IPv6, which a client offers and both hosts agree on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_lite::{AsyncReadExt, AsyncWriteExt, future};
use smc::info::CandidateTransport;
use smc::{Builder, ConnectOptions, Endpoint, Listener, Mode, Stream};
use smc_core::device::{RdmaAddress, RoceKind};
use smc_core::wire::types::{DeclineCode, Features, Mac, MtuCode, RoceGid};
use smc_testkit::memory_rdma::{MemoryRdma, RdmaOptions};
use smc_testkit::streams::{patterned, transfer_both_ways};
use smc_testkit::world::{RdmaWorld, SERVER, is_smcr};

/// The address of a device.
fn ip(device: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, device.into())
}

/// A device with a link-local address, one of IPv4 and one of IPv6.
fn device(world: &RdmaWorld, number: u8) -> Arc<MemoryRdma> {
    let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, number.into());
    let own = [ip(number), link_local];
    for address in own {
        let runtime = world.runtime();
        runtime.add_interface("v0", address.into(), 64);
    }
    let gids = [
        RoceGid::from_ipv6(own[1]),
        RoceGid::from_ipv4(Ipv4Addr::new(10, 0, 0, number)),
        RoceGid::from_ipv6(own[0]),
    ];
    let mac = Mac::new([2, 0, 0, 0, 0, number]);
    let options = gids.into_iter().fold(RdmaOptions::default(), |all, gid| {
        let address = RdmaAddress::new(gid, RoceKind::V2, mac, MtuCode::MTU_1024);
        all.with_address(address.with_interface("v0", 0))
    });
    world.network().device_with(&format!("d{number}"), options)
}

fn offers(builder: Builder) -> Builder {
    builder.rdma_ipv6(true)
}

/// Both ends of a connection over IPv6.
async fn connect(client: &Endpoint, listener: &Listener) -> (Stream, Stream) {
    let options = ConnectOptions::default().local((ip(1), 0).into());
    let connecting = client.connect_with(at(2), &options);
    let (ours, theirs) = future::zip(connecting, listener.accept()).await;
    (ours.expect("connects"), theirs.expect("a client").0)
}

fn at(device: u8) -> SocketAddr {
    (ip(device), 4000).into()
}

/// The addresses of the links of an endpoint.
fn links(endpoint: &Endpoint) -> Vec<IpAddr> {
    let groups = endpoint.rdma_groups();
    let links = groups.iter().flat_map(|group| &group.links);
    links.filter_map(|link| link.local?.gid.ip()).collect()
}

fn features(stream: &Stream) -> Features {
    match stream.mode() {
        Mode::SmcR {
            vendor_features, ..
        } => *vendor_features,
        other => panic!("{other}"),
    }
}

#[test]
fn links_are_at_ipv6_addresses_and_a_lost_one_costs_no_byte() {
    let world = RdmaWorld::new(800);
    let devices = [1, 2, 3, 4].map(|number| device(&world, number));
    let client = world.endpoint_with(&[&devices[0], &devices[2]], offers);
    // Servers accept it as they are.
    let server = world.endpoint(&[&devices[1], &devices[3]]);
    world.block_on(async {
        let listener = server.bind(at(2)).await.expect("a free port");
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        for stream in [&ours, &theirs] {
            assert!(features(stream).contains(Features::RDMA_IPV6));
        }
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(links(&client), [ip(1), ip(3)].map(IpAddr::from));
        assert_eq!(links(&server), [ip(2), ip(4)].map(IpAddr::from));

        let (second, _theirs) = connect(&client, &listener).await;
        assert!(features(&second).contains(Features::AUTHENTICATION));
        assert_eq!(client.rdma_groups().len(), 1, "the same group");

        let data = patterned(1_000_000);
        let mut got = vec![0; data.len()];
        let failing = async {
            world.sleep(Duration::from_micros(300)).await;
            devices[0].set_port_active(1, false);
        };
        let moving = future::zip(ours.write_all(&data), theirs.read_exact(&mut got));
        let ((sent, received), ()) = future::zip(moving, failing).await;
        assert!(sent.is_ok() && received.is_ok() && got == data);
        transfer_both_ways(&mut ours, &mut theirs, 100_000).await;
    });
}

#[test]
fn a_single_link_takes_an_early_confirm_as_over_ipv4() {
    let world = RdmaWorld::new(803);
    let devices = [1, 2].map(|number| device(&world, number));
    let client = world.endpoint_with(&[&devices[0]], offers);
    let server = world.endpoint(&[&devices[1]]);
    let of_group = Features::RDMA_IPV6
        | Features::AUTHENTICATION
        | Features::SINGLE_LINK
        | Features::RECEIVE_CREDITS;
    world.block_on(async {
        let listener = server.bind(at(2)).await.expect("a free port");
        for expected in [of_group, of_group | Features::EARLY_CONFIRM] {
            let (mut ours, mut theirs) = connect(&client, &listener).await;
            assert_eq!([features(&ours), features(&theirs)], [expected; 2]);
            transfer_both_ways(&mut ours, &mut theirs, 10_000).await;
            let closing = future::zip(ours.close(), theirs.close());
            let (one, other) = closing.await;
            assert!(one.is_ok() && other.is_ok());
        }
    });
}

#[test]
fn connections_stay_tcp_where_one_side_does_not_agree() {
    const DECLINED: DeclineCode = DeclineCode(0x0500_0000);
    let without = |builder: Builder| builder.rdma_ipv6(true).vendor_features(Features::empty());
    let quiet = |builder: Builder| builder;
    let by_client = DeclineCode::NOSMCDEV;
    let by_server = DeclineCode::NOSMCRDEV;
    type Configure = fn(Builder) -> Builder;
    let cases: [(Configure, Configure, [DeclineCode; 2]); 3] = [
        (quiet, quiet, [by_client, DECLINED]),
        (without, quiet, [by_client, DECLINED]),
        (offers, without, [DECLINED, by_server]),
    ];
    for (number, (client, server, reasons)) in cases.into_iter().enumerate() {
        let world = RdmaWorld::new(801);
        let devices = [1, 2].map(|number| device(&world, number));
        let client = world.endpoint_with(&[&devices[0]], client);
        let server = world.endpoint_with(&[&devices[1]], server);
        world.block_on(async {
            let listener = server.bind(at(2)).await.expect("a free port");
            let (mut ours, mut theirs) = connect(&client, &listener).await;
            let found = [&ours, &theirs].map(|stream| {
                let reason = stream.fallback_reason().expect("TCP");
                reason.local
            });
            assert_eq!(found, reasons, "case {number}");
            transfer_both_ways(&mut ours, &mut theirs, 10_000).await;

            // Nothing of it is for IPv4.
            let listener = server.bind(SERVER).await.expect("a free port");
            let connecting = client.connect(SERVER);
            let (ours, theirs) = future::zip(connecting, listener.accept()).await;
            assert!(is_smcr(&ours.expect("connects")) && theirs.is_ok());
        });
    }
}

#[test]
fn candidates_say_why_a_port_is_not_used() {
    for (configure, local, why) in [
        (
            (|builder| builder) as fn(Builder) -> Builder,
            at(2),
            "endpoint does not offer SMC-R v2 over IPv6",
        ),
        (
            offers,
            SocketAddr::from((Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2), 4000)),
            "GID and connection have no IPv6 addresses in one subnet",
        ),
    ] {
        let world = RdmaWorld::new(802);
        let [own, _peer] = [1, 2].map(|number| device(&world, number));
        let client = world.endpoint_with(&[&own], configure);
        world.block_on(async {
            let found = client.candidates(local).await.expect("an address");
            let of_ipv6 = found.iter().find(|way| match way.transport {
                CandidateTransport::SmcR { gid, .. } => gid == RoceGid::from_ipv6(ip(1)),
                _ => false,
            });
            let excluded = of_ipv6.and_then(|way| way.excluded.as_ref());
            assert_eq!(excluded.map(ToString::to_string).as_deref(), Some(why));
        });
    }
}
