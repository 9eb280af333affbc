//! Extensions that are refused, by receivers and by senders.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod support;

use smc_wire::clc::{AcceptConfirm, Extensions, Message, Terms};
use smc_wire::types::{Chid, Features, Gid, Release, Version};
use smc_wire::{DecodeErrorKind as Kind, EmitError, MessageKind};
use support::*;

mod rejection {
    use super::*;

    #[track_caller]
    fn rejected(bytes: &[u8], field: &str, offset: usize, kind: Kind) {
        let error = Message::parse_extended(bytes).unwrap_err();
        assert_eq!((error.field, error.offset), (field, offset));
        assert_eq!(error.kind, kind);
    }

    fn value(expected: &'static str, got: u64) -> Kind {
        Kind::Value { expected, got }
    }

    #[test]
    fn headers_that_disagree_with_their_regions() {
        for (text, at, expected) in [
            (X1, 77, "padding"),
            (X2, 77, "IP area"),
            (X2, 92, "v2 extension"),
            (X2, 125, "continuation"),
            (X3, 76, "first contact"),
            (X4, 106, "first contact"),
            (X4, 153, "GID list"),
        ] {
            let bytes = with(&hex(text), at, 9);
            rejected(&bytes, "extension type", at, value(expected, 9));
        }
        for (text, at, changed_at, byte, expected, got) in [
            (X2, 78, 79, 9, 8, 9),
            (X2, 93, 93, 28, 27, 28),
            (X2, 126, 127, 0x6d, 110, 109),
            (X3, 77, 77, 32, 48, 32),
            (X4, 107, 107, 48, 41, 48),
            (X4, 154, 155, 4, 20, 4),
        ] {
            let bytes = with(&hex(text), changed_at, byte);
            let kind = Kind::Length { expected, got };
            rejected(&bytes, "extension length", at, kind);
        }
        // Without its offset there is no SMC-D v2 extension.
        let bytes = with(&hex(X1), 87, 0);
        let (expected, got) = (32, 100);
        let kind = Kind::Length { expected, got };
        rejected(&bytes, "extension length", 118, kind);
        // The form is fixed by the space that there is.
        let bytes = with(&hex(X2), 78, 0x08);
        rejected(&bytes, "extension length", 78, value("two bytes", 8));
        let bytes = with(&hex(X4), 107, 0x80);
        rejected(&bytes, "extension length", 107, value("one byte", 0x80));
    }

    #[test]
    fn a_number_that_disagrees_with_the_headers() {
        let bytes = with(&hex(X1), 72, 2);
        let kind = value("one for each header", 2);
        rejected(&bytes, "number of extensions", 71, kind);
        let bytes = with(&hex(X1), 72, 5);
        let (expected, got) = (288, 300);
        rejected(&bytes, "length", 5, Kind::Length { expected, got });
        let bytes = with(&hex(X1), 72, 7);
        let (end, limit) = (302, 296);
        let kind = Kind::OutOfBounds { end, limit };
        rejected(&bytes, "extension header", 296, kind);
    }

    #[test]
    fn payloads_that_are_not_those_of_their_type() {
        let length = |expected, got| Kind::Length { expected, got };
        // One byte less, which the padding behind it takes.
        for (text, at, len, field) in [
            (X1, 220, 34, "early CONFIRM, SMC-D"),
            (X1, 261, 16, "nonce"),
            (X2, 238, 57, "early CONFIRM, SMC-R"),
        ] {
            let mut bytes = hex(text);
            bytes[at + 6] -= 1;
            bytes.splice(at + 6 + len..at + 7 + len, [0, 0, 0, 0, 0, 0]);
            bytes[72] += 1;
            let bytes = with_true_length(bytes);
            rejected(&bytes, field, at, length(len, len - 1));
        }
    }

    #[test]
    fn early_data_that_is_too_long() {
        let mut bytes = hex(X1);
        let len = u16::try_from(Extensions::MAX_EARLY_DATA + 1).unwrap();
        let [high, low] = len.to_be_bytes();
        bytes.splice(290..296, [0x80 | high, low]);
        bytes.splice(292..292, std::iter::repeat_n(0x55, len.into()));
        let bytes = with_true_length(bytes);
        let (maximum, got) = (16352, 16353);
        rejected(
            &bytes,
            "early data",
            284,
            Kind::LengthAbove { maximum, got },
        );
    }

    #[test]
    fn a_type_that_occurs_twice() {
        let mut bytes = hex(X1);
        let again = bytes[284..296].to_vec();
        bytes.splice(296..296, again);
        bytes[72] = 7;
        let bytes = with_true_length(bytes);
        let kind = value("each type once", 0x7f03);
        rejected(&bytes, "extension type", 296, kind);
    }

