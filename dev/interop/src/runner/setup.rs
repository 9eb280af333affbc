//! Brings a guest into the state in which a scenario begins.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::{Run, guest_of};
use crate::lab::{Lab, NICS, Version};
use crate::protocol::{Order, PNET, Pnet};
use crate::scenario::{Network, Node, ScenarioEnd};

/// Gives the interfaces their addresses, once after the boot.
pub(crate) fn after_boot(lab: &mut Lab) -> Result<()> {
    for end in [ScenarioEnd::Subject, ScenarioEnd::Peer] {
        let guest = guest_of(end);
        let mut commands = vec!["link set lo up".to_owned()];
        for nic in 0..NICS {
            let keep = format!("net/ipv6/conf/eth{nic}/keep_addr_on_down");
            set_sysctl(lab, guest, &keep, "1")?;
            let (v4, v6, metric) = (v4(end, nic), v6(end, nic), metric(nic));
            commands.extend([
                format!("addr add {v4}/24 dev eth{nic} metric {metric}"),
                // No wait for duplicates that there cannot be.
                format!("addr add {v6}/64 dev eth{nic} nodad"),
                format!("link set eth{nic} up"),
            ]);
        }
        lab.ip(guest, commands)?;
        for (name, value) in SYSTEM {
            set_sysctl(lab, guest, name, value)?;
        }
    }
    Ok(())
}

/// Devices, EIDs and settings of both guests as the scenario wants them. Whatever an earlier
/// scenario has left goes with the devices.
pub(crate) fn before(lab: &mut Lab, run: &Run) -> Result<()> {
    for end in [ScenarioEnd::Subject, ScenarioEnd::Peer] {
        let (guest, node) = (guest_of(end), run.scenario.node(end));
        for nic in 0..NICS {
            lab.set_cable(guest, nic, nic != 1 || !node.is_apart)?;
        }
        for device in devices(lab, guest)? {
            lab.exec(guest, &format!("rdma link delete {device}"))?;
        }
        // What was sent until here is of an earlier scenario.
        lab.order::<()>(guest, Order::ClearKernelLog)?;
        let commands = networks(lab, run, end)?;
        lab.ip(guest, commands)?;
        let newer: &[_] = if run.kernels()[guest] == Version::V6_12 {
            USUAL_SINCE_6_12
        } else {
            &[]
        };
        for (name, value) in USUAL.iter().chain(newer) {
            set_sysctl(lab, guest, &format!("net/smc/{name}"), value)?;
        }
        for (name, value) in node.sysctls {
            set_sysctl(lab, guest, &format!("net/smc/{name}"), value)?;
        }
        let ueids = node.ueids.iter().map(|eid| (*eid).to_owned()).collect();
        lab.order::<()>(guest, Order::SetUeids(ueids))?;
        lab.order::<()>(guest, Order::SetPnets(Vec::new()))?;
        for nic in 0..node.devices {
            add_device(lab, guest, nic)?;
        }
        if node.has_pnet {
            lab.order::<()>(guest, Order::SetPnets(pnets(node)))?;
        }
    }
    for end in [ScenarioEnd::Subject, ScenarioEnd::Peer] {
        let node = run.scenario.node(end);
        for nic in 0..node.devices {
            let address = match nic {
                1 if node.is_apart => v4_apart(end),
                _ => v4(end, nic),
            };
            await_gid(lab, end, nic, address.to_ipv6_mapped())?;
            if run.scenario.network == Network::V6 {
                await_gid(lab, end, nic, v6(end, nic))?;
            }
        }
        match run.scenario.network {
            Network::Vlan | Network::Macvlan => {
                await_gid(lab, end, 0, v4_stacked(end).to_ipv6_mapped())?;
            }
            Network::Onlink | Network::Gateway => {
                await_gid(lab, end, 0, v4_routed(end).to_ipv6_mapped())?;
            }
            Network::V4 | Network::V6 | Network::V4ToV6 => {}
        }
    }
    Ok(())
}

