use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::socket_cookie;
use smc_ipc::Domain;
use smc_testkit::resources::is_mapped;
use smc_testkit::slow_close::{block_closing_threads, slow_to_close};
use smc_testkit::user::run_as;
use smc_testkit::wait::until;
use tempfile::TempDir;

use super::*;
use crate::mailbox::{Announcement, own_permit};
use crate::netns::NetNs;

/// The channels of a listener without a TCP socket.
fn clients(dir: &TempDir) -> ListenerChannels {
    let at: SocketAddr = ([127, 0, 0, 1], 80).into();
    let entry = ListenerEntry {
        shared: false,
        port: at.port(),
        scope: Scope::One(at.ip()),
        netns: NetNs::current().unwrap(),
        cookie: 1,
        salt: 1,
    };
    let publication = Publication::new(domain(dir), entry.to_string()).unwrap();
    ListenerChannels::new(entry, publication, at).unwrap()
}

/// A user who is allowed, and one who is not.
const OTHER: u32 = 990;
const NOT_ALLOWED: u32 = 991;
/// Allowed, and in one test only.
const WITHOUT_MAPPINGS: u32 = 992;

/// Of the user of these tests and of others.
fn domain(dir: &TempDir) -> Domain {
    Domain::shared(dir.path(), [0, OTHER, WITHOUT_MAPPINGS])
}

/// A client that has sent HELLO.
fn client(dir: &TempDir, clients: &ListenerChannels) -> PeerSocket {
    let domain = domain(dir);
    let client = domain.connect(&clients.entry.to_string()).unwrap();
    let (_mailbox, file) = Mailbox::create(own_permit()).unwrap();
    introduce(&client, clients, &file);
    client
}

fn introduce(client: &PeerSocket, clients: &ListenerChannels, mailbox: &OwnedFd) {
    let netns = clients.entry.netns;
    let hello = ToListener::Hello { netns }.encode();
    send(client, &hello, &[mailbox.as_fd()]).unwrap();
}

/// A directory that other users can enter; `None`, and says why, if this process cannot become
/// another user.
fn dir_of_all_users() -> Option<TempDir> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: why: needs root to become another user");
        return None;
    }
    let dir = TempDir::new().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).unwrap();
    Some(dir)
}

/// A server whose connections these clients announce, and its address; `None`, and says why, on
/// a kernel that does not report the owners of sockets.
fn serve(clients: &mut ListenerChannels) -> Option<(TcpListener, SocketAddr)> {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = server.local_addr().unwrap();
    let mut diag = SockDiag::open().unwrap();
    if let Err(error) = diag.find(to, to) {
        println!("skipped: why: no sock_diag here: {error}");
        return None;
    }
    clients.diag = Some(diag);
    Some((server, to))
}

/// Announces a connection as a client does.
fn announce(mailbox: &Mailbox, announcement: Announcement) {
    announce_in(mailbox, 0, announcement);
}

fn announce_in(mailbox: &Mailbox, number: u32, announcement: Announcement) {
    let slot = mailbox.slot(number).unwrap();
    assert!(slot.offer(announcement, b"PROPOSAL", None).is_some());
    assert!(mailbox.insert(announcement.from.port(), number));
}

/// Sends packets until there is no space; returns their number.
fn fill(client: &PeerSocket) -> usize {
    let look = ToListener::Notify { slot: 0 }.encode();
    let mut count = 0;
    while send(client, &look, &[]).is_ok() {
        count += 1;
    }
    count
}

#[test]
fn a_client_has_a_second_to_send_hello() {
    let dir = TempDir::new().unwrap();
    let mut clients = clients(&dir);
    let silent = domain(&dir);
    let silent = silent.connect(&clients.entry.to_string()).unwrap();
    let _client = client(&dir, &clients);
    let start = Instant::now();
    while clients.collect_at(start).more {}
    assert_eq!(clients.channels.len(), 2);
    let mut count_after = |time| {
        clients.end_without_hello(start + time, &mut Collected::default());
        clients.channels.len()
    };
    assert_eq!(count_after(HELLO_WITHIN - Duration::from_millis(1)), 2);
    assert_eq!(count_after(HELLO_WITHIN), 1);
    assert_eq!(clients.recent.len(), 1);
    assert!(clients.awaiting_hello.is_empty());
    let mut buf = [0; MAX_LEN];
    assert!(matches!(receive(&silent, &mut buf, 1), Received::Closed));
}

