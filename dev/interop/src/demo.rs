//! Shows a kernel and the userspace stack exchanging data, and what went over the wire.

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use fs_err as fs;

use crate::capture::{self, Packet};
use crate::lab::Lab;
use crate::runner::{self, Outcome, Pairing, Run, guest_of};
use crate::scenario::{self, ScenarioEnd};
use crate::workload::Kind;

/// Boots two guests, runs one scenario in them, and takes the capture apart.
pub(crate) fn run() -> Result<bool> {
    let pairing = if cfg!(feature = "ours") {
        Pairing::Client
    } else {
        Pairing::Kernel
    };
    let (run, lacks) = Run::of(&scenario::shown(), pairing)
        .into_iter()
        .next()
        .context("no way to run it")?;
    if let Some(why) = lacks {
        bail!("{why}");
    }
    let mut lab = Lab::boot(run.kernels())?;
    runner::after_boot(&mut lab)?;
    for end in [run.server().other(), run.server()] {
        print_end(&lab, &run, end);
    }
    let show = runner::Show {
        log: false,
        capture: true,
    };
    let outcome = runner::run(&mut lab, &run, show)?.outcome;
    let capture = runner::kept(&run)?;
    let mut timeline = messages(&run, &capture)?;
    timeline.extend(sent_events(&run, &fs::read(&capture)?));
    timeline.sort_by_key(|line| line.frame);
    println!("\nby frame: their events, and the SMC messages; the data itself is not shown\n");
    for Line { frame, end, text } in timeline {
        println!("{frame:>4}  {end:<18}{text}");
    }
    println!();
    Ok(match outcome {
        Outcome::Passed => {
            println!("passed: all bytes were right, and neither end has anything left open");
            true
        }
        Outcome::Failed(why) | Outcome::Skipped(why) => {
            println!("failed: {why}");
            false
        }
    })
}

/// A frame of the capture.
struct Line {
    frame: u64,
    end: String,
    text: String,
}

/// The messages, as the `smc` command prints them: frame, ends, contents.
fn messages(run: &Run, capture: &Path) -> Result<Vec<Line>> {
    let text = capture::dissect(capture, &[])?;
    let lines = text.lines();
    let lines = lines.filter(|line| !line.contains("[retransmission]"));
    let message = |line: &str| {
        let (frame, rest) = line.trim_start().split_once(' ')?;
        let (ends, text) = rest.split_once(": ")?;
        let from = ends.trim_start().split([':', ' ']).next()?.parse().ok()?;
        let from = sender(run, from);
        Some(Line {
            frame: frame.parse().ok()?,
            end: format!("  {} -> {}", kind_of(run, from), kind_of(run, from.other())),
            text: format!("  {text}"),
        })
    };
    lines
        .map(|line| message(line).with_context(|| format!("not understood: {line}")))
        .collect()
}

/// The events of the ends, in datagrams of IPv4 from the same capture.
fn sent_events(run: &Run, capture: &[u8]) -> Vec<Line> {
    let frames = (1..).zip(capture::frames(capture));
    let events = frames.filter_map(|(frame, bytes)| Some((frame, words(bytes)?)));
    events
        .map(|(frame, (from, words))| Line {
            frame,
            end: kind_of(run, sender(run, from)),
            text: words,
        })
        .collect()
}

/// Sender and contents of a frame with an event.
fn words(frame: &[u8]) -> Option<(IpAddr, String)> {
    let packet = Packet::of_frame(frame).filter(|packet| packet.protocol == UDP)?;
    let udp = packet.contents;
    let is_event = capture::be16(udp, 2)? == runner::EVENT_PORT;
    let len = usize::from(capture::be16(udp, 4)?);
    let words = udp.get(8..len).filter(|_| is_event)?;
    Some((packet.from, String::from_utf8_lossy(words).into_owned()))
}

fn sender(run: &Run, from: IpAddr) -> ScenarioEnd {
    if runner::address(run, ScenarioEnd::Subject, 0).ip() == from {
        ScenarioEnd::Subject
    } else {
        ScenarioEnd::Peer
    }
}

fn kind_of(run: &Run, end: ScenarioEnd) -> String {
    run.kind(end).to_string()
}

fn print_end(lab: &Lab, run: &Run, end: ScenarioEnd) {
    let part = if run.is_client(end) {
        "connects"
    } else {
        "listens"
    };
    let what = match run.kind(end) {
        Kind::Kernel => "a program with an AF_SMC socket",
        Kind::Ours => "a program with the userspace stack",
        Kind::Tcp => "a program with a TCP socket",
    };
    let guest = guest_of(end);
    let release = lab.kernel(guest);
    let name = kind_of(run, end);
    println!("{name:<8} {part}: {what}, on Linux {release}");
}

const UDP: u8 = 17;
