//! The client side: finding listeners and announcing connections to them.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use event_listener::Event;
use rustix::net::sockopt::socket_cookie;

use super::channel::{Channel, Conversation};
use super::diag::Diag;
use super::directory::{Directory, Entry, sweep};
use super::message::{Announce, MAX_PROPOSAL, ToListener};
use super::netns::{NetNs, canonical, has_scope, is_local, is_routable};
use super::token::Token;
use super::{Local, lock, proof};
use crate::io::negotiate::{Candidate, Client, Delivery, Offer, Withdrawn};
use crate::io::runtime::{Runtime, Socket, Unconnected};

/// Everything an endpoint remembers about the listeners of this host.
#[derive(Clone, Debug)]
pub(super) struct LocalClient {
    config: Arc<Local>,
    runtime: Arc<dyn Runtime>,
    known: Arc<Known>,
}

#[derive(Debug)]
struct Known {
    directories: Mutex<Vec<Directory>>,
    channels: Mutex<HashMap<(NetNs, String), Arc<Channel>>>,
    /// Of the network namespace that was used last, where the kernel offers it.
    diag: Mutex<Option<(NetNs, Option<Diag>)>>,
    proofs: Mutex<HashMap<ProofKey, Proof>>,
}

type ProofKey = (NetNs, String, IpAddr);

/// Whether an address was proven to lead to a listener.
#[derive(Clone, Debug)]
enum Proof {
    Known { leads: bool, until: Instant },
    UnderWay(Arc<Event>),
}

impl LocalClient {
    pub(super) fn new(config: Local, runtime: Arc<dyn Runtime>) -> Self {
        let directories = config
            .directories()
            .into_iter()
            .map(Directory::new)
            .collect();
        Self {
            config: Arc::new(config),
            runtime,
            known: Arc::new(Known {
                directories: Mutex::new(directories),
                channels: Mutex::default(),
                diag: Mutex::default(),
                proofs: Mutex::default(),
            }),
        }
    }

    /// Everybody in sight who may get connections to `to`.
    fn listeners_at(&self, to: SocketAddr) -> Vec<(PathBuf, Arc<Entry>)> {
        let mut found = Vec::new();
        for directory in &mut *lock(&self.known.directories) {
            let path = directory.path().to_owned();
            let entries = directory
                .entries(|uid| self.config.trusts_owner(uid))
                .iter();
            let fitting = entries.filter(|e| e.port == to.port() && e.scope.covers(to.ip()));
            found.extend(fitting.map(|entry| (path.clone(), entry.clone())));
        }
        found
    }

    fn channel(&self, dir: &Path, entry: &Arc<Entry>, netns: NetNs) -> Option<Arc<Channel>> {
        let name = entry.to_string();
        let mut channels = lock(&self.known.channels);
        let key = (netns, name);
        if let Some(channel) = channels.get(&key).filter(|channel| !channel.is_dead()) {
            return Some(channel.clone());
        }
        channels.retain(|_, channel| !channel.is_dead());
        match Channel::open(&self.config, &*self.runtime, dir, entry, netns) {
            Ok(channel) => {
                let channel = Arc::new(channel);
                channels.insert(key, channel.clone());
                Some(channel)
            }
            Err(error) => {
                if error.kind() == io::ErrorKind::ConnectionRefused {
                    sweep(dir, &key.1);
                }
                None
            }
        }
    }

    /// Whether `to` leads from here to the listener behind `channel`, in another namespace.
    async fn leads_to(&self, channel: &Arc<Channel>, netns: NetNs, to: IpAddr) -> bool {
        let key = (netns, channel.entry().to_string(), to);
        loop {
            let listener = {
                let mut proofs = lock(&self.known.proofs);
                match proofs.get(&key) {
                    Some(Proof::Known { leads, until }) if *until > self.runtime.now() => {
                        return *leads;
                    }
                    Some(Proof::UnderWay(done)) => done.listen(),
                    _ => {
                        if proofs.len() >= MAX_PROOFS {
                            proofs.retain(|_, proof| matches!(proof, Proof::UnderWay(_)));
                        }
                        proofs.insert(key.clone(), Proof::UnderWay(Arc::default()));
                        break;
                    }
                }
            };
            listener.await;
        }
        let mut under_way = UnderWay {
            client: self,
            key,
            result: None,
        };
        let leads = proof::ask(&*self.runtime, channel, to).await;
        let valid = if leads { PROOF_LASTS } else { FAILURE_LASTS };
        under_way.result = Some(Proof::Known {
            leads,
            until: self.runtime.now() + valid,
        });
        leads
    }

    /// The cookie of the socket that will get a connection between these addresses, where the
    /// kernel can say.
    fn target(&self, netns: NetNs, to: SocketAddr, from: SocketAddr) -> Option<u64> {
        let mut diag = lock(&self.known.diag);
        if diag
            .as_ref()
            .is_none_or(|(opened_in, _)| *opened_in != netns)
        {
            *diag = Some((netns, Diag::open().ok()));
        }
        let (_, open) = diag.as_mut()?;
        let found = open.as_mut()?.find(to, from).ok()??;
        found.listening.then_some(found.cookie)
    }
}

