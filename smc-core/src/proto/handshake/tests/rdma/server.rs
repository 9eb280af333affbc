//! The steps of a server with SMC-R, row by row (docs/spec/handshake.md#server).

use smc_wire::Bounded;
use smc_wire::clc::{IpArea, Terms};
use smc_wire::types::OfferedTypes;

use super::*;
use crate::error::{CloseReason, PeerMisbehaved, Phase};

fn server(config: HandshakeConfig) -> HandshakeFixture {
    HandshakeFixture::server(config, path(SERVER))
}

/// ACCEPT is sent.
fn accepted() -> HandshakeFixture {
    let mut f = server(rdma_host(SERVER));
    f.receive(&bytes(&rdma_proposal(&rdma_host(CLIENT))));
    f.side.take_sent();
    f
}

/// CONFIRM has come and the link is being confirmed.
fn confirming() -> HandshakeFixture {
    let mut f = accepted();
    f.side.faults.stall = Some("confirm link");
    f.receive_end(&confirm());
    assert_eq!(f.side.machine.state(), Some("CONFIRM LINK"));
    f
}

/// The CONFIRM of a client at first contact.
fn confirm() -> AcceptConfirm {
    let pair = rdma_pair().completed();
    pair.confirms().remove(0)
}

fn declined(proposal: &Proposal) -> DeclineCode {
    server(rdma_host(SERVER)).declines(&bytes(proposal))
}

/// A PROPOSAL of a host with SMC-R v1, and v2 with these UEIDs.
fn both_versions(ueids: &[&str]) -> Proposal {
    let mut config = rdma_host_with(CLIENT, vec![port_v1(CLIENT), port(CLIENT)]);
    config.ueids = ueids.iter().map(|name| ueid(name)).collect();
    rdma_proposal(&config)
}

#[test]
fn s6_screening() {
    let mut proposal = rdma_proposal(&rdma_host(CLIENT));
    proposal.ext.as_mut().unwrap().ueids = Bounded::new();
    assert_eq!(declined(&proposal), DeclineCode::NOUEID);
}

#[test]
fn s7_limits() {
    for (conns, links, code) in [
        (15, 2, DeclineCode::MAXCONNERR),
        (16, 0, DeclineCode::MAXLINKERR),
    ] {
        let mut proposal = rdma_proposal(&rdma_host(CLIENT));
        let ext = proposal.ext.as_mut().unwrap();
        (ext.max_conns, ext.max_links) = (conns, links);
        assert_eq!(declined(&proposal), code);
    }
}

#[test]
fn s9_no_common_ueid_has_no_reason_of_its_own() {
    let mut proposal = rdma_proposal(&rdma_host(CLIENT));
    let ext = proposal.ext.as_mut().unwrap();
    ext.ueids = Bounded::from_iter_lossy([ueid("OTHER")]);
    assert_eq!(declined(&proposal), DeclineCode::NOSMCDEV);
}

#[test]
fn s9_no_port_or_no_route() {
    let proposal = rdma_proposal(&rdma_host(CLIENT));
    let mut without = rdma_host(SERVER);
    rdma_of(&mut without).ports.clear();
    let f = server(without);
    assert_eq!(f.declines(&bytes(&proposal)), DeclineCode::NOSMCRDEV);

    for gid in [
        RoceGid::from_ipv4(Ipv4Addr::new(10, 77, 0, 2)),
        RoceGid::ZERO,
    ] {
        let mut proposal = proposal.clone();
        proposal.ext.as_mut().unwrap().gid = gid;
        assert_eq!(declined(&proposal), DeclineCode::NOSMCRDEV);
    }
}

