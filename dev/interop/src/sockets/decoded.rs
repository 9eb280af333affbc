//! What strace reads in the answers of a kernel on its SMC sockets: an implementation of
//! `linux/smc_diag.h` that has nothing in common with that of the workspace.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result, bail};

use crate::protocol::SmcSocket;

/// A socket as strace prints it.
#[derive(Debug)]
pub(super) struct Decoded<'a>(&'a str);

/// All sockets in the output of `strace -X raw -xx`. A datagram is received twice: what is only
/// looked at has no attributes in it.
pub(super) fn sockets(text: &str) -> Vec<Decoded<'_>> {
    let whole = text.lines().filter(|line| line.contains("nla_type"));
    whole
        .flat_map(|line| line.split("{diag_family=").skip(1))
        .map(Decoded)
        .collect()
}

impl<'a> Decoded<'a> {
    /// The cell of a column of smcss.
    pub(super) fn cell(&self, column: &str, is_wide: bool) -> Result<String> {
        let cell = match column {
            "State" => self.state()?.to_owned(),
            "UID" => format!("{:05}", self.number(&["diag_uid="])?),
            "Inode" => format!("{:07}", self.inode()?),
            "Local Address" => self.address("idiag_src=", "idiag_sport=", is_wide)?,
            _ if self.state()? == "LISTEN" => NOTHING.to_owned(),
            "Peer Address" => self.address("idiag_dst=", "idiag_dport=", is_wide)?,
            "Intf" => format!("{:04x}", self.number(&["idiag_if="])?),
            "Mode" => self.mode()?,
            "Shutd" => match self.number(&["nla_type=0x3}, "])? {
                0 => "<->".to_owned(),
                1 => "R->".to_owned(),
                2 => "<-W".to_owned(),
                _ => "R-W".to_owned(),
            },
            _ if self.mode()?.starts_with("TCP") => NOTHING.to_owned(),
            "Token" => format!("{:08x}", self.number(&["token="])?),
            "Sndbuf" => format!("{:08x}", self.number(&["sndbuf_size="])?),
            "Rcvbuf" => format!("{:08x}", self.number(&[" rmbe_size="])?),
            "Peerbuf" => format!("{:08x}", self.number(&["peer_rmbe_size="])?),
            "rxprod-Cursor" => self.cursor("rx_prod=")?,
            "rxcons-Cursor" => self.cursor("rx_cons=")?,
            "txprod-Cursor" => self.cursor("tx_prod=")?,
            "txcons-Cursor" => self.cursor("tx_cons=")?,
            "txprep-Cursor" => self.cursor("tx_prep=")?,
            "txsent-Cursor" => self.cursor("tx_sent=")?,
            "txfin-Cursor" => self.cursor("tx_fin=")?,
            "rxFlags" => self.flags("rx_prod_flags=", "rx_conn_state_flags=")?,
            "txFlags" => self.flags("tx_prod_flags=", "tx_conn_state_flags=")?,
            "Role" => match self.number(&["role="])? {
                0 => "CLNT".to_owned(),
                _ => "SERV".to_owned(),
            },
            "IB-device" => self.text("ibname=")?,
            "Port" => format!("{:02x}", self.number(&["ibport="])?),
            "Linkid" => format!("{:02x}", self.number(&["link_id="])?),
            "GID" => self.text(" gid=")?,
            "Peer-GID" => self.text("peer_gid=")?,
            // No process.
            "PID" | "ID" | "Program" => NOTHING.to_owned(),
            _ => bail!("a column that is not compared"),
        };
        Ok(cell)
    }

    pub(super) fn inode(&self) -> Result<u64> {
        self.number(&["diag_inode="])
    }

