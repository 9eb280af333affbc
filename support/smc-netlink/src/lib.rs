//! What the smc crates ask the Linux kernel about networks, over rtnetlink (`rtnetlink(7)`).
//!
//! No call waits for anything but locks that the kernel holds for a short time. Nothing is read
//! from `/proc` or `/sys`, where any user can hold the lock of a directory.

mod interfaces;
mod request;
mod route;

pub use interfaces::{Interface, interfaces};
pub use route::{Route, route, unprotected_mtu};
