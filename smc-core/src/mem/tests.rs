use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use super::region::PIECE;
use super::sync::Ordering;
use super::*;
use crate::{process, random};

#[test]
fn spans_that_pass_the_end_are_refused_and_change_nothing() {
    let region = Region::anonymous(64);
    assert!(region.copy_in(60, &[1; 5]).is_err());
    assert!(region.copy_in(usize::MAX, &[1; 5]).is_err());
    let mut out = [7; 5];
    assert!(region.copy_out(60, &mut out).is_err());
    assert_eq!(out, [7; 5]);
    let mut all = [1; 64];
    region.copy_out(0, &mut all).unwrap();
    assert_eq!(all, [0; 64]);
}

#[test]
fn words_must_be_aligned_and_inside() {
    let region = Region::anonymous(20);
    assert!(region.load(8, Ordering::Acquire).is_ok());
    assert!(region.load(4, Ordering::Acquire).is_err());
    assert!(region.load(16, Ordering::Acquire).is_err());
}

#[test]
fn a_part_shares_the_memory() {
    let region = Region::anonymous(64);
    let part = region.part(32, 32).unwrap();
    part.copy_in(0, b"hello").unwrap();
    let mut out = [0; 5];
    region.copy_out(32, &mut out).unwrap();
    assert_eq!(&out, b"hello");
    drop(region);
    part.copy_out(0, &mut out).unwrap();
    assert!(part.part(30, 3).is_err());
}

#[test]
fn long_data_is_copied_whole_at_any_offset_in_both_modes() {
    let data: Vec<u8> = (0..6 * PIECE + 5).map(|at| (at % 251) as u8).collect();
    for copy in [Region::copy_in, Region::copy_in_non_temporal] {
        for at in [0, 1, 24, 63, PIECE - 1] {
            for len in [1, 15, 64, 100, PIECE - 1, PIECE, PIECE + 1, data.len()] {
                let region = Region::anonymous(8 * PIECE);
                copy(&region, at, &data[..len]).unwrap();
                let mut out = vec![7; len + 1];
                region.copy_out(at, &mut out).unwrap();
                assert_eq!((&out[..len], out[len]), (&data[..len], 0));
                region.copy_out(0, &mut out[..at.min(len)]).unwrap();
                assert!(out[..at.min(len)].iter().all(|byte| *byte == 0));
            }
        }
        let region = Region::anonymous(PIECE);
        assert!(copy(&region, 1, &data[..PIECE]).is_err());
        let mut out = vec![7; PIECE];
        region.copy_out(0, &mut out).unwrap();
        assert!(out.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn non_temporal_writes_wrap_around_in_the_ring() {
    let ring = 6 * PIECE + 1;
    let element = Element::new(Region::anonymous(HEADER_LEN + ring)).unwrap();
    let data: Vec<u8> = (0..ring).map(|at| (at % 251) as u8).collect();
    element
        .write_with(CopyMode::NonTemporal, ring - 70, &data)
        .unwrap();
    let mut out = vec![0; ring];
    element.read(ring - 70, &mut out).unwrap();
    assert!(out == data);
    assert_eq!(element.producer().load(Ordering::Relaxed), 0);
    assert!(
        element
            .write_with(CopyMode::NonTemporal, ring, &data[..1])
            .is_err()
    );
}

/// The peer writes behind a guard that another thread reads, as both do with `TrustPeers`.
#[test]
fn a_guard_and_a_reservation_borrow_different_bytes_of_a_ring() {
    // SAFETY: there is no peer but this test, which borrows no byte twice.
    let trust = unsafe { TrustPeers::new() };
    let element = Element::new(Region::anonymous(HEADER_LEN + 16)).unwrap();
    let mut writer = RingWriter::new();
    let space = writer.slice_mut(&element, 0, 8, trust).unwrap();
    space.copy_from_slice(b"retained");
    element.producer().store(8, Ordering::Release);
    std::thread::scope(|scope| {
        let guard = element.slice(0, 8, trust).unwrap();
        scope.spawn(move || assert_eq!(guard, b"retained"));
        // As long as it was requested, up to the end of the ring.
        let space = writer.slice_mut(&element, 8, 16, trust).unwrap();
        assert_eq!(space.len(), 8);
        space.fill(b'.');
        element.producer().store(16, Ordering::Release);
    });
    let mut read = [0; 16];
    element.read(0, &mut read).unwrap();
    assert_eq!(&read, b"retained........");
    assert!(writer.slice_mut(&element, 16, 1, trust).is_err());
    assert!(element.slice(0, 17, trust).is_err());
}

#[test]
fn memory_that_is_not_there_is_an_error_and_pages_are_not_shared() {
    let error = Region::try_anonymous(isize::MAX as usize + 1).unwrap_err();
    let error = std::io::Error::from(error);
    assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory);
    let regions = [(); 2].map(|()| Region::try_anonymous(100).unwrap());
    for region in &regions {
        assert_eq!(region.as_ptr().as_ptr().addr() % 4096, 0);
        let mut all = [1; 100];
        region.copy_out(0, &mut all).unwrap();
        assert_eq!(all, [0; 100]);
    }
    let [one, other] = &regions;
    assert_ne!(one.as_ptr(), other.as_ptr());
}

#[test]
fn a_child_process_draws_other_numbers_than_its_parent() {
    let numbers = || (0..100).map(|_| random::bytes::<16>());
    // From here on this thread has buffered bytes.
    random::bytes::<16>().unwrap();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let mut child = Command::new("true");
    // SAFETY: between `fork` and `exec` the child draws numbers and writes to a socket, which are
    // system calls and copies: this thread has its buffer, so that nothing has to be allocated.
    unsafe {
        child.pre_exec(move || numbers().try_for_each(|number| (&theirs).write_all(&number?)))
    };
    assert!(child.status().unwrap().success());
    drop(child);
    let mut in_child = Vec::new();
    ours.read_to_end(&mut in_child).unwrap();
    let in_child: BTreeSet<_> = in_child.chunks_exact(16).map(<[u8]>::to_vec).collect();
    assert_eq!(in_child.len(), 100);
    for number in numbers() {
        assert!(!in_child.contains(number.unwrap().as_slice()));
    }
}

#[test]
fn a_child_process_reads_its_own_number() {
    // From here on this thread has it in memory.
    let parent = process::current();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let mut command = Command::new("true");
    let number = || process::current().as_raw_nonzero().get().to_ne_bytes();
    // SAFETY: between `fork` and `exec` the child reads its number and writes to a socket, which
    // are system calls and copies: this thread has the memory, so that nothing has to be allocated.
    unsafe { command.pre_exec(move || (&theirs).write_all(&number())) };
    let mut child = command.spawn().unwrap();
    let mut in_child = [0; 4];
    ours.read_exact(&mut in_child).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(u32::from_ne_bytes(in_child), child.id());
    assert_eq!(process::current(), parent);
}
