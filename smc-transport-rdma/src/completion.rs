//! Completions: what became of posts and receives.

use std::sync::Arc;

use rdma_mummy_sys::ibv_wc_status as status;
use sideway::ibverbs::completion::BasicCompletionQueue;
use smc_core::device::{DeviceError, Event, LinkFailure};

use crate::config::RECEIVES;
use crate::device::Parts;
use crate::link::Core;
use crate::links::Serial;
use crate::verbs::{self, BATCH, Completion};

/// What a work request was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// A receive, by the number of its buffer.
    Receive(u32),
    /// A message.
    Send,
    /// A write in front of a message; reported only if it fails.
    Write,
}

impl Work {
    /// The identifier of a request of a link.
    pub(crate) fn id(self, link: Serial) -> u64 {
        let work = match self {
            Self::Receive(index) => index,
            Self::Send => SEND,
            Self::Write => WRITE,
        };
        u64::from(link.0) << 32 | u64::from(work)
    }

    fn of(id: u64) -> (Serial, Self) {
        let work = match id as u32 {
            SEND => Self::Send,
            WRITE => Self::Write,
            index => Self::Receive(index),
        };
        (Serial((id >> 32) as u32), work)
    }
}

/// Far above the numbers of receives.
const SEND: u32 = 1 << 31;
const WRITE: u32 = SEND + 1;

/// Completions that were taken and are not handed out: receives of theirs are posted again,
/// whatever handling the messages takes. Kept between drains for its memory.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    events: Vec<(Arc<Core>, Event)>,
    /// How often some were handed out.
    rounds: u64,
}

/// Most of them, unless links have more receives than usual.
const TAKEN_MAX: usize = RECEIVES as usize;

/// Passes on everything that the completion queues have.
///
/// What was received comes first: why a link was flushed is among the posts, and there by then.
pub(crate) fn drain(
    parts: &Parts,
    taken: &mut Taken,
    sink: &mut dyn FnMut(Event),
) -> Result<(), DeviceError> {
    let undrained = parts.links.undrained();
    let mut visit = Visit::new(parts, taken);
    let depths = parts.depths;
    let received = visit.queue(&parts.receives, depths.receive_completions(), sink)?;
    let sent = visit.queue(&parts.sends, depths.send_completions(), sink)?;
    visit.end();
    if received && sent {
        parts.links.confirm_drained(undrained);
    }
    Ok(())
}

/// Passes on everything that the queue of receives has.
pub(crate) fn drain_receives(
    parts: &Parts,
    taken: &mut Taken,
    sink: &mut dyn FnMut(Event),
) -> Result<(), DeviceError> {
    let mut visit = Visit::new(parts, taken);
    visit.queue(&parts.receives, parts.depths.receive_completions(), sink)?;
    visit.end();
    Ok(())
}

/// One round through the queue.
struct Visit<'a> {
    parts: &'a Parts,
    /// The link of the completion before, which is often that of the next.
    link: Option<Arc<Core>>,
    /// Links whose requests were flushed. The reason may be in a completion further behind.
    flushed: Vec<Arc<Core>>,
    taken: &'a mut Taken,
}

impl<'a> Visit<'a> {
    fn new(parts: &'a Parts, taken: &'a mut Taken) -> Self {
        Self {
            parts,
            link: None,
            flushed: Vec::new(),
            taken,
        }
    }

    /// Passes on what a queue has. Returns whether it was emptied.
    fn queue(
        &mut self,
        queue: &BasicCompletionQueue,
        depth: u32,
        sink: &mut dyn FnMut(Event),
    ) -> Result<bool, DeviceError> {
        let mut batch = [Completion::default(); BATCH];
        let most = TAKEN_MAX.max(self.parts.depths.receives as usize);
        let most = most.next_multiple_of(BATCH);
        // All that was there at the start has been handed out after this many; what came later
        // rings.
        let mut polls = 0..=depth / BATCH as u32;
        let is_empty = loop {
            if polls.next().is_none() {
                break Ok(false);
            }
            let count = match verbs::poll(queue, &mut batch) {
                Ok(count) => count,
                Err(error) => break Err(DeviceError::os("polling for completions", &error)),
            };
            for completion in batch.iter().take(count) {
                self.completed(completion);
            }
            if count < BATCH {
                break Ok(true);
            }
            if self.taken.events.len() + BATCH > most {
                self.hand_out(sink);
            }
        };
        self.hand_out(sink);
        is_empty
    }