/// Commands of `ip` that bring the interfaces into the network of the scenario.
fn networks(lab: &mut Lab, run: &Run, end: ScenarioEnd) -> Result<Vec<String>> {
    let guest = guest_of(end);
    let names: Vec<String> = lab.order(guest, Order::ListDir("/sys/class/net".into()))?;
    let addresses = lab.exec(guest, "ip -4 -o addr show")?;
    let up = (0..NICS).map(|nic| format!("link set eth{nic} up"));
    let mut commands: Vec<String> = up.collect();
    if names.iter().any(|name| name == STACKED) {
        commands.push(format!("link delete {STACKED}"));
    }
    let kind = match run.scenario.network {
        Network::Vlan => Some("vlan id 7"),
        Network::Macvlan => Some("macvlan mode bridge"),
        _ => None,
    };
    if let Some(kind) = kind {
        commands.extend([
            format!("link add link eth0 name {STACKED} type {kind}"),
            format!("addr add {}/24 dev {STACKED}", v4_stacked(end)),
            format!("link set {STACKED} up"),
        ]);
    }
    commands.extend(routes(run, end, &addresses));
    commands.extend(["policy", "state"].map(|what| format!("xfrm {what} flush")));
    if run.scenario.has_ipsec {
        commands.extend(protection(end));
    }
    let (usual, apart) = (v4(end, 1), v4_apart(end));
    let (old, new) = match run.scenario.node(end).is_apart {
        true => (usual, apart),
        false => (apart, usual),
    };
    if addresses.contains(&format!(" {old}/24")) {
        commands.extend([
            format!("addr del {old}/24 dev eth1"),
            format!("addr add {new}/24 dev eth1 metric {}", metric(1)),
        ]);
    }
    Ok(commands)
}

/// Gives the first interface an address that only a route of its own leads to, or takes it away.
fn routes(run: &Run, end: ScenarioEnd, addresses: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let (own, other) = (v4_routed(end), v4_routed(end.other()));
    if addresses.contains(&format!(" {own}/32")) {
        commands.extend([
            format!("route del {other}"),
            format!("addr del {own}/32 dev eth0"),
        ]);
    }
    let by = match run.scenario.network {
        Network::Onlink => "dev eth0".to_owned(),
        Network::Gateway => format!("via {}", v4(end.other(), 0)),
        _ => return commands,
    };
    commands.extend([
        format!("addr add {own}/32 dev eth0"),
        format!("route add {other} {by} src {own}"),
    ]);
    commands
}

/// Has a guest authenticate everything between the first interfaces (AH).
fn protection(end: ScenarioEnd) -> Vec<String> {
    let (own, other) = (v4(end, 0), v4(end.other(), 0));
    let mut commands = Vec::new();
    for (from, to, direction) in [(own, other, "out"), (other, own, "in")] {
        let spi = 0x100 + u32::from(from.octets()[3]);
        let key = "2b".repeat(32);
        commands.extend([
            format!(
                "xfrm state add src {from} dst {to} proto ah spi {spi} mode transport \
                 auth hmac(sha256) 0x{key}"
            ),
            format!(
                "xfrm policy add src {from} dst {to} dir {direction} \
                 tmpl proto ah mode transport"
            ),
        ]);
    }
    commands
}

/// Soft-RoCE on the interfaces of the subject's guest, for what is not a scenario.
pub(crate) fn give_devices(lab: &mut Lab, count: usize) -> Result<()> {
    for nic in 0..count {
        add_device(lab, guest_of(ScenarioEnd::Subject), nic)?;
    }
    (0..count).try_for_each(|nic| {
        await_gid(
            lab,
            ScenarioEnd::Subject,
            nic,
            v4(ScenarioEnd::Subject, nic).to_ipv6_mapped(),
        )
    })
}

fn add_device(lab: &mut Lab, guest: usize, nic: usize) -> Result<()> {
    let command = format!("rdma link add rxe{nic} type rxe netdev eth{nic}");
    lab.exec(guest, &command).map(drop)
}

/// The address at which an end listens, or connects to.
pub(crate) fn address(run: &Run, end: ScenarioEnd, port: u16) -> SocketAddr {
    let ip: IpAddr = match (run.scenario.network, run.is_client(end.other())) {
        (Network::V6, _) => v6(end, 0).into(),
        (Network::Vlan | Network::Macvlan, _) => v4_stacked(end).into(),
        (Network::Onlink | Network::Gateway, _) => v4_routed(end).into(),
        _ => v4(end, 0).into(),
    };
    SocketAddr::new(ip, port)
}

/// The address that a listener binds.
pub(crate) fn any(run: &Run, port: u16) -> SocketAddr {
    match run.scenario.network {
        Network::V6 | Network::V4ToV6 => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port),
        _ => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port),
    }
}