#[test]
fn s9_version_1_comes_last() {
    let both = || rdma_host_with(SERVER, vec![port_v1(SERVER), port(SERVER)]);
    let accepted = |proposal: &Proposal| {
        let mut f = server(both());
        f.receive(&bytes(proposal));
        AcceptConfirm::parse(&f.side.take_sent()).unwrap()
    };
    let with_eid = accepted(&both_versions(&["EXAMPLE"]));
    assert!(with_eid.version().is_v2(), "version 2 if both can");
    assert!(!accepted(&both_versions(&["OTHER"])).version().is_v2());

    // Version 1 needs a common subnet; if that is missing it is the reason.
    let mut elsewhere = both_versions(&["OTHER"]);
    elsewhere.ip = Some(IpArea::v4(Ipv4Addr::new(10, 77, 0, 0), 24));
    let f = server(both());
    assert_eq!(f.declines(&bytes(&elsewhere)), DeclineCode::DIFFPREFIX);
    let mut elsewhere = both_versions(&["EXAMPLE"]);
    elsewhere.ip = Some(IpArea::v4(Ipv4Addr::new(10, 77, 0, 0), 24));
    assert!(accepted(&elsewhere).version().is_v2());

    // Nothing but version 2 on this side.
    let mut only_v1 = both_versions(&["OTHER"]);
    (only_v1.v2, only_v1.ext) = (OfferedTypes::Neither, None);
    assert_eq!(declined(&only_v1), DeclineCode::NOSMCDEV);
}

#[test]
fn s9_version_1_after_a_failure_in_version_2() {
    let mut f = server(rdma_host_with(SERVER, vec![port(SERVER), port_v1(SERVER)]));
    let none = WorkDone::LinkOpened(Err(DeviceError::Exhausted));
    f.side.faults.rdma.push_back(none);
    f.receive(&bytes(&both_versions(&["EXAMPLE"])));
    let accept = AcceptConfirm::parse(&f.side.take_sent()).unwrap();
    assert!(!accept.version().is_v2());
    assert_eq!(f.side.discards, 1);
    assert_eq!(f.side.groups.borrow().connections(), 1);
}

#[test]
fn s9_work_that_fails() {
    let proposal = bytes(&rdma_proposal(&rdma_host(CLIENT)));
    let cases = [
        (
            WorkDone::LinkOpened(Err(DeviceError::Invalid("address"))),
            DeclineCode::INTERR,
        ),
        (
            WorkDone::LinkOpened(Err(DeviceError::Exhausted)),
            DeclineCode::MEM,
        ),
        (
            WorkDone::RmbPrepared(Err(DeviceError::Exhausted.into())),
            DeclineCode::MEM,
        ),
        (
            WorkDone::RmbPrepared(Err(RmbError::NoLink)),
            DeclineCode::NOACTLINK,
        ),
    ];
    for (done, code) in cases {
        let mut f = server(rdma_host(SERVER));
        f.side.faults.rdma.push_back(done);
        assert_eq!(f.declines(&proposal), code);
    }
    let mut f = server(rdma_host(SERVER));
    let short = || WorkDone::RmbPrepared(Err(DeviceError::NoMemory.into()));
    f.side.faults.rdma.extend([short(), short()]);
    f.receive(&proposal);
    let accept = AcceptConfirm::parse(&f.side.take_sent()).unwrap();
    assert_eq!(accept.body.size(), SizeCode::MIN);
}

#[test]
fn s9_stalled_work_ends_in_a_decline_before_the_client_gives_up() {
    for (stall, step, code) in [
        ("enter", SetupStep::Enter, DeclineCode::INTERR),
        ("open link", SetupStep::OpenLink, DeclineCode::INTERR),
        ("prepare", SetupStep::Register, DeclineCode::MEM),
    ] {
        let mut pair = rdma_pair();
        pair.server.faults.stall = Some(stall);
        let start = pair.now;
        pair.run();
        assert_eq!(pair.now - start, WORK_TIMEOUT);
        pair.server_declines(code);
        assert_eq!(*pair.server.cause(), FallbackCause::TimedOut(step));
    }
    let first = rdma_pair().completed();
    let mut pair = again(&first);
    pair.server.faults.stall = Some("confirm rkey");
    pair.run();
    assert_eq!(pair.client.fallback(), peer(DeclineCode::ERR_REGBUF));
}

#[test]
fn s12_silent_client() {
    let mut f = accepted();
    f.wait(CLC_TIMEOUT);
    assert_eq!(*f.side.error(), Error::TimedOut(Phase::Confirm));
    assert_eq!(f.side.groups.borrow().registry.group_infos(), []);
}

