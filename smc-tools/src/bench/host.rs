//! The machine that figures come from.

use std::fmt;
use std::path::Path;
use std::thread;

use fs_err as fs;
use serde::Serialize;

/// What is known of the machine.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Host {
    pub(super) cpu: Option<String>,
    pub(super) cpus: usize,
    /// The caches of data of all CPUs, as the system describes them; what is shared decides how
    /// fast two processes exchange data.
    pub(super) caches: Vec<Cache>,
    /// Whether two of the CPUs are threads of one core.
    pub(super) has_smt: Option<bool>,
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

/// Caches of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Cache {
    level: u8,
    /// As the system writes it, such as `2048K`.
    size: String,
    /// How many CPUs share one.
    cpus: usize,
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { level, size, cpus } = self;
        match cpus {
            1 => write!(f, "L{level} {size} for each CPU"),
            _ => write!(f, "L{level} {size} shared by {cpus} CPUs"),
        }
    }
}

impl Host {
    pub(super) fn detect() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self {
            cpu: value(&cpuinfo, "model name"),
            cpus: thread::available_parallelism().map_or(1, usize::from),
            caches: caches(Path::new(CPUS)),
            has_smt: has_smt(Path::new(CPUS)),
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
            (
                "caches",
                match self.caches.is_empty() {
                    true => or_unknown(&None),
                    false => self
                        .caches
                        .iter()
                        .map(Cache::to_string)
                        .collect::<Vec<_>>()
                        .join(", "),
                },
            ),
            (
                "SMT",
                match self.has_smt {
                    Some(true) => "two of the CPUs are one core".to_owned(),
                    Some(false) => "no two of the CPUs are one core".to_owned(),
                    None => or_unknown(&None),
                },
            ),
            ("governor", or_unknown(&self.governor)),
            ("kernel", or_unknown(&self.kernel)),
            ("clock", or_unknown(&self.clock)),
            ("load before", or_unknown(&self.load)),
        ]
    }
}

/// The kinds of caches of data below a directory of CPUs, by level.
fn caches(cpus: &Path) -> Vec<Cache> {
    let mut caches = Vec::new();
    for cpu in numbered(cpus, "cpu") {
        for index in numbered(&cpu.join("cache"), "index") {
            let attribute = |name: &str| line(index.join(name).to_str()?);
            let cache = || {
                Some(Cache {
                    level: attribute("level")?.parse().ok()?,
                    size: attribute("size")?,
                    cpus: count(&attribute("shared_cpu_list")?)?,
                })
            };
            let holds_data = attribute("type").is_some_and(|kind| kind != "Instruction");
            caches.extend(cache().filter(|cache| holds_data && !caches.contains(cache)));
        }
    }
    caches.sort_by_key(|cache| cache.level);
    caches
}

/// The number of CPUs in a list such as `0-3,8`.
fn count(list: &str) -> Option<usize> {
    let ranges = list.split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let [first, last] = [first, last].map(|cpu| cpu.trim().parse::<usize>().ok());
        last?.checked_sub(first?)?.checked_add(1)
    });
    ranges.sum()
}

/// Whether a core below a directory of CPUs has several of them.
fn has_smt(cpus: &Path) -> Option<bool> {
    let siblings = numbered(cpus, "cpu").into_iter().filter_map(|cpu| {
        let list = line(cpu.join("topology/thread_siblings_list").to_str()?)?;
        Some(count(&list)? > 1)
    });
    siblings.reduce(|any, next| any || next)
}

/// The entries of a directory that are called so, with a number, in the order of the numbers.
fn numbered(dir: &Path, name: &str) -> Vec<std::path::PathBuf> {
    let mut found: Vec<_> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?.file_name();
            let number: u32 = entry.to_str()?.strip_prefix(name)?.parse().ok()?;
            Some((number, dir.join(entry)))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

const CPUS: &str = "/sys/devices/system/cpu";

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
    use super::*;

    #[test]
    fn values_of_cpuinfo_are_found_by_name() {
        let text = "processor\t: 0\nmodel name\t: A CPU @ 2 GHz: fast\nflags\t\t: fpu hypervisor\n";
        assert_eq!(
            value(text, "model name").as_deref(),
            Some("A CPU @ 2 GHz: fast")
        );
        assert_eq!(value(text, "bogomips"), None);
    }

    #[test]
    fn caches_are_named_by_kind_with_the_number_of_cpus_that_share_one() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        };
        assert_eq!((caches(dir.path()), has_smt(dir.path())), (vec![], None));
        for cpu in 0..2 {
            put(&format!("cpu{cpu}/topology/thread_siblings_list"), "0-1");
            let own = cpu.to_string();
            let all = [
                ("1", "Data", "48K", &*own),
                ("1", "Instruction", "32K", &*own),
                ("3", "Unified", "32768K", "0-1"),
            ];
            for (index, (level, kind, size, cpus)) in all.into_iter().enumerate() {
                let cache = format!("cpu{cpu}/cache/index{index}");
                put(&format!("{cache}/level"), level);
                put(&format!("{cache}/type"), kind);
                put(&format!("{cache}/size"), size);
                put(&format!("{cache}/shared_cpu_list"), cpus);
            }
        }
        let lines: Vec<_> = caches(dir.path()).iter().map(Cache::to_string).collect();
        let expected = ["L1 48K for each CPU", "L3 32768K shared by 2 CPUs"];
        assert_eq!(lines, expected);
        assert_eq!(has_smt(dir.path()), Some(true));
        assert_eq!(
            [count("7"), count("0-3,8"), count("3-1")],
            [Some(1), Some(5), None]
        );
    }
}
