//! The permitted results of two parts that were played against each other: those of TCP.
//!
//! Bytes that were reported as written arrive whole, whatever becomes of the writer, and behind
//! them the end of the stream if the writer has closed in order, or else that or an error.

use crate::process::Outcome;
use crate::script::{Done, Part, Step};

/// Results that one end got.
struct End<'a> {
    steps: Vec<(Step, Option<&'a Done>)>,
    /// It was left to end by itself, and has.
    is_through: bool,
    drops: bool,
}

impl<'a> End<'a> {
    fn new(part: &Part, outcome: &'a Outcome, was_killed: bool) -> Self {
        let done = outcome.done.iter().map(Some);
        let done = done.chain(std::iter::repeat(None));
        Self {
            steps: part.steps.iter().copied().zip(done).collect(),
            is_through: !was_killed && outcome.done.len() == part.steps.len(),
            drops: part.end.drops(),
        }
    }

    /// The result of a step of a kind; `None` if there is none, or it was not reported.
    fn done(&self, is_it: impl Fn(Step) -> bool) -> Option<&Done> {
        let mut found = self.steps.iter().filter(|(step, _)| is_it(*step));
        found.find_map(|(_, done)| *done)
    }

    fn has_opened(&self) -> bool {
        self.done(|step| step == Step::Open) == Some(&Done::Ok)
    }

    /// Bytes that it may have written, and those reported as written.
    fn written(&self) -> (usize, usize) {
        let mut most = 0;
        let mut reported = 0;
        for (step, done) in &self.steps {
            if let Step::Write(len) | Step::Commit(len) | Step::CommitExact(len) = step {
                most += len;
                reported += if *done == Some(&Done::Ok) { *len } else { 0 };
            }
        }
        (most, reported)
    }

    /// Bytes that it has reported as read.
    fn read(&self) -> usize {
        let read = self.steps.iter().map(|step| match step {
            (Step::Read(len), Some(Done::Ok)) => *len,
            _ => 0,
        });
        match self.to_end() {
            Some(Done::Eof(len) | Done::Failed(len, _)) => *len,
            _ => read.sum(),
        }
    }

    fn to_end(&self) -> Option<&Done> {
        self.done(|step| matches!(step, Step::ReadToEnd | Step::GuardToEnd))
    }

    /// Its shutdown was completed.
    fn has_closed(&self) -> bool {
        let closes = |step| matches!(step, Step::Shutdown | Step::DropWriter | Step::Drop);
        self.has_opened()
            && (self.done(closes) == Some(&Done::Ok) || (self.is_through && self.drops))
    }
}

/// Which of the two ends was killed from outside, at a time of no meaning to its script.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Killed {
    pub(crate) client: bool,
    pub(crate) server: bool,
}

/// Judges what came of two parts.
///
/// # Errors
///
/// A result that is not permitted.
pub(crate) fn judge(
    (client, server): (&Part, &Part),
    (clients, servers): (&Outcome, &Outcome),
    killed: Killed,
) -> Result<(), String> {
    for (part, outcome, was_killed) in [
        (client, clients, killed.client),
        (server, servers, killed.server),
    ] {
        let by_itself = match part.end {
            crate::script::End::Kill => outcome.status.code().is_none(),
            _ => outcome.status.success(),
        };
        let by_us = was_killed && outcome.status.code().is_none();
        if !(by_itself || by_us) {
            return Err(format!("ended by {}", outcome.status));
        }
    }
    let client = End::new(client, clients, killed.client);
    let server = End::new(server, servers, killed.server);
    let opens = |end: &End<'_>| end.steps.iter().any(|(step, _)| *step == Step::Open);
    if client.has_opened() && opens(&server) && !killed.server && !server.has_opened() {
        return Err("the client is connected and was not accepted".to_owned());
    }
    if server.has_opened() && opens(&client) && !killed.client && !client.has_opened() {
        return Err("the server has accepted and the client is not connected".to_owned());
    }
    received("server", &client, &server)?;
    received("client", &server, &client)
}

/// Judges what one end has read of what the other has written.
fn received(who: &str, writer: &End<'_>, reader: &End<'_>) -> Result<(), String> {
    let (most, reported) = writer.written();
    let mut read = 0;
    for (step, done) in &reader.steps {
        match (step, done) {
            (Step::Read(len), Some(Done::Ok)) => read += len,
            (Step::Read(len), Some(done)) if read + len <= reported && reader.has_opened() => {
                return Err(format!("{who}: {done:?} at {read} of {reported} bytes"));
            }
            _ => {}
        }
    }
    let (Some(ended), true) = (reader.to_end(), reader.has_opened()) else {
        return Ok(());
    };
    let wrong = |what| Err(format!("{who}: {ended:?}, of {reported} bytes: {what}"));
    let (Done::Eof(len) | Done::Failed(len, _)) = ended else {
        return wrong("no end of a stream");
    };
    if *len < reported {
        return wrong("bytes are missing");
    }
    if *len > most {
        return wrong("more than was written");
    }
    // As with TCP, an end that closes with unread bytes resets the connection.
    let resets = reader.written().0 > writer.read();
    if writer.has_closed() && !resets && *ended != Done::Eof(*len) {
        return wrong("the writer has closed in order");
    }
    Ok(())
}