    pub(super) fn state(&self) -> Result<&'static str> {
        let number = u8::try_from(self.number(&["diag_state="])?)?;
        Ok(SmcSocket::name_of_state(number))
    }

    pub(super) fn mode(&self) -> Result<String> {
        Ok(match self.number(&["diag_fallback="])? {
            0 => "SMCR".to_owned(),
            2 => "SMCD".to_owned(),
            _ => {
                let reason = self.number(&["{reason="])?;
                match self.number(&["peer_diagnosis="])? {
                    0 => format!("TCP 0x{reason:08x}"),
                    peer => format!("TCP 0x{reason:08x}/0x{peer:08x}"),
                }
            }
        })
    }

    /// An address of more than 23 characters loses the end of its host, not its port.
    fn address(&self, address: &str, port: &str, is_wide: bool) -> Result<String> {
        let bytes: [u8; 16] = self.bytes(address)?.as_slice().try_into()?;
        let host = match bytes {
            [a, b, c, d, rest @ ..] if rest == [0; 12] => IpAddr::from(Ipv4Addr::new(a, b, c, d)),
            bytes => IpAddr::from(Ipv6Addr::from(bytes)),
        };
        let port = u16::from_be_bytes(self.bytes(port)?.as_slice().try_into()?);
        let whole = format!("{host}:{port}");
        if is_wide || whole.len() <= 23 {
            return Ok(whole);
        }
        let end = format!("..:{port}");
        Ok(whole.chars().take(23 - end.len()).collect::<String>() + &end)
    }

    fn cursor(&self, name: &str) -> Result<String> {
        let (wrap, count) = (
            self.number(&[name, "wrap="])?,
            self.number(&[name, "count="])?,
        );
        Ok(format!("{wrap:04x}:{count:08x}"))
    }

    fn flags(&self, producer: &str, state: &str) -> Result<String> {
        let (producer, state) = (self.number(&[producer])?, self.number(&[state])?);
        Ok(format!("{producer:02x}:{state:02x}"))
    }

    /// The number behind these names, one after the other.
    fn number(&self, names: &[&str]) -> Result<u64> {
        let rest = names
            .iter()
            .try_fold(self.0, |rest, name| behind(rest, name))?;
        let digits: &str = rest
            .split(|char: char| !char.is_ascii_alphanumeric())
            .next()
            .unwrap_or_default();
        let number = match digits.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => digits.parse(),
        };
        number.with_context(|| format!("{names:?} of {}", self.0))
    }

    /// Bytes in quotes, each as `\x` and two digits.
    fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        let quoted = behind(self.0, name)?.split('"').nth(1).unwrap_or_default();
        let bytes = quoted.split("\\x").skip(1);
        let bytes: Result<Vec<u8>, _> = bytes.map(|hex| u8::from_str_radix(hex, 16)).collect();
        bytes.with_context(|| format!("{name}{quoted}"))
    }

    fn text(&self, name: &str) -> Result<String> {
        let bytes = self.bytes(name)?;
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }
}

fn behind<'a>(text: &'a str, name: &str) -> Result<&'a str> {
    let (_, rest) = text
        .split_once(name)
        .with_context(|| format!("no {name} in {text}"))?;
    Ok(rest)
}

/// A cell without content.
pub(super) const NOTHING: &str = "-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_its_cells_from_what_strace_prints() {
        let text = r#"recvfrom(3, [{nlmsg_len=100}, "\x2b\x01"], 64, 0x22) = 332
recvfrom(3, [[{nlmsg_len=332}, {diag_family=0x2b, diag_state=0x14, diag_fallback=0, diag_shutdown=0, id={idiag_sport="\x1f\x90", idiag_dport="\x00\x50", idiag_src="\xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01", idiag_dst="\x0a\x09\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", idiag_if=0}, diag_uid=7, diag_inode=387}, [[{nla_len=5, nla_type=0x3}, 0x2], [{nla_len=80, nla_type=0x1}, {token=2, peer_rmbe_size=1, rmbe_size=65536, rx_prod={reserved=0, wrap=1, count=100}, tx_prod_flags=00, tx_conn_state_flags=0x80}]]]], 332, 0) = 332"#;
        let sockets = sockets(text);
        let [socket] = &*sockets else {
            panic!("{sockets:?}");
        };
        for (column, expected) in [
            ("State", "PEERCLOSEWAIT1"),
            ("UID", "00007"),
            ("Inode", "0000387"),
            ("Local Address", "fd00::1:8080"),
            ("Peer Address", "10.9.0.2:80"),
            ("Mode", "SMCR"),
            ("Shutd", "<-W"),
            ("Rcvbuf", "00010000"),
            ("rxprod-Cursor", "0001:00000064"),
            ("txFlags", "00:80"),
        ] {
            assert_eq!(socket.cell(column, false).unwrap(), expected, "{column}");
        }
        assert!(socket.cell("GID", false).is_err());
    }
}
