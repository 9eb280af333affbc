//! What the ends of an authenticated link group exchange (docs/spec/extensions.md#authentication).

use core::fmt;

use super::wire_id::wire_id;

wire_id! {
    /// What one end sends on the first link (8 bytes), so that both have a key: random bytes, and
    /// in a response a code by the key.
    LinkAuthentication[8], from_bytes
}

wire_id! {
    /// Code (16 bytes) that only the ends of a link group can compute for an ACCEPT or CONFIRM.
    /// Prints as 32 hex digits.
    AuthenticationCode[16], from_bytes
}

impl fmt::Display for AuthenticationCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}
