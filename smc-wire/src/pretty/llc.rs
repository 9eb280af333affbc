//! LLC messages.

use core::mem::offset_of;

use super::dissector::Dissector;
use super::{Problem, Value};
use crate::cdc::ByteOrder;
use crate::layout::{Bits, Layout};
use crate::llc::header::{
    ALL_LINKS, NEGATIVE, NO_EYECATCHER, ORDERLY, REASON, REJECTED, RESPONSE, RETRY,
};
use crate::llc::{
    MAX_MESSAGE_LEN, MAX_RTOKENS, MESSAGE_LEN, Message, MessageType, RejectReason, WireRtoken,
    detect_order, raw,
};

pub(super) fn dissect(w: &mut Dissector<'_, '_>) {
    let complete = message(w).is_some();
    // v1 messages and most v2 messages have a fixed size; the rest is counted by the message.
    if complete && w.at() >= MESSAGE_LEN && w.left() > 0 {
        let (offset, len) = (w.at(), w.left());
        w.problem(Problem::Excess { offset, len });
    }
    w.verdict(Message::parse(w.bytes()));
}

/// What the header decides about the body.
struct Head {
    v2: bool,
    /// `None` if the length field does not show it.
    order: Option<ByteOrder>,
    response: bool,
    rejected: bool,
}

fn message(w: &mut Dissector<'_, '_>) -> Option<()> {
    let kind = w.bytes().first().copied().and_then(MessageType::from_byte);
    let mut head = None;
    w.group("header", |w| {
        head = Some(header(w, kind)?);
        Some(())
    })?;
    let head = head?;
    match kind {
        Some(MessageType::ConfirmLink) => w.fields::<raw::ConfirmLink>().map(drop),
        Some(MessageType::AddLink) => add_link(w, &head),
        Some(MessageType::AddLinkCont) => add_link_cont(w),
        Some(MessageType::DeleteLink) => w.fields::<raw::DeleteLink>().map(drop),
        Some(MessageType::RequestAddLink) => request_add_link(w, &head),
        Some(MessageType::ConfirmRkey) => {
            let further = w.fields::<raw::ConfirmRkey>()?.further_links;
            list::<raw::LinkRtoken>(w, "further_rtokens", further, &UNUSED_RTOKENS[..2])?;
            w.reserved("reserved_43", 1)
        }
        Some(MessageType::ConfirmRkeyCont) => {
            let left = w.fields::<raw::ConfirmRkeyCont>()?.rtokens_left;
            list::<raw::LinkRtoken>(w, "further_rtokens", left, &UNUSED_RTOKENS)
        }
        Some(MessageType::TestLink) => w.fields::<raw::TestLink>().map(drop),
        Some(MessageType::DeleteRkey) => delete_rkey(w, &head),
        None => w.raw("body", w.left()),
    }
}

fn header(w: &mut Dissector<'_, '_>, kind: Option<MessageType>) -> Option<Head> {
    let byte = w.number::<1>("type", |value| Value::Code {
        value,
        digits: 2,
        name: kind.map(|kind| kind.kind().name()),
    })?;
    let Some(kind) = kind else {
        // Not even the length is certain in a message of an unknown type.
        w.raw("length_and_flags", 3)?;
        return Some(Head {
            v2: false,
            order: None,
            response: false,
            rejected: false,
        });
    };
    let v2 = byte >> 4 == 2;
    let order = if v2 {
        length_v2(w)?
    } else {
        length_v1(w, kind)?
    };
    let (response, rejected) = flags(w, kind, v2)?;
    Some(Head {
        v2,
        order,
        response,
        rejected,
    })
}

fn length_v1(w: &mut Dissector<'_, '_>, kind: MessageType) -> Option<Option<ByteOrder>> {
    w.unsigned::<1>("length")?;
    let [byte] = w.array("reason")?;
    let reason = if kind == MessageType::AddLink && byte & REASON != 0 {
        REASON_BITS
    } else {
        Bits::reserved("reserved_reason", REASON)
    };
    w.all_bits(
        byte,
        &[Bits::reserved("reserved_reason_bits", !REASON), reason],
    );
    Some(None)
}

/// The length field and the byte order it reveals.
fn length_v2(w: &mut Dissector<'_, '_>) -> Option<Option<ByteOrder>> {
    let size = w.bytes().len();
    let message = w.bytes();
    let bytes: [u8; 2] = w.array("length")?;
    w.seek(w.at().saturating_sub(2));
    let (big, little) = (u16::from_be_bytes(bytes), u16::from_le_bytes(bytes));
    let possible = |length: u16| (MESSAGE_LEN..=MAX_MESSAGE_LEN).contains(&length.into());
    let order = detect_order(message).or_else(|| match (possible(big), possible(little)) {
        (true, false) => Some(ByteOrder::Big),
        (false, true) => Some(ByteOrder::Little),
        _ if big == little => Some(ByteOrder::Big),
        _ => None,
    });
    let length = match order {
        Some(ByteOrder::Big) => big,
        Some(ByteOrder::Little) => little,
        None => {
            w.note("gives the size in neither byte order")
                .raw("length", 2)?;
            return Some(None);
        }
    };
    if order == Some(ByteOrder::Little) {
        w.note("little-endian");
    }
    w.with("length", |_: [u8; 2]| Value::Unsigned(length.into()))?;
    if usize::from(length) != size {
        let expected = u64::try_from(size).unwrap_or(u64::MAX);
        let got = length.into();
        w.problem(Problem::Contradiction {
            field: "length",
            offset: 1,
            expected,
            got,
        });
    }
    Some(order)
}

