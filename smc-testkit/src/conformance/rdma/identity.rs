//! The identity of a device, and its addresses.

use smc_core::device::{Access, DeviceError, RdmaAddress};
use smc_wire::types::RoceGid;

use super::Verdict;
use super::ends::LEN;
use crate::conformance::fixture::{Fixture, ensure, fail};

pub(super) fn a_device_has_a_name(fixture: &mut Fixture<'_>) -> Verdict {
    for node in [fixture.local(), fixture.peer()] {
        let before = node.device().identity().clone();
        ensure!(!before.name.is_empty(), "the name is empty");
        let _mr = fixture.memory(node, LEN, Access::Local)?;
        ensure!(
            *node.device().identity() == before,
            "the identity of {} changes",
            before.name
        );
    }
    Ok(())
}

pub(super) fn addresses_make_sense(fixture: &mut Fixture<'_>) -> Verdict {
    for node in [fixture.local(), fixture.peer()] {
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

pub(super) fn addresses_stay_the_same(fixture: &mut Fixture<'_>) -> Verdict {
    let before = fixture.local().rdma().addresses();
    let ends = fixture.link()?;
    ensure!(
        fixture.local().rdma().addresses() == before,
        "addresses change with a link"
    );
    drop(ends);
    fixture.idle()?;
    ensure!(
        fixture.local().rdma().addresses() == before,
        "addresses change when a link is dropped"
    );
    Ok(())
}

pub(super) fn unknown_addresses_are_refused(fixture: &mut Fixture<'_>) -> Verdict {
    let own = fixture.between()?.local;
    // Of a network for documentation.
    let strange = RoceGid::from_ipv4([203, 0, 113, 77].into());
    let strange = RdmaAddress::new(strange, own.kind, own.mac, own.mtu);
    for at in [strange.clone(), strange.with_port(200)] {
        match fixture.open(fixture.local(), &at)? {
            Err(DeviceError::Invalid(_)) => {}
            Err(error) => return fail(format!("expected `Invalid`, got: {error}")),
            Ok(_) => return fail("a link was opened at an address of another device"),
        }
    }
    Ok(())
}
