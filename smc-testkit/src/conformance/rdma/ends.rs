//! Links between the devices of a check.

use std::sync::Arc;
use std::time::{Duration, Instant};

use smc_core::device::{
    Access, DeviceError, Event, Link, LinkAddress, LinkFailure, Mr, OpId, PendingLink, Piece,
    ProtectionDomain, RdmaAddress, RoceKind, Route, SubmitError, Write,
};
use smc_core::mem::Region;
use smc_wire::types::Qpn;

use crate::conformance::fixture::{Fixture, OrFail, Stop, Verdict, ensure, fail};
use crate::conformance::node::Node;
use crate::conformance::provider::Between;
use crate::memory_rdma::link_of;

/// Memory to write from, and to write into.
pub(super) type Memories = (Arc<dyn Mr>, Arc<dyn Mr>);

/// One end of a link, with the only consumer of its device.
pub(super) struct LinkEnd<'b> {
    pub(super) fixture: &'b Fixture<'b>,
    pub(super) node: &'b Node,
    pub(super) link: Arc<dyn Link>,
}

impl<'p> Fixture<'p> {
    /// Between which addresses links are made.
    pub(super) fn between(&self) -> Result<Between, Stop> {
        if let Some(between) = &self.between {
            return Ok(between.clone());
        }
        let (local, peer_addresses) = (
            self.local().rdma().addresses(),
            self.peer().rdma().addresses(),
        );
        let rank = |at: &RdmaAddress| (at.kind == RoceKind::V1, at.gid.ipv4().is_none());
        let best = local.iter().min_by_key(|at| rank(at));
        let Some(best) = best else {
            return fail("the device has no address to make links at");
        };
        let peer = peer_addresses.iter().find(|at| rank(at) == rank(best));
        let Some(peer) = peer else {
            return fail("the peer has no address that goes with the local ones");
        };
        Ok(Between {
            local: best.clone(),
            peer: peer.clone(),
            route: Route::SameSubnet,
        })
    }

    pub(super) fn open(
        &self,
        node: &Node,
        at: &RdmaAddress,
    ) -> Result<Result<Box<dyn PendingLink>, DeviceError>, Stop> {
        self.wait("open_link", self.domain(node)?.open_link(at))
    }

