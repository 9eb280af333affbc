//! Instructions that CDC takes, counted by callgrind: the same on a busy machine as on an idle one.

#![allow(
    missing_docs,
    unused_qualifications,
    clippy::unwrap_used,
    reason = "benchmark functions, and the expansion of macros"
)]

use std::hint::black_box;

use gungraun::prelude::*;
use smc_wire::cdc::{ByteOrder, CdcD, CdcR, ConsumerWord, ProducerWord};
use smc_wire::types::AlertToken;

const WORD: u64 = 0x0000_4000_0001_0000;

fn block() -> [u8; CdcD::LEN] {
    let mut block = [0; CdcD::LEN];
    block[8..16].copy_from_slice(&WORD.to_ne_bytes());
    block
}

fn message() -> CdcR {
    CdcR::new(1, AlertToken::new(7).unwrap())
}

#[library_benchmark]
fn producer_word_decode() -> ProducerWord {
    ProducerWord::from_ne(black_box(WORD))
}

#[library_benchmark]
#[bench::word(ProducerWord::from_ne(WORD))]
fn producer_word_encode(word: ProducerWord) -> u64 {
    black_box(word).to_ne()
}

#[library_benchmark]
fn consumer_word_decode() -> ConsumerWord {
    ConsumerWord::from_ne(black_box(WORD))
}

#[library_benchmark]
#[bench::word(ConsumerWord::from_ne(WORD))]
fn consumer_word_encode(word: ConsumerWord) -> u64 {
    black_box(word).to_ne()
}

#[library_benchmark]
#[bench::block(block())]
fn block_decode(block: [u8; CdcD::LEN]) -> CdcD {
    CdcD::from_bytes(black_box(&block), ByteOrder::Little)
}

#[library_benchmark]
#[bench::block(CdcD::from_bytes(&block(), ByteOrder::Little))]
fn block_encode(block: CdcD) -> [u8; CdcD::LEN] {
    black_box(&block).to_bytes(ByteOrder::Little)
}

#[library_benchmark]
#[bench::message(message().to_bytes())]
fn message_decode(message: [u8; CdcR::LEN]) -> bool {
    CdcR::parse(black_box(&message)).is_ok()
}

#[library_benchmark]
#[bench::message(message())]
fn message_encode(message: CdcR) -> [u8; CdcR::LEN] {
    black_box(&message).to_bytes()
}

library_benchmark_group!(
    name = cdc,
    benchmarks = [
        producer_word_decode,
        producer_word_encode,
        consumer_word_decode,
        consumer_word_encode,
        block_decode,
        block_encode,
        message_decode,
        message_encode
    ]
);

main!(library_benchmark_groups = cdc);
