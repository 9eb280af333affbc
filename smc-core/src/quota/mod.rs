//! Quotas: what peers and other users may take of the limits of this process.
//!
//! | | limits | by |
//! |---|---|---|
//! | [`descriptors`] | open descriptors (`RLIMIT_NOFILE`) | user |
//! | [`mappings`] | memory mappings (`vm.max_map_count`) | user |
//! | [`FairShares`] | any number, by dynamic thresholds | any holder |
//! | [`source()`] | the holder for what TCP clients take | source address |

pub mod descriptors;
pub mod mappings;
mod shares;
mod source;
mod user;

pub use shares::FairShares;
pub use source::source;
pub use user::{Permit, UserQuota};
