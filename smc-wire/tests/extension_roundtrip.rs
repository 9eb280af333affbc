//! Properties of extensions: what is written reads back, and no bytes make a parser panic.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod strategies;
mod support;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use smc_wire::clc::{
    AcceptConfirm, AcceptKind, Authentication, Body, DirectEnd, EarlyRdmaEnd, Extensions, Frame,
    Message, Proposal, RdmaEnd, Terms,
};
use smc_wire::types::{AuthenticationCode, Features, LinkNumber, Nonce, Release, Version};
use strategies::{accept_confirm, direct_end, mutated, proposal, rdma_end};
use support::{ALL_EXTENDED, hex, with_true_length};

/// Extensions that own their data.
#[derive(Debug, Clone)]
struct Owned {
    features: Option<u16>,
    direct: Option<DirectEnd>,
    rdma: Option<(RdmaEnd, u8)>,
    data: Option<Vec<u8>>,
    nonce: Option<[u8; 16]>,
    authentication: Option<(u64, [u8; 16])>,
}

impl Owned {
    fn extensions(&self) -> Extensions<'_> {
        Extensions {
            features: self.features.map(Features::from_bits_retain),
            direct: self.direct,
            rdma: self.rdma.map(|(end, link)| EarlyRdmaEnd {
                end,
                link: LinkNumber(link),
            }),
            early_data: self.data.as_deref().map(Into::into),
            nonce: self.nonce.map(Nonce::from_bytes),
            authentication: self.authentication.map(|(number, code)| Authentication {
                number,
                code: AuthenticationCode::from_bytes(code),
            }),
        }
    }
}

prop_compose! {
    fn extensions(max_data: usize)(
        features: Option<u16>,
        direct in option::of(direct_end(true)),
        rdma in option::of((rdma_end(), any::<u8>())),
        data in option::of(vec(any::<u8>(), 0..max_data)),
        nonce: Option<[u8; 16]>,
        authentication: Option<(u64, [u8; 16])>,
    ) -> Owned {
        Owned { features, direct, rdma, data, nonce, authentication }
    }
}

fn features() -> impl Strategy<Value = Features> {
    (1..=u16::MAX).prop_map(Features::from_bits_retain)
}

/// The message in a form that has a place for extensions.
fn with_place(mut message: AcceptConfirm, features: Features) -> AcceptConfirm {
    let is_rdma_confirm = message.kind == AcceptKind::Confirm && matches!(message.body, Body::R(_));
    if let Terms::V2 {
        first_contact: Some(parts),
        ..
    } = &mut message.terms
    {
        parts.release = parts.release.max(Release::V2_1);
        *parts = parts.with_vendor_features(features);
        parts.gids = is_rdma_confirm.then(|| parts.gids.unwrap_or_default());
    }
    message
}

/// What can be read can be written, if it is what a sender may write, and reads back.
fn parse_extended(bytes: &[u8]) {
    let _ = Frame::peek_extended(bytes);
    let Ok((message, extensions)) = Message::parse_extended(bytes) else {
        return;
    };
    let mut out = vec![0; Proposal::MAX_EXTENDED_LEN + 1024];
    let written = match &message {
        Message::Proposal(m) => m.emit_extended(&extensions, &mut out),
        Message::Accept(m) | Message::Confirm(m) => m.emit_extended(&extensions, &mut out),
        Message::Decline(m) => m.emit(&mut out),
    };
    if let Ok(len) = written {
        let again = Message::parse_extended(&out[..len]);
        assert_eq!(again, Ok((message, extensions)));
    }
}

proptest! {
    #[test]
    fn proposals_with_extensions_read_back(
        message in proposal(),
        features in features(),
        owned in extensions(600),
    ) {
        let mut message = message;
        prop_assume!(message.version.is_v2());
        message.smcd = message.smcd.map(|area| area.with_vendor_features(features));
        let extensions = owned.extensions();
        let mut out = [0; 2048];
        let len = message.emit_extended(&extensions, &mut out).unwrap();
        prop_assert_eq!(len, message.extended_len(&extensions));
        prop_assert!(len <= Proposal::MAX_EXTENDED_LEN);
        prop_assert!(message.emit_extended(&extensions, &mut out[..len - 1]).is_err());
        // Receivers without extensions take the message only if it has none.
        prop_assert_eq!(Message::parse(&out[..len]).is_ok(), extensions.is_empty());
        let received = Message::parse_extended(&out[..len]);
        prop_assert_eq!(received, Ok((Message::Proposal(message), extensions)));
    }

    #[test]
    fn accepts_and_confirms_with_extensions_read_back(
        message in accept_confirm(),
        features in features(),
        owned in extensions(20),
    ) {
        prop_assume!(message.version() >= Version::V2);
        let message = with_place(message, features);
        let mut extensions = owned.extensions();
        extensions.features = Some(features);
        let mut out = [0; 1024];
        let len = message.emit_extended(&extensions, &mut out).unwrap();
        prop_assert_eq!(len, message.extended_len(&extensions));
        prop_assert_eq!(AcceptConfirm::parse(&out[..len]), Ok(message.clone()));
        let (received, with) = Message::parse_extended(&out[..len]).unwrap();
        let (Message::Accept(received) | Message::Confirm(received)) = received else {
            panic!("another message")
        };
        prop_assert_eq!((received, with), (message, extensions));
    }

    #[test]
    fn any_extensions_are_survived(
        count: u16,
        tail in vec(any::<u8>(), 0..300),
        base in 0..ALL_EXTENDED.len(),
    ) {
        let (_, text) = ALL_EXTENDED[base];
        let mut bytes = hex(text);
        let (count_at, start) = match base {
            0 => (71, 220),
            1 => (71, 238),
            2 => (26, 126),
            3 => (100, 176),
            _ => (100, 115),
        };
        let end = bytes.len() - 4;
        bytes.splice(start..end, tail);
        bytes[count_at..][..2].copy_from_slice(&(count % 16).to_be_bytes());
        parse_extended(&with_true_length(bytes));
    }

    #[test]
    fn mutated_messages_are_survived(bytes in mutated(&ALL_EXTENDED)) {
        parse_extended(&bytes);
        let _ = Message::parse(&bytes);
    }
}
