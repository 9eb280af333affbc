//! Handshakes of SMC-R that two kernels had with each other, once more with one of them replaced by
//! ours: what ours sends has to be what the kernel sent.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

#[path = "../../../smc-wire/tests/capture/mod.rs"]
mod capture;

mod host;
mod replay;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use smc_core::Error;
use smc_core::error::FirstLinkError;
use smc_core::error::Phase;
use smc_core::proto::handshake::{
    ClientProposal, Handshake, LATE_DECLINE_TIMEOUT, Transport, WorkDone,
};
use smc_wire::clc::{AcceptConfirm, Body, Decline, Proposal, RdmaEnd};
use smc_wire::types::{DeclineCode, Eid};

use self::capture::Capture;
use self::host::Host;
use self::replay::{Ending, Replay};

/// The CLC messages of one connection, as far as they are there.
struct Exchange {
    /// Capture and number, for messages of the test.
    name: String,
    client: IpAddr,
    server: IpAddr,
    proposal: Vec<u8>,
    accept: Option<Vec<u8>>,
    confirm: Option<Vec<u8>>,
    decline: Option<Vec<u8>>,
}

impl Exchange {
    fn accept(&self) -> Option<AcceptConfirm> {
        let accept = self.accept.as_ref()?;
        Some(AcceptConfirm::parse(accept).unwrap())
    }

    fn confirm(&self) -> Option<AcceptConfirm> {
        let confirm = self.confirm.as_ref()?;
        Some(AcceptConfirm::parse(confirm).unwrap())
    }

    /// What is known about the client's host.
    fn client(&self) -> Host {
        let proposal = Proposal::parse(&self.proposal).unwrap();
        let mut host = Host::new(self.client);
        host.offered(&proposal);
        if let Some(confirm) = self.confirm() {
            host.told(&confirm);
        }
        host
    }

    /// What is known about the server's host.
    fn server(&self) -> Host {
        let mut host = Host::new(self.server);
        if let Some(accept) = self.accept() {
            host.told(&accept);
            host.ueids = [Eid::ueid("SERVER.ONLY.EID").ok(), accept.eid()]
                .into_iter()
                .flatten()
                .collect();
        }
        host
    }
}

/// All connections of a capture. Kernels set up one after the other, so the messages of one
/// direction belong together by their numbers.
fn exchanges(capture: &Capture) -> Vec<Exchange> {
    let of = |kind: u8, src: IpAddr, at: usize| {
        let mut found = capture.clc.iter();
        let message = found
            .by_ref()
            .filter(|found| found.bytes[4] == kind && found.src == src)
            .nth(at);
        message.map(|found| found.bytes.clone())
    };
    let mut counts = std::collections::HashMap::<IpAddr, usize>::new();
    let mut all = Vec::new();
    for found in capture.clc.iter().filter(|found| found.bytes[4] == 1) {
        let at = counts.entry(found.src).or_default();
        all.push(Exchange {
            name: format!("{} frame {}", capture.name, found.frame),
            client: found.src,
            server: found.dst,
            proposal: found.bytes.clone(),
            accept: of(2, found.dst, *at),
            confirm: of(3, found.src, *at),
            decline: of(4, found.dst, *at),
        });
        *at += 1;
    }
    all
}

/// The captures of SMC-R.
fn captures() -> impl Iterator<Item = Capture> {
    let all = capture::captures().into_iter();
    all.filter(|capture| !capture.name.contains("smcd"))
}

fn capture(name: &str) -> Vec<Exchange> {
    captures()
        .filter(|capture| capture.name == name)
        .flat_map(|capture| exchanges(&capture))
        .collect()
}

fn rdma_end(message: &AcceptConfirm) -> RdmaEnd {
    match message.body {
        Body::R(end) => end,
        Body::D(_) => panic!("not SMC-R"),
    }
}

/// Peer ID, GID and MAC in a PROPOSAL.
const WHO: std::ops::Range<usize> = 8..38;

#[test]
fn proposals_are_those_of_the_kernel_and_say_who_we_are() {
    let mut total = 0;
    for capture in captures() {
        for exchange in exchanges(&capture) {
            let host = exchange.client();
            let offer = ClientProposal::new(&host.config(), &host.path(exchange.server)).unwrap();
            let (mut ours, name) = (offer.bytes().to_vec(), &exchange.name);
            if exchange.proposal[WHO].iter().all(|byte| *byte == 0) {
                // A kernel that offers only version 2 leaves them out, although its servers look
                // at them.
                let proposal = Proposal::parse(&ours).unwrap();
                assert_eq!(proposal.peer_id, host.peer_id, "{name}");
                assert_eq!(proposal.gid, proposal.ext.unwrap().gid, "{name}");
                assert_eq!(proposal.mac, host.mac, "{name}");
                ours[WHO].fill(0);
            }
            assert_eq!(ours, exchange.proposal, "{name}");
            total += 1;
        }
    }
    println!("{total} of them");
    assert!(total > 60, "only {total}");
}

