//! The RMBs of the peer: which key and address each of them has on which link.

use smc_wire::types::{Rkey, RmbAddr};

use super::LinkId;

/// Most RMBs of the peer that a link group knows (docs/spec/link-groups.md#limits).
pub const RTOKENS_MAX: usize = 255;

/// Most names that are kept of a buffer: a group has three links at a time, so that a handshake can
/// have begun with one of three.
const NAMES_MAX: usize = 3;

/// Names an RMB of the peer; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RtokenId(u64);

/// All [`RTOKENS_MAX`] slots are taken (decline code 0x09990001; a server opens a new group).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("table of the peer's buffers is full")]
#[non_exhaustive]
pub struct TableFull;

/// The table.
///
/// An entry lives until the peer deletes its key. One that our connection has left behind, because
/// the peer never deleted it, gives way when the table is full.
#[derive(Clone, Debug, Default)]
pub(super) struct Rtokens {
    entries: Vec<Entry>,
    last: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    id: RtokenId,
    /// Connections of ours that write into it.
    users: usize,
    /// It had users, and has none any more.
    is_left: bool,
    keys: Vec<Key>,
    /// What it was called on links that are gone, at most [`NAMES_MAX`].
    names: Vec<Key>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    link: LinkId,
    rkey: Rkey,
    addr: RmbAddr,
}

impl Rtokens {
    /// The entry of this pair, a new one if need be.
    pub(super) fn add(
        &mut self,
        link: LinkId,
        rkey: Rkey,
        addr: RmbAddr,
    ) -> Result<RtokenId, TableFull> {
        let key = Key { link, rkey, addr };
        let is_known = |entry: &&Entry| entry.keys.contains(&key) || entry.names.contains(&key);
        if let Some(entry) = self.entries.iter().find(is_known) {
            return Ok(entry.id);
        }
        if self.entries.len() >= RTOKENS_MAX {
            let left = self.entries.iter().position(|entry| entry.is_left);
            self.entries.remove(left.ok_or(TableFull)?);
        }
        self.last = self.last.wrapping_add(1);
        let id = RtokenId(self.last);
        self.entries.push(Entry {
            id,
            users: 0,
            is_left: false,
            keys: vec![key],
            names: Vec::new(),
        });
        Ok(id)
    }

    /// Notes that a connection of ours uses it.
    pub(super) fn hold(&mut self, id: RtokenId) {
        if let Some(entry) = self.entry(id) {
            entry.users = entry.users.saturating_add(1);
            entry.is_left = false;
            entry.names.clear();
        }
    }

    /// Notes that a connection of ours uses it no more.
    pub(super) fn release(&mut self, id: RtokenId) {
        if let Some(entry) = self.entry(id) {
            entry.users = entry.users.saturating_sub(1);
            entry.is_left = entry.users == 0;
        }
        self.sweep();
    }

    /// The key and address on another link.
    pub(super) fn set(&mut self, id: RtokenId, link: LinkId, rkey: Rkey, addr: RmbAddr) {
        if let Some(entry) = self.entry(id) {
            entry.keys.retain(|key| key.link != link);
            entry.keys.push(Key { link, rkey, addr });
        }
    }

    pub(super) fn get(&self, id: RtokenId, link: LinkId) -> Option<(Rkey, RmbAddr)> {
        let entry = self.entries.iter().find(|entry| entry.id == id)?;
        let key = entry.keys.iter().find(|key| key.link == link)?;
        Some((key.rkey, key.addr))
    }

    /// The entry that has this key on this link.
    pub(super) fn find(&self, link: LinkId, rkey: Rkey) -> Option<RtokenId> {
        let has = |entry: &&Entry| entry.has(link, rkey);
        self.entries.iter().find(has).map(|entry| entry.id)
    }

    /// The peer has deleted this key: forgets it on all links. False if it was not known.
    pub(super) fn delete(&mut self, link: LinkId, rkey: Rkey) -> bool {
        let before = self.entries.len();
        self.entries.retain(|entry| !entry.has(link, rkey));
        self.entries.len() != before
    }

    /// A link is gone, and with it its keys.
    ///
    /// Those of entries that no connection has used yet are kept as names: a handshake under way
    /// knows the RMB by the key on the link that it began with. The first ones are: links that the
    /// handshake can have begun with go before those that came later.
    pub(super) fn clear_link(&mut self, link: LinkId) {
        for entry in &mut self.entries {
            let (gone, keys) = std::mem::take(&mut entry.keys)
                .into_iter()
                .partition(|key| key.link == link);
            entry.keys = keys;
            if entry.users == 0 && !entry.is_left {
                entry.names.extend::<Vec<_>>(gone);
                entry.names.truncate(NAMES_MAX);
            }
        }
        self.sweep();
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is an entry that a connection has left, and the peer has not deleted.
    pub(super) fn has_left(&self) -> bool {
        self.entries.iter().any(|entry| entry.is_left)
    }

    /// Whether the next RMB finds no room.
    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= RTOKENS_MAX && !self.entries.iter().any(|entry| entry.is_left)
    }

    /// Drops entries that nobody uses and that the peer could never delete, having no key on any
    /// link.
    fn sweep(&mut self) {
        self.entries
            .retain(|entry| !entry.keys.is_empty() || entry.users > 0);
    }

    fn entry(&mut self, id: RtokenId) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.id == id)
    }
}

impl Entry {
    fn has(&self, link: LinkId, rkey: Rkey) -> bool {
        let mut keys = self.keys.iter();
        keys.any(|key| key.link == link && key.rkey == rkey)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_is_never_used_collects_no_names() {
        let mut rtokens = Rtokens::default();
        let (first, rkey, addr) = (LinkId(1), Rkey(7), RmbAddr(7));
        let id = rtokens.add(first, rkey, addr).unwrap();
        for link in 2..1000 {
            rtokens.set(id, LinkId(link), Rkey(link), addr);
            rtokens.clear_link(LinkId(link - 1));
        }
        assert_eq!(
            rtokens.add(first, rkey, addr),
            Ok(id),
            "its first name is known"
        );
        assert!(rtokens.entries[0].names.len() <= NAMES_MAX);
    }
}
