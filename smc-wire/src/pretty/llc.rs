//! LLC messages.

use core::mem::offset_of;

use super::Problem;
use super::dissector::Dissector;
use crate::cdc::ByteOrder;
use crate::layout::{Bits, DEC, Layout, Show};
use crate::llc::add_link::GidCount;
use crate::llc::header::{REASON, REJECTED, RESPONSE, V2_NIBBLE};
use crate::llc::rkey::{MAX_V1, RkeyCount, RkeyCountV1};
use crate::llc::{
    AddLink, AddLinkCont, AddLinkExtension, AnnounceCredits, ConfirmLink, ConfirmRkey,
    ConfirmRkeyCont, DeleteLink, LinkRtoken, MAX_MESSAGE_LEN, MAX_RTOKENS, MESSAGE_LEN, Message,
    MessageType, TestLink, WireRtoken, detect_order,
};
use crate::types::{Rkey, RoceGid};

pub(super) fn dissect(w: &mut Dissector<'_, '_>) {
    let complete = message(w).is_some();
    // v1 messages and most v2 messages have a fixed size; the rest is counted by the message.
    if complete && w.at >= MESSAGE_LEN {
        w.excess();
    }
    w.verdict(Message::parse(w.bytes));
}

/// What the header decides about the body.
struct LlcHeaderFields {
    v2: bool,
    /// `None` if the length field does not show it.
    order: Option<ByteOrder>,
    response: bool,
    rejected: bool,
}

fn message(w: &mut Dissector<'_, '_>) -> Option<()> {
    let kind = w.bytes.first().copied().and_then(MessageType::from_byte);
    let Some(kind) = kind else {
        w.group("header", |w| {
            w.value("type", 1, &TYPE)?;
            // Not even the length is certain in a message of an unknown type.
            w.raw("length_and_flags", 3)
        })?;
        return w.raw("body", w.left());
    };
    let header = w.group("header", |w| header(w, kind))?;
    match kind {
        MessageType::ConfirmLink => w.fields::<ConfirmLink>().map(drop),
        MessageType::AddLink => add_link(w, &header),
        MessageType::AddLinkCont => add_link_cont(w),
        MessageType::DeleteLink => w.fields::<DeleteLink>().map(drop),
        MessageType::RequestAddLink => request_add_link(w, &header),
        MessageType::ConfirmRkey => {
            let further = w.fields::<ConfirmRkey>()?.further_links;
            list::<LinkRtoken>(w, "further_rtokens", further, &UNUSED_RTOKENS[..2])?;
            w.reserved("reserved_43", 1)
        }
        MessageType::ConfirmRkeyCont => {
            let left = w.fields::<ConfirmRkeyCont>()?.left;
            list::<LinkRtoken>(w, "further_rtokens", left, &UNUSED_RTOKENS)
        }
        MessageType::TestLink => w.fields::<TestLink>().map(drop),
        MessageType::DeleteRkey => delete_rkey(w, &header),
        MessageType::AnnounceCredits => w.fields::<AnnounceCredits>().map(drop),
    }
}

fn header(w: &mut Dissector<'_, '_>, kind: MessageType) -> Option<LlcHeaderFields> {
    let &[byte] = w.value("type", 1, &TYPE)? else {
        return None;
    };
    let v2 = byte >> 4 == V2_NIBBLE;
    let order = if v2 {
        length_v2(w)?
    } else {
        length_v1(w, kind)?
    };
    let taken = w.take("flags", 1)?;
    let flags = w.bits(taken, &[RESPONSE])?;
    w.bits(taken, kind.flags());
    let rejects = matches!(kind, MessageType::AddLink | MessageType::RequestAddLink);
    let has_reason = rejects && v2 && REASON.is_set(flags);
    let reason: &[Bits] = if has_reason { &[REASON] } else { &[] };
    w.bits(taken, reason);
    let known = kind.flags().iter().chain(reason);
    let known = known.fold(RESPONSE.mask, |known, bits| known | bits.mask);
    w.bits(taken, &[Bits::reserved("reserved_flags", !known)]);
    Some(LlcHeaderFields {
        v2,
        order,
        response: RESPONSE.is_set(flags),
        rejected: rejects && REJECTED.is_set(flags),
    })
}

