//! How the rows of a table are run.

use std::io::ErrorKind;
use std::time::Duration;

use smc_core::wire::types::DeclineCode;

use crate::peer::Step;
use crate::world::{Codes, World};

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
    /// Whether real sockets would keep the test waiting.
    fn waits(self) -> bool {
        matches!(self, Self::TimesOut(_))
    }
}

/// The peer declined.
pub(crate) const fn peer(code: DeclineCode) -> Outcome {
    Outcome::Tcp(Codes::peer_declined(code))
}

/// Runs a row in every kind of world that it can be run in.
pub(crate) fn everywhere(name: &str, outcome: Outcome, row: impl Fn(&World)) {
    let real = World::real().filter(|_| !outcome.waits());
    let worlds = [World::new(), World::in_pieces()];
    for world in worlds.into_iter().chain(real) {
        // Shown when the row fails.
        println!("{name}, {world}");
        row(&world);
    }
}

/// Application data that the script sends behind a message.
pub(crate) fn early(script: &[Step]) -> &'static [u8] {
    let data = script.iter().find_map(|step| match step {
        Step::SendsWith(_, data) => Some(*data),
        _ => None,
    });
    data.unwrap_or_default()
}

/// How long each message may take.
pub(crate) const MESSAGE: Duration = Duration::from_secs(6);

/// How long a client may be silent that is known to support CLC.
pub(crate) const FIRST_BYTE: Duration = Duration::from_secs(1);
