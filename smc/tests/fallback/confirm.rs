//! A listener that has accepted a PROPOSAL, against a client that does as it likes instead of its
//! CONFIRM.

use smc_core::wire::clc::{Body, ClcType, RdmaEnd, Terms};
use smc_core::wire::size::SizeCode;
use smc_core::wire::types::{
    AlertToken, Chid, DeclineCode, Gid, Mac, MtuCode, PeerId, Psn, Qpn, Release, Rkey, RmbAddr,
    RoceGid,
};

use smc_testkit::world::Step::*;
use smc_testkit::world::messages::*;
use smc_testkit::world::{ForgedPeer, Step};

use crate::fallback_table::{MESSAGE, NODEV, Outcome, peer, rows};
use crate::server::{UNSEEN, run};

/// The client gets as far as reading ACCEPT.
fn proposes(forged: &ForgedPeer) -> Vec<Step> {
    vec![Sends(forged.propose()), Takes(ClcType::Accept)]
}

fn proposes_and(forged: &ForgedPeer, step: Step) -> Vec<Step> {
    [proposes(forged), vec![step]].concat()
}

#[test]
fn a_client_declines_what_was_accepted() {
    run(rows! {
        "version 1", |forged|
            proposes_and(forged, Sends(decline_v1(DeclineCode::MEM))) => peer(DeclineCode::MEM);
        "version 2", |forged|
            proposes_and(forged, Sends(decline_v2(DeclineCode::MAX_DMB)))
            => peer(DeclineCode::MAX_DMB);
        "out of sync", |forged|
            proposes_and(forged, Sends(out_of_sync())) => peer(DeclineCode::SYNCERR);
        "in pieces", |forged| proposes_and(forged, SendsSlowly(decline_v1(NODEV))) => peer(NODEV);
        "with data behind it, version 1", |forged|
            proposes_and(forged, SendsWith(decline_v1(NODEV), b"GET /")) => peer(NODEV);
        "with data behind it, version 2", |forged|
            proposes_and(forged, SendsWith(decline_v2(NODEV), b"GET /")) => peer(NODEV);
        "and closes", |forged| {
            let last = vec![SendsWith(decline_v2(NODEV), b"bye"), HangsUp];
            [proposes(forged), last].concat()
        } => peer(NODEV);
    });
}

#[test]
fn a_client_sends_rubbish_instead_of_confirm() {
    run(rows! {
        "application data", |forged|
            proposes_and(forged, Sends(b"GET / HTTP/1.1\r\n\r\n".to_vec())) => UNSEEN;
        "PROPOSAL again", |forged| proposes_and(forged, Sends(forged.propose())) => UNSEEN;
        "ACCEPT", |forged| proposes_and(forged, Sends(bytes(&forged.accept()))) => UNSEEN;
        "CONFIRM with a damaged trailer", |forged| {
            let confirm = without_trailer(bytes(&forged.confirm()));
            proposes_and(forged, Sends(confirm))
        } => UNSEEN;
        "CONFIRM of version 1", |forged| {
            let mut confirm = forged.confirm();
            confirm.terms = Terms::V1 {
                first_contact: true,
            };
            let end = direct(&mut confirm);
            end.gid = Gid::native(1);
            end.chid = Chid::NONE;
            proposes_and(forged, Sends(bytes(&confirm)))
        } => UNSEEN;
        "CONFIRM for SMC-R", |forged| {
            let mut confirm = forged.confirm();
            confirm.body = Body::R(rdma_end());
            proposes_and(forged, Sends(bytes(&confirm)))
        } => UNSEEN;
    });
}

#[test]
fn a_client_confirms_with_a_buffer_that_cannot_be_used() {
    run(rows! {
        "CONFIRM with an unregistered buffer", |forged| {
            let mut confirm = forged.confirm();
            direct(&mut confirm).dmb.0 ^= 1;
            proposes_and(forged, Sends(bytes(&confirm)))
        } => Outcome::Lost;
        "CONFIRM with an element behind the end of the buffer", |forged| {
            let mut confirm = forged.confirm();
            direct(&mut confirm).dmbe_index = 1;
            proposes_and(forged, Sends(bytes(&confirm)))
        } => Outcome::FailsInGroup;
    });
}

#[test]
fn a_client_confirms_another_release() {
    run(rows! {
        "release 2", |forged| {
            let mut confirm = forged.confirm();
            let Terms::V2 { first_contact, .. } = &mut confirm.terms else {
                unreachable!()
            };
            first_contact.as_mut().unwrap().release = Release::new(2).unwrap();
            proposes_and(forged, Sends(bytes(&confirm)))
        } => Outcome::Declined(DeclineCode::RELEASEERR);
    });
}

#[test]
fn a_client_stalls_before_its_confirm_is_complete() {
    let late = Outcome::TimesOut(MESSAGE);
    run(rows! {
        "at once", |forged| proposes(forged) => late;
        "in DECLINE", |forged|
            proposes_and(forged, Sends(decline_v2(NODEV)[..43].to_vec())) => late;
        "in CONFIRM", |forged| {
            let confirm = bytes(&forged.confirm());
            proposes_and(forged, Sends(confirm[..confirm.len() - 1].to_vec()))
        } => late;
    });
}

#[test]
fn a_client_hangs_up_before_its_confirm_is_complete() {
    run(rows! {
        "at once", |forged| proposes_and(forged, HangsUp) => UNSEEN;
        "with a reset", |forged| proposes_and(forged, Resets) => UNSEEN;
        "in CONFIRM", |forged| {
            let confirm = bytes(&forged.confirm());
            let last = vec![Sends(confirm[..50].to_vec()), HangsUp];
            [proposes(forged), last].concat()
        } => UNSEEN;
        "in CONFIRM with a reset", |forged| {
            let confirm = bytes(&forged.confirm());
            let last = vec![Sends(confirm[..50].to_vec()), Resets];
            [proposes(forged), last].concat()
        } => UNSEEN;
    });
}

#[test]
fn a_client_confirms() {
    run(rows! {
        "at first contact", |forged|
            proposes_and(forged, Sends(bytes(&forged.confirm()))) => Outcome::Smc;
        "everything in pieces", |forged|
            [SendsSlowly(forged.propose()), Takes(ClcType::Accept), SendsSlowly(bytes(&forged.confirm()))]
            => Outcome::Smc;
        "and writes on TCP what does not belong there", |forged|
            proposes_and(forged, SendsWith(bytes(&forged.confirm()), b"GET /")) => Outcome::Smc;
    });
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
