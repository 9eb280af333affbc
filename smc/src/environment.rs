//! Settings of the default endpoint by environment variables.

use std::ffi::OsString;
use std::fmt;
#[cfg(test)]
use std::net::SocketAddr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;
use std::time::Duration;

use smc_wire::size::SizeCode;

use crate::config::{Policy, PolicyRule};
use crate::error::OsError;

/// What the environment of the process sets for the default endpoint: see
/// [`environment`](crate::manual::environment).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    policy: Vec<PolicyEntry>,
    pub(crate) recv_buffer: Option<usize>,
    pub(crate) polling: Option<Duration>,
    pub(crate) socket_reuse: Option<bool>,
}

impl Environment {
    /// That of the process when this returned one first.
    ///
    /// # Errors
    ///
    /// For lack of descriptors or memory, without which it is unknown whose environment it is.
    pub(crate) fn of_process() -> Result<&'static Self, OsError> {
        static READ: OnceLock<Environment> = OnceLock::new();
        if let Some(environment) = READ.get() {
            return Ok(environment);
        }
        let is_elevated = smc_ipc::runtime_dir::is_elevated()?;
        Ok(READ.get_or_init(|| {
            if is_elevated {
                return Self::default();
            }
            let (environment, invalid) = Self::parse(|name| std::env::var_os(name));
            for line in &invalid {
                report(line);
            }
            environment
        }))
    }

    /// The settings, and the variables that have no effect.
    fn parse(get: impl Fn(&str) -> Option<OsString>) -> (Self, Vec<InvalidVariable>) {
        let mut invalid = Vec::new();
        let mut environment = Self::default();
        let mut read = |name: &'static str, parse: &mut dyn FnMut(&str) -> Result<(), String>| {
            let Some(value) = get(name).filter(|value| !value.is_empty()) else {
                return;
            };
            let parsed = match value.to_str() {
                Some(text) => parse(text.trim()),
                None => Err("not UTF-8".to_owned()),
            };
            if let Err(problem) = parsed {
                let value = value.to_string_lossy().into_owned();
                invalid.push(InvalidVariable {
                    name,
                    value,
                    problem,
                });
            }
        };
        read("SMC_POLICY", &mut |text| {
            environment.policy = policies(text)?;
            Ok(())
        });
        read("SMC_RECV_BUFFER", &mut |text| {
            environment.recv_buffer = Some(size(text)?);
            Ok(())
        });
        read("SMC_POLLING", &mut |text| {
            environment.polling = Some(duration(text)?);
            Ok(())
        });
        read("SMC_SOCKET_REUSE", &mut |text| {
            environment.socket_reuse = Some(switch(text)?);
            Ok(())
        });
        (environment, invalid)
    }

    /// The policy of the default endpoint.
    pub(crate) fn policy_rule(&'static self) -> PolicyRule {
        match self.policy.as_slice() {
            [] => PolicyRule::Fixed(Policy::default()),
            [entry] if entry.applies_to_all() => PolicyRule::Fixed(entry.policy),
            _ => PolicyRule::Environment(self),
        }
    }

    /// The policy for this address. Entries with a port apply to destinations only.
    pub(crate) fn policy(&self, ip: IpAddr, port: Option<u16>) -> Policy {
        // As a destination it is the own host.
        let ip = match ip.to_canonical() {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let entry = self.policy.iter().find(|entry| entry.applies_to(ip, port));
        entry.map_or_else(Policy::default, |entry| entry.policy)
    }

    /// The policy for UNIX sockets, of the first entry without an address.
    pub(crate) fn policy_of_unix(&self) -> Policy {
        let entry = self.policy.iter().find(|entry| entry.applies_to_all());
        entry.map_or_else(Policy::default, |entry| entry.policy)
    }
}

/// A variable with a value that has no meaning.
#[derive(Debug)]
struct InvalidVariable {
    name: &'static str,
    value: String,
    problem: String,
}

impl fmt::Display for InvalidVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            value,
            problem,
        } = self;
        write!(f, "{name}={value:?} has no effect: {problem}")
    }
}

fn report(invalid: &InvalidVariable) {
    #[cfg(feature = "tracing")]
    if ::tracing::dispatcher::has_been_set() {
        warn!("environment variable is invalid", variable = invalid);
        return;
    }
    use std::io::Write as _;
    // Without standard error it cannot be reported.
    let _unseen = writeln!(std::io::stderr(), "smc: {invalid}");
}

/// An entry of `SMC_POLICY`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PolicyEntry {
    network: Option<(IpAddr, u8)>,
    port: Option<u16>,
    policy: Policy,
}

impl PolicyEntry {
    fn applies_to_all(&self) -> bool {
        self.network.is_none() && self.port.is_none()
    }

    fn applies_to(&self, ip: IpAddr, port: Option<u16>) -> bool {
        let network = self
            .network
            .is_none_or(|(network, prefix)| contains(network, prefix, ip));
        network && (self.port.is_none() || self.port == port)
    }
}

