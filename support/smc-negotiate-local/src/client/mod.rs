//! The client side: finding listeners and announcing connections to them.

mod backoff;
mod candidate;
mod channel;
mod directories;
mod offer;
mod search;

pub(super) use channel::{ClientChannel, Exchange};

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use event_listener::Event;
use rustix::io::Errno;
use rustix::process::geteuid;
use smc_core::error::{FallbackCause, Limit, OsError};
use smc_core::mutex::Mutex;
use smc_core::quota::{Permit, descriptors};
use smc_core::runtime::Runtime;
use smc_ipc::runtime_dir::{ConnectTime, Connected};
use smc_ipc::{Domain, RuntimeDirError, is_own_user};

use crate::directory::ListenerEntry;
use crate::netns::{NetNs, canonical, has_scope, is_local, is_routable};
use crate::reachability;
use crate::sock_diag::{SockDiag, SocketInfo};
use candidate::LocalCandidate;
use directories::{Directories, Found, NamedListener};
use search::search;

/// What an endpoint caches about the listeners of this host.
#[derive(Clone, Debug)]
pub(super) struct LocalClient {
    domain: Domain,
    runtime: Arc<dyn Runtime>,
    known: Arc<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// By owner.
    directories: Mutex<HashMap<u32, Arc<Mutex<Directories>>>>,
    channels: Mutex<Channels>,
    /// Of the network namespace that was used last, where the kernel offers it.
    diag: Mutex<Option<(NetNs, Option<SockDiag>)>>,
    probes: Mutex<HashMap<ProbeKey, ProbeState>>,
    /// Recent routes of connections, by thread, as threads may be in different namespaces.
    routes: Mutex<hashbrown::HashMap<(ThreadId, SocketAddr), Route>>,
}

type Channels = HashMap<(NetNs, String), Arc<ClientChannel>>;

/// The listener that gets the connections to an address of this host.
#[derive(Clone, Debug)]
struct Route {
    dir: Arc<Path>,
    searched: Arc<[PathBuf]>,
    entry: Arc<ListenerEntry>,
    channel: Weak<ClientChannel>,
    target: SocketInfo,
    netns: NetNs,
    until: Instant,
    /// When one connection is to look for the listeners again; `None` once one does.
    refresh_at: Option<Instant>,
}

type ProbeKey = (NetNs, String, IpAddr);

/// Whether a listener is reachable at an address, by the last probe.
#[derive(Clone, Debug)]
enum ProbeState {
    Known { is_reachable: bool, until: Instant },
    UnderWay(Arc<Event>),
}

impl LocalClient {
    pub(super) fn new(domain: Domain, runtime: Arc<dyn Runtime>) -> Self {
        Self {
            domain,
            runtime,
            known: Arc::default(),
        }
    }

    /// Listeners that may get connections to `to` and are announced in a directory of this user, or
    /// why there is none.
    async fn listeners_at(&self, to: SocketAddr, owner: u32) -> Result<Found, FallbackCause> {
        let directories = {
            let mut known = self.known.directories.lock();
            let new = || Arc::new(Mutex::new(Directories::new(self.domain.clone(), owner)));
            Arc::clone(known.entry(owner).or_insert_with(new))
        };
        let now = self.runtime.now();
        // The thread for this user is the only one that locks them.
        let listeners = move || directories.lock().listeners_at(to, now);
        search(&*self.runtime, owner, listeners).await?
    }

    /// The user in whose directory a listener at this address of the own host is announced.
    ///
    /// A name in the directory of another user than the owner of the listening socket is of no use.
    /// Where the kernel does not report the owner only the own user is trusted.
    fn owner_of_listener(&self, netns: NetNs, to: SocketAddr) -> Result<u32, OsError> {
        let own = geteuid().as_raw();
        if !self.domain.has_others() {
            return Ok(own);
        }
        let target = self.listening(netns, to, unspecified(to))?;
        let owner = target.map(|target| target.uid);
        Ok(owner.filter(|uid| self.domain.allows(*uid)).unwrap_or(own))
    }

    /// The channel to a listener, if its process is the one that `target` belongs to, as far as
    /// users can be distinguished.
    fn channel(
        &self,
        (dir, entry): &NamedListener,
        searched: &Arc<[PathBuf]>,
        netns: NetNs,
        target: Option<SocketInfo>,
        time: &mut ConnectTime,
    ) -> Result<Arc<ClientChannel>, FallbackCause> {
        let connect = |name: &str| self.domain.connect_in(dir, name, time);
        self.channel_by(connect, entry, searched, netns, target)
    }

