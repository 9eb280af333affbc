//! The numbers that a server assigns.

use hashbrown::HashMap;

/// The numbers of clients that were not assigned yet. The slot of a number is the number modulo the
/// count of slots.
///
/// A process that connects again and again uses numbers up, and they are not available again as
/// long as any client stays. So in each slot a quarter is reserved for processes of the server's
/// user and of root, and of the rest one user has no more than are left.
#[derive(Debug)]
pub(super) struct Numbers {
    slots: Vec<Slot>,
    own_uid: u32,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    assigned: u32,
    /// Numbers assigned to other users than root and the server's: of all, and of each.
    of_others: u32,
    by_user: HashMap<u32, u32>,
}

impl Numbers {
    pub(super) fn new(slots: u16, own_uid: u32) -> Self {
        Self {
            slots: vec![Slot::default(); slots.into()],
            own_uid,
        }
    }

    /// Makes all numbers available again.
    pub(super) fn reset(&mut self) {
        self.slots.fill(Slot::default());
    }

    /// Assigns a process of this user the lowest number and slot, of the slots that are free.
    /// `None` if there are none, or this user has its share of them.
    pub(super) fn assign(&mut self, uid: u32, is_free: impl Fn(u16) -> bool) -> Option<(u16, u16)> {
        let is_privileged = uid == 0 || uid == self.own_uid;
        let count = u32::try_from(self.slots.len()).ok()?;
        let next = (0..).zip(&mut self.slots).filter_map(|(slot, state)| {
            let number = u32::from(slot) + state.assigned * count;
            let number = u16::try_from(number).ok()?;
            let total = (ALL - u32::from(slot)).div_ceil(count);
            let has_capacity = is_privileged || state.has_capacity(uid, total);
            (has_capacity && is_free(slot)).then_some((number, slot, state))
        });
        let (number, slot, state) = next.min_by_key(|(number, ..)| *number)?;
        state.assigned += 1;
        if !is_privileged {
            state.of_others += 1;
            *state.by_user.entry(uid).or_default() += 1;
        }
        Some((number, slot))
    }
}

#[cfg(test)]
impl Numbers {
    /// How many numbers were assigned to a user.
    pub(super) fn of_user(&self, uid: u32) -> u32 {
        let each = self.slots.iter().filter_map(|slot| slot.by_user.get(&uid));
        each.sum()
    }
}

impl Slot {
    /// Whether another user than root and the server's may have a number of this slot, which has so
    /// many.
    fn has_capacity(&self, uid: u32, total: u32) -> bool {
        let of_others = total - total / 4;
        let left = of_others.saturating_sub(self.of_others);
        self.by_user.get(&uid).copied().unwrap_or_default() < left
    }
}

/// Numbers of a server.
const ALL: u32 = 1 << 16;

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
