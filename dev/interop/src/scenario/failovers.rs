//! One failover after the other on the same connections, for `interop soak`.

use std::time::Duration;

use super::{Action, Peers, Scenario, ScenarioEnd, Shape};
use crate::workload::{Script, Step};

/// So many failovers, [`IN_EPOCH`] at most. On each connection [`LOAD`] is under way in both
/// directions while a link is lost and comes back. It is always the link that connections have
/// moved to before. The first half of them is by an interface that goes down, the rest by a wire
/// that is cut.
pub(crate) fn epoch(number: u32, failovers: u32) -> Scenario {
    let failovers = failovers.min(IN_EPOCH);
    let mut begin = vec![Action::Await(Shape::Symmetric)];
    begin.extend(go_on());
    let mut scenario = Scenario::new("failovers", "links are lost and come back under load")
        .both(|node| node.devices = 2)
        .trigger(ScenarioEnd::Subject, "open", begin);
    // The mark comes once, so that no action waits for another connection's.
    let mut subject = vec![Step::Mark("open".into()), Step::Gate("begin".into())];
    let mut peer = Vec::new();
    for failover in 0..failovers {
        let loaded = format!("loaded {failover}");
        subject.extend([
            Step::Exchange(BEGIN),
            Step::Exchange(LOAD),
            Step::Gate(gate(failover)),
        ]);
        peer.extend([
            Step::Exchange(BEGIN),
            Step::Mark(loaded.clone()),
            Step::Exchange(LOAD),
        ]);
        scenario = scenario.trigger(
            ScenarioEnd::Peer,
            loaded,
            actions(number, failover, failovers),
        );
    }
    peer.push(Step::End);
    scenario.peers = Peers::Ours;
    scenario.is_recorded = false;
    scenario.limit = LIMIT * failovers;
    scenario.scripts(
        Script::many(CONNECTIONS, subject),
        Script::many(CONNECTIONS, peer),
    )
}

/// Where each connection of the subject waits after a failover.
pub(crate) fn gate(failover: u32) -> String {
    format!("failover {failover}")
}

/// What is done in the midst of a transfer.
fn actions(epoch: u32, failover: u32, failovers: u32) -> Vec<Action> {
    let nic = usize::from(failover % 2 == 1);
    let (end, of_epoch) = (end(failover / 2), end(epoch));
    let lost = [
        Action::Await(Shape::Reduced),
        Action::ExpectLoad(ScenarioEnd::Subject, failover),
    ];
    let mut actions = Vec::new();
    if failover == 0 {
        actions.push(Action::StepClock(of_epoch, CLOCK_STEP));
    }
    if failover + 1 == failovers {
        actions.push(Action::StepClock(of_epoch, -CLOCK_STEP));
    }
    if failover < failovers.div_ceil(2) {
        actions.push(Action::LinkDown(end, nic));
        actions.extend(lost);
        actions.push(Action::Restore(end, nic));
    } else {
        actions.push(Action::Cut(end, nic));
        actions.extend(lost);
        // A second link is looked for when a port comes up, and no port notices the wire.
        actions.extend([
            Action::LinkDown(end, nic),
            Action::Repair(end, nic),
            Action::Restore(end, nic),
        ]);
    }
    // Each connection has gone on.
    actions.push(Action::AwaitGate(ScenarioEnd::Subject, failover));
    actions.extend(go_on());
    actions
}

/// Has connections leave a gate, when both ends have what they had before.
fn go_on() -> impl Iterator<Item = Action> {
    let both = [ScenarioEnd::Subject, ScenarioEnd::Peer];
    let go = (0..CONNECTIONS).map(|_| Action::Go(ScenarioEnd::Subject));
    both.into_iter().map(Action::ExpectResources).chain(go)
}

fn end(number: u32) -> ScenarioEnd {
    match number % 2 {
        0 => ScenarioEnd::Peer,
        _ => ScenarioEnd::Subject,
    }
}

/// Failovers of an epoch at most.
const IN_EPOCH: u32 = 8;

const CONNECTIONS: u32 = 4;

/// Bytes of a connection in each direction: they take longer than the loss of a link is not known.
const LOAD: u64 = 4_000_000;

/// Bytes until all connections are under way.
const BEGIN: u64 = 200_000;

/// Of one failover.
const LIMIT: Duration = Duration::from_secs(180);

/// Seconds.
const CLOCK_STEP: i64 = 3600;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_of_the_connections_is_lost_each_time_and_comes_back() {
        for (number, failovers) in [(0, IN_EPOCH), (1, IN_EPOCH), (0, 2)] {
            let scenario = epoch(number, failovers);
            let (mut in_use, mut lost, mut losses) = (0, Vec::new(), 0);
            let triggers = scenario.triggers.iter();
            for action in triggers.flat_map(|trigger| &trigger.actions) {
                match *action {
                    Action::LinkDown(end, nic) if lost.contains(&(end, nic)) => {}
                    Action::LinkDown(end, nic)
                    | Action::Cut(end, nic)
                    | Action::RemoveDevice(end, nic) => {
                        assert_eq!((nic, &*lost), (in_use, &[][..]));
                        lost.push((end, nic));
                        in_use = 1 - nic;
                        losses += 1;
                    }
                    Action::Restore(end, nic) => lost.retain(|one| *one != (end, nic)),
                    _ => {}
                }
            }
            assert_eq!((losses, lost.len()), (failovers, 0), "all are back");
        }
    }
}
