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
/// Blocks for a moment if the device has a consumer: tasks of an endpoint that is gone may be ending
/// on other threads. On this thread none runs meanwhile, so what is left of such an endpoint is ended
/// from here, as far as that can be.
///
/// # Errors
///
/// [`Error::Misuse`] when the device keeps its consumer.
pub(crate) fn claim(slot: &Arc<Slot>) -> Result<(), Error> {
    let device = Arc::as_ptr(slot.device()).cast::<()>().addr();
    let until = Instant::now() + ENDING;
    loop {
        let Some(consumer) = enter(device, slot) else {
            return Ok(());
        };
        // With the list unlocked: it may be dropped here, which takes it off the list.
        if let Some(consumer) = consumer.upgrade() {
            consumer.let_go();
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::misuse(IN_USE));
        }
        let serving = lock();
        if consumer_of(&serving, device).is_some() {
            let woken = FREED.wait_timeout(serving, left.min(LOOK_AGAIN));
            drop(woken.unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// Puts a slot on the list, unless its device has a consumer. Returns that.
fn enter(device: usize, slot: &Arc<Slot>) -> Option<Weak<Slot>> {
    let mut serving = lock();
    serving.retain(|other| other.slot.strong_count() > 0);
    let consumer = consumer_of(&serving, device).cloned();
    if consumer.is_none() {
        let slot = Arc::downgrade(slot);
        serving.push(Serving { device, slot });
    }
    consumer
}

/// The consumer of a device.
fn consumer_of(serving: &[Serving], device: usize) -> Option<&Weak<Slot>> {
    let consumer = serving.iter().find(|other| other.device == device)?;
    (consumer.slot.strong_count() > 0).then_some(&consumer.slot)
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

/// How soon that is tried again: what it waits for comes with no report to this thread.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
