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
    let (ours, peer) = fixture.link()?;
    ours.deliver(1, &[], &peer)?;
    ours.expect_sent(1)?;
    cut();
    ours.post(2, &[], &numbered(2))?;
    ours.expect_down(LinkFailure::RetryExceeded)?;
    ensure!(peer.try_message().is_none(), "a lost message arrived");
    Ok(())
}

pub(super) fn a_dead_peer_gives_no_answer(fixture: &mut Fixture<'_>) -> Verdict {
    let (ours, peer) = fixture.link()?;
    ours.deliver(1, &[], &peer)?;
    ours.expect_sent(1)?;
    let link = ours.link;
    drop(peer);
    fixture.kill_peer()?;
    let ours = fixture.end(fixture.ours(), link);
    // It may be known already.
    let _ = ours.try_post(2, &[], &numbered(2))?;
    ours.down()?;
    Ok(())
}

pub(super) fn a_port_that_goes_down_says_so(fixture: &mut Fixture<'_>) -> Verdict {
    let Some(mut switch) = fixture.extras().port.take() else {
        return skip("the provider cannot switch a port");
    };
    let at = fixture.between()?.ours;
    let (ours, _peer) = fixture.link()?;
    let node = fixture.ours();
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
    ours.down()?;
    ensure!(
        fixture.open(node, &at)?.is_err(),
        "a link was opened at a port that is down"
    );
    switch(true);
    fixture.until("the port is reported up", changed)?;
    fixture.eventually("the addresses of the port come back", || {
        Ok(node.rdma().addresses() == before)
    })?;
    let (ours, peer) = fixture.link()?;
    ours.deliver(1, &[], &peer)
}

pub(super) fn a_removed_device_says_so(fixture: &mut Fixture<'_>) -> Verdict {
    let Some(remove) = fixture.extras().remove.take() else {
        return skip("the provider cannot remove a device");
    };
    let (ours, _peer) = fixture.link()?;
    let at = fixture.between()?.ours;
    let mr = fixture.memory(fixture.ours(), LEN, Access::Local)?;
    fixture.remove_ours(remove)?;
    let _ = ours.link.counters();
    let open = fixture.open(fixture.ours(), &at)?;
    ensure!(open.is_err(), "a removed device opens a link");
    let region = Region::anonymous(LEN);
    let register = fixture.try_register(fixture.ours(), &region, Access::Local)?;
    ensure!(register.is_err(), "a removed device registers memory");
    let post = ours.link.post(smc_core::device::OpId(1), &[], &numbered(1));
    ensure!(post.is_err(), "a removed device posts");
    ours.link.close();
    drop(mr);
    Ok(())
}
