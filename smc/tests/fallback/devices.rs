//! Devices that cannot do their part, between two endpoints.

use std::io::ErrorKind;
use std::time::Duration;

use futures_lite::{AsyncReadExt, AsyncWriteExt, future};
use smc_core::device::{DeviceError, Direct};
use smc_core::wire::types::DeclineCode;
use smc_testkit::memory_device::MemFabric;
use smc_testkit::streams::{expect, expect_error, expect_write_error};
use smc_testkit::world::{
    Call, Codes, Host, ScriptedDevice, World, accept_now, connect_pair, connect_pair_smc,
    exchange_to_end, join_smc, reason,
};

/// One side's device fails, that side declines, and both streams are TCP.
struct Row {
    name: &'static str,
    whose: Side,
    fault: fn(&Host),
    code: DeclineCode,
    takes: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

const fn row(name: &'static str, whose: Side, fault: fn(&Host), code: DeclineCode) -> Row {
    Row {
        name,
        whose,
        fault,
        code,
        takes: Duration::ZERO,
    }
}

#[test]
fn the_side_whose_device_fails_declines() {
    run(&[
        row(
            "no buffers left for the client",
            Side::Client,
            |host| host.device.fail(Call::Register, DeviceError::Exhausted),
            DeclineCode::MAX_DMB,
        ),
        row(
            "no buffers left for the server",
            Side::Server,
            |host| host.device.fail(Call::Register, DeviceError::Exhausted),
            DeclineCode::MAX_DMB,
        ),
        row(
            "no memory for the client, not even for the smallest buffer",
            Side::Client,
            |host| host.device.fail(Call::Register, DeviceError::NoMemory),
            DeclineCode::MEM,
        ),
        row(
            "no memory for the server, not even for the smallest buffer",
            Side::Server,
            |host| host.device.fail(Call::Register, DeviceError::NoMemory),
            DeclineCode::MEM,
        ),
        row(
            "the client's device is not permitted",
            Side::Client,
            |host| {
                let error = DeviceError::NotPermitted("injected fault".into());
                host.device.fail(Call::Register, error);
            },
            DeclineCode::MEM,
        ),
        row(
            "the client cannot attach",
            Side::Client,
            |host| host.device.fail(Call::Attach, DeviceError::PeerGone),
            DeclineCode::MEM,
        ),
        row(
            "the server does not reach the client",
            Side::Server,
            |host| host.device.fail(Call::Reach, DeviceError::PeerGone),
            DeclineCode::NOSMCD2DEV,
        ),
        row(
            "the client's device was removed",
            Side::Client,
            |host| host.device.remove(),
            // The server detects it first: it no longer reaches the client.
            DeclineCode::NOSMCD2DEV,
        ),
        row(
            "the server's device was removed",
            Side::Server,
            |host| host.device.remove(),
            DeclineCode::NOSMCD2DEV,
        ),
    ]);
}

#[test]
fn the_side_whose_device_stalls_declines_before_the_peer_times_out() {
    let stalling = |name, whose, fault, code| Row {
        takes: WORK,
        ..row(name, whose, fault, code)
    };
    run(&[
        stalling(
            "the client's buffer",
            Side::Client,
            |host| host.device.stall(Call::Register),
            DeclineCode::MEM,
        ),
        stalling(
            "the client's attachment",
            Side::Client,
            |host| host.device.stall(Call::Attach),
            DeclineCode::MEM,
        ),
        stalling(
            "the server's look-up",
            Side::Server,
            |host| host.device.stall(Call::Reach),
            DeclineCode::NOSMCD2DEV,
        ),
        stalling(
            "the server's buffer",
            Side::Server,
            |host| host.device.stall(Call::Register),
            DeclineCode::MEM,
        ),
    ]);
}

fn run(rows: &[Row]) {
    for row in rows {
        // Real sockets would keep the test waiting.
        let worlds = if row.takes.is_zero() { 3 } else { 2 };
        for world in World::all().into_iter().take(worlds) {
            println!("{}, {world}", row.name);
            run_row(&world, row);
        }
    }
}

fn run_row(world: &World, row: &Row) {
    let (client, server) = (world.host("client"), world.host("server"));
    let is_removed = row.name.contains("removed");
    let (host, declines) = match row.whose {
        Side::Client if !is_removed => (&client, Side::Client),
        Side::Client => (&client, Side::Server),
        Side::Server => (&server, Side::Server),
    };
    world.block_on(async {
        (row.fault)(host);
        let since = world.now();
        let (ours, theirs) = connect_pair(&client, &server).await;
        assert!(row.takes.is_zero() || world.has_taken(since, row.takes));
        let declined = Some(Codes::local(row.code));
        let peer_code = Some(Codes::peer_declined(row.code));
        let expected = match declines {
            Side::Client => (declined, peer_code),
            Side::Server => (peer_code, declined),
        };
        assert_eq!((reason(&ours), reason(&theirs)), expected);
        exchange_to_end((ours, theirs)).await;
        world.nothing_left([&client, &server]).await;

        if !is_removed {
            host.device.recover();
            let (ours, theirs) = connect_pair_smc(&client, &server).await;
            exchange_to_end((ours, theirs)).await;
            world.only_idle_groups_left([&client, &server]).await;
        }
    });
}

#[test]
fn too_little_memory_means_a_smaller_buffer() {
    for whose in [Side::Client, Side::Server] {
        let world = World::new();
        let host = |name| world.host_with(name, |builder| builder.recv_buffer(1 << 17));
        let (client, server) = (host("client"), host("server"));
        world.block_on(async {
            let host = if whose == Side::Client {
                &client
            } else {
                &server
            };
            let error = DeviceError::NoMemory;
            host.device.fail_times(Call::Register, error, 2);
            let (ours, theirs) = connect_pair(&client, &server).await;
            let (short, long) = match whose {
                Side::Client => (&ours, &theirs),
                Side::Server => (&theirs, &ours),
            };
            assert_eq!(short.recv_buffer_size(), Some((1 << 15) - 32));
            assert_eq!(long.peer_recv_buffer_size(), Some((1 << 15) - 32));
            // A client keeps to the size of the server's buffer.
            let long_len = if whose == Side::Client {
                1 << 17
            } else {
                1 << 15
            };
            assert_eq!(long.recv_buffer_size(), Some(long_len - 32));
            exchange_to_end((ours, theirs)).await;
        });
    }
}

#[test]
fn a_second_device_serves_when_the_first_cannot() {
    let world = World::new();
    let second = MemFabric::new(8);
    let spare = |name| {
        let device = ScriptedDevice::new(second.device(name));
        std::sync::Arc::new(device.on_fabric(0xff20))
    };
    let (client_spare, server_spare) = (spare("spare"), spare("spare"));
    let host = |name, spare| {
        let device = world.device(name).on_fabric(0xff10);
        world.host_on(device, |builder| builder.device(spare))
    };
    let client = host("client", client_spare.clone());
    let server = host("server", server_spare.clone());
    world.block_on(async {
        let faults: [(Call, DeviceError); 3] = [
            (Call::Reach, DeviceError::PeerGone),
            (Call::Register, DeviceError::Exhausted),
            (Call::Register, DeviceError::NoMemory),
        ];
        for (call, error) in faults {
            server.device.fail(call, error);
            let (ours, theirs) = connect_pair(&client, &server).await;
            for stream in [&ours, &theirs] {
                let smc::Mode::SmcD { device, .. } = stream.mode() else {
                    panic!("{}", stream.mode());
                };
                assert_eq!(&**device, "spare");
            }
            assert_eq!(server.device.dmbs(), 0, "nothing is kept of the first");
            assert_eq!(server.endpoint.link_groups().len(), 1);
            exchange_to_end((ours, theirs)).await;
            server.device.recover();
        }
        // What the first one has brought does not wait for the second one.
        let groups = server.endpoint.link_groups().len();
        server.device.fail(Call::Register, DeviceError::Exhausted);
        server_spare.stall(Call::Reach);
        let looks_on = async {
            world.sleep(Duration::from_secs(1)).await;
            assert_eq!(server.endpoint.link_groups().len(), groups);
            server_spare.recover();
        };
        let ((ours, theirs), ()) = future::zip(connect_pair(&client, &server), looks_on).await;
        assert_eq!((reason(&ours), reason(&theirs)), (None, None));
        exchange_to_end((ours, theirs)).await;

        // All of them: then both decline, with the first device's reason.
        server.device.fail(Call::Register, DeviceError::NoMemory);
        server_spare.fail(Call::Register, DeviceError::Exhausted);
        let (ours, theirs) = connect_pair(&client, &server).await;
        assert_eq!(reason(&theirs), Some(Codes::local(DeclineCode::MEM)));
        exchange_to_end((ours, theirs)).await;
        world.only_idle_groups_left([&client, &server]).await;
        assert_eq!((client_spare.dmbs(), server_spare.dmbs()), (0, 0));
    });
}

/// The client has confirmed and is in SMC mode: there is nothing left to fall back to. What it has
/// written by then is accepted, then the connection ends.
#[test]
fn a_device_in_the_place_of_a_removed_one_is_used() {
    for whose in [Side::Client, Side::Server] {
        let world = World::new();
        let (client, server) = (world.host("client"), world.host("server"));
        let host = match whose {
            Side::Client => &client,
            Side::Server => &server,
        };
        world.block_on(async {
            drop(connect_pair_smc(&client, &server).await);
            host.device.remove();
            world.sleep(Duration::from_secs(1)).await;
            assert_eq!(host.endpoint.devices().count(), 0);
            let (ours, theirs) = connect_pair(&client, &server).await;
            assert!(reason(&ours).is_some() && reason(&theirs).is_some());
            exchange_to_end((ours, theirs)).await;
            let again = std::sync::Arc::new(world.device("again"));
            host.endpoint.add_device(again.clone()).unwrap();
            let streams = connect_pair_smc(&client, &server).await;
            assert_eq!(again.dmbs(), 1);
            exchange_to_end(streams).await;
        });
    }
}

#[test]
fn a_server_that_cannot_attach_ends_the_connection_behind_what_was_written() {
    for (name, order) in [
        (
            "fails",
            (|host| host.device.fail(Call::Attach, DeviceError::NoMemory)) as fn(&Host),
        ),
        ("stalls", |host| host.device.stall(Call::Attach)),
    ] {
        println!("{name}");
        let world = World::new();
        world.between_hosts(async |client, server| {
            order(&server);
            let (listener, at) = server.listen().await;
            let mut ours = client.endpoint.connect(at).await.unwrap();
            assert_eq!(reason(&ours), None);
            ours.write_all(b"a 14-byte text").await.unwrap();
            world.sleep(WORK + Duration::from_millis(10)).await;
            let (mut theirs, _) = accept_now(&listener).unwrap();
            expect(&mut theirs, b"a 14-byte text").await;
            assert!(theirs.read(&mut [0; 8]).await.is_err());
            assert!(theirs.write(b"refused").await.is_err());
            drop(theirs);
            world.only_idle_groups_left([&server]).await;

            expect_error(&mut ours, ErrorKind::ConnectionAborted).await;
            expect_write_error(&mut ours, ErrorKind::ConnectionAborted).await;
            drop(ours);
            world.only_idle_groups_left([&client]).await;

            server.device.recover();
            let (ours, theirs) = join_smc(&client, &listener).await;
            exchange_to_end((ours, theirs)).await;
        });
    }
}

#[test]
fn a_reader_gets_an_error_if_the_server_could_not_attach() {
    let world = World::new();
    world.between_hosts(async |client, server| {
        server.device.fail(Call::Attach, DeviceError::NoMemory);
        let (_listener, at) = server.listen().await;
        let mut ours = client.endpoint.connect(at).await.unwrap();
        // It never writes, so only the end of the TCP connection can show it.
        expect_error(&mut ours, ErrorKind::ConnectionAborted).await;
        drop(ours);
        world.only_idle_groups_left([&client]).await;
    });
}

#[test]
fn without_nocopy_nothing_is_attached() {
    let world = World::new().with_fabric(|fabric| fabric.with_nocopy(false));
    world.between_hosts(async |client, server| {
        client.device.fail(Call::Attach, DeviceError::PeerGone);
        server.device.fail(Call::Attach, DeviceError::PeerGone);
        let (ours, theirs) = connect_pair_smc(&client, &server).await;
        assert_eq!(
            (client.device.attachments(), server.device.attachments()),
            (0, 0)
        );
        exchange_to_end((ours, theirs)).await;
        world.only_idle_groups_left([&client, &server]).await;
    });
}

#[test]
fn a_device_that_goes_during_the_handshake_is_like_one_that_fails() {
    let world = World::new();
    let (client, server) = (world.host("client"), world.host("server"));
    assert_ne!(client.device.gid(), server.device.gid());
    world.block_on(async {
        // The client's device goes while it registers: the server has accepted by then.
        client.device.stall(Call::Register);
        let (listener, at) = server.listen().await;
        let connect = client.endpoint.connect(at);
        let goes = async {
            world.sleep(Duration::from_secs(1)).await;
            client.device.remove();
        };
        let (ours, ()) = future::zip(connect, goes).await;
        let (theirs, _) = listener.accept().await.unwrap();
        let code = DeclineCode::MEM;
        assert_eq!(reason(ours.as_ref().unwrap()), Some(Codes::local(code)));
        assert_eq!(reason(&theirs), Some(Codes::peer_declined(code)));
        exchange_to_end((ours.unwrap(), theirs)).await;
        world.nothing_left([&client, &server]).await;
    });
}

/// Of the time for a message, what device work may take.
const WORK: Duration = Duration::from_secs(5);
