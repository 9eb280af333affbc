//! Early CONFIRM for SMC-D (docs/spec/extensions.md#early-confirm).

use smc_wire::clc::{DirectEnd, Extensions};
use smc_wire::size::SizeCode;
use smc_wire::types::Features;

use super::*;
use crate::error::PeerMisbehaved;

pub(super) fn config() -> HandshakeConfig {
    HandshakeConfig {
        vendor_features: Features::EARLY_CONFIRM,
        ..host()
    }
}

/// A link group that takes early CONFIRMs.
pub(super) fn first() -> Pair {
    let first = Pair::new(config(), config()).completed();
    for side in [&first.client, &first.server] {
        let established = side.established();
        assert_eq!(established.group_features, Features::EARLY_CONFIRM);
        assert_eq!(established.vendor_features, Features::empty());
    }
    first
}

/// A connection after `first`, whose client has registered a buffer of this size. `change` changes
/// the end that it sends.
pub(super) fn next(
    first: &Pair,
    server: HandshakeConfig,
    size: SizeCode,
    change: impl FnOnce(&mut DirectEnd),
) -> Pair {
    next_with_data(first, [config(), server], size, None, change)
}

/// The same with early data, and with the configurations of both sides.
pub(super) fn next_with_data(
    first: &Pair,
    [client, server]: [HandshakeConfig; 2],
    size: SizeCode,
    data: Option<&EarlyData>,
    change: impl FnOnce(&mut DirectEnd),
) -> Pair {
    let groups = [&first.client, &first.server].map(|side| Rc::clone(&side.groups));
    let here = (client.clone(), TcpPath::default());
    let mut pair = Pair::with(here, (server, TcpPath::default()), groups);
    let token = pair.client.fabric.borrow_mut().buffer(size.byte_len());
    let mut end = DirectEnd {
        gid: device(0, LOOP).gid,
        chid: LOOP,
        dmb: token,
        dmbe_index: 0,
        size,
        group: first.client.established().group,
    };
    change(&mut end);
    let (config, peer) = (Arc::new(client), first.client.direct().peer);
    let proposal = Arc::new(ClientProposal::new(&config, &TcpPath::default()).unwrap());
    let early = EarlyConfirm::Direct { peer, end };
    pair.client.machine =
        Handshake::client_with_early_confirm(pair.now, config, proposal, early, data);
    pair.client.registered = Some((size, token));
    pair
}

/// The bytes of the client behind its PROPOSAL.
fn behind_proposal(pair: &Pair) -> usize {
    let proposal = proposal(&config()).encoded_len();
    // Header, payload.
    pair.from_client.len() - proposal - (7 + 34)
}

#[test]
fn the_connection_is_established_by_the_accept() {
    let first = first();
    let second = next(&first, config(), SizeCode::LINUX_DEFAULT, |_| {}).completed();
    assert_eq!(behind_proposal(&second), 0, "no CONFIRM");
    let (client, server) = (second.client.direct(), second.server.direct());
    assert_eq!(server.peer_buffer.token, client.local);
    assert_eq!(server.peer_buffer.size, client.local_size);
    assert_eq!(client.peer_buffer.token, server.local);
    assert_eq!(server.access, PeerAccess::Attached);
    assert!(!second.server.established().first_contact);
    let works = second.client.works.iter().map(name).collect::<Vec<_>>();
    assert_eq!(works, ["reach", "enter", "register", "attach"]);
}

#[test]
fn the_server_is_done_before_the_client_has_read_the_accept() {
    let mut second = next(&first(), config(), SizeCode::MIN, |_| {});
    second.client.settle(second.now);
    let bytes = second.client.take_sent();
    second.server.receive(second.now, &bytes, usize::MAX);
    assert_eq!(second.server.direct().peer_buffer.size, SizeCode::MIN);
}

