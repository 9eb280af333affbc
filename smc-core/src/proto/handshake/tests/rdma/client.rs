//! The steps of a client with SMC-R, row by row (docs/spec/handshake.md#client-with-smc-r).

use smc_wire::clc::{Body, RdmaEnd, Terms};

use super::*;
use crate::error::{CloseReason, PeerMisbehaved};

struct Fixture {
    client: Side,
    now: Instant,
}

impl Fixture {
    /// PROPOSAL is sent.
    fn new(config: HandshakeConfig) -> Self {
        let now = Instant::now();
        let mut client = Side::new(Handshake::client(now, Arc::new(config), &path(CLIENT)));
        client.settle(now);
        client.take_sent();
        Self { client, now }
    }

    /// CONFIRM is sent and the link is being confirmed.
    fn confirming() -> Self {
        let mut f = Self::new(rdma_host(CLIENT));
        f.client.faults.stall = Some("confirm link");
        f.accept(&accept());
        assert_eq!(f.client.machine.state(), Some("CONFIRM LINK"));
        f.client.take_sent();
        f
    }

    fn accept(&mut self, accept: &AcceptConfirm) {
        self.client
            .receive(self.now, &accept_bytes(accept), usize::MAX);
        self.client.settle(self.now);
    }

    fn done(&mut self, done: WorkDone) {
        self.client.machine.handle_done(self.now, done);
        self.client.settle(self.now);
    }

    fn wait(&mut self, wait: Duration) {
        self.now += wait;
        self.client.machine.handle_timeout(self.now);
        self.client.settle(self.now);
    }

    /// Is expected to decline an ACCEPT, after the work that went well.
    fn declines(mut self, accept: &AcceptConfirm) -> DeclineCode {
        self.accept(accept);
        let decline = self.client.declined();
        assert_eq!(self.client.fallback(), local(decline.diagnosis));
        assert_eq!(decline.peer_id, peer_id(CLIENT));
        assert!(!self.client.is_crossing_possible());
        assert_eq!(self.client.groups.borrow().registry.group_infos(), []);
        decline.diagnosis
    }
}

/// What a server answers at first contact.
fn accept() -> AcceptConfirm {
    let mut pair = rdma_pair();
    pair.run();
    pair.accepts().remove(0)
}

fn with_parts(change: impl FnOnce(&mut smc_wire::clc::FirstContact)) -> AcceptConfirm {
    let mut accept = accept();
    if let Terms::V2 {
        first_contact: Some(parts),
        ..
    } = &mut accept.terms
    {
        change(parts);
    }
    accept
}

fn with_end(change: impl FnOnce(&mut RdmaEnd)) -> AcceptConfirm {
    let mut accept = accept();
    if let Body::R(end) = &mut accept.body {
        change(end);
    }
    accept
}

fn faulty(done: WorkDone) -> DeclineCode {
    let mut f = Fixture::new(rdma_host(CLIENT));
    f.client.faults.rdma.push_back(done);
    f.declines(&accept())
}

fn late_decline(code: DeclineCode) -> Vec<u8> {
    let decline = Decline::new(Version::V2, code, smc_wire::types::OsType::LINUX);
    let mut bytes = vec![0; decline.encoded_len()];
    decline.emit(&mut bytes).unwrap();
    bytes
}

#[test]
fn c13_type_that_was_not_offered() {
    let mut v1 = accept();
    v1.terms = Terms::V1 {
        first_contact: true,
    };
    let f = Fixture::new(rdma_host(CLIENT));
    assert_eq!(f.declines(&v1), DeclineCode::MODEUNSUPP);

    let mut only_v1 = rdma_host_with(CLIENT, vec![port_v1(CLIENT)]);
    only_v1.ueids.clear();
    let f = Fixture::new(only_v1);
    assert_eq!(f.declines(&accept()), DeclineCode::MODEUNSUPP);

    let direct = {
        let mut pair = Pair::new(host(), host());
        pair.run();
        pair.accepts().remove(0)
    };
    let f = Fixture::new(rdma_host(CLIENT));
    assert_eq!(f.declines(&direct), DeclineCode::MODEUNSUPP);
}

