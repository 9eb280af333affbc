use std::string::ToString;

use proptest::prelude::*;

use super::*;

fn ring(size: u32) -> Ring {
    Ring::new(size).unwrap()
}

fn at(wrap: u16, count: u32) -> Cursor {
    Cursor { wrap, count }
}

#[test]
fn a_new_ring_is_empty() {
    let ring = ring(100);
    assert_eq!(ring.used(Cursor::START, Cursor::START), 0);
    assert_eq!(ring.free(Cursor::START, Cursor::START), 100);
}

#[test]
fn a_count_equal_to_the_size_becomes_zero_of_the_next_wrap() {
    assert_eq!(ring(65_536).advance(Cursor::START, 65_536), at(1, 0));
    assert_eq!(ring(65_536).advance(at(1, 34_464), 65_536), at(2, 34_464));
    assert_eq!(ring(100).advance(at(0, 99), 1), at(1, 0));
    assert_eq!(ring(100).advance(at(0, 98), 1), at(0, 99));
}

#[test]
fn full_and_empty_differ_by_the_wrap() {
    let ring = ring(65_504);
    assert_eq!(ring.used(at(4, 7), at(4, 7)), 0);
    assert_eq!(ring.used(at(5, 7), at(4, 7)), 65_504);
    assert_eq!(ring.free(at(5, 7), at(4, 7)), 0);
}

#[test]
fn the_wrap_number_wraps_too() {
    let ring = ring(100);
    let end = at(65_535, 90);
    let next = ring.advance(end, 20);
    assert_eq!(next, at(0, 10));
    assert_eq!(ring.used(next, end), 20);
    assert_eq!(ring.span(end, next), Ok(20));
    assert!(!next.is_behind(end));
}

#[test]
fn distances_are_cut_at_the_size() {
    let ring = ring(100);
    assert_eq!(ring.used(at(5, 90), at(0, 10)), 100);
    assert_eq!(ring.used(at(0, 5), at(0, 10)), 0);
    assert_eq!(ring.used(at(0, u32::MAX), at(0, 0)), 100);
    assert_eq!(ring.used(at(1, u32::MAX), at(0, u32::MAX)), 100);
}

#[test]
fn moving_by_more_than_a_ring_is_still_right() {
    assert_eq!(ring(100).advance(at(0, 10), 295), at(3, 5));
    assert_eq!(ring(1).advance(Cursor::START, 70_000), at(4464, 0));
    assert_eq!(ring(100).advance(at(7, u32::MAX), 5), at(8, 5));
}

#[test]
fn check_refuses_counts_outside_of_the_ring() {
    let ring = ring(100);
    assert_eq!(ring.check(at(9, 99)), Ok(at(9, 99)));
    let outside = CursorError::OutsideRing {
        cursor: at(9, 100),
        size: 100,
    };
    assert_eq!(ring.check(at(9, 100)), Err(outside));
    assert_eq!(ring.span(at(9, 100), at(9, 99)), Err(outside));
    assert_eq!(ring.span(at(9, 99), at(9, 100)), Err(outside));
    assert_eq!(
        outside.to_string(),
        "cursor 9:100 lies outside of a ring of 100 bytes"
    );
}

#[test]
fn span_refuses_steps_back_and_jumps() {
    let ring = ring(100);
    let jump = |from, to| {
        Err(CursorError::Jump {
            from,
            to,
            size: 100,
        })
    };
    assert_eq!(ring.span(at(3, 50), at(3, 49)), jump(at(3, 50), at(3, 49)));
    assert_eq!(ring.span(at(3, 50), at(4, 51)), jump(at(3, 50), at(4, 51)));
    assert_eq!(ring.span(at(3, 50), at(5, 0)), jump(at(3, 50), at(5, 0)));
    assert_eq!(ring.span(at(3, 50), at(2, 50)), jump(at(3, 50), at(2, 50)));
    assert_eq!(ring.span(at(3, 50), at(4, 50)), Ok(100));
}

#[test]
fn behind_as_linux_sees_it() {
    let known = at(5, 100);
    assert!(at(5, 99).is_behind(known));
    assert!(at(4, 9999).is_behind(known));
    assert!(!at(5, 100).is_behind(known));
    assert!(!at(6, 0).is_behind(known));
    // A new wrap of zero is taken for a wrap-around, whatever was known.
    assert!(!at(0, 0).is_behind(known));
}

#[test]
fn there_is_no_ring_without_bytes() {
    assert_eq!(Ring::new(0), None);
}

proptest! {
    /// Within one ring, advancing and measuring agree, whatever the size and the wrap.
    #[test]
    fn advance_and_span_are_inverse(
        size in 1_u32..=0x2000_0000,
        wrap: u16,
        count: u32,
        by: u32,
    ) {
        let ring = ring(size);
        let old = at(wrap, count % size);
        let by = by % (size + 1);
        let new = ring.advance(old, by);
        prop_assert_eq!(ring.check(new), Ok(new));
        prop_assert_eq!(ring.span(old, new), Ok(by));
        prop_assert_eq!(ring.used(new, old), by);
        prop_assert_eq!(ring.free(new, old), size - by);
    }

    /// Two steps lead where one does.
    #[test]
    fn steps_add_up(size in 1_u32..=0x2000_0000, wrap: u16, count: u32, a: u32, b: u32) {
        let ring = ring(size);
        let (a, b) = (a / 2, b / 2);
        let start = at(wrap, count % size);
        prop_assert_eq!(ring.advance(ring.advance(start, a), b), ring.advance(start, a + b));
    }

    /// Nothing a peer sends makes the arithmetic panic, nor leads beyond the ring.
    #[test]
    fn any_input_is_bounded(
        size in 1_u32..,
        a: (u16, u32),
        b: (u16, u32),
        by: u32,
    ) {
        let ring = ring(size);
        let (a, b) = (at(a.0, a.1), at(b.0, b.1));
        prop_assert!(ring.used(a, b) <= size);
        prop_assert!(ring.free(a, b) <= size);
        prop_assert!(ring.span(a, b).unwrap_or(0) <= size);
        prop_assert!(ring.advance(a, by).count < size || by < size.saturating_sub(a.count));
    }
}

#[test]
fn spans_are_cut_where_the_ring_ends() {
    let ring = ring(10);
    for (at, len, expected) in [
        (0, 0, [(0, 0), (0, 0)]),
        (3, 4, [(3, 4), (0, 0)]),
        (3, 7, [(3, 7), (0, 0)]),
        (8, 5, [(8, 2), (0, 3)]),
        (0, 10, [(0, 10), (0, 0)]),
        (9, 10, [(9, 1), (0, 9)]),
    ] {
        let spans = ring.spans(at, len).map(|span| (span.at, span.len));
        assert_eq!(spans, expected, "{len} bytes from {at}");
    }
}
