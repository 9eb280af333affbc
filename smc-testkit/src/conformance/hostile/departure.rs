//! A device that vanishes, at each point of a connection.

use super::super::fixture::{OrFail, Verdict};
use super::attacker::Attacker;
use crate::world::{messages, proposal_from};

pub(super) fn a_device_that_vanishes_behind_its_proposal(attacker: &mut Attacker<'_>) -> Verdict {
    let mut tcp = attacker.connect()?;
    let proposal = proposal_from(attacker.direct()?);
    tcp.send(&proposal).or_fail("PROPOSAL")?;
    attacker.vanish()
}

pub(super) fn a_device_that_vanishes_before_its_confirm(attacker: &mut Attacker<'_>) -> Verdict {
    let accepted = attacker.propose()?;
    let own = attacker.register(accepted.end.gid)?;
    let confirm = accepted.confirmation(attacker, own.token())?;
    drop(own);
    attacker.vanish()?;
    let mut tcp = accepted.tcp;
    tcp.send(&messages::bytes(&confirm)).ok();
    tcp.await_answer();
    Ok(())
}

pub(super) fn a_device_that_vanishes_behind_its_confirm(attacker: &mut Attacker<'_>) -> Verdict {
    let mut tcp = attacker.open()?.tcp;
    attacker.vanish()?;
    tcp.await_end()
}

pub(super) fn a_device_that_vanishes_amid_data(attacker: &mut Attacker<'_>) -> Verdict {
    // The victim finds out about one of them by the device alone.
    let mut idle = attacker.open()?;
    idle.exchange(attacker, 100)?;
    let mut sending = attacker.open()?;
    sending.exchange(attacker, 100)?;
    sending.send(attacker, 1000)?;
    let connections = [idle.tcp, sending.tcp];
    attacker.vanish()?;
    connections
        .into_iter()
        .try_for_each(|mut tcp| tcp.await_end())
}