#[test]
fn a_mailbox_counts_as_a_mapping_of_the_client_s_user() {
    let Some(dir) = dir_of_all_users() else {
        return;
    };
    let mut clients = clients(&dir);
    let connect_as = |user| {
        let connect = || domain(&dir).connect_to(0, &clients.entry.to_string());
        run_as(user, connect).unwrap().unwrap()
    };
    let [without, other] = [WITHOUT_MAPPINGS, OTHER].map(connect_as);
    let take = || mappings::take(WITHOUT_MAPPINGS).ok();
    let _of_devices: Vec<_> = std::iter::from_fn(take).collect();
    let (_mailbox, file) = Mailbox::create(own_permit()).unwrap();
    for client in [&without, &other] {
        introduce(client, &clients, &file);
    }
    while clients.collect().more {}
    let users = clients.channels.values().map(|channel| channel.client.uid);
    assert_eq!(users.collect::<Vec<_>>(), [OTHER]);
    let refusal = Refusal::Full;
    let mut buf = [0; MAX_LEN];
    let Received::Packet(packet, _) = receive(&without, &mut buf, 1) else {
        panic!("no reason is given");
    };
    assert_eq!(packet, ToClient::Close { refusal }.encode());
}

#[test]
fn a_user_who_listens_where_a_connection_comes_from_cannot_claim_it() {
    let Some(dir) = dir_of_all_users() else {
        return;
    };
    let mut clients = clients(&dir);
    let Some((_server, to)) = serve(&mut clients) else {
        return;
    };
    let user = run_as(OTHER, || {
        let client = domain(&dir).connect_to(0, &clients.entry.to_string());
        let client = client.unwrap();
        (
            client,
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(),
            TcpStream::connect(to).unwrap(),
        )
    });
    let (client, listening, connected) = user.unwrap();
    let (mailbox, file) = Mailbox::create(own_permit()).unwrap();
    introduce(&client, &clients, &file);
    while clients.collect().more {}
    let mut is_claimed = |from, cookie: Result<u64, Errno>| {
        let cookie = cookie.unwrap();
        announce(&mailbox, Announcement { cookie, from, to });
        let claimed = clients.claim((from, to), Instant::now()).is_some();
        mailbox.remove(from.port(), 0);
        claimed
    };
    // The socket of the connection is on another host, or in another network namespace: of
    // those here it is the listening one that a packet to this address would go to.
    let from = listening.local_addr().unwrap();
    assert!(!is_claimed(from, socket_cookie(&listening)));
    let refusal = mailbox.slot(0).unwrap().refusal();
    assert_eq!(refusal, Refusal::Identity, "and the client gets to know");
    let from = connected.local_addr().unwrap();
    assert!(is_claimed(from, socket_cookie(&connected)));
}