#[test]
fn our_client_answers_a_kernels_server_as_a_kernel() {
    let mut total = 0;
    for capture in captures() {
        // One registry per client of the capture.
        let mut registries = std::collections::HashMap::<IpAddr, Replay>::new();
        for exchange in exchanges(&capture) {
            let (Some(accept), Some(confirm)) = (exchange.accept(), exchange.confirm()) else {
                continue;
            };
            let (name, host) = (&exchange.name, exchange.client());
            let replay = registries.entry(exchange.client).or_default();
            let path = host.path(exchange.server);
            let mut client = Handshake::client(replay.now, host.config(), &path);
            let end = rdma_end(&confirm);
            let sent = replay.drive(&mut client, &end, &[exchange.accept.as_ref().unwrap()]);
            let (_proposal, ours) = sent.split_first().unwrap();
            assert_eq!(ours, [exchange.confirm.clone().unwrap()], "{name}");

            let Some(Ending::Established(established)) = replay.ending.take() else {
                panic!("{name}: not established");
            };
            assert_eq!(established.first_contact, accept.is_first_contact());
            let Transport::Rdma(path) = established.transport else {
                panic!("{name}: not SMC-R");
            };
            let end = rdma_end(&accept);
            assert_eq!(path.peer_rmb.token, end.token, "{name}");
            assert_eq!(path.peer.qpn, end.qpn, "{name}");
            total += 1;
        }
    }
    println!("{total} of them");
    assert!(total > 60, "only {total}");
}

#[test]
fn our_server_answers_a_kernels_client_as_a_kernel() {
    let mut total = 0;
    for capture in captures() {
        let mut registries = std::collections::HashMap::<IpAddr, Replay>::new();
        for exchange in exchanges(&capture) {
            let (Some(accept), Some(confirm)) = (exchange.accept(), exchange.confirm()) else {
                continue;
            };
            let (name, host) = (&exchange.name, exchange.server());
            let replay = registries.entry(exchange.server).or_default();
            let path = host.path(exchange.client);
            let mut server = Handshake::server(replay.now, host.config(), path);
            let end = rdma_end(&accept);
            let messages = [&exchange.proposal, exchange.confirm.as_ref().unwrap()];
            let sent = replay.drive(&mut server, &end, &messages);
            // That includes the decision on first contact.
            assert_eq!(sent, [exchange.accept.clone().unwrap()], "{name}");

            let Some(Ending::Established(established)) = replay.ending.take() else {
                panic!("{name}: not established");
            };
            let Transport::Rdma(path) = established.transport else {
                panic!("{name}: not SMC-R");
            };
            let end = rdma_end(&confirm);
            assert_eq!(path.peer_rmb.rkey, end.rkey, "{name}");
            // From the PROPOSAL, which has no MAC in version 2: it comes from CONFIRM then.
            assert_eq!((path.peer.gid, path.peer.mac), (end.gid, end.mac), "{name}");
            if established.first_contact && established.version.is_v2() {
                let stated = confirm.first_contact().unwrap();
                assert_eq!(established.peer_host, stated.host, "{name}");
            }
            total += 1;
        }
    }
    println!("{total} of them");
    assert!(total > 60, "only {total}");
}

#[test]
fn limits_decide_how_many_groups_there_are() {
    for (name, groups) in [("k1-max-conns-16-server", 2), ("k2-max-conns-16-client", 2)] {
        let made = capture(name)
            .iter()
            .filter_map(Exchange::accept)
            .filter(AcceptConfirm::is_first_contact)
            .count();
        assert!(made == groups, "{name}: {made}");
    }
    for name in ["k3-max-links-1-server", "k4-max-links-1-client"] {
        for exchange in capture(name) {
            let accept = exchange.accept().unwrap();
            assert_eq!(accept.first_contact().unwrap().max_links, 1, "{name}");
        }
    }
}

