//! Commands with streams between processes: what arrives, how it ends, and what is shown of it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cat;
mod check;
mod hostile;
mod process;
mod proxy;
mod report;
mod shown;
mod stats;
mod unix;

use smc_testkit::process::Role;

/// What other processes do.
#[test]
fn helper_process() {
    if let Some(role) = Role::current() {
        check::helper(&role);
    }
}
