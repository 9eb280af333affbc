//! Values of arguments that several commands take.

/// A number of bytes, as 1048576, 1024K, 1M or 1MiB.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit {
        "" | "B" => 1,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        _ => return Err(format!("'{unit}' is none of the units K, M and G")),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| format!("'{text}' does not begin with a number"))?;
    number
        .checked_mul(unit)
        .ok_or_else(|| format!("'{text}' is too large"))
}

/// Permissions of a file.
pub(crate) fn mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("not permissions in octal, such as 0660".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("64000"), Ok(64_000));
        assert_eq!(size("16K"), Ok(16 << 10));
        assert_eq!(size("3GiB"), Ok(3 << 30));
        assert!(size("").is_err() && size("M").is_err() && size("1T").is_err());
        assert!(size("99999999999999999999").is_err() && size("99999999999999G").is_err());
    }

    #[test]
    fn modes_are_octal() {
        assert_eq!(mode("0666"), Ok(0o666));
        assert_eq!(mode("660"), Ok(0o660));
        for bad in ["", "0999", "rw", "1777"] {
            assert!(mode(bad).is_err(), "{bad}");
        }
    }
}
