use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use smc_wire::size::SizeCode;
use smc_wire::types::{AlertToken, GroupId, Mac, MtuCode, Psn, Qpn, Rkey, RmbAddr, RoceGid};

use super::summary::summary;
use super::*;
use crate::device::{DeviceError, LinkAddress, LinkFailure, RdmaAddress, RoceKind, Route};
use crate::proto::Role;
use crate::proto::group::{DeviceIndex, GroupLinks};

/// One of the two sides.
pub(super) type Side = usize;
pub(super) const SERVER: Side = 0;
pub(super) const CLIENT: Side = 1;

/// Both sides, their devices, and the network.
pub(super) struct World {
    pub(super) now: Instant,
    pub(super) hosts: [Host; 2],
    events: BTreeMap<(Instant, u64), WorldEvent>,
    last_event: u64,
    last_qpn: u32,
    /// Queue pairs that exist: whose, which link.
    qps: BTreeMap<u32, (Side, LinkId)>,
    /// Nothing passes between these queue pairs (the smaller number).
    pub(super) cut: BTreeSet<u32>,
    /// How long a message is under way: at least, and so much more at random.
    pub(super) latency: (Duration, Duration),
    /// How long a device tries to send a message before it reports that the link is down.
    pub(super) retry_time: Duration,
    random: u64,
    /// Messages on the wire, in the form of `summary`.
    pub(super) log: Vec<(Side, LinkId, Vec<u8>)>,
    /// The last time something arrives on a queue pair: order is kept.
    order: BTreeMap<u32, Instant>,
}

/// One side: a link group and what the shell would do for it.
pub(super) struct Host {
    pub(super) group: LinkGroup,
    pub(super) ports: Vec<Port>,
    /// The outputs that are for others than the simulated shell.
    pub(super) seen: Vec<LinkGroupOutput>,
    pub(super) qps: BTreeMap<LinkId, Qp>,
    /// Registering fails on these devices.
    pub(super) unmappable: BTreeSet<usize>,
    /// Opening never ends on these devices.
    pub(super) stuck: BTreeSet<usize>,
    /// State of its links as the registry has it.
    pub(super) reported: GroupLinks,
    /// Sees messages before its group does; true keeps them from it.
    pub(super) filter: Option<fn(&[u8]) -> bool>,
    /// Modifies messages that its group sends.
    pub(super) edit: Option<fn(&mut [u8])>,
    /// So many of its next answers to DELETE RKEY are not sent.
    pub(super) omitted: usize,
    /// Its peer may have named one queue pair for several links.
    pub(super) has_forged_peer: bool,
    terminated: bool,
    /// Links are stopped only after this time.
    pub(super) stop_time: Duration,
    /// Connections leave their links only after this time.
    pub(super) move_time: Duration,
    /// RMBs are registered only after this time.
    pub(super) map_time: Duration,
}

#[derive(Clone)]
pub(super) struct Port {
    pub(super) device: usize,
    pub(super) address: RdmaAddress,
    pub(super) up: bool,
    /// Nothing passes, although it is up.
    pub(super) is_dead: bool,
}

pub(super) struct Qp {
    pub(super) local: LinkAddress,
    pub(super) peer: Option<u32>,
}

#[derive(Debug)]
enum WorldEvent {
    Deliver {
        from: Side,
        link: LinkId,
        qpn: u32,
        peer: u32,
        message: Vec<u8>,
        tag: OpTag,
    },
    Completed(Side, LinkId, OpTag),
    Down(Side, LinkId, LinkFailure),
    Opened(Side, LinkId, usize, RdmaAddress),
    Connected(Side, LinkId, LinkAddress),
    Mapped(Side, usize, Vec<RmbId>),
    Stopped(Side, LinkId),
    Moved(Side, LinkId),
}

