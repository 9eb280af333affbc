//! The steps of a client with SMC-R, row by row (docs/spec/handshake.md#client-with-smc-r).

use smc_wire::clc::Terms;

use super::*;
use crate::error::{CloseReason, PeerMisbehaved};

/// PROPOSAL is sent.
fn client(config: HandshakeConfig) -> HandshakeFixture {
    let mut f = HandshakeFixture::client(config, &path(CLIENT));
    f.side.take_sent();
    f
}

/// CONFIRM is sent and the link is being confirmed.
fn confirming() -> HandshakeFixture {
    let mut f = client(rdma_host(CLIENT));
    f.side.faults.stall = Some("confirm link");
    f.receive_end(&accept());
    assert_eq!(f.side.machine.state(), Some("CONFIRM LINK"));
    f.side.take_sent();
    f
}

/// The ACCEPT of a server at first contact.
fn accept() -> AcceptConfirm {
    let pair = rdma_pair().completed();
    pair.accepts().remove(0)
}

fn faulty(done: WorkDone) -> DeclineCode {
    let mut f = client(rdma_host(CLIENT));
    f.side.faults.rdma.push_back(done);
    f.declines(&accept_bytes(&accept()))
}

#[test]
fn c13_type_that_was_not_offered() {
    let mut v1 = accept();
    v1.terms = Terms::V1 {
        first_contact: true,
    };
    let f = client(rdma_host(CLIENT));
    assert_eq!(f.declines(&accept_bytes(&v1)), DeclineCode::MODEUNSUPP);

    let mut only_v1 = rdma_host_with(CLIENT, vec![port_v1(CLIENT)]);
    only_v1.ueids.clear();
    let f = client(only_v1);
    assert_eq!(
        f.declines(&accept_bytes(&accept())),
        DeclineCode::MODEUNSUPP
    );

    let direct = {
        let pair = Pair::new(host(), host()).completed();
        pair.accepts().remove(0)
    };
    let f = client(rdma_host(CLIENT));
    assert_eq!(f.declines(&accept_bytes(&direct)), DeclineCode::MODEUNSUPP);
}

#[test]
fn r1_route_and_the_servers_word_about_it() {
    let far = RoceGid::from_ipv4(Ipv4Addr::new(10, 77, 0, 1));
    let indirect = with_parts(accept(), |parts| parts.v2_direct = false);
    let f = client(rdma_host(CLIENT));
    assert_eq!(
        f.declines(&accept_bytes(&indirect)),
        DeclineCode::NOINDIRECT
    );

    let mut away = indirect.clone();
    if let Body::R(end) = &mut away.body {
        end.gid = far;
    }
    let f = client(rdma_host(CLIENT));
    assert_eq!(f.declines(&accept_bytes(&away)), DeclineCode::NOROUTE);

    let mut config = rdma_host(CLIENT);
    rdma_of(&mut config).routes = Some(Arc::new(OverRouter));
    let mut f = client(config);
    f.receive_end(&away);
    assert_eq!(f.side.rdma().route, Route::Gateway);

    // If the server says "direct", it is.
    let mut f = client(rdma_host(CLIENT));
    f.receive_end(&with_end(accept(), |end| end.gid = far));
    assert_eq!(f.side.rdma().route, Route::SameSubnet);
}

#[test]
fn r2_limits() {
    let cases = [
        (15, 2, DeclineCode::MAXCONNERR),
        (0, 0, DeclineCode::MAXCONNERR),
        (16, 0, DeclineCode::MAXLINKERR),
        (16, 3, DeclineCode::MAXLINKERR),
    ];
    for (conns, links, code) in cases {
        let accept = with_parts(accept(), |parts| {
            (parts.max_conns, parts.max_links) = (conns, links)
        });
        let f = client(rdma_host(CLIENT));
        assert_eq!(f.declines(&accept_bytes(&accept)), code);
    }
    let release = with_parts(accept(), |parts| {
        parts.release = Release::from_low_nibble(3)
    });
    let f = client(rdma_host(CLIENT));
    assert_eq!(f.declines(&accept_bytes(&release)), DeclineCode::RELEASEERR);
}

