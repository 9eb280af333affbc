//! What is done to processes while they exchange data.

use std::fmt;
use std::time::Duration;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A client is killed (SIGKILL) and started again.
    KillClient,
    KillServer,
    /// A client is stopped (SIGSTOP) for some time.
    StopClient,
    StopServer,
    /// The server ends its listener, and listens anew.
    RestartListener,
    /// A process has no descriptor to spare for some time.
    LimitClient,
    LimitServer,
}

impl Fault {
    pub(super) const ALL: [Self; 7] = [
        Self::KillClient,
        Self::KillServer,
        Self::StopClient,
        Self::StopServer,
        Self::RestartListener,
        Self::LimitClient,
        Self::LimitServer,
    ];

    /// Some of all faults: none in every fourth epoch, most often two or three.
    pub(super) fn random_set(epoch: u64, rng: &mut fastrand::Rng) -> Vec<Self> {
        if epoch % 4 == 0 {
            return Vec::new();
        }
        let first = rng.usize(0..Self::ALL.len());
        let others = Self::ALL.iter().enumerate();
        let chosen = others.filter(|(index, _)| *index == first || rng.u32(0..4) == 0);
        chosen.map(|(_, fault)| *fault).collect()
    }

    /// Whether connections may be lost by it, or not come about.
    pub(super) fn ends_connections(self) -> bool {
        !matches!(self, Self::StopClient | Self::StopServer)
    }

    /// For how long it lasts.
    pub(super) fn duration(self, rng: &mut fastrand::Rng) -> Duration {
        let millis = match self {
            Self::StopClient | Self::StopServer => match rng.u32(0..4) {
                0 => 500..3000,
                _ => 10..500,
            },
            _ => 100..1000,
        };
        Duration::from_millis(rng.u64(millis))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KillClient => "kill client",
            Self::KillServer => "kill server",
            Self::StopClient => "stop client",
            Self::StopServer => "stop server",
            Self::RestartListener => "restart listener",
            Self::LimitClient => "limit descriptors of client",
            Self::LimitServer => "limit descriptors of server",
        })
    }
}

/// Pause between two faults.
pub(super) fn pause(rng: &mut fastrand::Rng) -> Duration {
    Duration::from_millis(rng.u64(20..300))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_comes_about_and_every_fourth_epoch_has_none() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut seen = Vec::new();
        for epoch in 0..100 {
            let set = Fault::random_set(epoch, &mut rng);
            assert_eq!(set.is_empty(), epoch % 4 == 0, "{epoch}");
            seen.extend(set);
        }
        assert!(Fault::ALL.iter().all(|fault| seen.contains(fault)));
    }
}
