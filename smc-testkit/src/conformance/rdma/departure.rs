//! Networks, ports and devices that go away. All of it is up to the provider.

use smc_core::device::{Access, Event, LinkFailure};
use smc_core::mem::Region;

use super::Verdict;
use super::ends::{LEN, numbered};
use crate::conformance::fixture::{Fixture, ensure, skip};

pub(super) fn without_packets_a_link_gives_up(fixture: &mut Fixture<'_>) -> Verdict {
    let Some(cut) = fixture.extras().cut.take() else {
        return skip("the provider cannot lose packets");
    };
    let (local, peer) = fixture.link()?;
    local.deliver(1, &[], &peer)?;
    local.expect_sent(1)?;
    cut();
    local.post(2, &[], &numbered(2))?;
    local.expect_down(LinkFailure::RetryExceeded)?;
    ensure!(peer.try_message().is_none(), "a lost message arrived");
    Ok(())
}

pub(super) fn a_dead_peer_gives_no_answer(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = fixture.link()?;
    local.deliver(1, &[], &peer)?;
    local.expect_sent(1)?;
    let link = local.link;
    drop(peer);
    fixture.kill_peer()?;
    let local = fixture.end(fixture.local(), link);
    // It may be known already.
    let _ = local.try_post(2, &[], &numbered(2))?;
    local.down()?;
    Ok(())
}

pub(super) fn a_port_that_goes_down_says_so(fixture: &mut Fixture<'_>) -> Verdict {
    let Some(mut switch) = fixture.extras().port.take() else {
        return skip("the provider cannot switch a port");
    };
    let at = fixture.between()?.local;
    let (local, _peer) = fixture.link()?;
    let node = fixture.local();
    let before = node.rdma().addresses();
    node.forget()?;
    switch(false);
    let changed = || Ok(node.take(|event| (*event == Event::AddressesChanged).then_some(())));
    fixture.until("the port is reported down", changed)?;
    let has_it = |addresses: &[smc_core::device::RdmaAddress]| {
        addresses
            .iter()
            .any(|entry| entry.gid == at.gid && entry.kind == at.kind)
    };
    fixture.eventually("the addresses of the port go", || {
        Ok(!has_it(&node.rdma().addresses()))
    })?;
    local.down()?;
    ensure!(
        fixture.open(node, &at)?.is_err(),
        "a link was opened at a port that is down"
    );
    switch(true);
    fixture.until("the port is reported up", changed)?;
    fixture.eventually("the addresses of the port come back", || {
        Ok(node.rdma().addresses() == before)
    })?;
    let (local, peer) = fixture.link()?;
    local.deliver(1, &[], &peer)
}

pub(super) fn a_removed_device_says_so(fixture: &mut Fixture<'_>) -> Verdict {
    let Some(remove) = fixture.extras().remove.take() else {
        return skip("the provider cannot remove a device");
    };
    let (local, _peer) = fixture.link()?;
    let at = fixture.between()?.local;
    let mr = fixture.memory(fixture.local(), LEN, Access::Local)?;
    fixture.remove_local(remove)?;
    let _ = local.link.counters();
    let open = fixture.open(fixture.local(), &at)?;
    ensure!(open.is_err(), "a removed device opens a link");
    let region = Region::anonymous(LEN);
    let register = fixture.try_register(fixture.local(), &region, Access::Local)?;
    ensure!(register.is_err(), "a removed device registers memory");
    let post = local
        .link
        .post(smc_core::device::OpId(1), &[], &numbered(1));
    ensure!(post.is_err(), "a removed device posts");
    local.link.close();
    drop(mr);
    Ok(())
}