/// Whether the first bits of both are the same.
fn contains(network: IpAddr, prefix: u8, ip: IpAddr) -> bool {
    let (network, ip, len) = match (network, ip) {
        (IpAddr::V4(network), IpAddr::V4(ip)) => {
            (u128::from(network.to_bits()), u128::from(ip.to_bits()), 32)
        }
        (IpAddr::V6(network), IpAddr::V6(ip)) => (network.to_bits(), ip.to_bits(), 128),
        _ => return false,
    };
    let others = u32::saturating_sub(len, prefix.into());
    (network ^ ip).checked_shr(others).unwrap_or(0) == 0
}

fn policies(text: &str) -> Result<Vec<PolicyEntry>, String> {
    text.split(',').map(|entry| policy(entry.trim())).collect()
}

fn policy(entry: &str) -> Result<PolicyEntry, String> {
    let (place, policy) = match entry.rsplit_once('=') {
        Some((place, policy)) => (Some(place.trim()), policy.trim()),
        None => (None, entry),
    };
    let policy = [Policy::Prefer, Policy::Require, Policy::Never]
        .into_iter()
        .find(|known| known.name() == policy)
        .ok_or_else(|| format!("{policy:?} is none of prefer, require and never"))?;
    let (network, port) = match place {
        Some(place) => destination(place).ok_or_else(|| {
            format!("{place:?} is no address, network or port such as 10.0.0.0/8, [::1]:80 or :443")
        })?,
        None => (None, None),
    };
    Ok(PolicyEntry {
        network,
        port,
        policy,
    })
}

/// A network, as an address with the length of a prefix or without, and a port.
type Destination = (Option<(IpAddr, u8)>, Option<u16>);

fn destination(text: &str) -> Option<Destination> {
    if let Some(network) = network(text) {
        return Some((Some(network), None));
    }
    let (host, port) = text.rsplit_once(':')?;
    let port = Some(port.parse().ok()?);
    let host = match host.strip_prefix('[') {
        Some(host) => host.strip_suffix(']')?,
        None if host.is_empty() => return Some((None, port)),
        // IPv6 without brackets.
        None if host.contains(':') => return None,
        None => host,
    };
    Some((Some(network(host)?), port))
}

fn network(text: &str) -> Option<(IpAddr, u8)> {
    let (ip, prefix) = match text.split_once('/') {
        Some((ip, prefix)) => (ip, Some(prefix)),
        None => (text, None),
    };
    let ip: IpAddr = ip.parse().ok()?;
    let longest = if ip.is_ipv4() { 32 } else { 128 };
    let prefix: u8 = prefix.map_or(Ok(longest), str::parse).ok()?;
    match (ip, ip.to_canonical()) {
        _ if prefix > longest => None,
        // Part of it would be addresses of IPv4, as `::/0` has them.
        (IpAddr::V6(_), IpAddr::V4(v4)) => Some((v4.into(), prefix.checked_sub(MAPPED_PREFIX)?)),
        _ => Some((ip, prefix)),
    }
}

/// The length of the prefix of IPv4-mapped addresses.
const MAPPED_PREFIX: u8 = 96;

/// A number of bytes.
fn size(text: &str) -> Result<usize, String> {
    let (number, unit) = number_and_unit(text)?;
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err(format!("{unit:?} is none of the units K, M and G")),
    };
    let bytes = number.checked_mul(1 << shift);
    let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
    bytes
        .filter(|bytes| SizeCode::for_len(*bytes).is_some())
        .ok_or_else(|| "more than 512M".to_owned())
}

fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = number_and_unit(text)?;
    match unit {
        "" if number == 0 => Ok(Duration::ZERO),
        "ns" => Ok(Duration::from_nanos(number)),
        "us" => Ok(Duration::from_micros(number)),
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        _ => Err(format!("{unit:?} is none of the units ns, us, ms and s")),
    }
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("neither on nor off".to_owned()),
    }
}