    #[test]
    fn a_continuation_of_a_region() {
        // The regions have all of their continuations.
        let mut bytes = hex(X1);
        bytes.splice(220..220, [0, 0, 0, 0, 1, 0]);
        bytes[72] = 7;
        let bytes = with_true_length(bytes);
        let kind = value("what can be continued before it", 1);
        rejected(&bytes, "extension type", 220, kind);
    }

    #[test]
    fn an_accept_that_is_longer_than_what_is_kept() {
        let mut bytes = hex(X5);
        bytes.splice(115..115, std::iter::repeat_n(0, 600));
        let bytes = with_true_length(bytes);
        let (maximum, got) = (512, 719);
        for kept in [&bytes, &bytes[..AcceptConfirm::MAX_KEEP]] {
            rejected(kept, "length", 5, Kind::LengthAbove { maximum, got });
            assert!(Message::parse(kept).is_ok());
        }
    }
}

mod refusal {
    use super::*;

    #[track_caller]
    fn refused<T: std::fmt::Debug>(written: Result<T, EmitError>) -> &'static str {
        match written.unwrap_err() {
            EmitError::Invalid { field, .. } => field,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn messages_without_features_get_no_extensions() {
        let mut out = [0; 1024];
        let message = proposal_with(P4, Features::empty());
        let written = message.emit_extended(&early_direct(b""), &mut out);
        assert_eq!(refused(written), "extensions");
        for text in [A1, A2, A3, A4, CAPTURED_CONFIRM] {
            let message = accept_with(text, Features::empty());
            let written = message.emit_extended(&in_use(), &mut out);
            assert_eq!(refused(written), "extensions");
        }
        // Without first-contact parts the features have to be an extension.
        let message = accept_with(CAPTURED_ACCEPT_REUSE, Features::empty());
        let nothing = Extensions {
            features: Some(Features::empty()),
            ..Extensions::default()
        };
        for extensions in [nothing, early_direct(b"")] {
            let written = message.emit_extended(&extensions, &mut out);
            assert_eq!(refused(written), "features");
        }
    }

    #[test]
    fn forms_without_a_place_get_no_extensions() {
        let mut out = [0; 1024];
        let mut old = proposal_with(P5, AGREED);
        old.version = Version::V1;
        let written = old.emit_extended(&early_rdma(), &mut out);
        assert_eq!(refused(written), "extensions");
        // The header of the GID list ends the first-contact parts of a CONFIRM for SMC-R.
        let mut confirm = accept_with(CAPTURED_CONFIRM, AGREED);
        let Terms::V2 {
            first_contact: Some(parts),
            ..
        } = &mut confirm.terms
        else {
            panic!("first contact")
        };
        parts.gids = None;
        assert!(confirm.emit(&mut out).is_ok());
        let written = confirm.emit_extended(&in_use(), &mut out);
        assert_eq!(refused(written), "extensions");
        // Release 0 has no vendor options.
        let mut confirm = accept_with(A3, AGREED);
        if let Terms::V2 {
            first_contact: Some(parts),
            ..
        } = &mut confirm.terms
        {
            parts.release = Release::V2_0;
        }
        let written = confirm.emit_extended(&in_use(), &mut out);
        assert_eq!(refused(written), "first-contact parts");
    }

    #[test]
    fn extensions_that_no_peer_could_read() {
        let mut out = [0; 20_000];
        let message = proposal_with(P4, AGREED);
        let data = [0; Extensions::MAX_EARLY_DATA + 1];
        let written = message.emit_extended(&early_direct(&data), &mut out);
        assert_eq!(refused(written), "early data");
        let mut extensions = early_direct(b"");
        let end = extensions.direct.as_mut().unwrap();
        (end.gid, end.chid) = (Gid::new(1, 2), Chid(0x07c2));
        let written = message.emit_extended(&extensions, &mut out);
        assert_eq!(refused(written), "extended GID");
        // Receivers keep 512 bytes of an ACCEPT.
        let message = accept_with(CAPTURED_ACCEPT_REUSE, AGREED);
        let mut extensions = early_direct(&data[..321]);
        extensions.features = Some(AGREED);
        let written = message.emit_extended(&extensions, &mut out);
        assert_eq!(written, Ok(AcceptConfirm::MAX_KEEP));
        extensions.early_data = Some(data[..322].into());
        let written = message.emit_extended(&extensions, &mut out);
        assert_eq!(refused(written), "extensions");
    }

    #[test]
    fn short_buffers() {
        let message = proposal_with(P4, AGREED);
        let (needed, got) = (300, 299);
        let error = EmitError::BufferTooSmall {
            message: MessageKind::Proposal,
            needed,
            got,
        };
        let written = message.emit_extended(&early_direct(b"GET /"), &mut [0; 299]);
        assert_eq!(written, Err(error));
    }
}