#[test]
fn r3_to_r8_work_that_fails() {
    let unfit = DeviceError::Invalid("address");
    let cases = [
        (
            WorkDone::LinkOpened(Err(unfit.clone())),
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
            WorkDone::PeerBound(Err(RtokenError::TableFull)),
            DeclineCode::ERR_RTOK,
        ),
        (WorkDone::LinkConnected(Err(unfit)), DeclineCode::ERR_RDYLNK),
    ];
    for (done, code) in cases {
        assert_eq!(faulty(done), code);
    }
}

#[test]
fn r5_smaller_buffer_when_memory_is_short() {
    let short = || WorkDone::RmbPrepared(Err(DeviceError::NoMemory.into()));
    let mut f = client(rdma_host(CLIENT));
    f.side.faults.rdma.extend([short(), short()]);
    f.receive_end(&accept());
    assert_eq!(f.side.rdma().local.size, SizeCode::MIN);

    let mut f = client(rdma_host(CLIENT));
    f.side.faults.rdma.extend([short(), short(), short()]);
    assert_eq!(f.declines(&accept_bytes(&accept())), DeclineCode::MEM);
}

#[test]
fn ends_that_make_no_sense() {
    let cases = [
        (
            with_end(accept(), |end| end.rmbe_index = 0),
            PeerMisbehaved::BadBuffer,
        ),
        (
            with_end(accept(), |end| end.token = AlertToken::from_wire(0)),
            PeerMisbehaved::BadBuffer,
        ),
        (
            with_end(accept(), |end| end.mtu = MtuCode::from_low_nibble(0)),
            PeerMisbehaved::BadLink,
        ),
        (
            with_end(accept(), |end| end.mtu = MtuCode::from_low_nibble(6)),
            PeerMisbehaved::BadLink,
        ),
    ];
    for (accept, what) in cases {
        let mut f = client(rdma_host(CLIENT));
        f.receive_end(&accept);
        assert_eq!(*f.side.error(), what.into());
    }
}

#[test]
fn any_element_of_the_servers_rmb() {
    let mut f = client(rdma_host(CLIENT));
    f.receive_end(&with_end(accept(), |end| end.rmbe_index = 3));
    let rmb = f.side.rdma().peer_rmb;
    assert_eq!(rmb.offset(), 2 * 65_536);
}

#[test]
fn r11_nothing_came_over_the_link() {
    for failure in [FirstLinkError::TimedOut, FirstLinkError::LinkDown] {
        let mut f = confirming();
        f.done(WorkDone::LinkConfirmed(Err(failure)));
        assert_eq!(f.side.outcome, None, "the server may say why");
        assert_eq!(f.side.machine.state(), Some("late DECLINE"));
        f.wait(LATE_SERVER_DECLINE_TIMEOUT);
        assert_eq!(f.side.fallback(), local(DeclineCode::TIMEOUT_CL));
        assert_eq!(*f.side.cause(), FallbackCause::ConfirmLink(failure));
        assert_eq!(f.side.declined().diagnosis, DeclineCode::TIMEOUT_CL);
        assert!(f.side.is_crossing_possible());
        assert_eq!(f.side.groups.borrow().registry.group_infos(), []);
    }
}

#[test]
fn r11_server_declines_instead() {
    let mut early = confirming();
    let bytes = decline_bytes(DeclineCode::TIMEOUT_CL);
    early.receive(&bytes);

    let mut late = confirming();
    late.done(WorkDone::LinkConfirmed(Err(FirstLinkError::TimedOut)));
    // A server of Linux destroys its queue pair before.
    late.wait(2 * SECOND);
    late.receive(&bytes);

    for f in [early, late] {
        assert_eq!(f.side.fallback(), peer(DeclineCode::TIMEOUT_CL));
        assert!(f.side.sent.is_empty(), "a DECLINE is never answered");
        assert!(!f.side.is_crossing_possible());
        assert_eq!(f.side.groups.borrow().registry.group_infos(), []);
    }
}

