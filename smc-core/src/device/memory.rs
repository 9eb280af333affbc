//! The limit on the memory of connections, and the charges to it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use smc_wire::types::DmbToken;

use super::DeviceError;
use crate::error::Limit;
use crate::mem::sync::{AtomicUsize, Ordering};
use crate::mutex::Mutex;

/// A limit on memory, and the sum of its charges. Clones share the limit.
///
/// `Builder::memory_limit` lists what is charged.
#[derive(Clone)]
pub struct MemoryLimit(Arc<Counter>);

struct Counter {
    limit: usize,
    used: AtomicUsize,
    deferred: Mutex<DeferredCharges>,
    users: Mutex<Vec<Weak<dyn TrimMemory>>>,
}

/// A pool of unused memory that is charged to a limit.
#[doc(hidden)]
pub trait TrimMemory: Send + Sync {
    /// Releases memory that is not in use.
    fn trim(&self);
}

/// Charges that outlive their connections: one for each buffer, whatever number of connections has
/// named it.
#[derive(Default)]
struct DeferredCharges {
    charges: HashMap<BufferKey, DeferredCharge>,
    /// The keys, in the order in which they are checked.
    queue: VecDeque<BufferKey>,
}

/// A buffer: the address of its device's driver, and its token.
type BufferKey = (usize, DmbToken);

/// Not a [`Charge`], as that would be a reference cycle with its limit.
struct DeferredCharge {
    bytes: usize,
    is_needed: Box<dyn Fn() -> bool + Send + Sync>,
}

impl MemoryLimit {
    /// A limit of `bytes`.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Counter {
            limit: bytes,
            used: AtomicUsize::new(0),
            deferred: Mutex::default(),
            users: Mutex::default(),
        }))
    }

    /// The limit in bytes.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// The sum of charges, in bytes.
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// The rest of the limit, in bytes.
    #[must_use]
    pub fn available(&self) -> usize {
        self.limit().saturating_sub(self.used())
    }

    /// Charges `bytes` until the result is dropped.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OverLimit`] when less is left.
    pub fn charge(&self, bytes: usize) -> Result<Charge, DeviceError> {
        let mut charge = self.charge_anyway(0);
        charge.resize(bytes)?;
        Ok(charge)
    }

    /// As [`MemoryLimit::charge`] for memory that exists already. The sum may pass the limit.
    #[must_use]
    pub fn charge_anyway(&self, bytes: usize) -> Charge {
        self.0.used.fetch_add(bytes, Ordering::Relaxed);
        Charge {
            limit: Some(self.clone()),
            bytes,
        }
    }

    /// The error for `bytes` that pass the limit.
    #[doc(hidden)]
    pub fn exceeded(&self, bytes: usize) -> DeviceError {
        let limit = u64::try_from(self.limit()).unwrap_or(u64::MAX);
        DeviceError::OverLimit {
            needed: bytes,
            left: self.available(),
            limit: Limit::new("memory limit", limit),
        }
    }

    /// Ends charges that were [deferred](Charge::defer_while) and are not needed any more. A call
    /// checks some of them, in turn.
    #[doc(hidden)]
    pub fn release_unneeded(&self) {
        self.check_deferred(CHECKS_MAX);
    }

    /// Ends all charges that were [deferred](Charge::defer_while) and are not needed any more.
    #[doc(hidden)]
    pub fn release_all_unneeded(&self) {
        self.check_deferred(usize::MAX);
    }

    /// Adds a pool that is trimmed when memory is short.
    #[doc(hidden)]
    pub fn add_user(&self, user: Weak<dyn TrimMemory>) {
        let mut users = self.0.users.lock();
        users.retain(|user| user.strong_count() > 0);
        users.push(user);
    }

    /// Trims all pools that are charged to this limit.
    #[doc(hidden)]
    pub fn trim(&self) {
        let users: Vec<_> = self
            .0
            .users
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        // Outside of the lock: the last reference to a user may be dropped here.
        users.iter().for_each(|user| user.trim());
    }

    fn check_deferred(&self, most: usize) {
        let mut deferred = self.0.deferred.lock();
        let DeferredCharges { charges, queue } = &mut *deferred;
        for _ in 0..queue.len().min(most) {
            let Some(key) = queue.pop_front() else { return };
            match charges.entry(key) {
                Entry::Occupied(charge) if !(charge.get().is_needed)() => {
                    self.subtract(charge.remove().bytes);
                }
                _ => queue.push_back(key),
            }
        }
    }

    fn add(&self, bytes: usize) -> Result<(), DeviceError> {
        let used = &self.0.used;
        let sum = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.limit());
        match used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum) {
            Ok(_) => Ok(()),
            Err(_) => Err(self.exceeded(bytes)),
        }
    }

    fn subtract(&self, bytes: usize) {
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLimit")
            .field("limit", &self.limit())
            .field("used", &self.used())
            .finish()
    }
}

