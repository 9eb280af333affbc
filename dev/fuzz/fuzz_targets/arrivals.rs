//! One end of a connection of SMC-R whose peer sends any CDC, while the application writes, reads
//! and closes, and posts complete or not.

#![no_main]

use libfuzzer_sys::fuzz_target;
use smc_core::device::SENDS_MAX;
use smc_core::proto::conn::rdma::{AUTOCORK, Arrival, Arrivals, CdcUpdate, Post, Transmit};
use smc_core::proto::conn::{Closing, RecvCursors};
use smc_fuzz::Input;
use smc_wire::cdc::{CdcR, ProducerFlags, StateFlags};
use smc_wire::cursor::{Cursor, Ring};
use smc_wire::types::AlertToken;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let [staging, local, peer] = [0; 3].map(|_| {
        let size = u32::from(input.u16()) + 1;
        Ring::new(size).expect("not zero")
    });
    let token = AlertToken::new(7).expect("not zero");
    let autocork = if input.flag() { AUTOCORK } else { 0 };
    let base = u64::from(peer.size()) * u64::from(input.byte());
    let mut end = End {
        transmit: Transmit::new(staging, peer, token, base, autocork),
        arrivals: Arrivals::new(local, peer),
        half: RecvCursors::new(local),
        closing: Closing::default(),
        rings: [staging, local, peer],
        base,
        posted: Vec::new(),
        last: CdcR {
            producer_flags: ProducerFlags::empty(),
            ..CdcR::failover(0, token)
        },
    };
    if input.flag() {
        end.transmit.reserve_byte();
    }
    while !input.is_empty() && end.step(&mut input) {
        end.post();
        end.check();
    }
    // The connection is aborted, and everything that was posted completes.
    if let Some(flags) = end.closing.abort() {
        end.transmit.set_flags(flags);
    }
    let _ = end.closing.close(true);
    end.transmit.abort();
    for _ in 0..4 {
        end.post();
        for post in std::mem::take(&mut end.posted) {
            end.transmit.handle_completed(post.id);
        }
    }
    assert!(end.transmit.is_idle(), "{:#?}", end.transmit);
    assert!(end.closing.is_removable(), "{:?}", end.closing);
});

struct End {
    transmit: Transmit,
    arrivals: Arrivals,
    half: RecvCursors,
    closing: Closing,
    /// Staging ring, local ring and the peer's ring.
    rings: [Ring; 3],
    /// The offset of the element in the peer's RMB.
    base: u64,
    posted: Vec<Post>,
    /// The CDC that the peer has sent last.
    last: CdcR,
}

