//! Two processes that play scripts, either of which ends at each point of its script, or is killed
//! at any time.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use smc_testkit::Rng;

use crate::oracle::{Killed, judge};
use crate::process::Process;
use crate::script::{End, Part, Step};
use smc_testkit::on::On;

use crate::world::Fabric;
use crate::{rounds, seed};

/// Two parts, and when one of them is killed from outside.
struct Play {
    client: Part,
    server: Part,
    /// Whether it is the client, which has come to something then, and after how many microseconds.
    kill: Option<(bool, u64)>,
}

impl Play {
    fn perform(mut self) {
        let dir = tempfile::tempdir().unwrap();
        self.server.dir = dir.path().to_owned();
        self.client.dir = dir.path().to_owned();
        let mut server = Process::start(&self.server);
        self.client.to = Some(server.address());
        let mut client = Process::start(&self.client);
        let mut killed = Killed::default();
        if let Some((is_client, micros)) = self.kill {
            if is_client {
                // Else the server would wait for a client that never came.
                client.await_first_step();
            }
            thread::sleep(Duration::from_micros(micros));
            match is_client {
                true => (client.kill(), killed.client = true),
                false => (server.kill(), killed.server = true),
            };
        }
        let (clients, servers) = (client.finish(), server.finish());
        let verdict = match (&clients, &servers) {
            (Ok(clients), Ok(servers)) => {
                judge((&self.client, &self.server), (clients, servers), killed)
            }
            _ => Err("hangs".to_owned()),
        };
        if let Err(why) = verdict {
            panic!(
                "{why}\nclient: {}\n        {clients:?}\nserver: {}\n        {servers:?}\nkilled: {:?}",
                self.client, self.server, self.kill
            );
        }
    }
}

/// Performs plays, several at a time.
fn perform(plays: Vec<Play>) {
    let count = plays.len();
    assert!(count > 0);
    let plays: Vec<_> = plays
        .into_iter()
        .map(|play| std::sync::Mutex::new(Some(play)))
        .collect();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some(play) = plays.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let play = play.lock().unwrap().take();
                    play.unwrap().perform();
                }
            });
        }
    });
    println!("{count} plays");
}

const AT_A_TIME: usize = 2;

fn part(on: On, fabric: Fabric, before: usize, steps: &[Step], end: End) -> Part {
    Part {
        on,
        fabric,
        dir: Path::new("").to_owned(),
        to: None,
        before,
        steps: steps.to_vec(),
        end,
    }
}

/// The client asks and the server answers; then the server sends and the client reads all of it;
/// then both have halves.
const SCRIPTS: [(&[Step], &[Step]); 3] = [
    (
        &[
            Step::Open,
            Step::Write(5),
            Step::Shutdown,
            Step::ReadToEnd,
            Step::Drop,
        ],
        &[Step::Open, Step::ReadToEnd, Step::Commit(7), Step::Drop],
    ),
    (
        &[Step::Open, Step::Commit(5), Step::ReadToEnd, Step::Drop],
        &[
            Step::Open,
            Step::Write(100_000),
            Step::DropWriter,
            Step::ReadToEnd,
            Step::Drop,
        ],
    ),
    (
        &[
            Step::Open,
            Step::Split,
            Step::CommitExact(4_000),
            Step::Shutdown,
            Step::ReadToEnd,
            Step::Drop,
        ],
        &[
            Step::Open,
            Step::ReadToEnd,
            Step::Split,
            Step::CommitExact(100_000),
            Step::DropWriter,
            Step::Drop,
        ],
    ),
];

/// Every end of either side at every point of the short scripts.
fn endings(on: On, fabric: Fabric, before: usize) -> Vec<Play> {
    let mut plays = Vec::new();
    for (client, server) in SCRIPTS {
        for end in End::ALL {
            for at in 0..=client.len() {
                plays.push(Play {
                    client: part(on, fabric, before, &client[..at], end),
                    // It cannot know that no client will connect.
                    server: part(
                        on,
                        fabric,
                        before,
                        if at > 0 { server } else { &[] },
                        End::Return,
                    ),
                    kill: None,
                });
            }
            for at in 0..=server.len() {
                plays.push(Play {
                    client: part(on, fabric, before, client, End::Return),
                    server: part(on, fabric, before, &server[..at], end),
                    kill: None,
                });
            }
        }
    }
    plays
}