    /// As [`Self::channel`], with what connects to the name.
    fn channel_by(
        &self,
        connect: impl FnOnce(&str) -> Result<Connected, RuntimeDirError>,
        entry: &Arc<ListenerEntry>,
        searched: &Arc<[PathBuf]>,
        netns: NetNs,
        target: Option<SocketInfo>,
    ) -> Result<Arc<ClientChannel>, FallbackCause> {
        let key = (netns, entry.to_string());
        let open = |channels: &Channels| {
            let channel = channels.get(&key).filter(|channel| !channel.has_ended())?;
            Some(channel.announces(target).map(|()| Arc::clone(channel)))
        };
        let reserved = {
            let mut channels = self.known.channels.lock();
            if let Some(channel) = open(&channels) {
                return channel;
            }
            channels.retain(|known, channel| *known == key || !channel.has_ended());
            take_descriptor(&mut channels, owner(target))?
        };
        // Without the lock, for which other tasks would wait as long, one after the other.
        let connected = connect(&key.1)?;
        let mut channels = self.known.channels.lock();
        // By another task meanwhile.
        if let Some(channel) = open(&channels) {
            return channel;
        }
        let previous = channels.get(&key);
        let backoff = previous.map_or_else(Arc::default, |previous| Arc::clone(&previous.backoff));
        channels.retain(|_, channel| !channel.has_ended());
        // There may be more channels by now.
        drop(reserved);
        let connected = (connected, take_descriptor(&mut channels, owner(target))?);
        let (domain, runtime) = (&self.domain, &self.runtime);
        match ClientChannel::open(domain, runtime, connected, entry, netns, backoff, target) {
            Ok(channel) => {
                channels.insert(key, channel.clone());
                Ok(channel)
            }
            Err(FallbackCause::Os(error)) if is_stale(&error) => {
                self.domain.remove_if_stale(&key.1);
                Err(not_announced(searched))
            }
            Err(cause) => Err(cause),
        }
    }

