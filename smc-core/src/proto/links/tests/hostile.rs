//! Whatever a peer sends, whatever devices answer, in whatever order: no panic, bounded memory,
//! and a way to the end.

use proptest::collection::vec;
use proptest::prelude::*;
use smc_wire::types::{Rkey, RmbAddr};

use super::world::peer_rmb;
use super::*;
use crate::device::{DeviceError, LinkFailure, RoceKind};
use crate::proto::group::DeviceIndex;

#[derive(Clone, Debug)]
enum GroupInput {
    Bytes(u8, Vec<u8>),
    Sent(u8, u64),
    Down(u8, LinkFailure),
    Opened(u8, bool),
    Connected(u8, bool),
    Mapped(u8, bool),
    Moved(u8),
    Port(u8, bool),
    Confirm(u8),
    Delete(u8),
    Token(u8, u8),
    Release,
    ConfirmLink,
    Establish,
    End(bool),
    Millis(u64),
    Settle,
}

fn input() -> impl Strategy<Value = GroupInput> {
    let link = 0..5_u8;
    let failure = prop_oneof![
        Just(LinkFailure::Flushed),
        Just(LinkFailure::PortDown),
        Just(LinkFailure::QueuePair("stuck")),
        Just(LinkFailure::Device("fatal")),
    ];
    prop_oneof![
        3 => (link.clone(), vec(any::<u8>(), 0..100)).prop_map(|(on, it)| GroupInput::Bytes(on, it)),
        30 => (link.clone(), message()).prop_map(|(on, it)| GroupInput::Bytes(on, it)),
        2 => (link.clone(), 0..40_u64).prop_map(|(on, tag)| GroupInput::Sent(on, tag)),
        1 => (link.clone(), failure).prop_map(|(on, why)| GroupInput::Down(on, why)),
        4 => (link.clone(), any::<bool>()).prop_map(|(on, ok)| GroupInput::Opened(on, ok)),
        4 => (link.clone(), any::<bool>()).prop_map(|(on, ok)| GroupInput::Connected(on, ok)),
        3 => (0..3_u8, any::<bool>()).prop_map(|(on, ok)| GroupInput::Mapped(on, ok)),
        2 => link.clone().prop_map(GroupInput::Moved),
        2 => (0..3_u8, any::<bool>()).prop_map(|(at, up)| GroupInput::Port(at, up)),
        4 => any::<u8>().prop_map(GroupInput::Confirm),
        3 => any::<u8>().prop_map(GroupInput::Delete),
        2 => (link, any::<u8>()).prop_map(|(on, key)| GroupInput::Token(on, key)),
        1 => Just(GroupInput::Release),
        1 => Just(GroupInput::ConfirmLink),
        2 => Just(GroupInput::Establish),
        1 => prop::bool::weighted(0.5).prop_map(GroupInput::End),
        6 => (0..6_000_u64).prop_map(GroupInput::Millis),
        6 => Just(GroupInput::Settle),
    ]
}

