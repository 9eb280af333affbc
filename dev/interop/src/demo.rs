//! Shows a kernel and the userspace stack exchanging data, and what went over the wire.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use fs_err as fs;

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
    let text = dissect(capture)?;
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
    let mut rest = capture.get(PCAP_HEADER..).unwrap_or_default();
    let mut lines = Vec::new();
    let mut frame = 0;
    while let Some((record, behind)) = rest.split_at_checked(RECORD_HEADER) {
        let &[.., a, b, c, d, _, _, _, _] = record else {
            break;
        };
        let Some((packet, behind)) = u32::from_le_bytes([a, b, c, d])
            .try_into()
            .ok()
            .and_then(|len: usize| behind.split_at_checked(len))
        else {
            break;
        };
        rest = behind;
        frame += 1;
        lines.extend(words(packet).map(|(from, words)| Line {
            frame,
            end: kind_of(run, sender(run, from)),
            text: String::from_utf8_lossy(words).into_owned(),
        }));
    }
    lines
}

/// Sender and contents of a frame with an event.
fn words(frame: &[u8]) -> Option<(IpAddr, &[u8])> {
    let ip = frame.get(12..)?.strip_prefix(&[0x08, 0x00])?;
    let udp = (ip.first()? == &0x45 && ip.get(9)? == &17).then(|| ip.get(20..))??;
    let from = <[u8; 4]>::try_from(ip.get(12..16)?).ok()?;
    let to = u16::from_be_bytes(udp.get(2..4)?.try_into().ok()?);
    let len = usize::from(u16::from_be_bytes(udp.get(4..6)?.try_into().ok()?));
    let words = udp.get(8..len)?;
    (to == runner::EVENT_PORT).then(|| (from.into(), words))
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

/// Makes the `smc` command print the messages; builds it if it is not there.
fn dissect(capture: &Path) -> Result<String> {
    let mut command = if let Some(program) = built() {
        Command::new(program)
    } else {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["run", "-q", "-p", "smc-tools", "--"]);
        command
    };
    let output = command
        .arg("dissect")
        .arg(capture)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// The `smc` command, if it was built with the same profile.
fn built() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.with_file_name("smc");
    program.exists().then_some(program)
}

const PCAP_HEADER: usize = 24;

/// Two words of time, the length recorded, the length.
const RECORD_HEADER: usize = 16;