#[test]
fn a_connection_with_very_many_false_announcements_costs_one_query_and_their_channels() {
    const CHANNELS: usize = 8;
    let Some(dir) = dir_of_all_users() else {
        return;
    };
    let mut clients = clients(&dir);
    let Some((_server, to)) = serve(&mut clients) else {
        return;
    };
    let user = run_as(OTHER, || {
        let domain = domain(&dir);
        let name = clients.entry.to_string();
        let connect = |_| domain.connect_to(0, &name).unwrap();
        let channels: Vec<_> = (0..=CHANNELS).map(connect).collect();
        (channels, TcpStream::connect(to).unwrap())
    });
    let (channels, tcp) = user.unwrap();
    let connect = |channel: &PeerSocket| {
        let (mailbox, file) = Mailbox::create(own_permit()).unwrap();
        introduce(channel, &clients, &file);
        mailbox
    };
    let mailboxes: Vec<_> = channels.iter().map(connect).collect();
    while clients.collect().more {}
    assert_eq!(clients.recent.len(), CHANNELS + 1);
    let from = tcp.local_addr().unwrap();
    let cookie = socket_cookie(&tcp).unwrap();
    // The channel that has announced it rightly is searched last.
    let [right, wrong @ ..] = &*mailboxes else {
        panic!("there are channels");
    };
    announce(right, Announcement { cookie, from, to });
    for mailbox in wrong {
        let cookie = cookie.wrapping_add(1);
        for slot in 0..8 {
            announce_in(mailbox, slot, Announcement { cookie, from, to });
        }
    }
    let queries = |clients: &ListenerChannels| clients.diag.as_ref().unwrap().queries();
    let before = queries(&clients);
    let claimed = clients.claim((from, to), Instant::now()).unwrap();
    assert!((claimed.client.uid, claimed.own) == (OTHER, false));
    assert_eq!(queries(&clients).wrapping_sub(before), 1);
    while clients.collect().more {}
    assert_eq!((clients.channels.len(), clients.recent.len()), (1, 1));
    // All of the user's channels are free again but that one.
    assert!(clients.has_capacity(OTHER));
    let mut buf = [0; MAX_LEN];
    assert!(matches!(
        receive(&channels[1], &mut buf, 1),
        Received::Closed
    ));
}

#[test]
fn of_the_offers_of_a_channel_for_one_connection_one_is_verified() {
    let Some(dir) = dir_of_all_users() else {
        return;
    };
    let mut clients = clients(&dir);
    let Some((server, to)) = serve(&mut clients) else {
        return;
    };
    let user = run_as(OTHER, || {
        let client = domain(&dir).connect_to(0, &clients.entry.to_string());
        (client.unwrap(), TcpStream::connect(to).unwrap())
    });
    let (client, connected) = user.unwrap();
    let (mailbox, file) = Mailbox::create(own_permit()).unwrap();
    introduce(&client, &clients, &file);
    while clients.collect().more {}
    let from = connected.local_addr().unwrap();
    let cookie = socket_cookie(&connected).unwrap();
    // The socket that would prove the offers is closed: the kernel knows its owner no longer.
    drop(connected);
    let (mut accepted, _) = server.accept().unwrap();
    assert_eq!(accepted.read(&mut [0]).unwrap(), 0);
    drop(accepted);
    for slot in 0..8 {
        announce_in(&mailbox, slot, Announcement { cookie, from, to });
    }
    assert!(clients.claim((from, to), Instant::now()).is_none());
    let left = (0..8).filter(|slot| mailbox.slot(*slot).unwrap().offered().is_some());
    assert_eq!(left.count(), 7);
    assert_eq!(clients.recent.len(), 1, "the channel goes on");
}

#[test]
fn a_client_that_sends_without_end_costs_each_poll_a_bounded_number_of_packets() {
    let dir = TempDir::new().unwrap();
    let mut clients = clients(&dir);
    let storming = client(&dir, &clients);
    assert!(!clients.collect().more);
    assert!(fill(&storming) > 4 * PACKETS);
    let collected = clients.collect();
    assert!(collected.more);
    assert!(collected.read <= PACKETS, "{} packets read", collected.read);
    // What comes meanwhile from others is seen all the same.
    let _other = client(&dir, &clients);
    fill(&storming);
    let collected = clients.collect();
    assert!(collected.more);
    assert_eq!(clients.recent.len(), 2);
    let most = 3 * PACKETS;
    assert!(collected.read <= most, "{} packets read", collected.read);
    // All of it is read in time.
    while clients.collect().more {}
    assert!(fill(&storming) > 4 * PACKETS);
}

#[test]
fn many_clients_that_send_without_end_cost_each_poll_a_bounded_number_of_packets() {
    let dir = TempDir::new().unwrap();
    let mut clients = clients(&dir);
    let storming: Vec<_> = (0..EVENTS + 32).map(|_| client(&dir, &clients)).collect();
    while clients.collect().more {}
    storming
        .iter()
        .for_each(|client| assert!(fill(client) > PACKETS));
    // One more sends HELLO, which is read all the same.
    let _other = client(&dir, &clients);
    let collected = clients.collect();
    let most = MAX_PACKETS + PACKETS_A_ROUND;
    assert!(
        most <= 2000 && collected.read <= most,
        "{} read",
        collected.read
    );
    assert_eq!(clients.recent.len(), storming.len() + 1);
}

