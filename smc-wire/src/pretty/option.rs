//! TCP options.

use super::dissector::Dissector;
use crate::layout::{DEC, Show, big_endian};
use crate::option::{END, EXID, KIND, NOP};

/// Shows the options of an option area; options other than that of SMC appear as bytes.
pub(super) fn dissect(w: &mut Dissector<'_, '_>) {
    for index in 0.. {
        if w.left() == 0 || w.element(index).group("options", option).is_none() {
            break;
        }
    }
}

/// One option; `None` after the last one.
fn option(w: &mut Dissector<'_, '_>) -> Option<()> {
    let &[kind] = w.value("kind", 1, &OPTION)? else {
        return None;
    };
    match kind {
        END => return None,
        NOP => return Some(()),
        _ => {}
    }
    let length = w.value("length", 1, &DEC).map(big_endian)?;
    // Kind and length are part of the length.
    let len = usize::try_from(length).ok()?.checked_sub(2)?;
    if kind != KIND || len < EXID.len() {
        return w.raw("data", len);
    }
    w.value("exid", EXID.len(), &EXPERIMENT)?;
    w.raw("data", len.checked_sub(EXID.len())?)
}

const OPTION: Show = Show::Code(|kind| match u8::try_from(kind) {
    Ok(END) => Some("end of list"),
    Ok(NOP) => Some("no operation"),
    Ok(KIND) => Some("experimental, shared"),
    _ => None,
});

const EXPERIMENT: Show = Show::Code(|exid| (exid == big_endian(&EXID)).then_some("SMCR"));
