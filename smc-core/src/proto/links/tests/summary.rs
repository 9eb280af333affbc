//! Short form of messages, for comparison.

use smc_wire::llc::{AddLinkClass, Class, Header, Message, RkeyClass};

use super::world::{SERVER, Side};

/// A message in short, such as `S:ADD_LINK(2)` or `C:ADD_LINK'(2)!` for a rejection.
pub(super) fn summary(side: Side, message: &[u8]) -> String {
    let who = if side == SERVER { 'S' } else { 'C' };
    let class = |class: Class| if class == Class::Request { "" } else { "'" };
    let parsed = Message::parse(message).unwrap();
    let header = Header::parse(message, None).unwrap();
    let what = match parsed {
        Message::ConfirmLink(m) => format!("CONFIRM_LINK{}({})", class(m.class), m.link),
        Message::AddLink(m) => match m.class {
            AddLinkClass::Request => format!("ADD_LINK({})", m.link),
            AddLinkClass::Accepted => format!("ADD_LINK'({})", m.link),
            AddLinkClass::Rejected(_) => format!("ADD_LINK'({})!", m.link),
        },
        Message::AddLinkCont(m) => format!("ADD_LINK_CONT{}({})", class(m.class), m.left),
        Message::DeleteLink(m) => {
            let (link, class) = (m.link.0, class(m.class));
            let all = if m.all {
                "all".to_owned()
            } else {
                link.to_string()
            };
            let orderly = if m.orderly { " orderly" } else { "" };
            format!("DELETE_LINK{class}({all}{orderly} {:#x})", m.reason.0)
        }
        Message::RequestAddLink(_) => {
            format!("REQUEST_ADD_LINK{}", class(header.class()))
        }
        Message::ConfirmRkey(m) => match m.class {
            RkeyClass::Request => format!("CONFIRM_RKEY({})", m.further_links),
            RkeyClass::Accepted => format!("CONFIRM_RKEY'({})", m.further_links),
            RkeyClass::Rejected { .. } => "CONFIRM_RKEY'!".to_owned(),
        },
        Message::DeleteRkey(m) => {
            let bad = if m.negative { "!" } else { "" };
            format!("DELETE_RKEY{}{bad}", class(m.class))
        }
        Message::TestLink(m) => format!("TEST_LINK{}", class(m.class)),
        other => format!("{other:?}"),
    };
    format!("{who}:{what}")
}
