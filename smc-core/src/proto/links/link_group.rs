//! The links of one SMC-R link group: calls of the shell.

use std::collections::VecDeque;
use std::time::Instant;

use smc_wire::clc::Authentication;
use smc_wire::types::{GroupId, LinkNumber, Qpn, Rkey, RmbAddr, RoceGid};

use super::authentication::{Authentications, EarlyDataHash, GroupAuthentication, HandshakeHash};
use super::confirm_link::ConfirmFirst;
use super::flow::{Flow, PendingFlows, Trigger};
use super::group_end::GroupEnd;
use super::link::{LinkChoice, LinkEntry, LinkState};
use super::long_message::LongMessageGate;
use super::rmbs::{LocalRmbs, Rmb, RmbAnnouncement};
use super::rtokens::Rtokens;
use super::{
    GroupType, LinkGroupOutput, LinkId, LinkInfo, LlcConfig, LlcTerms, NotAdded, OpTag, PeerRmb,
    PortCandidate, RkeyError, RmbId, RmbKey, RtokenError, RtokenId,
};
use crate::device::{DeviceError, LinkAddress, LinkFailure, Route};
use crate::proto::Role;
use crate::proto::after;
use crate::proto::group::{DeviceIndex, GroupLinks};

/// A link group of SMC-R: its links, the keys of both sides, and the LLC flows about them.
///
/// See the [module](super) for the order of calls.
#[derive(Debug)]
pub struct LinkGroup {
    pub(super) role: Role,
    pub(super) id: GroupId,
    pub(super) config: LlcConfig,
    pub(super) terms: LlcTerms,
    pub(super) route: Route,
    /// The oldest first.
    pub(super) links: Vec<LinkEntry>,
    pub(super) last_link: u32,
    pub(super) last_number: u8,
    pub(super) kind: GroupType,
    pub(super) rtokens: Rtokens,
    /// The state of the links that was last reported to the registry.
    pub(super) reported: GroupLinks,
    pub(super) local_rmbs: LocalRmbs,
    pub(super) authentication: Option<GroupAuthentication>,
    pub(super) candidates: Vec<PortCandidate>,
    /// The ports at which links could not be added lately: each at most once, and never all.
    pub(super) failed_ports: Vec<PortCandidate>,
    /// Links that connections have to leave, and why they failed if they did.
    pub(super) leaving: Vec<(LinkInfo, Option<LinkFailure>)>,
    pub(super) is_established: bool,
    pub(super) flow: Option<Flow>,
    /// The link whose queue pair a device opens or connects, possibly for a flow that has ended.
    /// Until it has answered, no flow opens another one, however often the peer requests that.
    pub(super) awaits_device: Option<LinkId>,
    pub(super) pending: PendingFlows,
    /// An offer that was abandoned here, but perhaps not by the client.
    pub(super) abandoned: Option<LinkNumber>,
    pub(super) end: Option<GroupEnd>,
    pub(super) long_messages: LongMessageGate,
    pub(super) outputs: VecDeque<LinkGroupOutput>,
}

impl LinkGroup {
    /// A group without links.
    ///
    /// `id` is the local identifier of the group, from which link user IDs are made.
    #[must_use]
    pub fn new(role: Role, id: GroupId, config: LlcConfig) -> Self {
        Self {
            role,
            id,
            config,
            terms: LlcTerms::V2,
            route: Route::SameSubnet,
            links: Vec::new(),
            last_link: 0,
            last_number: 0,
            kind: GroupType::None,
            rtokens: Rtokens::default(),
            reported: GroupLinks::default(),
            local_rmbs: LocalRmbs::default(),
            authentication: None,
            candidates: Vec::new(),
            failed_ports: Vec::new(),
            leaving: Vec::new(),
            is_established: false,
            flow: None,
            awaits_device: None,
            pending: PendingFlows::default(),
            abandoned: None,
            end: None,
            long_messages: LongMessageGate::default(),
            outputs: VecDeque::new(),
        }
    }

    /// The queue pair for the first link was created. Returns the identifier of the link.
    pub fn first_link(&mut self, now: Instant, device: DeviceIndex, local: LinkAddress) -> LinkId {
        let link = self.new_link(now, device, LinkNumber::NONE);
        self.set_local(link, local);
        link
    }

