//! Local RMBs: what the peer knows of them, and the requests that announce them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use smc_wire::llc::{MAX_RTOKENS, Rtoken};
use smc_wire::types::{Rkey, RmbAddr};

use super::stale_deletes::StaleDeletes;
use super::{LinkGroupOutput, LinkId, RTOKENS_MAX, RkeyError, RmbId, RmbKey};
use crate::proto::group::DeviceIndex;

/// Local RMBs.
#[derive(Debug, Default)]
pub(super) struct LocalRmbs {
    pub(super) rmbs: BTreeMap<RmbId, Rmb>,
    /// RMBs to announce to the peer, in this order.
    pub(super) confirms: VecDeque<RmbId>,
    /// RMBs to revoke, in this order.
    pub(super) deletes: VecDeque<RmbId>,
    /// Unanswered requests.
    pub(super) requests: Vec<RkeyRequest>,
    /// DELETE RKEY that were not answered in time.
    pub(super) stale: StaleDeletes,
    /// RMBs whose DELETE RKEY the peer has not answered. They stay registered, as it may write.
    pub(super) undeleted: usize,
    /// The last request was a confirmation; both kinds alternate.
    pub(super) was_confirm: bool,
}

/// Most RMBs of a group whose DELETE RKEY is unanswered. A peer that was stopped for a while leaves
/// a few.
const UNDELETED_MAX: usize = 16;

/// Most local RMBs of a group: for as many connections as a group has, and as many that wait for
/// DELETE RKEY, which is sent for one at a time.
const RMBS_MAX: usize = 2 * RTOKENS_MAX;

/// Most local RMBs of a group, in use or not, with which one that is out of use stays announced:
/// half of the peer's table, so that there is space for RMBs of other sizes.
const KEPT_MAX: usize = RTOKENS_MAX / 2;

/// A local RMB.
#[derive(Debug)]
pub(super) struct Rmb {
    pub(super) keys: Vec<RmbKey>,
    /// Devices that cannot register it.
    pub(super) unmapped: Vec<DeviceIndex>,
    pub(super) announced: RmbAnnouncement,
    /// It is out of use.
    pub(super) is_released: bool,
    /// The link of the connection: used to announce it, and to revoke it if the link still exists.
    pub(super) link: LinkId,
    /// Until when it waits for its turn to be announced.
    pub(super) turn_deadline: Instant,
}

/// The peer's knowledge of an RMB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RmbAnnouncement {
    /// Nothing.
    No,
    /// It was announced, but the peer did not confirm.
    Unconfirmed,
    /// The key.
    Yes,
}

/// A request in progress.
#[derive(Debug)]
pub(super) struct RkeyRequest {
    pub(super) rmb: RmbId,
    pub(super) wait: RkeyWait,
    pub(super) until: Instant,
}

/// The event that a request waits for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RkeyWait {
    /// Keys of devices, before the RMB can be announced.
    Mapping(Vec<DeviceIndex>),
    /// The answer to CONFIRM RKEY.
    Confirming {
        link: LinkId,
        rkey: Rkey,
        addr: RmbAddr,
    },
    /// The answer to DELETE RKEY.
    Deleting { link: LinkId, rkey: Rkey },
}

impl RkeyWait {
    pub(super) const fn link(&self) -> Option<LinkId> {
        match self {
            Self::Mapping(_) => None,
            Self::Confirming { link, .. } | Self::Deleting { link, .. } => Some(*link),
        }
    }
}

impl Rmb {
    pub(super) fn new(
        keys: &[RmbKey],
        announced: RmbAnnouncement,
        link: LinkId,
        turn_deadline: Instant,
    ) -> Self {
        Self {
            keys: keys.to_vec(),
            unmapped: Vec::new(),
            announced,
            is_released: false,
            link,
            turn_deadline,
        }
    }

    pub(super) fn key(&self, device: DeviceIndex) -> Option<RmbKey> {
        self.keys.iter().find(|key| key.device == device).copied()
    }

    /// Whether a key of this device is missing and can be requested.
    pub(super) fn lacks(&self, device: DeviceIndex) -> bool {
        self.key(device).is_none() && !self.unmapped.contains(&device)
    }
}

impl LocalRmbs {
    /// Whether the peer leaves deletions unanswered.
    pub(super) const fn is_unresponsive(&self) -> bool {
        self.undeleted >= UNDELETED_MAX
    }

    /// Whether no further RMB is announced.
    pub(super) fn is_full(&self) -> bool {
        self.is_unresponsive() || self.rmbs.len().saturating_add(self.undeleted) >= RMBS_MAX
    }

