//! The server's choice: what of a PROPOSAL it can use, and which devices to try in which order.

use std::collections::VecDeque;

use smc_wire::clc::Proposal;
use smc_wire::types::{DeclineCode, Eid, Gid, Release, Version};

use super::offer::{is_same_subnet, v1_gid};
use super::{Config, DirectDevice, Path};
use crate::proto::group::DeviceIndex;

/// What remains of an offer after screening (behaviour of set-up, version screening).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Screened {
    d_v2: bool,
    r_v2: bool,
}

/// The walk through everything that could serve the connection.
#[derive(Debug)]
pub(super) struct Selection {
    proposal: Proposal,
    path: Path,
    screened: Screened,
    pub(super) release: Release,
    eid: Option<Eid>,
    stage: Stage,
    candidates: VecDeque<Candidate>,
    /// Devices of ours that an entry of the offer has claimed; each serves only one.
    claimed: Vec<DeviceIndex>,
    reason: Option<DeclineCode>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    DirectV2,
    DirectV1,
}

/// A device of ours and the peer's device that it may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) device: DirectDevice,
    pub(super) peer: Gid,
    pub(super) version: Version,
    /// The EID if version 2 is used.
    pub(super) eid: Option<Eid>,
    /// Which entry of the offer.
    entry: usize,
}

impl Selection {
    /// Screens a PROPOSAL.
    ///
    /// # Errors
    ///
    /// The code to decline with.
    pub(super) fn new(
        proposal: Proposal,
        config: &Config,
        path: Path,
    ) -> Result<Self, DeclineCode> {
        if path.ipsec {
            return Err(DeclineCode::IPSEC);
        }
        let screened = screen(&proposal, config)?;
        let offered = proposal
            .ext
            .as_ref()
            .map_or(Release::V2_0, |ext| ext.release);
        let release = offered.min(config.release);
        check_limits(&proposal, screened, release)?;

        let eid = common_eid(&proposal, config);
        let mut selection = Self {
            proposal,
            path,
            screened,
            release,
            eid,
            stage: Stage::DirectV2,
            candidates: VecDeque::new(),
            claimed: Vec::new(),
            reason: None,
        };
        if screened.d_v2 {
            selection.candidates = selection.v2_candidates(config);
        }
        Ok(selection)
    }

    /// The next device to ask for reachability.
    ///
    /// # Errors
    ///
    /// Nothing is left: the code to decline with.
    pub(super) fn next(&mut self, config: &Config) -> Result<Candidate, DeclineCode> {
        loop {
            while let Some(candidate) = self.candidates.pop_front() {
                if !self.claimed.contains(&candidate.device.index) {
                    return Ok(candidate);
                }
            }
            match self.stage {
                Stage::DirectV2 => {
                    if self.screened.d_v2 && self.claimed.is_empty() {
                        self.remember(DeclineCode::NOSMCD2DEV);
                    }
                    self.enter_v1(config)?;
                }
                Stage::DirectV1 => {
                    if self.wants_direct_v1() && self.claimed_in_v1().is_none() {
                        self.remember(DeclineCode::NOSMCDDEV);
                    }
                    return Err(self.without_direct(config));
                }
            }
        }
    }

    /// The device reaches the peer. Whether it can be used: an EID mismatch leaves no reason of
    /// its own and rules version 2 out.
    pub(super) fn claim(&mut self, candidate: &Candidate) -> bool {
        self.claimed.push(candidate.device.index);
        self.candidates
            .retain(|other| other.entry != candidate.entry);
        if candidate.version.is_v2() && candidate.eid.is_none() {
            self.candidates.clear();
            return false;
        }
        true
    }

    /// Stores a reason to decline; the first one counts.
    pub(super) fn remember(&mut self, code: DeclineCode) {
        self.reason.get_or_insert(code);
    }

    /// The code to decline with when there is no time for more.
    pub(super) fn give_up(&self, code: DeclineCode) -> DeclineCode {
        self.reason.unwrap_or(code)
    }

    /// Our devices on the fabrics of the offer, in the order of the offer: the native device
    /// first, then the list (behaviour of set-up, server scan).
    fn v2_candidates(&self, config: &Config) -> VecDeque<Candidate> {
        let candidate = |entry, peer, device: &DirectDevice| Candidate {
            device: *device,
            peer,
            version: Version::V2,
            eid: self.eid,
            entry,
        };
        self.proposal
            .devices()
            .enumerate()
            .flat_map(|(entry, offered)| {
                let ours = config
                    .devices
                    .iter()
                    .filter(move |ours| ours.chid == offered.chid);
                ours.map(move |device| candidate(entry, offered.gid, device))
            })
            .collect()
    }