impl World {
    /// Hosts with so many ports (server, client), each on a device of its own.
    pub(super) fn new(ports: [usize; 2], version: RoceKind, config: LlcConfig) -> Self {
        let host = |side: Side, role| Host {
            group: LinkGroup::new(role, GroupId([0, 0, 1 + side as u8, 0]), config),
            ports: (0..ports[side]).map(|at| port(side, at, version)).collect(),
            seen: Vec::new(),
            qps: BTreeMap::new(),
            unmappable: BTreeSet::new(),
            stuck: BTreeSet::new(),
            reported: GroupLinks::default(),
            filter: None,
            edit: None,
            omitted: 0,
            has_forged_peer: false,
            terminated: false,
            stop_time: Duration::ZERO,
            move_time: MS,
            map_time: MS,
        };
        let start = Instant::now();
        Self {
            now: start,

            hosts: [host(SERVER, Role::Server), host(CLIENT, Role::Client)],
            events: BTreeMap::new(),
            last_event: 0,
            last_qpn: 0x10,
            qps: BTreeMap::new(),
            cut: BTreeSet::new(),
            latency: (MS, Duration::ZERO),
            retry_time: SECOND,
            random: 1,
            log: Vec::new(),
            order: BTreeMap::new(),
        }
    }

    pub(super) fn v2(ports: [usize; 2]) -> Self {
        Self::new(ports, RoceKind::V2, LlcConfig::default())
    }

    pub(super) fn seed(&mut self, seed: u64) {
        self.random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    }

    /// First contact on the first ports, up to where CONFIRM LINK would begin.
    pub(super) fn contact(&mut self, terms: LlcTerms) -> [LinkId; 2] {
        let mut links = [LinkId(0); 2];
        let mut ends = Vec::new();
        for side in [SERVER, CLIENT] {
            let (device, address) = {
                let port = &self.hosts[side].ports[0];
                (port.device, port.address.clone())
            };
            let local = self.make_qp(&address);
            let now = self.now;
            let host = &mut self.hosts[side];
            links[side] = host.group.first_link(now, DeviceIndex(device), local);
            host.qps.insert(links[side], Qp { local, peer: None });
            self.qps.insert(local.qpn.get(), (side, links[side]));
            self.candidates(side);
            let keys = self.keys(side, RmbId(0), &[device]);
            self.hosts[side].group.add_rmb(RmbId(0), &keys);
            ends.push(local);
        }
        for side in [SERVER, CLIENT] {
            let peer = ends[1 - side];
            let host = &mut self.hosts[side];
            let share = [1 + u8::try_from(side).unwrap(); 8];
            host.group.first_peer(peer, Route::SameSubnet, terms, share);
            host.qps.get_mut(&links[side]).unwrap().peer = Some(peer.qpn.get());
            let (rkey, addr) = key_of(1 - side, RmbId(0), self.hosts[1 - side].ports[0].device);
            let group = &mut self.hosts[side].group;
            group
                .add_rtoken(links[side], &peer_rmb(rkey, addr))
                .unwrap();
        }
        links
    }

    /// First contact with everything behind it.
    pub(super) fn connected(ports: [usize; 2], terms: LlcTerms, config: LlcConfig) -> Self {
        let version = match terms.dialect.is_v2() {
            true => RoceKind::V2,
            false => RoceKind::V1,
        };
        let mut world = Self::new(ports, version, config);
        world.connect(terms);
        world
    }

    /// First contact, and what follows from it.
    pub(super) fn connect(&mut self, terms: LlcTerms) {
        self.contact(terms);
        self.confirm();
        for side in [SERVER, CLIENT] {
            assert!(
                self.took(side, &LinkGroupOutput::FirstLink(Ok(()))),
                "{side}"
            );
        }
        self.establish();
    }

    /// The same with one device on each host, which has two ports.
    pub(super) fn connected_by_dual_ports(terms: LlcTerms) -> Self {
        let mut world = Self::v2([2, 2]);
        for port in world.hosts.iter_mut().flat_map(|host| &mut host.ports) {
            port.device = 0;
        }
        world.connect(terms);
        world
    }

