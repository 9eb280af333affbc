//! What a user who is allowed cannot do.

use std::mem::MaybeUninit;

use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use smc_core::negotiate::{Delivery, Published, Withdrawn};
use smc_core::runtime::Socket;
use smc_testkit::port::HeldPort;
use smc_testkit::unix::listen_at;
use smc_testkit::user::run_as;
use smc_testkit::wait::until;

use super::raw::RawChannel;
use super::*;

#[test]
fn a_stream_goes_to_no_listener_that_has_not_got_its_connection() {
    run_users(|world| async move {
        let server = world.server_of(USER, 0);
        let client = world.shared(&[USER]);
        let candidate = client.look_up(&world.rt, server.at()).await.unwrap();
        let service = std::net::TcpListener::bind(loopback(0)).unwrap();
        for is_taken in [false, true] {
            // The network redirects it to another service, as a rule of a packet filter does.
            let at = service.local_addr().unwrap();
            let mut connection = world.dial_by(&candidate, at).await;
            let (accepted, from) = service.accept().unwrap();
            if is_taken {
                // The listener claims that it has got it.
                let plain = TcpStream::connect(server.at()).unwrap();
                let (socket, _) = server.accept().await;
                let _side_channel = claim(&*server.published, &*socket, from);
                drop(plain);
            }
            assert_eq!(connection.connected(), Delivery::Plain);
            let mut offer = connection.offer.unwrap();
            assert_eq!(offer.withdraw(), Withdrawn::Free);
            assert_eq!(offer.cause(), FallbackCause::NotProven);
            drop(accepted);
        }
        let mut connection = world.dial_by(&candidate, server.at()).await;
        assert_eq!(connection.connected(), Delivery::Delivered);
        assert_eq!(server.accept_one().await, announced());
    });
}

#[test]
fn a_port_that_has_changed_hands_is_not_offered_to_the_user_who_had_it() {
    run_users(|world| async move {
        let port = HeldPort::of(Ipv4Addr::LOCALHOST).unwrap();
        let Server {
            acceptor,
            published,
        } = world.server_of(USER, port.addr().port());
        let client = world.shared(&[USER]);
        let first = world.dial(&client, port.addr()).await;
        assert!(first.offer.is_some());
        // Looked up when it was known where the connection before it went.
        let candidate = client.look_up(&world.rt, port.addr()).await.unwrap();
        drop(acceptor);
        let _service = take_over(port.addr());
        assert!(Announced::to(&candidate).is_none());
        drop(published);
    });
}

#[test]
fn a_port_that_changes_hands_after_the_offer_gives_the_user_who_had_it_nothing() {
    run_users(|world| async move {
        let port = HeldPort::of(Ipv4Addr::LOCALHOST).unwrap();
        let at = port.addr();
        for is_taken in [false, true] {
            let server = world.server_of(USER, at.port());
            let client = world.shared(&[USER]);
            let candidate = client.look_up(&world.rt, at).await.unwrap();
            let _earlier = TcpStream::connect(at).unwrap();
            let (earlier, _) = server.accept().await;
            let Server {
                acceptor,
                published,
            } = server;
            let mut acceptor = Some(acceptor);
            let mut service = None;
            let mut offer = None;
            let mut announce = |socket: &Unconnected<'_>| {
                offer = Some(candidate.offer(socket, PROPOSAL, None).unwrap());
                drop(acceptor.take());
                service = Some(take_over(at));
                Ok(())
            };
            let options = SocketOptions::default();
            let socket = world.rt.connect(at, &options, &mut announce).await.unwrap();
            let service = service.unwrap();
            let (_accepted, from) = service.accept().unwrap();
            let mut connection = Connection { socket, offer };
            if is_taken {
                // The user who had the port claims the connection that the service has got.
                let _side_channel = claim(&*published, &*earlier, from);
                assert_eq!(connection.connected(), Delivery::Delivered);
                // With nothing: it may have been accepted before the port changed hands.
                until_lost(&mut **connection.offer.as_mut().unwrap()).await;
            } else {
                assert_eq!(connection.connected(), Delivery::Plain);
                let mut offer = connection.offer.unwrap();
                assert_eq!(offer.withdraw(), Withdrawn::Free);
                assert_eq!(offer.cause(), FallbackCause::NotProven);
            }
        }
    });
}

#[test]
fn names_of_another_users_listener_take_nothing_and_hide_nothing() {
    run_users(|world| async move {
        let open = world.shared(&[USER]);
        let server = world.server_with(loopback(0), &SocketOptions::default(), &open);
        let real = names(&world.dir.path.join("0")).pop().unwrap();
        let forger = Forger::of(USER, &world, &real, 128);
        let client = world.shared(&[USER]);
        for _ in 0..2 {
            world.assert_announced(&client, &server).await;
        }
        assert!(forger.accept().is_empty(), "they are not even connected to");
    });
}

/// Its owner, and who may read it, can have each process that reads it wait.
#[test]
fn only_the_directory_of_the_listeners_owner_is_read() {
    run_users(|world| async move {
        let open = world.shared(&[USER]);
        let server = world.server_with(loopback(0), &SocketOptions::default(), &open);
        let theirs = world.server_of(USER, 0);
        let other = world.dir.path.join(USER.to_string());
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&events, &other, WatchFlags::OPEN | WatchFlags::ACCESS).unwrap();
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut reads = Reader::new(&events, &mut space);
        let client = world.shared(&[USER]);
        let mut read_at = async |to| {
            // Of this directory: sockets in it may be opened.
            let candidate = client.look_up(&world.rt, to).await;
            assert!(candidate.is_ok());
            let next = || reads.next().ok().map(|event| event.file_name().is_none());
            std::iter::from_fn(next).any(|is_itself| is_itself)
        };
        assert!(!read_at(server.at()).await);
        assert!(read_at(theirs.at()).await);
    });
}

