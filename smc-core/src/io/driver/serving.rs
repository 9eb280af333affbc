//! Which devices of this process serve an endpoint.

use std::ptr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::Slot;
use crate::error::Error;

/// The devices that serve an endpoint now, of all endpoints.
static SERVING: Mutex<Vec<Weak<Slot>>> = Mutex::new(Vec::new());

/// Makes `slot` the one consumer of its device, for as long as it exists: each event is handed out
/// once, so a second consumer would take those of the first.
///
/// # Errors
///
/// [`Error::Misuse`] when the device has a consumer.
pub(crate) fn claim(slot: &Arc<Slot>) -> Result<(), Error> {
    for _ in 0..PASS {
        match try_claim(slot) {
            None => return Ok(()),
            // On another thread the driver of an endpoint that is gone may be in its last pass.
            Some(other) => drop(other),
        }
        std::thread::yield_now();
    }
    Err(Error::Misuse(IN_USE))
}

/// The slot that has the device, if there is one.
fn try_claim(slot: &Arc<Slot>) -> Option<Arc<Slot>> {
    let mut serving = SERVING.lock().unwrap_or_else(PoisonError::into_inner);
    serving.retain(|other| other.strong_count() > 0);
    let others: Vec<_> = serving.iter().filter_map(Weak::upgrade).collect();
    let is_same =
        |other: &Arc<Slot>| ptr::addr_eq(Arc::as_ptr(other.device()), Arc::as_ptr(slot.device()));
    let is_free = !others.iter().any(is_same);
    if is_free {
        serving.push(Arc::downgrade(slot));
    }
    // What this drops may be the last of a slot and of its device: not under the lock.
    drop(serving);
    others.into_iter().find(is_same)
}

const IN_USE: &str = "the device serves another endpoint, or is given twice: a device object has \
                      one endpoint at a time, and is free when that and its streams are gone";

/// How often a device that is in use is looked at again: longer than a pass of a driver takes.
const PASS: usize = 1000;
