//! The network of one virtual host: listeners by address, names, connections.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use smc_core::runtime::{
    Acceptor, BeforeConnect, BeforeListen, NetworkInterface, NetworkRoute, PnetEntry, Socket,
    SocketOptions, Unconnected,
};

use smc_core::proto::handshake::Subnet;

use super::executor::Core;
use super::fast_open::{Syn, SynDelivery};
use super::socket::{VirtualAcceptor, VirtualSocket};

/// All sockets of a runtime.
pub(super) struct Net {
    core: Arc<Core>,
    state: Mutex<NetState>,
}

struct NetState {
    listeners: BTreeMap<SocketAddr, Weak<VirtualAcceptor>>,
    connections: Vec<Weak<VirtualSocket>>,
    interfaces: Vec<NetworkInterface>,
    interface_reads: usize,
    pnet_table: Vec<PnetEntry>,
    next_port: u16,
    /// What is done to the next connections to listeners.
    orders: Vec<(SocketAddr, Order)>,
    /// How the next SYNs with data are delivered.
    syns: Vec<(SocketAddr, SynDelivery, SynSender)>,
    /// Clients, and the listeners of which they have a cookie.
    cookies: BTreeSet<(IpAddr, SocketAddr)>,
}

/// What is done to a connection.
pub(super) enum Order {
    /// What is behind so many bytes is lost.
    Truncate { is_client: bool, len: usize },
    /// What the client sends is copied.
    Copy(CopiedBytes),
}

/// The address of the client that has sent a SYN.
pub(super) type SynSender = Arc<OnceLock<SocketAddr>>;

/// Bytes that were sent on a connection so far.
pub(super) type CopiedBytes = Arc<Mutex<Vec<u8>>>;

impl Net {
    pub(super) fn new(core: Arc<Core>) -> Self {
        let state = NetState {
            listeners: BTreeMap::new(),
            connections: Vec::new(),
            interfaces: Vec::new(),
            interface_reads: 0,
            pnet_table: Vec::new(),
            next_port: FIRST_PORT,
            orders: Vec::new(),
            syns: Vec::new(),
            cookies: BTreeSet::new(),
        };
        let state = Mutex::new(state);
        Self { core, state }
    }

    pub(super) fn add_interface(&self, name: &str, address: IpAddr, bits: u8) {
        let all = &mut self.state().interfaces;
        let known = all.iter_mut().find(|interface| interface.name == name);
        match known {
            Some(known) => known.addresses.push((address, bits)),
            None => {
                let mut new = NetworkInterface::default();
                new.index = u32::try_from(all.len()).unwrap_or(u32::MAX) + 1;
                new.name = name.to_owned();
                new.base = name.to_owned();
                new.addresses = vec![(address, bits)];
                all.push(new);
            }
        }
    }

    pub(super) fn set_vlan(&self, name: &str, vlan: u16) {
        let all = &mut self.state().interfaces;
        for interface in all.iter_mut().filter(|interface| interface.name == name) {
            interface.vlan = vlan;
        }
    }

    pub(super) fn set_pnet_id(&self, name: &str, pnet_id: &str) {
        let mut entry = PnetEntry::default();
        entry.pnet_id = pnet_id.to_owned();
        entry.interface = Some(name.to_owned());
        self.state().pnet_table.push(entry);
    }

    pub(super) fn pnet_table(&self) -> Vec<PnetEntry> {
        self.state().pnet_table.clone()
    }

    pub(super) fn set_base(&self, name: &str, base: &str) {
        let all = &mut self.state().interfaces;
        for interface in all.iter_mut().filter(|interface| interface.name == name) {
            interface.base = base.to_owned();
        }
    }

    pub(super) fn interfaces(&self) -> Vec<NetworkInterface> {
        self.state().interfaces.clone()
    }

    pub(super) fn read_interfaces(&self) -> Vec<NetworkInterface> {
        self.state().interface_reads += 1;
        self.interfaces()
    }

    pub(super) fn interface_reads(&self) -> usize {
        self.state().interface_reads
    }

    pub(super) fn route(&self, from: IpAddr, to: IpAddr, by: Option<u32>) -> Option<NetworkRoute> {
        let all = self.interfaces();
        let own = all.iter().find(|interface| {
            let mut addresses = interface.addresses.iter();
            addresses.any(|(address, _)| *address == from)
        })?;
        let mut allowed = all.iter().filter(|one| by.is_none_or(|by| one.index == by));
        let direct = allowed.find(|interface| {
            let mut addresses = interface.addresses.iter();
            addresses.any(|(own, bits)| Subnet::new(*own, *bits).contains(to))
        });
        match (direct, by) {
            (Some(interface), _) => Some(NetworkRoute::new(interface.index, false)),
            (None, None) => Some(NetworkRoute::new(own.index, true)),
            (None, Some(_)) => None,
        }
    }

