//! Hosts with TCP alone, which claim to be peers with a device, and name link groups of others.

use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_lite::AsyncWriteExt;
use futures_lite::future::zip;
use smc::{Endpoint, FallbackCause, Listener, Stream};
use smc_core::device::{RdmaAddress, RoceKind};
use smc_core::error::RtokenError;
use smc_core::proto::group::{
    ALL_FIRST_CONTACTS_MAX, DeviceIndex, FIRST_CONTACTS_MAX, GroupKey, NoGroup,
};
use smc_core::proto::handshake::{
    ClientProposal, HandshakeConfig, Interface, RdmaConfig, RdmaPort, Subnet, TcpPath,
};
use smc_core::runtime::{Socket, SocketOptions};
use smc_core::wire::Bounded;
use smc_core::wire::clc::{
    AcceptConfirm, AcceptKind, Body, Decline, FirstContact, Message, RdmaEnd, Terms,
};
use smc_core::wire::size::SizeCode;
use smc_core::wire::types::{
    AlertToken, DeclineCode, Features, Mac, MtuCode, OsType, PeerId, Psn, Qpn, Rkey, RmbAddr,
    RoceGid, Version,
};
use smc_testkit::streams::{connect, transfer};
use smc_testkit::world::{RdmaHosts, RdmaWorld, SERVER, eid, is_smcr};

fn mac(host: u8) -> Mac {
    Mac::new([2, 0, 0, 0, 0, host])
}

pub(crate) fn peer_id(host: u8, instance: u16) -> PeerId {
    PeerId::new(instance, mac(host))
}

/// A client without any device, at 10.0.0.`host`, that proposes SMC-R as `peer`.
async fn propose(world: &RdmaWorld, host: u8, peer: PeerId) -> Arc<dyn Socket> {
    propose_with(world, host, peer, Features::empty()).await
}

/// The same with features beyond the released protocol.
pub(crate) async fn propose_with(
    world: &RdmaWorld,
    host: u8,
    peer: PeerId,
    features: Features,
) -> Arc<dyn Socket> {
    let ip = Ipv4Addr::new(10, 0, 0, host);
    // A GID of the network, or the link cannot be prepared.
    let gid = RoceGid::from_ipv4(Ipv4Addr::new(10, 0, 0, 1));
    let address = RdmaAddress::new(gid, RoceKind::V2, mac(1), MtuCode::MTU_1024);
    let subnets = vec![Subnet::V4(ip, 24)];
    let port = RdmaPort {
        device: DeviceIndex(0),
        address: address.with_interface("v0", 0),
        pnet_id: None,
        subnets: subnets.clone(),
        base: Some("v0".into()),
    };
    let mut config = HandshakeConfig::new(Vec::new());
    config.ueids = vec![eid()];
    config.vendor_features = features;
    config.rdma = Some(RdmaConfig::new(peer, vec![port]));
    let path = TcpPath::over(Interface::new(subnets, None).with_name("v0"));
    let path = path.with_addresses(ip.into(), SERVER.ip());
    let proposal = ClientProposal::new(&config, &path).expect("there is something to offer");

    let socket = connect_from(world, ip).await;
    send(&*socket, proposal.bytes()).await;
    socket
}

pub(crate) async fn connect_from(world: &RdmaWorld, ip: Ipv4Addr) -> Arc<dyn Socket> {
    let mut options = SocketOptions::default();
    options.local = Some((ip, 0).into());
    let runtime = world.runtime().handle();
    runtime
        .connect(SERVER, &options, &mut |_| Ok(()))
        .await
        .expect("connects")
}

pub(crate) async fn send(socket: &dyn Socket, bytes: &[u8]) {
    let sent = poll_fn(|cx| socket.poll_write(cx, &[IoSlice::new(bytes)])).await;
    assert_eq!(sent.expect("writes"), bytes.len());
}

async fn send_accept_confirm(socket: &dyn Socket, message: &AcceptConfirm) {
    let mut bytes = vec![0; message.encoded_len()];
    let len = message.emit(&mut bytes).expect("it fits");
    send(socket, &bytes[..len]).await;
}

/// The next CLC message.
async fn receive(socket: &dyn Socket) -> Message {
    Message::parse(&receive_bytes(socket).await).expect("a message")
}

/// The bytes of the next CLC message, whose length is in its header.
pub(crate) async fn receive_bytes(socket: &dyn Socket) -> Vec<u8> {
    let (mut bytes, mut at) = (vec![0; 8], 0);
    while at < bytes.len() {
        let read = poll_fn(|cx| socket.poll_read(cx, &mut bytes[at..])).await;
        let read = read.expect("reads");
        assert_ne!(read, 0, "closed after {at} bytes");
        at += read;
        if at == 8 {
            bytes.resize(usize::from(u16::from_be_bytes([bytes[5], bytes[6]])), 0);
        }
    }
    bytes
}

