//! TCP options.

use super::Value;
use super::dissector::Dissector;
use crate::layout::big_endian;
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
    let kind = w.number::<1>("kind", |value| Value::Code {
        value,
        digits: 2,
        name: match u8::try_from(value) {
            Ok(END) => Some("end of list"),
            Ok(NOP) => Some("no operation"),
            Ok(KIND) => Some("experimental, shared"),
            _ => None,
        },
    })?;
    match u8::try_from(kind) {
        Ok(END) => return None,
        Ok(NOP) => return Some(()),
        _ => {}
    }
    let length = usize::try_from(w.unsigned::<1>("length")?).ok()?;
    // Kind and length are part of the length.
    let len = length.checked_sub(2)?;
    if kind != u64::from(KIND) || len < 4 {
        return w.raw("data", len);
    }
    w.number::<4>("exid", |value| Value::Code {
        value,
        digits: 8,
        name: (value == big_endian(&EXID)).then_some("SMCR"),
    })?;
    w.raw("data", len.checked_sub(4)?)
}
