//! The sockets of the kernel's own SMC, for `smc ss --kernel`.

use std::io;

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use serde_json::{Value, json};
use smc::record::{ConnectionRecord, CursorsRecord};
use smc_core::proto::conn::ConnState;
use smc_netlink::{RingCursors, SmcMode, SmcSocket, smc_sockets};
use smc_wire::types::DeclineCode;

/// A socket with what it has in common with a stream of a process.
#[derive(Debug)]
pub(super) struct KernelSocket {
    pub(super) record: ConnectionRecord,
    pub(super) socket: SmcSocket,
}

/// The sockets of this network namespace.
pub(super) fn kernel_sockets() -> Result<Vec<KernelSocket>> {
    let sockets = smc_sockets().map_err(explained)?;
    Ok(sockets.into_iter().map(KernelSocket::new).collect())
}

/// With what to do about it.
fn explained(error: io::Error) -> anyhow::Error {
    let errno = error.raw_os_error().map(Errno::from_raw);
    let error = anyhow::Error::from(error);
    match errno {
        Some(Errno::ENOENT | Errno::EPROTONOSUPPORT) => error.context(
            "the kernel has no AF_SMC, or its module smc_diag is not loaded: as root \
             `modprobe smc_diag`, which loads smc as well",
        ),
        _ => error.context("the kernel does not list its SMC sockets"),
    }
}

impl KernelSocket {
    pub(super) fn new(socket: SmcSocket) -> Self {
        let mut record = ConnectionRecord::default();
        record.state = match socket.state {
            LISTEN => "LISTEN".to_owned(),
            state => state_name(state),
        };
        record.local = Some(socket.local.to_string());
        if socket.state != LISTEN {
            record.peer = socket.peer.to_string();
        }
        set_mode(&mut record, socket.mode);
        if let Some(connection) = socket.connection {
            record.token = Some(format!("{:08x}", connection.token));
            record.send_buffer = connection.send_buffer.try_into().ok();
            record.recv_buffer = connection.recv_buffer.try_into().ok();
            record.peer_buffer = connection.peer_buffer.try_into().ok();
            record.received = Some(cursors(connection.received));
            record.sent = Some(cursors(connection.sent));
            record.flags = Some(connection.flags);
            record.peer_flags = Some(connection.peer_flags);
        }
        if let Some(link) = &socket.rdma {
            record.role = if link.is_client { "client" } else { "server" }.to_owned();
            record.device = Some(link.device.clone());
            record.link = Some(format!("{:02x}", link.id));
            record.gid = Some(link.gid.clone());
            record.peer_gid = Some(link.peer_gid.clone());
        }
        if let Some(direct) = socket.direct {
            record.gid = Some(format!("{:016x}", direct.gid));
            record.peer_gid = Some(format!("{:016x}", direct.peer_gid));
            record.token = Some(format!("{:016x}", direct.token));
            record.peer_token = Some(format!("{:016x}", direct.peer_token));
            record.group = Some(format!("{:08x}", direct.group));
        }
        Self { record, socket }
    }

    pub(super) fn is_listener(&self) -> bool {
        self.socket.state == LISTEN
    }

    /// One line of JSON: the members of a connection that the kernel states, and its own.
    pub(super) fn json_line(&self) -> Result<String> {
        let socket = &self.socket;
        let mut value = json!({ "record": "kernel_socket" });
        let members = value.as_object_mut().context("an object")?;
        if let Value::Object(common) = serde_json::to_value(&self.record)? {
            members.extend(common.into_iter().filter(|(name, value)| {
                let is_stated = value.as_str().is_none_or(|text| !text.is_empty());
                is_stated && !value.is_null() && !NOT_STATED.contains(&name.as_str())
            }));
        }
        members.insert("uid".to_owned(), socket.uid.into());
        members.insert("inode".to_owned(), socket.inode.into());
        members.insert("interface".to_owned(), socket.interface.into());
        let shutdown = json!({
            "read": socket.is_read_shut_down, "write": socket.is_write_shut_down
        });
        members.insert("shutdown".to_owned(), shutdown);
        if let Some(link) = &socket.rdma {
            members.insert("port".to_owned(), link.port.into());
        }
        if let Some(connection) = socket.connection {
            let [prepared, sent, finished] = connection.send_cursors;
            let cursors = json!({ "prepared": prepared, "sent": sent, "finished": finished });
            members.insert("send_cursors".to_owned(), cursors);
        }
        Ok(format!("{value}\n"))
    }
}

