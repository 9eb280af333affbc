//! A CONFIRM before the ACCEPT.
//!
//! The handshakes of one client with one listener have the same result, apart from the buffers. A
//! client caches the messages of its last handshake and sends an early CONFIRM with its next offer
//! (as 0-RTT data of TLS). The CONFIRM applies if the listener sends the same ACCEPT as before. The
//! handshake is then complete at the listener without a wake-up for the CONFIRM, and the client
//! does not send the CONFIRM again. Otherwise the listener waits for a CONFIRM as usual. Both sides
//! compare the same two messages, so they agree whether the early CONFIRM applies.
//!
//! A client that cannot do what it has confirmed has to end the connection. It then connects again
//! without an early CONFIRM, and may fall back to TCP.

use smc_core::negotiate::{Credentials, ExpectedHandshake};
use smc_wire::clc::{AcceptConfirm, AcceptKind, Body, DirectEnd, Terms};
use smc_wire::types::DmbToken;

/// The messages of the last SMC-D handshake in an existing link group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CachedHandshake {
    accept: Direct,
    confirm: Direct,
    process: Credentials,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Direct {
    terms: Terms,
    end: DirectEnd,
}

impl CachedHandshake {
    /// From the two messages, with this process at the listener's end. `None` if the next handshake
    /// is not going to be like that, or not over SMC-D.
    pub(super) fn new(accept: &[u8], confirm: &[u8], process: Credentials) -> Option<Self> {
        Some(Self {
            accept: Direct::read(accept, AcceptKind::Accept)?,
            confirm: Direct::read(confirm, AcceptKind::Confirm)?,
            process,
        })
    }

    /// What it takes on the client's side.
    pub(super) fn expected(&self) -> ExpectedHandshake {
        ExpectedHandshake {
            client: self.confirm.end.gid,
            server: self.accept.end.gid,
            process: Some(self.process),
            size: self.confirm.end.size,
            server_size: self.accept.end.size,
        }
    }

    /// The early CONFIRM for a connection with this receive buffer.
    pub(super) fn confirm(mut self, buffer: DmbToken) -> Option<EarlyConfirm> {
        self.confirm.end.dmb = buffer;
        Some(EarlyConfirm {
            accept: self.accept.emit(AcceptKind::Accept)?,
            confirm: self.confirm.emit(AcceptKind::Confirm)?,
        })
    }
}

/// A CONFIRM, and the ACCEPT that it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EarlyConfirm {
    /// The ACCEPT that is expected; of its buffer only the size.
    pub(super) accept: Vec<u8>,
    pub(super) confirm: Vec<u8>,
}

impl EarlyConfirm {
    /// Whether this ACCEPT is the one that was expected, so that the CONFIRM holds.
    pub(super) fn expects(&self, accept: &[u8]) -> bool {
        if self.accept.len() != accept.len() {
            return false;
        }
        let read = |bytes| Direct::read(bytes, AcceptKind::Accept).map(Direct::without_buffer);
        let expected = read(&self.accept);
        expected.is_some() && expected == read(accept)
    }

    /// Whether this message is the same as the early CONFIRM.
    pub(super) fn is_same_confirm(&self, message: &[u8]) -> bool {
        let read = |bytes| Direct::read(bytes, AcceptKind::Confirm).map(|it| it.end);
        // The number of the link group is for display.
        self.confirm == message
            || read(&self.confirm).is_some_and(|early| {
                let now = read(message);
                now.is_some_and(|now| {
                    DirectEnd {
                        group: early.group,
                        ..now
                    } == early
                })
            })
    }
}

impl Direct {
    /// From a message of this kind, that makes no link group.
    fn read(bytes: &[u8], kind: AcceptKind) -> Option<Self> {
        let message = AcceptConfirm::parse(bytes).ok()?;
        match message.body {
            Body::D(end) if message.kind == kind && !message.is_first_contact() => Some(Self {
                terms: message.terms,
                end,
            }),
            _ => None,
        }
    }