/// The flag byte; returns whether it is a response and whether it rejects.
fn flags(w: &mut Dissector<'_, '_>, kind: MessageType, v2: bool) -> Option<(bool, bool)> {
    let [byte] = w.array("flags")?;
    let response = w.flag("response", byte, RESPONSE);
    let rejects = matches!(kind, MessageType::AddLink | MessageType::RequestAddLink);
    let bits: &[Bits] = match kind {
        MessageType::AddLink | MessageType::RequestAddLink => {
            if v2 && byte & REASON != 0 {
                &[Bits::flag("rejected", REJECTED), REASON_BITS]
            } else {
                &[Bits::flag("rejected", REJECTED)]
            }
        }
        MessageType::DeleteLink => &[
            Bits::flag("all_links", ALL_LINKS),
            Bits::flag("orderly", ORDERLY),
        ],
        MessageType::ConfirmRkey | MessageType::ConfirmRkeyCont => {
            &[Bits::flag("negative", NEGATIVE), Bits::flag("retry", RETRY)]
        }
        MessageType::DeleteRkey => &[Bits::flag("negative", NEGATIVE)],
        MessageType::ConfirmLink => &[NO_EYECATCHER_BITS],
        MessageType::AddLinkCont | MessageType::TestLink => &[],
    };
    w.all_bits(byte, bits);
    let known = bits.iter().fold(RESPONSE, |known, bits| known | bits.mask);
    w.reserved_bits("reserved_flags", byte, !known);
    Some((response, rejects && byte & REJECTED != 0))
}

const NO_EYECATCHER_BITS: Bits =
    Bits::new("no_rmbe_eyecatcher", NO_EYECATCHER, |bits| Value::Hex {
        value: bits.into(),
        digits: 2,
    });

const REASON_BITS: Bits = Bits::new("reject_reason", REASON, |code| Value::Code {
    value: code.into(),
    digits: 2,
    name: RejectReason::from_low_nibble(code).name(),
});

fn add_link(w: &mut Dissector<'_, '_>, head: &Head) -> Option<()> {
    w.fields::<raw::AddLink>()?;
    if !head.v2 || (head.response && head.rejected) || w.left() == 0 {
        return Some(());
    }
    w.group("v2_extension", |w| {
        w.order(head.order);
        let extension = w.fields::<raw::AddLinkExtension>()?;
        let count = head
            .order
            .map_or(0, |order| order.u16(extension.rtoken_count));
        // A sender may state more than there are; receivers take what is there.
        let fit = w.left().checked_div(size_of::<WireRtoken>()).unwrap_or(0);
        w.elements::<WireRtoken>("rtokens", usize::from(count).min(fit).min(MAX_RTOKENS))
    })
}

fn add_link_cont(w: &mut Dissector<'_, '_>) -> Option<()> {
    let left = w.fields::<raw::AddLinkCont>()?.rtokens_left;
    list::<WireRtoken>(w, "rtokens", left, &UNUSED_RTOKENS[..2])?;
    w.reserved("reserved_40", 4)
}

fn request_add_link(w: &mut Dissector<'_, '_>, head: &Head) -> Option<()> {
    if head.response {
        w.reserved("reserved_4", offset_of!(raw::RequestAddLink, gid_count))?;
        return w.reserved("reserved_24", 20);
    }
    let count = w.fields::<raw::RequestAddLink>()?.gid_count;
    (0..count.into()).try_for_each(|index| w.element(index).gid("gids"))
}

/// Names of the unused places for rtokens.
const UNUSED_RTOKENS: [&str; 3] = ["unused_rtoken_0", "unused_rtoken_1", "unused_rtoken_2"];

/// The first `used` elements of a list with a fixed number of places, and the unused places.
fn list<T: Layout>(
    w: &mut Dissector<'_, '_>,
    name: &'static str,
    used: u8,
    unused: &[&'static str],
) -> Option<()> {
    let used = usize::from(used);
    w.elements::<T>(name, used.min(unused.len()))?;
    let mut places = unused.iter().skip(used);
    places.try_for_each(|place| w.reserved(place, size_of::<T>()))
}

fn delete_rkey(w: &mut Dissector<'_, '_>, head: &Head) -> Option<()> {
    let listed = if head.v2 {
        w.fields::<raw::DeleteRkey>()?.rkey_count
    } else {
        w.fields::<raw::DeleteRkeyV1>()?.rkey_count.min(8)
    };
    for index in 0..listed.into() {
        w.element(index).hex::<4>("rkeys")?;
    }
    match MESSAGE_LEN.saturating_sub(w.at()) {
        0 => Some(()),
        unused => w.reserved("unused_rkeys", unused),
    }
}