    /// The peer's end of the first link and the negotiated values are known. From now on messages
    /// may arrive.
    ///
    /// `key_share` is random, for a group [that authenticates](LlcTerms::authenticates).
    pub fn first_peer(
        &mut self,
        peer: LinkAddress,
        route: Route,
        terms: LlcTerms,
        key_share: [u8; 8],
    ) {
        self.route = route;
        self.terms = terms;
        let authentication = || GroupAuthentication::new(self.role, key_share);
        self.authentication = terms.authenticates.then(authentication);
        self.rtokens.keeps_unused = terms.keeps_rkeys;
        let Some(first) = self.links.first_mut() else {
            return;
        };
        if first.info.state == LinkState::Activating && self.flow.is_none() {
            first.info.peer = Some(peer);
            first.is_connected = true;
            self.flow = Some(Flow::ConfirmFirst(ConfirmFirst {
                link: first.info.id,
                until: None,
                request: None,
            }));
        }
    }

    /// The messages of the first contact are known, in a group
    /// [that authenticates](LlcTerms::authenticates). To be called before
    /// [`confirm_link`](Self::confirm_link).
    pub fn first_handshake(&mut self, hash: HandshakeHash) {
        if let Some(authentication) = &mut self.authentication {
            authentication.set_first_contact(hash);
        }
    }

    /// The first link is connected, and the peer knows so or is about to: exchanges CONFIRM LINK.
    /// Ends in [`LinkGroupOutput::FirstLink`].
    pub fn confirm_link(&mut self, now: Instant) {
        self.start_first(now);
        self.advance(now);
    }

    /// First contact has succeeded: a server starts to add another link, in the background.
    pub fn establish(&mut self, now: Instant) {
        if std::mem::replace(&mut self.is_established, true) || self.end.is_some() {
            return;
        }
        if self.role == Role::Server && self.terms.max_links > 1 {
            self.pending.add = Some(Trigger::Established);
        }
        self.advance(now);
    }

    /// A link received a message other than CDC (first byte other than 0xFE).
    pub fn handle_message(&mut self, now: Instant, link: LinkId, message: &[u8]) {
        if self.end.is_some() {
            return self.handle_message_at_end(link, message);
        }
        self.dispatch(now, link, message);
        self.advance(now);
    }

    /// A link received CDC messages. One call for many of them is enough, and one per few seconds:
    /// it only affects when the link is tested.
    pub fn handle_received(&mut self, now: Instant, link: LinkId) {
        if let Some(link) = self.find_link(link) {
            link.last_received = now;
            link.test_deadline = None;
        }
    }

    /// A message sent on this link was completed.
    pub fn handle_completed(&mut self, now: Instant, link: LinkId, tag: OpTag) {
        match self.end {
            None => self.long_messages.completed(&mut self.outputs, tag),
            Some(GroupEnd::LastMessage {
                link: on, tag: of, ..
            }) if on == link && of == tag => self.finish(),
            Some(_) => {}
        }
        self.advance(now);
    }

    /// A link failed, as its device reports, or because it was stuck
    /// ([`SendQueue::poll_timeout`](super::SendQueue::poll_timeout)).
    pub fn handle_link_down(&mut self, now: Instant, link: LinkId, failure: LinkFailure) {
        match self.end {
            None => self.fail_link(now, link, Some(failure)),
            Some(end) if end.link() == Some(link) => self.finish(),
            Some(_) => {}
        }
        self.advance(now);
    }

    /// Answer to [`LinkGroupOutput::Open`].
    pub fn handle_opened(
        &mut self,
        now: Instant,
        link: LinkId,
        result: Result<LinkAddress, DeviceError>,
    ) {
        self.awaits_device.take_if(|awaited| *awaited == link);
        if let Some(mut flow) = self.flow.take_if(|flow| flow.new_link() == Some(link)) {
            let progress = match (&mut flow, result) {
                (Flow::AddServer(offer), Ok(local)) => self.offer_opened(offer, local),
                (Flow::AddClient(join), Ok(local)) => self.join_opened(join, local),
                _ => Err(NotAdded::Device),
            };
            self.continue_adding(now, flow, progress);
        }
        self.advance(now);
    }

    /// Answer to [`LinkGroupOutput::Connect`].
    pub fn handle_connected(
        &mut self,
        now: Instant,
        link: LinkId,
        result: Result<(), DeviceError>,
    ) {
        self.awaits_device.take_if(|awaited| *awaited == link);
        if let (Some(found), Ok(())) = (self.find_link(link), &result) {
            found.is_connected = true;
        }
        if let Some(mut flow) = self.flow.take_if(|flow| flow.new_link() == Some(link)) {
            let progress = match (&mut flow, result) {
                (Flow::AddServer(offer), Ok(())) => self.offer_connected(offer),
                (Flow::AddClient(join), Ok(())) => self.join_connected(join),
                _ => Err(NotAdded::Device),
            };
            self.continue_adding(now, flow, progress);
        }
        self.advance(now);
    }

