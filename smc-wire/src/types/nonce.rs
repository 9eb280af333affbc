//! The nonce of a PROPOSAL.

use core::fmt;

use super::wire_id::wire_id;

wire_id! {
    /// Random bytes (16) that identify one PROPOSAL of a client
    /// (docs/spec/extensions.md#types). Prints as 32 hex digits.
    Nonce[16], from_bytes
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}
