use super::*;
use crate::error::DecodeErrorKind as Kind;

fn error_of(bytes: &[u8]) -> DecodeError {
    SmcOption::parse(bytes).unwrap_err()
}

#[test]
fn written_as_linux_does() {
    let mut buffer = [0xee; 12];
    assert_eq!(emit(&mut buffer, true), Ok(8));
    assert_eq!(buffer[..9], [1, 1, 0xfe, 6, 0xe2, 0xd4, 0xc3, 0xd9, 0xee]);
    assert_eq!(find(&buffer[..8]).map(|found| found.offset()), Some(2));
}

#[test]
fn short_form_when_space_is_short() {
    let mut buffer = [0; 7];
    assert_eq!(emit(&mut buffer, true), Ok(6));
    assert_eq!(buffer[..6], BYTES);
    let message = MessageKind::TcpOption;
    assert_eq!(
        emit(&mut buffer[..5], false),
        Err(EmitError::BufferTooSmall {
            message,
            needed: 6,
            got: 5
        })
    );
}

#[test]
fn found_among_others() {
    // MSS, SACK permitted, timestamps, NOP, window scale, then ours.
    let mut area = std::vec![
        2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 3, 3, 7
    ];
    area.extend(ALIGNED);
    let found = find(&area).unwrap();
    assert_eq!(
        (found.offset(), found.as_bytes(), found.extra()),
        (22, &BYTES[..], &[][..])
    );
}

#[test]
fn another_experiment_does_not_hide_ours() {
    let mut area = std::vec![0xfe, 6, 0xf9, 0x89, 1, 2];
    area.extend(BYTES);
    assert_eq!(find(&area).map(|found| found.offset()), Some(6));
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
    assert_eq!(
        error_of(&[0xfe]).kind,
        Kind::Truncated { needed: 6, got: 1 }
    );
    assert_eq!(
        error_of(&[253, 6, 0, 0]).kind,
        Kind::Value {
            expected: "254",
            got: 253
        }
    );
    assert_eq!(
        error_of(&[254, 4, 0, 0]).kind,
        Kind::LengthBelow { minimum: 6, got: 4 }
    );
    let odd = Kind::Value {
        expected: "an even number",
        got: 7,
    };
    assert_eq!(error_of(&[254, 7, 0xe2, 0xd4, 0xc3, 0xd9, 0]).kind, odd);
    assert_eq!(
        error_of(&[254, 8, 0xe2, 0xd4]).kind,
        Kind::Truncated { needed: 8, got: 4 }
    );
    let other = Kind::Value {
        expected: "0xe2d4c3d9",
        got: 0xe2d4_c3c4,
    };
    assert_eq!(error_of(&[254, 6, 0xe2, 0xd4, 0xc3, 0xc4]).kind, other);
}
