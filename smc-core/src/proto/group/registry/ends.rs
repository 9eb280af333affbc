//! The ends of link groups (docs/spec/link-groups.md#end).
//!
//! * [`leave`](Registry::leave): the last connection leaves. The group is idle then, and expires at
//!   the end of its lifetime; at once if it is an SMC-D group beside another one with the peer. One
//!   that is not established has failed.
//! * [`terminate`](Registry::terminate), alone or for all groups of a device, a peer or the
//!   endpoint: a group with connections stays until each of them has left.
//! * The peer states that it does not have the group: no other connection is added, and the
//!   group expires with its last connection.
//!
//! Each end has a [`GroupEndCause`], and `remove` as its last step.

use std::time::{Duration, Instant};

use hashbrown::HashMap;
use smc_wire::types::Gid;

use super::{GroupEntry, KeyEntry, Registry, RegistryTimer};
use crate::proto::group::{
    DeviceIndex, GroupEndCause, GroupId, GroupKey, GroupState, RegistryOutput,
};

impl Registry {
    /// A connection ends, or its set-up failed.
    ///
    /// If the group is not established yet, this is the failure of the first contact.
    pub fn leave(&mut self, now: Instant, group: GroupId) {
        let Some(entry) = self.groups.get_mut(&group) else {
            return;
        };
        entry.members = entry.members.saturating_sub(1);
        if entry.members > 0 {
            return;
        }
        let (key, before) = (entry.key, entry.state);
        match entry.state.empty() {
            Ok(GroupState::Idle) if entry.is_suspect || has_other_group(&self.keys, key) => {
                self.expire(group);
            }
            Ok(GroupState::Idle) => {
                let at = now.checked_add(key.idle_lifetime()).unwrap_or(now);
                entry.expires = Some(at);
                self.timers.insert((at, RegistryTimer::Idle(group)));
            }
            Ok(_) => {
                let cause = entry.cause.unwrap_or(GroupEndCause::FirstContactFailed);
                if before == GroupState::Pending {
                    // First, so that the group of the next creator is counted as a remaining one.
                    self.creator_left(group, key);
                }
                self.remove(group, cause);
            }
            Err(_) => {}
        }
    }

    /// Ends the SMC-R group that has been without connections for the longest time, as if its
    /// lifetime were over. Returns which one, or `None` if none of those in question is idle.
    pub fn expire_longest_idle(&mut self, which: impl Fn(GroupId) -> bool) -> Option<GroupId> {
        let idle = self.groups.iter().filter_map(|(group, entry)| {
            let at = entry.expires?;
            let since = at.checked_sub(entry.key.idle_lifetime()).unwrap_or(at);
            let is_rdma = matches!(entry.key, GroupKey::Rdma { .. });
            (is_rdma && which(*group)).then_some((since, *group))
        });
        let (_, group) = idle.min()?;
        self.expire(group);
        Some(group)
    }

    /// Ends one group.
    pub fn terminate(&mut self, group: GroupId, cause: GroupEndCause) {
        let Some(entry) = self.groups.get_mut(&group) else {
            return;
        };
        let (key, before) = (entry.key, entry.state);
        let Ok(after) = entry.state.terminate() else {
            return;
        };
        entry.cause = Some(cause);
        for key in entry.keys.clone() {
            self.remove_usable(key, group);
        }
        if after == GroupState::Removed {
            self.remove(group, cause);
        } else {
            self.outputs
                .push_back(RegistryOutput::Terminate { group, key, cause });
        }
        if before == GroupState::Pending {
            self.creator_left(group, key);
        }
    }

    /// Ends all SMC-D groups with a peer whose device is gone.
    pub fn handle_peer_gone(&mut self, device: DeviceIndex, peer: Gid) {
        self.terminate_where(GroupEndCause::PeerGone, |key| {
            key.device() == Some(device) && key.peer() == Some(peer)
        });
    }

    /// Ends all SMC-D groups of a local device that is gone. An SMC-R group may continue over links
    /// of other devices.
    pub fn handle_device_gone(&mut self, device: DeviceIndex) {
        self.terminate_where(GroupEndCause::DeviceGone, |key| {
            key.device() == Some(device)
        });
    }

    /// Ends all groups.
    pub fn shutdown(&mut self) {
        self.terminate_where(GroupEndCause::Shutdown, |_| true);
    }

    /// The peer reports that it has no SMC-D group with the local device any more
    /// ([`PeerEvent::Shutdown`](crate::device::PeerEvent::Shutdown)).
    ///
    /// Idle groups end. A group that is being created, or has connections, may be newer than the
    /// event, which names no group and is delivered independently of the handshake: it stays, and
    /// so do its connections. Connections that the peer has really ended end by their abort flags
    /// or by TCP.
    pub fn handle_peer_shutdown(&mut self, device: DeviceIndex, peer: Gid) {
        let Some(key_entry) = self.keys.get(&GroupKey::Direct { device, peer }) else {
            return;
        };
        for group in key_entry.usable.clone().into_values() {
            match self.groups.get_mut(&group) {
                Some(entry) if entry.state == GroupState::Active => entry.is_suspect = true,
                _ => self.terminate(group, GroupEndCause::PeerGone),
            }
        }
    }