    pub(super) fn confirm(&mut self) {
        for side in [CLIENT, SERVER] {
            let now = self.now;
            self.with(side, |group| {
                group.first_handshake(HandshakeHash::of(&[b"PROPOSAL, ACCEPT and CONFIRM"]));
                group.confirm_link(now);
            });
        }
        self.settle();
    }

    pub(super) fn establish(&mut self) {
        for side in [CLIENT, SERVER] {
            let now = self.now;
            self.with(side, |group| group.establish(now));
        }
        self.settle();
    }

    /// Calls the machine of a host and applies its outputs.
    pub(super) fn with<R>(&mut self, side: Side, act: impl FnOnce(&mut LinkGroup) -> R) -> R {
        let result = act(&mut self.hosts[side].group);
        self.carry_out(side);
        result
    }

    fn carry_out(&mut self, side: Side) {
        while let Some(output) = self.hosts[side].group.poll_output() {
            self.hosts[side].seen.push(output.clone());
            match output {
                LinkGroupOutput::Send { link, message, tag } => {
                    self.transmit(side, link, message, tag)
                }
                LinkGroupOutput::Open {
                    link,
                    device,
                    address,
                } => {
                    let is_stuck = self.hosts[side].stuck.contains(&device.0);
                    let opened = WorldEvent::Opened(side, link, device.0, address);
                    let wait = if is_stuck { 3_600 * SECOND } else { MS };
                    self.later(wait, opened);
                }
                LinkGroupOutput::Connect { link, peer, .. } => {
                    self.later(MS, WorldEvent::Connected(side, link, peer));
                }
                LinkGroupOutput::Map { device, rmbs } => {
                    assert!(!rmbs.is_empty());
                    let wait = self.hosts[side].map_time;
                    self.later(wait, WorldEvent::Mapped(side, device.0, rmbs));
                }
                LinkGroupOutput::Move { from, .. } => {
                    let wait = self.hosts[side].move_time;
                    self.later(wait, WorldEvent::Moved(side, from));
                }
                LinkGroupOutput::Links(links) => {
                    assert!(!links.ends.is_empty(), "the last one ends the group");
                    self.hosts[side].reported = links;
                }
                LinkGroupOutput::Stop(link) => match self.hosts[side].stop_time {
                    Duration::ZERO => self.hosts[side].group.handle_stopped(link),
                    wait => self.later(wait, WorldEvent::Stopped(side, link)),
                },
                LinkGroupOutput::Close(link) => {
                    let host = &mut self.hosts[side];
                    if let Some(qp) = host.qps.remove(&link) {
                        let mut ends = host.reported.ends.iter();
                        let is_reported = ends.any(|end| Some(end.qpn.get()) == qp.peer);
                        let may_be_reported = host.group.is_ending() || host.has_forged_peer;
                        assert!(!is_reported || may_be_reported);
                        self.qps.remove(&qp.local.qpn.get());
                    }
                }
                LinkGroupOutput::Terminate(_) => {
                    assert!(!std::mem::replace(&mut self.hosts[side].terminated, true));
                }
                LinkGroupOutput::Ended => {
                    assert!(self.hosts[side].qps.is_empty(), "all links are closed");
                }
                _ => {}
            }
        }
    }

