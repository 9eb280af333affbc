//! Claims of devices: each device object serves one endpoint at a time.

use std::sync::{Arc, Condvar, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::DeviceDriver;
use crate::error::Error;
use crate::mutex::Mutex;

/// The claimed devices of this process.
static CLAIMS: Mutex<Vec<Claim>> = Mutex::new(Vec::new());

/// Notified when a driver is dropped and its device released.
static RELEASED: Condvar = Condvar::new();

struct Claim {
    /// Address of the device object, which lives as long as its driver.
    device: usize,
    driver: Weak<DeviceDriver>,
}

/// Makes `driver` the one consumer of its device, while it exists: each event is reported once, so
/// a second consumer would take events of the first.
///
/// Blocks for up to a second if the device has a consumer: tasks of a dropped endpoint may be
/// ending on other threads. Tasks of this thread do not run meanwhile, so their connections are
/// closed from here, as far as possible.
///
/// # Errors
///
/// [`Error::Misuse`] when the device keeps its consumer.
pub(crate) fn claim(driver: &Arc<DeviceDriver>) -> Result<(), Error> {
    let device = Arc::as_ptr(&driver.device).cast::<()>().addr();
    let until = Instant::now() + CLAIM_TIMEOUT;
    loop {
        let Some(consumer) = try_claim(device, driver) else {
            return Ok(());
        };
        // With the list unlocked: the consumer may be dropped here, which locks the list.
        if let Some(consumer) = consumer.upgrade() {
            consumer.release_to_other_endpoint();
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::misuse(IN_USE));
        }
        let claims = CLAIMS.lock();
        if consumer_of(&claims, device).is_some() {
            let woken = RELEASED.wait_timeout(claims, left.min(CLAIM_RETRY));
            drop(woken.unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// Adds a claim, unless the device has a consumer. Returns that.
fn try_claim(device: usize, driver: &Arc<DeviceDriver>) -> Option<Weak<DeviceDriver>> {
    let mut claims = CLAIMS.lock();
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

/// Releases the device of a driver that is being dropped.
pub(super) fn release() {
    // A thread that found the device in use waits on the condition before this continues.
    drop(CLAIMS.lock());
    RELEASED.notify_all();
}

const IN_USE: &str = "the device serves another endpoint: a device object has one endpoint at a \
                      time, and is free when that and its streams are gone";

/// How long tasks of a dropped endpoint may take to end, on a busy machine.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval of attempts: the end of a task does not notify this thread.
const CLAIM_RETRY: Duration = Duration::from_millis(5);
