//! Values of arguments that several commands take.

use std::net::Ipv6Addr;
use std::time::Duration;

use smc::{IntoTarget as _, Target};

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

/// A time in seconds, as 5 or 0.5.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok();
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| "not a number of seconds, such as 5 or 0.5".to_owned())
}

/// As [`seconds`], and more than none.
pub(crate) fn some_seconds(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        Duration::ZERO => Err("has to be more than 0 seconds".to_owned()),
        time => Ok(time),
    }
}

/// The address of a TCP socket, by number or name.
pub(crate) fn target(text: &str) -> Result<Target, String> {
    match text.into_target() {
        // No host name has a colon: it is an IPv6 address without brackets, or a kind of address
        // that the command does not know.
        Target::Name(host, _) if host.contains(':') => Err(NO_TARGET.to_owned()),
        Target::Invalid(_) => Err(NO_TARGET.to_owned()),
        target => Ok(target),
    }
}

/// Where to listen: as [`target`], or a port of all addresses.
pub(crate) fn listening(text: &str) -> Result<Target, String> {
    match text.parse() {
        Ok(port) => Ok(Target::Addr((Ipv6Addr::UNSPECIFIED, port).into())),
        Err(_) => target(text).map_err(|_| "not PORT or HOST:PORT, such as 4000".to_owned()),
    }
}

const NO_TARGET: &str = "not HOST:PORT, such as 127.0.0.1:80 or [::1]:80";

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

    #[test]
    fn times_are_in_seconds() {
        assert_eq!(seconds("5"), Ok(Duration::from_secs(5)));
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        for bad in ["", "-1", "5s", "NaN", "inf"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_have_a_port() {
        assert_eq!(target("[::1]:80"), Ok("[::1]:80".into_target()));
        for bad in ["host", "80", ":80", "host:", "host:99999", "::1:80"] {
            assert!(target(bad).is_err(), "{bad}");
        }
        assert_eq!(listening("80"), target("[::]:80"));
        assert_eq!(listening("[::1]:80"), target("[::1]:80"));
        assert!(listening("99999").is_err() && listening("host").is_err());
    }
}