    /// A set-up that joined the group was declined with the out-of-sync bit: the peer does not have
    /// the group.
    ///
    /// A server adds no other connection to it, and the group ends with its last connection. Its
    /// connections stay, because any process with a TCP connection can send such a DECLINE using
    /// the peer's identity. Connections that the peer has really lost end by their abort flags,
    /// their links or TCP. For the same reason this holds for a limited number of groups with one
    /// SMC-D peer, or with SMC-R clients of one address (`OUT_OF_SYNC_MAX`): the next connection
    /// creates another group beside each of them, and with SMC-R each group has a link.
    pub fn handle_out_of_sync(&mut self, group: GroupId) {
        let Some(key) = self.groups.get(&group).map(|entry| entry.key) else {
            return;
        };
        let is_same = |other: GroupKey| match key {
            GroupKey::Direct { .. } => other == key,
            GroupKey::Rdma { .. } => key.source().is_some() && other.source() == key.source(),
        };
        let is_denied = |entry: &&GroupEntry| {
            entry.cause == Some(GroupEndCause::OutOfSync) && is_same(entry.key)
        };
        if self.groups.values().filter(is_denied).count() >= OUT_OF_SYNC_MAX {
            return;
        }
        let active = self.groups.get_mut(&group);
        if let Some(entry) = active.filter(|entry| entry.state == GroupState::Active) {
            entry.is_suspect = true;
            entry.cause = Some(GroupEndCause::OutOfSync);
        }
    }

    /// All links of an SMC-R group are closed, or it has none. To be called once it has ended:
    /// until then a first contact that has failed counts as one under way.
    pub fn links_closed(&mut self, group: GroupId) {
        self.first_contacts.links_closed(group);
    }

    fn terminate_where(&mut self, cause: GroupEndCause, which: impl Fn(&GroupKey) -> bool) {
        let mut groups: Vec<_> = self
            .groups
            .iter()
            .filter(|(_, group)| which(&group.key))
            .map(|(id, _)| *id)
            .collect();
        groups.sort_unstable();
        for group in groups {
            self.terminate(group, cause);
        }
    }

    /// The end of an idle group.
    pub(super) fn expire(&mut self, group: GroupId) {
        let Some(entry) = self.groups.get_mut(&group) else {
            return;
        };
        if entry.state.expire().is_err() {
            return;
        }
        let cause = entry.cause.unwrap_or(GroupEndCause::Idle);
        for key in entry.keys.clone() {
            self.remove_usable(key, group);
        }
        self.remove(group, cause);
    }

    /// A first contact has failed, or its group was terminated: the next set-up may create one.
    fn creator_left(&mut self, group: GroupId, key: GroupKey) {
        self.remove_creator(key);
        if let Some(source) = key.source() {
            self.first_contacts.fail(group, source);
        }
        self.admit_waiters(key);
    }

    /// The last step of each end. Notifies the peer if necessary.
    fn remove(&mut self, group: GroupId, cause: GroupEndCause) {
        let Some(entry) = self.groups.remove(&group) else {
            return;
        };
        if let Some(at) = entry.expires {
            self.timers.remove(&(at, RegistryTimer::Idle(group)));
        }
        let key = entry.key;
        self.outputs
            .push_back(RegistryOutput::Removed { group, key, cause });
        let Some(key_entry) = self.keys.get_mut(&key) else {
            return;
        };
        key_entry.groups = key_entry.groups.saturating_sub(1);
        key_entry.owes_notification |= cause.is_local();
        if let (GroupKey::Direct { device, peer }, 0, true) =
            (key, key_entry.groups, key_entry.owes_notification)
        {
            key_entry.owes_notification = false;
            self.outputs
                .push_back(RegistryOutput::NotifyPeer { device, peer });
        }
        self.remove_if_unused(key);
    }
}

/// Whether connections with an SMC-D peer have another group to join, so that an idle one is not
/// kept. A server that declares each connection a first contact gets no more idle groups than
/// others. Nothing in the handshake of SMC-D names a group: whichever is left fits.
fn has_other_group(keys: &HashMap<GroupKey, KeyEntry>, key: GroupKey) -> bool {
    let entry = keys.get(&key).filter(|_| key.peer().is_some());
    entry.is_some_and(|entry| entry.usable.len() > 1)
}

/// Lifetime of a group without connections.
pub const IDLE_LIFETIME: Duration = Duration::from_secs(600);

/// Lifetime of an SMC-R group without connections at a client: longer than at its server, which
/// decides on the end.
pub const CLIENT_IDLE_LIFETIME: Duration = Duration::from_secs(610);

/// Groups with one peer of SMC-D, or with SMC-R clients of one address, that it has denied and that
/// still have connections. A peer that has really lost its group needs one other group.
const OUT_OF_SYNC_MAX: usize = 4;
