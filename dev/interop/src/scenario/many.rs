//! Many connections: one link group, its reuse, and more than one.

use std::time::Duration;

use super::Scenario;
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
