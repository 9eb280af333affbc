//! S4 to S7: waiting for PROPOSAL and screening it.

use super::*;

// S4: waiting for PROPOSAL

#[test]
fn s4_no_proposal_within_six_seconds() {
    let mut f = HandshakeFixture::new(host());
    assert_eq!(f.side.machine.bytes_needed(), 8);
    let deadline = f.side.machine.poll_timeout().unwrap();
    assert_eq!(deadline - f.now, CLC_TIMEOUT);
    f.side.machine.handle_timeout(deadline - SECOND);
    assert_eq!(f.side.machine.state(), Some("PROPOSAL"));
    f.side.machine.handle_timeout(deadline);
    f.side.settle(deadline);
    assert_eq!(*f.side.error(), Error::TimedOut(Phase::Proposal));
    assert!(f.side.sent.is_empty(), "an abort says nothing");
}

#[test]
fn s4_half_a_proposal_and_then_silence() {
    let mut f = HandshakeFixture::new(host());
    let bytes = bytes(&proposal(&host()));
    f.receive(&bytes[..100]);
    assert_eq!(f.side.machine.bytes_needed(), bytes.len() - 100);
    f.side.machine.handle_timeout(f.now + CLC_TIMEOUT);
    f.side.settle(f.now);
    assert_eq!(*f.side.error(), Error::TimedOut(Phase::Proposal));
}

#[test]
fn s4_plain_tcp_client() {
    let mut f = HandshakeFixture::new(host());
    let taken = f.receive(b"GET / HTTP/1.1\r\n\r\n");
    assert!(taken <= 8);
    assert!(matches!(f.side.error(), Error::Malformed(_)));

    // The first wrong byte is enough.
    let mut f = HandshakeFixture::new(host());
    assert_eq!(f.receive(b"G"), 1);
    assert!(matches!(f.side.error(), Error::Malformed(_)));
}

#[test]
fn s4_malformed_proposals() {
    let good = bytes(&proposal(&host()));
    let mut wrong_trailer = good.clone();
    *wrong_trailer.last_mut().unwrap() = 0;
    let mut version_0 = good.clone();
    version_0[7] &= 0x0f;
    let mut too_long = good.clone();
    too_long[5..7].copy_from_slice(&653_u16.to_be_bytes());
    let mut longer_than_its_parts = good.clone();
    longer_than_its_parts[6] += 1;
    longer_than_its_parts.insert(100, 0);
    for bytes in [wrong_trailer, version_0, too_long, longer_than_its_parts] {
        let mut f = HandshakeFixture::new(host());
        f.receive(&bytes);
        assert!(matches!(f.side.error(), Error::Malformed(_)));
        assert!(f.side.sent.is_empty());
    }
}

#[test]
fn s4_another_message_is_refused_at_its_header() {
    let mut f = HandshakeFixture::new(host());
    let accept = HandshakeFixture::new(host()).accepts(&proposal(&host()));
    let taken = f.receive(&accept_bytes(&accept));
    assert_eq!(taken, 8);
    assert_eq!(*f.side.error(), PeerMisbehaved::UnexpectedMessage.into());
}

#[test]
fn s4_client_closes() {
    let mut f = HandshakeFixture::new(host());
    f.receive(&bytes(&proposal(&host()))[..9]);
    f.close();
    assert_eq!(*f.side.error(), Error::Closed(CloseReason::DuringHandshake));
}

#[test]
fn s4_decline_without_proposal() {
    for version in [Version::V1, Version::V2] {
        let mut f = HandshakeFixture::new(host());
        let decline = Decline::new(version, DeclineCode::NOSMCDEV, OsType::LINUX);
        let mut bytes = [0; 64];
        let len = decline.emit(&mut bytes).unwrap();
        let mut stream = bytes[..len].to_vec();
        stream.extend_from_slice(b"hello");
        assert_eq!(f.receive(&stream), len, "what follows is application data");
        assert_eq!(f.side.fallback(), peer(DeclineCode::NOSMCDEV));
        assert!(f.side.sent.is_empty(), "a DECLINE is never answered");
    }
}

// S5

#[test]
fn s5_ipsec() {
    let path = TcpPath {
        ipsec: true,
        ..TcpPath::default()
    };
    let f = HandshakeFixture::server(host(), path);
    assert_eq!(f.declines_offer(&proposal(&host())), DeclineCode::IPSEC);
}

// S6: version screening

#[test]
fn s6_nothing_offered() {
    let mut nothing = proposal(&host());
    nothing.v2 = OfferedTypes::Neither;
    nothing.ext = None;
    assert_eq!(
        HandshakeFixture::new(host()).declines_offer(&nothing),
        DeclineCode::PEERNOSMC
    );
}

#[test]
fn s6_no_device_for_v2() {
    let f = HandshakeFixture::new(host_with(vec![]));
    assert_eq!(
        f.declines_offer(&proposal(&host())),
        DeclineCode::NOISM2SUPP
    );
    // A device without a CHID is of no use in version 2.
    let f = HandshakeFixture::new(host_with(vec![device(0, Chid::NONE)]));
    assert_eq!(
        f.declines_offer(&proposal(&host())),
        DeclineCode::NOISM2SUPP
    );
}

#[test]
fn s6_direct_extension_missing_or_misplaced() {
    for offset in [0_u16, 289] {
        let mut bytes = bytes(&proposal(&host()));
        bytes[86..88].copy_from_slice(&offset.to_be_bytes());
        let mut f = HandshakeFixture::new(host());
        f.receive(&bytes);
        assert_eq!(f.side.declined().diagnosis, DeclineCode::NOV2DEXT);
    }
}

#[test]
fn s6_no_eid_at_all() {
    let f = HandshakeFixture::new(host());
    assert_eq!(
        f.declines_offer(&proposal(&host_with_ueids(&[]))),
        DeclineCode::NOUEID
    );
    assert_eq!(
        HandshakeFixture::new(host()).declines_offer(&r_v2(&[])),
        DeclineCode::NOUEID
    );
}

#[test]
fn s6_the_last_reason_is_told() {
    let mut both = r_v2(&[]);
    both.v2 = OfferedTypes::Both;
    both.ext.as_mut().unwrap().direct = Some(DirectExtension::default());
    // SMC-D: no device; SMC-R: no UEID.
    assert_eq!(
        HandshakeFixture::new(host_with(vec![])).declines_offer(&both),
        DeclineCode::NOUEID
    );
}

// S7: limits of v2.1

#[test]
fn s7_limits_count_even_if_smc_d_would_be_chosen() {
    let cases = [
        (15, 2, DeclineCode::MAXCONNERR),
        (16, 0, DeclineCode::MAXLINKERR),
    ];
    for (conns, links, code) in cases {
        let mut both = proposal(&host());
        both.v2 = OfferedTypes::Both;
        let ext = both.ext.as_mut().unwrap();
        ext.ueids.push(ueid("SALES")).unwrap();
        (ext.max_conns, ext.max_links) = (conns, links);
        assert_eq!(HandshakeFixture::new(host()).declines_offer(&both), code);
    }
}

#[test]
fn s7_limits_do_not_count_in_v2_0() {
    let mut both = proposal(&host());
    both.v2 = OfferedTypes::Both;
    let ext = both.ext.as_mut().unwrap();
    ext.ueids.push(ueid("SALES")).unwrap();
    ext.release = Release::V2_0;
    let accept = HandshakeFixture::new(host()).accepts(&both);
    assert_eq!(accept.first_contact().unwrap().release, Release::V2_0);
}