    fn transmit(&mut self, from: Side, link: LinkId, mut message: Vec<u8>, tag: OpTag) {
        if let Some(edit) = self.hosts[from].edit {
            edit(&mut message);
        }
        let omitted = &mut self.hosts[from].omitted;
        if *omitted > 0 && is_delete_answer(&message) {
            *omitted -= 1;
            return;
        }
        let Some(qp) = self.hosts[from].qps.get(&link) else {
            panic!("{link} of {from} does not exist");
        };
        let (qpn, peer) = (qp.local.qpn.get(), qp.peer.expect("connected before"));
        self.log.push((from, link, message.clone()));
        let jitter = self.latency.1.as_nanos() as u64;
        let extra = Duration::from_nanos(if jitter > 0 { self.below(jitter) } else { 0 });
        let arrives = self.now + self.latency.0 + extra;
        let order = self.order.entry(qpn).or_insert(arrives);
        let arrives = arrives.max(*order);
        *order = arrives;
        self.at(
            arrives,
            WorldEvent::Deliver {
                from,
                link,
                qpn,
                peer,
                message,
                tag,
            },
        );
    }

    fn event(&mut self, event: WorldEvent) {
        let now = self.now;
        match event {
            WorldEvent::Deliver {
                from,
                link,
                qpn,
                peer,
                message,
                tag,
            } => {
                let is_connected = self.is_port_up(qpn) && !self.cut.contains(&qpn.min(peer));
                match self.qps.get(&peer).copied() {
                    Some((to, at)) if is_connected && self.is_port_up(peer) => {
                        self.later(MS, WorldEvent::Completed(from, link, tag));
                        let filtered = self.hosts[to].filter.is_some_and(|keep| keep(&message));
                        if !filtered {
                            self.with(to, |group| group.handle_message(now, at, &message));
                        }
                    }
                    // Retries come to their end.
                    _ => {
                        let down = WorldEvent::Down(from, link, LinkFailure::RetryExceeded);
                        self.later(self.retry_time, down);
                    }
                }
            }
            WorldEvent::Completed(side, link, tag) => {
                if self.hosts[side].qps.contains_key(&link) {
                    self.with(side, |group| group.handle_completed(now, link, tag));
                }
            }
            WorldEvent::Down(side, link, failure) => {
                if self.hosts[side].qps.contains_key(&link) {
                    self.with(side, |group| group.handle_link_down(now, link, failure));
                }
            }
            WorldEvent::Opened(side, link, device, address) => {
                if self.hosts[side].group.link(link).is_none() {
                    let gone = Err(DeviceError::Invalid("link is gone"));
                    return self.with(side, |group| group.handle_opened(now, link, gone));
                }
                let at = |port: &&Port| port.device == device && port.address == address;
                let up = self.hosts[side]
                    .ports
                    .iter()
                    .find(at)
                    .is_some_and(|port| port.up);
                let result = if up {
                    let local = self.make_qp(&address);
                    self.qps.insert(local.qpn.get(), (side, link));
                    let qp = Qp { local, peer: None };
                    self.hosts[side].qps.insert(link, qp);
                    Ok(local)
                } else {
                    Err(DeviceError::Invalid("no such address"))
                };
                self.with(side, |group| group.handle_opened(now, link, result));
            }
            WorldEvent::Connected(side, link, peer) => {
                let Some(qp) = self.hosts[side].qps.get_mut(&link) else {
                    let gone = Err(DeviceError::Invalid("link is gone"));
                    return self.with(side, |group| group.handle_connected(now, link, gone));
                };
                qp.peer = Some(peer.qpn.get());
                self.with(side, |group| group.handle_connected(now, link, Ok(())));
            }
            WorldEvent::Mapped(side, device, rmbs) => {
                let fails = self.hosts[side].unmappable.contains(&device);
                let keys: Vec<_> = rmbs
                    .into_iter()
                    .filter(|_| !fails)
                    .map(|rmb| {
                        let (rkey, addr) = key_of(side, rmb, device);
                        (rmb, rkey, addr)
                    })
                    .collect();
                self.with(side, |group| {
                    group.handle_mapped(now, DeviceIndex(device), &keys);
                });
            }
            WorldEvent::Stopped(side, link) => {
                self.with(side, |group| group.handle_stopped(link));
            }
            WorldEvent::Moved(side, link) => {
                self.with(side, |group| group.handle_moved(now, link));
            }
        }
    }