    /// Whether an RMB is announced, and not about to be revoked.
    pub(super) fn is_kept(&self, rmb: RmbId) -> bool {
        self.rmbs
            .get(&rmb)
            .is_some_and(|rmb| rmb.announced == RmbAnnouncement::Yes && !rmb.is_released)
    }

    /// Whether an RMB that is out of use may stay announced. The peer has space for others.
    pub(super) fn can_keep(&self, rmb: RmbId) -> bool {
        self.is_kept(rmb) && self.rmbs.len() <= KEPT_MAX
    }

    /// Whether one more would stay announced.
    pub(super) fn keeps_another(&self) -> bool {
        self.undeleted == 0 && self.deletes.is_empty() && self.rmbs.len() < KEPT_MAX
    }

    pub(super) fn request(&mut self, rmb: RmbId, wait: RkeyWait, until: Instant) {
        self.requests.push(RkeyRequest { rmb, wait, until });
    }

    /// Takes requests that are answered or due.
    pub(super) fn take_requests(
        &mut self,
        which: impl FnMut(&RkeyRequest) -> bool,
    ) -> Vec<RkeyRequest> {
        let requests = std::mem::take(&mut self.requests).into_iter();
        let (taken, kept) = requests.partition(which);
        self.requests = kept;
        taken
    }

    /// All RMBs that the peer knows, for a link of another device.
    pub(super) fn rtokens(&self, over: DeviceIndex, new: DeviceIndex) -> Vec<Rtoken> {
        let known = self
            .rmbs
            .values()
            .filter(|rmb| rmb.announced != RmbAnnouncement::No);
        known
            .filter_map(|rmb| {
                let (old, new) = (rmb.key(over)?, rmb.key(new)?);
                Some(Rtoken {
                    rkey: old.rkey,
                    new_rkey: new.rkey,
                    new_address: new.addr,
                })
            })
            .take(MAX_RTOKENS)
            .collect()
    }

    /// RMBs known to the peer without a key of this device.
    pub(super) fn lacking(&self, device: DeviceIndex) -> Vec<RmbId> {
        let known = self
            .rmbs
            .iter()
            .filter(|(_, rmb)| rmb.announced != RmbAnnouncement::No);
        known
            .filter(|(_, rmb)| rmb.lacks(device))
            .map(|(id, _)| *id)
            .collect()
    }

    pub(super) fn set_key(&mut self, rmb: RmbId, key: RmbKey) {
        if let Some(rmb) = self.rmbs.get_mut(&rmb) {
            rmb.keys.retain(|other| other.device != key.device);
            rmb.keys.push(key);
        }
    }

    /// Whether a DELETE RKEY on this link is unanswered and in time.
    pub(super) fn is_deleting_on(&self, link: LinkId) -> bool {
        let mut requests = self.requests.iter();
        requests.any(
            |request| matches!(request.wait, RkeyWait::Deleting { link: on, .. } if on == link),
        )
    }

    /// Requests over a link that is gone are repeated. Those that were not answered in time are
    /// not: their RMBs stay registered, and unused.
    pub(super) fn resend(&mut self, link: LinkId) {
        self.stale.clear_link(link);
        let lost = self.take_requests(|request| request.wait.link() == Some(link));
        for request in lost.into_iter().rev() {
            match request.wait {
                RkeyWait::Confirming { .. } => {
                    if let Some(rmb) = self.rmbs.get_mut(&request.rmb) {
                        rmb.announced = RmbAnnouncement::Unconfirmed;
                    }
                    self.confirms.push_front(request.rmb);
                }
                RkeyWait::Deleting { .. } => self.deletes.push_front(request.rmb),
                RkeyWait::Mapping(_) => {}
            }
        }
    }

    /// The group ends: no RMB is announced any more.
    pub(super) fn fail(&mut self, outputs: &mut VecDeque<LinkGroupOutput>) {
        let flying = self
            .requests
            .drain(..)
            .filter_map(|request| match request.wait {
                RkeyWait::Deleting { .. } => None,
                RkeyWait::Mapping(_) | RkeyWait::Confirming { .. } => Some(request.rmb),
            });
        for rmb in flying.chain(self.confirms.drain(..)) {
            if self.rmbs.get(&rmb).is_some_and(|rmb| !rmb.is_released) {
                let result = Err(RkeyError::Ended);
                outputs.push_back(LinkGroupOutput::RkeyConfirmed { rmb, result });
            }
        }
        self.deletes.clear();
        self.stale.clear();
    }

    /// All links are closed: no peer can write any more.
    pub(super) fn release_all(&mut self, outputs: &mut VecDeque<LinkGroupOutput>) {
        for (rmb, found) in std::mem::take(&mut self.rmbs) {
            if found.is_released {
                let is_answered = true;
                outputs.push_back(LinkGroupOutput::RkeyDeleted { rmb, is_answered });
            }
        }
    }
}
