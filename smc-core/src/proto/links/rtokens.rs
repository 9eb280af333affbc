//! The RMBs of the peer: which key and address each of them has on which link.

use smc_wire::types::{Rkey, RmbAddr};

use super::LinkId;

/// Most RMBs of the peer that a link group knows (docs/spec/link-groups.md#limits).
pub const RTOKENS_MAX: usize = 255;

/// Most former keys stored for a buffer: a group has three links at a time, so that a handshake can
/// have begun with one of three.
const FORMER_KEYS_MAX: usize = 3;

/// Identifies an RMB of the peer; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RtokenId(u64);

/// Why an RMB that a handshake names is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RtokenError {
    /// All [`RTOKENS_MAX`] slots are taken: a server creates a new group.
    #[error("table of the peer's buffers is full")]
    TableFull,
    /// The peer announces its buffers on the link, and has not announced this one: the TCP
    /// connection may be that of another process or host.
    #[error("peer has not announced its buffer by CONFIRM RKEY")]
    NotAnnounced,
    /// Another connection uses the buffer, of which there is one element.
    #[error("peer's buffer is that of another connection")]
    InUse,
    /// The buffer has no such element.
    #[error("peer's buffer has one element, with number 1")]
    OtherElement,
    /// The message that names the buffer has no code by the key of the link group, or one of an
    /// earlier message: it comes from another process or host.
    #[error("message that names the peer's buffer is not authentic")]
    NotAuthentic,
    /// The link group has ended.
    #[error("link group has ended")]
    Ended,
}

/// The table.
///
/// An entry exists until the peer deletes its key. An entry that local connections no longer use,
/// and that the peer never deleted, may be replaced when the table is full.
#[derive(Clone, Debug, Default)]
pub(super) struct Rtokens {
    entries: Vec<RtokenEntry>,
    /// None is replaced: the peer will use them again.
    pub(super) keeps_unused: bool,
    /// Number of entries whose key the peer has deleted.
    pub(super) revocations: u64,
    last: u64,
}

#[derive(Clone, Debug)]
struct RtokenEntry {
    id: RtokenId,
    /// Local connections that write into it.
    users: usize,
    /// It had users, and has none any more.
    is_unused: bool,
    keys: Vec<LinkKey>,
    /// Its keys on links that are gone, at most [`FORMER_KEYS_MAX`].
    former_keys: Vec<LinkKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LinkKey {
    link: LinkId,
    rkey: Rkey,
    addr: RmbAddr,
}

impl Rtokens {
    /// The entry of this pair, a new one if necessary.
    pub(super) fn add(
        &mut self,
        link: LinkId,
        rkey: Rkey,
        addr: RmbAddr,
    ) -> Result<RtokenId, RtokenError> {
        if let Some(id) = self.find_pair(link, rkey, addr) {
            // It is announced again, so a handshake may name it.
            if let Some(entry) = self.entry(id) {
                entry.is_unused = false;
            }
            return Ok(id);
        }
        if self.entries.len() >= RTOKENS_MAX {
            let left = |entry: &RtokenEntry| entry.is_unused && !self.keeps_unused;
            let left = self.entries.iter().position(left);
            self.entries.remove(left.ok_or(RtokenError::TableFull)?);
        }
        self.last = self.last.wrapping_add(1);
        let id = RtokenId(self.last);
        self.entries.push(RtokenEntry {
            id,
            users: 0,
            is_unused: false,
            keys: vec![LinkKey { link, rkey, addr }],
            former_keys: Vec::new(),
        });
        Ok(id)
    }

    /// Whether there was never an entry.
    pub(super) const fn is_new(&self) -> bool {
        self.last == 0
    }

    /// The entry of this pair.
    pub(super) fn find_pair(&self, link: LinkId, rkey: Rkey, addr: RmbAddr) -> Option<RtokenId> {
        let key = LinkKey { link, rkey, addr };
        let is_known =
            |entry: &&RtokenEntry| entry.keys.contains(&key) || entry.former_keys.contains(&key);
        self.entries.iter().find(is_known).map(|entry| entry.id)
    }

