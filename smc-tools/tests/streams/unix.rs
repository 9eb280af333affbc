//! `smc proxy` with UNIX sockets.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::sys::signal::Signal;

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

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}