#[test]
fn r1_route_and_the_servers_word_about_it() {
    let far = RoceGid::from_ipv4(Ipv4Addr::new(10, 77, 0, 1));
    let indirect = with_parts(|parts| parts.v2_direct = false);
    let f = Fixture::new(rdma_host(CLIENT));
    assert_eq!(f.declines(&indirect), DeclineCode::NOINDIRECT);

    let mut away = indirect.clone();
    if let Body::R(end) = &mut away.body {
        end.gid = far;
    }
    let f = Fixture::new(rdma_host(CLIENT));
    assert_eq!(f.declines(&away), DeclineCode::NOROUTE);

    let mut f = Fixture::new(rdma_host_with(
        CLIENT,
        vec![port(CLIENT).with_gateway(true)],
    ));
    f.accept(&away);
    assert_eq!(f.client.rdma().route, Route::Gateway);

    // If the server says "direct", it is.
    let mut f = Fixture::new(rdma_host(CLIENT));
    f.accept(&with_end(|end| end.gid = far));
    assert_eq!(f.client.rdma().route, Route::Direct);
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
        let accept = with_parts(|parts| (parts.max_conns, parts.max_links) = (conns, links));
        let f = Fixture::new(rdma_host(CLIENT));
        assert_eq!(f.declines(&accept), code);
    }
    let release = with_parts(|parts| parts.release = Release::from_low_nibble(3));
    let f = Fixture::new(rdma_host(CLIENT));
    assert_eq!(f.declines(&release), DeclineCode::RELEASEERR);
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
            WorkDone::PeerBound(Err(RtokenTableFull)),
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
    let mut f = Fixture::new(rdma_host(CLIENT));
    f.client.faults.rdma.extend([short(), short()]);
    f.accept(&accept());
    assert_eq!(f.client.rdma().local.size, SizeCode::MIN);

    let mut f = Fixture::new(rdma_host(CLIENT));
    f.client.faults.rdma.extend([short(), short(), short()]);
    assert_eq!(f.declines(&accept()), DeclineCode::MEM);
}

#[test]
fn ends_that_make_no_sense() {
    let cases = [
        (
            with_end(|end| end.rmbe_index = 0),
            PeerMisbehaved::BadBuffer,
        ),
        (
            with_end(|end| end.token = AlertToken::from_wire(0)),
            PeerMisbehaved::BadBuffer,
        ),
        (
            with_end(|end| end.mtu = MtuCode::from_low_nibble(0)),
            PeerMisbehaved::BadLink,
        ),
        (
            with_end(|end| end.mtu = MtuCode::from_low_nibble(6)),
            PeerMisbehaved::BadLink,
        ),
    ];
    for (accept, what) in cases {
        let mut f = Fixture::new(rdma_host(CLIENT));
        f.accept(&accept);
        assert_eq!(*f.client.error(), what.into());
    }
}

#[test]
fn any_element_of_the_servers_rmb() {
    let mut f = Fixture::new(rdma_host(CLIENT));
    f.accept(&with_end(|end| end.rmbe_index = 3));
    let rmb = f.client.rdma().peer_rmb;
    assert_eq!(rmb.offset(), 2 * 65_536);
}

#[test]
fn r11_nothing_came_over_the_link() {
    for failure in [FirstLinkError::TimedOut, FirstLinkError::LinkDown] {
        let mut f = Fixture::confirming();
        f.done(WorkDone::LinkConfirmed(Err(failure)));
        assert_eq!(f.client.outcome, None, "the server may say why");
        assert_eq!(f.client.machine.state(), Some("late DECLINE"));
        f.wait(LATE_DECLINE_TIMEOUT);
        assert_eq!(f.client.fallback(), local(DeclineCode::TIMEOUT_CL));
        assert_eq!(f.client.declined().diagnosis, DeclineCode::TIMEOUT_CL);
        assert!(f.client.is_crossing_possible());
        assert_eq!(f.client.groups.borrow().registry.group_infos(), []);
    }
}

