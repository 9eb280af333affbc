//! The items of a message that the printer reports.

use thiserror::Error;

use super::Value;
use crate::DecodeError;

/// Receives the fields of a message from [`describe`](super::describe).
///
/// Names are in `snake_case` and unique among what one group contains directly, counting fields and
/// groups together, with one exception: the elements of a list share a name, follow each other and
/// carry an index. That maps onto JSON objects and arrays without further knowledge.
pub trait Visitor {
    /// A group begins; what follows up to the matching [`leave`](Self::leave) is inside of it.
    fn enter(&mut self, group: &Group);

    /// A field.
    fn field(&mut self, field: &Field<'_>);

    /// The innermost group ends.
    fn leave(&mut self);

    /// Something is wrong with the message.
    fn problem(&mut self, problem: &Problem);
}

/// Fields that belong together: a region of a message or one element of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Group {
    /// Name of the region or of the list.
    pub name: &'static str,
    /// Position in the list, from 0, if it is an element of one.
    pub index: Option<usize>,
    /// Where it begins, in bytes from the start of the message.
    pub offset: usize,
}

/// One field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Field<'a> {
    /// Name of the field or of the list.
    pub name: &'static str,
    /// Position in the list, from 0, if it is an element of one.
    pub index: Option<usize>,
    /// Where it begins, in bytes from the start of the message.
    pub offset: usize,
    /// The bytes it lies in; their number is its length.
    pub bytes: &'a [u8],
    /// For fields smaller than a byte: the bits of that byte.
    pub mask: Option<u8>,
    /// Its value.
    pub value: Value<'a>,
    /// A remark for display.
    pub note: Option<&'static str>,
}

/// An error in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Problem {
    /// The bytes end before or inside of a field.
    #[error("{field}: {needed} bytes needed at offset {offset}, {available} there")]
    Missing {
        /// The field.
        field: &'static str,
        /// Where it begins.
        offset: usize,
        /// Bytes it takes.
        needed: usize,
        /// Bytes of it that are there.
        available: usize,
    },
    /// There are bytes behind the end of the message.
    #[error("{len} bytes behind the end of the message at offset {offset}")]
    Excess {
        /// Where they begin.
        offset: usize,
        /// How many there are.
        len: usize,
    },
    /// A field contradicts the rest of the message.
    #[error("{field} at offset {offset} is {got}, the message has {expected}")]
    Contradiction {
        /// The field.
        field: &'static str,
        /// Where it begins.
        offset: usize,
        /// The value that would agree with the rest.
        expected: u64,
        /// The value found.
        got: u64,
    },
    /// A receiver refuses the message.
    #[error("receivers refuse this: {0}")]
    Rejected(DecodeError),
}