    /// Runs what happens at once or after short waits; timers of seconds are not waited for.
    pub(super) fn settle(&mut self) {
        self.advance(200 * MS);
    }

    pub(super) fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        let mut rounds = 0;
        while let Some(next) = self.next().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            rounds += 1;
            assert!(rounds < 1_000_000, "nothing comes to rest");
            if let Some(event) = self.due() {
                self.event(event);
                continue;
            }
            for side in [SERVER, CLIENT] {
                let due = self.hosts[side].group.poll_timeout();
                if due.is_some_and(|due| due <= self.now) {
                    let now = self.now;
                    self.with(side, |group| group.handle_timeout(now));
                    let next = self.hosts[side].group.poll_timeout();
                    assert!(next.is_none_or(|next| next > now), "timer stands still");
                }
            }
        }
        self.now = end;
    }

    fn next(&self) -> Option<Instant> {
        let event = self.events.keys().next().map(|(at, _)| *at);
        let timers = self.hosts.iter().map(|host| host.group.poll_timeout());
        timers.chain([event]).flatten().min()
    }

    fn due(&mut self) -> Option<WorldEvent> {
        let first = self.events.first_entry()?;
        (first.key().0 <= self.now).then(|| first.remove())
    }

    fn later(&mut self, wait: Duration, event: WorldEvent) {
        self.at(self.now + wait, event);
    }

    fn at(&mut self, at: Instant, event: WorldEvent) {
        self.last_event += 1;
        self.events.insert((at, self.last_event), event);
    }

    /// A port comes or goes. Its links fail, and the shell gets the change.
    pub(super) fn set_port(&mut self, side: Side, at: usize, up: bool) {
        let port = &mut self.hosts[side].ports[at];
        port.up = up;
        if !up {
            let (device, mac) = (port.device, port.address.mac);
            let is_at = |link: &LinkInfo| {
                link.device.0 == device && link.local.is_some_and(|local| local.mac == mac)
            };
            let group = &self.hosts[side].group;
            let lost: Vec<_> = group.links().filter(is_at).map(|link| link.id).collect();
            for link in lost {
                self.later(MS, WorldEvent::Down(side, link, LinkFailure::PortDown));
            }
        }
        self.candidates(side);
    }

    fn candidates(&mut self, side: Side) {
        let ports = self.hosts[side].ports.iter().filter(|port| port.up);
        let candidates = ports
            .map(|port| PortCandidate {
                device: DeviceIndex(port.device),
                address: port.address.clone(),
            })
            .collect();
        let now = self.now;
        self.with(side, |group| group.handle_candidates(now, candidates));
    }

    fn is_port_up(&self, qpn: u32) -> bool {
        let Some((side, link)) = self.qps.get(&qpn) else {
            return false;
        };
        let mac = self.hosts[*side].qps[link].local.mac;
        let mut ports = self.hosts[*side].ports.iter();
        ports.any(|port| port.address.mac == mac && port.up && !port.is_dead)
    }

    /// No message passes on this link any more, and no side is notified.
    pub(super) fn cut(&mut self, side: Side, link: LinkId) {
        let number = self.qp_number(side, link);
        self.cut.insert(number);
    }

    pub(super) fn is_cut(&self, side: Side, link: LinkId) -> bool {
        self.cut.contains(&self.qp_number(side, link))
    }

    fn qp_number(&self, side: Side, link: LinkId) -> u32 {
        let qp = &self.hosts[side].qps[&link];
        qp.local.qpn.get().min(qp.peer.unwrap())
    }

    fn make_qp(&mut self, address: &RdmaAddress) -> LinkAddress {
        self.last_qpn += 1;
        LinkAddress {
            gid: address.gid,
            mac: address.mac,
            qpn: Qpn::new(self.last_qpn).unwrap(),
            psn: Psn::new(self.last_qpn * 3).unwrap(),
            mtu: address.mtu,
        }
    }

    pub(super) fn keys(&self, side: Side, rmb: RmbId, devices: &[usize]) -> Vec<RmbKey> {
        devices
            .iter()
            .map(|device| {
                let (rkey, addr) = key_of(side, rmb, *device);
                RmbKey {
                    device: DeviceIndex(*device),
                    rkey,
                    addr,
                }
            })
            .collect()
    }

    /// The work of a set-up on reuse: registers with all devices and announces the keys.
    pub(super) fn confirm_rkey(&mut self, side: Side, rmb: u64) {
        let group = &self.hosts[side].group;
        let devices: Vec<_> = group.devices().iter().map(|device| device.0).collect();
        let link = group.assigned_link(0).unwrap_or(LinkId(0));
        let keys = self.keys(side, RmbId(rmb), &devices);
        let now = self.now;
        self.with(side, |group| {
            group.confirm_rkey(now, RmbId(rmb), link, &keys)
        });
    }

    pub(super) fn delete_rkey(&mut self, side: Side, rmb: u64) {
        let now = self.now;
        self.with(side, |group| group.delete_rkey(now, RmbId(rmb)));
    }

    /// Whether this output came, and forgets it.
    pub(super) fn took(&mut self, side: Side, output: &LinkGroupOutput) -> bool {
        let seen = &mut self.hosts[side].seen;
        let at = seen.iter().position(|other| other == output);
        at.map(|at| seen.remove(at)).is_some()
    }

    /// Whether an output of this kind came.
    pub(super) fn saw(&self, side: Side, fits: impl Fn(&LinkGroupOutput) -> bool) -> bool {
        self.hosts[side].seen.iter().any(fits)
    }

    pub(super) fn kinds(&self) -> [GroupType; 2] {
        [0, 1].map(|side| self.hosts[side].group.group_type())
    }

    /// All messages since the start, or since the last call, in short.
    pub(super) fn summaries(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
            .iter()
            .map(|(side, _, message)| summary(*side, message))
            .collect()
    }

    /// xorshift64*: a schedule that is the same on every machine.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