/// A message with the right first bytes, plausible small numbers in it, and some bytes changed.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop::sample::select(vec![
        0x21, 0x22, 0x24, 0x25, 0x26, 0x27, 0x29, 0x01, 0x02, 0x03, 0x04, 0x06, 0x07, 0x08, 0x09,
    ]);
    let flags = prop::sample::select(vec![
        0, 0x03, 0x80, 0x83, 0xc0, 0x40, 0x60, 0xa0, 0xb0, 0x20,
    ]);
    let len = prop_oneof![8 => Just(44_usize), 2 => 44..400_usize];
    let changes = vec((any::<prop::sample::Index>(), 0..6_u8), 0..10);
    (kind, flags, len, changes).prop_map(|(kind, flags, len, changes)| {
        let mut bytes = vec![0; len];
        for (at, value) in changes {
            let at = at.index(len);
            bytes[at] = value;
        }
        bytes[0] = kind;
        bytes[3] = flags;
        if kind < 0x20 {
            bytes[1] = 44;
        } else {
            bytes[1..3].copy_from_slice(&(len as u16).to_le_bytes());
        }
        if kind & 0xf == 2 {
            bytes[32] = 3;
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn nothing_breaks_a_group(
        side in 0..2_usize,
        is_v2 in any::<bool>(),
        is_connected in prop::bool::weighted(0.8),
        inputs in vec(input(), 1..120),
    ) {
        let terms = if is_v2 { LlcTerms::v2_1(2, 255) } else { LlcTerms::V1 };
        let mut world = if is_connected {
            World::connected([3, 3], terms, LlcConfig::default())
        } else {
            let kind = if is_v2 { RoceKind::V2 } else { RoceKind::V1 };
            let mut world = World::new([3, 3], kind, LlcConfig::default());
            world.contact(terms);
            world
        };
        let mut tokens = Vec::new();
        for input in inputs {
            apply(&mut world, side, input, &mut tokens);
            let host = &mut world.hosts[side];
            let group = &host.group;
            prop_assert!(group.links().count() <= 3);
            prop_assert!(group.rtokens.len() <= RTOKENS_MAX);
            prop_assert!(group.pending.deletes.len() <= 3);
            let stale = group.local_rmbs.stale.entries.len();
            prop_assert!(stale <= 16, "{stale}");
            prop_assert!(host.seen.len() < 2_000);
            host.seen.clear();
            world.log.clear();
        }
        // Whatever it waits for, it does not wait indefinitely.
        let mut now = world.now;
        let group = &mut world.hosts[side].group;
        for _ in 0..400 {
            while group.poll_output().is_some() {}
            let Some(next) = group.poll_timeout() else { break };
            now = now.max(next);
            group.handle_timeout(now);
            prop_assert!(group.poll_timeout().is_none_or(|next| next > now), "it stands still");
        }
        group.end(now, false, DeleteLinkReason::PROGRAM);
        group.handle_timeout(now + 2 * SECOND);
        prop_assert!(group.has_ended());
    }
}

fn apply(world: &mut World, side: usize, input: GroupInput, tokens: &mut Vec<RtokenId>) {
    let now = world.now;
    let local = world.hosts[side].qps.values().next().map(|qp| qp.local);
    let link = |at: u8| LinkId(at.into());
    match input {
        GroupInput::Settle => return world.advance(10 * MS),
        GroupInput::Millis(millis) => return world.advance(Duration::from_millis(millis)),
        GroupInput::Port(at, up) => return world.set_port(side, at.into(), up),
        GroupInput::Confirm(rmb) => return world.confirm_rkey(side, rmb.into()),
        GroupInput::Delete(rmb) => return world.delete_rkey(side, rmb.into()),
        _ => {}
    }
    // Past the simulated shell, which would not do such things.
    let exists = |at: u8| world.hosts[side].group.link(link(at)).is_some();
    let is_spurious = match &input {
        // Answers to questions that were not asked; those that were come from the shell.
        GroupInput::Opened(at, _) => exists(*at) && !world.hosts[side].qps.contains_key(&link(*at)),
        GroupInput::Connected(at, _) => {
            let qp = world.hosts[side].qps.get(&link(*at));
            exists(*at) && qp.is_none_or(|qp| qp.peer.is_none())
        }
        _ => false,
    };
    if is_spurious {
        return;
    }
    world.with(side, |group| match input {
        GroupInput::Bytes(on, bytes) => group.handle_message(now, link(on), &bytes),
        GroupInput::Sent(on, tag) => group.handle_completed(now, link(on), OpTag(tag)),
        GroupInput::Down(on, why) => group.handle_link_down(now, link(on), why),
        GroupInput::Opened(on, ok) => {
            let failed = Err(DeviceError::NoMemory);
            let result = local.filter(|_| ok).map_or(failed, Ok);
            group.handle_opened(now, link(on), result);
        }
        GroupInput::Connected(on, ok) => {
            let result = if ok {
                Ok(())
            } else {
                Err(DeviceError::PeerGone)
            };
            group.handle_connected(now, link(on), result);
        }
        GroupInput::Mapped(device, ok) => {
            let keys = [(RmbId(1), Rkey(7), RmbAddr(7))];
            let keys = if ok { &keys[..] } else { &[] };
            group.handle_mapped(now, DeviceIndex(device.into()), keys);
        }
        GroupInput::Moved(on) => {
            group.handle_stopped(link(on));
            group.handle_moved(now, link(on));
        }
        GroupInput::Token(on, key) => {
            tokens.extend(group.add_rtoken(link(on), &peer_rmb(Rkey(key.into()), RmbAddr(0))));
        }
        GroupInput::Release => {
            if let Some(id) = tokens.pop() {
                group.release_rtoken(id);
            }
        }
        GroupInput::ConfirmLink => group.confirm_link(now),
        GroupInput::Establish => group.establish(now),
        GroupInput::End(true) => group.end(now, true, DeleteLinkReason::PROGRAM),
        GroupInput::End(false) => group.end(now, false, DeleteLinkReason::PROTOCOL_VIOLATION),
        _ => {}
    });
}

/// ADD LINK and DELETE LINK in turn, for a link that is not there yet.
#[test]
fn a_server_that_adds_and_deletes_links_has_one_queue_pair_made_at_a_time() {
    let mut world = World::connected([1, 2], LlcTerms::v2_1(2, 255), LlcConfig::default());
    let now = world.now;
    let group = &mut world.hosts[CLIENT].group;
    while group.poll_output().is_some() {}
    let link = group.links().next().expect("it is connected").id;
    let header = |kind, flags| {
        let mut message = vec![0; 44];
        (message[0], message[1], message[3]) = (kind, 44, flags);
        message
    };
    let mut add = header(0x22, 0);
    add[4..10].copy_from_slice(&[2, 0, 0, 0, 9, 9]);
    (add[12], add[27], add[30], add[31], add[32]) = (0xfd, 9, 5, 100, 3);
    let mut delete = header(0x24, 0x20);
    delete[4] = 100;

    let mut opened = Vec::new();
    for _ in 0..100 {
        group.handle_message(now, link, &add);
        group.handle_message(now, link, &delete);
        while let Some(output) = group.poll_output() {
            if let LinkGroupOutput::Open { link, .. } = output {
                opened.push(link);
            }
        }
    }
    assert_eq!(opened.len(), 1);
    group.handle_opened(now, opened[0], Err(DeviceError::NoMemory));
    group.handle_message(now, link, &add);
    let mut outputs = std::iter::from_fn(|| group.poll_output());
    let is_open = |output: &LinkGroupOutput| matches!(output, LinkGroupOutput::Open { .. });
    assert!(
        outputs.any(|output| is_open(&output)),
        "the device has answered"
    );
}
