//! CDC: both forms, and the ring arithmetic that their cursors go through.

#![no_main]

use libfuzzer_sys::fuzz_target;
use smc_wire::cdc::{ByteOrder, CdcD, CdcR};
use smc_wire::cursor::{Cursor, Ring};

fuzz_target!(|data: &[u8]| {
    if let Ok(cdc) = CdcR::parse(data) {
        assert_eq!(CdcR::parse(&cdc.to_bytes()), Ok(cdc));
        let _ = cdc.to_string();
    }
    for order in [ByteOrder::Little, ByteOrder::Big] {
        if let Ok(cdc) = CdcD::parse(data, order) {
            assert_eq!(CdcD::from_bytes(&cdc.to_bytes(order), order), cdc);
            let _ = cdc.to_string();
        }
    }
    if let Some((words, _)) = data.split_first_chunk::<16>() {
        let word = |at: usize| {
            u32::from_be_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]])
        };
        let wrap = |at: usize| u16::from_be_bytes([words[at], words[at + 1]]);
        let (old, new) = (cursor(wrap(4), word(8)), cursor(wrap(6), word(12)));
        if let Some(ring) = Ring::new(word(0)) {
            arithmetic(ring, old, new);
            // And one in which both positions can exist.
            arithmetic(
                ring,
                cursor(old.wrap, old.count % ring.size()),
                cursor(new.wrap, new.count % ring.size()),
            );
        }
    }
});

fn cursor(wrap: u16, count: u32) -> Cursor {
    Cursor { wrap, count }
}

fn arithmetic(ring: Ring, old: Cursor, new: Cursor) {
    assert!(ring.used(new, old) <= ring.size());
    assert!(ring.free(new, old) <= ring.size());
    let _ = new.is_behind(old);
    if let Ok(span) = ring.span(old, new) {
        assert!(span <= ring.size());
        assert_eq!(ring.advance(old, span), new);
        assert_eq!(ring.used(new, old), span);
    }
}
