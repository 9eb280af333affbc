//! The notices of a link group's machine as events.

use smc_wire::llc::MessageType;

use super::Span;
#[cfg(feature = "tracing")]
use super::warned::Recent;
#[cfg(feature = "tracing")]
use crate::mutex::Mutex;
use crate::proto::links::{DropReason, LinkId, Notice};

/// The span of a link group of SMC-R, and the warnings that were written in it.
#[derive(Debug)]
pub(crate) struct GroupLog {
    pub(crate) span: Span,
    /// The dropped messages, by type and reason.
    #[cfg(feature = "tracing")]
    dropped: Mutex<Recent<(&'static str, DropReason)>>,
}

impl GroupLog {
    pub(crate) fn new(span: Span) -> Self {
        Self {
            span,
            #[cfg(feature = "tracing")]
            dropped: Mutex::default(),
        }
    }

    /// Logs an event of the machine. The caller is inside of the span.
    pub(crate) fn notice(&self, notice: Notice) {
        match notice {
            Notice::LinkUp(link) => info!("link is up", link = link),
            Notice::LinkDown { link, cause } => {
                info!("link is down", link = link, cause = cause);
            }
            Notice::NotAdded { number, why } if why.is_expected() => {
                debug!("link is not added", number = number, cause = why);
            }
            Notice::NotAdded { number, why } => {
                warn!("link is not added", number = number, cause = why);
            }
            Notice::Dropped { kind, why } => {
                self.dropped(kind.map_or("unknown", |kind| kind.kind().name()), why);
            }
            Notice::Unanswered(kind) => {
                warn!("peer did not answer in time", kind = kind);
            }
        }
    }

    /// A message was dropped: a warning for the first one of each type and reason.
    pub(crate) fn dropped(&self, kind: &'static str, why: DropReason) {
        // Messages of a link that has failed are still under way.
        if why != DropReason::LinkNotInUse && self.is_new(kind, why) {
            warn!("message is dropped", kind = kind, cause = why);
        } else {
            debug!("message is dropped", kind = kind, cause = why);
        }
    }

    #[cfg(feature = "tracing")]
    fn is_new(&self, kind: &'static str, why: DropReason) -> bool {
        self.dropped.lock().insert((kind, why))
    }

    #[cfg(not(feature = "tracing"))]
    fn is_new(&self, _kind: &'static str, _why: DropReason) -> bool {
        false
    }

    /// An LLC message is sent on a link.
    pub(crate) fn sends(&self, link: LinkId, message: &[u8]) {
        self.span.in_scope(|| {
            debug!("message is sent", link = link, kind = name(message));
        });
    }

    /// A link has received an LLC message.
    pub(crate) fn received(&self, link: LinkId, message: &[u8]) {
        self.span.in_scope(|| {
            debug!("message was received", link = link, kind = name(message));
        });
    }
}

/// The name of an LLC message.
fn name(message: &[u8]) -> &'static str {
    let kind = message.first();
    let kind = kind.and_then(|kind| MessageType::from_byte(*kind));
    kind.map_or("unknown", |kind| kind.kind().name())
}
