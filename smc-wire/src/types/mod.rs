//! Identifiers and codes that appear in more than one message.
//!
//! Each is a small `Copy` newtype with `Display`. Codes are open: an unknown value survives a round
//! trip and prints as a number, because a receiver must not reject what a newer peer may have
//! defined.

mod address;
mod authentication;
mod decline_code;
mod device;
mod eid;
pub(crate) mod features;
mod link;
mod negotiation;
mod nonce;
pub(crate) mod text;
mod wire_id;

pub use address::{Mac, PeerId, RoceGid};
pub use authentication::{AuthenticationCode, LinkAuthentication};
pub use decline_code::DeclineCode;
pub use device::{Chid, DmbToken, Gid, IsmGid};
pub use eid::{Eid, EidError};
pub use features::Features;
pub use link::{AlertToken, GroupId, LinkNumber, LinkUid, MtuCode, Psn, Qpn, Rkey, RmbAddr};
pub use negotiation::{FeatureMask, OfferedTypes, OsType, Release, Version};
pub use nonce::Nonce;
pub use text::{HostName, PnetId};

#[cfg(test)]
mod tests;
