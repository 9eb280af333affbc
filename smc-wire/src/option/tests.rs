use super::*;
use crate::error::DecodeErrorKind as Kind;

#[test]
fn found_among_others() {
    // MSS, SACK permitted, timestamps, NOP, window scale, then ours.
    let mut area = std::vec![
        2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 3, 3, 7
    ];
    area.extend(ALIGNED);
    let found = find(&area).unwrap();
    assert_eq!(
        (found.offset, found.bytes, found.extra()),
        (22, &BYTES[..], &[][..])
    );
}

#[test]
fn another_experiment_does_not_hide_ours() {
    let mut area = std::vec![0xfe, 6, 0xf9, 0x89, 1, 2];
    area.extend(BYTES);
    assert_eq!(find(&area).map(|found| found.offset), Some(6));
}

#[test]
fn extra_data_is_tolerated_if_the_length_is_even() {
    let area = [0xfe, 8, 0xe2, 0xd4, 0xc3, 0xd9, 1, 2];
    assert_eq!(
        find(&area).map(|found| found.extra().to_vec()),
        Some(std::vec![1, 2])
    );
    let odd = [0xfe, 7, 0xe2, 0xd4, 0xc3, 0xd9, 1];
    assert_eq!(find(&odd), None);
}

#[test]
fn not_looked_for_behind_the_end_of_the_list() {
    let mut area = std::vec![1, 0];
    area.extend(BYTES);
    assert_eq!(find(&area), None);
}

#[test]
fn broken_lists_contain_no_option() {
    for broken in [
        &[][..],
        &[2],
        &[2, 0, 1, 1],
        &[2, 1, 1],
        &[2, 9, 1],
        &[0xfe, 6, 0xe2, 0xd4],
    ] {
        assert_eq!(find(broken), None, "{broken:?}");
    }
}

#[test]
fn each_rule_has_its_error() {
    let value = |expected, got| Kind::Value { expected, got };
    for (bytes, kind) in [
        (&[0xfe][..], Kind::Truncated { needed: 6, got: 1 }),
        (&[253, 6, 0, 0], value("254", 253)),
        (&[254, 4, 0, 0], Kind::LengthBelow { minimum: 6, got: 4 }),
        (
            &[254, 7, 0xe2, 0xd4, 0xc3, 0xd9, 0],
            value("an even number", 7),
        ),
        (&[254, 8, 0xe2, 0xd4], Kind::Truncated { needed: 8, got: 4 }),
        (
            &[254, 6, 0xe2, 0xd4, 0xc3, 0xc4],
            value("0xe2d4c3d9", 0xe2d4_c3c4),
        ),
    ] {
        assert_eq!(SmcOption::parse(bytes).unwrap_err().kind, kind, "{bytes:?}");
    }
}
