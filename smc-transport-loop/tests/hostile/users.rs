//! Users who may not be peers, and users who may.

use super::*;

/// Tries all it can without being allowed.
pub(super) fn refused_user(role: &Role) {
    let us = DrivenDevice::new(LoopDevice::builder().domain(Domain::shared(role.dir(), [0])));
    role.send(us.gid());
    let them = role.parse::<Gid>();
    role.send(match block_on(us.device.register(them, LEN)) {
        Err(DeviceError::NotPermitted(_)) => "not permitted",
        Err(DeviceError::Unreachable { .. } | DeviceError::PeerGone) => "refused",
        Err(other) => panic!("{other:?}"),
        Ok(_) => {
            us.wait(Event::PeerGone(them));
            "refused"
        }
    });
    assert_eq!(role.recv(), None);
}

#[test]
fn other_users_are_refused() {
    if !is_root("start processes of other users") {
        return;
    }
    // The directory is closed.
    let dir = shared_dir();
    let refused = device(dir.path()).build();
    assert!(
        matches!(refused, Err(DeviceError::RuntimeDir(_))),
        "open to all: {refused:?}"
    );
    // The socket is closed; then open for some other user.
    for allowed in [None, Some(1234)] {
        let dir = shared_dir();
        let users = [allowed.unwrap_or(1)];
        let us = DrivenDevice::new(LoopDevice::builder().domain(Domain::shared(dir.path(), users)));
        if allowed.is_none() {
            let path = socket_path(&dir.path().join("0"), us.gid());
            fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
        }
        let mut helper = start_as(USER, "refused", &dir);
        let them = helper.parse::<Gid>();
        let reached = block_on(us.device.reach(them));
        assert!(
            matches!(reached, Err(DeviceError::Unreachable { .. })),
            "is not looked for: {reached:?}"
        );
        helper.send(us.gid());
        us.wait_within(Duration::from_millis(100), |_| false);
        let expected = if allowed.is_some() {
            "refused"
        } else {
            "not permitted"
        };
        assert_eq!(helper.recv(), expected);
        helper.finish();
    }
}

/// A socket of this user under the name of the device with this GID, and a channel to the victim.
fn listen_and_connect(
    user: u32,
    dir: &TempDir,
    gid: Gid,
    victim: &DrivenDevice,
) -> (OwnedFd, OwnedFd) {
    let [own_dir, victim_dir] = [user, 0].map(|user| dir.path().join(user.to_string()));
    let listen_and_connect = || {
        fs::create_dir(&own_dir).unwrap();
        fs::set_permissions(&own_dir, PermissionsExt::from_mode(0o755)).unwrap();
        let channel = connect_to(socket_path(&victim_dir, victim.gid()));
        (listen_at(own_dir.join(socket_name(gid))), channel)
    };
    run_as(user, listen_and_connect).unwrap()
}

/// A user whom the victim allows makes a socket under the name of the device of another such user,
/// in the directory of its own, which comes first in the order of the domain.
#[test]
fn a_user_cannot_take_the_gid_of_another_user_s_device() {
    if !is_root("start processes of other users") {
        return;
    }
    let (attacker, honest) = (USER, USER + 1);
    let dir = shared_dir();
    let domain = Domain::shared(dir.path(), [attacker, honest]);
    let victim = DrivenDevice::new(LoopDevice::builder().domain(domain));
    let mut helper = start_as(honest, "accepted", &dir);
    let gid = helper.parse::<Gid>();
    let (listener, channel) = listen_and_connect(attacker, &dir, gid, &victim);
    send_hello(&channel, gid, sealed(SIGNAL_PAGE_LEN), doorbell());
    victim.accept_of(&[attacker, honest]);
    assert_eq!(victim.device.peers(), 0);
    assert!(is_closed(&channel));

    // The owner of the GID is still reached, and still accepted.
    let dmb = victim.register(gid);
    assert_eq!(victim.device.process(gid).unwrap().unwrap().uid, honest);
    ioctl_fionbio(&listener, true).unwrap();
    assert_eq!(accept(&listener).unwrap_err(), Errno::AGAIN);
    exchange_signals(&victim, &mut helper, gid, &*dmb);
    helper.finish();
}