#[async_trait]
impl Client for LocalClient {
    async fn look_up(&self, to: SocketAddr) -> Option<Box<dyn Candidate>> {
        let dialled = to;
        let to = canonical(to);
        let mut listeners = self.listeners_at(to);
        if listeners.is_empty() {
            return None;
        }
        let netns = NetNs::current().ok()?;
        let own_host = is_local(dialled);
        if has_scope(to.ip()) || !(own_host || is_routable(to.ip())) {
            return None;
        }
        listeners.retain(|(_, entry)| own_host == (entry.netns == netns));
        if !own_host {
            let mut proven = Vec::new();
            for (dir, entry) in listeners.into_iter().take(MAX_LISTENERS) {
                let Some(channel) = self.channel(&dir, &entry, netns) else {
                    continue;
                };
                if self.leads_to(&channel, netns, to.ip()).await {
                    proven.push((dir, entry));
                }
            }
            listeners = proven;
        }
        if listeners.is_empty() {
            return None;
        }
        Some(Box::new(LocalCandidate {
            client: self.clone(),
            listeners,
            to,
            netns,
            own_host,
        }))
    }
}

/// Keeps others from waiting for a proof that nobody makes any more.
struct UnderWay<'a> {
    client: &'a LocalClient,
    key: ProofKey,
    result: Option<Proof>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut proofs = lock(&self.client.known.proofs);
        let old = match self.result.take() {
            Some(known) => proofs.insert(self.key.clone(), known),
            None => proofs.remove(&self.key),
        };
        if let Some(Proof::UnderWay(done)) = old {
            done.notify(usize::MAX);
        }
    }
}

#[derive(Debug)]
struct LocalCandidate {
    client: LocalClient,
    listeners: Vec<(PathBuf, Arc<Entry>)>,
    to: SocketAddr,
    netns: NetNs,
    own_host: bool,
}

impl Candidate for LocalCandidate {
    fn offer(&self, socket: &Unconnected<'_>, proposal: &[u8]) -> Option<Box<dyn Offer>> {
        if proposal.len() > MAX_PROPOSAL {
            return None;
        }
        let from = canonical(socket.local);
        let cookie = socket_cookie(socket.fd?).ok()?;
        let target = match self.own_host {
            true => self.client.target(self.netns, self.to, from),
            false => None,
        };
        let token = Token::new().ok()?;
        let mut announced = Vec::new();
        let is_target = |entry: &Entry| target.is_none_or(|target| target == entry.cookie);
        let chosen = self.listeners.iter().filter(|(_, entry)| is_target(entry));
        for (dir, entry) in chosen.take(MAX_LISTENERS) {
            let Some(channel) = self.client.channel(dir, entry, self.netns) else {
                continue;
            };
            let conversation = Conversation::new(channel);
            let id = conversation.id;
            let announce = Announce {
                id,
                cookie,
                from,
                to: self.to,
                proposal,
            };
            let sent = conversation
                .channel
                .send(&ToListener::Announce(announce), Some(&token));
            if sent.is_ok() {
                announced.push(conversation);
            }
        }
        if announced.is_empty() {
            return None;
        }
        Some(Box::new(LocalOffer {
            announced,
            token,
            outcome: None,
        }))
    }
}

/// A connection that was announced to one listener or more.
#[derive(Debug)]
struct LocalOffer {
    /// To whom, unless they refused it or are gone.
    announced: Vec<Conversation>,
    token: Token,
    outcome: Option<Withdrawn>,
}

impl Offer for LocalOffer {
    fn connected(&mut self, _socket: &dyn Socket) -> Delivery {
        Delivery::Delivered
    }

    fn withdraw(&mut self) -> Withdrawn {
        if let Some(outcome) = self.outcome {
            return outcome;
        }
        let outcome = if self.token.take() {
            Withdrawn::Free
        } else {
            Withdrawn::Taken
        };
        self.outcome = Some(outcome);
        // Everybody but the one who has taken it can forget it.
        if outcome == Withdrawn::Free || self.announced.len() > 1 {
            for Conversation { channel, id } in &self.announced {
                // A listener without room for this finds the token gone when the time comes.
                let _ = channel.send(&ToListener::Withdraw { id: *id }, None);
            }
        }
        outcome
    }

    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.announced
            .retain(|conversation| conversation.poll_news(cx).is_pending());
        if self.announced.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl Drop for LocalOffer {
    fn drop(&mut self) {
        self.withdraw();
    }
}

/// Listeners of one port that get an announcement, where the kernel does not say which is it.
const MAX_LISTENERS: usize = 32;

/// Proofs remembered.
const MAX_PROOFS: usize = 1024;

/// How long a proof is believed. Addresses rarely move, and the connection has to match besides.
const PROOF_LASTS: Duration = Duration::from_secs(30);

/// How long a failed proof keeps connections plain without asking again.
const FAILURE_LASTS: Duration = Duration::from_secs(5);
