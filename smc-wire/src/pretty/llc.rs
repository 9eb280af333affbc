//! LLC messages.

use super::walk::Walker;
use super::{Problem, Value};
use crate::cdc::ByteOrder;
use crate::llc::{
    DeleteLinkReason, MAX_MESSAGE_LEN, MAX_RTOKENS, MESSAGE_LEN, Message, MessageType,
    RejectReason, detect_order,
};
use crate::types::MtuCode;

pub(super) fn walk(w: &mut Walker<'_, '_>) {
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
    /// `None` if the length field does not tell.
    order: Option<ByteOrder>,
    response: bool,
    rejected: bool,
}

fn message(w: &mut Walker<'_, '_>) -> Option<()> {
    let kind = w.bytes().first().copied().and_then(MessageType::from_byte);
    let mut head = None;
    w.group("header", |w| {
        head = Some(header(w, kind)?);
        Some(())
    })?;
    let head = head?;
    match kind {
        Some(MessageType::ConfirmLink) => confirm_link(w),
        Some(MessageType::AddLink) => add_link(w, &head),
        Some(MessageType::AddLinkCont) => add_link_cont(w),
        Some(MessageType::DeleteLink) => delete_link(w),
        Some(MessageType::RequestAddLink) => request_add_link(w, &head),
        Some(MessageType::ConfirmRkey) => confirm_rkey(w),
        Some(MessageType::ConfirmRkeyCont) => confirm_rkey_cont(w),
        Some(MessageType::TestLink) => test_link(w),
        Some(MessageType::DeleteRkey) => delete_rkey(w, &head),
        None => w.raw("body", w.left()),
    }
}

