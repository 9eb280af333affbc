use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use async_trait::async_trait;
use smc_core::device::{
    DeviceError, Link, LinkAddress, MESSAGE_MAX, Mr, OpId, PendingLink, Piece, Route, SubmitError,
    Write,
};
use smc_core::mem::Region;
use smc_wire::types::{Mac, Qpn, Rkey, RmbAddr, RoceGid};

use super::flaw::Flaw;

/// What the broken devices of a network know of each other.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Registered memory by key.
    pub(crate) memory: BTreeMap<u32, (Region, RmbAddr)>,
    /// Keys that no longer work though they should.
    pub(crate) revoked: BTreeSet<u32>,
    /// Ends as they really are.
    pub(crate) ends: BTreeMap<(RoceGid, Qpn), LinkAddress>,
    /// Data that was not written when it should have been.
    late: Vec<(Region, usize, Vec<u8>)>,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

#[derive(Debug)]
pub(crate) struct BrokenMr {
    pub(crate) inner: Arc<dyn Mr>,
    pub(crate) region: Region,
    pub(crate) flaw: Flaw,
    pub(crate) shared: Arc<Shared>,
    pub(crate) links: Arc<AtomicUsize>,
}

impl Mr for BrokenMr {
    fn region(&self) -> &Region {
        &self.region
    }

    fn rkey(&self) -> Rkey {
        self.inner.rkey()
    }

    fn addr(&self) -> RmbAddr {
        self.inner.addr()
    }

    fn as_any(&self) -> &dyn Any {
        self.inner.as_any()
    }
}

impl Drop for BrokenMr {
    fn drop(&mut self) {
        let has_links = self.links.load(Ordering::SeqCst) > 0;
        if self.flaw == Flaw::DropOrderMatters && has_links && !thread::panicking() {
            panic!("broken as ordered");
        }
        let Ok(mut state) = self.shared.state.lock() else {
            return;
        };
        state.memory.remove(&self.rkey().0);
        match self.flaw {
            Flaw::NeverFreesMemory => mem::forget(Arc::clone(&self.inner)),
            Flaw::OneRegistration => {
                let start = self.region.as_ptr();
                let same = state.memory.iter();
                let same = same.filter(|(_, (region, _))| region.as_ptr() == start);
                let keys: Vec<_> = same.map(|(key, _)| *key).collect();
                state.revoked.extend(keys);
            }
            _ => {}
        }
    }
}

#[derive(Debug)]
pub(crate) struct BrokenPending {
    pub(crate) inner: Option<Box<dyn PendingLink>>,
    pub(crate) flaw: Flaw,
    pub(crate) index: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) links: Arc<AtomicUsize>,
}

#[async_trait]
impl PendingLink for BrokenPending {
    fn local(&self) -> LinkAddress {
        let mut local = self.inner.as_ref().unwrap().local();
        if self.flaw == Flaw::WrongMac {
            local.mac = Mac::new([2; 6]);
        }
        local
    }

    async fn connect(
        mut self: Box<Self>,
        mut peer: LinkAddress,
        route: Route,
    ) -> Result<Arc<dyn Link>, DeviceError> {
        let inner = self.inner.take().unwrap();
        let local = inner.local();
        if self.flaw == Flaw::IgnoresMtu && self.index == 0 {
            peer.mtu = local.mtu;
        }
        if self.flaw == Flaw::IgnoresPsn {
            if let Some(real) = self.shared.lock().ends.get(&(peer.gid, peer.qpn)) {
                peer.psn = real.psn;
            }
        }
        let result = inner.connect(peer, route).await;
        let inner = match result {
            Err(_) if self.flaw == Flaw::ConnectsAnywhere => None,
            other => Some(other?),
        };
        self.links.fetch_add(1, Ordering::SeqCst);
        Ok(Arc::new(BrokenLink {
            inner,
            qpn: local.qpn,
            flaw: self.flaw,
            shared: Arc::clone(&self.shared),
            links: Arc::clone(&self.links),
            outstanding: AtomicUsize::new(0),
            is_stuck: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        }))
    }
}

impl Drop for BrokenPending {
    fn drop(&mut self) {
        if self.flaw == Flaw::NeverFreesLinks {
            mem::forget(self.inner.take());
        }
    }
}

#[derive(Debug)]
pub(crate) struct BrokenLink {
    inner: Option<Arc<dyn Link>>,
    qpn: Qpn,
    flaw: Flaw,
    shared: Arc<Shared>,
    links: Arc<AtomicUsize>,
    outstanding: AtomicUsize,
    is_stuck: AtomicBool,
    is_closed: AtomicBool,
}

