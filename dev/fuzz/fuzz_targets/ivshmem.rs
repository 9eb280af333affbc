//! A device on an ivshmem fabric whose server sends any numbers and descriptors, and changes the
//! memory that it has passed.

#![no_main]

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::LazyLock;
use std::thread;

use libfuzzer_sys::fuzz_target;
use rustix::event::{EventfdFlags, eventfd};
use smc_core::device::Direct;
use smc_fuzz::Input;
use smc_fuzz::devices::Driven;
use smc_fuzz::ism::{LEN, Memory, SLOTS};
use smc_testkit::unix::{sealed, send_if_possible, unsealed};
use smc_transport_ism::{FabricAddress, IsmDevice};

fuzz_target!(|data: &[u8]| {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("server");
    let listener = UnixListener::bind(&path).expect("a new name");
    let mut input = Input::new(data);
    let memory = laid_out(input.flag());
    let messages = Message::read_all(&mut input);
    let shared = &memory;
    let (device, _socket) = thread::scope(|scope| {
        let serving = scope.spawn(move || serve(&listener, shared, &messages));
        let device = IsmDevice::builder(FabricAddress::server(&path)).build();
        (
            device,
            serving
                .join()
                .expect("it panics for nothing that a device does"),
        )
    });
    let Ok(device) = device else { return };
    let memory = Memory(memory);
    let mut driven = Driven::new(device);
    while !input.is_empty() {
        match input.byte() & 1 {
            0 => memory.scribble(&mut input),
            _ => {
                let (gid, tokens) = (driven.device.gid(), driven.tokens());
                driven.step(&mut input, gid, &tokens);
            }
        }
    }
    driven.release();
    assert_eq!(driven.device.dmbs(), 0, "buffers are left");
    driven.drain();
});

/// A number with a descriptor, or bytes that may be a part of one.
struct Message {
    bytes: Vec<u8>,
    passed: u8,
}

impl Message {
    /// The handshake, as a server has it or with changes, and what follows.
    fn read_all(input: &mut Input<'_>) -> Vec<Self> {
        let own = i64::from(input.byte() & 7);
        let usual = [(0, 0), (own, 0), (-1, 1), (own, 2)];
        let number = |(number, passed): (i64, u8)| Self {
            bytes: number.to_le_bytes().to_vec(),
            passed,
        };
        let mut messages: Vec<_> = usual.map(number).into();
        for _ in 0..input.byte() & 15 {
            let kind = input.byte();
            let passed = kind >> 4 & 7;
            let next = match kind & 3 {
                0 => number((i64::from(input.byte() & 31), passed)),
                1 => number((i64::from_le_bytes(input.u64().to_le_bytes()), passed)),
                _ => Self {
                    bytes: input.bytes(usize::from(kind >> 2 & 3) + 1).to_vec(),
                    passed,
                },
            };
            match kind >> 7 {
                0 => messages.push(next),
                _ => {
                    let at = input.below(messages.len());
                    messages[at] = next;
                }
            }
        }
        messages
    }
}

/// Sends the messages and ends, after which the client waits for nothing.
fn serve(listener: &UnixListener, memory: &File, messages: &[Message]) -> Option<UnixStream> {
    let (socket, _) = listener.accept().ok()?;
    for message in messages {
        let passed: Option<OwnedFd> = match message.passed {
            1 => memory.as_fd().try_clone_to_owned().ok(),
            2 => eventfd(0, EventfdFlags::NONBLOCK).ok(),
            3 => Some(unsealed(LEN as u64).into()),
            4 => Some(sealed(4096).into()),
            _ => None,
        };
        let passed = passed.as_ref().map(AsFd::as_fd);
        if !message.bytes.is_empty() {
            send_if_possible(&socket, &message.bytes, passed.as_slice());
        }
    }
    socket.shutdown(std::net::Shutdown::Write).ok()?;
    Some(socket)
}

/// Memory as a server passes it.
fn laid_out(nocopy: bool) -> File {
    /// What is not zero in new memory, of a fabric without nocopy and with it.
    static HEADERS: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| [false, true].map(header));
    let memory = sealed(LEN as u64);
    let header = &HEADERS[usize::from(nocopy)];
    memory.write_all_at(header, 0).expect("it is longer");
    memory
}

fn header(nocopy: bool) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("fabric");
    let address = FabricAddress::directory(&path)
        .with_len(LEN)
        .with_devices(SLOTS);
    let device = IsmDevice::builder(address.with_nocopy(nocopy)).build();
    let _device = device.expect("a new fabric");
    let mut header = vec![0; 0x1000];
    let memory = Memory::open(&path.join("memory"));
    memory
        .0
        .read_exact_at(&mut header, 0)
        .expect("it is longer");
    header
}