#[test]
fn s13_confirm_has_to_repeat_accept() {
    let cases = [
        (
            with_parts(confirm(), |parts| {
                parts.release = Release::V2_0;
                (parts.max_conns, parts.max_links) = (0, 0);
                parts.features = FeatureMask::empty();
            }),
            DeclineCode::RELEASEERR,
        ),
        (
            with_parts(confirm(), |parts| parts.max_conns = 16),
            DeclineCode::MAXCONNERR,
        ),
        (
            with_parts(confirm(), |parts| parts.max_links = 1),
            DeclineCode::MAXLINKERR,
        ),
    ];
    for (confirm, code) in cases {
        assert_eq!(accepted().declines(&accept_bytes(&confirm)), code);
    }
    // Not compared: the flag of CONFIRM, and the list of GIDs.
    let mut bare = confirm();
    if let Terms::V2 { first_contact, .. } = &mut bare.terms {
        *first_contact = None;
    }
    for confirm in [bare, with_parts(confirm(), |parts| parts.gids = None)] {
        let mut f = accepted();
        f.receive_end(&confirm);
        assert!(f.side.established().first_contact);
    }
}

#[test]
fn s13_confirm_that_makes_no_sense() {
    let mut v1 = confirm();
    v1.terms = Terms::V1 {
        first_contact: true,
    };
    let cases = [
        (
            with_end(confirm(), |end| end.rmbe_index = 0),
            PeerMisbehaved::BadBuffer,
        ),
        (
            with_end(confirm(), |end| end.mtu = MtuCode::from_low_nibble(9)),
            PeerMisbehaved::BadLink,
        ),
        (v1, PeerMisbehaved::UnexpectedMessage),
    ];
    for (confirm, what) in cases {
        let mut f = accepted();
        f.receive_end(&confirm);
        assert_eq!(*f.side.error(), what.into());
    }
}

#[test]
fn s14_addresses_are_those_of_the_proposal() {
    let mut f = accepted();
    f.receive_end(&with_end(confirm(), |end| {
        end.gid = RoceGid::from_ipv4(ip(99));
        end.mac = mac(99);
    }));
    let told = f.side.rdma().peer;
    assert_eq!(
        (told.gid, told.mac),
        (RoceGid::from_ipv4(ip(CLIENT)), mac(CLIENT))
    );

    // Linux leaves the MAC out without version 1; the one of CONFIRM is better than none.
    let mut proposal = rdma_proposal(&rdma_host(CLIENT));
    (proposal.peer_id, proposal.gid) = (PeerId::ZERO, RoceGid::ZERO);
    proposal.mac = Mac::ZERO;
    let mut f = server(rdma_host(SERVER));
    f.receive(&bytes(&proposal));
    f.receive_end(&confirm());
    let told = f.side.rdma().peer;
    assert_eq!(
        (told.gid, told.mac),
        (RoceGid::from_ipv4(ip(CLIENT)), mac(CLIENT))
    );
}

#[test]
fn s14_work_that_fails() {
    for (done, code) in [
        (
            WorkDone::PeerBound(Err(RtokenError::TableFull)),
            DeclineCode::ERR_RTOK,
        ),
        (
            WorkDone::LinkConnected(Err(DeviceError::Invalid("address"))),
            DeclineCode::ERR_RDYLNK,
        ),
    ] {
        let mut pair = rdma_pair();
        // The client waits for CONFIRM LINK meanwhile.
        pair.client.faults.stall = Some("confirm link");
        pair.server.faults.rdma.push_back(done);
        pair.run();
        pair.server_declines(code);
        for side in [&pair.client, &pair.server] {
            assert_eq!(side.groups.borrow().registry.group_infos(), []);
        }
    }
}

