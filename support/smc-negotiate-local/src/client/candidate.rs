//! Listeners that may get a connection, and the offers that are made to them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::ThreadId;

use rustix::io::Errno;
use rustix::net::sockopt::socket_cookie;
use smc_core::error::{FallbackCause, Limit, OsError};
use smc_core::negotiate::ExpectedHandshake;
use smc_core::runtime::Unconnected;
use smc_ipc::runtime_dir::ConnectTime;
use smc_wire::clc::{ClcType, Frame};
use smc_wire::types::DmbToken;

use super::channel::{ClientChannel, SlotOffer};
use super::directories::NamedListener;
use super::offer::{Connection, LocalOffer, no_port};
use super::{LocalClient, MAX_LISTENERS, not_announced, owner};
use crate::directory::ListenerEntry;
use crate::early::CachedHandshake;
use crate::mailbox::{Announcement, MAX_PROPOSAL};
use crate::netns::{NetNs, canonical};
use crate::sock_diag::SocketInfo;

/// Listeners that may be at an address.
#[derive(Debug)]
pub(crate) struct LocalCandidate {
    pub(super) client: LocalClient,
    pub(super) listeners: Vec<NamedListener>,
    /// The directories in which they were found.
    pub(super) searched: Arc<[PathBuf]>,
    pub(super) to: SocketAddr,
    pub(super) netns: NetNs,
    /// The thread of the look-up, which is in the namespace.
    pub(super) thread: ThreadId,
    pub(super) own_host: bool,
    /// The socket that will get the connection, if that is known already.
    pub(super) target: Option<SocketInfo>,
    /// The channel to the only listener, if it was used a moment ago.
    pub(super) channel: Option<Arc<ClientChannel>>,
    /// The last handshake with the only listener, if the next one may be the same.
    pub(super) cached_handshake: Option<CachedHandshake>,
}

impl LocalCandidate {
    fn channel(
        &self,
        named: &NamedListener,
        target: Option<SocketInfo>,
        time: &mut ConnectTime,
    ) -> Result<Arc<ClientChannel>, FallbackCause> {
        match &self.channel {
            Some(channel) if !channel.has_ended() => {
                channel.announces(target).map(|()| Arc::clone(channel))
            }
            _ => (self.client).channel(named, &self.searched, self.netns, target, time),
        }
    }

    pub(super) fn cached_handshake(&self) -> Option<CachedHandshake> {
        // Several listeners would need one each.
        let [(_, entry)] = &*self.listeners else {
            return None;
        };
        // One that is not open yet has none.
        let open = || {
            let key = (self.netns, entry.to_string());
            self.client.known.channels.lock().get(&key).cloned()
        };
        let channel = self.channel.clone().or_else(open)?;
        channel
            .cached_handshake()
            .filter(|_| !channel.backoff.is_active())
    }

    /// The handshake that the last one lets expect.
    pub(crate) fn expected_handshake(&self) -> Option<ExpectedHandshake> {
        self.cached_handshake
            .as_ref()
            .map(CachedHandshake::expected)
    }

    /// Announces one connection.
    pub(crate) fn offer(
        &self,
        socket: &Unconnected<'_>,
        proposal: &[u8],
        buffer: Option<DmbToken>,
    ) -> Result<LocalOffer, FallbackCause> {
        // The listener reads plain TCP without an offer, so a DECLINE has no effect.
        let frame = Frame::peek(proposal).ok().flatten();
        if frame.is_some_and(|frame| frame.header().kind == ClcType::Decline) {
            return Err(FallbackCause::NoDevice);
        }
        if socket.local.port() == 0 {
            // The connection comes from a port that is not known.
            return Err(no_port());
        }
        if proposal.len() > MAX_PROPOSAL {
            let limit = Limit::new("limit of bytes of a PROPOSAL", MAX_PROPOSAL as u64);
            return Err(FallbackCause::Full(limit));
        }
        let early = match (buffer, &self.cached_handshake) {
            (Some(buffer), Some(cached)) => cached.clone().confirm(buffer),
            _ => None,
        };
        let now = self.client.runtime.now();
        let from = canonical(socket.local);
        // A listener of another user gets no offer for a port that now belongs to another socket.
        let own = self.channel.as_ref().filter(|it| !it.foreign);
        let known = self.target.filter(|_| own.is_some());
        let (target, may_be_other) = match (self.own_host, known) {
            (true, None) => self.client.target(self.netns, self.to, from)?,
            (_, target) => (target, false),
        };
        let is_target = |entry: &ListenerEntry| {
            let is_other = may_be_other && entry.shared;
            target.is_none_or(|target| is_other || target.cookie == entry.cookie)
        };
        let chosen = self.listeners.iter().filter(|(_, entry)| is_target(entry));
        let mut announced = Vec::with_capacity(1);
        let mut fitting = Vec::with_capacity(1);
        let mut cause = None;
        let mut time = ConnectTime::default();
        for named in chosen.take(MAX_LISTENERS) {
            let channel = match self.channel(named, target, &mut time) {
                Ok(channel) if channel.backoff.allows(now) => channel,
                Ok(_) => {
                    cause = Some(FallbackCause::BackOff);
                    continue;
                }
                Err(failed) => {
                    cause = Some(failed);
                    continue;
                }
            };
            let cookie = match channel.foreign {
                true => cookie(socket)?,
                false => 0,
            };
            let announcement = Announcement {
                cookie,
                from,
                to: self.to,
            };
            match channel.announce(announcement, proposal, early.as_ref()) {
                Ok(made) => announced.push(made),
                Err(failed) => cause = Some(failed),
            }
            fitting.push((named, channel));
        }
        // Several processes may accept from one socket.
        if let ([((dir, entry), channel)], Some(target), None) = (&*fitting, target, self.target) {
            if !entry.shared {
                self.client.cache_route(self, target, dir, channel);
            }
        }
        if announced.is_empty() {
            return Err(cause.unwrap_or_else(|| not_announced(&self.searched)));
        }
        let is_foreign = |made: &SlotOffer| made.exchange.channel.foreign;
        let connection = announced.iter().any(is_foreign).then(|| Connection {
            client: self.client.clone(),
            netns: self.netns,
            to: self.to,
            from,
            owner: owner(target),
        });
        Ok(LocalOffer {
            announced,
            outcome: None,
            read_len: 0,
            early,
            is_confirmed: false,
            cause: None,
            runtime: Arc::clone(&self.client.runtime),
            since: now,
            connection,
            from: socket.may_change.then_some(from),
        })
    }
}

/// The number of a socket by which a listener of another user finds it.
fn cookie(socket: &Unconnected<'_>) -> Result<u64, OsError> {
    let failed = |error: Errno| OsError::new("look up the socket's cookie", &error.into());
    let fd = socket.fd.ok_or_else(|| failed(Errno::OPNOTSUPP))?;
    socket_cookie(fd).map_err(failed)
}
