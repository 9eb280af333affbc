//! Addresses of a proxy.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use smc::Target;

use crate::values;

/// Where a proxy accepts connections, or carries them to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// An SMC stream.
    Smc(Target),
    /// A TCP connection: `HOST:PORT`.
    Tcp(String),
    /// A UNIX socket with a path.
    Unix(PathBuf),
    /// A UNIX socket with a name that is no path.
    Abstract(String),
}

impl Address {
    pub(super) fn is_smc(&self) -> bool {
        matches!(self, Self::Smc(_))
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("tcp", rest)) => values::target(rest).map(|_| Self::Tcp(rest.to_owned())),
            Some(("smc", rest)) => values::target(rest).map(Self::Smc),
            Some(("unix", rest)) => match rest.strip_prefix('@') {
                Some("") => Err("no name after unix:@".to_owned()),
                Some(name) => Ok(Self::Abstract(name.to_owned())),
                None if rest.is_empty() => Err("no path after unix:".to_owned()),
                None => Ok(Self::Unix(rest.into())),
            },
            _ => values::target(text).map(Self::Smc).map_err(|_| {
                "none of [smc:]HOST:PORT, tcp:HOST:PORT, unix:PATH and unix:@NAME".to_owned()
            }),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Smc(Target::Addr(addr)) => write!(f, "smc:{addr}"),
            Self::Smc(Target::Name(host, port)) => write!(f, "smc:{host}:{port}"),
            Self::Smc(target) => write!(f, "smc:{target:?}"),
            Self::Tcp(target) => write!(f, "tcp:{target}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Abstract(name) => write!(f, "unix:@{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_kind_is_that_of_a_stream() {
        for (text, written) in [
            ("127.0.0.1:80", "smc:127.0.0.1:80"),
            ("smc:host:80", "smc:host:80"),
            ("[::1]:80", "smc:[::1]:80"),
            ("tcp:host:80", "tcp:host:80"),
            ("unix:a/b", "unix:a/b"),
            ("unix:@name", "unix:@name"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), written);
            assert_eq!(written.parse(), Ok(address));
        }
    }

    #[test]
    fn what_is_incomplete_is_refused() {
        for text in [
            "",
            "host",
            "tcp:80",
            "smc:host",
            "unix:",
            "unix:@",
            "udp:host:80",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
