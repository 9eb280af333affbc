//! What a process and the RDMA devices have, and the clock.

use anyhow::{Context as _, Result};
use fs_err as fs;
use rustix::time::{ClockId, clock_gettime, clock_settime};

use crate::protocol::Resources;

/// Of a process; `shown` is what `rdma resource show` writes.
pub(crate) fn of(pid: u32, shown: &str) -> Result<Resources> {
    let count =
        |what: &str| -> Result<usize> { Ok(fs::read_dir(format!("/proc/{pid}/{what}"))?.count()) };
    Ok(Resources {
        descriptors: count("fd")?,
        threads: count("task")?,
        queue_pairs: sum(shown, "qp")?,
        registrations: sum(shown, "mr")?,
    })
}

/// The sum over all devices: each line is "0: rxe0: pd 1 cq 1 qp 3 cm_id 0 mr 4 ctx 1 srq 0".
fn sum(shown: &str, what: &str) -> Result<usize> {
    let mut sum = 0;
    for line in shown.lines() {
        let mut words = line.split_whitespace();
        words
            .find(|word| *word == what)
            .with_context(|| format!("no {what} in {line}"))?;
        let count = words.next().context("no count")?;
        sum += count.parse::<usize>().with_context(|| line.to_owned())?;
    }
    Ok(sum)
}

/// Sets the clock forward by so many seconds.
pub(crate) fn step_clock(seconds: i64) -> Result<()> {
    let mut time = clock_gettime(ClockId::Realtime);
    time.tv_sec += seconds;
    clock_settime(ClockId::Realtime, time).context("cannot set the clock")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_of_all_devices_are_added() {
        let shown = "\
0: rxe0: pd 2 cq 3 qp 4 cm_id 0 mr 10 ctx 1 srq 0
1: rxe1: pd 2 cq 3 qp 2 cm_id 0 mr 7 ctx 1 srq 0
";
        assert_eq!(sum(shown, "qp").unwrap(), 6);
        assert_eq!(sum(shown, "mr").unwrap(), 17);
        assert!(sum(shown, "nothing").is_err());
    }
}
