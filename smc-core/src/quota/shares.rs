//! Dynamic thresholds: a bounded number of units, shared fairly by their holders.

use core::hash::Hash;

use hashbrown::HashMap;

/// Units of a limit, counted by holder: `total` in all, and `each` at most for one.
///
/// A holder also has no more than are left free, as with the dynamic buffer thresholds of
/// shared-memory switches. So some stay free whatever a few holders take: with `n` holders
/// that take all they get, at least one in `n + 1`.
#[derive(Debug)]
pub struct FairShares<K> {
    total: usize,
    each: usize,
    taken: usize,
    by_holder: HashMap<K, usize>,
}

impl<K: Eq + Hash> FairShares<K> {
    /// None is taken.
    #[must_use]
    pub fn new(total: usize, each: usize) -> Self {
        Self {
            total,
            each,
            taken: 0,
            by_holder: HashMap::new(),
        }
    }

    /// Sets other limits. What is taken above them stays taken.
    pub fn set_limits(&mut self, total: usize, each: usize) {
        self.total = total;
        self.each = each;
    }

    /// Whether this holder may take one more.
    #[must_use]
    pub fn has_capacity(&self, holder: &K) -> bool {
        self.has_capacity_for(holder, 1)
    }

    /// Whether this holder may take so many.
    #[must_use]
    pub fn has_capacity_for(&self, holder: &K, count: usize) -> bool {
        let free = self.total.saturating_sub(self.taken);
        self.count(holder).saturating_add(count) <= free.min(self.each)
    }

    /// The number that this holder has taken.
    #[must_use]
    pub fn count(&self, holder: &K) -> usize {
        self.by_holder.get(holder).copied().unwrap_or_default()
    }

    /// Takes one, also above the limits.
    pub fn take(&mut self, holder: K) {
        let count = self.by_holder.entry(holder).or_default();
        *count = count.saturating_add(1);
        self.taken = self.taken.saturating_add(1);
    }

    /// Takes so many of a limit of this process, of which all holders together have a quarter, and
    /// one of them an eighth. A first holder gets them however low the limit is, which can change
    /// at any time.
    ///
    /// # Errors
    ///
    /// The share of one holder, if this one would have more, or more than the others leave free.
    pub fn take_of_limit(&mut self, limit: usize, holder: &K, count: usize) -> Result<(), usize>
    where
        K: Clone,
    {
        let part = |share: usize| (limit / share).max(count);
        self.set_limits(part(4), part(8));
        if !self.has_capacity_for(holder, count) {
            return Err(part(8));
        }
        (0..count).for_each(|_| self.take(holder.clone()));
        Ok(())
    }

    /// Releases one, if this holder has any.
    pub fn release(&mut self, holder: &K) {
        let Some(count) = self.by_holder.get_mut(holder) else {
            return;
        };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.by_holder.remove(holder);
        }
        self.taken = self.taken.saturating_sub(1);
    }

    /// Whether none is taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.taken == 0 && self.by_holder.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes places in turn until none may be taken; returns the number of each holder.
    fn fill<const N: usize>(shares: &mut FairShares<usize>) -> [usize; N] {
        let mut has = [0; N];
        loop {
            let before = has;
            for (holder, count) in has.iter_mut().enumerate() {
                if shares.has_capacity(&holder) {
                    shares.take(holder);
                    *count += 1;
                }
            }
            if has == before {
                return has;
            }
        }
    }

    #[test]
    fn places_stay_free_for_another_holder() {
        assert_eq!(fill(&mut FairShares::new(64, 32)), [32]);
        let mut shares = FairShares::new(64, 32);
        assert_eq!(fill(&mut shares), [22, 21]);
        assert!(shares.has_capacity(&2));
        let mut shares = FairShares::new(64, 32);
        assert_eq!(fill(&mut shares), [8; 7]);
        assert!(shares.has_capacity(&7));
    }

    #[test]
    fn released_places_are_for_others() {
        let mut shares = FairShares::new(64, 32);
        let [count] = fill(&mut shares);
        for _ in 0..count {
            shares.release(&0);
        }
        assert!(shares.is_empty());
        shares.release(&0);
        assert!(shares.is_empty());
        assert_eq!(fill(&mut shares), [count]);
    }
}
