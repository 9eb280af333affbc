//! CLC messages that cannot be written, because no peer could read them.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod support;

use smc_wire::clc::{
    AcceptConfirm, AcceptKind, Body, Decline, FirstContact, GidList, Proposal, Terms,
};
use smc_wire::types::{Chid, FeatureMask, Gid, IsmGid, OfferedTypes, Release, Version};
use smc_wire::{EmitError, MessageKind};
use support::*;

/// The field that the error names.
#[track_caller]
fn refused<T>(written: Result<T, EmitError>) -> &'static str {
    match written.map(|_| ()).unwrap_err() {
        EmitError::Invalid { field, .. } => field,
        other => panic!("{other}"),
    }
}

#[track_caller]
fn proposal_refused(text: &str, change: impl FnOnce(&mut Proposal)) -> &'static str {
    let mut proposal = Proposal::parse(&hex(text)).unwrap();
    change(&mut proposal);
    refused(proposal.emit(&mut [0; 700]))
}

#[track_caller]
fn accept_refused(text: &str, change: impl FnOnce(&mut AcceptConfirm)) -> &'static str {
    let mut message = AcceptConfirm::parse(&hex(text)).unwrap();
    change(&mut message);
    refused(message.emit(&mut [0; 700]))
}

/// Changes the first-contact parts of a message that has them.
fn parts(message: &mut AcceptConfirm, change: impl FnOnce(&mut FirstContact)) {
    let Terms::V2 {
        first_contact: Some(parts),
        ..
    } = &mut message.terms
    else {
        panic!("no first-contact parts")
    };
    change(parts);
}

/// Changes the SMC-D end of a message.
fn gid(message: &mut AcceptConfirm, gid: Gid, chid: Chid) {
    let Body::D(end) = &mut message.body else {
        panic!("not SMC-D")
    };
    end.gid = gid;
    end.chid = chid;
}

type Change = fn(&mut Proposal);

#[test]
fn regions_follow_the_offers() {
    let cases: [(&str, Change, &str); 11] = [
        (P1, |proposal| proposal.ip = None, "IP area"),
        (P4, |proposal| proposal.v1 = OfferedTypes::R, "IP area"),
        (P3, |proposal| proposal.ext = None, "v2 extension"),
        (
            P3,
            |proposal| proposal.v2 = OfferedTypes::Neither,
            "v2 extension",
        ),
        (
            P3,
            |proposal| proposal.v2 = OfferedTypes::R,
            "SMC-D v2 extension",
        ),
        (
            CAPTURED_PROPOSAL,
            |proposal| proposal.v2 = OfferedTypes::Both,
            "SMC-D v2 extension",
        ),
        (P3, |proposal| proposal.smcd = None, "SMC-D area"),
        // Version 1 offers version 1.
        (P2, |proposal| proposal.smcd = None, "SMC-D area"),
        (P1, |proposal| proposal.v2 = OfferedTypes::R, "v2 type"),
        (
            P1,
            |proposal| {
                proposal.v1 = OfferedTypes::Neither;
                proposal.ip = None;
            },
            "v1 type",
        ),
        (
            P3,
            |proposal| {
                proposal.version = Version::V1;
                proposal.v2 = OfferedTypes::Neither;
            },
            "v2 extension",
        ),
    ];
    for (number, (text, change, field)) in cases.into_iter().enumerate() {
        assert_eq!(proposal_refused(text, change), field, "case {number}");
    }
}

#[test]
fn the_byte_that_linux_takes_for_a_prefix_count() {
    let with_gid =
        |gid| move |proposal: &mut Proposal| proposal.smcd.as_mut().unwrap().gid = IsmGid(gid);
    assert_eq!(proposal_refused(P4, with_gid(9)), "native ISM GID");
    let mut proposal = Proposal::parse(&hex(P4)).unwrap();
    with_gid(0x0908)(&mut proposal);
    assert!(proposal.emit(&mut [0; 700]).is_ok());
}

#[test]
fn extended_gids_are_for_emulated_devices() {
    let extended = Gid::new(1, 2);
    assert_eq!(
        accept_refused(A4, |accept| gid(accept, extended, Chid(0x07c2))),
        "extended GID"
    );
    assert_eq!(
        accept_refused(A2, |accept| gid(accept, extended, Chid::NONE)),
        "extended GID"
    );
    assert_eq!(
        accept_refused(A2, |accept| gid(accept, Gid::native(1), Chid(0x07c2))),
        "CHID"
    );
}

#[test]
fn release_0_has_no_fields_of_release_1() {
    let to_release_0 = |message: &mut AcceptConfirm| {
        parts(message, |parts| parts.release = Release::V2_0);
    };
    assert_eq!(accept_refused(A3, to_release_0), "first-contact parts");
    assert_eq!(
        accept_refused(CAPTURED_ACCEPT, to_release_0),
        "first-contact parts"
    );
    let with_features = |message: &mut AcceptConfirm| {
        parts(message, |parts| parts.features = FeatureMask::EMULATED_ISM);
    };
    assert_eq!(accept_refused(A4, with_features), "first-contact parts");
}

#[test]
fn gid_lists_are_for_smc_r_confirm() {
    let with_list = |message: &mut AcceptConfirm| {
        parts(message, |parts| parts.gids = Some(GidList::new()));
    };
    assert_eq!(accept_refused(CAPTURED_ACCEPT, with_list), "GID list");
    assert_eq!(accept_refused(A3, with_list), "GID list");
    let as_confirm = |message: &mut AcceptConfirm| {
        message.kind = AcceptKind::Confirm;
        with_list(message);
    };
    assert_eq!(accept_refused(A3, as_confirm), "GID list");
}

#[test]
fn buffers_have_to_be_long_enough() {
    let decline = Decline::parse(&hex(D2)).unwrap();
    let message = MessageKind::Decline;
    let error = EmitError::BufferTooSmall {
        message,
        needed: 44,
        got: 43,
    };
    assert_eq!(decline.emit(&mut [0; 43]), Err(error));
    assert_eq!(error.to_string(), "DECLINE: needs 44 bytes, buffer has 43");
    // Nothing is written behind the message.
    let mut buffer = [0xee; 45];
    assert_eq!(decline.emit(&mut buffer), Ok(44));
    assert_eq!(buffer[44], 0xee);
}