    /// Hands out what was taken, in its order. Users may have closed a link meanwhile.
    fn hand_out(&mut self, sink: &mut dyn FnMut(Event)) {
        self.taken.rounds = self.taken.rounds.wrapping_add(1);
        for (link, event) in self.taken.events.drain(..) {
            if !link.is_down() {
                sink(event);
            }
        }
    }

    fn completed(&mut self, completion: &Completion) {
        let (serial, work) = Work::of(completion.id);
        if self.link.as_ref().is_none_or(|link| link.serial != serial) {
            // Nothing found: left over from a link that was dropped.
            self.link = self.parts.links.find(serial);
        }
        let Some(link) = self.link.as_ref().filter(|link| !link.is_down()) else {
            return;
        };
        let name = link.qpn;
        let failure = match (completion.status, work) {
            (status::IBV_WC_SUCCESS, Work::Receive(index)) => {
                match link.received(index, completion.len, self.taken.rounds) {
                    Ok(message) => {
                        let received = Event::Received {
                            link: name,
                            message,
                        };
                        return self.taken.events.push((Arc::clone(link), received));
                    }
                    Err(failure) => failure,
                }
            }
            (status::IBV_WC_SUCCESS, Work::Send) => {
                if let Some(op) = link.complete_oldest() {
                    let completed = Event::Completed { link: name, op };
                    self.taken.events.push((Arc::clone(link), completed));
                }
                return;
            }
            (status::IBV_WC_SUCCESS, Work::Write) => return,
            (status::IBV_WC_WR_FLUSH_ERR, _) => {
                if !self
                    .flushed
                    .iter()
                    .any(|flushed| Arc::ptr_eq(flushed, link))
                {
                    self.flushed.push(Arc::clone(link));
                }
                return;
            }
            (status, _) => failure(status),
        };
        self.parts.stop_link(link, failure);
    }

    fn end(self) {
        for link in self.flushed {
            self.parts.stop_link(&link, LinkFailure::Flushed);
        }
    }
}

fn failure(status: u32) -> LinkFailure {
    match status {
        status::IBV_WC_RETRY_EXC_ERR => LinkFailure::RetryExceeded,
        status::IBV_WC_RNR_RETRY_EXC_ERR => LinkFailure::RnrExceeded,
        status::IBV_WC_REM_ACCESS_ERR => LinkFailure::RemoteAccess,
        status::IBV_WC_WR_FLUSH_ERR => LinkFailure::Flushed,
        status::IBV_WC_LOC_LEN_ERR => LinkFailure::QueuePair("a message is longer than its buffer"),
        status::IBV_WC_LOC_PROT_ERR => LinkFailure::QueuePair("memory is no longer registered"),
        status::IBV_WC_REM_INV_REQ_ERR => LinkFailure::QueuePair("peer calls a request invalid"),
        status::IBV_WC_REM_OP_ERR => LinkFailure::QueuePair("peer could not complete a request"),
        status::IBV_WC_FATAL_ERR => LinkFailure::Device("fatal error"),
        _ => LinkFailure::QueuePair("a request failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_fatal_error_says_that_the_device_has_failed() {
        // All there are, and some more.
        for status in status::IBV_WC_SUCCESS + 1..64 {
            let is_fatal = status == status::IBV_WC_FATAL_ERR;
            let failure = failure(status);
            let excludes = matches!(failure, LinkFailure::PortDown | LinkFailure::Device(_));
            assert_eq!(excludes, is_fatal, "{status}: {failure}");
        }
    }

    #[test]
    fn identifiers_name_link_and_work() {
        for work in [
            Work::Receive(0),
            Work::Receive(127),
            Work::Send,
            Work::Write,
        ] {
            for serial in [Serial(0), Serial(1), Serial(u32::MAX)] {
                assert_eq!(Work::of(work.id(serial)), (serial, work));
            }
        }
    }
}
