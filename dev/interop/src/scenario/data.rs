//! Data in all sizes, in both directions.

use std::time::Duration;

use super::Scenario;
use crate::workload::Step;

pub(super) fn shown() -> Scenario {
    let mark = |words: &str| Step::Mark(words.into());
    let ask = Step::Echo {
        size: 1000,
        count: 1,
    };
    let answer = Step::EchoBack {
        size: 1000,
        count: 1,
    };
    let mut scenario = Scenario::new("demo", "three questions and their answers").steps(
        [
            ask.clone(),
            mark("sent 1000 bytes and got them back"),
            ask.clone(),
            mark("sent the next 1000, got them back"),
            ask,
            mark("sent the last 1000, got them back"),
        ],
        [
            answer.clone(),
            mark("received 1000 bytes, all right, and sent them back"),
            answer.clone(),
            mark("received the next 1000, all right, and sent them back"),
            answer,
            mark("received the last 1000, all right, and sent them back"),
            Step::End,
            mark("received the end"),
        ],
    );
    scenario.sends_events = true;
    scenario
}

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario::new("echo", "small messages there and back").steps(
            [Step::Echo {
                size: 64,
                count: 200,
            }],
            [
                Step::EchoBack {
                    size: 64,
                    count: 200,
                },
                Step::End,
            ],
        ),
        Scenario::new("echo-large", "messages larger than the buffers").steps(
            [Step::Echo {
                size: 200_000,
                count: 10,
            }],
            [
                Step::EchoBack {
                    size: 200_000,
                    count: 10,
                },
                Step::End,
            ],
        ),
        bulk(),
        Scenario::new("slow-reader", "a reader that is slower than the writer").steps(
            [
                Step::Send(600_000),
                Step::ReceiveSlowly {
                    bytes: 600_000,
                    chunk: 20_000,
                    pause: 20,
                },
            ],
            [
                Step::ReceiveSlowly {
                    bytes: 600_000,
                    chunk: 20_000,
                    pause: 20,
                },
                Step::Send(600_000),
                Step::End,
            ],
        ),
        Scenario::new("urgent", "an urgent byte of the peer, read in line").steps(
            [Step::Receive(1000), Step::Receive(1001), Step::Send(1)],
            [
                Step::Send(1000),
                Step::Urgent,
                Step::Send(1000),
                Step::Receive(1),
                Step::End,
            ],
        ),
    ]
}

fn bulk() -> Scenario {
    let mut scenario = Scenario::new("bulk", "100 MB each way, both at once, every byte checked")
        .steps([Step::Exchange(BULK)], [Step::Exchange(BULK), Step::End]);
    scenario.limit = Duration::from_secs(400);
    scenario
}

const BULK: u64 = 100_000_000;
