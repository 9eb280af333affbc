//! A listener that has accepted a PROPOSAL, against a client that does as it likes instead of its
//! CONFIRM.

use smc_core::wire::clc::{Body, ClcType, RdmaEnd, Terms};
use smc_core::wire::size::SizeCode;
use smc_core::wire::types::{
    AlertToken, Chid, DeclineCode, Gid, Mac, MtuCode, PeerId, Psn, Qpn, Release, Rkey, RmbAddr,
    RoceGid,
};

use crate::fallback_table::{MESSAGE, Outcome, peer};
use crate::messages::*;
use crate::peer::Step;
use crate::server::{NODEV, UNSEEN, row, run};
use crate::world::Forger;

/// The client gets as far as reading ACCEPT.
fn proposes(forger: &Forger) -> Vec<Step> {
    vec![
        Step::Sends(proposal(&forger.proposal())),
        Step::Takes(ClcType::Accept),
    ]
}

fn proposes_and(forger: &Forger, step: Step) -> Vec<Step> {
    [proposes(forger), vec![step]].concat()
}
#[test]
fn a_client_declines_what_was_accepted() {
    run(&[
        row(
            "version 1",
            |forger| proposes_and(forger, Step::Sends(decline_v1(DeclineCode::MEM))),
            peer(DeclineCode::MEM),
        ),
        row(
            "version 2",
            |forger| proposes_and(forger, Step::Sends(decline_v2(DeclineCode::MAX_DMB))),
            peer(DeclineCode::MAX_DMB),
        ),
        row(
            "out of sync",
            |forger| proposes_and(forger, Step::Sends(out_of_sync())),
            peer(DeclineCode::SYNCERR),
        ),
        row(
            "in pieces",
            |forger| proposes_and(forger, Step::SendsSlowly(decline_v1(NODEV))),
            peer(NODEV),
        ),
        row(
            "with data behind it, version 1",
            |forger| proposes_and(forger, Step::SendsWith(decline_v1(NODEV), b"GET /")),
            peer(NODEV),
        ),
        row(
            "with data behind it, version 2",
            |forger| proposes_and(forger, Step::SendsWith(decline_v2(NODEV), b"GET /")),
            peer(NODEV),
        ),
        row(
            "and closes",
            |forger| {
                let last = vec![Step::SendsWith(decline_v2(NODEV), b"bye"), Step::HangsUp];
                [proposes(forger), last].concat()
            },
            peer(NODEV),
        ),
    ]);
}

#[test]
fn a_client_sends_rubbish_instead_of_confirm() {
    run(&[
        row(
            "application data",
            |forger| proposes_and(forger, Step::Sends(b"GET / HTTP/1.1\r\n\r\n".to_vec())),
            UNSEEN,
        ),
        row(
            "PROPOSAL again",
            |forger| proposes_and(forger, Step::Sends(proposal(&forger.proposal()))),
            UNSEEN,
        ),
        row(
            "ACCEPT",
            |forger| proposes_and(forger, Step::Sends(bytes(&forger.accept()))),
            UNSEEN,
        ),
        row(
            "CONFIRM with a damaged trailer",
            |forger| {
                let confirm = without_trailer(bytes(&forger.confirm()));
                proposes_and(forger, Step::Sends(confirm))
            },
            UNSEEN,
        ),
        row(
            "CONFIRM of version 1",
            |forger| {
                let mut confirm = forger.confirm();
                confirm.terms = Terms::V1 {
                    first_contact: true,
                };
                let end = direct(&mut confirm);
                end.gid = Gid::native(1);
                end.chid = Chid::NONE;
                proposes_and(forger, Step::Sends(bytes(&confirm)))
            },
            UNSEEN,
        ),
        row(
            "CONFIRM for SMC-R",
            |forger| {
                let mut confirm = forger.confirm();
                confirm.body = Body::R(rdma_end());
                proposes_and(forger, Step::Sends(bytes(&confirm)))
            },
            UNSEEN,
        ),
    ]);
}

