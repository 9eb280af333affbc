//! Shadow state of shared memory in a model: which words are atomics, and which thread accessed
//! which byte when.
//!
//! Each byte that is copied has a loom cell, which finds unordered accesses. Each word that is used
//! as an atomic is a loom atomic, because its loads may return old values. Memory that several
//! threads access has to be touched once before they are spawned: loom treats memory that a thread
//! touches first as created by it.

use std::collections::{BTreeMap, HashMap};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use loom::cell::UnsafeCell;

use super::sync::{AtomicU64, Ordering};

/// Shadow of one span of memory, shared by all regions of it.
#[derive(Default)]
pub(super) struct Shadow {
    /// By address. Both only grow, so that boxed values do not move.
    words: Mutex<BTreeMap<usize, Arc<AtomicU64>>>,
    bytes: Mutex<BTreeMap<usize, Arc<Byte>>>,
}

impl Shadow {
    /// The shadow of the memory that starts there.
    pub(super) fn of(start: NonNull<u8>) -> Arc<Self> {
        let mut known = lock(KNOWN.get_or_init(Mutex::default));
        let place = known.entry(start.as_ptr().addr()).or_default();
        if let Some(shadow) = place.upgrade() {
            return shadow;
        }
        let shadow = Arc::default();
        *place = Arc::downgrade(&shadow);
        shadow
    }

    /// The word at this address, an atomic from now on.
    pub(super) fn word(&self, at: NonNull<u8>) -> &AtomicU64 {
        let mut words = lock(&self.words);
        let word = words.entry(at.as_ptr().addr()).or_insert_with(|| {
            // SAFETY: the region checked that the word is inside and aligned.
            let value = unsafe { at.cast::<u64>().read() };
            Arc::new(AtomicU64::new(value))
        });
        // SAFETY: words are not removed before `self` is dropped, and an `Arc` does not move.
        unsafe { &*Arc::as_ptr(word) }
    }

    /// Bytes were copied from this address; corrects those that belong to words.
    pub(super) fn read(&self, at: NonNull<u8>, to: &mut [u8]) {
        self.each(at, to.len(), |part, index| match part {
            Part::Word(word) => {
                let value = word.load(Ordering::Relaxed);
                to[index..index + 8].copy_from_slice(&value.to_ne_bytes());
            }
            Part::Byte(byte) => byte.0.with(|_| ()),
        });
    }

    /// Bytes were copied to this address.
    pub(super) fn written(&self, at: NonNull<u8>, data: &[u8]) {
        self.each(at, data.len(), |part, index| match part {
            Part::Word(word) => {
                let mut value = [0; 8];
                value.copy_from_slice(&data[index..index + 8]);
                word.store(u64::from_ne_bytes(value), Ordering::Relaxed);
            }
            Part::Byte(byte) => byte.0.with_mut(|_| ()),
        });
    }

    /// Bytes are going to be borrowed in place.
    pub(super) fn borrowed(&self, at: NonNull<u8>, len: usize) {
        self.each(at, len, |part, _| match part {
            Part::Word(_) => panic!("a word used as an atomic is not borrowed as bytes"),
            Part::Byte(byte) => byte.0.with(|_| ()),
        });
    }

    /// As `written`, for bytes that were accessed before.
    pub(super) fn zeroed(&self, at: NonNull<u8>, len: usize) {
        let start = at.as_ptr().addr();
        for byte in touched(&self.bytes, start, len) {
            byte.0.with_mut(|_| ());
        }
        for word in touched(&self.words, start, len) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Visits words and bytes, with the position of each in the span.
    fn each(&self, at: NonNull<u8>, len: usize, mut then: impl FnMut(Part<'_>, usize)) {
        let start = at.as_ptr().addr();
        let mut index = 0;
        while index < len {
            let at = start + index;
            let word = lock(&self.words).get(&(at & !7)).cloned();
            if let Some(word) = word {
                let is_whole = at % 8 == 0 && index + 8 <= len;
                assert!(is_whole, "a word used as an atomic is copied as a whole");
                then(Part::Word(&word), index);
                index += 8;
            } else {
                let make = || Arc::new(Byte(UnsafeCell::new(())));
                let byte = Arc::clone(lock(&self.bytes).entry(at).or_insert_with(make));
                then(Part::Byte(&byte), index);
                index += 1;
            }
        }
    }
}

/// Records the accesses to a byte.
struct Byte(UnsafeCell<()>);

// SAFETY: it has no content, and the threads of a model run one at a time.
unsafe impl Send for Byte {}
// SAFETY: as above.
unsafe impl Sync for Byte {}

enum Part<'a> {
    Word(&'a AtomicU64),
    Byte(&'a Byte),
}

/// In the order of addresses: runs of a model have to be deterministic.
fn touched<T>(all: &Mutex<BTreeMap<usize, Arc<T>>>, start: usize, len: usize) -> Vec<Arc<T>> {
    let all = lock(all);
    all.range(start..start + len)
        .map(|(_, one)| Arc::clone(one))
        .collect()
}

/// Never held at a point where loom may switch threads.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shadows by the address where their memory starts.
static KNOWN: OnceLock<Mutex<HashMap<usize, Weak<Shadow>>>> = OnceLock::new();
