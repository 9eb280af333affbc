//! Waiting for what happens in another process or thread.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long anything may take before it counts as lost, however busy the machine is.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until something holds, on a thread that may sleep.
///
/// # Panics
///
/// After [`TIMEOUT`], with this text.
pub fn until(mut is_so: impl FnMut() -> bool, text: impl FnOnce() -> String) {
    let end = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < end, "{}", text());
        sleep(Duration::from_millis(1));
    }
}
