//! Short form of messages, for comparison.

use smc_wire::llc::{AddLinkStep, Header, Message, RkeyStep, Step};

use super::world::{SERVER, Side};

/// A message in short, such as `S:ADD_LINK(2)` or `C:ADD_LINK'(2)!` for a rejection.
pub(super) fn summary(side: Side, message: &[u8]) -> String {
    let who = if side == SERVER { 'S' } else { 'C' };
    let step = |step: Step| if step == Step::Request { "" } else { "'" };
    let parsed = Message::parse(message).unwrap();
    let header = Header::parse(message, None).unwrap();
    let what = match parsed {
        Message::ConfirmLink(m) => format!("CONFIRM_LINK{}({})", step(m.step), m.link),
        Message::AddLink(m) => match m.step {
            AddLinkStep::Request => format!("ADD_LINK({})", m.link),
            AddLinkStep::Accepted => format!("ADD_LINK'({})", m.link),
            AddLinkStep::Rejected(_) => format!("ADD_LINK'({})!", m.link),
        },
        Message::AddLinkCont(m) => format!("ADD_LINK_CONT{}({})", step(m.step), m.left),
        Message::DeleteLink(m) => {
            let (link, step) = (m.link.0, step(m.step));
            let all = if m.all {
                "all".to_owned()
            } else {
                link.to_string()
            };
            let orderly = if m.orderly { " orderly" } else { "" };
            format!("DELETE_LINK{step}({all}{orderly} {:#x})", m.reason.0)
        }
        Message::RequestAddLink(_) => {
            format!("REQUEST_ADD_LINK{}", step(header.step()))
        }
        Message::ConfirmRkey(m) => match m.step {
            RkeyStep::Request => format!("CONFIRM_RKEY({})", m.further_links),
            RkeyStep::Accepted => format!("CONFIRM_RKEY'({})", m.further_links),
            RkeyStep::Rejected { .. } => "CONFIRM_RKEY'!".to_owned(),
        },
        Message::DeleteRkey(m) => {
            let bad = if m.negative { "!" } else { "" };
            format!("DELETE_RKEY{}{bad}", step(m.step))
        }
        Message::TestLink(m) => format!("TEST_LINK{}", step(m.step)),
        other => format!("{other:?}"),
    };
    format!("{who}:{what}")
}
