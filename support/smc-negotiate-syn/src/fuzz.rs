//! Entry point of a fuzz target. Without privileges no SYN can be saved, so that the parser of what
//! a peer has sent is not reached through the public interface.

/// Whether the TCP options of a saved SYN have the SMC option; it begins with its IP header.
#[must_use]
pub fn has_option(segment: &[u8]) -> bool {
    crate::syn::has_option(segment)
}