#[test]
fn s14_link_that_is_not_confirmed() {
    for failure in [FirstLinkError::TimedOut, FirstLinkError::LinkDown] {
        let mut f = confirming();
        f.done(WorkDone::LinkConfirmed(Err(failure)));
        assert_eq!(f.side.outcome, None, "the client may say why");
        f.wait(LATE_DECLINE_TIMEOUT);
        assert_eq!(f.side.fallback(), local(DeclineCode::TIMEOUT_CL));
        assert_eq!(*f.side.cause(), FallbackCause::ConfirmLink(failure));
        assert!(f.side.is_crossing_possible());
    }
    let mut f = confirming();
    f.done(WorkDone::LinkConfirmed(Err(FirstLinkError::Eyecatchers)));
    assert_eq!(f.side.fallback(), local(DeclineCode::RMBE_EC));
    assert!(f.side.is_crossing_possible());
}

#[test]
fn s14_client_declines_meanwhile() {
    let bytes = decline_bytes(DeclineCode::RMBE_EC);
    for late in [false, true] {
        let mut f = confirming();
        if late {
            f.done(WorkDone::LinkConfirmed(Err(FirstLinkError::TimedOut)));
        }
        f.receive(&bytes);
        assert_eq!(f.side.fallback(), peer(DeclineCode::RMBE_EC));
        assert!(!f.side.is_crossing_possible());
        assert_eq!(f.side.groups.borrow().registry.group_infos(), []);
    }
}

/// The client's application may have finished before the confirmation of the link arrives.
#[test]
fn s14_tcp_may_be_closed_early() {
    let mut f = confirming();
    f.side.machine.handle_closed();
    f.done(WorkDone::LinkConfirmed(Ok(())));
    assert!(f.side.established().first_contact);

    let mut f = confirming();
    f.side.machine.handle_closed();
    f.done(WorkDone::LinkConfirmed(Err(FirstLinkError::TimedOut)));
    assert_eq!(*f.side.error(), Error::Closed(CloseReason::DuringHandshake));
}

#[test]
fn s14_group_that_ends_under_a_setup() {
    let mut f = confirming();
    f.side.machine.handle_terminated();
    f.done(WorkDone::LinkConfirmed(Err(FirstLinkError::LinkDown)));
    f.wait(LATE_DECLINE_TIMEOUT);
    assert_eq!(f.side.fallback(), local(DeclineCode::TIMEOUT_CL));

    // The client was confirmed before, and may have sent data.
    let mut f = confirming();
    f.side.machine.handle_terminated();
    f.done(WorkDone::LinkConfirmed(Ok(())));
    assert!(f.side.established().first_contact);

    // The client may still decline, and go on with TCP.
    let mut f = accepted();
    f.side.machine.handle_terminated();
    f.side.settle(f.now);
    f.receive(&decline_bytes(DeclineCode::RMBE_EC));
    assert_eq!(f.side.fallback(), peer(DeclineCode::RMBE_EC));

    for stall in ["bind", "connect"] {
        let mut f = accepted();
        f.side.faults.stall = Some(stall);
        f.receive_end(&confirm());
        f.side.machine.handle_terminated();
        f.side.settle(f.now);
        assert_eq!(f.side.fallback(), local(DeclineCode::NOACTLINK));
    }
}

/// Both sides run into their timeouts: the DECLINE of the first reaches the other, and if their
/// DECLINEs cross, both know that it can happen.
#[test]
fn s14_declines_that_cross() {
    let mut pair = rdma_pair();
    pair.client.faults.stall = Some("confirm link");
    pair.server.faults.stall = Some("confirm link");
    pair.settle();
    let late = || WorkDone::LinkConfirmed(Err(FirstLinkError::TimedOut));
    pair.client.machine.handle_done(pair.now, late());
    pair.server.machine.handle_done(pair.now, late());
    let now = pair.now + LATE_SERVER_DECLINE_TIMEOUT;
    for side in [&mut pair.client, &mut pair.server] {
        side.settle(pair.now);
        side.machine.handle_timeout(now);
        side.settle(now);
        assert_eq!(side.fallback(), local(DeclineCode::TIMEOUT_CL));
        assert!(side.is_crossing_possible());
        let mut filter = CrossingDecline::new(now);
        let crossed = side.take_sent();
        assert_eq!(filter.handle_bytes(&crossed), crossed.len());
        assert_eq!(filter.release(), Some(Vec::new()));
    }
}
