//! What an endpoint reports of its connections and link groups.

pub use super::endpoint::ConnectionInfo;
pub use super::links::RdmaGroupInfo;
pub use crate::proto::Role;
pub use crate::proto::conn::ConnState;
pub use crate::proto::group::{DeviceIndex, GroupKey, GroupState, GroupTerms, LinkGroupInfo};
pub use crate::proto::links::{GroupType, LinkId, LinkInfo, LinkState};