    /// Local connections that use it.
    pub(super) fn users(&self, id: RtokenId) -> usize {
        let entry = self.entries.iter().find(|entry| entry.id == id);
        entry.map_or(0, |entry| entry.users)
    }

    /// Whether a local connection uses it.
    pub(super) fn is_used(&self, id: RtokenId) -> bool {
        self.users(id) > 0
    }

    /// A local connection uses it.
    pub(super) fn add_user(&mut self, id: RtokenId) {
        if let Some(entry) = self.entry(id) {
            entry.users = entry.users.saturating_add(1);
            entry.is_unused = false;
            entry.former_keys.clear();
        }
    }

    /// A local connection no longer uses it.
    pub(super) fn release(&mut self, id: RtokenId) {
        if let Some(entry) = self.entry(id) {
            entry.users = entry.users.saturating_sub(1);
            entry.is_unused = entry.users == 0;
        }
        self.sweep();
    }

    /// The key and address on another link.
    pub(super) fn set(&mut self, id: RtokenId, link: LinkId, rkey: Rkey, addr: RmbAddr) {
        if let Some(entry) = self.entry(id) {
            entry.keys.retain(|key| key.link != link);
            entry.keys.push(LinkKey { link, rkey, addr });
        }
    }

    pub(super) fn get(&self, id: RtokenId, link: LinkId) -> Option<(Rkey, RmbAddr)> {
        let entry = self.entries.iter().find(|entry| entry.id == id)?;
        let key = entry.keys.iter().find(|key| key.link == link)?;
        Some((key.rkey, key.addr))
    }

    /// The entry that has this key on this link.
    pub(super) fn find(&self, link: LinkId, rkey: Rkey) -> Option<RtokenId> {
        let has = |entry: &&RtokenEntry| entry.has(link, rkey);
        self.entries.iter().find(has).map(|entry| entry.id)
    }

    /// The peer has deleted this key: removes the entry. False if it was not known.
    pub(super) fn delete(&mut self, link: LinkId, rkey: Rkey) -> bool {
        let before = self.entries.len();
        self.entries.retain(|entry| !entry.has(link, rkey));
        let is_known = self.entries.len() != before;
        self.revocations = self.revocations.wrapping_add(is_known.into());
        is_known
    }

    /// A link is gone, and with it its keys.
    ///
    /// Keys of entries that no connection has used yet are stored as former keys: a handshake in
    /// progress knows the RMB by the key on the link with which it began. The first ones are
    /// stored: links with which the handshake can have begun are removed before later ones.
    pub(super) fn clear_link(&mut self, link: LinkId) {
        for entry in &mut self.entries {
            let (gone, keys) = std::mem::take(&mut entry.keys)
                .into_iter()
                .partition(|key| key.link == link);
            entry.keys = keys;
            if entry.users == 0 && !entry.is_unused {
                entry.former_keys.extend::<Vec<_>>(gone);
                entry.former_keys.truncate(FORMER_KEYS_MAX);
            }
        }
        self.sweep();
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is an entry without users that the peer has not deleted.
    pub(super) fn has_unused(&self) -> bool {
        self.entries.iter().any(|entry| entry.is_unused)
    }

    /// Whether there is no space for the next RMB.
    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= RTOKENS_MAX && !self.entries.iter().any(|entry| entry.is_unused)
    }

    /// Removes entries without users that the peer could never delete, because they have no key on
    /// any link.
    fn sweep(&mut self) {
        self.entries
            .retain(|entry| !entry.keys.is_empty() || entry.users > 0);
    }

    fn entry(&mut self, id: RtokenId) -> Option<&mut RtokenEntry> {
        self.entries.iter_mut().find(|entry| entry.id == id)
    }
}

impl RtokenEntry {
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
        assert!(rtokens.entries[0].former_keys.len() <= FORMER_KEYS_MAX);
    }
}
