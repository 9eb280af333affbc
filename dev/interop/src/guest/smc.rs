//! The kernel's SMC by netlink: user EIDs, PNET table, sockets, link groups and links.

use std::io;

use rustix::net::netlink::{GENERIC, SOCK_DIAG};

use super::netlink::{Attributes, Netlink, put, put_text};
use crate::protocol::{Link, LinkGroup, Pnet, SmcSocket, SmcState, SocketMode};

/// Makes these the only user EIDs.
pub(crate) fn set_ueids(eids: &[String]) -> io::Result<()> {
    let smc = Family::open("SMC_GEN_NETLINK")?;
    smc.order(FLUSH_UEID, &[])?;
    for eid in eids {
        let mut attributes = Vec::new();
        put_text(&mut attributes, EID_TABLE_ENTRY, &format!("{eid:32}"));
        smc.order(ADD_UEID, &attributes)?;
    }
    Ok(())
}

/// Makes this the PNET table.
pub(crate) fn set_pnets(table: &[Pnet]) -> io::Result<()> {
    let pnet = Family::open("SMC_PNETID")?;
    pnet.order(PNET_FLUSH, &[])?;
    for entry in table {
        let mut attributes = Vec::new();
        match entry {
            Pnet::Interface { pnet, name } => {
                put_text(&mut attributes, PNET_NAME, pnet);
                put_text(&mut attributes, PNET_ETHNAME, name);
            }
            Pnet::Rdma { pnet, name } => {
                put_text(&mut attributes, PNET_NAME, pnet);
                put_text(&mut attributes, PNET_IBNAME, name);
                put(&mut attributes, PNET_IBPORT, &[1]);
            }
        }
        pnet.order(PNET_ADD, &attributes)?;
    }
    Ok(())
}

/// Everything there is.
pub(crate) fn state() -> io::Result<SmcState> {
    Ok(SmcState {
        sockets: sockets()?,
        groups: groups()?,
    })
}

/// All AF_SMC sockets of the kernel.
pub(crate) fn sockets() -> io::Result<Vec<SmcSocket>> {
    let mut request = vec![0; DIAG_REQUEST];
    request[0] = AF_SMC;
    request[3] = 1 << (DIAG_FALLBACK - 1);
    let all = Netlink::open(SOCK_DIAG)?.dump(SOCK_DIAG_BY_FAMILY, &request)?;
    Ok(all.iter().filter_map(|message| socket(message)).collect())
}

fn socket(message: &[u8]) -> Option<SmcSocket> {
    let port = |at: usize| Some(u16::from_be_bytes(*message.get(at..)?.first_chunk()?));
    let fallback = Attributes(message.get(DIAG_MESSAGE..)?)
        .find(DIAG_FALLBACK.into())
        .unwrap_or_default();
    let code = |at: usize| Some(u32::from_ne_bytes(*fallback.get(at..)?.first_chunk()?));
    Some(SmcSocket {
        state: *message.get(1)?,
        mode: match message.get(2)? {
            0 => SocketMode::SmcR,
            1 => SocketMode::Tcp,
            _ => SocketMode::SmcD,
        },
        local_port: port(4)?,
        peer_port: port(6)?,
        reason: code(0).unwrap_or(0),
        peer_reason: code(4).unwrap_or(0),
    })
}

/// The link groups with their links: each group's message is followed by those of its links.
fn groups() -> io::Result<Vec<LinkGroup>> {
    let mut groups: Vec<LinkGroup> = Vec::new();
    for message in Family::open("SMC_GEN_NETLINK")?.dump(GET_LINK_SMCR)? {
        let attributes = Attributes(message.get(GENL_HEADER..).unwrap_or_default());
        if let Some(group) = attributes.nested(GEN_LGR_SMCR) {
            groups.push(LinkGroup {
                id: group.u32(1).unwrap_or(0),
                is_server: group.u8(2) == Some(1),
                kind: group.u8(3).unwrap_or(0),
                conns: group.u32(6).unwrap_or(0),
                links: Vec::new(),
            });
        }
        let link = attributes.nested(GEN_LINK_SMCR);
        if let (Some(link), Some(group)) = (link, groups.last_mut()) {
            group.links.push(Link {
                id: link.u8(1).unwrap_or(0),
                device: link.text(2).unwrap_or_default(),
                state: link.u32(10).unwrap_or(0),
                conns: link.u32(6).unwrap_or(0),
            });
        }
    }
    Ok(groups)
}

/// A family of generic netlink.
struct Family {
    netlink: Netlink,
    id: u16,
}

impl Family {
    fn open(name: &str) -> io::Result<Self> {
        let netlink = Netlink::open(GENERIC)?;
        let mut request = vec![CTRL_GETFAMILY, 1, 0, 0];
        put_text(&mut request, CTRL_FAMILY_NAME, name);
        let answer = netlink.ask(GENL_ID_CTRL, &request)?;
        let id = Attributes(answer.get(GENL_HEADER..).unwrap_or_default()).u16(CTRL_FAMILY_ID);
        let id = id.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        Ok(Self { netlink, id })
    }

    fn order(&self, command: u8, attributes: &[u8]) -> io::Result<()> {
        let payload = [&[command, 1, 0, 0], attributes].concat();
        self.netlink.order(self.id, &payload)
    }

    fn dump(&self, command: u8) -> io::Result<Vec<Vec<u8>>> {
        self.netlink.dump(self.id, &[command, 1, 0, 0])
    }
}

const GENL_HEADER: usize = 4;

// Control family of generic netlink.
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_GETFAMILY: u8 = 3;
const CTRL_FAMILY_ID: u16 = 1;
const CTRL_FAMILY_NAME: u16 = 2;

// Commands and attributes of SMC_GEN_NETLINK.
const GET_LINK_SMCR: u8 = 3;
const ADD_UEID: u8 = 10;
const FLUSH_UEID: u8 = 12;
const GEN_LGR_SMCR: u16 = 2;
const GEN_LINK_SMCR: u16 = 3;
const EID_TABLE_ENTRY: u16 = 1;

// Commands and attributes of SMC_PNETID.
const PNET_ADD: u8 = 2;
const PNET_FLUSH: u8 = 4;
const PNET_NAME: u16 = 1;
const PNET_ETHNAME: u16 = 2;
const PNET_IBNAME: u16 = 3;
const PNET_IBPORT: u16 = 4;

// Socket diagnostics.
const AF_SMC: u8 = 43;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const DIAG_FALLBACK: u8 = 5;
/// Bytes of a request: four of its own and a socket identity.
const DIAG_REQUEST: usize = 52;
/// Bytes before the attributes: four, a socket identity, user and inode.
const DIAG_MESSAGE: usize = 64;
