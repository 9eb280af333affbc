//! CDC messages captured between Linux kernels.

use super::*;
use crate::proto::conn::RecvCursors;

const KIB_16: u32 = 16 * 1024;

#[test]
fn every_cdc_of_a_kernel_is_accepted_and_adds_up() {
    for from in ["C", "S"] {
        let mut arrivals = Arrivals::new(ring(KIB_16), ring(KIB_16));
        let mut half = RecvCursors::new(ring(KIB_16));
        let (mut arrived, mut freed, mut ended) = (0, 0, 0);
        for cdc in captured(from) {
            let Ok(Arrival::Update(update)) = arrivals.handle(&cdc) else {
                panic!("{cdc}");
            };
            assert_eq!(
                half.handle_producer(update.producer.cursor),
                Ok(update.arrived)
            );
            half.consume(update.arrived);
            half.confirm();
            arrived += update.arrived;
            freed += update.freed;
            ended += u32::from(update.state == C);
        }
        assert_eq!((arrived, freed, ended), (80_000, 80_000, 1), "{from}");
    }
}

/// Each message is repeated up to `late` messages later, or lost unless it is the last one.
#[test]
fn repeated_late_and_lost_cdcs_give_the_same_result() {
    let all = captured("C");
    for late in 0..8 {
        for lost_every in 2..9 {
            let mut arrivals = Arrivals::new(ring(KIB_16), ring(KIB_16));
            for (at, cdc) in all.iter().enumerate() {
                if at % lost_every == 0 && at + 1 < all.len() {
                    continue;
                }
                arrivals.handle(cdc).unwrap();
                let again = arrivals.handle(&all[at.saturating_sub(late)]).unwrap();
                match again {
                    Arrival::Stale => assert!(late > 0),
                    Arrival::Update(update) => assert_eq!((update.arrived, update.freed), (0, 0)),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(arrivals.producer, cursor(4, 14_464));
            assert_eq!(arrivals.consumer, cursor(4, 14_464));
        }
    }
}

/// The receiver's side of the same capture drives a local sender, which writes at most as much as
/// the kernel could.
#[test]
fn a_sender_follows_the_consumer_cursor_of_a_kernel() {
    let mut transmit = transmit(KIB_16, KIB_16);
    let mut left = 80_000;
    let mut written = 0;
    let mut stage = |transmit: &mut Transmit| left -= transmit.stage(left);
    for cdc in captured("S") {
        // The kernel wrote what the peer has read; the local sender wrote at least that.
        loop {
            stage(&mut transmit);
            let Some(post) = transmit.poll_post() else {
                break;
            };
            written += post.payload();
            transmit.handle_completed(post.id);
        }
        transmit.handle_peer(cdc.consumer).unwrap();
    }
    assert_eq!((written, transmit.peer_space()), (80_000, KIB_16));
}

/// Send buffer of 64 KiB, ring of 16 KiB: the application writes 65536 bytes, the kernel sends
/// them in one piece of 4096 bytes and the rest; then 10000 bytes, and the end of stream.
#[test]
fn cdcs_equal_those_of_a_kernel_with_a_large_send_buffer() {
    let mut transmit = transmit(4 * KIB_16, KIB_16);
    let first = send(&mut transmit, 4096);
    transmit.stage(4 * KIB_16 - 4096);
    let second = only_post(&mut transmit);
    assert_eq!(
        summary(&first),
        (1, cursor(0, 4096), ProducerFlags::empty())
    );
    assert_eq!(summary(&second), (2, cursor(1, 0), BLOCKED));
    transmit.handle_completed(second.id);
    for wrap in 1..=3 {
        transmit.handle_peer(cursor(wrap, 0)).unwrap();
        let post = only_post(&mut transmit);
        assert_eq!(summary(&post), (wrap + 2, cursor(wrap + 1, 0), BLOCKED));
        transmit.handle_completed(post.id);
    }
    transmit.handle_peer(cursor(4, 0)).unwrap();
    let rest = send(&mut transmit, 10_000);
    assert_eq!(
        summary(&rest),
        (6, cursor(4, 10_000), ProducerFlags::empty())
    );
    transmit.set_flags(D);
    let done = only_post(&mut transmit);
    assert_eq!(
        summary(&done),
        (7, cursor(4, 10_000), ProducerFlags::empty())
    );
    assert_eq!(done.cdc.state_flags, D);
    transmit.handle_completed(done.id);
    transmit.set_flags(C);
    assert_eq!(only_post(&mut transmit).cdc.state_flags, D | C);
}

/// Both sides of an exchange in which one fills the ring exactly and the other answers.
#[test]
fn cdcs_equal_those_of_a_kernel_that_fills_the_ring_exactly() {
    let (mut client, mut server) = (transmit(KIB_16, KIB_16), transmit(KIB_16, KIB_16));
    let mut answered = 0;
    for (wrap, sequence) in [(1, 1), (2, 2)] {
        let full = send(&mut client, KIB_16);
        assert_eq!(summary(&full), (sequence, cursor(wrap, 0), BLOCKED));
        assert_eq!(full.cdc.consumer, cursor(0, answered));
        client.handle_completed(full.id);
        server.set_consumer(full.cdc.producer);
        let update = only_post(&mut server);
        assert_eq!(update.cdc.consumer, cursor(wrap, 0));
        assert_eq!(update.cdc.producer, cursor(0, answered));
        client.handle_peer(update.cdc.consumer).unwrap();
        server.handle_completed(update.id);
        let answer = send(&mut server, 1);
        answered += 1;
        assert_eq!(answer.cdc.sequence, 2 * sequence);
        assert_eq!(answer.cdc.producer, cursor(0, answered));
        server.handle_completed(answer.id);
        client.set_consumer(answer.cdc.producer);
    }
    let last = send(&mut client, 1);
    assert_eq!(summary(&last), (3, cursor(2, 1), ProducerFlags::empty()));
    assert_eq!(last.cdc.consumer, cursor(0, 2));
}

/// A first small write is posted alone; the later ones wait for its completion and go together.
#[test]
fn small_writes_are_gathered_as_a_kernel_does() {
    let mut transmit = transmit(KIB_16, KIB_16);
    let first = send(&mut transmit, 100);
    for _ in 0..39 {
        transmit.stage(100);
        assert_eq!(transmit.poll_post(), None);
    }
    transmit.handle_completed(first.id);
    let second = only_post(&mut transmit);
    assert_eq!(
        summary(&second),
        (2, cursor(0, 4000), ProducerFlags::empty())
    );
}

fn summary(post: &Post) -> (u16, Cursor, ProducerFlags) {
    let cdc = post.cdc;
    (cdc.sequence, cdc.producer, cdc.producer_flags)
}

fn captured(from: &str) -> Vec<CdcR> {
    let lines = include_str!("ring-wrap.txt").lines();
    let messages: Vec<CdcR> = lines
        .filter_map(|line| line.strip_prefix(from))
        .map(message)
        .collect();
    assert!(messages.len() > 30);
    messages
}

fn message(line: &str) -> CdcR {
    let numbers: Vec<u32> = line
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect();
    let [sequence, wrap, count, read_wrap, read_count, flags, state] = numbers[..] else {
        panic!("{line}");
    };
    let short = |number: u32| u16::try_from(number).unwrap();
    let byte = |number: u32| u8::try_from(number).unwrap();
    CdcR {
        producer: cursor(short(wrap), count),
        consumer: cursor(short(read_wrap), read_count),
        producer_flags: ProducerFlags::from_bits_retain(byte(flags)),
        state_flags: StateFlags::from_bits_retain(byte(state)),
        ..CdcR::new(short(sequence), token())
    }
}
