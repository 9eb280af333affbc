//! Quotas: what peers and other users may take of the limits of this process.
//!
//! | | limits | by |
//! |---|---|---|
//! | [`descriptors`] | open descriptors (`RLIMIT_NOFILE`) | user |
//! | [`mappings`] | memory mappings (`vm.max_map_count`) | user |
//! | [`FairShares`] | any number, by dynamic thresholds | any holder |
//! | [`LineQuota`] | lines of a log | kind of line |
//! | [`source()`] | the holder for what TCP clients take | source address |

pub mod descriptors;
mod lines;
pub mod mappings;
mod shares;
mod source;
mod user;

pub use lines::{LineQuota, LineVerdict};
pub use shares::FairShares;
pub use source::source;
pub use user::{Permit, UserQuota};