#[test]
fn a_client_confirms_with_a_buffer_that_cannot_be_used() {
    run(&[
        row(
            "CONFIRM with an unregistered buffer",
            |forger| {
                let mut confirm = forger.confirm();
                direct(&mut confirm).dmb.0 ^= 1;
                proposes_and(forger, Step::Sends(bytes(&confirm)))
            },
            Outcome::Lost,
        ),
        row(
            "CONFIRM with an element behind the end of the buffer",
            |forger| {
                let mut confirm = forger.confirm();
                direct(&mut confirm).dmbe_index = 1;
                proposes_and(forger, Step::Sends(bytes(&confirm)))
            },
            Outcome::FailsInGroup,
        ),
    ]);
}

#[test]
fn a_client_confirms_another_release() {
    run(&[row(
        "release 2",
        |forger| {
            let mut confirm = forger.confirm();
            let Terms::V2 { first_contact, .. } = &mut confirm.terms else {
                unreachable!()
            };
            first_contact.as_mut().unwrap().release = Release::new(2).unwrap();
            proposes_and(forger, Step::Sends(bytes(&confirm)))
        },
        Outcome::Declined(DeclineCode::RELEASEERR),
    )]);
}

#[test]
fn a_client_stalls_before_its_confirm_is_complete() {
    let late = Outcome::TimesOut(MESSAGE);
    run(&[
        row("at once", proposes, late),
        row(
            "in DECLINE",
            |forger| proposes_and(forger, Step::Sends(decline_v2(NODEV)[..43].to_vec())),
            late,
        ),
        row(
            "in CONFIRM",
            |forger| {
                let confirm = bytes(&forger.confirm());
                proposes_and(forger, Step::Sends(confirm[..confirm.len() - 1].to_vec()))
            },
            late,
        ),
    ]);
}

#[test]
fn a_client_hangs_up_before_its_confirm_is_complete() {
    run(&[
        row(
            "at once",
            |forger| proposes_and(forger, Step::HangsUp),
            UNSEEN,
        ),
        row(
            "with a reset",
            |forger| proposes_and(forger, Step::Resets),
            UNSEEN,
        ),
        row(
            "in CONFIRM",
            |forger| {
                let confirm = bytes(&forger.confirm());
                let last = vec![Step::Sends(confirm[..50].to_vec()), Step::HangsUp];
                [proposes(forger), last].concat()
            },
            UNSEEN,
        ),
        row(
            "in CONFIRM with a reset",
            |forger| {
                let confirm = bytes(&forger.confirm());
                let last = vec![Step::Sends(confirm[..50].to_vec()), Step::Resets];
                [proposes(forger), last].concat()
            },
            UNSEEN,
        ),
    ]);
}

#[test]
fn a_client_confirms() {
    run(&[
        row(
            "at first contact",
            |forger| proposes_and(forger, Step::Sends(bytes(&forger.confirm()))),
            Outcome::Smc,
        ),
        row(
            "everything in pieces",
            |forger| {
                vec![
                    Step::SendsSlowly(proposal(&forger.proposal())),
                    Step::Takes(ClcType::Accept),
                    Step::SendsSlowly(bytes(&forger.confirm())),
                ]
            },
            Outcome::Smc,
        ),
        row(
            "and writes on TCP what does not belong there",
            |forger| proposes_and(forger, Step::SendsWith(bytes(&forger.confirm()), b"GET /")),
            Outcome::Smc,
        ),
    ]);
}

fn rdma_end() -> RdmaEnd {
    RdmaEnd {
        peer_id: PeerId::ZERO,
        gid: RoceGid::ZERO,
        mac: Mac::ZERO,
        qpn: Qpn::new(7).unwrap(),
        rkey: Rkey(1),
        rmbe_index: 1,
        token: AlertToken::new(1).unwrap(),
        size: SizeCode::MIN,
        mtu: MtuCode::default(),
        rmb_addr: RmbAddr(0),
        psn: Psn::new(0).unwrap(),
    }
}