#[test]
fn r11_group_terminated_by_the_server_which_then_declines() {
    let mut f = confirming();
    f.side.machine.handle_terminated();
    f.done(WorkDone::LinkConfirmed(Err(FirstLinkError::LinkDown)));
    assert_eq!(f.side.machine.state(), Some("late DECLINE"));
    let bytes = decline_bytes(DeclineCode::RMBE_EC);
    f.receive(&bytes);
    assert_eq!(f.side.fallback(), peer(DeclineCode::RMBE_EC));
}

#[test]
fn r11_work_that_never_ends() {
    let mut f = confirming();
    f.wait(CONFIRM_LINK_TIMEOUT);
    assert_eq!(f.side.fallback(), local(DeclineCode::TIMEOUT_CL));
    let step = SetupStep::ConfirmLink;
    assert_eq!(*f.side.cause(), FallbackCause::TimedOut(step));
}

#[test]
fn r11_only_a_decline_makes_sense() {
    let mut f = confirming();
    let again = accept_bytes(&accept());
    f.receive(&again);
    let unexpected = PeerMisbehaved::UnexpectedMessage.into();
    assert_eq!(*f.side.error(), unexpected);
}

/// The server's application may have finished before the confirmation of the link arrives.
#[test]
fn r11_tcp_may_be_closed_early() {
    let mut f = confirming();
    f.close();
    assert_eq!(f.side.machine.bytes_needed(), 0);
    f.done(WorkDone::LinkConfirmed(Ok(())));
    assert!(f.side.established().first_contact);

    for failure in [FirstLinkError::TimedOut, FirstLinkError::Eyecatchers] {
        let mut f = confirming();
        f.side.machine.handle_closed();
        f.done(WorkDone::LinkConfirmed(Err(failure)));
        assert_eq!(*f.side.error(), Error::Closed(CloseReason::DuringHandshake));
    }
    let mut f = confirming();
    f.done(WorkDone::LinkConfirmed(Err(FirstLinkError::TimedOut)));
    f.close();
    assert_eq!(*f.side.error(), Error::Closed(CloseReason::DuringHandshake));
}

#[test]
fn r12_server_wants_eyecatchers() {
    let mut f = confirming();
    f.done(WorkDone::LinkConfirmed(Err(FirstLinkError::Eyecatchers)));
    assert_eq!(f.side.fallback(), local(DeclineCode::RMBE_EC));
    let eyecatchers = FallbackCause::ConfirmLink(FirstLinkError::Eyecatchers);
    assert_eq!(*f.side.cause(), eyecatchers);
    assert!(f.side.is_crossing_possible());
}

#[test]
fn stalled_work_of_the_client() {
    for (stall, step, code) in [
        ("enter", SetupStep::Enter, DeclineCode::INTERR),
        ("open link", SetupStep::OpenLink, DeclineCode::INTERR),
        ("prepare", SetupStep::Register, DeclineCode::MEM),
        ("bind", SetupStep::BindPeer, DeclineCode::INTERR),
        ("connect", SetupStep::ConnectLink, DeclineCode::ERR_RDYLNK),
    ] {
        let mut pair = rdma_pair();
        pair.client.faults.stall = Some(stall);
        let start = pair.now;
        pair.run();
        assert_eq!(pair.now - start, WORK_TIMEOUT, "in time for the server");
        pair.client_declines(code);
        assert_eq!(*pair.client.cause(), FallbackCause::TimedOut(step));
        for side in [&pair.client, &pair.server] {
            assert_eq!(side.groups.borrow().registry.group_infos(), []);
        }
    }
    let first = rdma_pair().completed();
    let mut pair = again(&first);
    pair.client.faults.stall = Some("confirm rkey");
    pair.run();
    pair.client_declines(DeclineCode::ERR_REGBUF);
    let step = SetupStep::ConfirmRkey;
    assert_eq!(*pair.client.cause(), FallbackCause::TimedOut(step));
}
