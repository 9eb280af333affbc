//! Our RMBs: what the peer knows of them, and the requests that tell it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use smc_wire::llc::{MAX_RTOKENS, Rtoken};
use smc_wire::types::{Rkey, RmbAddr};

use super::{LinkId, Output, RkeyError, RmbId, RmbKey};
use crate::proto::group::DeviceIndex;

/// Our RMBs.
#[derive(Debug, Default)]
pub(super) struct Own {
    pub(super) rmbs: BTreeMap<RmbId, Rmb>,
    /// Those that the peer has to be told of, in this order.
    pub(super) confirms: VecDeque<RmbId>,
    /// Those that are out of use, in this order.
    pub(super) deletes: VecDeque<RmbId>,
    /// Requests that are not answered.
    pub(super) flights: Vec<Flight>,
    /// v2: answers to DELETE RKEY that may still come, too late, and until when they count as such.
    pub(super) stale: VecDeque<Instant>,
    /// What began last was a confirmation; both kinds take turns.
    pub(super) was_confirm: bool,
}

/// An RMB of ours.
#[derive(Debug)]
pub(super) struct Rmb {
    pub(super) keys: Vec<RmbKey>,
    /// Devices that do not want it.
    pub(super) unmapped: Vec<DeviceIndex>,
    pub(super) told: Told,
    /// It is out of use.
    pub(super) is_leaving: bool,
    /// The link of the connection: to tell it on, and to take it back on if it is still there.
    pub(super) link: LinkId,
    /// Until when it waits for its turn to be confirmed.
    pub(super) turn: Instant,
}

/// What the peer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Nothing.
    No,
    /// It was told, but did not say that it heard.
    Maybe,
    /// The key.
    Yes,
}

/// A request on its way.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) rmb: RmbId,
    pub(super) what: What,
    pub(super) until: Instant,
}

/// What is waited for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Keys of devices, before the peer can be told.
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

impl What {
    pub(super) const fn link(&self) -> Option<LinkId> {
        match self {
            Self::Mapping(_) => None,
            Self::Confirming { link, .. } | Self::Deleting { link, .. } => Some(*link),
        }
    }
}

impl Rmb {
    pub(super) fn new(keys: &[RmbKey], told: Told, link: LinkId, turn: Instant) -> Self {
        Self {
            keys: keys.to_vec(),
            unmapped: Vec::new(),
            told,
            is_leaving: false,
            link,
            turn,
        }
    }

    pub(super) fn key(&self, device: DeviceIndex) -> Option<RmbKey> {
        self.keys.iter().find(|key| key.device == device).copied()
    }

    /// Whether it makes sense to ask for a key of this device.
    pub(super) fn lacks(&self, device: DeviceIndex) -> bool {
        self.key(device).is_none() && !self.unmapped.contains(&device)
    }
}

impl Own {
    /// Whether no request is unanswered.
    pub(super) fn is_quiet(&self) -> bool {
        self.flights.is_empty()
    }

    /// All RMBs that the peer knows, for a link of another device.
    pub(super) fn rtokens(&self, over: DeviceIndex, new: DeviceIndex) -> Vec<Rtoken> {
        let known = self.rmbs.values().filter(|rmb| rmb.told != Told::No);
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

    /// Those known to the peer that lack a key of this device.
    pub(super) fn lacking(&self, device: DeviceIndex) -> Vec<RmbId> {
        let known = self.rmbs.iter().filter(|(_, rmb)| rmb.told != Told::No);
        known
            .filter(|(_, rmb)| rmb.lacks(device))
            .map(|(id, _)| *id)
            .collect()
    }

    pub(super) fn learn(&mut self, rmb: RmbId, key: RmbKey) {
        if let Some(rmb) = self.rmbs.get_mut(&rmb) {
            rmb.keys.retain(|other| other.device != key.device);
            rmb.keys.push(key);
        }
    }

    /// Requests over a link that is gone are made again.
    pub(super) fn resend(&mut self, link: LinkId) {
        let (lost, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.flights)
            .into_iter()
            .partition(|flight| flight.what.link() == Some(link));
        self.flights = kept;
        for flight in lost.into_iter().rev() {
            match flight.what {
                What::Confirming { .. } => {
                    if let Some(rmb) = self.rmbs.get_mut(&flight.rmb) {
                        rmb.told = Told::Maybe;
                    }
                    self.confirms.push_front(flight.rmb);
                }
                What::Deleting { .. } => self.deletes.push_front(flight.rmb),
                What::Mapping(_) => {}
            }
        }
    }

    /// The group ends: nobody is told any more.
    pub(super) fn fail(&mut self, outputs: &mut VecDeque<Output>) {
        let flying = self
            .flights
            .drain(..)
            .filter_map(|flight| match flight.what {
                What::Deleting { .. } => None,
                What::Mapping(_) | What::Confirming { .. } => Some(flight.rmb),
            });
        for rmb in flying.chain(self.confirms.drain(..)) {
            if self.rmbs.get(&rmb).is_some_and(|rmb| !rmb.is_leaving) {
                let result = Err(RkeyError::Ended);
                outputs.push_back(Output::RkeyConfirmed { rmb, result });
            }
        }
        self.deletes.clear();
    }

    /// All links are closed: nobody can write any more.
    pub(super) fn forget(&mut self, outputs: &mut VecDeque<Output>) {
        for (rmb, found) in std::mem::take(&mut self.rmbs) {
            if found.is_leaving {
                let is_answered = true;
                outputs.push_back(Output::RkeyDeleted { rmb, is_answered });
            }
        }
    }
}
