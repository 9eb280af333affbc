//! Bit sets in shared words.

use smc_core::mem::sync::{AtomicU64, Ordering};

/// Positions of the bits that are set.
pub(super) fn ones(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(bit)
    })
}

/// Takes the bits of a word; most of the time there are none.
pub(super) fn take(word: &AtomicU64) -> u64 {
    match word.load(Ordering::SeqCst) {
        0 => 0,
        _ => word.swap(0, Ordering::SeqCst),
    }
}