    /// The protection domain of a device that checks use, unless they are about domains.
    pub(super) fn domain<'n>(&self, node: &'n Node) -> Result<&'n dyn ProtectionDomain, Stop> {
        if node.domain().get().is_none() {
            // Two threads may both make one; the later one is dropped.
            let _first = node.domain().set(self.new_domain(node)?);
        }
        let domain = node.domain().get();
        domain.map_or_else(|| fail("no protection domain"), |domain| Ok(&**domain))
    }

    pub(super) fn new_domain(&self, node: &Node) -> Result<Arc<dyn ProtectionDomain>, Stop> {
        self.wait("protection_domain", node.rdma().protection_domain())?
            .or_fail("protection_domain")
    }

    /// A local queue pair and one of the peer.
    pub(super) fn pending(&self) -> Result<[Box<dyn PendingLink>; 2], Stop> {
        let between = self.between()?;
        let local = self.open(self.local(), &between.local)?;
        let peer = self.open(self.peer(), &between.peer)?;
        Ok([local.or_fail("open_link")?, peer.or_fail("open_link")?])
    }

    pub(super) fn connect(
        &self,
        pending: Box<dyn PendingLink>,
        to: LinkAddress,
    ) -> Result<Arc<dyn Link>, Stop> {
        let route = self.between()?.route;
        self.wait("connect", pending.connect(to, route))?
            .or_fail("connect")
    }

    /// A link between this device and the peer, both ends of it.
    pub(super) fn link(&self) -> Result<(LinkEnd<'_>, LinkEnd<'_>), Stop> {
        let [local, peer] = self.pending()?;
        let (at_local, at_peer) = (local.local(), peer.local());
        let (local, peer) = (self.connect(local, at_peer)?, self.connect(peer, at_local)?);
        Ok((self.end(self.local(), local), self.end(self.peer(), peer)))
    }

    pub(super) fn end<'b>(&'b self, node: &'b Node, link: Arc<dyn Link>) -> LinkEnd<'b> {
        LinkEnd {
            fixture: self,
            node,
            link,
        }
    }

    pub(super) fn try_register(
        &self,
        node: &Node,
        region: &Region,
        access: Access,
    ) -> Result<Result<Arc<dyn Mr>, DeviceError>, Stop> {
        self.wait("register", self.domain(node)?.register(region, access))
    }

    /// Fresh memory of a device.
    pub(super) fn memory(
        &self,
        node: &Node,
        len: usize,
        access: Access,
    ) -> Result<Arc<dyn Mr>, Stop> {
        self.try_register(node, &Region::anonymous(len), access)?
            .or_fail("register")
    }

    /// Local memory to write from, and of the peer to write into.
    pub(super) fn memories(&self) -> Result<Memories, Stop> {
        let from = self.memory(self.local(), LEN, Access::Local)?;
        Ok((from, self.memory(self.peer(), LEN, Access::RemoteWrite)?))
    }

    /// Drains all devices until `found` has something.
    pub(super) fn until<T>(
        &self,
        what: &str,
        mut found: impl FnMut() -> Result<Option<T>, Stop>,
    ) -> Result<T, Stop> {
        let mut result = None;
        self.eventually(what, || {
            result = found()?;
            Ok(result.is_some())
        })?;
        result.map_or_else(|| fail(format!("not in time: {what}")), Ok)
    }

    /// Drains all devices for a while in which nothing should happen.
    pub(super) fn idle(&self) -> Verdict {
        let until = Instant::now() + QUIET;
        while Instant::now() < until {
            self.drain_all()?;
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl LinkEnd<'_> {
    pub(super) fn qpn(&self) -> Qpn {
        self.link.qpn()
    }

    /// Posts, again and again while there is no space.
    pub(super) fn try_post(
        &self,
        op: u64,
        writes: &[Write<'_>],
        message: &[u8],
    ) -> Result<Result<(), SubmitError>, Stop> {
        let deadline = Instant::now() + self.fixture.timeout();
        loop {
            match self.link.post(OpId(op), writes, message) {
                Err(SubmitError::WouldBlock) => {}
                result => return Ok(result),
            }
            ensure!(Instant::now() < deadline, "a link has no space for long");
            self.fixture.drain_all()?;
            std::thread::yield_now();
        }
    }

    /// Posts; anything but success fails the check.
    pub(super) fn post(&self, op: u64, writes: &[Write<'_>], message: &[u8]) -> Verdict {
        self.try_post(op, writes, message)?.or_fail("post")
    }

    /// Posts a message with this number, which arrives at the other end.
    pub(super) fn deliver(&self, number: u64, writes: &[Write<'_>], at: &LinkEnd<'_>) -> Verdict {
        self.post(number, writes, &numbered(number))?;
        at.expect_message(&numbered(number))
    }

    /// The next message that came on this link.
    pub(super) fn message(&self) -> Result<Vec<u8>, Stop> {
        self.fixture.until("a message arrives", || {
            self.check_up()?;
            Ok(self.try_message())
        })
    }

    /// The next message, if it has been reported.
    pub(super) fn try_message(&self) -> Option<Vec<u8>> {
        self.node.take(|event| match event {
            Event::Received { link, message } if *link == self.qpn() => {
                Some(message.as_bytes().to_vec())
            }
            _ => None,
        })
    }

    /// The next post that was sent.
    pub(super) fn sent(&self) -> Result<OpId, Stop> {
        self.fixture.until("a post is reported as sent", || {
            self.check_up()?;
            Ok(self.try_sent())
        })
    }

    pub(super) fn try_sent(&self) -> Option<OpId> {
        self.node.take(|event| match event {
            Event::Completed { link, op } if *link == self.qpn() => Some(*op),
            _ => None,
        })
    }

    pub(super) fn expect_message(&self, expected: &[u8]) -> Verdict {
        let message = self.message()?;
        ensure!(
            message == expected,
            "a message of {} bytes came, other than the one expected of {}",
            message.len(),
            expected.len()
        );
        Ok(())
    }

    pub(super) fn expect_sent(&self, op: u64) -> Verdict {
        let sent = self.sent()?;
        ensure!(sent == OpId(op), "{sent:?} is reported as sent, not {op}");
        Ok(())
    }

    /// Waits until the link is down.
    pub(super) fn down(&self) -> Result<LinkFailure, Stop> {
        self.fixture
            .until("the link goes down", || Ok(self.try_down()))
    }

    pub(super) fn try_down(&self) -> Option<LinkFailure> {
        self.node.take(|event| match event {
            Event::LinkDown { link, cause } if *link == self.qpn() => Some(*cause),
            _ => None,
        })
    }

    /// Waits until the link is down for this cause.
    pub(super) fn expect_down(&self, expected: LinkFailure) -> Verdict {
        let cause = self.down()?;
        ensure!(cause == expected, "the link is down, but: {cause}");
        Ok(())
    }

    /// Everything reported of this link and not checked.
    pub(super) fn reports(&self) -> usize {
        let qpn = self.qpn();
        self.node.count_if(|event| is_about(event, qpn))
    }

    fn check_up(&self) -> Verdict {
        match self.try_down() {
            Some(cause) => fail(format!("the link went down: {cause}")),
            None => Ok(()),
        }
    }
}

/// Whether an event is about a link.
pub(super) fn is_about(event: &Event, qpn: Qpn) -> bool {
    link_of(event) == Some(qpn)
}

/// A write of one piece into the peer's memory, from the same offset to an offset of it.
pub(super) fn write<'a>(from: &'a dyn Mr, to: &dyn Mr, at: usize, len: usize) -> Write<'a> {
    let mut to_addr = to.addr();
    to_addr.0 += at as u64;
    Write {
        from,
        first: piece(at, len),
        second: Piece::default(),
        rkey: to.rkey(),
        to: to_addr,
    }
}

pub(super) fn piece(at: usize, len: usize) -> Piece {
    Piece {
        at: at as u32,
        len: len as u32,
    }
}

/// Length of memory in most checks: the shortest ring.
pub(super) const LEN: usize = 1 << 14;

/// How long nothing has to happen before a check believes it.
const QUIET: Duration = Duration::from_millis(30);

/// A usual message with a number in it.
pub(super) fn numbered(number: u64) -> [u8; 44] {
    let mut message = [0x5a; 44];
    message[..8].copy_from_slice(&number.to_be_bytes());
    message
}