/// Our server, with the address and peer ID of the kernel's, but nothing that serves the client.
#[test]
fn our_server_declines_as_a_kernel() {
    for (name, ueid) in [
        ("f1-decline-no-common-eid", Some("SERVER.ONLY.EID")),
        ("l5-decline-v1-offered-v2-only", Some("SMCV2-GOLDEN-EID")),
    ] {
        for exchange in capture(name) {
            let theirs = exchange.decline.as_ref().unwrap();
            let mut host = exchange.server();
            host.peer_id = Decline::parse(theirs).unwrap().peer_id;
            host.has_v2 = true;
            host.ueids = ueid.into_iter().map(|id| Eid::ueid(id).unwrap()).collect();
            let mut replay = Replay::default();
            let path = host.path(exchange.client);
            let mut server = Handshake::server(replay.now, host.config(), path);
            let sent = replay.run(&mut server, &[&exchange.proposal]);
            assert_eq!(sent, std::slice::from_ref(theirs), "{name}");

            // And our client takes the kernel's DECLINE.
            let host = exchange.client();
            let mut replay = Replay::default();
            let path = host.path(exchange.server);
            let mut client = Handshake::client(replay.now, host.config(), &path);
            replay.run(&mut client, &[theirs]);
            assert_eq!(replay.declined(), Some(DeclineCode::NOSMCDEV), "{name}");
        }
    }
}

/// A DECLINE in the place of the PROPOSAL: without a device, and over IPv6 without SMC-R v1.
#[test]
fn our_client_declines_as_a_kernel() {
    for capture in captures() {
        let name = capture.name;
        if !name.starts_with("f3-") && !name.starts_with("h1-") {
            continue;
        }
        let found = &capture.clc[0];
        let theirs = Decline::parse(&found.bytes).unwrap();
        let mut host = Host::new(found.src);
        host.peer_id = theirs.peer_id;
        host.has_v2 = !theirs.peer_id.is_zero();
        host.ueids = vec![Eid::ueid("SMCV2-GOLDEN-EID").unwrap()];
        let mut replay = Replay::default();
        let mut client = Handshake::client(replay.now, host.config(), &host.path(found.dst));
        let sent = replay.run(&mut client, &[]);
        assert_eq!(sent, std::slice::from_ref(&found.bytes), "{name}");

        let server = Host::new(found.dst);
        let mut replay = Replay::default();
        let path = server.path(found.src);
        let mut server = Handshake::server(replay.now, server.config(), path);
        let sent = replay.run(&mut server, &[&found.bytes]);
        assert!(sent.is_empty(), "{name}: a DECLINE is never answered");
        assert_eq!(replay.declined(), Some(DeclineCode::NOSMCDEV), "{name}");
    }
}

/// The kernel's CONFIRM LINK gets lost. It ends the group, and declines three seconds after
/// CONFIRM.
#[test]
fn confirm_link_that_is_lost() {
    for exchange in capture("f7-confirm-link-lost") {
        let confirm = exchange.confirm().unwrap();
        let accept = exchange.accept.as_ref().unwrap();
        let theirs = exchange.decline.as_ref().unwrap();
        let end = rdma_end(&confirm);
        // Our client waits for CONFIRM LINK when it comes.
        let host = exchange.client();
        let mut replay = Replay::default();
        replay.confirms_links = false;
        let path = host.path(exchange.server);
        let mut client = Handshake::client(replay.now, host.config(), &path);
        replay.drive(&mut client, &end, &[accept]);
        assert_eq!(client.state(), Some("CONFIRM LINK"));
        client.handle_terminated();
        replay.now += Duration::from_millis(500);
        replay.run(&mut client, &[theirs]);
        assert_eq!(replay.declined(), Some(DeclineCode::TIMEOUT_CL));

        // Our server in the place of the kernel's.
        let host = exchange.server();
        let mut replay = Replay::default();
        replay.confirms_links = false;
        let path = host.path(exchange.client);
        let mut server = Handshake::server(replay.now, host.config(), path);
        let end = rdma_end(&exchange.accept().unwrap());
        let messages = [&exchange.proposal, exchange.confirm.as_ref().unwrap()];
        replay.drive(&mut server, &end, &messages);
        let failed = Err(FirstLinkError::TimedOut);
        server.handle_done(replay.now, WorkDone::LinkConfirmed(failed));
        replay.now += LATE_DECLINE_TIMEOUT;
        server.handle_timeout(replay.now);
        let sent = replay.run(&mut server, &[]);
        assert_eq!(sent, std::slice::from_ref(theirs));
    }
}

/// The kernel's ACCEPT is lost. This cannot be distinguished from a slow server.
#[test]
fn accept_that_is_lost() {
    for exchange in capture("f10-accept-lost") {
        let host = exchange.client();
        let now = Instant::now();
        let path = host.path(exchange.server);
        let mut client = Handshake::client(now, host.config(), &path);
        while client.poll_output().is_some() {}
        client.handle_timeout(client.poll_timeout().unwrap());
        let mut replay = Replay::default();
        replay.run(&mut client, &[]);
        let Some(Ending::Failed(error)) = replay.ending else {
            panic!("not failed");
        };
        assert_eq!(error, Error::TimedOut(Phase::Accept));
    }
}
