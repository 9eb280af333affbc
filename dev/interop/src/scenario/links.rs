//! Link groups of one and two links, and what happens when one is lost.

use super::{Action, MAX_LINKS, Network, Peers, Scenario, ScenarioEnd, Shape, TEST_LINK};
use crate::workload::{Script, Step};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        echo("max-links-1", "groups of one link by agreement")
            .both(|node| node.sysctls = &[(MAX_LINKS, "1")]),
        echo(
            "max-links-2",
            "a second link is offered and refused for want of a device",
        )
        .both(|node| node.sysctls = &[(MAX_LINKS, "2")]),
        echo("test-link", "idle until both ends have tested the link")
            .both(|node| node.sysctls = &[(TEST_LINK, "1")])
            .steps([ASK, Step::Pause(5000), ASK], [ANSWER, ANSWER, Step::End]),
        two_links("two-links", "two devices on each side make two links"),
        under_load("own-nic-down", "an interface goes down under load")
            .unsent_on_lost_link(ScenarioEnd::Peer)
            .trigger(
                ScenarioEnd::Peer,
                "loaded",
                [Action::LinkDown(ScenarioEnd::Subject, 0)],
            ),
        under_load(
            "peer-nic-down",
            "an interface of the peer goes down under load",
        )
        .unsent_on_lost_link(ScenarioEnd::Subject)
        .trigger(
            ScenarioEnd::Peer,
            "loaded",
            [Action::LinkDown(ScenarioEnd::Peer, 0)],
        ),
        under_load(
            "peer-device-gone",
            "an RDMA device of the peer is removed under load",
        )
        .trigger(
            ScenarioEnd::Peer,
            "loaded",
            [Action::RemoveDevice(ScenarioEnd::Peer, 1)],
        ),
        own_device_gone(),
        under_load(
            "nic-back",
            "an interface of the peer goes down and comes back under load",
        )
        .trigger(
            ScenarioEnd::Peer,
            "loaded",
            [
                Action::LinkDown(ScenarioEnd::Peer, 1),
                Action::Await(Shape::Reduced),
                Action::LinkUp(ScenarioEnd::Peer, 1),
                // A kernel may be too quick and use the device that it has got already.
                Action::Await(Shape::Double),
            ],
        ),
        short_outage(
            "wire-blinks",
            "the wire of an interface loses everything for a second: neither side gives it up",
            1000,
        ),
        short_outage(
            "wire-back",
            "as long as it takes us to give it up, and is back while the kernel still tries",
            8000,
        )
        .unsent_on_lost_link(ScenarioEnd::Peer),
        wire_cut(),
        closing_in_a_blink(),
        over_ipv6(),
        blocked_runtime(),
        blocked_drivers(),
    ]
}

/// See [`super::one_after_another`].
#[cfg(feature = "ours")]
pub(super) fn one_after_another(name: &'static str, links: usize) -> Scenario {
    let about = "three connections, one after the other";
    let mut scenario = match links {
        1 => echo(name, about).both(|node| node.sysctls = &[(MAX_LINKS, "1")]),
        _ => two_links(name, about),
    };
    for node in [&mut scenario.subject, &mut scenario.peer] {
        node.script.rounds = 3;
    }
    scenario
}

/// Each interface is in a network of its own.
fn over_ipv6() -> Scenario {
    let mut scenario = under_load(
        "ipv6-nic-down",
        "two links over IPv6, and an interface of the peer goes down under load",
    )
    .both(|node| node.offers_ipv6 = true)
    .trigger(
        ScenarioEnd::Peer,
        "loaded",
        [Action::LinkDown(ScenarioEnd::Peer, 0)],
    );
    scenario.network = Network::V6;
    scenario.peers = Peers::Ours;
    scenario
}

/// Not so long that the link is given up. What its closes and their LLC messages need comes late:
/// a link that goes on loses nothing.
fn closing_in_a_blink() -> Scenario {
    let subject = [ASK, Step::Mark("asked".into()), Step::Pause(500)];
    Scenario::new(
        "wire-blinks-closing",
        "connections close and others follow while the wire loses everything for a time",
    )
    .scripts(
        Script::many(10, subject).rounds(3),
        Script::many(10, [ANSWER, Step::End]).rounds(3),
    )
    .trigger(
        ScenarioEnd::Subject,
        "asked",
        [
            Action::Wait(250),
            Action::Cut(ScenarioEnd::Peer, 0),
            Action::Wait(2500),
            Action::Repair(ScenarioEnd::Peer, 0),
        ],
    )
}

