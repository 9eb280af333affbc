//! Features in the vendor options, and what peers without them see.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod capture;
mod support;

use capture::captures;
use smc_wire::clc::{AcceptConfirm, Extensions, FirstContact, Message, Proposal, SmcdArea, Terms};
use smc_wire::pretty::{self, Family};
use smc_wire::types::Features;
use support::*;

/// The area of a PROPOSAL with these vendor fields.
fn area(oui: [u8; 3], options: [u8; 5]) -> SmcdArea {
    SmcdArea {
        vendor_oui: oui,
        vendor_options: options,
        ..SmcdArea::default()
    }
}

/// The first-contact parts of a message that has them.
fn parts(message: &mut AcceptConfirm) -> &mut FirstContact {
    match &mut message.terms {
        Terms::V2 {
            first_contact: Some(parts),
            ..
        } => parts,
        _ => panic!("no first-contact parts"),
    }
}

/// `bytes` with other ones from `at` on.
fn replaced(mut bytes: Vec<u8>, at: usize, by: &[u8]) -> Vec<u8> {
    bytes[at..][..by.len()].copy_from_slice(by);
    bytes
}

#[test]
fn a_proposal_states_features_behind_the_oui() {
    for (features, options) in [
        (Features::SINGLE_LINK, 0x01),
        (Features::FAST_OPEN, 0x02),
        (Features::EARLY_CONFIRM, 0x04),
        (Features::EARLY_DATA, 0x08),
        (Features::RDMA_IPV6, 0x10),
        (Features::RECEIVE_CREDITS, 0x20),
        (Features::SOCKET_REUSE, 0x80),
    ] {
        let mut proposal = Proposal::parse(&hex(P4)).unwrap();
        let smcd = proposal.smcd.unwrap().with_vendor_features(features);
        proposal.smcd = Some(smcd);
        let mut out = [0; Proposal::MAX_LEN];
        let len = proposal.emit(&mut out).unwrap();
        let stated = [0x52, 0x53, 0x4d, 0x53, 0x46, 0x00, options, 0x00];
        assert_eq!(out[..len], replaced(hex(P4), 52, &stated));
        let received = Proposal::parse(&out[..len]).unwrap();
        assert_eq!(received.smcd.unwrap().vendor_features(), features);
    }
}

#[test]
fn first_contact_parts_state_features() {
    let features = Features::SINGLE_LINK | Features::RECEIVE_CREDITS;
    for (text, at) in [(A3, 114), (CAPTURED_ACCEPT, 144), (CAPTURED_CONFIRM, 144)] {
        let mut message = AcceptConfirm::parse(&hex(text)).unwrap();
        assert_eq!(parts(&mut message).vendor_features(), Features::empty());
        *parts(&mut message) = parts(&mut message).with_vendor_features(features);
        let mut out = [0; 200];
        let len = message.emit(&mut out).unwrap();
        let stated = [0x53, 0x46, 0x00, 0x21];
        assert_eq!(out[..len], replaced(hex(text), at, &stated));
        let mut received = AcceptConfirm::parse(&out[..len]).unwrap();
        assert_eq!(parts(&mut received).vendor_features(), features);
    }
}

#[test]
fn vendor_options_of_others_are_no_features() {
    const OUI: [u8; 3] = Features::OUI;
    for (oui, options) in [
        // Not given, another OUI, another magic, no magic, a magic alone.
        ([0; 3], [0; 5]),
        ([0; 3], [0x53, 0x46, 0x00, 0x01, 0]),
        ([0x52, 0x53, 0x4e], [0x53, 0x46, 0x00, 0x01, 0]),
        (OUI, [0x53, 0x47, 0x00, 0x01, 0]),
        (OUI, [0x00, 0x00, 0x00, 0x01, 0]),
        (OUI, [0x53, 0x46, 0x00, 0x00, 0]),
    ] {
        let area = area(oui, options);
        assert_eq!(area.vendor_features(), Features::empty(), "{area:?}");
    }
    for options in [0, 0x0000_0001, 0x5347_0001, 0x5346_0000, 0xffff_ffff] {
        let features = Features::from_vendor_options(options);
        assert_eq!(features, Features::empty(), "{options:#x}");
    }
}

#[test]
fn unknown_features_are_kept() {
    let stated = area(Features::OUI, [0x53, 0x46, 0x81, 0x01, 0xee]).vendor_features();
    assert_eq!(stated.bits(), 0x8101);
    assert!(stated.contains(Features::SINGLE_LINK));
    assert_eq!(stated & Features::all(), stated);
    assert_eq!(stated.to_vendor_options(), 0x5346_8101);
    assert_eq!(stated.to_string(), "SINGLE_LINK | 0x8100");
    let again = SmcdArea::default().with_vendor_features(stated);
    assert_eq!(again.vendor_options, [0x53, 0x46, 0x81, 0x01, 0]);
}