#[test]
fn users_who_are_not_allowed_cost_each_poll_a_bounded_number_of_connections() {
    let Some(dir) = dir_of_all_users() else {
        return;
    };
    let mut clients = clients(&dir);
    let name = clients.entry.to_string();
    let connect = || (0..200).map(|_| domain(&dir).connect_to(0, &name).unwrap());
    let flood: Vec<_> = run_as(NOT_ALLOWED, || connect().collect()).unwrap();
    let mut refused = vec![0; flood.len()];
    let mut count_refused = || {
        for (client, packets) in flood.iter().zip(&mut refused) {
            let mut buf = [0; MAX_LEN];
            while let Received::Packet(packet, _) = receive(client, &mut buf, 1) {
                let refusal = Refusal::User { uid: NOT_ALLOWED };
                assert_eq!(ToClient::parse(packet), Some(ToClient::Close { refusal }));
                *packets += 1;
            }
        }
        refused.iter().filter(|packets| **packets == 1).count()
    };
    let mut wait_for_refused = |count| {
        let end = Instant::now() + Duration::from_secs(60);
        while count_refused() < count {
            assert!(Instant::now() < end, "{} of {count}", count_refused());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(count_refused(), count);
    };
    let collected = clients.collect();
    assert!(collected.more);
    wait_for_refused(MAX_ACCEPTS);
    // A client that is allowed has its turn. Its connection is refused while other tests have this
    // user's descriptors closed.
    let mut allowed = client(&dir, &clients);
    let end = Instant::now() + Duration::from_secs(60);
    while clients.recent.is_empty() {
        assert!(Instant::now() < end, "it waits");
        clients.collect();
        if let Received::Closed = receive(&allowed, &mut [0; MAX_LEN], 1) {
            allowed = client(&dir, &clients);
        }
    }
    wait_for_refused(flood.len());
}

#[test]
fn the_mailbox_of_a_client_of_another_user_is_unmapped_on_the_closing_threads() {
    let Some(dir) = dir_of_all_users() else {
        return;
    };
    let mut clients = clients(&dir);
    let name = clients.entry.to_string();
    let client = run_as(OTHER, || domain(&dir).connect_to(0, &name).unwrap()).unwrap();
    let (mailbox, file) = Mailbox::create(own_permit()).unwrap();
    introduce(&client, &clients, &file);
    drop(mailbox);
    while clients.collect().more {}
    assert!(is_mapped(&file));
    let far = run_as(OTHER, block_closing_threads).unwrap();
    drop(client);
    while clients.collect().more {}
    assert!(clients.channels.is_empty());
    assert!(is_mapped(&file));
    drop(far);
    until(|| !is_mapped(&file), || "it stays mapped".to_owned());
}

#[test]
fn a_channel_that_has_ended_is_not_ready_while_its_packets_are_not_closed_yet() {
    let Some(dir) = dir_of_all_users() else {
        return;
    };
    let mut clients = clients(&dir);
    let name = clients.entry.to_string();
    let connect = |count: usize| {
        let domain = domain(&dir);
        let connect = || domain.connect_to(0, &name).unwrap();
        run_as(OTHER, || (0..count).map(|_| connect()).collect::<Vec<_>>()).unwrap()
    };
    // The threads that close for this user are in calls that last.
    let blockers = connect(4);
    while clients.collect().more {}
    let mut held = Vec::new();
    for channel in &blockers {
        let (slow, far) = slow_to_close();
        held.push(far);
        send(channel, b"garbage", &[slow.as_fd()]).unwrap();
    }
    while clients.collect().more {}
    let others = connect(8);
    while clients.collect().more {}
    for channel in &others {
        for _ in 0..5 {
            send(channel, b"garbage", &[]).unwrap();
        }
    }
    while clients.collect().more {}
    assert_eq!(clients.channels.len(), 0);
    let mut ready = [PollFd::new(&clients.watched, PollFlags::IN)];
    assert_eq!(poll(&mut ready, Some(&Timespec::default())), Ok(0));
}
