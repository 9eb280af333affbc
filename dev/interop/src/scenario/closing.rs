//! Ends of connections: in order, halves, and otherwise.

use super::{Action, Scenario, ScenarioEnd, TEST_LINK};
use crate::workload::Step;

pub(super) fn scenarios() -> Vec<Scenario> {
    let (ask, answer) = (
        Step::Echo {
            size: 1000,
            count: 3,
        },
        Step::EchoBack {
            size: 1000,
            count: 3,
        },
    );
    let half = [
        Step::Send(5000),
        Step::Finish,
        Step::Receive(100_000),
        Step::End,
    ];
    let other_half = [Step::Receive(5000), Step::End, Step::Send(100_000)];
    let abort = [ask.clone(), Step::Abort];
    let aborted = [answer.clone(), Step::Send(1000), Step::Broken];
    vec![
        Scenario::new("half-close", "shuts writing down and goes on reading")
            .steps(half.clone(), other_half.clone()),
        Scenario::new("half-close-peer", "the peer shuts writing down").steps(other_half, half),
        Scenario::new("close-first", "closes first")
            .steps([ask.clone()], [answer.clone(), Step::End]),
        Scenario::new("close-first-peer", "the peer closes first")
            .steps([ask.clone(), Step::End], [answer.clone()]),
        Scenario::new("close-both", "both close at about the same time").steps([ask], [answer]),
        Scenario::new("abort", "closes with received data unread")
            .steps(abort.clone(), aborted.clone()),
        Scenario::new("abort-peer", "the peer closes with received data unread")
            .steps(aborted, abort),
        killed(
            "killed",
            "dies; a kernel finds out by testing the link",
            ScenarioEnd::Subject,
        ),
        killed("killed-peer", "the peer's process dies", ScenarioEnd::Peer),
    ]
}

/// The end that is killed has data that it has not read.
fn killed(name: &'static str, about: &'static str, dies: ScenarioEnd) -> Scenario {
    let ending = [Step::Receive(1000), Step::Gate("about to be killed".into())];
    let surviving = [Step::Send(2000), Step::Broken];
    let scenario = Scenario::new(name, about).both(|node| node.sysctls = &[(TEST_LINK, "1")]);
    let mut scenario = match dies {
        ScenarioEnd::Subject => scenario.steps(ending, surviving),
        ScenarioEnd::Peer => scenario.steps(surviving, ending),
    };
    scenario.expect.killed = Some(dies);
    scenario.trigger(
        dies,
        "about to be killed",
        [Action::Wait(500), Action::Kill(dies)],
    )
}
