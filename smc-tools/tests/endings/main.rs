//! Operations reported as done to one end are seen by the other, wherever either of them ends.
//!
//! Client and server are processes that play scripts; some tests use endpoints of one process.
//! `SMC_ENDINGS_ROUNDS` sets the rounds of the counted tests and the scripts that are drawn at
//! random, `SMC_ENDINGS_SEED` repeats a draw.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod counted;
mod model;
mod oracle;
mod process;
mod script;
mod world;

use std::env;
use std::time::{SystemTime, UNIX_EPOCH};

use smc_testkit::process::Role;

/// One end of a connection, in a process of its own; does nothing in the process of the tests.
#[test]
fn one_end() {
    if let Some(role) = Role::current() {
        let part = serde_json::from_str(&role.args().join(" ")).unwrap();
        script::play(&role, &part);
    }
}

/// The rounds of a counted test, and the scripts that are drawn at random.
fn rounds() -> u64 {
    number("SMC_ENDINGS_ROUNDS").unwrap_or(100)
}

/// The seed of a random draw; printed, so that it can be repeated.
fn seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = number("SMC_ENDINGS_SEED").unwrap_or_else(|| u64::from(now.subsec_nanos()));
    println!("SMC_ENDINGS_SEED={seed}");
    seed
}

fn number(name: &str) -> Option<u64> {
    env::var(name)
        .ok()
        .map(|text| text.parse().expect("a number"))
}
