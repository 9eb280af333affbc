//! CDC: connection data control, the cursors and flags that accompany payload.
//!
//! The same fields exist in two forms. For SMC-R [`CdcR`] is a 44-byte message, big-endian, sent
//! on the queue pair after the payload. For SMC-D [`CdcD`] is a 32-byte block at the start of the
//! DMB element, in the byte order of the machine; implementations over shared memory store its two
//! significant 64-bit words, [`ProducerWord`] and [`ConsumerWord`], one after the other.
//!
//! In `smc-core`, `Transmit` fills a [`CdcR`] (`proto/conn/rdma/transmit.rs`) and `Arrivals` reads
//! it (`proto/conn/rdma/arrivals.rs`). Streams over SMC-D use the two words; the header of
//! `smc-wire/src/cdc/direct.rs` names the files that store and load them. [`CdcD`] is for tools.

pub(crate) mod direct;
mod flags;
pub(crate) mod rdma;

pub use direct::{ByteOrder, CdcD, ConsumerWord, ProducerWord};
pub use flags::{ProducerFlags, StateFlags};
pub use rdma::CdcR;

#[cfg(test)]
mod tests;
