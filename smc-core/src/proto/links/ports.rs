//! The links of a group, and the ports at which further ones could be opened.

use std::time::Instant;

use smc_wire::llc::Dialect;
use smc_wire::types::{LinkNumber, LinkUid};

use super::link::LinkEntry;
use super::{GroupType, LinkGroup, LinkGroupOutput, LinkId, LinkInfo, Notice, PortCandidate};
use crate::device::{LinkAddress, RoceKind};
use crate::proto::group::DeviceIndex;

impl LinkGroup {
    pub(super) fn active(&self) -> impl Iterator<Item = LinkInfo> + Clone {
        let active = self.links.iter().filter(|link| link.is_active());
        active.map(|link| link.info)
    }

    /// The link for messages about the group.
    pub(super) fn primary(&self) -> Option<LinkId> {
        let regular = self.active().find(|link| !link.is_asymmetric);
        regular.or_else(|| self.active().next()).map(|link| link.id)
    }

    /// This link if it is active, else another one if there is one.
    pub(super) fn active_or(&self, link: LinkId) -> LinkId {
        if self.is_established_link(link) {
            return link;
        }
        self.primary().unwrap_or(link)
    }

    pub(super) fn is_established_link(&self, link: LinkId) -> bool {
        self.active().any(|info| info.id == link)
    }

    pub(super) fn find_link(&mut self, id: LinkId) -> Option<&mut LinkEntry> {
        self.links.iter_mut().find(|link| link.info.id == id)
    }

    pub(super) fn new_link(
        &mut self,
        now: Instant,
        device: DeviceIndex,
        number: LinkNumber,
    ) -> LinkId {
        self.last_link = self.last_link.wrapping_add(1);
        let id = LinkId(self.last_link);
        let mut link = LinkEntry::new(id, device, now);
        link.info.number = number;
        self.links.push(link);
        id
    }

    /// The number of the next link (server).
    pub(super) fn next_number(&mut self) -> LinkNumber {
        loop {
            self.last_number = self.last_number.wrapping_add(1);
            let number = LinkNumber(self.last_number);
            // There are fewer links than numbers.
            if number != LinkNumber::NONE && self.links().all(|link| link.number != number) {
                return number;
            }
        }
    }

    pub(super) fn set_number(&mut self, link: LinkId, number: LinkNumber) {
        if let Some(link) = self.find_link(link) {
            link.info.number = number;
        }
    }

    pub(super) fn set_local(&mut self, link: LinkId, local: LinkAddress) {
        if let Some(link) = self.find_link(link) {
            link.info.local = Some(local);
        }
    }

    /// Has a device make the queue pair of a new link.
    pub(super) fn open(&mut self, link: LinkId, port: PortCandidate) {
        let PortCandidate { device, address } = port;
        self.awaits_device = Some(link);
        self.outputs.push_back(LinkGroupOutput::Open {
            link,
            device,
            address,
        });
    }

    pub(super) fn connect(&mut self, link: LinkId, peer: LinkAddress) {
        let route = self.route;
        if let Some(found) = self.find_link(link) {
            found.info.peer = Some(peer);
            self.awaits_device = Some(link);
            self.outputs
                .push_back(LinkGroupOutput::Connect { link, peer, route });
        }
    }

    /// Has RMBs registered with the device of a new link; returns false if all are registered.
    pub(super) fn map_for(&mut self, link: LinkId) -> bool {
        let Some(info) = self.link(link) else {
            return false;
        };
        let device = info.device;
        let rmbs = self.local_rmbs.lacking(device);
        let is_needed = !rmbs.is_empty();
        if is_needed {
            self.outputs
                .push_back(LinkGroupOutput::Map { device, rmbs });
        }
        is_needed
    }

    /// CONFIRM LINK was exchanged.
    pub(super) fn activate(&mut self, now: Instant, link: LinkId, kind: GroupType) {
        let Some(found) = self.find_link(link) else {
            return;
        };
        if found.info.state.confirm().is_err() {
            return;
        }
        found.last_received = now;
        found.info.is_asymmetric = kind.is_asymmetric();
        self.failed_ports.clear();
        self.notice(Notice::LinkUp(link));
        self.report_links();
        self.kind = kind;
    }

