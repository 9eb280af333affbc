//! Two devices on one ISM fabric, and a process that changes any word of its memory meanwhile, or
//! connects to their sockets. As long as it does not, what one device has moved is in the buffer of
//! the other one.

#![no_main]

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use smc_core::device::{Direct, Signal};
use smc_fuzz::Input;
use smc_fuzz::devices::Driven;
use smc_fuzz::ism::{LEN, Memory, SLOTS};
use smc_testkit::unix::{connect_to, send_if_possible};
use smc_transport_ism::{FabricAddress, IsmDevice};

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("fabric");
    let address = FabricAddress::directory(&path)
        .with_len(LEN)
        .with_devices(SLOTS);
    let address = address.with_nocopy(input.flag());
    let join = || IsmDevice::builder(address.clone()).build();
    let mut devices = [0; 2].map(|_| Driven::new(join().expect("a new fabric has space")));
    let memory = Memory::open(&path.join("memory"));
    let mut is_honest = true;
    let mut sockets = Vec::new();
    while !input.is_empty() {
        let step = input.byte();
        let at = usize::from(step & 1);
        let (gid, tokens) = (devices[1 - at].device.gid(), devices[1 - at].tokens());
        match step >> 1 & 3 {
            0 => {
                is_honest = false;
                memory.scribble(&mut input);
            }
            1 if step & 0x18 == 0x18 && sockets.len() < 8 => {
                is_honest = false;
                sockets.push(connect(&path, &devices[at].device, &mut input));
            }
            _ if step == 0xfe => {
                // It leaves, and another one joins.
                match join() {
                    Ok(next) => devices[at] = Driven::new(next),
                    Err(error) => assert!(!is_honest, "{error}"),
                }
            }
            _ => devices[at].step(&mut input, gid, &tokens),
        }
        if is_honest {
            check(&devices);
        }
    }
    for device in &mut devices {
        device.release();
        assert_eq!(device.device.dmbs(), 0, "buffers are left");
        for _ in 0..3 {
            device.drain();
        }
    }
    drop(devices);
});

/// Connects to a device and sends HELLO of a slot, or a changed one, and other bytes.
fn connect(fabric: &Path, device: &IsmDevice, input: &mut Input<'_>) -> OwnedFd {
    let socket = connect_to(fabric.join(format!("{}.sock", device.slot())));
    let mut hello = b"SMI1".to_vec();
    hello.extend(u32::from(input.byte()).to_ne_bytes());
    hello.extend(u16::from(input.byte()).to_ne_bytes());
    hello.extend([0; 6]);
    hello.extend(device.fabric_id().to_ne_bytes());
    send_if_possible(&socket, &input.changed(&hello), &[]);
    for _ in 0..input.byte() & 3 {
        send_if_possible(&socket, &[input.byte()], &[]);
    }
    socket
}

/// Moves are exact.
fn check(devices: &[Driven<IsmDevice>; 2]) {
    let [reader, writer] = devices;
    for dmb in &reader.dmbs {
        let data = [IoSlice::new(b"moved")];
        let to = dmb.token();
        let moved = writer
            .device
            .move_data(reader.device.gid(), to, 100, &data, Signal::No);
        if moved.is_ok() {
            let mut found = [0; 5];
            dmb.region()
                .copy_out(100, &mut found)
                .expect("it is long enough");
            assert_eq!(&found, b"moved");
        }
    }
}