/// The size of all RMBs.
pub(super) const RMB_SIZE: SizeCode = SizeCode::LINUX_DEFAULT;

/// As a message without authentication names an RMB.
pub(super) fn peer_rmb(rkey: Rkey, addr: RmbAddr) -> PeerRmb {
    PeerRmb {
        rkey,
        addr,
        index: 1,
        size: RMB_SIZE,
        token: AlertToken::new(1).unwrap(),
        authentication: None,
    }
}

/// Key and address of an RMB with a device.
pub(super) fn key_of(side: Side, rmb: RmbId, device: usize) -> (Rkey, RmbAddr) {
    let device = device as u32;
    let rkey = Rkey((side as u32 + 1) << 28 | (device + 1) << 24 | (rmb.0 as u32 + 1));
    let addr = RmbAddr(u64::from(rkey.0) << 16);
    (rkey, addr)
}

fn is_delete_answer(message: &[u8]) -> bool {
    matches!(message[0], 0x09 | 0x29) && message[3] & 0x80 != 0
}

fn port(side: Side, at: usize, kind: RoceKind) -> Port {
    let (side, at) = (side as u8, at as u8);
    let mac = Mac::new([0x52, 0x54, 0, side, at, 1]);
    let mut gid = [0; 16];
    match kind {
        RoceKind::V2 => gid[10..].copy_from_slice(&[0xff, 0xff, 10, 9, at, side + 1]),
        RoceKind::V1 => gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, at, side + 1],
    }
    let address = RdmaAddress::new(RoceGid::new(gid), kind, mac, MtuCode::MTU_1024);
    // Ports may be put together at one device.
    let address = address.with_port(at + 1);
    Port {
        device: at.into(),
        address,
        up: true,
        is_dead: false,
    }
}
