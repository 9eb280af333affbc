//! A list that only grows, and is read without a lock.

use std::iter::successors;
use std::sync::OnceLock;

/// Elements stay where they are as long as the list, so references to them outlive later additions.
pub(crate) struct AppendList<T>(OnceLock<Box<Node<T>>>);

struct Node<T> {
    value: T,
    rest: AppendList<T>,
}

impl<T> Default for AppendList<T> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<T> AppendList<T> {
    /// Adds an element behind the last one.
    pub(crate) fn push(&self, value: T) {
        let rest = Self::default();
        let mut node = Box::new(Node { value, rest });
        let mut end = self;
        while let Err(rejected) = end.0.set(node) {
            node = rejected;
            end = end.0.get().map_or(end, |node| &node.rest);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let nodes = successors(self.0.get(), |node| node.rest.0.get());
        nodes.map(|node| &node.value)
    }

    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.iter().nth(index)
    }

    pub(crate) fn len(&self) -> usize {
        self.iter().count()
    }
}

/// One element after the other: a long list must not need a deep stack.
impl<T> Drop for AppendList<T> {
    fn drop(&mut self) {
        let mut first = self.0.take();
        while let Some(mut node) = first {
            first = node.rest.0.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_dropped_on_a_small_stack() {
        let mut list = AppendList::default();
        for value in 0..1_000_000 {
            let before = std::mem::take(&mut list);
            let node = Node {
                value,
                rest: before,
            };
            list.0.set(Box::new(node)).ok().expect("is empty");
        }
        let dropped = std::thread::Builder::new().stack_size(64 << 10);
        let dropped = dropped.spawn(move || drop(list)).expect("a thread");
        dropped.join().expect("does not overflow");
    }

    #[test]
    fn elements_stay_where_they_are() {
        let list = AppendList::default();
        assert_eq!((list.len(), list.get(0)), (0, None));
        list.push("first".to_owned());
        let first = list.get(0).expect("is there");
        list.push("second".to_owned());
        list.push("third".to_owned());
        assert!(std::ptr::eq(first, list.get(0).expect("is there")));
        assert_eq!(
            list.iter().collect::<Vec<_>>(),
            ["first", "second", "third"]
        );
        assert_eq!(list.get(2).map(String::as_str), Some("third"));
        assert_eq!((list.len(), list.get(3)), (3, None));
    }

    #[test]
    fn two_threads_lose_no_element() {
        let list = AppendList::default();
        std::thread::scope(|scope| {
            for start in [0, 100] {
                let list = &list;
                scope.spawn(move || (start..start + 100).for_each(|n| list.push(n)));
            }
        });
        let mut all: Vec<i32> = list.iter().copied().collect();
        all.sort_unstable();
        assert_eq!(all, (0..200).collect::<Vec<_>>());
    }
}
