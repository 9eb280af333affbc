//! Bytes as hex digits, in and out.

use std::fmt::Write as _;

/// Reads hex digits. Spaces, line breaks, colons and `0x` before a group are left out.
///
/// # Errors
///
/// States which character does not fit, or that a digit is left over.
pub(super) fn parse(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len() / 2);
    let mut high: Option<(u8, usize)> = None;
    let mut characters = text.chars().enumerate().peekable();
    let mut in_group = false;
    while let Some((at, character)) = characters.next() {
        if character.is_whitespace() || character == ':' {
            in_group = false;
            continue;
        }
        let may_be_prefix = !in_group && character == '0' && high.is_none();
        let is_x = |&(_, next): &(usize, char)| matches!(next, 'x' | 'X');
        if may_be_prefix && characters.next_if(is_x).is_some() {
            in_group = true;
            continue;
        }
        in_group = true;
        let digit = character
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok());
        let Some(digit) = digit else {
            let at = at + 1;
            return Err(format!(
                "{character:?} at character {at} is not a hex digit"
            ));
        };
        high = match high {
            None => Some((digit, at)),
            Some((high, _)) => {
                bytes.push(high << 4 | digit);
                None
            }
        };
    }
    match high {
        None if bytes.is_empty() => Err("there are no hex digits".to_owned()),
        None => Ok(bytes),
        Some((_, at)) => Err(format!(
            "a digit is missing: after {} whole bytes, the one at character {} is alone",
            bytes.len(),
            at + 1
        )),
    }
}

/// Lower-case digits without separators.
pub(super) fn compact(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A dump of 16 bytes per line, with offsets and printable characters.
pub(super) fn dump(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (index, line) in bytes.chunks(16).enumerate() {
        let _ = write!(text, "    {:04x} ", index * 16);
        for (column, byte) in line.iter().enumerate() {
            let space = if column == 8 { "  " } else { " " };
            let _ = write!(text, "{space}{byte:02x}");
        }
        let width = line.len() * 3 + usize::from(line.len() > 8);
        let _ = write!(text, "{:1$}", "", 49 - width + 2);
        text.extend(line.iter().map(|byte| match byte {
            0x20..=0x7E => char::from(*byte),
            _ => '.',
        }));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_and_prefixes_do_not_matter() {
        let expected = Ok(vec![0xFE, 0x06, 0xE2, 0xD4, 0xC3, 0xD9]);
        for text in [
            "fe06e2d4c3d9",
            "FE 06 E2 D4 C3 D9",
            "fe:06:e2:d4:c3:d9",
            "0xfe 0x06 0xe2 0xd4\n0xc3,0xd9".replace(',', " ").as_str(),
            "0xfe06e2d4c3d9",
            " f e06 e2d4 c3 d 9 ",
        ] {
            assert_eq!(parse(text), expected, "{text:?}");
        }
        assert_eq!(parse("00 0x00"), Ok(vec![0, 0]));
    }

    #[test]
    fn a_dump_has_sixteen_bytes_a_line() {
        let bytes: Vec<u8> = (0x3C..0x4E).collect();
        let expected = "    0000  3c 3d 3e 3f 40 41 42 43  44 45 46 47 48 49 4a 4b  <=>?@ABCDEFGHIJK\n    \
                        0010  4c 4d                                             LM\n";
        assert_eq!(dump(&bytes), expected);
    }
}