/// The peer of the only link group in the list, by its key.
pub(crate) fn peer_of(groups: &[GroupKey]) -> (PeerId, RoceGid, Option<Qpn>) {
    match groups {
        [GroupKey::Rdma { peer, gid, qpn, .. }] => (*peer, *gid, *qpn),
        other => panic!("{other:?}"),
    }
}

/// An end on an existing link, whose buffer was never announced there.
fn forged_end(peer_id: PeerId, gid: RoceGid, mac: Mac, qpn: Qpn) -> RdmaEnd {
    RdmaEnd {
        peer_id,
        gid,
        mac,
        qpn,
        rkey: Rkey(0xdead_beef),
        rmbe_index: 1,
        token: AlertToken::new(7).expect("is not zero"),
        size: SizeCode::MIN,
        mtu: MtuCode::MTU_1024,
        rmb_addr: RmbAddr(0x1000),
        psn: Psn::default(),
    }
}

fn reuse(kind: AcceptKind, end: RdmaEnd) -> AcceptConfirm {
    AcceptConfirm {
        kind,
        terms: Terms::V2 {
            eid: eid(),
            first_contact: None,
        },
        body: Body::R(end),
    }
}

#[test]
fn clients_that_fall_silent_leave_links_to_others() {
    let world = RdmaWorld::new(44);
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    b.set_max_links(FIRST_CONTACTS_MAX + 1);
    let (client, server) = (world.endpoint(&[&a]), world.endpoint(&[&b]));
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let mut sockets = Vec::new();
        // Each says that it is another one.
        for instance in 1..=100 {
            sockets.push(propose(&world, 3, peer_id(3, instance)).await);
        }
        world.sleep(Duration::from_millis(100)).await;
        assert_eq!(b.links().len(), FIRST_CONTACTS_MAX);
        // The others are TCP.
        for _ in FIRST_CONTACTS_MAX..100 {
            let (stream, _) = listener.accept().await.expect("accepts");
            let reason = stream.fallback_reason().expect("it is TCP");
            assert_eq!(reason.local, DeclineCode::MEM);
            assert_eq!(reason.cause, FallbackCause::NoGroup(NoGroup::Full));
        }
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        assert!(is_smcr(&ours), "{}", ours.mode());
        transfer(&mut ours, &mut theirs, 1000).await;
        world.sleep(Duration::from_secs(10)).await;
        assert_eq!(b.links().len(), 1);
    });
}

#[test]
fn clients_of_very_many_addresses_that_fall_silent_leave_links_to_peers() {
    let world = RdmaWorld::new(46);
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    let (client, server) = (world.endpoint(&[&a]), world.endpoint(&[&b]));
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let _first = connect(&client, &listener).await;
        let mut sockets = Vec::new();
        for from in 3..103 {
            sockets.push(propose(&world, from, peer_id(from, 1)).await);
        }
        world.sleep(Duration::from_millis(100)).await;
        assert_eq!(b.links().len(), 1 + ALL_FIRST_CONTACTS_MAX);
        for _ in ALL_FIRST_CONTACTS_MAX..sockets.len() {
            let (stream, _) = listener.accept().await.expect("accepts");
            let reason = stream.fallback_reason().expect("it is TCP");
            assert_eq!(reason.cause, FallbackCause::NoGroup(NoGroup::Full));
        }
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        assert!(is_smcr(&ours), "{}", ours.mode());
        transfer(&mut ours, &mut theirs, 1000).await;
    });
}

#[test]
fn clients_that_decline_their_first_contacts_leave_links_to_others() {
    let world = RdmaWorld::new(48);
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    b.set_max_links(FIRST_CONTACTS_MAX + 1);
    let (client, server) = (world.endpoint(&[&a]), world.endpoint(&[&b]));
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        for instance in 1..=100 {
            let peer = peer_id(3, instance);
            let socket = propose(&world, 3, peer).await;
            if let Message::Accept(accept) = receive(&*socket).await {
                let Body::R(end) = accept.body else {
                    panic!("{accept:?}");
                };
                // Of a link that exists nowhere, so that nothing sent on it is ever acknowledged.
                let gid = RoceGid::from_ipv4(Ipv4Addr::new(10, 0, 0, 1));
                let first_contact = FirstContact {
                    gids: Some(Bounded::from_iter_lossy([gid])),
                    ..*accept.first_contact().expect("it is the first contact")
                };
                let confirm = AcceptConfirm {
                    kind: AcceptKind::Confirm,
                    terms: Terms::V2 {
                        eid: eid(),
                        first_contact: Some(first_contact),
                    },
                    body: Body::R(RdmaEnd {
                        peer_id: peer,
                        gid,
                        mac: mac(1),
                        qpn: Qpn::new(0x777).expect("is not zero"),
                        ..end
                    }),
                };
                send_accept_confirm(&*socket, &confirm).await;
                world.sleep(Duration::from_millis(5)).await;
                let decline = Decline::new(Version::V2, DeclineCode::MEM, OsType::LINUX);
                let mut bytes = vec![0; decline.encoded_len()];
                let len = decline.emit(&mut bytes).expect("it fits");
                send(&*socket, &bytes[..len]).await;
            }
            let (stream, _) = listener.accept().await.expect("accepts");
            assert!(stream.fallback_reason().is_some(), "{}", stream.mode());
        }
        assert!(b.links().len() <= FIRST_CONTACTS_MAX, "{}", b.links().len());
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        assert!(is_smcr(&ours), "{}", ours.mode());
        transfer(&mut ours, &mut theirs, 1000).await;
    });
}