#[test]
fn r11_server_declines_instead() {
    let mut early = Fixture::confirming();
    let bytes = late_decline(DeclineCode::TIMEOUT_CL);
    early.client.receive(early.now, &bytes, 7);
    early.client.settle(early.now);

    let mut late = Fixture::confirming();
    late.done(WorkDone::LinkConfirmed(Err(FirstLinkError::TimedOut)));
    late.wait(SECOND / 2);
    late.client.receive(late.now, &bytes, 7);
    late.client.settle(late.now);

    for f in [early, late] {
        assert_eq!(f.client.fallback(), peer(DeclineCode::TIMEOUT_CL));
        assert!(f.client.sent.is_empty(), "a DECLINE is never answered");
        assert!(!f.client.is_crossing_possible());
        assert_eq!(f.client.groups.borrow().registry.group_infos(), []);
    }
}

#[test]
fn r11_group_terminated_by_the_server_which_then_declines() {
    let mut f = Fixture::confirming();
    f.client.machine.handle_terminated();
    f.done(WorkDone::LinkConfirmed(Err(FirstLinkError::LinkDown)));
    assert_eq!(f.client.machine.state(), Some("late DECLINE"));
    let bytes = late_decline(DeclineCode::RMBE_EC);
    f.client.receive(f.now, &bytes, usize::MAX);
    f.client.settle(f.now);
    assert_eq!(f.client.fallback(), peer(DeclineCode::RMBE_EC));
}

#[test]
fn r11_work_that_never_ends() {
    let mut f = Fixture::confirming();
    f.wait(CONFIRM_LINK_TIMEOUT);
    assert_eq!(f.client.fallback(), local(DeclineCode::TIMEOUT_CL));
}

#[test]
fn r11_only_a_decline_makes_sense() {
    let mut f = Fixture::confirming();
    let again = accept_bytes(&accept());
    f.client.receive(f.now, &again, usize::MAX);
    f.client.settle(f.now);
    let unexpected = PeerMisbehaved::UnexpectedMessage.into();
    assert_eq!(*f.client.error(), unexpected);
}

/// The server's application may have finished before the confirmation of the link arrives.
#[test]
fn r11_tcp_may_be_closed_early() {
    let mut f = Fixture::confirming();
    f.client.machine.handle_closed();
    f.client.settle(f.now);
    assert_eq!(f.client.machine.wants(), 0);
    f.done(WorkDone::LinkConfirmed(Ok(())));
    assert!(f.client.established().first_contact);

    for failure in [FirstLinkError::TimedOut, FirstLinkError::Eyecatchers] {
        let mut f = Fixture::confirming();
        f.client.machine.handle_closed();
        f.done(WorkDone::LinkConfirmed(Err(failure)));
        assert_eq!(
            *f.client.error(),
            Error::Closed(CloseReason::DuringHandshake)
        );
    }
    let mut f = Fixture::confirming();
    f.done(WorkDone::LinkConfirmed(Err(FirstLinkError::TimedOut)));
    f.client.machine.handle_closed();
    f.client.settle(f.now);
    assert_eq!(
        *f.client.error(),
        Error::Closed(CloseReason::DuringHandshake)
    );
}

#[test]
fn r12_server_wants_eyecatchers() {
    let mut f = Fixture::confirming();
    f.done(WorkDone::LinkConfirmed(Err(FirstLinkError::Eyecatchers)));
    assert_eq!(f.client.fallback(), local(DeclineCode::RMBE_EC));
    assert!(f.client.is_crossing_possible());
}

#[test]
fn stalled_work_of_the_client() {
    for (stall, code) in [
        ("enter", DeclineCode::INTERR),
        ("open link", DeclineCode::INTERR),
        ("prepare", DeclineCode::MEM),
        ("bind", DeclineCode::INTERR),
        ("connect", DeclineCode::ERR_RDYLNK),
    ] {
        let mut pair = rdma_pair();
        pair.client.faults.stall = Some(stall);
        let start = pair.now;
        pair.run();
        assert_eq!(pair.now - start, WORK_TIMEOUT, "in time for the server");
        assert_eq!(pair.client.fallback(), local(code));
        assert_eq!(pair.server.fallback(), peer(code));
        for side in [&pair.client, &pair.server] {
            assert_eq!(side.groups.borrow().registry.group_infos(), []);
        }
    }
    let mut first = rdma_pair();
    first.run();
    let mut pair = again(&first);
    pair.client.faults.stall = Some("confirm rkey");
    pair.run();
    assert_eq!(pair.client.fallback(), local(DeclineCode::ERR_REGBUF));
    assert_eq!(pair.server.fallback(), peer(DeclineCode::ERR_REGBUF));
}
