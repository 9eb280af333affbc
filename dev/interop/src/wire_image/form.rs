//! The forms of a message: as the codec emits it, and without what differs from run to run.

use anyhow::{Context as _, Result, ensure};
use smc_wire::Bounded;
use smc_wire::cdc::CdcR;
use smc_wire::clc::{self, AcceptConfirm, Body, Proposal, RdmaEnd, SmcdArea};
use smc_wire::llc::{self, ConfirmLink, ConfirmRkey, DeleteRkey, LinkRtoken, WireRkey, WireRtoken};
use smc_wire::types::{
    AlertToken, Features, LinkUid, Mac, PeerId, Psn, Qpn, Rkey, RmbAddr, RoceGid,
};

/// Two forms of a message that was read.
pub(super) struct Forms {
    /// As the codec emits it: reserved fields zero, and nothing behind the fields.
    pub(super) canonical: Vec<u8>,
    /// The same with zero for what differs from run to run, and for the features of a PROPOSAL.
    pub(super) normal: Vec<u8>,
}

pub(super) fn of_clc(message: &clc::Message) -> Result<Forms> {
    Ok(Forms {
        canonical: emit_clc(message)?,
        normal: emit_clc(&normal_clc(message))?,
    })
}

fn emit_clc(message: &clc::Message) -> Result<Vec<u8>> {
    let mut buffer = vec![0; Proposal::MAX_LEN];
    let len = match message {
        clc::Message::Proposal(message) => message.emit(&mut buffer),
        clc::Message::Accept(message) | clc::Message::Confirm(message) => message.emit(&mut buffer),
        clc::Message::Decline(message) => message.emit(&mut buffer),
    };
    buffer.truncate(len.context("emit")?);
    Ok(buffer)
}

fn normal_clc(message: &clc::Message) -> clc::Message {
    match message.clone() {
        clc::Message::Proposal(message) => clc::Message::Proposal(Proposal {
            peer_id: without_instance(message.peer_id),
            smcd: message.smcd.map(without_features),
            ..message
        }),
        clc::Message::Accept(message) => clc::Message::Accept(normal_end(message)),
        clc::Message::Confirm(message) => clc::Message::Confirm(normal_end(message)),
        decline @ clc::Message::Decline(_) => decline,
    }
}

fn normal_end(message: AcceptConfirm) -> AcceptConfirm {
    // A server may choose any link for a further connection.
    let is_first = message.is_first_contact();
    let body = match message.body {
        Body::R(end) => Body::R(RdmaEnd {
            gid: if is_first { end.gid } else { RoceGid::ZERO },
            mac: if is_first { end.mac } else { Mac::ZERO },
            peer_id: without_instance(end.peer_id),
            qpn: Qpn::default(),
            psn: Psn::default(),
            rkey: Rkey(0),
            rmb_addr: RmbAddr(0),
            token: AlertToken::from_wire(0),
            ..end
        }),
        direct @ Body::D(_) => direct,
    };
    AcceptConfirm { body, ..message }
}

/// Each start of the stack has another number.
fn without_instance(id: PeerId) -> PeerId {
    PeerId::new(0, id.mac())
}

fn without_features(area: SmcdArea) -> SmcdArea {
    area.with_vendor_features(Features::empty())
}

pub(super) fn of_llc(bytes: &[u8]) -> Result<Forms> {
    let message = llc::Message::parse(bytes)?;
    // Lists that are borrowed, as long as those of the message.
    let (rkeys, rtokens);
    let normal = match message {
        llc::Message::ConfirmLink(message) => llc::Message::ConfirmLink(ConfirmLink {
            qpn: Qpn::default(),
            user_id: LinkUid(0),
            ..message
        }),
        llc::Message::AddLink(mut message) => {
            message.qpn = Qpn::default();
            message.psn = Psn::default();
            if let Some(extension) = &mut message.extension {
                rtokens = vec![WireRtoken::default(); extension.rtokens.len()];
                extension.rtokens = &rtokens;
            }
            llc::Message::AddLink(message)
        }
        llc::Message::ConfirmRkey(message) => {
            let further = message.further.iter().map(|_| LinkRtoken::default());
            llc::Message::ConfirmRkey(ConfirmRkey {
                rkey: Rkey(0),
                address: RmbAddr(0),
                further: Bounded::from_iter_lossy(further),
                ..message
            })
        }
        llc::Message::DeleteRkey(message) => {
            rkeys = vec![WireRkey::default(); message.rkeys.len()];
            llc::Message::DeleteRkey(DeleteRkey {
                rkeys: &rkeys,
                ..message
            })
        }
        other => other,
    };
    Ok(Forms {
        canonical: emit_llc(&message)?,
        normal: emit_llc(&normal)?,
    })
}

fn emit_llc(message: &llc::Message<'_>) -> Result<Vec<u8>> {
    let mut buffer = vec![0; message.encoded_len()];
    let len = message.emit(&mut buffer).context("emit")?;
    buffer.truncate(len);
    Ok(buffer)
}

/// The canonical form. Cursors and flags depend on when what is read.
pub(super) fn of_cdc(bytes: &[u8]) -> Result<Vec<u8>> {
    let message = CdcR::parse(bytes)?;
    let (producer, state) = (message.producer_flags, message.state_flags);
    let known = producer.iter_names().map(|(_, flag)| flag);
    ensure!(producer == known.collect(), "producer flags {producer}");
    let known = state.iter_names().map(|(_, flag)| flag);
    ensure!(state == known.collect(), "state flags {state}");
    Ok(message.to_bytes().to_vec())
}