/// A user whom the victim allows announces the same memory behind very many slots.
#[test]
fn a_user_with_very_many_buffers_leaves_mappings_to_others() {
    if !is_root("start processes of other users") {
        return;
    }
    let (attacker, honest) = (USER, USER + 1);
    let dir = shared_dir();
    let domain = Domain::shared(dir.path(), [attacker, honest]);
    let victim = DrivenDevice::new(LoopDevice::builder().domain(domain).max_mappings(64));
    let any = Gid::new(0x1111, 0x2222).to_u128();
    let gid = Gid::emulated(any & !u128::from(u32::MAX) | u128::from(attacker));
    let (_listener, channel) = listen_and_connect(attacker, &dir, gid, &victim);
    let (signal_page, memory) = (sealed(SIGNAL_PAGE_LEN), sealed(LEN as u64));
    send_hello(&channel, gid, &signal_page, doorbell());
    victim.accept_of(&[attacker]);
    assert_eq!(victim.device.peers(), 1);
    for index in 0..100 {
        let slot = 0x2000 + u64::from(index) * 64;
        signal_page
            .write_at(&5_u64.to_ne_bytes(), slot + 32)
            .unwrap();
        let message = message(2, index, 5, LEN as u64);
        send(&channel, &message, &[memory.as_fd()]);
        victim.drain();
    }

    let mut helper = start_as(honest, "accepted", &dir);
    let gid = helper.parse::<Gid>();
    let dmb = victim.register(gid);
    exchange_signals(&victim, &mut helper, gid, &*dmb);
    helper.finish();
}

/// A user whom the victim allows has its share of the mappings of the process, as with buffers of
/// other devices.
#[test]
fn a_user_has_one_share_of_mappings_in_all_devices_of_a_process() {
    if !is_root("start processes of other users") {
        return;
    }
    // Of no other test, as those have the same account.
    let (attacker, honest) = (USER + 2, USER);
    let dir = shared_dir();
    let domain = Domain::shared(dir.path(), [attacker, honest]);
    let victim = DrivenDevice::new(LoopDevice::builder().domain(domain));
    let any = Gid::new(0x1111, 0x2222).to_u128();
    let gid = Gid::emulated(any & !u128::from(u32::MAX) | u128::from(attacker));
    let (listener, channel) = listen_and_connect(attacker, &dir, gid, &victim);
    let hostile = HostilePeer {
        gid,
        channel,
        listener,
        signal_page: sealed(SIGNAL_PAGE_LEN),
    };
    send_hello(&hostile.channel, gid, &hostile.signal_page, doorbell());
    victim.accept_of(&[attacker]);
    assert_eq!(victim.device.peers(), 1);
    let memory = sealed(LEN as u64);
    let mut slots = 0..;
    let mut of_others = Vec::new();
    let is_exhausted = |error: Option<DeviceError>| matches!(error, Some(DeviceError::Exhausted));
    // What other tests give back is added to the share.
    let are_refused = || {
        of_others.extend(std::iter::from_fn(|| mappings::take(attacker).ok()));
        let token = hostile.offer_usual(slots.next().unwrap(), &memory);
        is_exhausted(victim.try_attach(gid, token).err())
            && is_exhausted(block_on(victim.device.register(gid, LEN)).err())
    };
    until(are_refused, || "there are mappings left".to_owned());

    let mut helper = start_as(honest, "accepted", &dir);
    let accepted = helper.parse::<Gid>();
    let dmb = victim.register(accepted);
    exchange_signals(&victim, &mut helper, accepted, &*dmb);
    helper.finish();

    drop(of_others);
    let token = hostile.offer_usual(slots.next().unwrap(), &memory);
    victim.attach(gid, token);
    victim.register(gid);
}

