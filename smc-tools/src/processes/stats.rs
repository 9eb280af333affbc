//! `smc stats`: what running processes have done, in the manner of `smcd stats` and `smcr stats`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum;
use smc::info::{ByRole, DeviceStats, DirectionStats, PhaseStats, QueueStats, SIZE_CLASSES, Stats};
use smc::introspection::Subject;
use smc::record::Record;

use super::baseline::Baseline;
use super::{collect, json_line, printable};
use crate::output::{Pieces, note, print};

/// Arguments of `smc stats`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The counters are sums over the running processes of this user, for root of all users: those of processes \
that have ended are gone. `reset` shows them, and remembers them in the runtime directory of this user, \
whose later calls show what was counted since. Nothing changes in the processes, and for other users. What \
is open, and the longest times, are those of the whole life of a process. Programs that read --json take \
--absolute, and the difference of two outputs for a period.

Examples:
  smc stats
  smc stats reset
  smc stats --absolute --json")]
pub(crate) struct StatsArgs {
    /// What to do
    #[arg(value_enum, default_value_t = Action::Show)]
    action: Action,
    /// Also fallbacks by reason and the times of set-ups
    #[arg(short, long)]
    debug: bool,
    /// Since the processes have begun, whatever was reset
    #[arg(short, long)]
    absolute: bool,
    /// One JSON object per endpoint and line
    #[arg(long)]
    json: bool,
    /// Counters of this process only
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Action {
    /// Show what was counted since the last reset
    Show,
    /// The same, and begin anew
    Reset,
}

/// Runs the command.
pub(crate) fn run_stats(args: &StatsArgs) -> Result<bool> {
    let mut found = collect(&[Subject::Stats]);
    found.retain(|found| args.pid.is_none_or(|pid| pid == found.process.pid));
    if let (Some(pid), true) = (args.pid, found.is_empty()) {
        bail!("no process {pid} of this user answers: `smc info` lists those that do");
    }
    let mut baseline = Baseline::load().unwrap_or_else(|error| {
        let text = printable(&format!("{error:#}"));
        note(
            "smc stats",
            &format_args!("shown since the beginning: {text}"),
        );
        Baseline::default()
    });
    let mut lines = Pieces::default();
    let mut all = Vec::new();
    for one in &found {
        for record in &one.records {
            let Record::Stats(of) = record else {
                continue;
            };
            let stats = match args.absolute {
                true => Cow::Borrowed(&of.stats),
                false => baseline.since(one, of),
            };
            match (args.json, stats) {
                (false, stats) => all.push(stats),
                (true, Cow::Borrowed(_)) => lines.add(&json_line(&one.process, record)?)?,
                (true, Cow::Owned(stats)) => {
                    let mut of = of.clone();
                    of.stats = stats;
                    lines.add(&json_line(&one.process, &Record::Stats(of))?)?;
                }
            }
        }
    }
    match args.json {
        true => lines.end()?,
        false => {
            let is_relative = all.iter().any(|stats| matches!(stats, Cow::Owned(_)));
            if is_relative {
                print("Since the last `smc stats reset`; --absolute shows all.\n")?;
            }
            print(&text(&all, args.debug))?;
        }
    }
    if args.action == Action::Reset {
        match baseline.reset(&found)? {
            0 => {}
            count => note(
                "smc stats",
                &format_args!(
                    "{count} processes are not reset: their users have too many counters"
                ),
            ),
        }
        baseline.store()?;
        let count = found.len();
        let s = if count == 1 { "" } else { "es" };
        note(
            "smc stats",
            &format_args!("later calls show what is counted from now on, of {count} process{s}"),
        );
    }
    Ok(true)
}

fn text(all: &[Cow<'_, Stats>], debug: bool) -> String {
    let mut text = String::new();
    for is_rdma in [false, true] {
        let devices = all.iter().flat_map(|stats| &stats.devices);
        let devices: Vec<_> = devices.filter(|device| device.is_rdma == is_rdma).collect();
        let name = if is_rdma { "SMC-R" } else { "SMC-D" };
        summary(&mut text, name, &devices, debug);
    }
    let fallbacks = all.iter().flat_map(|stats| &stats.fallbacks);
    let by_role = fallbacks.clone().map(|fallback| fallback.count);
    both_roles(&mut text, "TCP fallbacks", by_role);
    let by_role = all.iter().map(|stats| stats.errors);
    both_roles(&mut text, "Handshake errors", by_role);
    let by_role = all.iter().map(|stats| stats.socket_reuses);
    both_roles(&mut text, "UNIX socket reuses", by_role);
    if debug {
        let mut by_reason = BTreeMap::new();
        for fallback in fallbacks {
            let count: &mut u64 = by_reason
                .entry((fallback.code, fallback.peer_code))
                .or_default();
            *count = count.saturating_add(fallback.count.client);
            *count = count.saturating_add(fallback.count.server);
        }
        for ((code, peer), count) in by_reason {
            let peer = peer.map(|code| format!("/0x{code:08x}"));
            let name = format!("  0x{code:08x}{}", peer.unwrap_or_default());
            line(&mut text, &name, count);
        }
        phase(
            &mut text,
            "Look-ups",
            all.iter().map(|stats| stats.look_ups),
        );
        phase(
            &mut text,
            "TCP connects",
            all.iter().map(|stats| stats.tcp_connects),
        );
        phase(
            &mut text,
            "Handshakes",
            all.iter().map(|stats| stats.handshakes),
        );
    }
    text
}

/// How often a phase of set-up was completed in all processes, and how long it took.
fn phase(text: &mut String, name: &str, all: impl Iterator<Item = PhaseStats> + Clone) {
    let count = sum_of(all.clone().map(|phase| phase.count));
    let times = all.clone().map(|phase| phase.total);
    let total = times.fold(Duration::ZERO, Duration::saturating_add);
    let mean = total / u32::try_from(count).unwrap_or(u32::MAX).max(1);
    let max = all.map(|phase| phase.max).max().unwrap_or_default();
    // Writing to a string cannot fail.
    let _ = match count {
        0 => writeln!(text, "{name:<32}{count:>12}"),
        _ => writeln!(
            text,
            "{name:<32}{count:>12}   mean {mean:.1?}, at most {max:.1?}"
        ),
    };
}

fn summary(text: &mut String, name: &str, devices: &[&DeviceStats], debug: bool) {
    let sum = |pick: fn(&DeviceStats) -> u64| sum_of(devices.iter().map(|device| pick(device)));
    let v1 = sum(|device| {
        device
            .connections_v1
            .client
            .saturating_add(device.connections_v1.server)
    });
    let v2 = sum(|device| {
        device
            .connections_v2
            .client
            .saturating_add(device.connections_v2.server)
    });
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{name} connections");
    line(text, "  Total handled", v1.saturating_add(v2));
    line(text, "  Version 1", v1);
    line(text, "  Version 2", v2);
    line(text, "  Open", sum(|device| device.open));
    if devices.iter().any(|device| device.is_rdma) {
        line(text, "  Failovers", sum(|device| device.failovers));
        queues(text, devices);
    }
    for device in devices.iter().filter(|_| debug) {
        for (name, count) in &device.hardware {
            let name = format!("  {} {name}", device.device);
            line(text, &printable(&name), *count);
        }
    }
    direction(text, "  RX", devices.iter().map(|device| &device.received));
    direction(text, "  TX", devices.iter().map(|device| &device.sent));
    text.push('\n');
}

/// The queues of SMC-R links.
fn queues(text: &mut String, devices: &[&DeviceStats]) {
    let all = devices.iter().map(|device| &device.queues);
    let sum = |pick: fn(&QueueStats) -> u64| sum_of(all.clone().map(pick));
    let most = |pick: fn(&QueueStats) -> u64| all.clone().map(pick).max().unwrap_or(0);
    for (name, value) in [
        ("  Messages sent", sum(|queues| queues.messages)),
        ("  Messages coalesced", sum(|queues| queues.coalesced)),
        ("  Waiting to send", sum(|queues| queues.waiting)),
        ("  Waiting to send, most", most(|queues| queues.waiting_max)),
        ("  Held messages, most", most(|queues| queues.held_max)),
        ("  Credits granted", sum(|queues| queues.credits_granted)),
        ("  Credits received", sum(|queues| queues.credits_received)),
        ("  Waits for credits", sum(|queues| queues.credit_waits)),
        ("  RNR retries exceeded", sum(|queues| queues.rnr_exceeded)),
    ] {
        line(text, name, value);
    }
    let devices = devices.iter();
    let sent = devices.clone().filter_map(|it| it.rnr_naks_sent());
    let received = devices.filter_map(|it| it.rnr_naks_received());
    for (name, sum) in [
        ("  RNR NAKs sent", sent.reduce(u64::saturating_add)),
        ("  RNR NAKs received", received.reduce(u64::saturating_add)),
    ] {
        if let Some(sum) = sum {
            line(text, name, sum);
        }
    }
    if let Some(low) = all.filter_map(|queues| queues.receives_low).min() {
        line(text, "  Free receives, least", low.into());
    }
}

fn direction<'a>(
    text: &mut String,
    name: &str,
    all: impl Iterator<Item = &'a DirectionStats> + Clone,
) {
    let sum = |pick: fn(&DirectionStats) -> u64| sum_of(all.clone().map(pick));
    let classes = |pick: fn(&DirectionStats) -> [u64; SIZE_CLASSES]| {
        let mut sums = [0_u64; SIZE_CLASSES];
        for counts in all.clone().map(pick) {
            sums.iter_mut()
                .zip(counts)
                .for_each(|(sum, count)| *sum = sum.saturating_add(count));
        }
        sums.map(|sum| format!("{sum:>9}")).concat()
    };
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{name}");
    line(text, "    Bytes", sum(|stats| stats.bytes));
    line(text, "    Requests", sum(DirectionStats::request_count));
    line(text, "    Buffer full", sum(|stats| stats.buffer_full));
    line(
        text,
        "    Buffer downgrades",
        sum(|stats| stats.buffer_downgrades),
    );
    line(text, "    Buffer reuses", sum(|stats| stats.buffer_reuses));
    line(text, "    Parked", sum(|stats| stats.parked));
    line(text, "    Polls won", sum(|stats| stats.polls_won));
    let bounds = [
        "8KB", "16KB", "32KB", "64KB", "128KB", "256KB", "512KB", ">512KB",
    ];
    let bounds = bounds.map(|bound| format!("{bound:>9}")).concat();
    let _ = writeln!(text, "          {bounds}");
    let _ = writeln!(text, "    Bufs  {}", classes(|stats| stats.buffers));
    let _ = writeln!(text, "    Reqs  {}", classes(|stats| stats.requests));
}

/// A sum of numbers that another process has stated.
fn both_roles(text: &mut String, name: &str, all: impl Iterator<Item = ByRole> + Clone) {
    let client = sum_of(all.clone().map(|by_role| by_role.client));
    let server = sum_of(all.map(|by_role| by_role.server));
    line(text, &format!("{name} (client)"), client);
    line(text, &format!("{name} (server)"), server);
}

fn sum_of(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

fn line(text: &mut String, name: &str, count: u64) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{name:<32}{count:>12}");
}
