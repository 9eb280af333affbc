//! A loop device with a peer that sends any message and writes anything into its signal page, and
//! an honest peer that is served nevertheless.

#![no_main]

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use libfuzzer_sys::fuzz_target;
use smc_core::Domain;
use smc_core::device::{Direct, Event};
use smc_fuzz::Input;
use smc_fuzz::devices::Driven;
use smc_testkit::unix::{sealed, send_if_possible, unsealed};
use smc_transport_loop::LoopDevice;
use smc_wire::types::{DmbToken, Gid};

#[allow(dead_code, reason = "the tests of the device use the rest")]
#[path = "../../../smc-transport-loop/tests/common/hostile.rs"]
mod hostile;

use hostile::{HostilePeer, SIGNAL_PAGE_LEN, doorbell, message};

/// Length of a buffer.
const LEN: usize = 1 << 14;

fn socket_path(dir: &Path, gid: Gid) -> PathBuf {
    dir.join(format!("d-{:032x}.sock", gid.to_u128()))
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let dir = tempfile::tempdir().expect("a directory");
    let device = || {
        let builder = LoopDevice::builder().domain(Domain::directory(dir.path()));
        Driven::new(builder.build().expect("a device"))
    };
    let mut victim = device();
    let has_honest = input.flag();
    let mut peer = Peer {
        hostile: HostilePeer::connect(dir.path(), victim.device.gid(), 0x1111),
        tokens: Vec::new(),
    };
    while !input.is_empty() {
        match input.byte() & 3 {
            0 | 1 => victim.step(&mut input, peer.hostile.gid, &peer.tokens),
            2 => peer.scribble(&mut input),
            _ => peer.send(&mut input),
        }
    }
    victim.drain();
    if has_honest {
        serve(&victim, &device());
    }
    victim.release();
    assert_eq!(victim.device.dmbs(), 0, "buffers are left");
    drop(peer);
    victim.drain();
});

/// Another peer has a buffer, which is signalled.
fn serve(victim: &Driven<LoopDevice>, honest: &Driven<LoopDevice>) {
    use futures_lite::future::block_on;
    let dmb = block_on(victim.device.register(honest.device.gid(), LEN)).expect("a buffer");
    let nocopy = honest.device.nocopy().expect("it is the default");
    let attached = block_on(nocopy.attach(victim.device.gid(), dmb.token()));
    let attached = attached.expect("the buffer was announced");
    dmb.arm();
    attached
        .region()
        .copy_in(100, b"written")
        .expect("it is long enough");
    attached.signal().expect("the peer is there");
    let is_signal = |event: &Event| *event == Event::Signalled(dmb.token());
    assert!(
        (0..100).any(|_| victim.drain().iter().any(is_signal)),
        "no signal"
    );
    let mut found = [0; 7];
    dmb.region()
        .copy_out(100, &mut found)
        .expect("it is long enough");
    assert_eq!(&found, b"written");
}

struct Peer {
    hostile: HostilePeer,
    /// Tokens of buffers that it has offered.
    tokens: Vec<DmbToken>,
}

impl Peer {
    /// Changes a word of its signal page.
    fn scribble(&self, input: &mut Input<'_>) {
        let kind = input.byte();
        let at = match kind & 3 {
            0 => 8 * u64::from(input.byte() & 31),
            1 => 0x1000 + 8 * u64::from(input.u16() % 512),
            2 => 0x2000 + 64 * u64::from(input.byte() & 7) + 8 * u64::from(kind >> 5),
            _ => (u64::from(input.u32()) % SIGNAL_PAGE_LEN) & !7,
        };
        let word = match kind >> 2 & 3 {
            0 => u64::MAX,
            1 => u64::from(input.byte()),
            2 => 1 << (input.byte() & 63),
            _ => input.u64(),
        };
        let page = &self.hostile.signal_page;
        page.write_all_at(&word.to_ne_bytes(), at)
            .expect("within the page");
    }

    /// Sends a message, with the descriptors that it has to have or others.
    fn send(&mut self, input: &mut Input<'_>) {
        let kind = input.byte();
        let index = u32::from(input.byte() & 7);
        let memory = match kind >> 3 & 3 {
            0 => sealed(LEN as u64),
            1 => sealed(2 * LEN as u64),
            2 => unsealed(LEN as u64),
            _ => sealed(SIGNAL_PAGE_LEN),
        };
        let doorbell = doorbell();
        let both: [BorrowedFd<'_>; 2] = [memory.as_fd(), doorbell.as_fd()];
        let passed = match kind >> 5 & 3 {
            0 | 1 => &both[..1],
            2 => &both[..],
            _ => &[],
        };
        let gid = self.hostile.gid;
        let bytes = match kind & 7 {
            // A buffer in order.
            0 | 1 => {
                self.tokens.push(self.hostile.announce(index));
                message(2, index, 5, LEN as u64)
            }
            2 => message(
                2,
                input.u16().into(),
                input.byte().into(),
                1 << (input.byte() & 63),
            ),
            3 => message(3, 0, 0, 0),
            4 => hostile::hello(gid),
            5 => {
                let usual = message(1 + input.byte() % 3, index, gid.hi().0, gid.lo().0);
                input.changed(&usual)
            }
            6 => message(input.byte(), input.u32(), input.u64(), input.u64()),
            _ => input.bytes(40).to_vec(),
        };
        send_if_possible(&self.hostile.channel, &bytes, passed);
    }
}
