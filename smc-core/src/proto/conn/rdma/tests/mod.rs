use smc_wire::cdc::{CdcR, ProducerFlags, StateFlags};
use smc_wire::cursor::{Cursor, Ring};
use smc_wire::types::AlertToken;

use super::*;
use crate::device::{Piece, SENDS_MAX};
use crate::error::PeerMisbehaved;

mod arrivals;
mod captured;
mod failover;
mod reserved_byte;
mod simulation;
mod transmit;

const D: StateFlags = StateFlags::SENDING_DONE;
const C: StateFlags = StateFlags::CLOSED;
const A: StateFlags = StateFlags::ABORTED;
const NONE: StateFlags = StateFlags::empty();
const BLOCKED: ProducerFlags = ProducerFlags::WRITER_BLOCKED;
const ASKING: ProducerFlags = BLOCKED.union(ProducerFlags::UPDATE_REQUESTED);
const VALIDATION: ProducerFlags = ProducerFlags::FAILOVER_VALIDATION;

fn ring(size: u32) -> Ring {
    Ring::new(size).unwrap()
}

fn token() -> AlertToken {
    AlertToken::new(7).unwrap()
}

fn cursor(wrap: u16, count: u32) -> Cursor {
    Cursor { wrap, count }
}

/// A sender with a staging ring and a peer's ring of these sizes.
fn transmit(staging: u32, peer: u32) -> Transmit {
    Transmit::new(ring(staging), ring(peer), token(), 0, AUTOCORK)
}

/// Stages all of `count` and posts it, which has to give one CDC with payload.
fn send(transmit: &mut Transmit, count: u32) -> Post {
    assert_eq!(transmit.stage(count), count);
    let post = transmit.poll_post().unwrap();
    assert_eq!(post.payload(), count);
    assert_eq!(transmit.poll_post(), None);
    post
}

/// The only post that is due now.
fn only_post(transmit: &mut Transmit) -> Post {
    let post = transmit.poll_post().expect("a post is due");
    assert_eq!(transmit.poll_post(), None);
    post
}

/// Both posts of a failover: the validation, checked, and what follows.
fn moved(transmit: &mut Transmit, last_completed: u16) -> Post {
    let validation = transmit.poll_post().expect("a validation");
    assert_eq!(validation.payload(), 0);
    let before_that = last_completed.saturating_sub(1);
    assert_eq!(validation.cdc, CdcR::failover(before_that, token()));
    let full = transmit.poll_post().expect("a full CDC");
    assert!(!full.cdc.producer_flags.contains(VALIDATION));
    full
}