/// The peer tests the link each second, and gives it up two seconds later without an answer.
fn blocked(name: &'static str, about: &'static str) -> Scenario {
    let mut scenario = Scenario::new(name, about)
        .both(|node| node.sysctls = &[(TEST_LINK, "1")])
        .steps(
            [ASK, Step::Block(BLOCKED), ASK],
            [ANSWER, ANSWER, Step::End],
        );
    scenario.only_ours = Some("a kernel has no runtime that an application could keep busy");
    scenario
}

fn blocked_runtime() -> Scenario {
    let mut scenario = blocked(
        "blocked-runtime",
        "the runtime computes for seconds, with drivers on a thread of their own",
    );
    scenario.subject.has_driver_thread = true;
    scenario
}

fn blocked_drivers() -> Scenario {
    let scenario = blocked(
        "blocked-drivers",
        "the runtime computes for seconds, with the drivers on it",
    );
    scenario.steps(
        [ASK, Step::Block(BLOCKED), Step::Broken],
        [ANSWER, Step::Broken],
    )
}

fn echo(name: &'static str, about: &'static str) -> Scenario {
    Scenario::new(name, about).steps([ASK], [ANSWER, Step::End])
}

fn two_links(name: &'static str, about: &'static str) -> Scenario {
    Scenario::new(name, about)
        .both(|node| node.devices = 2)
        .steps(
            [ASK, Step::Gate("linked".into()), ASK],
            [ANSWER, ANSWER, Step::End],
        )
        .trigger(
            ScenarioEnd::Subject,
            "linked",
            [
                Action::Await(Shape::Symmetric),
                Action::Go(ScenarioEnd::Subject),
            ],
        )
}

/// Two links; the peer states `loaded` in the midst of a transfer in both directions, and both
/// report `moved` when all has arrived.
///
/// It has to be the peer. A kernel does not repeat a window update that went into a dead wire, only
/// data with other messages. So when nothing but its reading is waited for, it stalls.
fn under_load(name: &'static str, about: &'static str) -> Scenario {
    two_links(name, about).steps(
        [
            ASK,
            Step::Gate("linked".into()),
            Step::Exchange(LOAD / 4),
            Step::Exchange(LOAD),
            Step::Mark("moved".into()),
        ],
        [
            ANSWER,
            Step::Exchange(LOAD / 4),
            Step::Mark("loaded".into()),
            Step::Exchange(LOAD),
            Step::Mark("moved".into()),
            Step::End,
        ],
    )
}

fn own_device_gone() -> Scenario {
    let mut scenario = under_load(
        "own-device-gone",
        "an RDMA device of ours is removed under load",
    )
    .trigger(
        ScenarioEnd::Peer,
        "loaded",
        [Action::RemoveDevice(ScenarioEnd::Subject, 1)],
    );
    scenario.only_ours = Some("the same as peer-device-gone in the other role");
    scenario.peers = Peers::NotOurs;
    scenario
}

fn short_outage(name: &'static str, about: &'static str, millis: u64) -> Scenario {
    under_load(name, about).trigger(
        ScenarioEnd::Peer,
        "loaded",
        [
            Action::Cut(ScenarioEnd::Peer, 0),
            Action::Wait(millis),
            Action::Repair(ScenarioEnd::Peer, 0),
        ],
    )
}

fn wire_cut() -> Scenario {
    let mut scenario = under_load(
        "wire-cut",
        "the wire of an interface loses everything permanently",
    )
    .trigger(
        ScenarioEnd::Peer,
        "loaded",
        [Action::Cut(ScenarioEnd::Peer, 0)],
    );
    scenario.unsent_on_lost_link = Some(ScenarioEnd::Peer);
    scenario.only_ours = Some("soft-RoCE repeats without end as the kernel asks it to");
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

/// Bytes in each direction; some seconds.
const LOAD: u64 = 20_000_000;

/// Milliseconds: longer than a peer waits before it gives a link up.
const BLOCKED: u64 = 6000;
