//! Which devices of this process serve an endpoint.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::Slot;
use crate::error::Error;

/// The devices that serve an endpoint now, of all endpoints.
static SERVING: Mutex<Vec<Serving>> = Mutex::new(Vec::new());

/// A slot is gone, and with it the hold on its device.
static FREED: Condvar = Condvar::new();

struct Serving {
    /// Address of the device object, which lives as long as its slot.
    device: usize,
    slot: Weak<Slot>,
}

/// Makes `slot` the one consumer of its device, for as long as it exists: each event is handed out
/// once, so a second consumer would take those of the first.
///
/// Blocks for a moment if the device has a consumer: tasks of an endpoint that is gone, its driver
/// among them, may be ending on other threads.
///
/// # Errors
///
/// [`Error::Misuse`] when the device keeps its consumer.
pub(crate) fn claim(slot: &Arc<Slot>) -> Result<(), Error> {
    let device = Arc::as_ptr(slot.device()).cast::<()>().addr();
    let until = Instant::now() + ENDING;
    let mut serving = lock();
    loop {
        serving.retain(|other| other.slot.strong_count() > 0);
        if serving.iter().all(|other| other.device != device) {
            let slot = Arc::downgrade(slot);
            serving.push(Serving { device, slot });
            return Ok(());
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Misuse(IN_USE));
        }
        let woken = FREED.wait_timeout(serving, left);
        serving = woken.unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// For a slot that is being dropped: its device is free.
pub(super) fn release() {
    // A thread that has just found the device in use waits before this goes on.
    drop(lock());
    FREED.notify_all();
}

fn lock() -> MutexGuard<'static, Vec<Serving>> {
    SERVING.lock().unwrap_or_else(PoisonError::into_inner)
}

const IN_USE: &str = "the device serves another endpoint, or is given twice: a device object has \
                      one endpoint at a time, and is free when that and its streams are gone";

/// How long tasks of an endpoint that is gone may take to end, on a busy machine.
const ENDING: Duration = Duration::from_secs(1);
