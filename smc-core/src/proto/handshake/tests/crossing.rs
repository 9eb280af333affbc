use smc_wire::types::{OsType, Version};

use super::*;

fn decline(version: Version) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    let decline = Decline::new(version, DeclineCode::TIMEOUT_CL, OsType::LINUX);
    let len = decline.emit(&mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

/// Feeds a stream in chunks and returns what the application would see of it.
fn pass(stream: &[u8], chunk: usize) -> Option<Vec<u8>> {
    let mut filter = CrossingDecline::new(Instant::now());
    let mut at = 0;
    while filter.bytes_needed() > 0 && at < stream.len() {
        let n = filter.bytes_needed().min(chunk).min(stream.len() - at);
        assert_eq!(filter.handle_bytes(&stream[at..at + n]), n);
        at += n;
    }
    let mut seen = filter.release()?;
    seen.extend_from_slice(&stream[at..]);
    Some(seen)
}

#[test]
fn a_crossing_decline_vanishes_and_data_behind_it_stays() {
    for version in [Version::V1, Version::V2] {
        let mut stream = decline(version);
        stream.extend_from_slice(b"hello");
        for chunk in [1, 7, 100] {
            assert_eq!(pass(&stream, chunk).as_deref(), Some(&b"hello"[..]));
        }
    }
}

#[test]
fn only_one_decline_vanishes() {
    let one = decline(Version::V1);
    let stream = [one.clone(), one.clone()].concat();
    assert_eq!(pass(&stream, 100), Some(one));
}

#[test]
fn other_data_passes_untouched() {
    let mut wrong_trailer = decline(Version::V2);
    *wrong_trailer.last_mut().unwrap() ^= 1;
    let mut other_length = decline(Version::V1);
    other_length[6] = 30;
    let mut accept = decline(Version::V1);
    accept[4] = 2;
    let streams = [
        b"hello, world".to_vec(),
        b"\xe2\xd4!".to_vec(),
        wrong_trailer,
        other_length,
        accept,
    ];
    for stream in streams {
        for chunk in [1, 100] {
            assert_eq!(pass(&stream, chunk).as_ref(), Some(&stream));
        }
    }
}

#[test]
fn an_incomplete_decline_is_released_after_a_second_or_at_the_end() {
    let bytes = decline(Version::V2);
    let now = Instant::now();
    let mut filter = CrossingDecline::new(now);
    assert_eq!(filter.poll_timeout(), Some(now + SECOND));
    assert_eq!(filter.handle_bytes(&bytes[..20]), 20);
    assert_eq!(filter.release(), None);
    filter.handle_timeout(now + SECOND / 2);
    assert_eq!(filter.release(), None);
    filter.handle_timeout(now + SECOND);
    assert_eq!(filter.release().as_deref(), Some(&bytes[..20]));
    assert_eq!((filter.bytes_needed(), filter.poll_timeout()), (0, None));

    let mut filter = CrossingDecline::new(now);
    filter.handle_bytes(&bytes[..5]);
    filter.handle_closed();
    assert_eq!(filter.release().as_deref(), Some(&bytes[..5]));
}

#[test]
fn nothing_comes() {
    assert_eq!(pass(b"", 1), None, "not decided");
}