/// The address of a server that is no host with SMC.
pub(crate) const HOSTILE: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 4)), 4000);

/// The next TCP connection to that server.
pub(crate) async fn accept_hostile(world: &RdmaWorld) -> Arc<dyn Socket> {
    let runtime = world.runtime().handle();
    let acceptor = runtime.bind(HOSTILE, &SocketOptions::default(), &mut |_| Ok(()));
    let acceptor = acceptor.expect("a free port");
    let accepted = poll_fn(|cx| acceptor.poll_accept(cx)).await;
    accepted.expect("accepts").0
}

/// The stream of two honest hosts, and the listener of one of them.
pub(crate) async fn stream_between(
    client: &Endpoint,
    server: &Endpoint,
) -> (Listener, Stream, Stream) {
    let listener = server.bind(SERVER).await.expect("a free port");
    let (ours, theirs) = connect(client, &listener).await;
    assert!(is_smcr(&ours), "{}", ours.mode());
    (listener, ours, theirs)
}

#[test]
fn a_client_that_names_a_link_group_of_its_address_ends_no_stream_of_it() {
    for features in [Features::AUTHENTICATION, Features::empty()] {
        let world = RdmaWorld::new(49);
        let RdmaHosts { client, server, .. } =
            world.hosts_with(|builder| builder.vendor_features(features));
        world.block_on(async {
            let (listener, mut ours, mut theirs) = stream_between(&client, &server).await;
            let groups: Vec<_> = server.link_groups().iter().map(|group| group.key).collect();
            let (peer, ..) = peer_of(&groups);

            // All endpoints of the world have the address of the server. Each server that the
            // client connects to knows its peer ID.
            let socket = propose_with(&world, 2, peer, features).await;
            let Message::Accept(accept) = receive(&*socket).await else {
                panic!("it is declined");
            };
            assert!(!accept.is_first_contact());
            let Body::R(end) = accept.body else {
                panic!("{accept:?}");
            };
            let forged = forged_end(end.peer_id, end.gid, end.mac, end.qpn);
            send_accept_confirm(&*socket, &reuse(AcceptKind::Confirm, forged)).await;
            let (mut stream, _) = listener.accept().await.expect("accepts");
            assert!(is_smcr(&stream), "{}", stream.mode());
            let error = stream
                .write_all(b"220 ready")
                .await
                .expect_err("is written nowhere");
            assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
            world.sleep(Duration::from_millis(100)).await;
            transfer(&mut ours, &mut theirs, 1000).await;
        });
    }
}

#[test]
fn a_server_that_names_a_link_group_with_another_server_ends_no_stream_of_it() {
    for (features, refused) in [
        (Features::AUTHENTICATION, RtokenError::NotAuthentic),
        (Features::empty(), RtokenError::NotAnnounced),
    ] {
        let world = RdmaWorld::new(50);
        let RdmaHosts { client, server, .. } =
            world.hosts_with(|builder| builder.vendor_features(features));
        world.block_on(async {
            let (_listener, mut ours, mut theirs) = stream_between(&client, &server).await;
            let groups: Vec<_> = client.link_groups().iter().map(|group| group.key).collect();
            let (peer, gid, qpn) = peer_of(&groups);

            let serving = async {
                let socket = accept_hostile(&world).await;
                assert!(matches!(receive(&*socket).await, Message::Proposal(_)));
                let forged = forged_end(peer, gid, mac(2), qpn.expect("a client knows it"));
                send_accept_confirm(&*socket, &reuse(AcceptKind::Accept, forged)).await;
                assert!(matches!(receive(&*socket).await, Message::Decline(_)));
                socket
            };
            let (_socket, stream) = zip(serving, client.connect(HOSTILE)).await;
            let stream = stream.expect("connects");
            let reason = stream.fallback_reason().expect("it is TCP");
            assert_eq!(reason.cause, FallbackCause::Rtoken(refused));
            transfer(&mut ours, &mut theirs, 1000).await;
        });
    }
}
