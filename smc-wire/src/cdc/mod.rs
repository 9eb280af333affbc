//! CDC: connection data control, the cursors and flags that accompany payload.
//!
//! The same fields exist in two forms. For SMC-R [`CdcR`] is a 44-byte message, big-endian, sent
//! on the queue pair after the payload. For SMC-D [`CdcD`] is a 32-byte block at the start of the
//! DMB element, in the byte order of the machine; implementations over shared memory store its two
//! significant 64-bit words, [`ProducerWord`] and [`ConsumerWord`], one after the other.
//!
//! Each layout is stated once: by [`CdcR`] and by the block of [`CdcD`], from which offsets and
//! words are derived. What fills and reads the fields is listed in `docs/architecture.md`, under
//! "To change something". [`CdcD`] is for tools.

pub(crate) mod direct;
mod flags;
pub(crate) mod rdma;

pub use direct::{ByteOrder, CdcD, ConsumerWord, ProducerWord};
pub use flags::{ProducerFlags, StateFlags};
pub use rdma::CdcR;

#[cfg(test)]
mod tests;