    /// Whether the listener behind `channel`, in another namespace, is reachable at `to`.
    async fn is_reachable(&self, channel: &Arc<ClientChannel>, netns: NetNs, to: IpAddr) -> bool {
        let key = (netns, channel.entry.to_string(), to);
        loop {
            let listener = {
                let mut probes = self.known.probes.lock();
                match probes.get(&key) {
                    Some(ProbeState::Known {
                        is_reachable,
                        until,
                    }) if *until > self.runtime.now() => {
                        return *is_reachable;
                    }
                    Some(ProbeState::UnderWay(done)) => done.listen(),
                    _ => {
                        if probes.len() >= MAX_CACHED_PROBES {
                            probes.retain(|_, probe| matches!(probe, ProbeState::UnderWay(_)));
                        }
                        probes.insert(key.clone(), ProbeState::UnderWay(Arc::default()));
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
        let is_reachable = reachability::probe(&*self.runtime, channel, to).await;
        let valid = match is_reachable {
            true => SUCCESS_LIFETIME,
            false => FAILURE_LIFETIME,
        };
        under_way.result = Some(ProbeState::Known {
            is_reachable,
            until: self.runtime.now() + valid,
        });
        is_reachable
    }

    /// Caches the route of a connection for those that follow soon.
    fn cache_route(
        &self,
        candidate: &LocalCandidate,
        target: SocketInfo,
        dir: &Arc<Path>,
        channel: &Arc<ClientChannel>,
    ) {
        let now = self.runtime.now();
        let route = Route {
            target,
            dir: Arc::clone(dir),
            searched: Arc::clone(&candidate.searched),
            entry: Arc::clone(&channel.entry),
            channel: Arc::downgrade(channel),
            netns: candidate.netns,
            until: now + ROUTE_LIFETIME,
            refresh_at: Some(now + ROUTE_LIFETIME / 2),
        };
        let mut routes = self.known.routes.lock();
        if routes.len() >= MAX_ROUTES {
            routes.clear();
        }
        routes.insert((candidate.thread, candidate.to), route);
    }

    /// The cached route to an address, unless the listener has ended or the caller is the one that
    /// has to refresh the route. Other connections do not wait for that search.
    fn cached_route(&self, to: SocketAddr) -> Option<LocalCandidate> {
        let now = self.runtime.now();
        let key = (thread::current().id(), to);
        let route = {
            let mut routes = self.known.routes.lock();
            let route = routes.get_mut(&key)?;
            if route.refresh_at.take_if(|at| *at <= now).is_some() {
                return None;
            }
            route.clone()
        };
        let channel = route.channel.upgrade()?;
        (route.until > now && !channel.has_ended()).then(|| LocalCandidate {
            client: self.clone(),
            target: Some(route.target),
            listeners: vec![(route.dir, route.entry)],
            searched: route.searched,
            to,
            netns: route.netns,
            thread: key.0,
            own_host: true,
            channel: Some(channel),
            cached_handshake: None,
        })
    }

    /// The socket that will get a connection between these addresses, where the kernel reports it,
    /// and whether it may be another one that shares its port.
    ///
    /// That is so after an earlier connection between them: the kernel reports what it keeps of
    /// that (TIME-WAIT). All sockets that share a port have the same owner.
    fn target(
        &self,
        netns: NetNs,
        to: SocketAddr,
        from: SocketAddr,
    ) -> Result<(Option<SocketInfo>, bool), OsError> {
        let found = self.find(netns, to, from)?.ok().flatten();
        match found.is_some_and(|found| found.is_time_wait()) {
            true => Ok((self.listening(netns, to, unspecified(to))?, true)),
            false => Ok((found.filter(SocketInfo::is_listening), false)),
        }
    }

    /// The listening socket for connections between these addresses, if the kernel reports it.
    fn listening(
        &self,
        netns: NetNs,
        to: SocketAddr,
        from: SocketAddr,
    ) -> Result<Option<SocketInfo>, OsError> {
        let found = self.find(netns, to, from)?;
        Ok(found.ok().flatten().filter(SocketInfo::is_listening))
    }

    /// Whether the other end of a connection is in this network namespace, at the address that it
    /// was made to; `None` where the kernel does not report it, or another user than `owner`
    /// listens there by now: the kernel does not report which listening socket got a connection.
    pub(super) fn has_local_peer(
        &self,
        netns: NetNs,
        to: SocketAddr,
        from: SocketAddr,
        owner: u32,
    ) -> Option<bool> {
        // The task may have moved to a thread in another namespace.
        if NetNs::current() != Ok(netns) {
            return None;
        }
        let found = self.find(netns, to, from).ok()?.ok()?;
        if !found.is_some_and(|found| found.has_peer()) {
            return Some(false);
        }
        let listening = self.listening(netns, to, unspecified(to)).ok()?;
        let is_same = listening.is_none_or(|listening| listening.uid == owner);
        is_same.then_some(true)
    }

    /// As [`SockDiag::find`].
    ///
    /// # Errors
    ///
    /// When no `sock_diag` socket can be opened.
    fn find(
        &self,
        netns: NetNs,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Result<io::Result<Option<SocketInfo>>, OsError> {
        let mut diag = self.known.diag.lock();
        if diag
            .as_ref()
            .is_none_or(|(opened_in, _)| *opened_in != netns)
        {
            let opened = SockDiag::open();
            let opened = opened.map_err(|error| OsError::new("open a sock_diag socket", &error));
            if let Some(error) = opened.as_ref().err().filter(|error| error.is_lack()) {
                return Err(error.clone());
            }
            *diag = Some((netns, opened.ok()));
        }
        match &mut *diag {
            Some((_, Some(open))) => Ok(open.find(local, peer)),
            _ => Ok(Err(io::ErrorKind::Unsupported.into())),
        }
    }

    /// Whether it was made for this runtime.
    pub(super) fn runs_on(&self, runtime: &Arc<dyn Runtime>) -> bool {
        Arc::ptr_eq(&self.runtime, runtime)
    }

    #[cfg(test)]
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.known, &other.known)
    }

    /// Looks up the listeners at an address.
    pub(super) async fn look_up(&self, to: SocketAddr) -> Result<LocalCandidate, FallbackCause> {
        let dialled = to;
        let to = canonical(to);
        let mut candidate = match self.cached_route(to) {
            Some(candidate) => candidate,
            // The future of a search is large, and most connections need none.
            None => Box::pin(self.search(dialled, to)).await?,
        };
        candidate.cached_handshake = candidate.cached_handshake();
        Ok(candidate)
    }

    async fn search(
        &self,
        dialled: SocketAddr,
        to: SocketAddr,
    ) -> Result<LocalCandidate, FallbackCause> {
        let thread = thread::current().id();
        let located = self.locate(dialled, to);
        let owner = located
            .as_ref()
            .map_or_else(|_| geteuid().as_raw(), |located| located.2);
        let found = self.listeners_at(to, owner).await?;
        let (netns, own_host, _) = located?;
        let Found {
            mut listeners,
            searched,
        } = found;
        if has_scope(to.ip()) || !(own_host || is_routable(to.ip())) {
            return Err(not_announced(&searched));
        }
        listeners.retain(|(_, entry)| own_host == (entry.netns == netns));
        let mut cause = None;
        if !own_host {
            let mut proven = Vec::new();
            let mut time = ConnectTime::default();
            for named in listeners.into_iter().take(MAX_LISTENERS) {
                match self.channel(&named, &searched, netns, None, &mut time) {
                    Ok(channel) if self.is_reachable(&channel, netns, to.ip()).await => {
                        proven.push(named);
                    }
                    Ok(_) => cause = Some(FallbackCause::NotProven),
                    Err(failed) => cause = Some(failed),
                }
            }
            listeners = proven;
        }
        if listeners.is_empty() {
            return Err(cause.unwrap_or_else(|| not_announced(&searched)));
        }
        Ok(LocalCandidate {
            client: self.clone(),
            listeners,
            searched,
            to,
            netns,
            thread,
            own_host,
            target: None,
            channel: None,
            cached_handshake: None,
        })
    }

    /// The network namespace of this thread, whether an address is its own, and the user who
    /// announces the listener at the address.
    fn locate(&self, dialled: SocketAddr, to: SocketAddr) -> Result<(NetNs, bool, u32), OsError> {
        let netns = NetNs::current()?;
        let own_host = is_local(dialled)?;
        let owner = match own_host {
            true => self.owner_of_listener(netns, to)?,
            false => geteuid().as_raw(),
        };
        Ok((netns, own_host, owner))
    }
}

/// Wakes the tasks that wait for a probe when its task is dropped.
struct UnderWay<'a> {
    client: &'a LocalClient,
    key: ProbeKey,
    result: Option<ProbeState>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut probes = self.client.known.probes.lock();
        let old = match self.result.take() {
            Some(known) => probes.insert(self.key.clone(), known),
            None => probes.remove(&self.key),
        };
        if let Some(ProbeState::UnderWay(done)) = old {
            done.notify(usize::MAX);
        }
    }
}

/// The user whose process is to be at the other end of a channel.
fn owner(target: Option<SocketInfo>) -> u32 {
    target.map_or_else(|| geteuid().as_raw(), |target| target.uid)
}

/// An address to look up the listening socket at `to` from. Sockets that share a port have one
/// owner.
fn unspecified(to: SocketAddr) -> SocketAddr {
    match to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// That no listener is announced in any of the directories.
fn not_announced(searched: &Arc<[PathBuf]>) -> FallbackCause {
    let searched = Arc::clone(searched);
    FallbackCause::NotAnnounced { searched }
}

/// The descriptor of a new channel, which is counted if the listener belongs to another user. Ends
/// unused channels to that user, if there can be no further one.
fn take_descriptor(channels: &mut Channels, uid: u32) -> Result<Option<Permit>, FallbackCause> {
    if is_own_user(uid) {
        return Ok(None);
    }
    let take = |channels: &Channels| {
        let of_user = channels
            .values()
            .filter(|channel| channel.process.uid == uid);
        if of_user.count() >= MAX_OF_USER {
            let what = "limit of channels to listeners of one user";
            return Err(Limit::new(what, MAX_OF_USER as u64));
        }
        descriptors::take(uid, 1)
    };
    let taken = take(channels).or_else(|_full| {
        channels.retain(|_, channel| channel.process.uid != uid || Arc::strong_count(channel) > 1);
        take(channels)
    });
    taken.map(Some).map_err(FallbackCause::Full)
}

/// Whether the name of a listener is still there, and the listener is not.
fn is_stale(error: &OsError) -> bool {
    matches!(error.errno(), Some(Errno::CONNREFUSED | Errno::NOENT))
}

/// Listeners of one port that get an announcement, where the kernel does not report the target.
const MAX_LISTENERS: usize = 32;

/// Channels to listeners of another user.
const MAX_OF_USER: usize = 64;

/// How long a route is cached. Another listener may have the port by then, or the thread may have
/// moved to another namespace: an offer without an answer is then plain TCP.
const ROUTE_LIFETIME: Duration = Duration::from_millis(100);

/// Cached routes.
const MAX_ROUTES: usize = 256;

/// Cached probes.
const MAX_CACHED_PROBES: usize = 1024;

/// How long a success is valid. Addresses rarely move, and the connection has to match as well.
const SUCCESS_LIFETIME: Duration = Duration::from_secs(30);

/// How long a failure is valid: connections are plain without another probe.
const FAILURE_LIFETIME: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
