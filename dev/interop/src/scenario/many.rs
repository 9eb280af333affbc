//! Many connections: one link group, its reuse, and more than one.

use std::time::Duration;

use super::{MAX_LINKS, Scenario};
use crate::protocol::OurFeatures;
use crate::workload::{Script, Step};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        many(
            "many-50",
            "50 connections in one link group, and once more when it is idle",
            50,
            2,
        ),
        many("many-300", "300 connections in two link groups", 300, 1),
        all_features(),
    ]
}

fn many(name: &'static str, about: &'static str, connections: u32, rounds: u32) -> Scenario {
    let ask = [Step::Echo {
        size: 3000,
        count: 2,
    }];
    let answer = [
        Step::EchoBack {
            size: 3000,
            count: 2,
        },
        Step::End,
    ];
    let mut scenario = Scenario::new(name, about).scripts(
        Script::many(connections, ask).rounds(rounds),
        Script::many(connections, answer).rounds(rounds),
    );
    scenario.limit = Duration::from_secs(240);
    scenario
}

/// With everything that the userspace stack has beyond the released protocol, none of which a
/// kernel may mind.
fn all_features() -> Scenario {
    many(
        "all-features",
        "20 connections, and once more when their link group is idle, with all features of ours",
        20,
        2,
    )
    .both(|node| {
        node.features = OurFeatures::FastOpen;
        node.offers_ipv6 = true;
        node.has_driver_thread = true;
        node.sysctls = &[(MAX_LINKS, "1")];
    })
}