    /// What does not change from one handshake to the next. The size of the listener's buffer may,
    /// and limits that of the client's.
    fn without_buffer(mut self) -> Self {
        (self.end.dmb, self.end.dmbe_index) = (DmbToken(0), 0);
        self
    }

    fn emit(self, kind: AcceptKind) -> Option<Vec<u8>> {
        emit(&AcceptConfirm {
            kind,
            terms: self.terms,
            body: Body::D(self.end),
        })
    }
}

fn emit(message: &AcceptConfirm) -> Option<Vec<u8>> {
    let mut bytes = vec![0; message.encoded_len()];
    message.emit(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use smc_wire::size::SizeCode;
    use smc_wire::types::{Chid, Eid, Gid, GroupId, IsmGid};

    use super::*;

    fn message(kind: AcceptKind, gid: u64, dmb: u64) -> AcceptConfirm {
        AcceptConfirm {
            kind,
            terms: Terms::V2 {
                eid: Eid::ueid("SMC-TEST").unwrap(),
                first_contact: None,
            },
            body: Body::D(DirectEnd {
                gid: Gid::from(IsmGid(gid)),
                chid: Chid(0xffff),
                dmb: DmbToken(dmb),
                dmbe_index: 0,
                size: SizeCode::MAX,
                group: GroupId([7; 4]),
            }),
        }
    }

    fn bytes(kind: AcceptKind, gid: u64, dmb: u64) -> Vec<u8> {
        emit(&message(kind, gid, dmb)).unwrap()
    }

    fn cached(accept: &[u8], confirm: &[u8]) -> Option<CachedHandshake> {
        CachedHandshake::new(accept, confirm, Credentials::own())
    }

    fn cached_handshake() -> CachedHandshake {
        cached(
            &bytes(AcceptKind::Accept, 1, 10),
            &bytes(AcceptKind::Confirm, 2, 20),
        )
        .unwrap()
    }

    #[test]
    fn the_same_answer_with_another_buffer_is_expected() {
        let early = cached_handshake().confirm(DmbToken(21)).unwrap();
        assert_eq!(early.confirm, bytes(AcceptKind::Confirm, 2, 21));
        assert!(early.expects(&bytes(AcceptKind::Accept, 1, 11)));
        assert!(
            !early.expects(&bytes(AcceptKind::Accept, 3, 10)),
            "another device"
        );
        assert!(!early.expects(&bytes(AcceptKind::Confirm, 1, 10)));
        assert!(!early.expects(b"rubbish") && !early.expects(b""));
    }

    #[test]
    fn a_repeated_confirm_is_recognised_but_for_the_number_of_the_group() {
        let early = cached_handshake().confirm(DmbToken(21)).unwrap();
        assert!(early.is_same_confirm(&bytes(AcceptKind::Confirm, 2, 21)));
        let mut other = message(AcceptKind::Confirm, 2, 21);
        let Body::D(end) = &mut other.body else {
            panic!("SMC-D here")
        };
        end.group = GroupId([8; 4]);
        assert!(early.is_same_confirm(&emit(&other).unwrap()));
        assert!(
            !early.is_same_confirm(&bytes(AcceptKind::Confirm, 2, 22)),
            "another buffer"
        );
        assert!(!early.is_same_confirm(&bytes(AcceptKind::Accept, 2, 21)));
    }

    #[test]
    fn first_contact_and_declining_are_not_cached() {
        let (accept, confirm) = (
            bytes(AcceptKind::Accept, 1, 10),
            bytes(AcceptKind::Confirm, 2, 20),
        );
        let first = AcceptConfirm {
            terms: Terms::V1 {
                first_contact: true,
            },
            ..message(AcceptKind::Accept, 1, 10)
        };
        let Body::D(end) = first.body else {
            panic!("SMC-D here")
        };
        let first = AcceptConfirm {
            body: Body::D(DirectEnd {
                chid: Chid::NONE,
                ..end
            }),
            ..first
        };
        assert_eq!(cached(&emit(&first).unwrap(), &confirm), None);
        assert_eq!(cached(&accept, b"DECLINE"), None);
        assert_eq!(cached(&confirm, &accept), None);
    }
}
