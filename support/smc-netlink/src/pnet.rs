//! The PNET table of the kernel's SMC, which `smc_pnet` shows and changes.

use std::io;

use netlink_sys::protocols::NETLINK_GENERIC;

use crate::generic::GenericMessage;
use crate::request;

/// An entry of the table: a physical network, and what belongs to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PnetEntry {
    /// The PNET ID.
    pub pnet_id: String,
    /// A network interface of the network.
    pub interface: Option<String>,
    /// An RDMA or ISM device of the network.
    pub device: Option<String>,
    /// The port of the device, from 1; all of its ports without one.
    pub port: Option<u8>,
}

/// The table of this thread's network namespace; empty if the kernel's SMC is not loaded.
///
/// # Errors
///
/// When the kernel cannot be asked, as without netlink sockets.
pub fn pnet_table() -> io::Result<Vec<PnetEntry>> {
    // A request for one name would have the kernel look for its module each time.
    let families = request::dump(
        NETLINK_GENERIC,
        &GenericMessage::request(CONTROLLER, GET_FAMILY),
    )?;
    let family = families.iter().find_map(|family| {
        let is_wanted = family.attributes.text(FAMILY_NAME)?.eq(PNET_FAMILY);
        let id = u16::from_ne_bytes(*family.attributes.bytes(FAMILY_ID)?.first_chunk()?);
        is_wanted.then_some(id)
    });
    let Some(family) = family else {
        return Ok(Vec::new());
    };
    let entries = request::dump(NETLINK_GENERIC, &GenericMessage::request(family, GET_PNET))?;
    Ok(entries.iter().filter_map(entry).collect())
}

fn entry(message: &GenericMessage) -> Option<PnetEntry> {
    // What does not apply is "n/a", and port 255.
    let text = |kind| message.attributes.text(kind).filter(|text| text != "n/a");
    let port = message
        .attributes
        .bytes(IB_PORT)
        .and_then(|port| port.first().copied());
    Some(PnetEntry {
        pnet_id: text(NAME)?,
        interface: text(ETH_NAME),
        device: text(IB_NAME),
        port: port.filter(|port| (1..u8::MAX).contains(port)),
    })
}

// The controller of generic netlink.
const CONTROLLER: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

// The family of PNET IDs.
const PNET_FAMILY: &str = "SMC_PNETID";
const GET_PNET: u8 = 1;
const NAME: u16 = 1;
const ETH_NAME: u16 = 2;
const IB_NAME: u16 = 3;
const IB_PORT: u16 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::Attributes;

    fn message(attributes: &[(u16, &[u8])]) -> GenericMessage {
        let attributes = attributes.iter();
        let owned = attributes.map(|(kind, value)| (*kind, value.to_vec()));
        GenericMessage {
            attributes: Attributes(owned.collect()),
            ..GenericMessage::default()
        }
    }

    #[test]
    fn entries_name_an_interface_or_a_port() {
        let of_interface = message(&[
            (NAME, b"NET1\0"),
            (ETH_NAME, b"eth0\0"),
            (IB_NAME, b"n/a\0"),
            (IB_PORT, &[255]),
        ]);
        let expected = PnetEntry {
            pnet_id: "NET1".into(),
            interface: Some("eth0".into()),
            ..PnetEntry::default()
        };
        assert_eq!(entry(&of_interface), Some(expected));
        let of_port = message(&[
            (NAME, b"NET1\0"),
            (ETH_NAME, b"n/a\0"),
            (IB_NAME, b"mlx5_0\0"),
            (IB_PORT, &[2]),
        ]);
        let expected = PnetEntry {
            pnet_id: "NET1".into(),
            device: Some("mlx5_0".into()),
            port: Some(2),
            ..PnetEntry::default()
        };
        assert_eq!(entry(&of_port), Some(expected));
        assert_eq!(entry(&message(&[(ETH_NAME, b"eth0\0")])), None);
    }

    #[test]
    fn without_the_kernels_smc_the_table_is_empty() {
        if std::path::Path::new("/sys/module/smc").exists() {
            println!("skipped: the kernel's SMC is loaded");
            return;
        }
        assert_eq!(pnet_table().unwrap(), []);
    }
}
