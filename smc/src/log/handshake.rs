//! The steps of a handshake as events.

use smc_wire::clc::Frame;

use crate::proto::handshake::{Handshake, WorkDone};

/// The last log entry of a handshake.
#[derive(Debug, Default)]
pub(crate) struct HandshakeLog {
    /// The step that it names.
    #[cfg(feature = "tracing")]
    step: &'static str,
}

impl HandshakeLog {
    /// The machine waits for a message, or for work that is under way.
    #[cfg(feature = "tracing")]
    pub(crate) fn waits(&mut self, machine: &Handshake, is_working: bool) {
        let step = machine.state().unwrap_or_default();
        if std::mem::replace(&mut self.step, step) != step && !is_working {
            debug!("handshake waits for a message", step = step);
        }
    }

    #[cfg(not(feature = "tracing"))]
    pub(crate) fn waits(&mut self, _machine: &Handshake, _is_working: bool) {}

    /// A message is sent.
    pub(crate) fn sends(message: &[u8]) {
        if !cfg!(feature = "tracing") {
            return;
        }
        if let Ok(Some(frame)) = Frame::peek_extended(message) {
            debug!("message is sent", kind = frame.header().kind);
        }
    }

    /// Bytes were received, perhaps the last ones of a message.
    pub(crate) fn received(machine: &mut Handshake) {
        if !cfg!(feature = "tracing") {
            return;
        }
        if let Some(kind) = machine.take_received() {
            debug!("message was received", kind = kind);
        }
    }

    /// Work that the present step waits for begins.
    pub(crate) fn begins_work(machine: &Handshake) {
        debug!("work begins", step = machine.state().unwrap_or_default());
    }

    /// The work is done, or has failed.
    pub(crate) fn ends_work(machine: &Handshake, done: &WorkDone) {
        if !cfg!(feature = "tracing") {
            return;
        }
        let step = machine.state().unwrap_or_default();
        match failure(done) {
            None => debug!("work is done", step = step),
            Some(cause) => debug!("work has failed", step = step, cause = cause),
        }
    }
}

fn failure(done: &WorkDone) -> Option<String> {
    fn text<T>(result: &Result<T, impl ToString>) -> Option<String> {
        result.as_ref().err().map(ToString::to_string)
    }
    match done {
        WorkDone::Reached(result) | WorkDone::LinkConnected(result) => text(result),
        WorkDone::Entered(result) => text(result),
        WorkDone::Registered(result) => text(result),
        WorkDone::Claimed(result) => text(result),
        WorkDone::Attached(result) => text(result),
        WorkDone::LinkOpened(result) => text(result),
        WorkDone::RmbPrepared(result) => text(result),
        WorkDone::RkeyConfirmed(result) => text(result),
        WorkDone::PeerBound(result) => text(result),
        WorkDone::LinkConfirmed(result) => text(result),
        WorkDone::GroupEstablished(result) => text(result),
    }
}