/// A peer of another user that has memory files as well can watch their end, with epoll entries
/// each of which takes time.
#[test]
fn memory_that_a_peer_of_another_user_has_is_unmapped_on_the_closing_threads() {
    if !is_root("start processes of other users") {
        return;
    }
    // No other test has its closing threads blocked.
    let user = USER + 3;
    let dir = shared_dir();
    let domain = Domain::shared(dir.path(), [user]);
    let victim = DrivenDevice::new(LoopDevice::builder().domain(domain));
    let any = Gid::new(0x1111, 0x3333).to_u128();
    let gid = Gid::emulated(any & !u128::from(u32::MAX) | u128::from(user));
    let (listener, channel) = listen_and_connect(user, &dir, gid, &victim);
    let (signal_page, memory) = (sealed(SIGNAL_PAGE_LEN), sealed(LEN as u64));
    send_hello(&channel, gid, &signal_page, doorbell());
    victim.accept_of(&[user]);
    signal_page
        .write_at(&5_u64.to_ne_bytes(), 0x2000 + 32)
        .unwrap();
    let offer = message(2, 0, 5, LEN as u64);
    send(&channel, &offer, &[memory.as_fd()]);
    victim.drain();
    let dmb = victim.register(gid);
    let to_peer = accept(&listener).unwrap();
    let hello = receive_files(&to_peer);
    let of_victim = receive_files(&to_peer);
    let all = [&signal_page, &memory, &hello[0], &of_victim[0]];
    assert!(all.iter().all(is_mapped));

    let far = run_as(user, block_closing_threads).unwrap();
    drop((dmb, channel, to_peer, listener));
    victim.wait(Event::PeerGone(gid));
    drop(victim);
    assert_eq!(all.map(is_mapped), [true; 4]);
    drop(far);
    let is_unmapped = || !all.iter().any(is_mapped);
    until(is_unmapped, || "they stay mapped".to_owned());
}

/// Answers one signal.
pub(super) fn accepted_user(role: &Role) {
    let us = DrivenDevice::new(LoopDevice::builder().domain(Domain::shared(role.dir(), [0])));
    role.send(us.gid());
    let (them, token) = (role.parse::<Gid>(), DmbToken(role.parse()));
    let dmb = us.register(them);
    let attached = us.attach(them, token);
    role.send(dmb.token().0);
    let mut last = 0;
    for _ in 0..50 {
        last = us.wait_word(&*dmb, 8, last);
        attached.region().copy_in(8, &last.to_ne_bytes()).unwrap();
        attached.signal().unwrap();
    }
    assert_eq!(role.recv(), None);
}

/// Signals to an accepted user and back, with a buffer for it.
fn exchange_signals(us: &DrivenDevice, helper: &mut Child, them: Gid, dmb: &dyn Dmb) {
    helper.send(us.gid());
    helper.send(dmb.token().0);
    let attached = us.attach(them, DmbToken(helper.parse()));
    let mut last = 0;
    for round in 1..=50 {
        attached
            .region()
            .copy_in(8, &u64::to_ne_bytes(round))
            .unwrap();
        attached.signal().unwrap();
        last = us.wait_word(dmb, 8, last);
        assert_eq!(last, round);
    }
}

#[test]
fn other_users_can_be_allowed() {
    if !is_root("start processes of other users") {
        return;
    }
    let dir = shared_dir();
    let us = DrivenDevice::new(LoopDevice::builder().domain(Domain::shared(dir.path(), [USER])));
    let mut helper = start_as(USER, "accepted", &dir);
    let them = helper.parse::<Gid>();
    let dmb = us.register(them);
    exchange_signals(&us, &mut helper, them, &*dmb);
    helper.finish();
    us.wait(Event::PeerGone(them));
    drop(us);
    for user in [0, USER] {
        assert!(names(&dir.path().join(user.to_string())).is_empty());
    }
}