fn header(w: &mut Walker<'_, '_>, kind: Option<MessageType>) -> Option<Head> {
    let byte = w.number::<1>("type", |value| Value::Code {
        value,
        digits: 2,
        name: kind.map(|kind| kind.kind().name()),
    })?;
    let Some(kind) = kind else {
        // Not even the length is certain in a message that nobody knows.
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

fn length_v1(w: &mut Walker<'_, '_>, kind: MessageType) -> Option<Option<ByteOrder>> {
    w.unsigned::<1>("length")?;
    let [byte] = w.array("reason")?;
    w.reserved_bits("reserved_reason_bits", byte, 0xF0);
    if kind == MessageType::AddLink && byte & 0x0F != 0 {
        reason(w, byte);
    } else {
        w.reserved_bits("reserved_reason", byte, 0x0F);
    }
    Some(None)
}

/// The length field and the byte order it reveals.
fn length_v2(w: &mut Walker<'_, '_>) -> Option<Option<ByteOrder>> {
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
fn flags(w: &mut Walker<'_, '_>, kind: MessageType, v2: bool) -> Option<(bool, bool)> {
    let [byte] = w.array("flags")?;
    let response = w.flag("response", byte, 0x80);
    let mut known = 0x80;
    let mut rejected = false;
    match kind {
        MessageType::AddLink | MessageType::RequestAddLink => {
            known |= 0x40;
            rejected = w.flag("rejected", byte, 0x40);
            if v2 && byte & 0x0F != 0 {
                known |= 0x0F;
                reason(w, byte);
            }
        }
        MessageType::DeleteLink => {
            known |= 0x60;
            w.flag("all_links", byte, 0x40);
            w.flag("orderly", byte, 0x20);
        }
        MessageType::ConfirmRkey | MessageType::ConfirmRkeyCont => {
            known |= 0x30;
            w.flag("negative", byte, 0x20);
            w.flag("retry", byte, 0x10);
        }
        MessageType::DeleteRkey => {
            known |= 0x20;
            w.flag("negative", byte, 0x20);
        }
        MessageType::ConfirmLink => {
            known |= 0x03;
            w.bits("no_rmbe_eyecatcher", byte, 0x03, |bits| Value::Hex {
                value: bits.into(),
                digits: 2,
            });
        }
        MessageType::AddLinkCont | MessageType::TestLink => {}
    }
    w.reserved_bits("reserved_flags", byte, !known);
    Some((response, rejected))
}

fn reason(w: &mut Walker<'_, '_>, byte: u8) {
    w.bits("reject_reason", byte, 0x0F, |code| Value::Code {
        value: code.into(),
        digits: 2,
        name: RejectReason::from_low_nibble(code).name(),
    });
}

fn confirm_link(w: &mut Walker<'_, '_>) -> Option<()> {
    w.mac("mac")?;
    w.gid("gid")?;
    w.hex::<3>("qp_number")?;
    w.unsigned::<1>("link_number")?;
    w.hex::<4>("link_user_id")?;
    w.unsigned::<1>("max_links")?;
    w.unsigned::<1>("max_connections")?;
    w.reserved("reserved_36", 8)
}

fn add_link(w: &mut Walker<'_, '_>, head: &Head) -> Option<()> {
    w.mac("mac")?;
    w.reserved("reserved_10", 2)?;
    w.gid("gid")?;
    w.hex::<3>("qp_number")?;
    w.unsigned::<1>("link_number")?;
    let [byte] = w.array("mtu")?;
    w.reserved_bits("reserved_mtu_bits", byte, 0xF0);
    mtu(w, byte);
    w.hex::<3>("initial_psn")?;
    w.reserved("reserved_36", 8)?;
    if !head.v2 || (head.response && head.rejected) || w.left() == 0 {
        return Some(());
    }
    w.group("v2_extension", |w| {
        let [byte] = w.array("v2_flags")?;
        w.flag("v2_direct", byte, 0x80);
        w.reserved_bits("reserved_v2_flags", byte, 0x7F);
        w.reserved("reserved_45", 1)?;
        w.gid("client_target_gid")?;
        w.reserved("reserved_62", 8)?;
        let Some(order) = head.order else {
            w.note("byte order unknown").raw("rtoken_count", 2)?;
            return Some(());
        };
        let mut count = 0;
        if order == ByteOrder::Little {
            w.note("little-endian");
        }
        w.with("rtoken_count", |bytes: [u8; 2]| {
            count = match order {
                ByteOrder::Big => u16::from_be_bytes(bytes),
                ByteOrder::Little => u16::from_le_bytes(bytes),
            };
            Value::Unsigned(count.into())
        })?;
        // A sender may state more than there are; receivers take what is there.
        let fit = w.left().checked_div(16).unwrap_or(0);
        for index in 0..usize::from(count).min(fit).min(MAX_RTOKENS) {
            w.element(index).group("rtokens", rtoken)?;
        }
        Some(())
    })
}

/// The MTU code in the low nibble of the byte just taken.
pub(super) fn mtu(w: &mut Walker<'_, '_>, byte: u8) {
    w.bits("mtu", byte, 0x0F, |code| {
        match MtuCode::from_low_nibble(code).bytes() {
            Some(bytes) => Value::Size {
                code,
                bytes: bytes.into(),
            },
            None => Value::Code {
                value: code.into(),
                digits: 2,
                name: None,
            },
        }
    });
}

fn rtoken(w: &mut Walker<'_, '_>) -> Option<()> {
    w.hex::<4>("rkey")?;
    w.hex::<4>("new_rkey")?;
    w.hex::<8>("new_address").map(drop)
}

fn add_link_cont(w: &mut Walker<'_, '_>) -> Option<()> {
    w.unsigned::<1>("link_number")?;
    let left = w.unsigned::<1>("rtokens_left")?;
    w.reserved("reserved_6", 2)?;
    for (index, name) in [(0, "unused_rtoken_0"), (1, "unused_rtoken_1")] {
        if index < left {
            w.element(usize::from(index != 0))
                .group("rtokens", rtoken)?;
        } else {
            w.reserved(name, 16)?;
        }
    }
    w.reserved("reserved_40", 4)
}

fn delete_link(w: &mut Walker<'_, '_>) -> Option<()> {
    w.unsigned::<1>("link_number")?;
    w.number::<4>("reason", |value| Value::Code {
        value,
        digits: 8,
        name: u32::try_from(value)
            .ok()
            .and_then(|value| DeleteLinkReason(value).name()),
    })?;
    w.reserved("reserved_9", 35)
}

fn request_add_link(w: &mut Walker<'_, '_>, head: &Head) -> Option<()> {
    w.reserved("reserved_4", 20)?;
    if head.response {
        return w.reserved("reserved_24", 20);
    }
    let count = w.unsigned::<1>("gid_count")?;
    w.reserved("reserved_25", 3)?;
    for index in 0..usize::try_from(count).ok()? {
        w.element(index).gid("gids")?;
    }
    Some(())
}

fn confirm_rkey(w: &mut Walker<'_, '_>) -> Option<()> {
    let further = w.unsigned::<1>("further_links")?;
    w.hex::<4>("rkey")?;
    w.hex::<8>("address")?;
    for (index, name) in [(0, "unused_rtoken_0"), (1, "unused_rtoken_1")] {
        link_rtoken(w, index, index < further, name)?;
    }
    w.reserved("reserved_43", 1)
}

fn confirm_rkey_cont(w: &mut Walker<'_, '_>) -> Option<()> {
    let left = w.unsigned::<1>("rtokens_left")?;
    let unused = ["unused_rtoken_0", "unused_rtoken_1", "unused_rtoken_2"];
    for (index, name) in (0..).zip(unused) {
        link_rtoken(w, index, index < left, name)?;
    }
    Some(())
}

/// An rtoken with its link number, or the room for one.
fn link_rtoken(w: &mut Walker<'_, '_>, index: u64, used: bool, unused: &'static str) -> Option<()> {
    if !used {
        return w.reserved(unused, 13);
    }
    w.element(usize::try_from(index).ok()?)
        .group("further_rtokens", |w| {
            w.unsigned::<1>("link_number")?;
            w.hex::<4>("rkey")?;
            w.hex::<8>("address").map(drop)
        })
}

fn test_link(w: &mut Walker<'_, '_>) -> Option<()> {
    w.raw("user_data", 16)?;
    w.reserved("reserved_20", 24)
}

fn delete_rkey(w: &mut Walker<'_, '_>, head: &Head) -> Option<()> {
    let count = usize::try_from(w.unsigned::<1>("rkey_count")?).ok()?;
    if head.v2 {
        w.unsigned::<1>("unknown_rkey_count")?;
    } else {
        w.hex::<1>("unknown_rkey_mask")?;
    }
    w.reserved("reserved_6", 2)?;
    let listed = if head.v2 { count } else { count.min(8) };
    for index in 0..listed {
        w.element(index).hex::<4>("rkeys")?;
    }
    match MESSAGE_LEN.saturating_sub(w.at()) {
        0 => Some(()),
        unused => w.reserved("unused_rkeys", unused),
    }
}