    /// Answer to [`LinkGroupOutput::Map`]: the keys of the RMBs with this device. Those that could
    /// not be registered are left out.
    pub fn handle_mapped(
        &mut self,
        now: Instant,
        device: DeviceIndex,
        keys: &[(RmbId, Rkey, RmbAddr)],
    ) {
        for (rmb, rkey, addr) in keys.iter().copied() {
            self.local_rmbs.set_key(rmb, RmbKey { device, rkey, addr });
        }
        let new = self.flow.as_ref().filter(|flow| flow.is_mapping());
        let new = new.and_then(|flow| self.link(flow.new_link()?));
        if let Some(mut flow) = self
            .flow
            .take_if(|_| new.is_some_and(|new| new.device == device))
        {
            let progress = match &mut flow {
                Flow::AddServer(offer) => self.offer_mapped(offer),
                Flow::AddClient(join) => self.join_mapped(join),
                _ => Err(NotAdded::Device),
            };
            self.continue_adding(now, flow, progress);
        }
        self.rkeys_mapped(now, device);
        self.advance(now);
    }

    /// Answer to [`LinkGroupOutput::Move`]: nothing is outstanding on the old link.
    pub fn handle_moved(&mut self, now: Instant, from: LinkId) {
        if self.end.is_none() {
            self.connections_moved(now, from);
        }
        self.advance(now);
    }

    /// The local addresses at which links of this group could be opened now, including those in
    /// use. A new one among them makes the group look for another link.
    pub fn handle_candidates(&mut self, now: Instant, candidates: Vec<PortCandidate>) {
        let is_new = |new: &PortCandidate| {
            let mut old = self.candidates.iter();
            !old.any(|old| old.device == new.device && old.address.gid == new.address.gid)
        };
        let has_new = candidates.iter().any(is_new);
        if self.candidates != candidates {
            self.failed_ports.clear();
        }
        self.candidates = candidates;
        if has_new && self.end.is_none() {
            self.want_link();
        }
        self.advance(now);
    }

    /// Adds the RMB of the first connection, which the handshake itself announces to the peer.
    pub fn add_rmb(&mut self, rmb: RmbId, keys: &[RmbKey]) {
        let link = self.links.first().map_or(LinkId(0), |link| link.info.id);
        let now = self.links.first().map(|link| link.last_received);
        if let (Some(now), None) = (now, self.end) {
            let rmb_state = Rmb::new(keys, RmbAnnouncement::Yes, link, now);
            self.local_rmbs.rmbs.insert(rmb, rmb_state);
        }
    }

    /// Announces another RMB to the peer (CONFIRM RKEY), on the link that the handshake names for
    /// its connection. Ends in [`LinkGroupOutput::RkeyConfirmed`]: the peer knows the RMB by its
    /// key on that link, and the keys on all others.
    ///
    /// `keys` are those of the devices in [`devices`](Self::devices); missing ones are requested
    /// ([`LinkGroupOutput::Map`]).
    pub fn confirm_rkey(&mut self, now: Instant, rmb: RmbId, link: LinkId, keys: &[RmbKey]) {
        let known = if self.end.is_some() {
            Some(Err(RkeyError::Ended))
        } else if self.local_rmbs.is_full() {
            Some(Err(RkeyError::Undeleted))
        } else {
            self.local_rmbs.is_kept(rmb).then_some(Ok(()))
        };
        if let Some(result) = known {
            self.outputs
                .push_back(LinkGroupOutput::RkeyConfirmed { rmb, result });
            return;
        }
        let turn_deadline = after(now, self.config.timeouts.turn);
        let entry = Rmb::new(keys, RmbAnnouncement::No, link, turn_deadline);
        if self.local_rmbs.rmbs.insert(rmb, entry).is_none() {
            self.local_rmbs.confirms.push_back(rmb);
        }
        self.report_links();
        self.advance(now);
    }

    /// Revokes an RMB that is out of use (DELETE RKEY), or cancels its announcement. Ends in
    /// [`LinkGroupOutput::RkeyDeleted`]; until then the peer may write, and the identifier of the
    /// RMB stays in use. An RMB that is still to be confirmed gets no
    /// [`LinkGroupOutput::RkeyConfirmed`] after this.
    pub fn delete_rkey(&mut self, now: Instant, rmb: RmbId) {
        self.release_rmb(rmb);
        self.advance(now);
    }

