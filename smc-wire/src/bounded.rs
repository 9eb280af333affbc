//! A list with a fixed capacity, for the short repeated parts of messages.

use core::fmt;
use core::ops::Deref;

/// Up to `N` items stored in place, without allocation.
///
/// The protocol bounds every list it carries (eight EIDs, eight GID entries, eight prefixes), so
/// that a message needs no heap. Dereferences to a slice of the items that are there.
///
/// ```
/// use smc_wire::Bounded;
///
/// let mut list = Bounded::<u8, 2>::new();
/// assert_eq!(list.push(1), Ok(()));
/// assert_eq!(list.push(2), Ok(()));
/// assert_eq!(list.push(3), Err(3));
/// assert_eq!(list.as_slice(), [1, 2]);
/// ```
#[derive(Clone, Copy)]
pub struct Bounded<T, const N: usize> {
    items: [T; N],
    len: usize,
}

impl<T: Copy + Default, const N: usize> Bounded<T, N> {
    /// The most items it can hold.
    pub const CAPACITY: usize = N;

    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self {
            items: [T::default(); N],
            len: 0,
        }
    }

    /// A list of the given items, or `None` if there are more than `N`.
    #[must_use]
    pub fn from_slice(items: &[T]) -> Option<Self> {
        let mut list = Self::new();
        list.items.get_mut(..items.len())?.copy_from_slice(items);
        list.len = items.len();
        Some(list)
    }

    /// Appends one item.
    ///
    /// # Errors
    ///
    /// Gives the item back when the list is full.
    pub fn push(&mut self, item: T) -> Result<(), T> {
        let Some(slot) = self.items.get_mut(self.len) else {
            return Err(item);
        };
        *slot = item;
        self.len = self.len.saturating_add(1);
        Ok(())
    }

    /// Takes as many items as fit and drops the rest.
    #[must_use]
    pub fn from_iter_lossy(items: impl IntoIterator<Item = T>) -> Self {
        let mut list = Self::new();
        for item in items {
            if list.push(item).is_err() {
                break;
            }
        }
        list
    }
}

impl<T, const N: usize> Bounded<T, N> {
    /// The items that are there.
    #[must_use]
    pub fn as_slice(&self) -> &[T] {
        self.items.get(..self.len).unwrap_or_default()
    }
}

impl<T: Copy + Default, const N: usize> Default for Bounded<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, const N: usize> Deref for Bounded<T, N> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.as_slice()
    }
}

impl<'a, T, const N: usize> IntoIterator for &'a Bounded<T, N> {
    type Item = &'a T;
    type IntoIter = core::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.as_slice().iter()
    }
}

impl<T: PartialEq, const N: usize> PartialEq for Bounded<T, N> {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl<T: Eq, const N: usize> Eq for Bounded<T, N> {}

impl<T: fmt::Debug, const N: usize> fmt::Debug for Bounded<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

#[cfg(test)]
mod tests;
