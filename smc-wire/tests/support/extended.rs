//! CLC messages with extensions.

use smc_wire::clc::{AcceptConfirm, Body, EarlyRdmaEnd, Extensions, Proposal, Terms};
use smc_wire::types::{Features, LinkNumber, Nonce};

use super::{A3, CAPTURED_CONFIRM, hex};

/// PROPOSAL of [`P4`] with features and extensions: early CONFIRM for SMC-D, nonce, early data.
pub(crate) const X1: &str = "
e2d4c3d901012c26 0000000000000000 00000000000000000000000000000000 000000000000 0000
0000000000000000 0000 001c 52534d 5346000d00 0000000000000000000000 0006 00000000 00 8000
01020010 03 1b 0040 00000000000000000000000000000000 0000 0001 0000000000 00000000 01 8064
4558414d504c452d454944202020202020202020202020202020202020202020
0000000000000000000000000000000000000000000000000000000000000000 00000000000000000000000000000000
1111111111111111 ffff 2222222222222222 ffff
00000000 ff01 22 1111111111111111 00000000deadbeef 00 20 0000 00010000 ffff 2222222222222222
00000000 ff04 10 101112131415161718191a1b1c1d1e1f
00000000 ff03 05 474554202f
e2d4c3d9";

/// PROPOSAL of [`P3`] with features and extensions: early CONFIRM for SMC-R.
pub(crate) const X2: &str = "
e2d4c3d90101322f 12340200000000aa fe80000000000000020000fffe0000aa 0200000000aa 0028
0100000000000001 07c1 0024 52534d 5346000400 0000000000000000000000 0004 00000000 02 8008
c0000200 18 0000 00
01030011 03 1b 0040 00000000000000000000ffffc0000201 ff02 0001 0000000000 00000000 01 806e
4558414d504c452d454944202020202020202020202020202020202020202020
49424d2d5359535a2d49534d534549443030303030303030314132423339303600000000000000000000000000000000
0200000000000002 07c2 1111111111111111 ffff 2222222222222222 ffff
00000000 ff02 39 a507525400000002 00000000000000000000ffff0a090002 525400000002 000011 000003d5 01
00000001 23 00 ff4588c4c3870000 00 5cb51d 01
e2d4c3d9";

/// First-contact ACCEPT for SMC-D of [`A3`] with features, one of them in use.
pub(crate) const X3: &str = "
e2d4c3c402008d29 1111111111111111 00000000deadbeef 00 20 0002 00010000 ffff
4558414d504c452d454944202020202020202020202020202020202020202020 2222222222222222
0021 04 30 686f73742d612020202020202020202020202020202020202020202020202020
0000 0001 5346000d 0000000000000000
00000000 ff00 04 53460008
e2d4c3c4";

/// First-contact CONFIRM of the capture with features, one of them in use.
pub(crate) const X4: &str = "
e2d4c3d90300bf28 a507525400000002 00000000000000000000ffff0a090002 525400000002 000011 000003d5 01
00000001 23 00 ff4588c4c3870000 00 5cb51d
534d4356322d544553542d454944202020202020202020202020202020202020 00000000 0003 0000
8021 04 29 286e6f6e65292020202020202020202020202020202020202020202020202020
ff02 0001 5346000d 00 00000000 05 8014 01000000 00000000000000000000ffff0a090002
00000000 ff00 04 53460008
e2d4c3d9";

/// ACCEPT of the capture for a reused link group, with a feature in use.
pub(crate) const X5: &str = "
e2d4c3d902007720 9b5a525400000001 00000000000000000000ffff0a090001 525400000001 000011 000003bb 01
00000002 23 00 ff459d1383810000 00 3d41e7
534d4356322d544553542d454944202020202020202020202020202020202020 00000000 0001 0000
00000000 ff00 04 53460008
e2d4c3d9";

/// Every CLC message with extensions above.
pub(crate) const ALL_EXTENDED: [(&str, &str); 5] =
    [("X1", X1), ("X2", X2), ("X3", X3), ("X4", X4), ("X5", X5)];

/// Features that two peers have agreed on.
pub(crate) const AGREED: Features = Features::SINGLE_LINK
    .union(Features::EARLY_CONFIRM)
    .union(Features::EARLY_DATA);

/// A feature in use on the connection.
pub(crate) fn in_use() -> Extensions<'static> {
    Extensions {
        features: Some(Features::EARLY_DATA),
        ..Extensions::default()
    }
}

/// The PROPOSAL with features.
pub(crate) fn proposal_with(text: &str, features: Features) -> Proposal {
    let mut proposal = Proposal::parse(&hex(text)).unwrap();
    proposal.smcd = proposal
        .smcd
        .map(|area| area.with_vendor_features(features));
    proposal
}

/// The message with features in its first-contact parts, if it has any.
pub(crate) fn accept_with(text: &str, features: Features) -> AcceptConfirm {
    let mut message = AcceptConfirm::parse(&hex(text)).unwrap();
    if let Terms::V2 {
        first_contact: Some(parts),
        ..
    } = &mut message.terms
    {
        *parts = parts.with_vendor_features(features);
    }
    message
}

fn body(text: &str) -> Body {
    AcceptConfirm::parse(&hex(text)).unwrap().body
}

/// `X1`: what a client sends that connects once more over the loopback device.
pub(crate) fn early_direct(data: &[u8]) -> Extensions<'_> {
    let Body::D(end) = body(A3) else {
        panic!("SMC-D")
    };
    Extensions {
        direct: Some(end),
        nonce: Some(Nonce::from_bytes(std::array::from_fn(|at| {
            0x10 + u8::try_from(at).unwrap()
        }))),
        early_data: Some(data.into()),
        ..Extensions::default()
    }
}

/// `X2`: what a client sends that connects once more over the first link.
pub(crate) fn early_rdma() -> Extensions<'static> {
    let Body::R(end) = body(CAPTURED_CONFIRM) else {
        panic!("SMC-R")
    };
    let link = LinkNumber(1);
    Extensions {
        rdma: Some(EarlyRdmaEnd { end, link }),
        ..Extensions::default()
    }
}
