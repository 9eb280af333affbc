//! S10 to S16: ACCEPT, CONFIRM and what follows.

use super::*;

#[test]
fn accept_says_everything_about_our_end() {
    let mut f = HandshakeFixture::new(host());
    let accept = f.accepts(&proposal(&host()));
    let Body::D(end) = accept.body else { panic!() };
    assert_eq!(
        (end.gid, end.chid, end.dmbe_index),
        (device(0, LOOP).gid, LOOP, 0)
    );
    assert_eq!(end.size, SizeCode::LINUX_DEFAULT);
    assert_eq!(end.group, f.side.member.unwrap());
    let stated = accept.first_contact().unwrap();
    assert_eq!(
        (stated.os, stated.host),
        (OsType::LINUX, HostName::new("host-a"))
    );
    assert_eq!((stated.max_conns, stated.max_links), (0, 0));
}

#[test]
fn unknown_future_version_is_taken_as_version_2() {
    let mut proposal = proposal(&host());
    proposal.version = Version::new(3).unwrap();
    proposal.ext.as_mut().unwrap().release = Release::new(7).unwrap();
    let accept = HandshakeFixture::new(host()).accepts(&proposal);
    assert_eq!(accept.first_contact().unwrap().release, Release::V2_1);
}

#[test]
fn s12_rubbish_instead_of_confirm() {
    let mut f = HandshakeFixture::new(host());
    f.accepts(&proposal(&host()));
    f.receive(b"hello, world");
    assert!(matches!(f.side.error(), Error::Malformed(_)));
    assert_eq!(f.side.groups.borrow().registry.group_infos(), []);
}

#[test]
fn s12_second_proposal_instead_of_confirm() {
    let mut f = HandshakeFixture::new(host());
    f.accepts(&proposal(&host()));
    f.receive(&bytes(&proposal(&host())));
    assert_eq!(*f.side.error(), PeerMisbehaved::UnexpectedMessage.into());
}

#[test]
fn s12_confirm_of_another_kind_than_accept() {
    for kind in [0, 1] {
        let mut f = HandshakeFixture::new(host());
        let accept = f.accepts(&proposal(&host()));
        let mut bytes = accept_bytes(&confirmed(&accept));
        if kind == 0 {
            bytes[7] &= !0x01; // SMC-R
        } else {
            bytes = unhex(
                "e2d4c3c403003019010000000000000100000000deadbeef0060000000010000000000000000000000
                 000000e2d4c3c4",
            );
        }
        f.receive(&bytes);
        assert!(matches!(
            f.side.error(),
            Error::PeerMisbehaved(PeerMisbehaved::UnexpectedMessage) | Error::Malformed(_)
        ));
    }
}

#[test]
fn s12_client_hangs_up_after_accept() {
    let mut f = HandshakeFixture::new(host());
    f.accepts(&proposal(&host()));
    f.close();
    assert_eq!(*f.side.error(), Error::Closed(CloseReason::DuringHandshake));
    assert_eq!(f.side.groups.borrow().registry.group_infos(), []);
}

#[test]
fn s13_confirm_with_another_release() {
    let mut f = HandshakeFixture::new(host());
    let accept = f.accepts(&proposal(&host()));
    let mut confirm = confirmed(&accept);
    if let ClcTerms::V2 {
        first_contact: Some(stated),
        ..
    } = &mut confirm.terms
    {
        stated.release = Release::V2_0;
        stated.features = smc_wire::types::FeatureMask::empty();
    }
    f.receive_end(&confirm);
    assert_eq!(f.side.declined().diagnosis, DeclineCode::RELEASEERR);
    assert_eq!(f.side.fallback(), local(DeclineCode::RELEASEERR));
}

#[test]
fn s13_what_is_not_compared() {
    let mut f = HandshakeFixture::new(host());
    let accept = f.accepts(&proposal(&host()));
    let mut confirm = confirmed(&accept);
    // Neither the EID nor the first-contact flag of CONFIRM matter.
    confirm.terms = ClcTerms::V2 {
        eid: ueid("ANYTHING"),
        first_contact: None,
    };
    f.receive_end(&confirm);
    let established = f.side.established();
    assert!(established.first_contact);
    assert_eq!(established.eid, Some(DEFAULT_SEID));
    assert_eq!(established.peer_host, HostName::BLANK);
    let groups = f.side.groups.borrow().registry.group_infos();
    assert_eq!(groups[0].terms.unwrap().os, OsType::NONE);
}

#[test]
fn s15_element_beyond_the_first() {
    let mut f = HandshakeFixture::new(host());
    let accept = f.accepts(&proposal(&host()));
    let mut confirm = confirmed(&accept);
    let Body::D(end) = &mut confirm.body else {
        panic!()
    };
    end.dmbe_index = 3;
    let token = end.dmb;
    f.side.faults.attach = Some(Ok(4 * 0x4000));
    f.receive_end(&confirm);
    let buffer = f.side.direct().peer_buffer;
    assert_eq!(
        (buffer.token, buffer.offset(), buffer.end()),
        (token, 0xc000, 0x10000)
    );
}

#[test]
fn bytes_after_confirm_are_not_taken() {
    let mut f = HandshakeFixture::new(host());
    let accept = f.accepts(&proposal(&host()));
    let mut bytes = accept_bytes(&confirmed(&accept));
    f.side
        .fabric
        .borrow_mut()
        .buffers
        .insert(DmbToken(0xc11e), 0x4000);
    let len = bytes.len();
    bytes.extend_from_slice(b"more");
    assert_eq!(f.receive(&bytes), len);
    f.side.established();
}

#[test]
fn wrong_answer_of_the_caller_is_a_bug_and_not_a_panic() {
    let mut f = HandshakeFixture::new(host());
    f.side.machine.handle_done(f.now, WorkDone::Attached(Ok(1)));
    f.side.settle(f.now);
    assert!(matches!(f.side.error(), Error::Bug(_)));
    // A failed machine stays failed.
    f.side.machine.handle_done(f.now, WorkDone::Reached(Ok(())));
    assert_eq!(
        f.side
            .machine
            .handle_bytes(f.now, &bytes(&proposal(&host()))),
        0
    );
    assert_eq!(f.side.machine.poll_output(), None);
}
