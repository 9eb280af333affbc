//! Reading identifiers from text.

use core::fmt;

/// A piece of text that is not the identifier it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ParseError {
    /// The type that was wanted, in words, for example `MAC address`.
    pub expected: &'static str,
    /// Why the text is not one.
    pub kind: ParseErrorKind,
}

/// The cause inside a [`ParseError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ParseErrorKind {
    /// The text does not have the form of this identifier.
    Syntax,
    /// The number is too large, or a value that is never used.
    OutOfRange,
    /// The text is longer than the identifier can be, or empty.
    Length,
}

impl ParseError {
    pub(crate) const fn syntax(expected: &'static str) -> Self {
        Self {
            expected,
            kind: ParseErrorKind::Syntax,
        }
    }

    pub(crate) const fn range(expected: &'static str) -> Self {
        Self {
            expected,
            kind: ParseErrorKind::OutOfRange,
        }
    }

    pub(crate) const fn length(expected: &'static str) -> Self {
        Self {
            expected,
            kind: ParseErrorKind::Length,
        }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let problem = match self.kind {
            ParseErrorKind::Syntax => "malformed",
            ParseErrorKind::OutOfRange => "out of range",
            ParseErrorKind::Length => "wrong length",
        };
        write!(f, "not a {}: {problem}", self.expected)
    }
}

impl core::error::Error for ParseError {}

/// A number as people write it: `0x` and hex digits, or decimal digits.
pub(crate) fn number(text: &str, expected: &'static str) -> Result<u64, ParseError> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None => (text, 10),
    };
    digits_only(digits, radix, expected)?;
    u64::from_str_radix(digits, radix).map_err(|_| ParseError::range(expected))
}

/// A number that a type is made from.
pub(crate) fn number_as<N: TryFrom<u64>, T>(
    text: &str,
    expected: &'static str,
    make: impl FnOnce(N) -> Option<T>,
) -> Result<T, ParseError> {
    let number = N::try_from(number(text, expected)?).ok();
    number
        .and_then(make)
        .ok_or_else(|| ParseError::range(expected))
}

/// A number in hex digits without a prefix, in as many bits as the type has.
pub(crate) fn hex<N: TryFrom<u128>>(digits: &str, expected: &'static str) -> Result<N, ParseError> {
    digits_only(digits, 16, expected)?;
    let number = u128::from_str_radix(digits, 16).ok();
    number
        .and_then(|number| N::try_from(number).ok())
        .ok_or_else(|| ParseError::range(expected))
}

/// Refuses signs, underscores and emptiness, which `from_str_radix` would partly let through.
pub(crate) fn digits_only(
    digits: &str,
    radix: u32,
    expected: &'static str,
) -> Result<(), ParseError> {
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return Err(ParseError::syntax(expected));
    }
    Ok(())
}

/// `Display` as `0x` with a fixed number of hex digits, and `FromStr` for hex or decimal.
macro_rules! number_text {
    ($type:ident, $repr:ty, $width:literal, $what:literal, $from:expr) => {
        impl core::fmt::Display for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, concat!("{:#0", $width, "x}"), self.0)
            }
        }

        impl core::str::FromStr for $type {
            type Err = $crate::types::ParseError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                $crate::types::parse::number_as::<$repr, _>(text, $what, $from)
            }
        }
    };
}

pub(crate) use number_text;
