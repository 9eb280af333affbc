//! `smc proxy` with UNIX sockets.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;

use nix::sys::signal::Signal;
use smc_testkit::unix::{lingering, send_if_possible};
use smc_testkit::wait::TIMEOUT;
use socket2::SockRef;

use crate::process::{World, data, reverse, tcp_server};

const LEN: usize = 1_000_000;

#[test]
fn unix_sockets_are_at_both_ends_of_a_chain() {
    let world = World::new();
    let server = tcp_server(reverse);
    let folder = world.dir.path().display().to_string();
    // No other process has a name with that folder.
    let (last, third) = world.proxy(&format!("--listen unix:@{folder}/server --to tcp:{server}"));
    let (_middle, second) = world.proxy(&format!("--listen 127.0.0.1:0 --to {third}"));
    let (first, at) = world.proxy(&format!("-v --listen unix:{folder}/client --to {second}"));
    let path = Path::new(at.strip_prefix("unix:").unwrap());
    assert_eq!(mode(path), 0o600);
    let mut client = UnixStream::connect(path).unwrap();
    client.write_all(&data(1, LEN)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut received = Vec::new();
    client.read_to_end(&mut received).unwrap();
    received.reverse();
    assert!(received == data(1, LEN));
    let line = first.line_with("complete");
    let me = format!("unix (process {}, user ", std::process::id());
    assert!(line.contains(&me) && line.contains("SMC-D v2.1"), "{line}");
    for mut proxy in [first, last] {
        proxy.signal(Signal::SIGTERM);
        assert_eq!(proxy.status().code(), Some(0));
    }
    assert!(!path.exists());
}

#[test]
fn a_path_that_a_dead_process_has_left_behind_is_replaced() {
    let world = World::new();
    let path = world.dir.path().join("sock");
    let arguments = format!("--listen unix:{} --to tcp:127.0.0.1:1", path.display());
    let (mut killed, _) = world.proxy(&arguments);
    killed.kill();
    assert!(path.exists());
    let (_next, _) = world.proxy(&format!("{arguments} --mode 0660"));
    assert_eq!(mode(&path), 0o660);
    UnixStream::connect(&path).unwrap();
}

#[test]
fn an_address_in_use_is_an_error_that_names_it() {
    let world = World::new();
    let path = world.dir.path().join("sock").display().to_string();
    let to = "--to tcp:127.0.0.1:1";
    for listen in [format!("unix:{path}"), format!("unix:@{path}")] {
        let (_proxy, at) = world.proxy(&format!("--listen {listen} {to}"));
        let (code, errors) = world.smc(&format!("proxy --listen {at} {to}")).end();
        assert_eq!(code, Some(1));
        assert!(
            errors.contains(&path) && errors.contains("in use"),
            "{errors}"
        );
    }
    // A file that is no socket is not touched.
    let path = world.dir.path().join("file").display().to_string();
    std::fs::write(&path, "text").unwrap();
    let (code, errors) = world.smc(&format!("proxy --listen unix:{path} {to}")).end();
    assert_eq!(code, Some(1));
    assert!(
        errors.contains(&format!("{path} exists and is no socket")),
        "{errors}"
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "text");
}

/// A client passes what takes very long to close, as often as the proxy has threads and more.
#[test]
fn what_a_client_passes_keeps_no_other_client_from_being_served() {
    let world = World::new();
    let server = tcp_server(reverse);
    let threads = std::thread::available_parallelism().unwrap().get();
    let path = world.dir.path().join("sock");
    for listen in ["unix:", "unix:@"] {
        let listen = format!("{listen}{}", path.display());
        let arguments = format!("--listen {listen} --to tcp:{server} --grace 0");
        let (mut proxy, _) = world.proxy(&arguments);
        let connect = || match listen.strip_prefix("unix:@") {
            Some(name) => {
                let address = SocketAddr::from_abstract_name(name).unwrap();
                UnixStream::connect_addr(&address).unwrap()
            }
            None => UnixStream::connect(&path).unwrap(),
        };
        // Meanwhile it receives nothing, so that it gets the last descriptors.
        proxy.signal(Signal::SIGSTOP);
        let hostile: Vec<_> = (0..threads + 2)
            .map(|_| {
                let client = connect();
                let (slow, far) = lingering(100 * TIMEOUT);
                if !send_if_possible(&client, b"x", &[slow.as_fd()]) {
                    SockRef::from(&slow).set_linger(None).unwrap();
                }
                (client, far)
            })
            .collect();
        proxy.signal(Signal::SIGCONT);
        for _ in 0..4 {
            let mut client = connect();
            client.set_read_timeout(Some(TIMEOUT)).unwrap();
            client.write_all(b"honest").unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            let mut received = Vec::new();
            client.read_to_end(&mut received).unwrap();
            assert_eq!(received, b"tsenoh");
        }
        // Nor the proxy from ending.
        proxy.signal(Signal::SIGTERM);
        assert_eq!(proxy.status().code(), Some(0));
        drop(hostile);
    }
}

#[test]
fn a_mode_for_a_name_in_the_abstract_namespace_is_refused() {
    let world = World::new();
    let folder = world.dir.path().display().to_string();
    let arguments = format!("proxy --listen unix:@{folder} --to tcp:127.0.0.1:1 --mode 0600");
    let (code, errors) = world.smc(&arguments).end();
    assert_eq!(code, Some(2));
    assert!(
        errors.contains("--mode has no effect on unix:@NAME"),
        "{errors}"
    );
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}