#[test]
fn no_features_clear_the_vendor_options() {
    let stated = SmcdArea::default().with_vendor_features(Features::EARLY_DATA);
    let cleared = stated.with_vendor_features(Features::empty());
    assert_eq!(cleared, SmcdArea::default());
    let Message::Accept(mut accept) = Message::parse(&hex(A3)).unwrap() else {
        panic!("ACCEPT")
    };
    let plain = *parts(&mut accept);
    let stated = plain.with_vendor_features(Features::EARLY_DATA);
    assert_eq!(stated.with_vendor_features(Features::empty()), plain);
}

/// Whatever a peer without features sent or gets: no byte differs, and none has another meaning.
#[test]
fn peers_without_features_see_no_difference() {
    let known = ALL_CLC.iter().map(|(name, text)| (*name, hex(text)));
    let captured = captures().into_iter().flat_map(|capture| {
        let found = capture.clc.into_iter();
        found.map(move |found| (capture.name, found.bytes))
    });
    let mut messages = 0;
    for (name, bytes) in known.chain(captured) {
        let message = Message::parse(&bytes).unwrap();
        let (extended, extensions) = Message::parse_extended(&bytes).unwrap();
        assert_eq!((&extended, extensions), (&message, Extensions::default()));
        let mut plain = [0; 700];
        let mut with_none = [0; 700];
        let (len, features) = match &message {
            Message::Proposal(m) => {
                let len = m.emit_extended(&extensions, &mut with_none).unwrap();
                assert_eq!(m.extended_len(&extensions), m.encoded_len());
                assert_eq!(m.emit(&mut plain), Ok(len));
                (len, m.smcd.map(|area| area.vendor_features()))
            }
            Message::Accept(m) | Message::Confirm(m) => {
                let len = m.emit_extended(&extensions, &mut with_none).unwrap();
                assert_eq!(m.extended_len(&extensions), m.encoded_len());
                assert_eq!(m.emit(&mut plain), Ok(len));
                let parts = m.first_contact();
                (len, parts.map(FirstContact::vendor_features))
            }
            Message::Decline(_) => continue,
        };
        assert_eq!(plain[..len], bytes, "{name}");
        assert_eq!(with_none[..len], bytes, "{name}");
        assert!(features.unwrap_or_default().is_empty(), "{name}");
        messages += 1;
    }
    assert!(messages > 100, "{messages}");
}

#[test]
fn features_are_printed_in_place_of_the_options() {
    let stated = [0x52, 0x53, 0x4d, 0x53, 0x46, 0x80, 0x05, 0x77];
    let bytes = replaced(hex(CAPTURED_PROPOSAL), 52, &stated);
    let tree = pretty::tree(Family::Clc, &bytes).to_string();
    let expected = "
   52  52534d               vendor_oui
   55                       vendor_options
   55  5346                   magic: 0x5346
   57  80                     reserved_2: 0x80 [reserved, not zero]
   58  05                     single_link: yes
   58  05                     fast_open: no
   58  05                     early_confirm: yes
   58  05                     early_data: no
   58  05                     rdma_ipv6: no
   58  05                     receive_credits: no
   58  05                     authentication: no
   58  05                     socket_reuse: no
   59  77                     reserved_4 [reserved, not zero]
   80                     v2_extension
";
    assert!(tree.contains(expected), "{tree}");
    let line = pretty::line(Family::Clc, &bytes).to_string();
    assert!(
        line.ends_with(" features [SINGLE_LINK | EARLY_CONFIRM | 0x8000]"),
        "{line}"
    );

    let bytes = replaced(hex(A3), 114, &[0x53, 0x46, 0x00, 0x08]);
    let tree = pretty::tree(Family::Clc, &bytes).to_string();
    assert!(tree.contains("early_data: yes\n"), "{tree}");
    let line = pretty::line(Family::Clc, &bytes).to_string();
    assert!(line.ends_with(" features [EARLY_DATA]"), "{line}");
    // Those of another vendor stay bytes.
    let bytes = replaced(hex(A3), 114, &[0x53, 0x47, 0x00, 0x08]);
    let tree = pretty::tree(Family::Clc, &bytes).to_string();
    assert!(tree.contains("vendor_options: 0x53470008\n"), "{tree}");
}