#[test]
fn a_user_with_ever_new_names_has_a_bounded_number_of_channels() {
    run_users(|world| async move {
        let acceptor = run_as(USER, || std::net::TcpListener::bind(loopback(0)).unwrap());
        let acceptor = acceptor.unwrap();
        let to = acceptor.local_addr().unwrap();
        let cookie = sockopt::socket_cookie(&acceptor).unwrap();
        let netns = smc_ipc::netns::current().unwrap();
        let like = format!(
            "s-{}-7f000001-{netns:x}-{cookie:x}-00000000.sock",
            to.port()
        );
        let client = world.shared(&[USER]);
        let mut forgers = Vec::new();
        let mut channels = Vec::new();
        for _ in 0..4 {
            // Before, no name of the last round is left.
            forgers.push(Forger::of(USER, &world, &like, 32));
            let candidate = client.look_up(&world.rt, to).await.unwrap();
            let offered = Announced::to(&candidate);
            assert!(offered.is_some());
            let forger = forgers.last_mut().unwrap();
            channels.extend(forger.accept());
            forger.remove_names();
        }
        assert!(channels.len() > LIMIT);
        let open = || channels.iter().filter(|channel| !channel.is_ended());
        world.until(|| open().count() <= LIMIT).await;
    });
    /// Channels of a client to listeners of one other user.
    const LIMIT: usize = 64;
}

/// A socket that listens, with names of a listener.
struct Forger {
    socket: OwnedFd,
    names: Vec<PathBuf>,
}

impl Forger {
    /// With so many names like this one.
    fn of(uid: u32, world: &World, like: &str, count: usize) -> Self {
        static SALT: AtomicU32 = AtomicU32::new(1);
        let (head, _) = like.rsplit_once('-').unwrap();
        let dir = world.dir.path.join(uid.to_string());
        let name = || {
            let salt = SALT.fetch_add(1, Ordering::Relaxed);
            dir.join(format!("{head}-{salt:08x}.sock"))
        };
        let names: Vec<_> = std::iter::repeat_with(name).take(count).collect();
        let publish = || {
            fs::create_dir_all(&dir).unwrap();
            let socket = listen_at(&names[0]);
            rustix::net::listen(&socket, 128).unwrap();
            for name in &names[1..] {
                fs::hard_link(&names[0], name).unwrap();
            }
            socket
        };
        let socket = run_as(uid, publish).unwrap();
        Self { socket, names }
    }

    /// Channels that have come.
    fn accept(&self) -> Vec<RawChannel> {
        rustix::io::ioctl_fionbio(&self.socket, true).unwrap();
        let accepted = || rustix::net::accept(&self.socket).ok().map(RawChannel::from);
        std::iter::from_fn(accepted).collect()
    }

    fn remove_names(&mut self) {
        self.names
            .drain(..)
            .for_each(|name| fs::remove_file(name).unwrap());
    }
}

impl World {
    /// A listener of another user, who allows this one.
    fn server_of(&self, uid: u32, port: u16) -> Server {
        let local = self.shared(&[0]);
        let server = || self.server_with(loopback(port), &SocketOptions::default(), &local);
        run_as(uid, server).unwrap()
    }

    /// Makes the offer that belongs to another address for a connection to this one.
    async fn dial_by(&self, candidate: &Candidate, to: SocketAddr) -> Connection {
        let mut offer = None;
        let options = SocketOptions::default();
        let mut announce = |socket: &Unconnected<'_>| {
            offer = Some(candidate.offer(socket, PROPOSAL, None).unwrap());
            Ok(())
        };
        let socket = self.rt.connect(to, &options, &mut announce).await.unwrap();
        Connection { socket, offer }
    }
}

/// Listens at an address at which another socket has listened.
fn take_over(at: SocketAddr) -> std::net::TcpListener {
    // Children that other tests are starting may have that one for a moment.
    let mut taken = None;
    let is_taken = || {
        taken = std::net::TcpListener::bind(at).ok();
        taken.is_some()
    };
    until(is_taken, || format!("{at} is in use"));
    taken.unwrap()
}

/// Answers the offer of a connection that this socket is not the end of.
fn claim(published: &dyn Published, socket: &dyn Socket, from: SocketAddr) -> Box<dyn SideChannel> {
    let mut verdict = published.negotiated(socket, from);
    assert_eq!(Accepted::of(&mut verdict), announced());
    let Negotiated::SideChannel(mut side_channel) = verdict else {
        unreachable!("it was announced")
    };
    send(&mut *side_channel, b"ACCEPT");
    side_channel
}

/// Runs a scenario of several users whose sockets can be distinguished.
fn run_users<F: Future<Output = ()>>(scenario: impl Fn(World) -> F) {
    if has_sock_diag() {
        run_shared("become another user", scenario);
    } else {
        println!("skipped: why: no sock_diag here");
    }
}

/// A user without any rights, who need not have an account.
const USER: u32 = 990;