fn number_and_unit(text: &str) -> Result<(u64, &str), String> {
    let digits = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    match number.parse() {
        Ok(number) => Ok((number, unit.trim_start())),
        Err(_) => Err("it does not begin with a number".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(name: &str, value: &str) -> (Environment, Vec<InvalidVariable>) {
        Environment::parse(|asked| (asked == name).then(|| value.into()))
    }

    fn valid(name: &str, value: &str) -> Environment {
        let (environment, invalid) = parsed(name, value);
        assert!(invalid.is_empty(), "{invalid:?}");
        environment
    }

    fn of_destination(environment: &Environment, addr: &str) -> Policy {
        let addr: SocketAddr = addr.parse().unwrap();
        environment.policy(addr.ip(), Some(addr.port()))
    }

    fn problem(name: &str, value: &str) -> String {
        let (environment, invalid) = parsed(name, value);
        assert_eq!(environment, Environment::default());
        assert_eq!(invalid.len(), 1);
        invalid[0].to_string()
    }

    #[test]
    fn the_first_policy_that_applies_to_an_address_counts() {
        let list =
            "127.0.0.1:5432=require, :443=never, 10.0.0.0/8=never, [fd00::/8]:80=never, prefer";
        let environment = valid("SMC_POLICY", list);
        for (addr, policy) in [
            ("127.0.0.1:5432", Policy::Require),
            ("[::ffff:127.0.0.1]:5432", Policy::Require),
            ("127.0.0.1:5433", Policy::Prefer),
            ("127.0.0.2:5432", Policy::Prefer),
            ("127.0.0.1:443", Policy::Never),
            ("10.255.0.1:1", Policy::Never),
            ("11.0.0.1:1", Policy::Prefer),
            ("[fd12::1]:80", Policy::Never),
            ("[fd12::1]:81", Policy::Prefer),
            ("[fe80::1]:80", Policy::Prefer),
        ] {
            assert_eq!(of_destination(&environment, addr), policy, "{addr}");
        }
        let never = valid("SMC_POLICY", "never");
        assert_eq!(of_destination(&never, "[::1]:1"), Policy::Never);
        let all = valid("SMC_POLICY", "0.0.0.0/0=never");
        assert_eq!(of_destination(&all, "1.2.3.4:1"), Policy::Never);
        assert_eq!(of_destination(&all, "[::1]:1"), Policy::Prefer);
        let loopback = valid("SMC_POLICY", "127.0.0.0/8=never,::1=never");
        assert_eq!(of_destination(&loopback, "0.0.0.0:1"), Policy::Never);
        assert_eq!(of_destination(&loopback, "[::]:1"), Policy::Never);
    }

    #[test]
    fn ipv4_mapped_networks_are_those_of_ipv4() {
        let environment = valid("SMC_POLICY", "::ffff:10.0.0.0/104=never");
        assert_eq!(of_destination(&environment, "10.1.2.3:1"), Policy::Never);
        assert_eq!(of_destination(&environment, "11.1.2.3:1"), Policy::Prefer);
        assert_eq!(of_destination(&environment, "[fe80::1]:1"), Policy::Prefer);
    }

    #[test]
    fn a_port_is_not_that_of_a_client_which_chooses_it() {
        let environment = valid("SMC_POLICY", ":5432=never,127.0.0.1=require");
        let client = |addr: &str| environment.policy(addr.parse().unwrap(), None);
        assert_eq!(client("10.0.0.1"), Policy::Prefer);
        assert_eq!(client("127.0.0.1"), Policy::Require);
        assert_eq!(of_destination(&environment, "10.0.0.1:5432"), Policy::Never);
    }

    #[test]
    fn sizes_and_times_have_units() {
        let size = |text| valid("SMC_RECV_BUFFER", text).recv_buffer;
        assert_eq!(size("65536"), Some(65_536));
        assert_eq!(size("64k"), Some(65_536));
        assert_eq!(size("1MiB"), Some(1 << 20));
        let time = |text| valid("SMC_POLLING", text).polling;
        assert_eq!(time("0"), Some(Duration::ZERO));
        assert_eq!(time("50us"), Some(Duration::from_micros(50)));
        assert_eq!(time("1 ms"), Some(Duration::from_millis(1)));
    }

    #[test]
    fn reuse_of_sockets_is_on_or_off() {
        let reuse = |text| valid("SMC_SOCKET_REUSE", text).socket_reuse;
        assert_eq!(reuse("off"), Some(false));
        assert_eq!(reuse("on"), Some(true));
    }

    #[test]
    fn an_empty_variable_is_as_none() {
        assert_eq!(valid("SMC_POLICY", ""), Environment::default());
    }

    #[test]
    fn a_value_without_meaning_is_reported_with_its_variable_and_has_no_effect() {
        for (name, value, problem_part) in [
            ("SMC_POLICY", "always", "\"always\" is none of prefer"),
            ("SMC_POLICY", "prefer,host=never", "\"host\" is no address"),
            (
                "SMC_POLICY",
                "10.0.0.0/33=never",
                "\"10.0.0.0/33\" is no address",
            ),
            ("SMC_POLICY", "::1:99999=never", "is no address"),
            (
                "SMC_POLICY",
                "::ffff:0.0.0.0/90=never",
                "\"::ffff:0.0.0.0/90\" is no address",
            ),
            ("SMC_RECV_BUFFER", "big", "begin with a number"),
            ("SMC_RECV_BUFFER", "1T", "\"T\" is none of the units"),
            ("SMC_RECV_BUFFER", "1G", "more than 512M"),
            ("SMC_POLLING", "100", "\"\" is none of the units"),
            ("SMC_SOCKET_REUSE", "no", "neither on nor off"),
        ] {
            let line = problem(name, value);
            assert!(
                line.starts_with(&format!("{name}={value:?} has no effect: ")),
                "{line}"
            );
            assert!(line.contains(problem_part), "{line}");
        }
    }
}
