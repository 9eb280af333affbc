//! PROPOSAL: what a client offers.

mod parts;
mod regions;
mod repr;
mod view;

pub use parts::{DirectExtensionView, IpAreaView, V2ExtensionView};
pub use repr::{DirectExtension, GidEntry, IpArea, Ipv6Prefix, Proposal, SmcdArea, V2Extension};
pub use view::ProposalView;