fn state_name(number: u8) -> String {
    let known = ConnState::ALL.iter().find(|state| state.number() == number);
    known.map_or_else(|| number.to_string(), |state| state.name().to_owned())
}

fn set_mode(record: &mut ConnectionRecord, mode: SmcMode) {
    record.mode = match mode {
        SmcMode::Rdma => "SMCR".to_owned(),
        SmcMode::Direct => "SMCD".to_owned(),
        SmcMode::Tcp { .. } => "TCP".to_owned(),
        SmcMode::Other(number) => number.to_string(),
    };
    if let SmcMode::Tcp { reason, peer } = mode {
        // A listener may have none.
        record.reason = Some(reason).filter(|reason| *reason != 0);
        record.peer_reason = Some(peer).filter(|peer| *peer != 0);
        let cause = record.peer_reason.or(record.reason).map(DeclineCode);
        record.cause = cause.and_then(DeclineCode::description).map(str::to_owned);
    }
}

fn cursors(of: RingCursors) -> CursorsRecord {
    let mut cursors = CursorsRecord::default();
    cursors.producer = of.producer;
    cursors.consumer = of.consumer;
    cursors
}

/// The state of a listener, which a connection does not have.
const LISTEN: u8 = 10;

/// Members of a connection that are numbers of a process.
const NOT_STATED: [&str; 2] = ["endpoint", "id"];

#[cfg(test)]
mod tests {
    use smc_netlink::RdmaLink;

    use super::*;

    fn socket(state: u8, mode: SmcMode) -> SmcSocket {
        SmcSocket {
            state,
            mode,
            is_read_shut_down: false,
            is_write_shut_down: true,
            local: "10.0.0.1:8080".parse().unwrap(),
            peer: "10.0.0.2:80".parse().unwrap(),
            interface: 2,
            uid: 1000,
            inode: 12345,
            connection: None,
            rdma: None,
            direct: None,
        }
    }

    fn json(socket: SmcSocket) -> Value {
        let line = KernelSocket::new(socket).json_line().unwrap();
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn json_tells_the_kernels_sockets_and_has_what_the_kernel_states() {
        let link = RdmaLink {
            id: 1,
            device: "rxe0".to_owned(),
            port: 1,
            gid: "::1".to_owned(),
            peer_gid: "::2".to_owned(),
            is_client: true,
        };
        let connected = json(SmcSocket {
            rdma: Some(link),
            ..socket(20, SmcMode::Rdma)
        });
        let expected = json!({
            "record": "kernel_socket", "role": "client", "mode": "SMCR",
            "state": "PEERCLOSEWAIT1", "local": "10.0.0.1:8080", "peer": "10.0.0.2:80",
            "device": "rxe0", "gid": "::1", "peer_gid": "::2", "link": "01", "uid": 1000,
            "inode": 12345, "interface": 2, "shutdown": { "read": false, "write": true },
            "port": 1
        });
        assert_eq!(connected, expected);
    }

    #[test]
    fn a_listener_has_no_peer_and_a_state_of_a_newer_kernel_its_number() {
        let listener = json(socket(10, SmcMode::Rdma));
        assert_eq!(listener["state"], "LISTEN");
        assert_eq!(listener["peer"], Value::Null);
        assert_eq!(json(socket(99, SmcMode::Other(7)))["state"], "99");
    }

    #[test]
    fn a_fallback_has_its_reasons_also_in_words() {
        let declined = SmcMode::Tcp {
            reason: 0x0500_0000,
            peer: 0x0303_0000,
        };
        let fallback = json(socket(1, declined));
        assert_eq!(fallback["reason"], 0x0500_0000);
        assert_eq!(fallback["peer_reason"], 0x0303_0000);
        assert_eq!(
            fallback["cause"].as_str(),
            DeclineCode::NOSMCDEV.description()
        );
    }

    #[test]
    fn an_error_says_what_to_do_if_the_kernel_has_no_smc() {
        let text = |errno: Errno| format!("{:#}", explained(errno.into()));
        assert!(text(Errno::ENOENT).contains("modprobe smc_diag"));
        assert!(text(Errno::EPROTONOSUPPORT).contains("modprobe smc_diag"));
        assert!(!text(Errno::ENOBUFS).contains("modprobe"));
    }
}