    pub(super) fn close(&mut self, link: LinkId) {
        self.links.retain(|other| other.info.id != link);
        self.rtokens.clear_link(link);
        self.long_messages.lost(&mut self.outputs, link);
        self.outputs.push_back(LinkGroupOutput::Close(link));
    }

    /// Links that are wanted: negotiated and configured.
    pub(super) fn max_links(&self) -> u8 {
        self.terms.max_links.min(self.config.max_links)
    }

    /// Whether a further link of this kind is possible (docs/spec/llc.md#adding-as-server, step 3).
    pub(super) fn has_slot(&self, kind: GroupType) -> bool {
        self.links.len() < SLOTS
            && self.kind != GroupType::Symmetric
            && !(self.kind.is_asymmetric() && kind.is_asymmetric())
    }

    /// A local port other than that of a link, one without a link if possible, and of those one
    /// that has not failed.
    pub(super) fn alternate(&self, over: LinkId) -> Option<&PortCandidate> {
        let over = self.link(over)?;
        let ports = self.candidates.iter().filter(|port| self.fits(port));
        let others = ports.filter(|port| !self.is_port_of(port, &over));
        let is_used = |port| self.links().any(|link| self.is_port_of(port, &link));
        others.min_by_key(|port| (is_used(port), self.failed_ports.contains(port)))
    }

    /// A link could not be added at this port: others come first, until they have failed too.
    pub(super) fn port_failed(&mut self, over: LinkId, port: &PortCandidate) {
        if !self.failed_ports.contains(port) {
            self.failed_ports.push(port.clone());
        }
        let next = self.alternate(over);
        if next.is_none_or(|next| self.failed_ports.contains(next)) {
            self.failed_ports.clear();
        }
    }

    /// The address of a link, for another one.
    pub(super) fn same_port(&self, over: LinkId) -> Option<&PortCandidate> {
        let over = self.link(over)?;
        let gid = over.local?.gid;
        self.candidates
            .iter()
            .find(|port| port.device == over.device && port.address.gid == gid)
    }

    /// Whether a link is at this port. The MAC tells it only if the link's address is gone: an
    /// interface that is stacked on another one (macvlan) has a MAC of its own.
    fn is_port_of(&self, port: &PortCandidate, link: &LinkInfo) -> bool {
        let Some(local) = link.local.filter(|_| port.device == link.device) else {
            return false;
        };
        let mut candidates = self.candidates.iter();
        let own = candidates.find(|own| own.device == link.device && own.address.gid == local.gid);
        match own {
            Some(own) => own.address.port == port.address.port,
            None => local.mac == port.address.mac,
        }
    }

    /// Whether the packets of an address are those of the group's version.
    fn fits(&self, port: &PortCandidate) -> bool {
        let kind = match self.terms.dialect {
            Dialect::V1 => RoceKind::V1,
            Dialect::V2(_) => RoceKind::V2,
        };
        port.address.kind == kind
    }

    /// Whether an offered end is at the same port of the peer as that of a link.
    pub(super) fn is_peer_port(&self, over: LinkId, offered: &LinkAddress) -> bool {
        let peer = self.link(over).and_then(|link| link.peer);
        peer.is_some_and(|peer| self.is_same_peer_address(&peer, offered))
    }

    pub(super) fn is_same_peer_address(&self, one: &LinkAddress, two: &LinkAddress) -> bool {
        one.gid == two.gid && (self.terms.dialect.is_v2() || one.mac == two.mac)
    }

    /// The local user ID of a link.
    pub(super) fn user_id(&self, link: LinkNumber) -> LinkUid {
        LinkUid(u32::from_be_bytes(self.id.0).wrapping_add(link.0.into()))
    }
}

/// Links that exist at a time: two, and one that is being added or removed
/// (docs/spec/link-groups.md#limits).
const SLOTS: usize = 3;
