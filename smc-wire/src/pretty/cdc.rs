//! CDC of SMC-R and of SMC-D.

use super::walk::Walker;
use super::{Problem, Value};
use crate::cdc::{ByteOrder, CdcD, CdcR};

pub(super) fn walk_rdma(w: &mut Walker<'_, '_>) {
    let complete = rdma_fields(w).is_some();
    if complete && w.left() > 0 {
        let (offset, len) = (w.at(), w.left());
        w.problem(Problem::Excess { offset, len });
    }
    w.verdict(CdcR::parse(w.bytes()));
}

fn rdma_fields(w: &mut Walker<'_, '_>) -> Option<()> {
    kind(w)?;
    w.unsigned::<1>("length")?;
    w.unsigned::<2>("sequence")?;
    w.hex::<4>("alert_token")?;
    for (name, reserved) in [("producer", "reserved_8"), ("consumer", "reserved_16")] {
        w.reserved(reserved, 2)?;
        w.with(name, |bytes: [u8; 6]| cursor(bytes, ByteOrder::Big))?;
    }
    producer_flags(w)?;
    state_flags(w)?;
    w.reserved("reserved_26", 18)
}

pub(super) fn walk_direct(w: &mut Walker<'_, '_>, order: ByteOrder) {
    let complete = direct_fields(w, order).is_some();
    if complete && w.left() > 0 {
        let (offset, len) = (w.at(), w.left());
        w.problem(Problem::Excess { offset, len });
    }
    w.verdict(CdcD::parse(w.bytes(), order));
}

fn direct_fields(w: &mut Walker<'_, '_>, order: ByteOrder) -> Option<()> {
    kind(w)?;
    w.reserved("reserved_1", 7)?;
    w.with("producer", |bytes: [u8; 6]| cursor(bytes, order))?;
    w.reserved("unused_producer_flags", 1)?;
    w.reserved("unused_state_flags", 1)?;
    w.with("consumer", |bytes: [u8; 6]| cursor(bytes, order))?;
    producer_flags(w)?;
    state_flags(w)?;
    w.reserved("reserved_24", 8)
}

fn kind(w: &mut Walker<'_, '_>) -> Option<()> {
    w.number::<1>("type", |value| Value::Code {
        value,
        digits: 2,
        name: (value == u64::from(CdcR::TYPE)).then_some("CDC"),
    })
    .map(drop)
}

fn cursor<'a>([a, b, c, d, e, f]: [u8; 6], order: ByteOrder) -> Value<'a> {
    let (wrap, count) = ([a, b], [c, d, e, f]);
    match order {
        ByteOrder::Big => Value::Cursor {
            wrap: u16::from_be_bytes(wrap),
            count: u32::from_be_bytes(count),
        },
        ByteOrder::Little => Value::Cursor {
            wrap: u16::from_le_bytes(wrap),
            count: u32::from_le_bytes(count),
        },
    }
}

fn producer_flags(w: &mut Walker<'_, '_>) -> Option<()> {
    let [byte] = w.array("producer_flags")?;
    w.flag("writer_blocked", byte, 0x80);
    w.flag("urgent_pending", byte, 0x40);
    w.flag("urgent_present", byte, 0x20);
    w.flag("update_requested", byte, 0x10);
    w.flag("failover_validation", byte, 0x08);
    w.reserved_bits("reserved_producer_flags", byte, 0x07);
    Some(())
}

fn state_flags(w: &mut Walker<'_, '_>) -> Option<()> {
    let [byte] = w.array("state_flags")?;
    w.flag("sending_done", byte, 0x80);
    w.flag("closed", byte, 0x40);
    w.flag("aborted", byte, 0x20);
    w.reserved_bits("reserved_state_flags", byte, 0x1F);
    Some(())
}
