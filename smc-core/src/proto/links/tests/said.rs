//! Messages in a word, for comparison.

use smc_wire::llc::{AddLinkStep, Message, Repr, RkeyStep, Step};

use super::world::{SERVER, Side};

/// A message in short, such as `S:ADD_LINK(2)` or `C:ADD_LINK'(2)!` for a rejection.
pub(super) fn said(side: Side, message: &[u8]) -> String {
    let who = if side == SERVER { 'S' } else { 'C' };
    let step = |step: Step| if step == Step::Request { "" } else { "'" };
    let parsed = Message::parse(message).unwrap();
    let what = match parsed.to_repr() {
        Repr::ConfirmLink(m) => format!("CONFIRM_LINK{}({})", step(m.step), m.link),
        Repr::AddLink(m) => match m.step {
            AddLinkStep::Request => format!("ADD_LINK({})", m.link),
            AddLinkStep::Accepted => format!("ADD_LINK'({})", m.link),
            AddLinkStep::Rejected(_) => format!("ADD_LINK'({})!", m.link),
        },
        Repr::AddLinkCont(m) => format!("ADD_LINK_CONT{}({})", step(m.step), m.left),
        Repr::DeleteLink(m) => {
            let (link, step) = (m.link.0, step(m.step));
            let all = if m.all {
                "all".to_owned()
            } else {
                link.to_string()
            };
            let orderly = if m.orderly { " orderly" } else { "" };
            format!("DELETE_LINK{step}({all}{orderly} {:#x})", m.reason.0)
        }
        Repr::RequestAddLink(_) => {
            format!("REQUEST_ADD_LINK{}", step(parsed.header().step()))
        }
        Repr::ConfirmRkey(m) => match m.step {
            RkeyStep::Request => format!("CONFIRM_RKEY({})", m.further_links),
            RkeyStep::Accepted => format!("CONFIRM_RKEY'({})", m.further_links),
            RkeyStep::Rejected { .. } => "CONFIRM_RKEY'!".to_owned(),
        },
        Repr::DeleteRkey(m) => {
            let bad = if m.negative { "!" } else { "" };
            format!("DELETE_RKEY{}{bad}", step(m.step))
        }
        Repr::TestLink(m) => format!("TEST_LINK{}", step(m.step)),
        other => format!("{other:?}"),
    };
    format!("{who}:{what}")
}
