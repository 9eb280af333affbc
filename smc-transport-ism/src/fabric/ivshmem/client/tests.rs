use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use smc_ipc::doorbell::new_eventfd;

use super::*;
use crate::region::{map, memory_file};
use crate::shared::FabricOptions;

const LEN: usize = 2 << 20;

/// Connects to a server that passes these descriptors: the memory and the client's eventfd.
/// Returns the server's end as well.
fn connect_to(
    memory: OwnedFd,
    doorbell: OwnedFd,
) -> Result<(IvshmemClient, u16, UnixStream), DeviceError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sock");
    let listener = UnixListener::bind(&path).unwrap();
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let (client, _) = listener.accept().unwrap();
            let numbers = [
                (protocol::VERSION, None),
                (0, None),
                (protocol::MEMORY, Some(memory.as_fd())),
                (0, Some(doorbell.as_fd())),
            ];
            for (number, descriptor) in numbers {
                // The client may have closed the connection.
                let _ = protocol::send(&client, number, descriptor);
            }
            client
        });
        let (client, slot) = IvshmemClient::connect(&path)?;
        Ok((client, slot, serving.join().unwrap()))
    })
}

fn laid_out_memory() -> OwnedFd {
    let memory = memory_file(LEN).unwrap();
    let options = FabricOptions::default();
    FabricMemory::create(map(&memory, 0, LEN).unwrap(), options).unwrap();
    memory
}

fn unsealed_memory(flags: MemfdFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("other", flags)?;
    ftruncate(&memory, LEN as u64)?;
    Ok(memory)
}

#[test]
fn only_a_memory_file_that_cannot_be_shortened_and_eventfds_are_taken_from_a_server() {
    assert!(connect_to(laid_out_memory(), new_eventfd().unwrap()).is_ok());
    let other = |memory, doorbell| connect_to(memory, doorbell).unwrap_err().to_string();
    let doorbell = || new_eventfd().unwrap();
    let cases = [
        (
            unsealed_memory(MemfdFlags::empty()).unwrap(),
            doorbell(),
            "memory file is not sealed",
        ),
        (doorbell(), doorbell(), "descriptor is not a memory file"),
        (
            laid_out_memory(),
            laid_out_memory(),
            "the server gave something else than an eventfd",
        ),
    ];
    for (memory, doorbell, why) in cases {
        let error = other(memory, doorbell);
        assert!(error.contains(why), "{error}, not {why}");
    }
}

#[test]
fn for_a_peer_that_joins_later_only_an_eventfd_is_taken() {
    let (client, _, server) = connect_to(laid_out_memory(), new_eventfd().unwrap()).unwrap();
    let announce = |descriptor: OwnedFd| {
        protocol::send(&server, 1, Some(descriptor.as_fd())).unwrap();
        client
            .poll_events(&mut |_| {})
            .map(|()| client.eventfds().len())
    };
    assert_eq!(
        announce(laid_out_memory()),
        Ok(1),
        "its own is all that it has"
    );
    assert_eq!(announce(new_eventfd().unwrap()), Ok(2));
    let (socket, _other) = UnixStream::pair().unwrap();
    assert_eq!(announce(socket.into()), Err(SERVER_GONE));
}

#[test]
fn a_server_that_sends_other_messages_without_end_times_out() {
    let (server, client) = UnixStream::pair().unwrap();
    client.set_nonblocking(true).unwrap();
    let socket = PeerSocket::from(OwnedFd::from(client));
    let mut reader = Reader::default();
    let soon = Instant::now() + HANDSHAKE_TIMEOUT;
    protocol::send(&server, 5, None).unwrap();
    assert_eq!(receive_until(soon, &socket, &mut reader).unwrap().0, 5);
    protocol::send(&server, 6, None).unwrap();
    let late = receive_until(Instant::now(), &socket, &mut reader);
    let error = late.unwrap_err().to_string();
    assert!(error.contains("in time"), "{error}");
}

#[test]
fn huge_pages_are_not_taken_from_a_server() {
    let memory = match unsealed_memory(MemfdFlags::HUGETLB) {
        Ok(memory) => memory,
        Err(error) => {
            println!("skipped: no huge pages: {error}");
            return;
        }
    };
    fcntl_add_seals(
        &memory,
        SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
    )
    .unwrap();
    // The pool can be empty at the first access of a page, which would kill the process.
    let error = connect_to(memory, new_eventfd().unwrap())
        .unwrap_err()
        .to_string();
    assert!(error.contains("pages of an unsuitable kind"), "{error}");
}
