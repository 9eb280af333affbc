//! The numbers that a server assigns.

use smc_core::quota::FairShares;

/// The numbers of clients that were not assigned yet. The slot of a number is the number modulo the
/// count of slots.
///
/// A process that connects again and again uses numbers up, and they are not available again as
/// long as any client stays. So in each slot a quarter is reserved for processes of the server's
/// user and of root, and of the rest one user has no more than are left.
#[derive(Debug)]
pub(super) struct Numbers {
    slots: Vec<Slot>,
    count: u16,
    own_uid: u32,
}

#[derive(Debug)]
struct Slot {
    assigned: u32,
    /// The numbers of users other than root and the user of the server.
    of_others: FairShares<u32>,
}

impl Numbers {
    pub(super) fn new(count: u16, own_uid: u32) -> Self {
        let slot = |slot: usize| {
            let total = (ALL - slot).div_ceil(usize::from(count));
            let of_others = total - total / 4;
            Slot {
                assigned: 0,
                of_others: FairShares::new(of_others, of_others),
            }
        };
        Self {
            slots: (0..usize::from(count)).map(slot).collect(),
            count,
            own_uid,
        }
    }

    /// Makes all numbers available again.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.count, self.own_uid);
    }

    /// Assigns a process of this user the lowest number and slot, of the slots that are free.
    /// `None` if there are none, or this user has its share of them.
    pub(super) fn assign(&mut self, uid: u32, is_free: impl Fn(u16) -> bool) -> Option<(u16, u16)> {
        let is_privileged = uid == 0 || uid == self.own_uid;
        let count = u32::from(self.count);
        let next = (0..).zip(&mut self.slots).filter_map(|(slot, state)| {
            let number = u32::from(slot) + state.assigned * count;
            let number = u16::try_from(number).ok()?;
            let has_capacity = is_privileged || state.of_others.has_capacity(&uid);
            (has_capacity && is_free(slot)).then_some((number, slot, state))
        });
        let (number, slot, state) = next.min_by_key(|(number, ..)| *number)?;
        state.assigned += 1;
        if !is_privileged {
            state.of_others.take(uid);
        }
        Some((number, slot))
    }
}

#[cfg(test)]
impl Numbers {
    /// How many numbers were assigned to a user.
    pub(super) fn of_user(&self, uid: u32) -> usize {
        let each = self.slots.iter().map(|slot| slot.of_others.count(&uid));
        each.sum()
    }
}

/// Numbers of a server.
const ALL: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u32 = 1000;

    /// Assigns a user numbers until there are none for it; returns how many.
    fn take_all(numbers: &mut Numbers, uid: u32, is_free: impl Fn(u16) -> bool) -> usize {
        std::iter::from_fn(|| numbers.assign(uid, &is_free)).count()
    }

    #[test]
    fn numbers_ascend_and_each_is_assigned_once() {
        let mut numbers = Numbers::new(100, OWN);
        let all: Vec<_> = std::iter::from_fn(|| numbers.assign(OWN, |_| true)).collect();
        let in_order = (0..=u16::MAX).map(|number| (number, number % 100));
        assert!(all.into_iter().eq(in_order));
        numbers.reset();
        assert_eq!(numbers.assign(OWN, |_| true), Some((0, 0)));
    }

    #[test]
    fn a_slot_in_use_keeps_its_numbers() {
        let mut numbers = Numbers::new(2, OWN);
        assert_eq!(numbers.assign(OWN, |_| true), Some((0, 0)));
        assert_eq!(take_all(&mut numbers, OWN, |slot| slot == 1), 1 << 15);
        assert_eq!(numbers.assign(OWN, |_| true), Some((2, 0)));
    }

    #[test]
    fn a_user_who_connects_without_end_leaves_numbers_to_others() {
        for slots in [1, 2, 64, 1000, 1024] {
            let mut numbers = Numbers::new(slots, OWN);
            // Of many slots three, as each number takes a search of all.
            let is_free = |slot| slot < 2 || slot + 1 == slots;
            for hostile in [2, 3, 4] {
                assert!(take_all(&mut numbers, hostile, is_free) > 0);
            }
            // In any slot, which may be the only one that is free.
            for slot in (0..slots).filter(|slot| is_free(*slot)) {
                for user in [5, OWN, 0] {
                    let assigned = numbers.assign(user, |other| other == slot);
                    assert!(assigned.is_some(), "user {user}, slot {slot} of {slots}");
                }
            }
        }
    }

    #[test]
    fn processes_of_the_server_s_user_may_have_all_numbers() {
        for own in [OWN, 0] {
            let mut numbers = Numbers::new(64, OWN);
            take_all(&mut numbers, 2, |_| true);
            let left = take_all(&mut numbers, own, |_| true);
            assert!(left > 1 << 15, "{left}");
            assert_eq!(take_all(&mut numbers, own, |_| true), 0);
        }
    }
}
