//! What is done to processes while they exchange data.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::limit::Limited;

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
    /// A process has no descriptor or memory to spare for some time.
    LimitClient(Limited),
    LimitServer(Limited),
    /// The clock of the system is set to another time.
    StepClock,
}

impl Fault {
    pub(super) const ALL: [Self; 10] = [
        Self::KillClient,
        Self::KillServer,
        Self::StopClient,
        Self::StopServer,
        Self::RestartListener,
        Self::LimitClient(Limited::Descriptors),
        Self::LimitServer(Limited::Descriptors),
        Self::LimitClient(Limited::Memory),
        Self::LimitServer(Limited::Memory),
        Self::StepClock,
    ];

    /// Some of those that are possible: none in every fourth epoch, most often two or three.
    pub(super) fn random_set(possible: &[Self], epoch: u64, rng: &mut fastrand::Rng) -> Vec<Self> {
        if epoch % 4 == 0 {
            return Vec::new();
        }
        let first = rng.usize(0..possible.len());
        let others = possible.iter().enumerate();
        let chosen = others.filter(|(index, _)| *index == first || rng.u32(0..4) == 0);
        chosen.map(|(_, fault)| *fault).collect()
    }

    /// Whether connections may be lost by it, or not come about.
    pub(super) fn ends_connections(self) -> bool {
        !matches!(self, Self::StopClient | Self::StopServer | Self::StepClock)
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

/// As it is shown, with `-` for each space.
impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = |fault: &Self| fault.to_string().replace(' ', "-");
        let found = Self::ALL.iter().find(|fault| name(fault) == text);
        found.copied().ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(name).collect();
            format!("one of {}", names.join(", "))
        })
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
            Self::LimitClient(Limited::Descriptors) => "limit descriptors of client",
            Self::LimitServer(Limited::Descriptors) => "limit descriptors of server",
            Self::LimitClient(Limited::Memory) => "limit memory of client",
            Self::LimitServer(Limited::Memory) => "limit memory of server",
            Self::StepClock => "step clock",
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
            let set = Fault::random_set(&Fault::ALL, epoch, &mut rng);
            assert_eq!(set.is_empty(), epoch % 4 == 0, "{epoch}");
            seen.extend(set);
        }
        assert!(Fault::ALL.iter().all(|fault| seen.contains(fault)));
    }

    #[test]
    fn a_fault_has_a_name_for_commands() {
        let limit = Fault::LimitServer(Limited::Memory);
        assert_eq!("limit-memory-of-server".parse(), Ok(limit));
        let error = "limit".parse::<Fault>().unwrap_err();
        assert!(
            error.starts_with("one of kill-client, kill-server, "),
            "{error}"
        );
    }
}
