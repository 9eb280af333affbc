//! Which devices of this process serve an endpoint.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::DeviceDriver;
use crate::error::Error;

/// The devices that serve an endpoint now, of all endpoints.
static CLAIMS: Mutex<Vec<Claim>> = Mutex::new(Vec::new());

/// A driver is gone, and with it the hold on its device.
static RELEASED: Condvar = Condvar::new();

struct Claim {
    /// Address of the device object, which lives as long as its driver.
    device: usize,
    driver: Weak<DeviceDriver>,
}

/// Makes `driver` the one consumer of its device, for as long as it exists: each event is handed out
/// once, so a second consumer would take those of the first.
///
/// Blocks for a moment if the device has a consumer: tasks of an endpoint that is gone may be ending
/// on other threads. On this thread none runs meanwhile, so what is left of such an endpoint is ended
/// from here, as far as that can be.
///
/// # Errors
///
/// [`Error::Misuse`] when the device keeps its consumer.
pub(crate) fn claim(driver: &Arc<DeviceDriver>) -> Result<(), Error> {
    let device = Arc::as_ptr(driver.device()).cast::<()>().addr();
    let until = Instant::now() + CLAIM_TIMEOUT;
    loop {
        let Some(consumer) = try_claim(device, driver) else {
            return Ok(());
        };
        // With the list unlocked: it may be dropped here, which takes it off the list.
        if let Some(consumer) = consumer.upgrade() {
            consumer.release_to_other_endpoint();
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::misuse(IN_USE));
        }
        let claims = lock();
        if consumer_of(&claims, device).is_some() {
            let woken = RELEASED.wait_timeout(claims, left.min(CLAIM_RETRY));
            drop(woken.unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// Puts a driver on the list, unless its device has a consumer. Returns that.
fn try_claim(device: usize, driver: &Arc<DeviceDriver>) -> Option<Weak<DeviceDriver>> {
    let mut claims = lock();
    claims.retain(|other| other.driver.strong_count() > 0);
    let consumer = consumer_of(&claims, device).cloned();
    if consumer.is_none() {
        let driver = Arc::downgrade(driver);
        claims.push(Claim { device, driver });
    }
    consumer
}

/// The consumer of a device.
fn consumer_of(claims: &[Claim], device: usize) -> Option<&Weak<DeviceDriver>> {
    let consumer = claims.iter().find(|other| other.device == device)?;
    (consumer.driver.strong_count() > 0).then_some(&consumer.driver)
}

/// For a driver that is being dropped: its device is free.
pub(super) fn release() {
    // A thread that has just found the device in use waits before this goes on.
    drop(lock());
    RELEASED.notify_all();
}

fn lock() -> MutexGuard<'static, Vec<Claim>> {
    CLAIMS.lock().unwrap_or_else(PoisonError::into_inner)
}

const IN_USE: &str = "the device serves another endpoint, or is given twice: a device object has \
                      one endpoint at a time, and is free when that and its streams are gone";

/// How long tasks of an endpoint that is gone may take to end, on a busy machine.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(1);

/// How soon that is tried again: what it waits for comes with no report to this thread.
const CLAIM_RETRY: Duration = Duration::from_millis(5);