#[test]
fn either_end_ends_at_every_point_tokio() {
    perform(endings(On::Tokio, Fabric::LOOP, 0));
    perform(endings(On::TokioAlone, Fabric::LOOP, 1));
}

#[test]
fn either_end_ends_at_every_point_smol() {
    perform(endings(On::Smol, Fabric::LOOP, 0));
    perform(endings(On::Smol, Fabric::LOOP, 1));
}

#[test]
fn either_end_ends_at_every_point_on_other_fabrics() {
    for (number, fabric) in Fabric::all().enumerate() {
        if fabric != Fabric::LOOP {
            perform(endings(On::ALL[number % 3], fabric, number / 2 % 2));
        }
    }
}

#[test]
fn scripts_and_ends_drawn_at_random() {
    let mut random = Rng::new(seed());
    perform((0..rounds()).map(|_| draw(&mut random)).collect());
}

/// One side reads to the end; the other closes before it reads, so that they cannot wait for each
/// other.
fn draw(random: &mut Rng) -> Play {
    let fabrics: Vec<_> = Fabric::all().collect();
    let fabric = match random.below(2) {
        0 => Fabric::LOOP,
        _ => fabrics[random.below(fabrics.len())],
    };
    let before = random.below(3);
    let end = |random: &mut Rng, steps: &mut Vec<Step>| {
        if random.below(2) == 0 {
            steps.truncate(random.below(steps.len() + 1));
        }
        let end = End::ALL[random.below(4)];
        part(On::ALL[random.below(3)], fabric, before, steps, end)
    };

    let mut reader = vec![Step::Open];
    split(random, &mut reader);
    write(random, &mut reader);
    reader.push(read_to_end(random));
    write(random, &mut reader);
    finish(random, &mut reader);
    let reader = end(random, &mut reader);

    let mut closer = vec![Step::Open];
    split(random, &mut closer);
    write(random, &mut closer);
    match random.below(3) {
        0 => {}
        close => {
            closer.push([Step::Shutdown, Step::DropWriter][close - 1]);
            write_pause(random, &mut closer);
            closer.push(read_to_end(random));
        }
    }
    finish(random, &mut closer);
    let closer = end(random, &mut closer);

    let (client, mut server) = match random.below(2) {
        0 => (reader, closer),
        _ => (closer, reader),
    };
    if !client.steps.contains(&Step::Open) {
        server.steps.clear();
    }
    let kill = match random.below(6) {
        0 => Some((true, random.below(5_000) as u64)),
        1 if before == 0 => Some((false, random.below(30_000) as u64)),
        _ => None,
    };
    Play {
        client,
        server,
        kill,
    }
}

fn write(random: &mut Rng, steps: &mut Vec<Step>) {
    for _ in 0..random.below(4) {
        let len = [1, 100, 5_000, 70_000][random.below(4)];
        steps.push(match random.below(3) {
            0 => Step::Write(len),
            1 => Step::Commit(len),
            _ => Step::CommitExact(len),
        });
        write_pause(random, steps);
    }
}

fn split(random: &mut Rng, steps: &mut Vec<Step>) {
    if random.below(3) == 0 {
        steps.push(Step::Split);
    }
}

fn write_pause(random: &mut Rng, steps: &mut Vec<Step>) {
    if random.below(4) == 0 {
        steps.push(Step::Pause(random.below(5_000) as u64));
    }
}

fn read_to_end(random: &mut Rng) -> Step {
    match random.below(2) {
        0 => Step::ReadToEnd,
        _ => Step::GuardToEnd,
    }
}

fn finish(random: &mut Rng, steps: &mut Vec<Step>) {
    match random.below(3) {
        0 => {}
        1 => steps.push(Step::Drop),
        _ => steps.extend([Step::Drop, Step::Close]),
    }
}
