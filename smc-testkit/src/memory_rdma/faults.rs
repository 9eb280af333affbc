//! What tests do to devices and links.

use smc_core::device::{DeviceError, Event, LinkAddress, LinkFailure};
use smc_wire::types::Qpn;

use super::MemoryRdma;
use super::pair::{PairConnection, Phase, QueuePair};
use super::state::{Member, PairId};

/// Packets that get lost on the way from one end of a link, and everything behind them.
///
/// Links are reliable, so what is lost costs the link: the sender tries on for the retry time and
/// then reports [`LinkFailure::RetryExceeded`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    pub(super) what: Lost,
    pub(super) left: usize,
}

impl Loss {
    /// This, from the next post on.
    #[must_use]
    pub const fn of(what: Lost) -> Self {
        Self { what, left: 0 }
    }

    /// Not before this many posts have got through.
    #[must_use]
    pub const fn after(mut self, posts: usize) -> Self {
        self.left = posts;
        self
    }
}

/// What is lost of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lost {
    /// Nothing arrives.
    Everything,
    /// The data of its writes arrives, its message does not.
    Message,
    /// Everything arrives, but the sender gets no acknowledgement.
    Answer,
}

/// A queue pair as a test sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkInfo {
    /// Its own end.
    pub local: LinkAddress,
    /// The other end, while it is connected.
    pub peer: Option<LinkAddress>,
    /// Its state.
    pub phase: LinkPhase,
    /// Posts that were not reported as sent.
    pub outstanding: usize,
}

/// State of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkPhase {
    /// Made, not connected.
    Reset,
    /// In use.
    Connected,
    /// Closed or failed, and not dropped yet.
    Error,
}

impl MemoryRdma {
    /// All queue pairs, by number.
    #[must_use]
    pub fn links(&self) -> Vec<LinkInfo> {
        let state = self.shared.lock();
        let pairs = state.pairs.iter();
        let own = pairs.filter(|(id, _)| id.device == self.id);
        own.map(|(_, pair)| info(pair)).collect()
    }

    /// The number of queue pairs that are connected.
    #[must_use]
    pub fn connected_links(&self) -> usize {
        let links = self.links();
        let connected = links
            .iter()
            .filter(|link| link.phase == LinkPhase::Connected);
        connected.count()
    }

    /// Registrations that exist now.
    #[must_use]
    pub fn registrations(&self) -> usize {
        let state = self.shared.lock();
        let member = state.devices.get(&self.id);
        member.map_or(0, |member| member.memory.len())
    }

    /// Loses what is posted to a link of this device, or nothing any more. Links that have not
    /// given up go on where they were.
    pub fn set_loss(&self, link: Qpn, loss: Option<Loss>) {
        self.change(link, |pair| pair.loss = loss);
    }

    /// Loses everything on a link of this device, in both directions, until reset.
    pub fn set_cut(&self, link: Qpn, is_cut: bool) {
        self.change(link, |pair| pair.is_cut = is_cut);
    }

    /// Loses everything at a port, which stays active: the failure is elsewhere in the network.
    pub fn set_port_cut(&self, port: u8, is_cut: bool) {
        self.change_member(|member| {
            match is_cut {
                true => member.cut.insert(port),
                false => member.cut.remove(&port),
            };
        });
    }

    /// Lets a link go down on this side, for any cause. The peer is not notified.
    pub fn fail_link(&self, link: Qpn, cause: LinkFailure) {
        self.shared.lock().fail(self.pair(link), cause);
    }

    /// Activates or deactivates a port: its addresses come or go, and its links go down.
    pub fn set_port_active(&self, port: u8, is_active: bool) {
        let mut state = self.shared.lock();
        let Some(member) = state.devices.get_mut(&self.id) else {
            return;
        };
        let has_changed = match is_active {
            true => member.down.remove(&port),
            false => member.down.insert(port),
        };
        if !has_changed {
            return;
        }
        if !is_active {
            let pairs = state.pairs.iter();
            let hit = pairs.filter(|(id, pair)| id.device == self.id && pair.port == port);
            let hit: Vec<_> = hit.map(|(id, _)| *id).collect();
            for id in hit {
                state.fail(id, LinkFailure::PortDown);
            }
        }
        state.report(self.id, Event::AddressesChanged);
        state.retry_all();
    }

    /// Removes the device under its user: it reports [`Event::DeviceGone`] and then no longer
    /// works. Its peers receive nothing from it any more.
    pub fn remove(&self) {
        let mut state = self.shared.lock();
        state.report(self.id, Event::DeviceGone);
        state.leave(self.id);
    }

    /// Takes the device off the network, as if its process had ended.
    pub fn leave(&self) {
        self.shared.lock().leave(self.id);
    }

    /// Keeps back all reports of completed posts, until reset.
    pub fn hold_completions(&self, is_held: bool) {
        self.change_member(|member| member.holds_completions = is_held);
    }

    /// Reports the newest message of each link only when the next one has arrived, the link has
    /// failed, or this is taken back: as a receive queue that is drained late. The peer's post
    /// has completed all the same.
    pub fn set_lag(&self, lags: bool) {
        self.shared.lock().set_lag(self.id, lags);
    }

    /// Lets the next registrations fail with these errors, in order.
    pub fn refuse_registrations(&self, errors: impl IntoIterator<Item = DeviceError>) {
        self.change_member(|member| member.refusals.extend(errors));
    }

    /// Sets how many queue pairs there may be from now on. Those that exist stay.
    pub fn set_max_links(&self, max: usize) {
        self.change_member(|member| member.options.max_links = max);
    }

    fn pair(&self, qpn: Qpn) -> PairId {
        let device = self.id;
        PairId { device, qpn }
    }

    fn change_member(&self, change: impl FnOnce(&mut Member)) {
        let mut state = self.shared.lock();
        if let Some(member) = state.devices.get_mut(&self.id) {
            change(member);
        }
        state.retry_all();
    }

    fn change(&self, link: Qpn, change: impl FnOnce(&mut QueuePair)) {
        let mut state = self.shared.lock();
        if let Some(pair) = state.pairs.get_mut(&self.pair(link)) {
            change(pair);
        }
        state.retry_all();
    }
}

fn info(pair: &QueuePair) -> LinkInfo {
    let connection = pair.connection();
    LinkInfo {
        local: pair.local,
        peer: connection.map(|connection| connection.peer),
        phase: match pair.phase {
            Phase::Reset => LinkPhase::Reset,
            Phase::Connected(_) => LinkPhase::Connected,
            Phase::Error => LinkPhase::Error,
        },
        outstanding: connection.map_or(0, PairConnection::outstanding),
    }
}
