//! The byte order of the fields that Linux does not swap: the v2 length and the rtoken count.
//!
//! Big-endian according to the v2 documents. Linux stores both as its processor does, so that
//! the order is a property of the peer. Everything else in LLC is big-endian.

use crate::cdc::ByteOrder;

/// Finds the byte order of a peer from the first v2 message it sent in a link group.
///
/// `message` is what the receive completion delivered: the length field has to give its size in
/// one order only. `None` if it does so in both orders or in neither, and for v1 messages and
/// anything too short. Messages that echo a request (a TEST LINK response) carry the order of the
/// *requester*; the first message of a link group never is one.
///
/// Use the result for what is sent to this peer. What to use before anything arrived is for the
/// caller to choose (docs/spec/llc.md#byte-order).
///
/// ```
/// use smc_wire::llc::{ByteOrder, detect_order};
///
/// let mut message = [0; 44];
/// message[..4].copy_from_slice(&[0x21, 0x2C, 0x00, 0x03]);
/// assert_eq!(detect_order(&message), Some(ByteOrder::Little));
/// ```
#[must_use]
pub fn detect_order(message: &[u8]) -> Option<ByteOrder> {
    let [kind, high, low, ..] = *message else {
        return None;
    };
    if kind >> 4 != super::header::V2_NIBBLE {
        return None;
    }
    order_of_length([high, low], message.len())
}

/// The only order in which `field` reads as `size`.
pub(super) fn order_of_length(field: [u8; 2], size: usize) -> Option<ByteOrder> {
    let fits = |order: ByteOrder| usize::from(order.u16(field)) == size;
    match (fits(ByteOrder::Big), fits(ByteOrder::Little)) {
        (true, false) => Some(ByteOrder::Big),
        (false, true) => Some(ByteOrder::Little),
        _ => None,
    }
}