impl Link for BrokenLink {
    fn qpn(&self) -> Qpn {
        match self.flaw {
            Flaw::Renumbers => Qpn::new(self.qpn.get() + 1).unwrap(),
            _ => self.qpn,
        }
    }

    fn post(&self, op: OpId, writes: &[Write<'_>], message: &[u8]) -> Result<(), SubmitError> {
        let Some(inner) = &self.inner else {
            return Ok(());
        };
        let mut writes = writes.to_vec();
        let mut message = message.to_vec();
        if self.is_closed.load(Ordering::SeqCst) {
            return match self.flaw {
                Flaw::PostsAfterClose => Ok(()),
                _ => Err(SubmitError::PeerGone),
            };
        }
        match self.flaw {
            Flaw::SmallQueue if self.outstanding.fetch_add(1, Ordering::SeqCst) >= 10 => {
                return Err(SubmitError::WouldBlock);
            }
            Flaw::NeverRecovers if self.is_stuck.load(Ordering::SeqCst) => {
                return Err(SubmitError::WouldBlock);
            }
            Flaw::PadsMessages if message.len() < 44 => message.resize(44, 0),
            Flaw::TruncatesMessages => message.truncate(MESSAGE_MAX),
            Flaw::SwapsWrites => writes.reverse(),
            Flaw::WritesLate => self.be_late(&mut writes),
            _ => {}
        }
        for write in &mut writes {
            self.spoil(write);
        }
        if self.flaw == Flaw::SwallowsRefusals {
            let state = self.shared.lock();
            writes.retain(|write| state.memory.contains_key(&write.rkey.0));
        }
        let result = inner.post(op, &writes, &message);
        if result == Err(SubmitError::WouldBlock) {
            self.is_stuck.store(true, Ordering::SeqCst);
        }
        result
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        if self.flaw != Flaw::CloseIsNothing {
            if let Some(inner) = &self.inner {
                inner.close();
            }
        }
    }
}

impl BrokenLink {
    /// Writes what was held back, and holds back what should be written now.
    fn be_late(&self, writes: &mut Vec<Write<'_>>) {
        let mut state = self.shared.lock();
        for (region, at, data) in mem::take(&mut state.late) {
            region.copy_in(at, &data).unwrap();
        }
        for write in mem::take(writes) {
            let Some((region, addr)) = state.memory.get(&write.rkey.0).cloned() else {
                continue;
            };
            let mut data = vec![0; write.first.len as usize];
            let from = write.from.region();
            from.copy_out(write.first.at as usize, &mut data).unwrap();
            let at = usize::try_from(write.to.0 - addr.0).unwrap();
            state.late.push((region, at, data));
        }
    }

    fn spoil(&self, write: &mut Write<'_>) {
        let state = self.shared.lock();
        let target = state.memory.get(&write.rkey.0);
        match self.flaw {
            Flaw::WritesOffByOne if target.is_some_and(|(_, addr)| *addr < write.to) => {
                write.to.0 -= 1;
            }
            Flaw::SwapsPieces if write.second.len > 0 => {
                mem::swap(&mut write.first, &mut write.second);
            }
            Flaw::ClampsPieces => {
                let size = write.from.region().len() as u32;
                for piece in [&mut write.first, &mut write.second] {
                    let at = piece.at.min(size);
                    let len = piece.len.min(size - at);
                    *piece = Piece { at, len };
                }
            }
            Flaw::AnyKeyDoes if target.is_none() => {
                if let Some((key, (_, addr))) = state.memory.iter().next() {
                    (write.rkey, write.to) = (Rkey(*key), *addr);
                }
            }
            Flaw::ClampsWrites => {
                if let Some((region, addr)) = target {
                    let len = u64::from(write.first.len + write.second.len);
                    let last = addr.0 + region.len() as u64 - len;
                    write.to.0 = write.to.0.clamp(addr.0, last);
                }
            }
            Flaw::OneRegistration if state.revoked.contains(&write.rkey.0) => write.rkey.0 ^= 1,
            _ => {}
        }
    }
}

impl Drop for BrokenLink {
    fn drop(&mut self) {
        self.links.fetch_sub(1, Ordering::SeqCst);
        if matches!(self.flaw, Flaw::NeverFreesLinks | Flaw::CloseIsNothing) {
            mem::forget(self.inner.take());
        }
    }
}
