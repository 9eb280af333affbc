//! Networks that are not one plain subnet.

use super::fallback::{declined_by_peer, declined_by_us};
use super::{Action, Network, Peers, Scenario, ScenarioEnd, Shape};
use crate::workload::{Script, Step};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        exchange(Network::Vlan, "vlan", "over an interface of a VLAN"),
        macvlan(),
        ipv6(),
        exchange(
            Network::Onlink,
            "onlink",
            "a direct route to another subnet",
        ),
        exchange(Network::Gateway, "gateway", "a route over a gateway"),
        unrelated_network(),
        third_port(),
    ]
}

fn exchange(network: Network, name: &'static str, about: &'static str) -> Scenario {
    let mut scenario = Scenario::new(name, about).steps(
        [ASK, Step::Exchange(100_000)],
        [ANSWER, Step::Exchange(100_000), Step::End],
    );
    scenario.network = network;
    scenario
}

/// The ports have GIDs at such an interface, and soft-RoCE receives nothing there.
fn macvlan() -> Scenario {
    exchange(
        Network::Macvlan,
        "macvlan",
        "over an interface with a MAC address of its own, where RoCE does not work",
    )
    .carried(
        declined_by_peer(LINK_NOT_CONFIRMED),
        declined_by_us(LINK_NOT_CONFIRMED),
    )
}

/// Between two ends of the userspace stack, which agree on it.
fn ipv6() -> Scenario {
    let mut scenario = exchange(Network::V6, "ipv6-agreed", "GIDs that are IPv6 addresses")
        .scripts(
            Script::many(5, [ASK, Step::Exchange(100_000)]).rounds(2),
            Script::many(5, [ANSWER, Step::Exchange(100_000), Step::End]).rounds(2),
        )
        .both(|node| node.offers_ipv6 = true);
    scenario.peers = Peers::Ours;
    scenario
}

/// The usual host with two cards: they are on networks that have nothing to do with each other, and
/// there are no PNET IDs that say so.
fn unrelated_network() -> Scenario {
    let linked = || Step::Gate("linked".into());
    Scenario::new(
        "unrelated-network",
        "each end has a second device, on a network that does not lead to the other one",
    )
    .both(|node| {
        node.devices = 2;
        node.has_pnet = false;
        node.is_apart = true;
    })
    .steps(
        [ASK, Step::Pause(3000), linked(), ASK],
        [ANSWER, ANSWER, Step::End],
    )
    .trigger(
        ScenarioEnd::Subject,
        "linked",
        [
            Action::Await(Shape::Reduced),
            Action::Go(ScenarioEnd::Subject),
        ],
    )
}

/// The PNET IDs state one network for all, and the second device has no way to the peer. The peer's
/// port that comes back is the occasion to try the third one.
fn third_port() -> Scenario {
    let mut scenario = Scenario::new(
        "third-port",
        "the second device cannot reach the peer, and the second link is at the third one",
    )
    .both(|node| node.devices = 2)
    .steps(
        [ASK, Step::Gate("tried".into()), ASK],
        [ANSWER, ANSWER, Step::End],
    )
    .trigger(
        ScenarioEnd::Subject,
        "tried",
        [
            Action::Wait(6000),
            Action::Await(Shape::Reduced),
            Action::LinkDown(ScenarioEnd::Peer, 1),
            Action::LinkUp(ScenarioEnd::Peer, 1),
            Action::Await(Shape::Symmetric),
            Action::Go(ScenarioEnd::Subject),
        ],
    );
    scenario.subject.devices = 3;
    scenario.subject.is_apart = true;
    scenario.only_ours = Some("a kernel tries the same device again");
    scenario
}

const ASK: Step = Step::Echo {
    size: 1000,
    count: 3,
};
const ANSWER: Step = Step::EchoBack {
    size: 1000,
    count: 3,
};

const LINK_NOT_CONFIRMED: u32 = 0x0201_0000;
