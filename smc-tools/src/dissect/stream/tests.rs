use proptest::prelude::*;

use super::*;

/// Inserts with the position in the list as frame number.
fn insert(stream: &mut Stream, frame: u64, sequence: u32, bytes: &[u8], missing: usize) {
    let mark = Mark { frame, time: None };
    stream
        .insert(mark, sequence, bytes, missing)
        .expect("there is space");
}

#[test]
fn bytes_come_in_order_whatever_the_order_of_segments() {
    let mut stream = Stream::default();
    stream.anchor(99);
    insert(&mut stream, 1, 106, b"ghi", 0);
    assert_eq!((stream.front(), stream.gap()), (&b""[..], Some(6)));
    insert(&mut stream, 2, 100, b"abc", 0);
    assert_eq!((stream.front(), stream.gap()), (&b"abc"[..], Some(3)));
    insert(&mut stream, 3, 102, b"cdefg", 0);
    assert_eq!((stream.front(), stream.gap()), (&b"abcdefghi"[..], None));
    assert_eq!(stream.newest().frame, 3);
}

#[test]
fn messages_are_consumed_one_by_one_and_their_memory_is_released() {
    let mut stream = Stream::default();
    stream.anchor(99);
    insert(&mut stream, 1, 100, &[7; 60_000], 0);
    for consumed in 1..=60_000 {
        stream.advance(1);
        assert_eq!(stream.front().len(), 60_000 - consumed);
        assert!(stream.known.len() <= 60_000 - consumed + stream.consumed);
        assert!(stream.consumed <= stream.known.len() / 2);
    }
    insert(&mut stream, 2, 60_100, b"next", 0);
    assert_eq!((stream.front(), stream.known.len()), (&b"next"[..], 4));
}

#[test]
fn a_capture_that_begins_late_may_begin_out_of_order() {
    let mut stream = Stream::default();
    insert(&mut stream, 1, 5, b"fgh", 0);
    assert_eq!(stream.front(), b"fgh");
    insert(&mut stream, 2, 0, b"abcde", 0);
    assert_eq!(stream.front(), b"abcdefgh");
    // Once something was consumed, nothing older can be of use.
    stream.advance(1);
    insert(&mut stream, 3, 0xFFFF_FFF0, b"old", 0);
    assert_eq!(stream.front(), b"bcdefgh");
}

#[test]
fn data_captured_before_its_syn_is_kept() {
    let mut stream = Stream::default();
    insert(&mut stream, 1, 103, b"def", 0);
    assert!(stream.fits(99));
    assert!(!stream.fits(0x8000_0000));
    stream.anchor(99);
    assert_eq!((stream.front(), stream.gap()), (&b""[..], Some(3)));
    insert(&mut stream, 2, 100, b"abc", 0);
    assert_eq!(stream.front(), b"abcdef");
}

#[test]
fn what_a_cut_frame_lacks_is_lost_unless_another_has_it() {
    let mut stream = Stream::default();
    stream.anchor(0);
    insert(&mut stream, 1, 1, b"ab", 4);
    assert_eq!(
        (stream.front(), stream.lost(), stream.gap()),
        (&b"ab"[..], 4, None)
    );
    insert(&mut stream, 2, 5, b"e", 0);
    assert_eq!((stream.lost(), stream.gap()), (2, Some(2)));
    insert(&mut stream, 3, 3, b"cd", 0);
    assert_eq!(
        (stream.front(), stream.lost(), stream.gap()),
        (&b"abcde"[..], 1, None)
    );
    stream.advance(6);
    assert_eq!(
        (stream.front(), stream.lost(), stream.gap()),
        (&b""[..], 0, None)
    );
}

#[test]
fn advancing_goes_over_gaps() {
    let mut stream = Stream::default();
    stream.anchor(0xFFFF_FFFF);
    insert(&mut stream, 1, 0, b"abc", 0);
    insert(&mut stream, 2, 6, b"ghi", 0);
    stream.advance(7);
    assert_eq!((stream.front(), stream.gap()), (&b"hi"[..], None));
}

#[test]
fn what_is_held_back_is_bounded() {
    let mut stream = Stream::default();
    stream.anchor(0);
    let mut sequence = 100;
    let mark = Mark::default();
    while stream.insert(mark, sequence, &[0; 1000], 0).is_ok() {
        sequence += 1000;
        assert!(sequence < 200_000, "it never reported that it is full");
    }
    assert!(stream.held <= MAX_HELD);
}

proptest! {
    /// Any segmentation, order and repetition gives the same bytes, also across the wrap of the
    /// sequence number.
    #[test]
    fn any_order_gives_the_same_bytes(
        data in prop::collection::vec(any::<u8>(), 1..400),
        base in prop_oneof![any::<u32>(), (0xFFFF_FF00u32..=0xFFFF_FFFF)],
        spans in prop::collection::vec((any::<prop::sample::Index>(), 1usize..60), 0..40),
        shuffled in any::<prop::sample::Index>(),
        with_syn in any::<bool>(),
    ) {
        // A cover of all bytes, and random spans over it.
        let step = 1 + shuffled.index(50);
        let mut spans: Vec<(usize, usize)> = spans
            .iter()
            .map(|(at, len)| (at.index(data.len()), *len))
            .chain((0..data.len()).step_by(step).map(|at| (at, step)))
            .map(|(at, len)| (at, (at + len).min(data.len())))
            .collect();
        let turn = shuffled.index(spans.len());
        spans.rotate_left(turn);
        if turn % 2 == 0 {
            spans.reverse();
        }
        let mut stream = Stream::default();
        if with_syn {
            stream.anchor(base.wrapping_sub(1));
        }
        for (frame, (from, to)) in spans.into_iter().enumerate() {
            let sequence = base.wrapping_add(u32::try_from(from).unwrap());
            insert(&mut stream, frame as u64, sequence, &data[from..to], 0);
        }
        prop_assert_eq!(stream.front(), data.as_slice());
        prop_assert_eq!(stream.gap(), None);
        prop_assert_eq!(stream.held, 0);
    }

    /// No sequence of operations panics or keeps more than the bound.
    #[test]
    fn any_operations_are_survived(
        operations in prop::collection::vec(
            (any::<u8>(), any::<u32>(), 0usize..2000, 0usize..5000), 0..200,
        ),
    ) {
        let mut stream = Stream::default();
        let bytes = [0; 2000];
        for (kind, sequence, len, missing) in operations {
            match kind {
                0..=9 => stream.anchor(sequence),
                10..=99 => {
                    let mark = Mark::default();
                    let _ = stream.insert(mark, sequence >> 14, &bytes[..len], missing);
                }
                100..=159 => {
                    let _ = stream.insert(Mark::default(), sequence, &bytes[..len], 0);
                }
                160..=209 => stream.advance(len),
                210..=229 => stream.advance(len << 20),
                _ => {
                    stream.fits(sequence);
                }
            }
            let _ = (stream.lost(), stream.gap(), stream.newest(), stream.is_floating());
            prop_assert!(stream.held <= MAX_HELD + stream.front().len() + 2000);
        }
    }
}
