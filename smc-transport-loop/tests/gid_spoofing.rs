//! A process that offers the GID of another one's device.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use common::{device, start, without_device};
use smc::{Endpoint, FallbackCause, Stream};
use smc_core::device::{Device, DeviceError, Direct};
use smc_core::error::SetupStep;
use smc_core::wire::types::DeclineCode;
use smc_testkit::on::On;
use smc_testkit::process::{Child, ENTRY, Role, command_by};
use smc_testkit::streams::{connect_smc, listen, ping_pong};
use smc_testkit::world::ScriptedDevice;
use smc_transport_loop::LoopDevice;

/// What helpers do.
#[test]
fn helper_process() {
    let Some(role) = Role::current() else { return };
    if role.name() == "unix-service" {
        return service(&role);
    }
    // A device of this process that announces the GID of another one.
    let device = ScriptedDevice::around(loop_device(role.dir())).with_gid(role.parse());
    let endpoint = endpoint(role.dir(), Arc::new(device));
    let stream = On::Smol.run(async {
        match role.name() {
            "client" => {
                let at: SocketAddr = role.parse();
                endpoint.connect(at).await.unwrap()
            }
            "unix-client" => endpoint.connect_unix(unix_path(role.dir())).await.unwrap(),
            "unix-listener" => {
                let listener = endpoint.bind_unix(unix_path(role.dir())).unwrap();
                role.send("bound");
                listener.accept().await.unwrap().0
            }
            "listener" => {
                let listener = listen(&endpoint).await;
                role.send(listener.local_addr().unwrap());
                listener.accept().await.unwrap().0
            }
            other => panic!("no role {other}"),
        }
    });
    role.send(stream.fallback_reason().unwrap());
    assert_eq!(role.recv(), None);
}

#[test]
fn a_process_cannot_use_the_gid_of_another_one() {
    claim_gids("client");
}

#[test]
fn a_listener_cannot_use_the_gid_of_another_process() {
    claim_gids("listener");
}

#[test]
fn a_client_cannot_name_the_device_of_another_process_at_a_unix_socket() {
    claim_gids("unix-client");
}

#[test]
fn a_listener_at_a_unix_socket_cannot_name_the_device_of_another_process() {
    claim_gids("unix-listener");
}

/// A listener with a device of its own. It states why its stream is not SMC.
fn service(role: &Role) {
    let device = loop_device(role.dir());
    let gid = device.gid();
    let endpoint = endpoint(role.dir(), device);
    On::Smol.run(async {
        let listener = endpoint.bind_unix(unix_path(role.dir())).unwrap();
        role.send(gid);
        let stream = listener.accept().await.unwrap().0;
        role.send(stream.fallback_reason().unwrap());
    });
    assert_eq!(role.recv(), None);
}

/// A listener in another PID namespace than its client sees no number of it, and can compare the
/// user alone. The device of the listener is its own all the same.
#[test]
fn a_client_in_another_pid_namespace_cannot_name_the_device_of_the_listener() {
    let launcher = ["unshare", "--pid", "--fork", "--kill-child", "--"];
    let mut tried = Command::new(launcher[0]);
    let tried = tried.args(&launcher[1..]).arg("true").output();
    if !tried.is_ok_and(|output| output.status.success()) {
        println!("skipped: this user cannot make a PID namespace");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let service = command_by(&launcher, ENTRY);
    let mut service = Child::spawn(service, "unix-service", dir.path().display());
    let device = ScriptedDevice::around(loop_device(dir.path())).with_gid(service.parse());
    let client = endpoint(dir.path(), Arc::new(device));
    let stream = On::Smol.run(async { client.connect_unix(unix_path(dir.path())).await });
    let reason = service.recv();
    let code = format!("{:#010x} ", DeclineCode::NOSMCD2DEV.0);
    assert!(reason.starts_with(&code), "{reason}");
    assert!(!stream.unwrap().mode().is_smc());
    service.finish();
}

fn unix_path(dir: &Path) -> PathBuf {
    dir.join("app.sock")
}

/// A process in this role claims the GIDs of two devices, and affects neither.
fn claim_gids(role: &str) {
    let dir = tempfile::tempdir().unwrap();
    let (client, server) = (loop_device(dir.path()), loop_device(dir.path()));
    let gids = [client.gid(), server.gid()];
    let client = endpoint(dir.path(), client);
    let server = endpoint(dir.path(), server);
    On::Smol.run(async {
        let listener = listen(&server).await;
        let mut streams = connect_smc(&client, &listener).await;
        for claimed in gids {
            let unix = unix_path(dir.path());
            // A client finds the path as it starts.
            let at_path = (role == "unix-client").then(|| server.bind_unix(&unix).unwrap());
            let mut other = start(role, &dir);
            other.send(claimed);
            let stream = match role {
                "client" => {
                    other.send(listener.local_addr().unwrap());
                    listener.accept().await.unwrap().0
                }
                "listener" => {
                    let at: SocketAddr = other.parse();
                    client.connect(at).await.unwrap()
                }
                "unix-client" => at_path.unwrap().accept().await.unwrap().0,
                _ => {
                    assert_eq!(other.recv(), "bound");
                    client.connect_unix(&unix).await.unwrap()
                }
            };
            let _removed = std::fs::remove_file(&unix);
            assert_refused(&stream);
            other.recv();
            other.finish();
            // The owner of the GID is not affected.
            ping_pong(&mut streams).await;
        }
        let mut next = connect_smc(&client, &listener).await;
        ping_pong(&mut next).await;
        for endpoint in [&client, &server] {
            assert_eq!(endpoint.link_groups().len(), 1);
            assert_eq!(endpoint.link_groups()[0].connections, 2);
        }
    });
}

/// The device that the other end has named is not one of that process.
fn assert_refused(stream: &Stream) {
    let reason = stream.fallback_reason().expect("TCP");
    assert_eq!(reason.local, DeclineCode::NOSMCD2DEV, "{reason}");
    let FallbackCause::Device { step, error } = &reason.cause else {
        panic!("{reason}");
    };
    assert_eq!(*step, SetupStep::Reach);
    assert!(matches!(error, DeviceError::PeerMisbehaved(_)), "{reason}");
}

#[test]
fn an_endpoint_that_connects_to_itself_uses_its_own_gid() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = endpoint(dir.path(), loop_device(dir.path()));
    On::Smol.run(async {
        let listener = listen(&endpoint).await;
        let mut streams = connect_smc(&endpoint, &listener).await;
        ping_pong(&mut streams).await;
    });
}

fn loop_device(dir: &Path) -> Arc<LoopDevice> {
    Arc::new(device(dir).build().unwrap())
}

fn endpoint(dir: &Path, device: Arc<dyn Device>) -> Endpoint {
    without_device(On::Smol, dir)
        .device(device)
        .build()
        .unwrap()
}