    /// Goes on with version 1: subnet, VLAN, and a native device on the same physical network.
    fn enter_v1(&mut self, config: &Config) -> Result<(), DeclineCode> {
        self.stage = Stage::DirectV1;
        if !self.is_subnet_ok() {
            self.remember(DeclineCode::DIFFPREFIX);
        }
        if self.path.vlan_unknown {
            return Err(self.give_up(DeclineCode::GETVLANERR));
        }
        let (Some(area), Some(device)) = (self.proposal.smcd, config.v1_device(&self.path)) else {
            return Ok(());
        };
        if self.wants_direct_v1() {
            self.claimed.clear();
            self.candidates.push_back(Candidate {
                device: *device,
                peer: v1_gid(area.gid.into()),
                version: Version::V1,
                eid: None,
                entry: 0,
            });
        }
        Ok(())
    }

    /// The end of the selection on a host without RDMA devices.
    fn without_direct(&mut self, config: &Config) -> DeclineCode {
        let Proposal { v1, v2, .. } = self.proposal;
        if !v1.has_r() && !v2.has_r() {
            return self.give_up(DeclineCode::NOSMCDDEV);
        }
        // SMC-R v2 is looked for only with a UEID in common; a mismatch leaves no reason.
        if v2.has_r() && self.screened.r_v2 && common_ueid(&self.proposal, config).is_some() {
            self.remember(DeclineCode::NOSMCRDEV);
        }
        if self.is_subnet_ok() {
            self.give_up(DeclineCode::NOSMCDEV)
        } else {
            DeclineCode::DIFFPREFIX
        }
    }

    fn wants_direct_v1(&self) -> bool {
        self.proposal.v1.has_d() && self.is_subnet_ok()
    }

    fn claimed_in_v1(&self) -> Option<&DeviceIndex> {
        self.claimed
            .first()
            .filter(|_| self.stage == Stage::DirectV1)
    }

    /// Version 1 asks for a common subnet; if the interface is not known it is taken as common.
    fn is_subnet_ok(&self) -> bool {
        match (&self.proposal.ip, &self.path.interface) {
            (Some(area), Some(interface)) => is_same_subnet(area, interface),
            _ => true,
        }
    }
}

/// Strikes from the offer what cannot be used for formal reasons.
///
/// # Errors
///
/// Nothing is left: the reason of what was struck last.
fn screen(proposal: &Proposal, config: &Config) -> Result<Screened, DeclineCode> {
    let Proposal { v1, v2, ext, .. } = proposal;
    let mut last = DeclineCode::PEERNOSMC;
    let Some(ext) = ext else {
        if !v2.is_neither() {
            last = DeclineCode::NOV2EXT;
        }
        let none = Screened {
            d_v2: false,
            r_v2: false,
        };
        return if v1.is_neither() { Err(last) } else { Ok(none) };
    };

    let mut d_v2 = v2.has_d();
    if d_v2 {
        let trouble = if !config.is_v2_capable() {
            Some(DeclineCode::NOISM2SUPP)
        } else if ext.direct.is_none() {
            Some(DeclineCode::NOV2DEXT)
        } else if ext.ueids.is_empty() && !ext.has_seid {
            Some(DeclineCode::NOUEID)
        } else {
            None
        };
        if let Some(code) = trouble {
            (d_v2, last) = (false, code);
        }
    }
    let mut r_v2 = v2.has_r();
    if r_v2 && ext.ueids.is_empty() {
        (r_v2, last) = (false, DeclineCode::NOUEID);
    }
    if v1.is_neither() && !d_v2 && !r_v2 {
        Err(last)
    } else {
        Ok(Screened { d_v2, r_v2 })
    }
}

/// Limits of SMC-R in v2.1. They are checked before it is clear that SMC-R is used at all.
fn check_limits(
    proposal: &Proposal,
    screened: Screened,
    release: Release,
) -> Result<(), DeclineCode> {
    let Some(ext) = proposal.ext.as_ref().filter(|_| screened.r_v2) else {
        return Ok(());
    };
    if release < Release::V2_1 {
        return Ok(());
    }
    if ext.max_conns < MIN_CONNS {
        return Err(DeclineCode::MAXCONNERR);
    }
    if ext.max_links < MIN_LINKS {
        return Err(DeclineCode::MAXLINKERR);
    }
    Ok(())
}

/// The EID for SMC-D v2: the system EID if both sides have the same, else the first common UEID.
fn common_eid(proposal: &Proposal, config: &Config) -> Option<Eid> {
    let seid = proposal.seid().filter(|seid| config.seid == Some(*seid));
    seid.or_else(|| common_ueid(proposal, config))
}

/// The first UEID of the client that we have too.
fn common_ueid(proposal: &Proposal, config: &Config) -> Option<Eid> {
    let ext = proposal.ext.as_ref()?;
    ext.ueids
        .iter()
        .copied()
        .find(|ueid| config.ueids.contains(ueid))
}

/// Connections per link group that a client of SMC-R has to support at least (v2.1).
const MIN_CONNS: u8 = 16;

/// Links per link group that a client of SMC-R has to support at least (v2.1).
const MIN_LINKS: u8 = 1;
