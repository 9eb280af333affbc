//! Set-ups that end in TCP, with the right reason and no byte lost.

use super::{Carried, Network, Peers, Reason, Scenario};
use crate::lab::Version;
use crate::workload::{Kind, Step};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        ending_in_tcp("no-ueid", "the peer has no user EID")
            .peer(|node| node.ueids = &[])
            .carried(declined_by_peer(NO_DEVICE), declined_by_peer(NO_DEVICE)),
        ending_in_tcp("other-ueid", "the peer has another user EID")
            .peer(|node| node.ueids = &["SMC-INTEROP-OTHER"])
            .carried(declined_by_peer(NO_DEVICE), declined_by_us(NO_DEVICE)),
        ending_in_tcp("no-rdma", "the peer has no RDMA device")
            .peer(|node| node.devices = 0)
            .carried(
                declined_by_peer(NO_SMC_R_DEVICE),
                declined_by_peer(NO_DEVICE),
            ),
        tcp_peer(),
        over(
            Network::V6,
            "ipv6",
            "IPv6, over which Linux does no SMC-R version 2",
        )
        .carried(
            Carried::Tcp(Some((NO_DEVICE, 0)), Some((DECLINED, NO_DEVICE))),
            Carried::Tcp(Some((DECLINED, NO_DEVICE)), Some((NO_DEVICE, 0))),
        ),
        ipv6_offered(),
        over(
            Network::V4ToV6,
            "dual-stack",
            "an IPv4 client and a socket that listens on IPv6",
        ),
        ipsec(),
        old_without_ueid(),
        old_without_rdma(),
    ]
}

/// Something goes over the connection in both directions, whatever carries it.
fn over(network: Network, name: &'static str, about: &'static str) -> Scenario {
    let mut scenario = Scenario::new(name, about).steps(
        [Step::Send(100_000), Step::Receive(100_000)],
        [Step::Receive(100_000), Step::Send(100_000), Step::End],
    );
    scenario.network = network;
    scenario
}

fn ending_in_tcp(name: &'static str, about: &'static str) -> Scenario {
    over(Network::V4, name, about)
}

fn tcp_peer() -> Scenario {
    let mut scenario = ending_in_tcp("tcp-peer", "the peer does not know SMC")
        .peer(|node| node.kind = Some(Kind::Tcp))
        .carried(
            Carried::Tcp(Some((NO_SMC, 0)), None),
            Carried::Tcp(Some((NO_SMC, 0)), None),
        );
    scenario.peers = Peers::NotOurs;
    scenario
}

/// A kernel client does as without the offer, which a kernel server declines.
fn ipv6_offered() -> Scenario {
    let mut scenario = over(
        Network::V6,
        "ipv6-offered",
        "IPv6, over which ours offers SMC-R version 2 to a kernel",
    )
    .both(|node| node.offers_ipv6 = true)
    .carried(
        declined_by_peer(NO_SMC_R_DEVICE),
        Carried::Tcp(Some((DECLINED, NO_DEVICE)), Some((NO_DEVICE, 0))),
    );
    scenario.peers = Peers::NotOurs;
    scenario.only_ours = Some("a kernel does not offer it");
    scenario
}

/// A kernel looks at policies of the socket itself only, and its SMC goes around all others.
fn ipsec() -> Scenario {
    let mut scenario = ending_in_tcp("ipsec", "IPsec policies apply to the connection")
        .carried(declined_by_us(IPSEC), declined_by_us(IPSEC));
    scenario.has_ipsec = true;
    scenario.only_ours = Some("a kernel does SMC-R here");
    scenario
}

fn old_without_ueid() -> Scenario {
    old("old-no-ueid", "v2.0 and no user EID at the peer")
        .peer(|node| node.ueids = &[])
        .carried(declined_by_peer(NO_DEVICE), declined_by_peer(NO_DEVICE))
}

fn old_without_rdma() -> Scenario {
    let mut scenario = old("old-no-rdma", "v2.0 and no RDMA device here")
        .carried(declined_by_us(NO_DEVICE), declined_by_us(NO_SMC_R_DEVICE));
    scenario.subject.devices = 0;
    scenario
}

/// Nothing that gets as far as RDMA: the soft-RoCE of that kernel loses completions, and its SMC
/// then waits indefinitely, as client and as server.
fn old(name: &'static str, about: &'static str) -> Scenario {
    let mut scenario = ending_in_tcp(name, about);
    scenario.kernel = Version::V6_1;
    scenario.peers = Peers::NotOurs;
    scenario
}

pub(super) fn declined_by_peer(code: u32) -> Carried {
    Carried::Tcp(Some((DECLINED, code)), Some((code, 0)))
}

pub(super) fn declined_by_us(code: u32) -> Carried {
    let ours: Reason = (code, 0);
    Carried::Tcp(Some(ours), Some((DECLINED, code)))
}

const NO_SMC: u32 = 0x0301_0000;
const IPSEC: u32 = 0x0302_0000;
const NO_DEVICE: u32 = 0x0303_0000;
const NO_SMC_R_DEVICE: u32 = 0x0303_0002;
const DECLINED: u32 = 0x0500_0000;
