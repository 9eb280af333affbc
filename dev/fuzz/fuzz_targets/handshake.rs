//! Handshakes: two clients with one server, in any order on the same registries, with bytes that
//! machines have sent, changed ones and others, failed work, timeouts and ended link groups.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use smc_fuzz::Input;
use smc_fuzz::handshakes::{CLIENT, OTHER_CLIENT, SERVER, Setting, World};
use smc_wire::size::SizeCode;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let devices = input.byte();
    let mut world = World::new(Setting {
        loopback: devices & 1 == 0,
        ism: devices & 4 != 0,
        rdma: devices & 9 != 0,
        rdma_v1: devices & 16 != 0,
        old_server: devices & 32 != 0,
        single_link: devices & 64 != 0,
        fast_open: devices & 128 != 0,
        ipv6: devices & 2 != 0,
    });
    world.open(CLIENT, [true, true]);
    while !input.is_empty() {
        let step = input.byte();
        let (at, side) = (
            usize::from(step >> 5) % world.connections(),
            usize::from(step >> 4 & 1),
        );
        match step & 15 {
            // Nothing is wrong: all that can go on goes on.
            0..=3 => (0..16).for_each(|_| {
                for side in [CLIENT, SERVER] {
                    world.deliver(at, side, usize::MAX);
                    world.work(at, side, 0);
                }
            }),
            4 => world.deliver(at, side, input.byte().into()),
            5 => world.deliver(at, side, usize::MAX),
            6 => world.work(at, side, 0),
            7 => world.work(at, side, input.byte()),
            8 if step >> 5 == 7 => world.open_early([CLIENT, OTHER_CLIENT][side], SizeCode::MIN, 0),
            8 if step >> 5 == 6 => {
                world.open_early([CLIENT, OTHER_CLIENT][side], SizeCode::LINUX_DEFAULT, 0);
            }
            8 if step >> 5 == 4 => {
                let len = usize::from(input.byte());
                world.open_early([CLIENT, OTHER_CLIENT][side], SizeCode::LINUX_DEFAULT, len);
            }
            8 if step >> 5 == 5 => {
                let len = usize::from(input.byte());
                world.open_early_rdma([CLIENT, OTHER_CLIENT][side], len);
            }
            8 => world.open([CLIENT, OTHER_CLIENT][side], [true, true]),
            9 => world.open(CLIENT, [side == 0, side != 0]),
            10 | 11 => {
                let message = world.sent[input.below(world.sent.len())].clone();
                let message = input.changed(&message);
                world.inject(at, side, &message);
            }
            12 => {
                let len = input.byte().into();
                world.inject(at, side, input.bytes(len));
            }
            13 => world.pass(Duration::from_millis(u64::from(input.byte()) * 64)),
            14 if step >> 7 == 0 => world.close(at, side),
            14 => world.end(at, side),
            _ => world.disturb(input.choose(&[CLIENT, SERVER, OTHER_CLIENT]), input.byte()),
        }
        world.check_agreement();
    }
    world.finish();
});
