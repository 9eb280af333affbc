//! What the smc crates ask the Linux kernel about networks, over netlink (`netlink(7)`,
//! `rtnetlink(7)`).
//!
//! No call waits for anything but locks that the kernel holds for a short time. Nothing is read
//! from `/proc` or `/sys`, where any user can hold the lock of a directory.

mod attributes;
mod generic;
mod interfaces;
mod pnet;
mod request;
mod route;
mod sockets;

pub use interfaces::{Interface, interfaces};
pub use pnet::{PnetEntry, pnet_table};
pub use route::{Route, route, unprotected_mtu};
pub use sockets::{
    DirectLink, RdmaLink, RingCursors, SmcConnection, SmcMode, SmcSocket, smc_sockets,
};
