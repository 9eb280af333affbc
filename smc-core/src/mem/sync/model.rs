//! Atomics of models, whose orderings can be mutated.
//!
//! A model that has never failed proves little. So fences, and the words that devices share, can be
//! weakened for a thread of a model within a scope ([`with`]): the model must fail then.
//!
//! Loom does not try a load that returns a later store. It overestimates a sequentially consistent
//! fence, which also orders plain copies on either side of it.

use std::cell::Cell;
use std::sync::PoisonError;
use std::task::Waker;

use loom::model::Builder;
use loom::sync::MutexGuard;
use loom::sync::atomic as loom_atomic;
use loom::sync::atomic::Ordering;

use crate::mem::TrustPeers;

/// A change of the memory orderings in a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mutation {
    /// Stronger: accesses to words are sequentially consistent, and only the order of steps is
    /// tried.
    ///
    /// Loom leaves a store of one thread unordered to a read-modify-write of another thread that
    /// read an older value, though nothing can come between its load and its store. So it reports
    /// impossible executions for a word that is written in turns, unless this mutation is used.
    InOrder,
    /// Fences have no effect.
    NoFence,
    /// Neither fences nor accesses are in the single total order of sequential consistency.
    NoSeqCst,
    /// Stores and read-modify-writes have no release ordering.
    NoRelease,
    /// Loads and read-modify-writes have no acquire ordering.
    NoAcquire,
}

/// Runs a model in every interleaving of its threads, up to the preemption bound in
/// `LOOM_MAX_PREEMPTIONS`, or three.
pub fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.max_branches = 10_000;
    builder.check(model);
}

/// Runs code of the calling thread with a mutation, or without.
pub fn with<T>(mutation: Option<Mutation>, code: impl FnOnce() -> T) -> T {
    let before = MUTATION.with(|current| current.replace(mutation));
    let done = code();
    MUTATION.with(|current| current.set(before));
    done
}

/// A fence, subject to the mutation of the thread.
pub fn fence(order: Ordering) {
    if mutation() != Some(Mutation::NoFence) {
        loom_atomic::fence(match order {
            Ordering::SeqCst => if_seq_cst(Ordering::AcqRel),
            order => order,
        });
    }
}

/// A word that devices share.
#[derive(Debug)]
pub struct AtomicU64(loom_atomic::AtomicU64);

#[expect(missing_docs, reason = "as those of the standard library")]
impl AtomicU64 {
    #[must_use]
    pub fn new(value: u64) -> Self {
        Self(loom_atomic::AtomicU64::new(value))
    }

    pub fn load(&self, order: Ordering) -> u64 {
        if mutation() == Some(Mutation::InOrder) {
            return self.0.fetch_or(0, Ordering::SeqCst);
        }
        self.0.load(weak(order, Ordering::Acquire))
    }

    pub fn store(&self, value: u64, order: Ordering) {
        if mutation() == Some(Mutation::InOrder) {
            self.0.swap(value, Ordering::SeqCst);
        } else {
            self.0.store(value, weak(order, Ordering::Release));
        }
    }

    pub fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.0.swap(value, weak(order, Ordering::AcqRel))
    }

    pub fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_or(value, weak(order, Ordering::AcqRel))
    }

    pub fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_and(value, weak(order, Ordering::AcqRel))
    }

    pub fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_add(value, weak(order, Ordering::AcqRel))
    }

    pub fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_sub(value, weak(order, Ordering::AcqRel))
    }

    /// # Errors
    ///
    /// The value found, if `change` has none for it.
    pub fn fetch_update(
        &self,
        set: Ordering,
        fetch: Ordering,
        change: impl FnMut(u64) -> Option<u64>,
    ) -> Result<u64, u64> {
        let (set, fetch) = (weak(set, Ordering::AcqRel), weak(fetch, Ordering::Acquire));
        self.0.fetch_update(set, fetch, change)
    }

    /// # Errors
    ///
    /// The value found, if it was another one.
    pub fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.0.compare_exchange(
            current,
            new,
            weak(success, Ordering::AcqRel),
            weak(failure, Ordering::Acquire),
        )
    }
}

/// As [`crate::mutex::Mutex`]: it orders what is done while it is locked.
#[derive(Debug)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

#[expect(missing_docs, reason = "as those of the other one")]
impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As that of the crate `atomic-waker`, whose calls take effect one after the other.
#[derive(Debug)]
pub struct AtomicWaker(Mutex<Option<Waker>>);

impl Default for AtomicWaker {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

#[expect(missing_docs, reason = "as those of the other one")]
impl AtomicWaker {
    pub fn register(&self, waker: &Waker) {
        *self.0.lock() = Some(waker.clone());
    }

    #[must_use]
    pub fn take(&self) -> Option<Waker> {
        self.0.lock().take()
    }
}

/// The promise about peers, whose accesses a model checks: those that are not ordered fail it.
#[must_use]
pub fn trust_peers() -> TrustPeers {
    TrustPeers(())
}

/// An ordering under the current mutation. `most` is the strongest below `SeqCst` for such an
/// access.
fn weak(order: Ordering, most: Ordering) -> Ordering {
    let order = match order {
        _ if mutation() == Some(Mutation::InOrder) => Ordering::SeqCst,
        Ordering::SeqCst => if_seq_cst(most),
        order => order,
    };
    let is_strong = matches!(order, Ordering::AcqRel | Ordering::SeqCst);
    match mutation() {
        Some(Mutation::NoRelease) if most != Ordering::Acquire => match order {
            Ordering::Release => Ordering::Relaxed,
            _ if is_strong && most == Ordering::AcqRel => Ordering::Acquire,
            _ if is_strong => Ordering::Relaxed,
            order => order,
        },
        Some(Mutation::NoAcquire) if most != Ordering::Release => match order {
            Ordering::Acquire => Ordering::Relaxed,
            _ if is_strong && most == Ordering::AcqRel => Ordering::Release,
            _ if is_strong => Ordering::Relaxed,
            order => order,
        },
        _ => order,
    }
}

fn if_seq_cst(else_this: Ordering) -> Ordering {
    if mutation() == Some(Mutation::NoSeqCst) {
        else_this
    } else {
        Ordering::SeqCst
    }
}

fn mutation() -> Option<Mutation> {
    MUTATION.with(Cell::get)
}

loom::thread_local! {
    /// The mutation of a model thread.
    static MUTATION: Cell<Option<Mutation>> = Cell::new(None);
}