#[test]
fn a_confirm_follows_where_the_early_one_is_not_taken() {
    let first = first();
    let size = SizeCode::LINUX_DEFAULT;
    // The server does not have the feature any more.
    let without = next(&first, host(), size, |_| {}).completed();
    // Another device, on another fabric.
    let other_gid = next(&first, config(), size, |end| end.gid = device(1, LOOP).gid);
    let other_chid = next(&first, config(), size, |end| end.chid = Chid(0xff02));
    // Longer than the buffer of the server.
    let mut short = next(&first, config(), size, |_| {});
    let no_memory = [DeviceError::NoMemory].into();
    short
        .server
        .faults
        .register
        .insert(DeviceIndex(0), no_memory);
    // The server has no such group any more.
    let mut forgotten = next(&first, config(), size, |_| {});
    forgotten.server.groups = Rc::default();
    let all = [
        without,
        other_gid.completed(),
        other_chid.completed(),
        short.completed(),
        forgotten.completed(),
    ];
    for pair in all {
        assert!(behind_proposal(&pair) >= 78, "a CONFIRM");
        let (client, server) = (pair.client.direct(), pair.server.direct());
        assert_eq!(server.peer_buffer.token, client.local);
        assert_eq!(server.peer_buffer.size, client.local_size);
        assert!(client.local_size <= server.local_size);
    }
}

#[test]
fn a_client_that_cannot_do_what_it_has_confirmed_ends_the_connection() {
    let first = first();
    let mut second = next(&first, config(), SizeCode::MIN, |_| {});
    second.client.faults.attach = Some(Err(DeviceError::NoMemory));
    second.run();
    second.server.established();
    assert_eq!(
        behind_proposal(&second),
        0,
        "no DECLINE, which would be data"
    );
    let Error::Declined(reason) = second.client.error() else {
        panic!("{:?}", second.client.error())
    };
    assert_eq!(reason.local, DeclineCode::MEM);
    assert_eq!(second.client.groups.borrow().connections(), 1);
}

#[test]
fn a_server_that_states_what_was_not_offered_is_refused() {
    let extended = |accept: &AcceptConfirm| {
        let extensions = Extensions {
            features: Some(Features::EARLY_CONFIRM),
            ..Extensions::default()
        };
        let mut bytes = vec![0; accept.extended_len(&extensions)];
        accept.emit_extended(&extensions, &mut bytes).unwrap();
        bytes
    };
    let first = first();
    let groups = [&first.client, &first.server].map(|side| Rc::clone(&side.groups));
    let [here, there] = groups;
    let plain = Pair::with_groups(config(), host(), here, there).completed();
    let [accept] = &plain.accepts()[..] else {
        panic!("one ACCEPT")
    };
    // Without an early CONFIRM; for another device than the one that may write to the buffer; for a
    // buffer that is longer than the server's.
    let unasked = HandshakeFixture::client(config(), &TcpPath::default());
    let with_early = || {
        let pair = next(&first, config(), SizeCode::LINUX_DEFAULT, |_| {});
        HandshakeFixture {
            side: pair.client,
            now: pair.now,
        }
    };
    let changed = |change: fn(&mut DirectEnd)| {
        let mut accept = accept.clone();
        let Body::D(end) = &mut accept.body else {
            panic!("SMC-D here")
        };
        change(end);
        accept
    };
    let other = changed(|end| end.gid = device(1, LOOP).gid);
    let shorter = changed(|end| end.size = SizeCode::MIN);
    let refused = [
        (unasked, accept),
        (with_early(), &other),
        (with_early(), &shorter),
    ];
    for (mut client, accept) in refused {
        client.side.settle(client.now);
        client.receive(&extended(accept));
        let unexpected = PeerMisbehaved::UnexpectedMessage;
        assert_eq!(*client.side.error(), unexpected.into());
    }
}

/// Its application may have accepted, written and closed before the client reads the ACCEPT.
#[test]
fn what_a_server_has_written_is_kept_if_it_ends_before_the_client_attaches() {
    let first = first();
    let no_buffer = DeviceError::Invalid("no such buffer any more");
    for error in [DeviceError::PeerGone, no_buffer] {
        let mut second = next(&first, config(), SizeCode::MIN, |_| {});
        second.client.faults.attach = Some(Err(error));
        second.run();
        second.server.established();
        assert_eq!(second.client.direct().access, PeerAccess::Lost);
    }
    // The end of the link group comes first.
    let mut second = next(&first, config(), SizeCode::MIN, |_| {});
    second.client.faults.stall = Some("attach");
    second.settle();
    second.server.established();
    second.client.machine.handle_terminated();
    let gone = WorkDone::Attached(Err(DeviceError::PeerGone));
    second.client.machine.handle_done(second.now, gone);
    second.client.settle(second.now);
    assert_eq!(second.client.direct().access, PeerAccess::Lost);
}
