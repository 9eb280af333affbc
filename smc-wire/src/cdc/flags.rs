//! The two flag bytes of a CDC.

use core::fmt;

use bitflags::bitflags;

use crate::layout::Bits;

bitflags! {
    /// Producer flags (docs/spec/cdc.md#producer-flags). Unknown bits are kept.
    ///
    /// Each message replaces the flags of the one before.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct ProducerFlags: u8 {
        /// B: the sender has used up the window it knows of; update it as soon as space is freed.
        const WRITER_BLOCKED = 0x80;
        /// P: urgent data waits to be written.
        const URGENT_PENDING = 0x40;
        /// U: the byte before the producer cursor is the urgent byte.
        const URGENT_PRESENT = 0x20;
        /// R: send a consumer cursor update now.
        const UPDATE_REQUESTED = 0x10;
        /// F: failover validation; only the sequence number and the token mean anything (SMC-R).
        const FAILOVER_VALIDATION = 0x08;
        const _ = !0;
    }
}

bitflags! {
    /// Connection state flags (docs/spec/cdc.md#connection-state-flags). Unknown bits are kept.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct StateFlags: u8 {
        /// D: the sender is done writing (half close).
        const SENDING_DONE = 0x80;
        /// C: the sender has closed the connection.
        const CLOSED = 0x40;
        /// A: abnormal close; data may be lost.
        const ABORTED = 0x20;
        const _ = !0;
    }
}

impl ProducerFlags {
    pub(crate) const LAYOUT: &[Bits] = &[
        Bits::flag("writer_blocked", Self::WRITER_BLOCKED.bits()),
        Bits::flag("urgent_pending", Self::URGENT_PENDING.bits()),
        Bits::flag("urgent_present", Self::URGENT_PRESENT.bits()),
        Bits::flag("update_requested", Self::UPDATE_REQUESTED.bits()),
        Bits::flag("failover_validation", Self::FAILOVER_VALIDATION.bits()),
        Bits::reserved("reserved_producer_flags", 0x07),
    ];
}

impl StateFlags {
    pub(crate) const LAYOUT: &[Bits] = &[
        Bits::flag("sending_done", Self::SENDING_DONE.bits()),
        Bits::flag("closed", Self::CLOSED.bits()),
        Bits::flag("aborted", Self::ABORTED.bits()),
        Bits::reserved("reserved_state_flags", 0x1f),
    ];
}

impl fmt::Display for ProducerFlags {
    /// The letters of the protocol documents, `-` for none, then unknown bits in hex.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        letters(f, self.bits(), "BPURF")
    }
}

impl fmt::Display for StateFlags {
    /// The letters of the protocol documents, `-` for none, then unknown bits in hex.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        letters(f, self.bits(), "DCA")
    }
}

/// Writes one letter per bit, the most significant bit first.
fn letters(f: &mut fmt::Formatter<'_>, bits: u8, names: &str) -> fmt::Result {
    use fmt::Write as _;

    if bits == 0 {
        return f.write_char('-');
    }
    let mut unknown = bits;
    let mut mask = 0x80_u8;
    for name in names.chars() {
        if bits & mask != 0 {
            f.write_char(name)?;
        }
        unknown &= !mask;
        mask >>= 1;
    }
    match unknown {
        0 => Ok(()),
        _ => write!(f, "+{unknown:#04x}"),
    }
}
