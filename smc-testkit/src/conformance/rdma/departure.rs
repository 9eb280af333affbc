//! Networks, ports and devices that go away. All of it is up to the provider.

use smc_core::device::{Access, Event, LinkFailure};
use smc_core::mem::Region;

use super::Verdict;
use super::ends::{LEN, numbered};
use crate::conformance::bench::{Bench, ensure, skip};

pub(super) fn without_packets_a_link_gives_up(bench: &mut Bench<'_>) -> Verdict {
    let Some(cut) = bench.extras().cut.take() else {
        return skip("the provider cannot lose packets");
    };
    let (ours, peer) = bench.link()?;
    ours.deliver(1, &[], &peer)?;
    ours.expect_sent(1)?;
    cut();
    ours.post(2, &[], &numbered(2))?;
    ours.expect_down(LinkFailure::RetryExceeded)?;
    ensure!(peer.try_message().is_none(), "a lost message arrived");
    Ok(())
}

pub(super) fn a_dead_peer_gives_no_answer(bench: &mut Bench<'_>) -> Verdict {
    let (ours, peer) = bench.link()?;
    ours.deliver(1, &[], &peer)?;
    ours.expect_sent(1)?;
    let link = ours.link;
    drop(peer);
    bench.kill_peer()?;
    let ours = bench.end(bench.ours(), link);
    // It may be known already.
    let _ = ours.try_post(2, &[], &numbered(2))?;
    ours.down()?;
    Ok(())
}

pub(super) fn a_port_that_goes_down_says_so(bench: &mut Bench<'_>) -> Verdict {
    let Some(mut switch) = bench.extras().port.take() else {
        return skip("the provider cannot switch a port");
    };
    let at = bench.between()?.ours;
    let (ours, _peer) = bench.link()?;
    let node = bench.ours();
    let before = node.rdma().addresses();
    node.forget()?;
    switch(false);
    let changed = || Ok(node.take(|event| (*event == Event::AddressesChanged).then_some(())));
    bench.until("the port is reported down", changed)?;
    let has_it = |addresses: &[smc_core::device::RdmaAddress]| {
        addresses
            .iter()
            .any(|entry| entry.gid == at.gid && entry.kind == at.kind)
    };
    bench.eventually("the addresses of the port go", || {
        Ok(!has_it(&node.rdma().addresses()))
    })?;
    ours.down()?;
    ensure!(
        bench.open(node, &at)?.is_err(),
        "a link was opened at a port that is down"
    );
    switch(true);
    bench.until("the port is reported up", changed)?;
    bench.eventually("the addresses of the port come back", || {
        Ok(node.rdma().addresses() == before)
    })?;
    let (ours, peer) = bench.link()?;
    ours.deliver(1, &[], &peer)
}

pub(super) fn a_removed_device_says_so(bench: &mut Bench<'_>) -> Verdict {
    let Some(remove) = bench.extras().remove.take() else {
        return skip("the provider cannot remove a device");
    };
    let (ours, _peer) = bench.link()?;
    let at = bench.between()?.ours;
    let mr = bench.memory(bench.ours(), LEN, Access::Local)?;
    bench.remove_ours(remove)?;
    let _ = ours.link.counters();
    let open = bench.open(bench.ours(), &at)?;
    ensure!(open.is_err(), "a removed device opens a link");
    let region = Region::anonymous(LEN);
    let register = bench.try_register(bench.ours(), &region, Access::Local)?;
    ensure!(register.is_err(), "a removed device registers memory");
    let post = ours.link.post(smc_core::device::OpId(1), &[], &numbered(1));
    ensure!(post.is_err(), "a removed device posts");
    ours.link.close();
    drop(mr);
    Ok(())
}
