//! The machine that figures come from.

use std::thread;

use fs_err as fs;
use serde::Serialize;

/// What is known of the machine.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Host {
    pub(super) cpu: Option<String>,
    pub(super) cpus: usize,
    /// Whether the CPU reports a virtual machine.
    pub(super) is_virtual: bool,
    pub(super) governor: Option<String>,
    pub(super) kernel: Option<String>,
    pub(super) clock: Option<String>,
    /// Runnable tasks, on average over the last minute, before measuring.
    pub(super) load: Option<String>,
    /// Limits of TCP's buffers that grow by themselves: send and receive.
    pub(super) tcp_buffers: Option<[u64; 2]>,
    pub(super) version: &'static str,
    pub(super) command: String,
}

impl Host {
    pub(super) fn detect() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self {
            cpu: value(&cpuinfo, "model name"),
            cpus: thread::available_parallelism().map_or(1, usize::from),
            is_virtual: value(&cpuinfo, "flags")
                .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")),
            governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            kernel: line("/proc/sys/kernel/osrelease"),
            clock: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            load: line("/proc/loadavg").and_then(|text| Some(text.split_once(' ')?.0.to_owned())),
            tcp_buffers: largest("/proc/sys/net/ipv4/tcp_wmem")
                .zip(largest("/proc/sys/net/ipv4/tcp_rmem"))
                .map(|(send, receive)| [send, receive]),
            version: env!("CARGO_PKG_VERSION"),
            command: command(),
        }
    }

    /// Names and values for people.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let or_unknown = |text: &Option<String>| text.as_deref().unwrap_or("unknown").to_owned();
        let kind = if self.is_virtual {
            "virtual"
        } else {
            "physical"
        };
        vec![
            ("command", self.command.clone()),
            ("smc", self.version.to_owned()),
            (
                "CPUs",
                format!("{} of {}, {kind}", self.cpus, or_unknown(&self.cpu)),
            ),
            ("governor", or_unknown(&self.governor)),
            ("kernel", or_unknown(&self.kernel)),
            ("clock", or_unknown(&self.clock)),
            ("load before", or_unknown(&self.load)),
        ]
    }
}

/// The arguments that this program was started with.
fn command() -> String {
    let args = std::env::args().skip(1);
    let words: Vec<_> = ["smc".to_owned()].into_iter().chain(args).collect();
    words.join(" ")
}

fn line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.lines().next()?.trim().to_owned())
}

/// The last of several numbers in a file.
fn largest(path: &str) -> Option<u64> {
    line(path)?.split_whitespace().last()?.parse().ok()
}

/// The value in the first line of /proc/cpuinfo with this name.
fn value(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (left, right) = line.split_once(':')?;
        (left.trim() == name).then(|| right.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::value;

    #[test]
    fn values_of_cpuinfo_are_found_by_name() {
        let text = "processor\t: 0\nmodel name\t: A CPU @ 2 GHz: fast\nflags\t\t: fpu hypervisor\n";
        assert_eq!(
            value(text, "model name").as_deref(),
            Some("A CPU @ 2 GHz: fast")
        );
        assert_eq!(value(text, "bogomips"), None);
    }
}
