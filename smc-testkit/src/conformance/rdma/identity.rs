//! Who a device is and at which addresses.

use smc_core::device::{Access, DeviceError, RdmaAddress};
use smc_wire::types::RoceGid;

use super::Verdict;
use super::ends::LEN;
use crate::conformance::bench::{Bench, ensure, fail};

pub(super) fn a_device_has_a_name(bench: &mut Bench<'_>) -> Verdict {
    for node in [bench.ours(), bench.peer()] {
        let before = node.device().identity().clone();
        ensure!(!before.name.is_empty(), "the name is empty");
        let _mr = bench.memory(node, LEN, Access::Local)?;
        ensure!(
            *node.device().identity() == before,
            "the identity of {} changes",
            before.name
        );
    }
    Ok(())
}

pub(super) fn addresses_make_sense(bench: &mut Bench<'_>) -> Verdict {
    for node in [bench.ours(), bench.peer()] {
        let addresses = node.rdma().addresses();
        ensure!(!addresses.is_empty(), "there is no address");
        for (index, at) in addresses.iter().enumerate() {
            ensure!(!at.gid.is_zero(), "address {index} has no GID");
            ensure!(!at.mac.is_zero(), "address {index} has no MAC");
            ensure!(at.port > 0, "address {index} has port 0");
            ensure!(at.mtu.bytes().is_some(), "address {index}: {}", at.mtu);
            ensure!(
                !addresses[..index].contains(at),
                "address {index} is there twice"
            );
        }
    }
    Ok(())
}

pub(super) fn addresses_stay_the_same(bench: &mut Bench<'_>) -> Verdict {
    let before = bench.ours().rdma().addresses();
    let ends = bench.link()?;
    ensure!(
        bench.ours().rdma().addresses() == before,
        "addresses change with a link"
    );
    drop(ends);
    bench.idle()?;
    ensure!(
        bench.ours().rdma().addresses() == before,
        "addresses change when a link is dropped"
    );
    Ok(())
}

pub(super) fn unknown_addresses_are_refused(bench: &mut Bench<'_>) -> Verdict {
    let own = bench.between()?.ours;
    // Of a network for documentation.
    let strange = RoceGid::from_ipv4([203, 0, 113, 77].into());
    let strange = RdmaAddress::new(strange, own.kind, own.mac, own.mtu);
    for at in [strange.clone(), strange.with_port(200)] {
        match bench.open(bench.ours(), &at)? {
            Err(DeviceError::Invalid(_)) => {}
            Err(error) => return fail(format!("expected `Invalid`, got: {error}")),
            Ok(_) => return fail("a link was opened at an address of another device"),
        }
    }
    Ok(())
}
