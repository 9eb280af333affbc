//! Networks between guests that delay, lose and duplicate packets (tc-netem(8)).

use anyhow::{Context as _, Result};

use super::{Lab, NICS};

impl Lab {
    /// Has netem, with these parameters, impair what leaves each network interface.
    pub(crate) fn impair(&mut self, how: &[&str]) -> Result<()> {
        let how = how.join(" ");
        self.on_interfaces(|interface| {
            vec![format!("tc qdisc replace dev {interface} root netem {how}")]
        })
    }

    /// As [`Lab::impair`], but only of the SYNs of clients, each of which passes netem.
    pub(crate) fn impair_syns(&mut self, how: &[&str]) -> Result<()> {
        let how = how.join(" ");
        self.on_interfaces(|interface| {
            let filter = "flower ip_proto tcp tcp_flags 0x02/0x12";
            vec![
                // All other packets have the first class, whatever their priority.
                format!(
                    "tc qdisc replace dev {interface} root handle 1: prio bands 3 \
                     priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"
                ),
                format!("tc qdisc add dev {interface} parent 1:3 handle 3: netem {how}"),
                format!("tc filter add dev {interface} parent 1: protocol ip {filter} classid 1:3"),
            ]
        })
    }

    /// The SYNs of the client since [`Lab::impair_syns`].
    pub(crate) fn impaired_syns(&mut self) -> Result<Syns> {
        let mut all = Syns::default();
        for nic in 0..NICS {
            let shown = self.exec(0, &format!("tc -s qdisc show dev eth{nic}"))?;
            let syns = syns(&shown).with_context(|| format!("output of tc: {shown}"))?;
            all.sent += syns.sent;
            all.lost += syns.lost;
        }
        Ok(all)
    }

    /// Ends all impairments.
    pub(crate) fn repair(&mut self) -> Result<()> {
        self.on_interfaces(|interface| vec![format!("tc qdisc del dev {interface} root")])
    }

    fn on_interfaces(&mut self, commands: impl Fn(&str) -> Vec<String>) -> Result<()> {
        for guest in 0..2 {
            for nic in 0..NICS {
                for command in commands(&format!("eth{nic}")) {
                    self.exec(guest, &command)?;
                }
            }
        }
        Ok(())
    }
}

/// SYNs that were sent, and how many of them netem has lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Syns {
    pub(crate) sent: u32,
    pub(crate) lost: u32,
}

/// What the netem with handle 3 has got.
fn syns(shown: &str) -> Option<Syns> {
    let (_, netem) = shown.split_once("qdisc netem 3:")?;
    // " Sent BYTES bytes PACKETS pkt (dropped PACKETS, overlimits ..."
    let (_, counts) = netem.split_once("Sent ")?;
    let mut words = counts.split_whitespace();
    let passed: u32 = words.nth(2)?.parse().ok()?;
    let lost: u32 = words.nth(2)?.trim_end_matches(',').parse().ok()?;
    let sent = passed + lost;
    Some(Syns { sent, lost })
}

#[cfg(test)]
mod tests {
    use super::{Syns, syns};

    #[test]
    fn packets_of_one_discipline_are_counted() {
        let shown = "\
qdisc prio 1: root refcnt 2 bands 3 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
 Sent 9000 bytes 90 pkt (dropped 0, overlimits 0 requeues 0)
 backlog 0b 0p requeues 0
qdisc netem 3: parent 1:3 limit 1000 loss gemodel p 100% r 100% 1-h 100% 1-k 0%
 Sent 620 bytes 5 pkt (dropped 4, overlimits 0 requeues 0)
 backlog 0b 0p requeues 0
";
        let expected = Syns { sent: 9, lost: 4 };
        assert_eq!(syns(shown), Some(expected));
        assert_eq!(syns("qdisc noqueue 0: root refcnt 2"), None);
    }
}