/// The addresses of an end's interfaces, as a scenario has them that changes none.
#[cfg(feature = "ours")]
pub(crate) fn addresses(end: ScenarioEnd) -> [IpAddr; NICS] {
    std::array::from_fn(|nic| v4(end, nic).into())
}

/// All in one network: Linux takes a second device only if its address is in the network of the
/// TCP connection.
fn v4(end: ScenarioEnd, nic: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 0, 100 * number(nic) + number(guest_of(end)) + 1)
}

/// An address in a subnet of its own.
fn v4_routed(end: ScenarioEnd) -> Ipv4Addr {
    Ipv4Addr::new(10, 29 + number(guest_of(end)), 0, 1)
}

/// The address of the interface that is stacked on the first one.
fn v4_stacked(end: ScenarioEnd) -> Ipv4Addr {
    Ipv4Addr::new(10, 7, 0, number(guest_of(end)) + 1)
}

/// The address of the second interface in a network of this end alone.
fn v4_apart(end: ScenarioEnd) -> Ipv4Addr {
    Ipv4Addr::new(10, 20 + number(guest_of(end)), 0, 1)
}

/// The first interface is the better way for TCP, also after it was away.
fn metric(nic: usize) -> usize {
    100 * (nic + 1)
}

fn v6(end: ScenarioEnd, nic: usize) -> Ipv6Addr {
    let (net, host) = (u16::from(number(nic)), u16::from(number(guest_of(end))));
    Ipv6Addr::new(0xfd00, 9, 0, net, 0, 0, 0, host + 1)
}

fn number(index: usize) -> u8 {
    u8::try_from(index).unwrap_or(u8::MAX)
}

/// All devices are on one network. Linux before 6.12 does not find them without configuration.
fn pnets(node: &Node) -> Vec<Pnet> {
    let interfaces = (0..NICS).map(|nic| Pnet::Interface {
        pnet: PNET.into(),
        name: format!("eth{nic}"),
    });
    let devices = (0..node.devices).map(|nic| Pnet::Rdma {
        pnet: PNET.into(),
        name: format!("rxe{nic}"),
    });
    interfaces.chain(devices).collect()
}

fn devices(lab: &mut Lab, guest: usize) -> Result<Vec<String>> {
    lab.order(guest, Order::ListDir(DEVICES.into()))
}

/// Soft-RoCE fills its table of addresses a moment after the device is there.
fn await_gid(lab: &mut Lab, end: ScenarioEnd, nic: usize, address: Ipv6Addr) -> Result<()> {
    let wanted = address.segments().map(|segment| format!("{segment:04x}"));
    let wanted = wanted.join(":");
    let ports = format!("{DEVICES}/rxe{nic}/ports/1");
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        for index in 0..GIDS {
            let path = format!("{ports}/gids/{index}");
            let gid: String = lab.order(guest_of(end), Order::ReadFile(path))?;
            if gid.trim() == wanted {
                return Ok(());
            }
        }
        thread::sleep(Duration::from_millis(50));
    }
    bail!("rxe{nic} has no GID for {address}");
}

pub(crate) fn set_sysctl(lab: &mut Lab, guest: usize, name: &str, value: &str) -> Result<()> {
    let order = Order::WriteFile {
        path: format!("/proc/sys/{name}"),
        text: value.into(),
    };
    lab.order(guest, order)
}

/// The interface that is stacked on the first one, in scenarios that have one.
const STACKED: &str = "stacked0";

const DEVICES: &str = "/sys/class/infiniband";

/// Places of the table to check.
const GIDS: usize = 8;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Addresses answer and ask through the interface that they belong to and no other.
const SYSTEM: &[(&str, &str)] = &[
    ("net/ipv4/conf/all/arp_ignore", "1"),
    ("net/ipv4/conf/all/arp_announce", "2"),
    // For clients and servers that ask for it.
    ("net/ipv4/tcp_fastopen", "3"),
];

/// The kernel's settings for SMC that scenarios change, as they are without.
const USUAL: &[(&str, &str)] = &[("smcr_testlink_time", "30")];

/// Likewise, where the kernel has it: before 6.12 there is nothing to negotiate.
const USUAL_SINCE_6_12: &[(&str, &str)] = &[("smcr_max_links_per_lgr", "2")];
