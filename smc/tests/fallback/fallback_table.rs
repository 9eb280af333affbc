//! Rows of tables, and how they are run.

use std::io::ErrorKind;
use std::time::Duration;

use smc_core::wire::types::DeclineCode;
use smc_testkit::world::{Codes, ForgedPeer, Step, World};

/// What a peer without an endpoint does, and what the handshake comes to.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) script: fn(&ForgedPeer) -> Vec<Step>,
    pub(crate) outcome: Outcome,
    pub(crate) takes: Duration,
    /// When it becomes known that no answer can come.
    pub(crate) lost_after: Option<Duration>,
}

/// Rows of a name, what the peer does, and the outcome.
macro_rules! rows {
    ($($name:literal, |$forged:pat_param| $script:expr => $outcome:expr;)*) => {
        &[$($crate::fallback_table::Row {
            name: $name,
            script: |$forged| Vec::from($script),
            ..$outcome.into()
        }),*]
    };
}
pub(crate) use rows;

/// What a handshake comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The stream is SMC.
    Smc,
    /// The stream is SMC and has ended: the peer's buffer could not be used.
    Lost,
    /// The stream is TCP, and nothing more is sent about it.
    Tcp(Codes),
    /// This side declines with a message that the peer reads, and the stream is TCP.
    Declined(DeclineCode),
    /// The connection fails; a listener's application does not see it.
    Fails(ErrorKind),
    /// The same, when the link group is already there for others.
    FailsInGroup,
    /// It fails when so much time has passed.
    TimesOut(Duration),
}

impl Outcome {
    /// So much time passes before.
    pub(crate) fn takes(self, takes: Duration) -> Row {
        Row {
            takes,
            ..self.into()
        }
    }

    /// It becomes known after this time that no answer can come.
    pub(crate) fn lost_after(self, time: Duration) -> Row {
        Row {
            lost_after: Some(time),
            ..self.into()
        }
    }
}

impl Row {
    pub(crate) fn takes(self, takes: Duration) -> Self {
        Self { takes, ..self }
    }
}

impl From<Outcome> for Row {
    fn from(outcome: Outcome) -> Self {
        Self {
            name: "",
            script: |_| Vec::new(),
            outcome,
            takes: Duration::ZERO,
            lost_after: None,
        }
    }
}

/// The peer declined.
pub(crate) const fn peer(code: DeclineCode) -> Outcome {
    Outcome::Tcp(Codes::peer_declined(code))
}

/// Runs a row in every kind of world that it can be run in: real sockets would keep the test
/// waiting.
pub(crate) fn everywhere(name: &str, outcome: Outcome, row: impl Fn(&World)) {
    let waits = matches!(outcome, Outcome::TimesOut(_));
    for world in World::all().into_iter().take(if waits { 2 } else { 3 }) {
        // Shown when the row fails.
        println!("{name}, {world}");
        row(&world);
    }
}

/// Application data that the script sends.
pub(crate) fn early(script: &[Step]) -> &'static [u8] {
    let data = script.iter().find_map(|step| match step {
        Step::SendsWith(_, data) | Step::SendsFirst(data) | Step::SendsFirstSlowly(data) => {
            Some(*data)
        }
        _ => None,
    });
    data.unwrap_or_default()
}

pub(crate) const NODEV: DeclineCode = DeclineCode::NOSMCDEV;

/// Without any message about it.
pub(crate) const PLAIN: Outcome = Outcome::Tcp(Codes::local(DeclineCode::PEERNOSMC));

/// How long each message may take.
pub(crate) const MESSAGE: Duration = Duration::from_secs(6);

/// Much longer than a handshake, much shorter than any timeout.
pub(crate) const AT_ONCE: Duration = Duration::from_millis(100);

/// Longer than anything that waits for nothing.
pub(crate) const SOON: Duration = Duration::from_millis(300);
