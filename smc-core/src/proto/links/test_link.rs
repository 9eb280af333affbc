//! TEST LINK (docs/spec/llc.md#test-link).

use std::time::Instant;

use smc_wire::llc::{Class, TestLink};

use super::link::LinkEntry;
use super::{LinkGroup, LinkId};
use crate::proto::after;

impl LinkGroup {
    /// When a link has to be tested, or has failed its test.
    pub(super) fn test_due(&self, link: &LinkEntry) -> Option<Instant> {
        if !link.is_active() {
            return None;
        }
        let idle = self
            .config
            .test_link
            .map(|wait| after(link.last_received, wait));
        link.test_deadline.or(idle)
    }

    pub(super) fn test_timeouts(&mut self, now: Instant) {
        let due: Vec<_> = self
            .links
            .iter()
            .filter(|link| self.test_due(link).is_some_and(|due| due <= now))
            .map(|link| (link.info.id, link.test_deadline.is_some()))
            .collect();
        for (link, is_tested) in due {
            if is_tested {
                self.fail_link(now, link, None);
            } else {
                self.start_test(now, link);
            }
        }
    }

    fn start_test(&mut self, now: Instant, link: LinkId) {
        let until = after(now, self.config.timeouts.response);
        if let Some(found) = self.find_link(link) {
            found.test_deadline = Some(until);
        }
        let message = TestLink::request(self.terms.dialect, [0; 16]);
        self.send(link, message.encoded_len(), |buffer| message.emit(buffer));
    }

    pub(super) fn handle_test_link(&mut self, link: LinkId, message: TestLink) {
        match message.class {
            Class::Request => {
                let answer = message.response();
                self.send(link, answer.encoded_len(), |buffer| answer.emit(buffer));
            }
            Class::Response => {
                if let Some(found) = self.find_link(link) {
                    found.test_deadline = None;
                }
            }
        }
    }
}
