//! RDMA devices.

use serde_json::{Map, Value as Json, json};
use smc_core::device::{RdmaAddress, RoceKind};
use smc_transport_rdma::{DeviceReport, PortReport, PortState, probe};

use super::{One, no_rdma};

pub(super) fn found() -> Vec<One> {
    match probe() {
        Ok(devices) => devices.iter().map(device).collect(),
        Err(why) => no_rdma(why),
    }
}

fn device(report: &DeviceReport) -> One {
    let ports: Vec<Json> = report.ports.iter().map(port_json).collect();
    One {
        kind: "smc-r",
        name: Some(report.name.clone()),
        usable: report.usable.is_ok(),
        why: report.usable.as_ref().err().map(ToString::to_string),
        lines: report.ports.iter().flat_map(port_lines).collect(),
        fields: Map::from_iter([("ports".to_owned(), json!(ports))]),
    }
}

fn port_lines(port: &PortReport) -> Vec<String> {
    let mtu = port
        .mtu
        .map_or_else(|| "unknown".to_owned(), |mtu| mtu.to_string());
    let fabric = if port.ethernet {
        ""
    } else {
        ", not on Ethernet"
    };
    let head = format!(
        "port {}: {}, path MTU {mtu}{fabric}",
        port.number,
        state(port.state)
    );
    let addresses = port.addresses.iter().map(|at| {
        let vlan = if at.vlan == 0 {
            String::new()
        } else {
            format!(" vlan {}", at.vlan)
        };
        let interface = at.interface.as_deref().unwrap_or("-");
        format!("  {} {} {interface} {}{vlan}", kind(at), gid(at), at.mac)
    });
    std::iter::once(head).chain(addresses).collect()
}

fn port_json(port: &PortReport) -> Json {
    let addresses = port.addresses.iter().map(|at| {
        json!({
            "kind": kind(at),
            "gid": at.gid.to_string(),
            "ipv4": at.gid.ipv4().map(|ip| ip.to_string()),
            "interface": at.interface,
            "mac": at.mac.to_string(),
            "vlan": at.vlan,
        })
    });
    json!({
        "port": port.number,
        "state": state(port.state),
        "ethernet": port.ethernet,
        "mtu": port.mtu.and_then(|mtu| mtu.bytes()),
        "addresses": addresses.collect::<Vec<_>>(),
    })
}

fn state(state: PortState) -> String {
    match state {
        PortState::Active => "active".to_owned(),
        PortState::Down => "down".to_owned(),
        PortState::Other(code) => format!("state {code}"),
        _ => "unknown".to_owned(),
    }
}

fn kind(at: &RdmaAddress) -> &'static str {
    match at.kind {
        RoceKind::V1 => "roce-v1",
        RoceKind::V2 => "roce-v2",
    }
}

/// IPv4 addresses are what people know their interfaces by.
fn gid(at: &RdmaAddress) -> String {
    at.gid
        .ipv4()
        .map_or_else(|| at.gid.to_string(), |ip| ip.to_string())
}
