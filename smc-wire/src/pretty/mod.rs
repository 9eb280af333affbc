//! Messages as text and as fields, also broken ones.
//!
//! Everything here works on *bytes*, not on parsed messages: a truncated or malformed message is
//! shown as far as it goes, followed by what is wrong. Nothing is guessed; values without an
//! assigned meaning appear in hex, and reserved fields appear when they are not zero.
//!
//! * [`line()`] is one line per message, as a packet list shows it,
//! * [`tree()`] is one line per field: offset, bytes, name, value,
//! * [`describe`] calls a [`Visitor`] for every field, for output in other formats.
//!
//! ```
//! use smc_wire::pretty::{self, Family};
//!
//! let decline = [
//!     0xe2, 0xd4, 0xc3, 0xd9, 4, 0, 28, 0x18, // SMCR, DECLINE, 28 bytes, version 1, out of sync
//!     0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0xe2, 0xd4, 0xc3, 0xd9,
//! ];
//! assert_eq!(
//!     pretty::line(Family::Clc, &decline).to_string(),
//!     "DECLINE v1 len 28 0x04000000 (SYNCERR) out-of-sync peer 0000@00:00:00:00:00:00",
//! );
//! let tree = pretty::tree(Family::Clc, &decline[..18]).to_string();
//! assert!(tree.contains("diagnosis: 4 bytes needed at offset 16, 2 there"));
//! ```

mod clc;
mod dissector;
mod line;
mod llc;
mod option;
mod tree;
mod value;
mod visit;

pub use line::line;
pub use tree::tree;
pub use value::Value;
pub use visit::{Field, Group, Problem, Visitor};

use core::fmt;

use crate::cdc::direct::Block;
use crate::cdc::rdma::Padded;
use crate::cdc::{ByteOrder, CdcD, CdcR};
use dissector::Dissector;

/// What a piece of bytes is a message of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Family {
    /// The option area of a TCP header, or a single option.
    TcpOption,
    /// One CLC message; bytes behind its end are reported.
    Clc,
    /// One LLC message as a receive completion delivered it.
    Llc,
    /// One CDC message of SMC-R.
    CdcR,
    /// One CDC block of SMC-D, in the byte order of the machine it was found on.
    CdcD(ByteOrder),
}

/// A message as text, see [`line()`] and [`tree()`].
#[derive(Debug, Clone, Copy)]
pub struct Text<'a> {
    family: Family,
    bytes: &'a [u8],
    write: Write,
}

type Write = fn(&mut fmt::Formatter<'_>, Family, &[u8]) -> fmt::Result;

impl<'a> Text<'a> {
    const fn new(family: Family, bytes: &'a [u8], write: Write) -> Self {
        Self {
            family,
            bytes,
            write,
        }
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.write)(f, self.family, self.bytes)
    }
}

/// Calls a visitor for the fields of a message.
///
/// Fields come in the order of their offsets within a region; regions of CLC messages come in the
/// order of the protocol documents. When the bytes end too early, the field that does not fit is
/// reported with [`Problem::Missing`] and the rest of its region is left out. If a receiver would
/// refuse the message, [`Problem::Rejected`] comes last.
pub fn describe(family: Family, bytes: &[u8], visitor: &mut dyn Visitor) {
    let mut dissector = Dissector::new(bytes, visitor);
    match family {
        Family::TcpOption => option::dissect(&mut dissector),
        Family::Clc => clc::dissect(&mut dissector),
        Family::Llc => llc::dissect(&mut dissector),
        Family::CdcR => rdma_cdc(&mut dissector),
        Family::CdcD(order) => direct_cdc(&mut dissector, order),
    }
}

fn rdma_cdc(w: &mut Dissector<'_, '_>) {
    if w.fields::<CdcR>().is_some() && w.fields_from::<Padded>(0).is_some() {
        w.excess();
    }
    w.verdict(CdcR::parse(w.bytes));
}

fn direct_cdc(w: &mut Dissector<'_, '_>, order: ByteOrder) {
    w.order = Some(order);
    if w.fields::<Block>().is_some() {
        w.excess();
    }
    w.verdict(CdcD::parse(w.bytes, order));
}