impl End {
    /// False when the connection has to be aborted.
    fn step(&mut self, input: &mut Input<'_>) -> bool {
        let step = input.byte();
        match step & 15 {
            // A CDC near to the last one, which an honest peer could have sent.
            0..=5 => {
                let [_, local, peer] = self.rings;
                let mut cdc = self.last;
                cdc.sequence = cdc.sequence.wrapping_add(u16::from(step >> 6));
                cdc.producer = local.advance(cdc.producer, input.u16().into());
                if step & 16 != 0 {
                    cdc.consumer = peer.advance(cdc.consumer, input.byte().into());
                }
                if step & 32 != 0 {
                    cdc.producer_flags = ProducerFlags::from_bits_retain(input.byte());
                    cdc.state_flags |= StateFlags::from_bits_retain(input.byte() & input.byte());
                }
                return self.handle(cdc);
            }
            6 => {
                let mut cursor = || Cursor {
                    wrap: input.u16(),
                    count: input.u32(),
                };
                let (producer, consumer) = (cursor(), cursor());
                let cdc = CdcR {
                    sequence: input.u16(),
                    producer,
                    consumer,
                    producer_flags: ProducerFlags::from_bits_retain(input.byte()),
                    state_flags: StateFlags::from_bits_retain(input.byte()),
                    ..self.last
                };
                return self.handle(cdc);
            }
            7 | 8 => {
                let count = u32::from(input.u16()).min(self.transmit.space());
                // No bytes are accepted behind the end of a stream.
                let staged = self.transmit.stage(count);
                assert!(staged == count || staged == 0);
            }
            9 => {
                let count = self.half.consume(input.u16().into());
                assert!(count <= self.rings[1].size());
                if step & 16 != 0 || self.half.is_update_due(step & 32 != 0) {
                    self.transmit.set_consumer(self.half.confirm());
                }
            }
            10 if !self.posted.is_empty() => {
                let at = input.below(self.posted.len());
                // And all before it.
                let post = self.posted.drain(..=at).next_back();
                let freed = post.map_or(0, |post| self.transmit.handle_completed(post.id));
                assert!(freed <= self.rings[0].size());
            }
            11 => {
                self.transmit.failover();
                self.posted.clear();
            }
            12 => match step >> 4 & 3 {
                0 => self.transmit.uncork(),
                1 => self.transmit.probe(),
                2 => self.transmit.handle_peer_moved(),
                _ => self.arrivals.give_up(),
            },
            13 => {
                let flags = match step >> 4 & 3 {
                    0 => self.closing.shutdown_write(),
                    1 => self.closing.shutdown_both(step >> 6 & 1 != 0),
                    _ => self.closing.close(step >> 6 & 1 != 0),
                };
                flags
                    .into_iter()
                    .for_each(|flags| self.transmit.set_flags(flags));
            }
            14 => self.transmit.abort_after_data(),
            _ => {
                if let Some(post) = self.transmit.poll_post() {
                    self.check_post(&post);
                    self.transmit.cancel_post();
                }
            }
        }
        true
    }

    /// Handles a CDC as a stream does. False when the peer has broken the rules.
    fn handle(&mut self, cdc: CdcR) -> bool {
        let update: CdcUpdate = match self.arrivals.handle(&cdc) {
            Ok(Arrival::Update(update)) => update,
            Ok(Arrival::Validated) => {
                self.transmit.handle_peer_moved();
                return true;
            }
            Ok(_) => return true,
            Err(_) => return false,
        };
        self.last = cdc;
        assert!(update.arrived <= self.rings[1].size());
        assert!(update.freed <= self.rings[2].size());
        if self.half.handle_producer(update.producer.cursor).is_err() {
            return false;
        }
        if self.transmit.handle_peer(update.consumer.cursor).is_err() {
            return false;
        }
        self.closing.handle_peer(update.consumer.state_flags);
        if update
            .state
            .intersects(StateFlags::CLOSED | StateFlags::ABORTED)
        {
            self.transmit.handle_peer_closed();
        }
        if update.uncork {
            self.transmit.uncork();
        }
        true
    }

    fn post(&mut self) {
        while let Some(post) = self.transmit.poll_post() {
            self.check_post(&post);
            self.posted.push(post);
            assert!(
                self.posted.len() <= SENDS_MAX,
                "more posts than a link takes"
            );
        }
    }

    /// Writes stay within the peer's ring, and are read from within the staging ring.
    fn check_post(&self, post: &Post) {
        let [staging, _, peer] = self.rings;
        let mut payload = 0;
        for write in post.writes() {
            let end = self.base + u64::from(peer.size());
            assert!(write.at >= self.base && write.at + u64::from(write.len()) <= end);
            for piece in write.pieces {
                let end = u64::from(piece.at) + u64::from(piece.len);
                assert!(end <= u64::from(staging.size()));
            }
            payload += write.len();
        }
        assert_eq!(payload, post.payload());
        assert_eq!(CdcR::parse(&post.cdc.to_bytes()), Ok(post.cdc));
    }

    fn check(&self) {
        assert!(self.half.readable() + self.half.unconfirmed() <= self.rings[1].size());
        assert!(self.transmit.space() <= self.rings[0].size());
        assert!(self.transmit.peer_space() <= self.rings[2].size());
        assert!(self.half.at() < self.rings[1].size());
    }
}
