//! Work that waits until the received messages of a device were dispatched.

use std::sync::{Arc, Weak};

use super::super::conn::MessageSearch;
use super::super::links::{LinkSender, RdmaLinkGroup};
use super::DeviceDriver;

/// Work to be done when all messages that the device has received by now were dispatched: a peer
/// may know that they arrived.
pub(crate) enum AfterDrain {
    /// Closes a link, and notifies its group: data that the peer knows to have arrived must not get
    /// lost.
    CloseLink(Arc<LinkSender>, Weak<RdmaLinkGroup>),
    /// Continues the search for a message.
    MessageSearch {
        search: MessageSearch,
        /// A connection waits, also if the endpoint is dropped now.
        _driver: Arc<DeviceDriver>,
    },
}

impl DeviceDriver {
    /// Has the task do this after its next drain, or does it at once if there is no further drain.
    ///
    /// The caller does not wait for the drain: it may be draining another device, and a thread that
    /// drains this one may need that device drained as well.
    pub(crate) fn after_drain(&self, what: AfterDrain) {
        self.after_drain.lock().push(what);
        if self.is_gone() || self.is_stopped() {
            self.finish_drain();
        } else {
            self.wake_task();
        }
    }

    /// Takes the work that follows the drain that begins now.
    pub(super) fn take_after_drain(&self) -> Vec<AfterDrain> {
        std::mem::take(&mut *self.after_drain.lock())
    }

    pub(super) fn run_after_drain(&self, all: Vec<AfterDrain>) {
        for what in all {
            match what {
                AfterDrain::CloseLink(sender, group) => self.close_link(sender, &group),
                AfterDrain::MessageSearch { search, .. } => search.proceed(),
            }
        }
    }

    /// The last drain has ended.
    pub(super) fn finish_drain(&self) {
        let all = self.take_after_drain();
        self.run_after_drain(all);
    }

    fn close_link(&self, sender: Arc<LinkSender>, group: &Weak<RdmaLinkGroup>) {
        sender.link.close();
        sender.set_closed();
        let (qpn, link) = (sender.link.qpn(), sender.id);
        self.links.lock().remove(qpn, group, link);
        drop(sender);
        if let Some(group) = group.upgrade() {
            group.handle_stopped(link);
        }
    }
}
