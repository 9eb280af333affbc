//! Drives a machine with recorded messages, and with work that brings what the recording says.

use std::collections::HashMap;
use std::time::Instant;

use smc_core::Error;
use smc_core::device::LinkAddress;
use smc_core::proto::group::{DeviceIndex, EnterResult, GroupId, Registry};
use smc_core::proto::handshake::{
    Established, Fallback, Handshake, HandshakeOutput, LocalRmb, Work, WorkDone,
};
use smc_core::proto::links::LinkChoice;
use smc_wire::clc::RdmaEnd;
use smc_wire::types::DeclineCode;

/// One host of a capture, with its link groups.
pub(crate) struct Replay {
    pub(crate) now: Instant,
    pub(crate) ending: Option<Ending>,
    /// Whether CONFIRM LINK comes.
    pub(crate) confirms_links: bool,
    registry: Registry,
    /// The peer's end of each group's link.
    peers: HashMap<GroupId, LinkAddress>,
}

pub(crate) enum Ending {
    Established(Box<Established>),
    Tcp(Fallback),
    Failed(Error),
}

impl Default for Replay {
    fn default() -> Self {
        Self {
            now: Instant::now(),
            ending: None,
            confirms_links: true,
            registry: Registry::default(),
            peers: HashMap::new(),
        }
    }
}

impl Replay {
    /// Drives a machine that gets as far as having this end. Returns what it sent.
    pub(crate) fn drive(
        &mut self,
        machine: &mut Handshake,
        own: &RdmaEnd,
        messages: &[&Vec<u8>],
    ) -> Vec<Vec<u8>> {
        self.go(machine, Some(own), messages)
    }

    /// Drives a machine that does not get far.
    pub(crate) fn run(&mut self, machine: &mut Handshake, messages: &[&Vec<u8>]) -> Vec<Vec<u8>> {
        self.go(machine, None, messages)
    }

    /// The code that the peer declined with.
    pub(crate) fn declined(&self) -> Option<DeclineCode> {
        match &self.ending {
            Some(Ending::Tcp(fallback)) => fallback.reason.peer,
            _ => None,
        }
    }

    fn go(
        &mut self,
        machine: &mut Handshake,
        own: Option<&RdmaEnd>,
        messages: &[&Vec<u8>],
    ) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        self.drain(machine, own, &mut sent);
        for message in messages {
            let taken = machine.handle_bytes(self.now, message);
            assert_eq!(taken, message.len(), "all of the message");
            self.drain(machine, own, &mut sent);
        }
        sent
    }

    fn drain(&mut self, machine: &mut Handshake, own: Option<&RdmaEnd>, sent: &mut Vec<Vec<u8>>) {
        while let Some(output) = machine.poll_output() {
            match output {
                HandshakeOutput::Send(bytes) => sent.push(bytes),
                HandshakeOutput::Work(work) => {
                    if let Some(done) = self.work(&work, own.unwrap()) {
                        machine.handle_done(self.now, done);
                    }
                }
                HandshakeOutput::Established(established) => {
                    self.ending = Some(Ending::Established(established));
                }
                HandshakeOutput::Fallback(fallback) => self.ending = Some(Ending::Tcp(fallback)),
                HandshakeOutput::Abort(error) => self.ending = Some(Ending::Failed(error)),
                other => panic!("{other:?}"),
            }
        }
    }

    fn work(&mut self, work: &Work, own: &RdmaEnd) -> Option<WorkDone> {
        Some(match *work {
            Work::Enter { key, intent } => match self.registry.enter(self.now, key, intent) {
                EnterResult::Now(seat) => WorkDone::Entered(seat),
                EnterResult::Wait(_) => panic!("one after the other"),
            },
            Work::OpenLink { ref address, .. } => {
                assert_eq!(address.gid, own.gid, "the port that the kernel used");
                WorkDone::LinkOpened(Ok(rmb(own).link))
            }
            Work::PrepareRmb { group, link, .. } => {
                if let LinkChoice::Named { qpn, gid, .. } = link {
                    let peer = self.peers[&group];
                    assert_eq!((peer.qpn, peer.gid), (qpn, gid));
                }
                WorkDone::RmbPrepared(Ok(rmb(own)))
            }
            Work::BindPeer { .. } => WorkDone::PeerBound(Ok(())),
            Work::ConnectLink { group, peer, .. } => {
                self.peers.insert(group, peer);
                WorkDone::LinkConnected(Ok(()))
            }
            Work::ConfirmRkey => WorkDone::RkeyConfirmed(Ok(())),
            Work::ConfirmLink { .. } => {
                return self
                    .confirms_links
                    .then_some(WorkDone::LinkConfirmed(Ok(())));
            }
            Work::EstablishGroup { group, terms } => {
                WorkDone::GroupEstablished(self.registry.establish(group, terms))
            }
            ref other => panic!("{other:?}"),
        })
    }
}

/// A receive buffer and a link that the peer is told of as recorded.
fn rmb(own: &RdmaEnd) -> LocalRmb {
    LocalRmb {
        device: DeviceIndex(0),
        link: LinkAddress {
            gid: own.gid,
            mac: own.mac,
            qpn: own.qpn,
            psn: own.psn,
            mtu: own.mtu,
        },
        rkey: own.rkey,
        addr: own.rmb_addr,
        token: own.token,
        size: own.size,
        index: own.rmbe_index,
        authentication: None,
        peer: None,
    }
}
