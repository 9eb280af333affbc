//! The local negotiation: names, packets, and a listener with clients that write anything into
//! their mailboxes. What an honest client has offered is claimed at most once, and read as written.

#![no_main]

use std::net::SocketAddr;

use libfuzzer_sys::fuzz_target;
use smc_fuzz::Input;
use smc_negotiate_local::fuzz::{
    FuzzClient, FuzzListener, FuzzOffer, LEN, SLOTS, listener_name, packet_to_client,
    packet_to_listener,
};

fuzz_target!(|data: &[u8]| {
    texts(data);
    let dir = tempfile::tempdir().expect("a directory");
    let mut listener = FuzzListener::new(dir.path());
    let mut input = Input::new(data);
    let honest = listener.connect(dir.path());
    honest.introduce();
    let mut hostile = Some(listener.connect(dir.path()));
    let mut offers: Vec<(u32, u16, &[u8], FuzzOffer)> = Vec::new();
    while !input.is_empty() {
        let step = input.byte();
        let port = u16::from(step >> 4) + 5000;
        match step & 15 {
            0 => {
                let message = input.bytes(200);
                let number = u32::from(step >> 4);
                // A slot is used again after its connection only.
                if offers.iter().all(|(used, ..)| *used != number) {
                    let offer = honest.offer(number, (at(port), to()), message, None);
                    offers.extend(offer.map(|offer| (number, port, message, offer)));
                }
            }
            1 => {
                if let Some((.., offer)) = offers.iter().find(|it| it.1 == port) {
                    let (was_taken, _) = offer.state();
                    assert!(!(offer.withdraw() && was_taken));
                }
            }
            2 | 3 => accept(&mut listener, at(port)),
            4 => listener.refuse(at(port)),
            5 => {
                let answer = input.bytes(100);
                for offer in listener.claimed().drain(..) {
                    let _ = offer.early(answer, answer);
                    offer.answer(answer);
                    offer.close();
                }
            }
            6 => {
                if let Some(hostile) = &hostile {
                    offer_anything(hostile, &mut input, port);
                }
            }
            7..=9 => {
                if let Some(hostile) = &hostile {
                    let word = word_at(&mut input);
                    let value = if step & 16 == 0 {
                        input.u64()
                    } else {
                        input.byte().into()
                    };
                    hostile.set_word(word, value);
                }
            }
            10 | 11 => {
                if let Some(hostile) = &hostile {
                    let len = input.byte() & 63;
                    hostile.send(input.bytes(len.into()), step & 16 != 0);
                }
            }
            12 => hostile.iter().for_each(FuzzClient::introduce),
            13 => drop(listener.collect()),
            14 => hostile = Some(listener.connect(dir.path())),
            _ => hostile = None,
        }
    }
    // Whatever the other client has done, the honest one is served.
    drop(hostile);
    listener.collect();
    for (_, port, message, mut offer) in offers {
        let before = offer.state();
        if listener.accept(at(port)) {
            assert_eq!(before, (false, false), "it was open");
            let claimed = listener.claimed().last_mut().expect("the last one");
            assert_eq!(claimed.read(2000).unwrap_or_default(), message);
            assert!(claimed.answer(b"ACCEPT"), "it was not withdrawn");
            assert_eq!(offer.read_answer(600).as_deref(), Some(&b"ACCEPT"[..]));
            assert!(!offer.withdraw(), "it has its answer");
        }
        assert!(!listener.accept(at(port)), "it is claimed once");
    }
    drop(honest);
    listener.collect();
    assert!(listener.is_empty(), "a channel is left");
});

fn accept(listener: &mut FuzzListener, from: SocketAddr) {
    listener.collect();
    listener.accept(from);
    if let Some(claimed) = listener.claimed().last_mut() {
        let first = claimed.read(2000);
        assert!(
            first.is_none_or(|first| first.len() <= 1088),
            "beyond the part of the client"
        );
    }
}

/// An offer as a client makes it, with an early CONFIRM of any bytes.
fn offer_anything(client: &FuzzClient, input: &mut Input<'_>, port: u16) {
    let number = u32::from(input.u16()) % SLOTS;
    let early = (input.bytes(80), input.bytes(80));
    let message = input.bytes(60);
    let _ = client.offer(number, (at(port), to()), message, Some(early));
}

/// A word of the mailbox: of the index, of one of the first slots, or any.
fn word_at(input: &mut Input<'_>) -> usize {
    let at = match input.below(4) {
        0 => 8 * (5000 + usize::from(input.byte() & 31)),
        1 | 2 => 0x1_0000 + 2048 * usize::from(input.byte() & 15) + usize::from(input.byte()),
        _ => input.u32() as usize,
    };
    (at % LEN) & !7
}

fn texts(data: &[u8]) {
    if let Ok(name) = std::str::from_utf8(data) {
        assert!(listener_name(name).is_none_or(|again| again == name));
    }
    for again in [packet_to_listener(data), packet_to_client(data)] {
        // The reason of an end may be unknown here, which is written as 0.
        assert!(again.is_none_or(|again| again.len() == data.len() && again[0] == data[0]));
    }
}

fn at(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

fn to() -> SocketAddr {
    at(80)
}
