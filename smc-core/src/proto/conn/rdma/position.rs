//! Positions in a stream that never wrap, and their cursors.

use smc_wire::cursor::{Cursor, Ring};

use crate::error::PeerMisbehaved;

/// Bytes between two positions that are at most a ring apart.
pub(super) fn distance(from: u64, to: u64) -> u32 {
    u32::try_from(to.saturating_sub(from)).unwrap_or(u32::MAX)
}

/// The cursor of a position.
pub(super) fn cursor_at(ring: Ring, position: u64) -> Cursor {
    let size = u64::from(ring.size());
    let (Some(wraps), Some(count)) = (position.checked_div(size), position.checked_rem(size))
    else {
        // A ring has at least one byte.
        return Cursor::START;
    };
    let [_, _, _, _, _, _, high, low] = wraps.to_be_bytes();
    Cursor {
        wrap: u16::from_be_bytes([high, low]),
        count: u32::try_from(count).unwrap_or(0),
    }
}

/// The newer of two cursors, and its distance from the known one.
///
/// A cursor behind the known one is neither new nor an error: after a failover the peer writes
/// again from an earlier position.
pub(super) fn newer(
    ring: Ring,
    known: Cursor,
    cursor: Cursor,
) -> Result<(Cursor, u32), PeerMisbehaved> {
    match ring.span(known, cursor) {
        Ok(ahead) => Ok((cursor, ahead)),
        Err(_) if is_behind(ring, known, cursor) => Ok((known, 0)),
        Err(fault) => Err(fault.into()),
    }
}

/// Behind by at most a ring, across any wrap, or by the rule of Linux, which accepts more.
fn is_behind(ring: Ring, known: Cursor, cursor: Cursor) -> bool {
    ring.span(cursor, known).is_ok() || (ring.check(cursor).is_ok() && cursor.is_behind(known))
}