    pub(super) fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let addresses: Vec<IpAddr> = match host {
            "localhost" => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
            _ => host.parse().into_iter().collect(),
        };
        if addresses.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "no such host"));
        }
        Ok(addresses.iter().map(|ip| (*ip, port).into()).collect())
    }

    /// The local address of connections to `to`.
    pub(super) fn source(to: SocketAddr) -> IpAddr {
        ip_of(to)
    }

    pub(super) async fn connect(
        self: &Arc<Self>,
        to: SocketAddr,
        options: &SocketOptions,
        before: &mut BeforeConnect<'_>,
    ) -> io::Result<Arc<dyn Socket>> {
        let wanted = options
            .local
            .unwrap_or_else(|| (Self::source(to), 0).into());
        let local = SocketAddr::new(wanted.ip(), self.take_port(wanted.port()));
        before(&Unconnected::new(local, None))?;
        let ends = [local, SocketAddr::new(ip_of(to), to.port())];
        let cookie = (local.ip(), ends[1]);
        if options.fast_open && self.state().cookies.contains(&cookie) {
            return Ok(self.deferred(ends));
        }
        // One way with the SYN; the way back goes unnoticed since nothing is sent before.
        let arrival = self.core.now() + self.core.options.latency;
        self.core.timer(arrival).await;
        let Some(acceptor) = self.listener(to) else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        if options.fast_open && acceptor.has_fast_open() {
            self.state().cookies.insert(cookie);
        }
        let (ours, theirs) = self.pair(ends);
        if !acceptor.offer(theirs) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        Ok(ours)
    }

    /// A client's socket whose SYN waits for data.
    fn deferred(self: &Arc<Self>, ends: [SocketAddr; 2]) -> Arc<VirtualSocket> {
        let (ours, theirs) = self.pair(ends);
        let mut delivery = SynDelivery::Once;
        {
            let ordered = &mut self.state().syns;
            if let Some(at) = ordered.iter().position(|(at, ..)| *at == ends[1]) {
                let (_, ordered, sender) = ordered.remove(at);
                let _first = sender.set(ends[0]);
                delivery = ordered;
            }
        }
        ours.defer(Syn {
            core: Arc::clone(&self.core),
            net: Arc::downgrade(self),
            ends,
            theirs,
            delivery,
        });
        ours
    }

    /// A connection, with what was ordered for it.
    fn pair(&self, ends: [SocketAddr; 2]) -> (Arc<VirtualSocket>, Arc<VirtualSocket>) {
        let (ours, theirs) = VirtualSocket::pair(&self.core, ends);
        let mut state = self.state();
        state.connections.retain(|socket| socket.strong_count() > 0);
        state.connections.push(Arc::downgrade(&ours));
        if let Some(at) = state.orders.iter().position(|(at, _)| *at == ends[1]) {
            match state.orders.remove(at).1 {
                Order::Truncate { is_client, len } => {
                    let sender = if is_client { &ours } else { &theirs };
                    sender.truncate(len);
                }
                Order::Copy(copy) => ours.copy_sent(copy),
            }
        }
        (ours, theirs)
    }

    pub(super) fn bind(
        self: &Arc<Self>,
        at: SocketAddr,
        options: &SocketOptions,
        before: &mut BeforeListen<'_>,
    ) -> io::Result<Arc<dyn Acceptor>> {
        let local = SocketAddr::new(at.ip(), self.take_port(at.port()));
        before(&Unconnected::new(local, None))?;
        let backlog = usize::try_from(options.backlog.unwrap_or(1024)).unwrap_or(usize::MAX);
        let mut state = self.state();
        let listener = state.listeners.get(&local);
        if listener.is_some_and(|listener| listener.strong_count() > 0) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let net = Arc::downgrade(self);
        let core = Arc::clone(&self.core);
        let acceptor = VirtualAcceptor::new(core, net, local, backlog, options.fast_open);
        state.listeners.insert(local, Arc::downgrade(&acceptor));
        Ok(acceptor)
    }

    pub(super) fn stop_listening(&self, at: SocketAddr) {
        self.state().listeners.remove(&at);
    }

    pub(super) fn end_listeners(&self, host: IpAddr) {
        self.state().listeners.retain(|at, _| at.ip() != host);
    }

    pub(super) fn order(&self, to: SocketAddr, order: Order) {
        self.state().orders.push((to, order));
    }

    pub(super) fn deliver_syn(&self, to: SocketAddr, delivery: SynDelivery) -> SynSender {
        let sender = SynSender::default();
        let ordered = (to, delivery, Arc::clone(&sender));
        self.state().syns.push(ordered);
        sender
    }

    pub(super) fn cut(&self, is_hit: impl Fn(SocketAddr) -> bool) -> usize {
        let connections = self.connections();
        let cut = connections.iter().filter(|socket| socket.has_end(&is_hit));
        cut.map(|socket| socket.reset()).count()
    }

    /// Ends all connections, so that nothing keeps anything alive.
    pub(super) fn close(&self) {
        self.connections().iter().for_each(|socket| socket.reset());
    }

    fn connections(&self) -> Vec<Arc<VirtualSocket>> {
        let state = self.state();
        state.connections.iter().filter_map(Weak::upgrade).collect()
    }

    /// The listener on the address, or on its port with a wildcard address.
    pub(super) fn listener(&self, to: SocketAddr) -> Option<Arc<VirtualAcceptor>> {
        let any: IpAddr = if to.is_ipv4() {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        let both = Ipv6Addr::UNSPECIFIED.into();
        let candidates = [ip_of(to), any, both];
        let state = self.state();
        let mut addresses = candidates.iter().map(|ip| SocketAddr::new(*ip, to.port()));
        addresses.find_map(|at| state.listeners.get(&at)?.upgrade())
    }

    /// The port asked for, or a free one.
    fn take_port(&self, wanted: u16) -> u16 {
        if wanted != 0 {
            return wanted;
        }
        let mut state = self.state();
        // Used again only after all others, and tests do not hold that many at a time.
        let port = state.next_port;
        state.next_port = port.checked_add(1).unwrap_or(FIRST_PORT);
        port
    }

    fn state(&self) -> MutexGuard<'_, NetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The address that packets to a wildcard address go to.
fn ip_of(to: SocketAddr) -> IpAddr {
    match to.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

/// The first of the ports for connecting sockets.
const FIRST_PORT: u16 = 32_768;