const TYPE: Show = Show::Code(|byte| {
    let kind = MessageType::from_byte(u8::try_from(byte).ok()?)?;
    Some(kind.kind().name())
});

fn length_v1(w: &mut Dissector<'_, '_>, kind: MessageType) -> Option<Option<ByteOrder>> {
    w.value("length", 1, &DEC)?;
    let taken = w.take("reason", 1)?;
    let byte = w.bits(
        taken,
        &[Bits::reserved("reserved_reason_bits", !REASON.mask)],
    )?;
    let reason = if kind == MessageType::AddLink && REASON.is_set(byte) {
        REASON
    } else {
        Bits::reserved("reserved_reason", REASON.mask)
    };
    w.bits(taken, &[reason]);
    Some(None)
}

/// The length field and the byte order it reveals.
fn length_v2(w: &mut Dissector<'_, '_>) -> Option<Option<ByteOrder>> {
    let (at, message) = (w.at, w.bytes);
    let bytes: [u8; 2] = w.take("length", 2)?.try_into().ok()?;
    w.at = at;
    let [big, little] = [ByteOrder::Big, ByteOrder::Little].map(|order| order.u16(bytes));
    let possible = |length: u16| (MESSAGE_LEN..=MAX_MESSAGE_LEN).contains(&length.into());
    let order = detect_order(message).or_else(|| match (possible(big), possible(little)) {
        (true, false) => Some(ByteOrder::Big),
        (false, true) => Some(ByteOrder::Little),
        _ if big == little => Some(ByteOrder::Big),
        _ => None,
    });
    let Some(known) = order else {
        w.note("gives the size in neither byte order")
            .raw("length", 2)?;
        return Some(None);
    };
    w.order = order;
    w.value("length", 2, &Show::Unswapped)?;
    let (length, size) = (known.u16(bytes), message.len());
    if usize::from(length) != size {
        w.problem(Problem::Contradiction {
            field: "length",
            offset: at,
            expected: u64::try_from(size).unwrap_or(u64::MAX),
            got: length.into(),
        });
    }
    Some(order)
}

fn add_link(w: &mut Dissector<'_, '_>, header: &LlcHeaderFields) -> Option<()> {
    w.fields::<AddLink<'_>>()?;
    if !header.v2 || (header.response && header.rejected) || w.left() == 0 {
        return Some(());
    }
    w.group("v2_extension", |w| {
        w.order = header.order;
        let extension = w.fields::<AddLinkExtension<'_>>()?;
        let count = header
            .order
            .map_or(0, |order| order.u16(extension.rtoken_count));
        // A sender may state more than there are; receivers take what is there.
        let fit = w.left().checked_div(size_of::<WireRtoken>()).unwrap_or(0);
        w.elements::<WireRtoken>("rtokens", usize::from(count).min(fit).min(MAX_RTOKENS))
    })
}

fn add_link_cont(w: &mut Dissector<'_, '_>) -> Option<()> {
    let left = w.fields::<AddLinkCont>()?.left;
    list::<WireRtoken>(w, "rtokens", left, &UNUSED_RTOKENS[..2])?;
    w.reserved("reserved_40", 4)
}

fn request_add_link(w: &mut Dissector<'_, '_>, header: &LlcHeaderFields) -> Option<()> {
    if header.response {
        w.reserved("reserved_4", offset_of!(GidCount, gid_count))?;
        return w.reserved("reserved_24", 20);
    }
    let count = w.fields::<GidCount>()?.gid_count;
    w.values::<RoceGid>("gids", count.into())
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
    places.try_for_each(|place| w.reserved(place, size_of::<T::Raw>()))
}

fn delete_rkey(w: &mut Dissector<'_, '_>, header: &LlcHeaderFields) -> Option<()> {
    let listed = if header.v2 {
        w.fields::<RkeyCount>()?.rkey_count.into()
    } else {
        usize::from(w.fields::<RkeyCountV1>()?.rkey_count).min(MAX_V1)
    };
    w.values::<Rkey>("rkeys", listed)?;
    match MESSAGE_LEN.saturating_sub(w.at) {
        0 => Some(()),
        unused => w.reserved("unused_rkeys", unused),
    }
}
