use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::*;
use crate::fabric::doorbell::new_eventfd;
use crate::region::{map, memory_file};
use crate::shared::Plan;

const LEN: usize = 2 << 20;

/// Connects to a server that gives these descriptors: the memory, and what the client is rung by.
/// Returns the server's end as well.
fn connect_to(memory: OwnedFd, bell: OwnedFd) -> Result<(Client, u16, UnixStream), DeviceError> {
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
                (0, Some(bell.as_fd())),
            ];
            for (number, descriptor) in numbers {
                // The client may have had enough.
                let _ = protocol::send(&client, number, descriptor);
            }
            client
        });
        let (client, slot) = Client::connect(&path)?;
        Ok((client, slot, serving.join().unwrap()))
    })
}

fn laid_out_memory() -> OwnedFd {
    let memory = memory_file(LEN).unwrap();
    let plan = Plan {
        slots: 2,
        nocopy: false,
    };
    Room::make(map(&memory, 0, LEN).unwrap(), plan).unwrap();
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
    let other = |memory, bell| connect_to(memory, bell).unwrap_err().to_string();
    let bell = || new_eventfd().unwrap();
    let cases = [
        (
            unsealed_memory(MemfdFlags::empty()).unwrap(),
            bell(),
            "memory file is not sealed",
        ),
        (bell(), bell(), "descriptor is not a memory file"),
        (
            laid_out_memory(),
            laid_out_memory(),
            "the server gave something else than an eventfd",
        ),
    ];
    for (memory, bell, why) in cases {
        let said = other(memory, bell);
        assert!(said.contains(why), "{said}, not {why}");
    }
}

#[test]
fn a_peer_of_which_a_server_tells_later_is_rung_by_an_eventfd_only() {
    let (client, _, server) = connect_to(laid_out_memory(), new_eventfd().unwrap()).unwrap();
    let tell = |descriptor: OwnedFd| {
        protocol::send(&server, 1, Some(descriptor.as_fd())).unwrap();
        client.look(&mut |_| {}).map(|()| client.eventfds().len())
    };
    assert_eq!(tell(laid_out_memory()), Ok(1), "its own is all that it has");
    assert_eq!(tell(new_eventfd().unwrap()), Ok(2));
    let (socket, _other) = UnixStream::pair().unwrap();
    assert_eq!(tell(socket.into()), Err(SERVER_GONE));
}

#[test]
fn a_server_that_goes_on_saying_other_things_is_not_heard_for_ever() {
    let (server, client) = UnixStream::pair().unwrap();
    client.set_nonblocking(true).unwrap();
    let socket = PeerSocket::from(OwnedFd::from(client));
    let mut greeting = Greeting::new(&socket);
    protocol::send(&server, 5, None).unwrap();
    assert_eq!(greeting.number().unwrap().0, 5);
    greeting.until = Instant::now();
    protocol::send(&server, 6, None).unwrap();
    let error = greeting.number().unwrap_err().to_string();
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
    // A page of the pool can be missing when it is touched, which would end the process.
    let said = connect_to(memory, new_eventfd().unwrap())
        .unwrap_err()
        .to_string();
    assert!(said.contains("pages of an unsuitable kind"), "{said}");
}