    /// Whether one more RMB can be announced before there is a connection for it: where RMBs stay
    /// announced, as long as there are not too many.
    #[must_use]
    pub fn keeps_another(&self) -> bool {
        self.terms.keeps_rkeys && self.end.is_none() && self.local_rmbs.keeps_another()
    }

    /// An RMB is out of use, and the peer writes it no more. Returns whether it stays announced, so
    /// that a further connection may have it at once, under the same identifier; otherwise it is to
    /// be [deleted](Self::delete_rkey).
    #[must_use]
    pub fn keep_rmb(&self, rmb: RmbId) -> bool {
        self.terms.keeps_rkeys && self.end.is_none() && self.local_rmbs.can_keep(rmb)
    }

    /// Authenticates the ACCEPT or CONFIRM that names this RMB of the local end to the peer.
    /// `early` as [`AuthenticatedPart::InUse`](super::AuthenticatedPart) has it. `None` at first
    /// contact, and in groups without a key.
    pub fn authenticate(&mut self, rmb: &PeerRmb, early: u64) -> Option<Authentications> {
        self.authentication.as_mut()?.authenticate(rmb, early)
    }

    /// The same for an early CONFIRM, with the hash of its early data.
    pub fn authenticate_early(
        &mut self,
        rmb: &PeerRmb,
        data: EarlyDataHash,
    ) -> Option<Authentication> {
        self.authentication.as_mut()?.authenticate_early(rmb, data)
    }

    /// Enters an RMB of the peer, which the handshake names, for a local connection.
    ///
    /// The first one is that of the first contact. For further ones the message that names them has
    /// to be authentic, if the group has a key; and they have to have been announced by CONFIRM
    /// RKEY, if the peer announces its RMBs. A TCP connection from another process or host can name
    /// any key, and a write with an invalid one ends the link for all its connections, as does one
    /// beyond the end of the RMB. Of an RMB of Linux, and of this library, there is one element,
    /// with number 1, and one user: a second one would write into the stream of the first.
    ///
    /// # Errors
    ///
    /// As [`RtokenError`].
    pub fn add_rtoken(&mut self, link: LinkId, rmb: &PeerRmb) -> Result<RtokenId, RtokenError> {
        let is_first = self.rtokens.is_new();
        let mut authentication = self.authentication.as_mut().filter(|_| !is_first);
        if authentication.as_mut().is_some_and(|it| !it.verify(rmb)) {
            return Err(RtokenError::NotAuthentic);
        }
        let has_one_user = self.has_one_user();
        if has_one_user && rmb.index != 1 {
            return Err(RtokenError::OtherElement);
        }
        let may_be_new = is_first || !(self.terms.confirms_rkeys || self.terms.authenticates);
        let id = match self.rtokens.find_pair(link, rmb.rkey, rmb.addr) {
            // An RMB that stays announced may have its next connection here before the application
            // has dropped the stream of the one before: see `rtoken_users`.
            Some(id) if has_one_user && !self.terms.keeps_rkeys && self.rtokens.is_used(id) => {
                return Err(RtokenError::InUse);
            }
            Some(announced) => announced,
            None if may_be_new => self.rtokens.add(link, rmb.rkey, rmb.addr)?,
            None => return Err(RtokenError::NotAnnounced),
        };
        self.rtokens.add_user(id);
        self.report_links();
        Ok(id)
    }

    /// An early CONFIRM with this RMB was not taken. If it is for a link of this group, by the
    /// peer's GID and queue pair, its number is taken: it is not authentic any more when the
    /// PROPOSAL comes again (docs/spec/extensions.md#authentication).
    pub fn refuse_early(&mut self, gid: RoceGid, qpn: Qpn, rmb: &PeerRmb) {
        let is_of = |link: &LinkEntry| {
            let peer = link.info.peer;
            peer.is_some_and(|peer| (peer.gid, peer.qpn) == (gid, qpn))
        };
        if let Some(authentication) = &mut self.authentication {
            if self.links.iter().any(is_of) {
                authentication.verify(rmb);
            }
        }
    }

    /// Key and address of an RMB of the peer on a link; `None` if the peer did not announce it, or
    /// has deleted it.
    #[must_use]
    pub fn rtoken(&self, id: RtokenId, link: LinkId) -> Option<(Rkey, RmbAddr)> {
        self.rtokens.get(id, link)
    }

    /// Number of RMBs that the peer has revoked so far. After a change [`rtoken`](Self::rtoken) of
    /// a connection may be `None`, and it must write no more.
    #[must_use]
    pub const fn revocations(&self) -> u64 {
        self.rtokens.revocations
    }

