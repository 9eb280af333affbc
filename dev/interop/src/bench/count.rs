//! What the kernels of the guests count while something is measured: where the time goes, as far
//! as counted by numbers of events.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::lab::{self, Lab};
use crate::protocol::Order;

/// Counting under way.
pub(super) struct Count {
    /// CPU time that the guests took from the host until then.
    before: [Duration; 2],
    /// What they spent it on, as they see it.
    spent: [Spent; 2],
}

/// Hundredths of a second, as the first line of `/proc/stat` has them.
type Spent = Vec<u64>;

impl Count {
    /// Clears what was counted so far, and counts from now on.
    pub(super) fn start(lab: &mut Lab) -> Result<Self> {
        for guest in GUESTS {
            for (event, keys) in EVENTS {
                // Not there the first time.
                let _ = write(lab, guest, event, &format!("!hist:keys={keys}"));
                write(lab, guest, event, &format!("hist:keys={keys}:size=2048"))?;
            }
        }
        let spent = [spent(lab, 0)?, spent(lab, 1)?];
        let before = GUESTS.map(|guest| lab.cpu_time(guest));
        Ok(Self { before, spent })
    }

    /// Shows what was counted in each guest, divided by how often the measured thing was done.
    pub(super) fn show(self, lab: &mut Lab, times: f64) -> Result<()> {
        let took = GUESTS.map(|guest| lab.cpu_time(guest).saturating_sub(self.before[guest]));
        for guest in GUESTS {
            let each = took[guest].as_secs_f64() * 1e6 / times;
            println!("  {}: {each:.0} us of CPU time", lab::name(guest));
            let now = spent(lab, guest)?;
            let before = self.spent[guest].iter();
            for ((name, now), before) in KINDS.iter().zip(now).zip(before) {
                #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
                let each = (now - before) as f64 * 1e4 / times;
                println!("    {each:8.0}  us {name}");
            }
            for (event, _) in EVENTS {
                let path = format!("{TRACING}/events/{event}/hist");
                let text: String = lab.order(guest, Order::ReadFile(path))?;
                println!("  {}, {event}:", lab::name(guest));
                show(&text, times);
            }
        }
        Ok(())
    }
}

fn spent(lab: &mut Lab, guest: usize) -> Result<Spent> {
    let text: String = lab.order(guest, Order::ReadFile("/proc/stat".into()))?;
    let line = text.lines().next().unwrap_or_default();
    Ok(line
        .split_whitespace()
        .skip(1)
        .filter_map(|word| word.parse().ok())
        .collect())
}

fn show(text: &str, times: f64) {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for (key, count) in text.lines().filter_map(line) {
        *sums.entry(key).or_default() += count;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for (key, count) in sums {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let each = count as f64 / times;
        if each >= WORTH_SHOWING {
            println!("    {each:8.2}  {key}");
        }
    }
}

/// A line such as `{ key: value } hitcount: 3`.
fn line(line: &str) -> Option<(String, u64)> {
    let (key, count) = line.strip_prefix('{')?.split_once("} hitcount:")?;
    let words: Vec<_> = key.split_whitespace().collect();
    Some((words.join(" "), count.trim().parse().ok()?))
}

fn write(lab: &mut Lab, guest: usize, event: &str, text: &str) -> Result<()> {
    let order = Order::WriteFile {
        path: format!("{TRACING}/events/{event}/trigger"),
        text: text.into(),
    };
    lab.order(guest, order).with_context(|| event.to_owned())
}

const GUESTS: [usize; 2] = [0, 1];

/// What a guest spends its time on, in the order of `/proc/stat`. Kernel threads are in "system".
const KINDS: &[&str] = &["user", "nice", "system", "idle", "iowait", "irq", "softirq"];

const TRACING: &str = "/sys/kernel/tracing";

/// What is counted, and by what it is distinguished.
const EVENTS: &[(&str, &str)] = &[
    ("raw_syscalls/sys_enter", "common_pid.execname,id.syscall"),
    ("sched/sched_switch", "next_comm"),
    ("irq/irq_handler_entry", "name"),
    ("irq/softirq_entry", "vec"),
    ("net/net_dev_xmit", "len"),
];

/// Events that are rarer than this have nothing to do with it.
const WORTH_SHOWING: f64 = 0.05;