/// A charge to a [`MemoryLimit`], which ends when it is dropped.
#[derive(Debug, Default)]
pub struct Charge {
    /// `None`: there is no limit.
    limit: Option<MemoryLimit>,
    bytes: usize,
}

impl Charge {
    /// The size of the charge, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the size of the charge.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OverLimit`] when less is left; the charge is unchanged then. Shrinking, and
    /// the same size, always succeed.
    pub fn resize(&mut self, bytes: usize) -> Result<(), DeviceError> {
        if let Some(limit) = &self.limit {
            match bytes.checked_sub(self.bytes) {
                // Also when memory that exists already has passed the limit.
                Some(0) => {}
                Some(more) => limit.add(more)?,
                None => limit.subtract(self.bytes - bytes),
            }
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Keeps the charge for a buffer while `is_needed` returns true. It is called now and when
    /// memory is short, and must not charge anything itself. Of several charges for one buffer the
    /// largest is kept.
    #[doc(hidden)]
    pub fn defer_while(
        mut self,
        buffer: BufferKey,
        is_needed: impl Fn() -> bool + Send + Sync + 'static,
    ) {
        let Some(limit) = self.limit.clone().filter(|_| is_needed()) else {
            return;
        };
        let mut deferred = limit.0.deferred.lock();
        let DeferredCharges { charges, queue } = &mut *deferred;
        match charges.entry(buffer) {
            // The rest of the charge, in `self`, ends with it.
            Entry::Occupied(mut kept) => {
                let kept = &mut kept.get_mut().bytes;
                (*kept, self.bytes) = ((*kept).max(self.bytes), (*kept).min(self.bytes));
            }
            Entry::Vacant(vacant) => {
                let bytes = std::mem::take(&mut self.bytes);
                let is_needed = Box::new(is_needed);
                vacant.insert(DeferredCharge { bytes, is_needed });
                queue.push_back(buffer);
            }
        }
        drop(deferred);
        // Two checks for each new charge, so that those which are not needed do not add up.
        limit.check_deferred(2);
    }

    /// Reduces the charge to at most `bytes`.
    pub fn shrink(&mut self, bytes: usize) {
        if let (Some(limit), Some(less)) = (&self.limit, self.bytes.checked_sub(bytes)) {
            limit.subtract(less);
        }
        self.bytes = self.bytes.min(bytes);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

/// The account of a device: the limit of its endpoint, once that is known. Clones share the
/// account.
#[derive(Clone, Debug, Default)]
pub struct MemoryAccount(Arc<Mutex<Option<MemoryLimit>>>);

impl MemoryAccount {
    /// Sets the limit for later charges; for [`Device::limit_memory`](super::Device::limit_memory).
    /// Earlier charges stay with the limit of the earlier endpoint.
    pub fn limit_by(&self, limit: &MemoryLimit) {
        *self.0.lock() = Some(limit.clone());
    }

    fn limit(&self) -> Option<MemoryLimit> {
        self.0.lock().clone()
    }

    /// As [`MemoryLimit::charge`], if there is a limit.
    ///
    /// # Errors
    ///
    /// As [`MemoryLimit::charge`].
    pub fn charge(&self, bytes: usize) -> Result<Charge, DeviceError> {
        match self.limit() {
            Some(limit) => limit.charge(bytes),
            None => Ok(Charge { limit: None, bytes }),
        }
    }

    /// As [`MemoryLimit::charge_anyway`], if there is a limit.
    #[must_use]
    pub fn charge_anyway(&self, bytes: usize) -> Charge {
        match self.limit() {
            Some(limit) => limit.charge_anyway(bytes),
            None => Charge { limit: None, bytes },
        }
    }
}

/// Deferred charges that are checked at a time: each is a look at the peer's memory. A set-up with
/// little memory left does so for each size that it tries.
const CHECKS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_deferred_charge_stays_until_it_is_not_needed() {
        let limit = MemoryLimit::new(100);
        let is_needed = Arc::new(AtomicBool::new(true));
        let needed = || {
            let is_needed = Arc::clone(&is_needed);
            move || is_needed.load(Ordering::Relaxed)
        };
        let buffer = (1, DmbToken(7));
        limit.charge(60).unwrap().defer_while(buffer, needed());
        limit.release_unneeded();
        assert_eq!(limit.used(), 60);
        is_needed.store(false, Ordering::Relaxed);
        assert_eq!(limit.used(), 60);
        limit.release_unneeded();
        assert_eq!(limit.used(), 0);
        limit.charge(60).unwrap().defer_while(buffer, needed());
        assert_eq!(limit.used(), 0);
    }

    #[test]
    fn a_buffer_that_many_connections_have_named_is_deferred_once() {
        let limit = MemoryLimit::new(1000);
        for (bytes, used) in [(10, 10), (30, 30), (20, 30), (30, 30)] {
            let charge = limit.charge(bytes).unwrap();
            charge.defer_while((1, DmbToken(7)), || true);
            assert_eq!(limit.used(), used);
        }
        for other in [(2, DmbToken(7)), (1, DmbToken(8))] {
            limit.charge(5).unwrap().defer_while(other, || true);
        }
        assert_eq!(limit.used(), 40);
    }

    #[test]
    fn deferred_charges_are_checked_in_turn_some_at_a_time() {
        let limit = MemoryLimit::new(1_000_000);
        let checks = Arc::new(AtomicUsize::new(0));
        let charges = 4 * CHECKS_MAX;
        for number in 0..charges {
            let checks = Arc::clone(&checks);
            let is_needed = move || checks.fetch_add(1, Ordering::Relaxed) < 4 * charges;
            let buffer = (1, DmbToken(number as u64));
            limit.charge(1).unwrap().defer_while(buffer, is_needed);
        }
        assert_eq!(limit.used(), charges);
        checks.store(4 * charges, Ordering::Relaxed);
        limit.release_unneeded();
        assert_eq!(limit.used(), charges - CHECKS_MAX);
        limit.release_all_unneeded();
        assert_eq!(limit.used(), 0);
    }

    #[test]
    fn all_users_of_a_limit_trim_their_memory() {
        struct User(Mutex<Option<Charge>>);
        impl TrimMemory for User {
            fn trim(&self) {
                self.0.lock().take();
            }
        }
        let limit = MemoryLimit::new(100);
        let users = [30, 40].map(|bytes| {
            let charge = limit.charge(bytes).unwrap();
            Arc::new(User(Mutex::new(Some(charge))))
        });
        for user in &users {
            let user: Arc<dyn TrimMemory> = Arc::clone(user) as _;
            limit.add_user(Arc::downgrade(&user));
        }
        assert_eq!(limit.used(), 70);
        limit.trim();
        assert_eq!(limit.used(), 0);
    }

    #[test]
    fn charges_are_released_and_never_pass_the_limit() {
        let limit = MemoryLimit::new(100);
        let mut first = limit.charge(60).unwrap();
        let refused = limit.charge(41).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "41 bytes are needed and 40 are left: memory limit is 100"
        );
        assert!(refused.is_lack_of_memory());
        let second = limit.charge(40).unwrap();
        assert!(first.resize(61).is_err());
        assert_eq!((first.bytes(), limit.available()), (60, 0));
        drop(second);
        first.resize(100).unwrap();
        first.shrink(10);
        first.shrink(20);
        assert_eq!((first.bytes(), limit.used()), (10, 10));
        drop(first);
        assert_eq!(limit.used(), 0);
    }

    #[test]
    fn memory_that_exists_already_may_pass_the_limit() {
        let limit = MemoryLimit::new(100);
        let mut before = limit.charge(50).unwrap();
        let over = limit.charge_anyway(100);
        assert_eq!((limit.used(), limit.available()), (150, 0));
        assert!(limit.charge(1).is_err());
        assert!(before.resize(50).is_ok(), "it needs no more");
        assert!(before.resize(51).is_err());
        drop((before, over));
        assert!(limit.charge(100).is_ok());
    }

    #[test]
    fn a_device_without_an_endpoint_has_no_limit() {
        let account = MemoryAccount::default();
        let before = account.charge(1 << 30).unwrap();
        let limit = MemoryLimit::new(100);
        account.limit_by(&limit);
        assert!(account.clone().charge(101).is_err());
        drop(before);
        assert_eq!(limit.used(), 0);
    }

    #[test]
    fn a_device_is_limited_by_its_current_endpoint() {
        let account = MemoryAccount::default();
        let (first, second) = (MemoryLimit::new(100), MemoryLimit::new(50));
        account.limit_by(&first);
        let deferred = account.charge(60).unwrap();
        account.limit_by(&second);
        let charged = account.charge(40).unwrap();
        assert!(account.charge(20).is_err());
        assert_eq!((first.used(), second.used()), (60, 40));
        drop((deferred, charged));
        assert_eq!((first.used(), second.used()), (0, 0));
    }
}