    /// Whether each RMB of the peer is for one connection at a time.
    #[must_use]
    pub const fn has_one_user(&self) -> bool {
        self.terms.is_linux || self.terms.authenticates
    }

    /// Local connections that use an RMB of the peer. Where RMBs stay announced, the shell refuses
    /// another one until those before have published the end of their data.
    #[must_use]
    pub fn rtoken_users(&self, id: RtokenId) -> usize {
        self.rtokens.users(id)
    }

    /// A local connection no longer uses an RMB of the peer.
    pub fn release_rtoken(&mut self, id: RtokenId) {
        self.rtokens.release(id);
        self.report_links();
    }

    /// RMBs of the peer that are known.
    #[must_use]
    pub fn rtokens(&self) -> usize {
        self.rtokens.len()
    }

    /// Whether the peer has still to delete keys of RMBs that local connections no longer use. It
    /// does so when its own side of them has ended.
    #[must_use]
    pub fn awaits_deletions(&self) -> bool {
        self.end.is_none() && !self.terms.keeps_rkeys && self.rtokens.has_unused()
    }

    /// The link for a new connection, as the server assigns them: `connections` is the number that
    /// the group has now (docs/spec/link-groups.md#assignment). `None` without an active link.
    #[must_use]
    pub fn assigned_link(&self, connections: usize) -> Option<LinkId> {
        let regular = || self.active().filter(|link| !link.is_asymmetric);
        let nth = connections % 2;
        let found = regular().nth(nth).or_else(|| regular().next());
        found.map(|link| link.id)
    }

    /// The link for a connection that is being set up; `connections` is the number that the group
    /// has now.
    #[must_use]
    pub fn link_for(&self, choice: LinkChoice, connections: usize) -> Option<LinkInfo> {
        match choice {
            LinkChoice::First => self.links().next(),
            LinkChoice::Assign => self.link(self.assigned_link(connections)?),
            LinkChoice::Named { qpn, gid, mac } => self.active().find(|link| {
                link.peer.is_some_and(|end| {
                    let is_mac = self.terms.dialect.is_v2() || mac.is_none_or(|mac| end.mac == mac);
                    end.gid == gid && end.qpn == qpn && is_mac
                })
            }),
        }
    }

    /// A link that exists.
    #[must_use]
    pub fn link(&self, id: LinkId) -> Option<LinkInfo> {
        self.links().find(|link| link.id == id)
    }

    /// All links, the oldest first.
    pub fn links(&self) -> impl Iterator<Item = LinkInfo> {
        self.links.iter().map(|link| link.info)
    }

    /// The devices with which RMBs have to be registered, including those of links that are being
    /// created.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceIndex> {
        let mut devices = Vec::new();
        for link in self.links().filter(|link| link.state.is_usable()) {
            if !devices.contains(&link.device) {
                devices.push(link.device);
            }
        }
        devices
    }

    /// The negotiated values, once the peer's end of the first link is known.
    #[must_use]
    pub const fn terms(&self) -> LlcTerms {
        self.terms
    }

    /// The relation of the links.
    #[must_use]
    pub const fn group_type(&self) -> GroupType {
        self.kind
    }

    /// Whether its end has begun, or is over: requests are refused.
    #[must_use]
    pub const fn is_ending(&self) -> bool {
        self.end.is_some()
    }

    /// Whether it has ended ([`LinkGroupOutput::Ended`]).
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.end == Some(GroupEnd::Ended)
    }

    /// The next action; drain after each call.
    pub fn poll_output(&mut self) -> Option<LinkGroupOutput> {
        self.outputs.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if let Some(end) = &self.end {
            return end.due();
        }
        let links = self.links.iter();
        let links = links.filter_map(|link| earlier(self.test_due(link), link.move_deadline));
        let flow = self.flow.as_ref().and_then(Flow::until);
        links
            .chain(flow)
            .chain(self.rkeys_due())
            .chain(self.delete_due())
            .min()
    }

    /// Handles the expiry of timers.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.end.is_some() {
            return self.end_timeout(now);
        }
        self.flow_timeout(now);
        self.rkey_timeouts(now);
        self.send_overdue_deletes(now);
        let late: Vec<_> = self
            .links
            .iter()
            .filter(|link| link.move_deadline.is_some_and(|until| until <= now))
            .map(|link| link.info.id)
            .collect();
        for link in late {
            self.connections_moved(now, link);
        }
        self.test_timeouts(now);
        self.advance(now);
    }
}

fn earlier(one: Option<Instant>, two: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(two).min()
}
