//! Receivers that take no messages for a while: what waits where, and what is counted.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::AsyncWriteExt as _;
use futures_lite::future::{poll_once, zip};
use smc::info::{DeviceStats, LinkQueueInfo};
use smc::{Builder, Endpoint, Stream};
use smc_core::wire::types::Features;
use smc_testkit::streams::{connect, expect, patterned, read_all, transfer};
use smc_testkit::world::{RdmaWorld, SERVER, eid};

use crate::interceptor::Interceptor;

/// A client, and a server that can be stopped.
fn hosts(
    world: &RdmaWorld,
    configure: impl Fn(Builder) -> Builder,
) -> (Endpoint, Endpoint, Arc<Interceptor>) {
    let configure = |builder: Builder| configure(builder.ueid(eid()).memory_limit(1 << 30));
    let receiver = Interceptor::new(world.device("b0", 2));
    let server = world.endpoint_on(vec![receiver.clone()], configure);
    let client = world.endpoint_on(vec![world.device("a0", 1)], configure);
    (client, server, receiver)
}

/// All connections that fit into a link group.
async fn connect_all(client: &Endpoint, server: &Endpoint) -> Vec<(Stream, Stream)> {
    let listener = server.bind(SERVER).await.expect("a free port");
    let mut streams = Vec::new();
    for _ in 0..CONNECTIONS {
        streams.push(connect(client, &listener).await);
    }
    streams
}

/// Each connection sends its messages, of which several are under way, to a receiver that is
/// stopped for 100 ms meanwhile.
async fn send_to_stopped(
    world: &RdmaWorld,
    receiver: &Interceptor,
    streams: &mut [(Stream, Stream)],
) {
    receiver.set_stopped(true);
    let stopped = async {
        world.sleep(Duration::from_millis(100)).await;
        receiver.set_stopped(false);
    };
    let sent = async {
        for message in 0..MESSAGES {
            for (sender, _) in &mut *streams {
                sender.write_all(&[message; 100]).await.expect("space");
            }
            world.sleep(Duration::from_millis(1)).await;
        }
    };
    zip(stopped, sent).await;
    for (_, receiver) in streams {
        for message in 0..MESSAGES {
            expect(receiver, [message; 100]).await;
        }
    }
}

fn device(endpoint: &Endpoint) -> DeviceStats {
    let mut devices = endpoint.stats().devices;
    assert_eq!(devices.len(), 1);
    devices.remove(0)
}

fn only_queue(endpoint: &Endpoint) -> LinkQueueInfo {
    let groups = endpoint.rdma_groups();
    let [group] = &*groups else {
        panic!("{groups:?}");
    };
    let [queue] = &*group.queues else {
        panic!("{group:?}");
    };
    assert_eq!(queue.link, group.links[0].id);
    *queue
}

#[test]
fn a_stopped_receiver_gets_as_many_messages_as_it_has_granted_and_the_rest_waits_at_the_sender() {
    let world = RdmaWorld::new(91);
    let (client, server, receiver) = hosts(&world, |builder| builder);
    world.block_on(async {
        let mut streams = connect_all(&client, &server).await;
        world.sleep(Duration::from_secs(1)).await;
        let before = only_queue(&client).stats;
        send_to_stopped(&world, &receiver, &mut streams).await;
        world.sleep(Duration::from_secs(1)).await;

        let sender = only_queue(&client);
        let stats = sender.stats;
        assert_eq!(stats.rnr_naks, None, "none met an empty receive queue");
        assert!(stats.credit_waits >= CONNECTIONS - u64::from(RECEIVES));
        assert!(
            stats.waiting_max <= CONNECTIONS,
            "one place each: {stats:?}"
        );
        assert!(stats.waiting_max >= CONNECTIONS - u64::from(RECEIVES));
        assert_eq!(stats.waiting, 0);
        assert!(stats.credits_received > before.credits_received);
        assert!(sender.credits.is_some_and(|credits| credits > 0));
        // Each change of each connection is in some message.
        let cdc = stats.cdc_messages - before.cdc_messages;
        let changes = cdc + stats.coalesced - before.coalesced;
        assert!(changes >= CONNECTIONS * u64::from(MESSAGES), "{stats:?}");
        assert!(cdc < changes / 4, "ten at a time: {stats:?}");

        let far = only_queue(&server);
        assert_eq!(far.receives, RECEIVES);
        let low = far.stats.receives_low.expect("it is counted");
        assert!((1..RECEIVES / 2).contains(&low), "{low}");
        assert_eq!(far.stats.held_max, 0, "it holds back none");
        assert_eq!(
            far.stats.credits_granted, stats.credits_received,
            "both know the same"
        );

        // The same of the device, of which it is the only link.
        let stats = only_queue(&client).stats;
        assert_eq!(device(&client).queues, stats);
        assert_eq!(device(&client).rnr_naks_received(), None);
        let count_of_ended = stats.messages;
        drop(streams);
        client.close().await;
        assert!(device(&client).queues.messages >= count_of_ended);
        assert!(client.rdma_groups().is_empty());
        assert_eq!(device(&client).queues.waiting, 0);
    });
}

#[test]
fn without_credits_the_rest_meets_no_receive_buffer_and_nothing_is_lost() {
    let world = RdmaWorld::new(92);
    let (client, server, receiver) =
        hosts(&world, |builder| builder.vendor_features(Features::empty()));
    world.block_on(async {
        let mut streams = connect_all(&client, &server).await;
        send_to_stopped(&world, &receiver, &mut streams).await;

        let sender = only_queue(&client);
        assert_eq!(sender.credits, None);
        assert!(sender.stats.rnr_naks > Some(0));
        let none = [
            sender.stats.credit_waits,
            sender.stats.credits_granted,
            sender.stats.credits_received,
            sender.stats.rnr_exceeded,
        ];
        assert_eq!(none, [0; 4]);
        let (stats, naks) = (device(&client), sender.stats.rnr_naks);
        assert_eq!(stats.rnr_naks_received(), naks);
        assert_eq!(stats.rnr_naks_sent(), None, "it has no such counter");
        let far = only_queue(&server).stats;
        assert_eq!(far.receives_low, Some(0));
        assert_eq!(far.held_max, 0);

        let earlier = client.stats();
        let (sender, receiver) = &mut streams[0];
        transfer(sender, receiver, 100).await;
        let since = client.stats().since(&earlier);
        let since = since.devices[0].queues;
        assert!((1..10).contains(&since.messages), "{since:?}");
        assert_eq!(since.rnr_naks, Some(0));
    });
}

#[test]
fn a_stopped_receiver_costs_each_connection_its_buffer_and_no_more() {
    let world = RdmaWorld::new(93);
    let (client, server, receiver) = hosts(&world, |builder| builder);
    world.block_on(async {
        let mut streams = connect_all(&client, &server).await;
        let memory = (client.memory().used(), server.memory().used());
        receiver.set_stopped(true);
        // As much as they take.
        let data = patterned(100_000);
        let mut taken = Vec::new();
        for (sender, _) in &mut streams {
            let mut len = 0;
            while let Some(count) = poll_once(sender.write(&data)).await {
                len += count.expect("it is open");
            }
            taken.push(len);
        }
        world.sleep(Duration::from_millis(100)).await;
        assert_eq!((client.memory().used(), server.memory().used()), memory);
        receiver.set_stopped(false);
        for ((sender, receiver), len) in streams.iter_mut().zip(taken) {
            assert!(len >= 100_000, "its buffers hold that");
            let (closed, (got, end)) = zip(sender.close(), read_all(receiver)).await;
            closed.expect("delivers");
            end.expect("ends in order");
            assert_eq!(got.len(), len, "nothing is lost, and nothing added");
        }
        let queue = only_queue(&client).stats;
        assert!(queue.waiting_max <= CONNECTIONS + 20, "{queue:?}");
    });
}

#[test]
fn a_vectored_write_replaces_no_message_of_its_own() {
    let world = RdmaWorld::new(106);
    let (client, server, _) = hosts(&world, |builder| builder);
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let (mut sender, mut receiver) = connect(&client, &listener).await;
        // More than its buffer has, so that some of it is around the end.
        for _ in 0..100 {
            let data = patterned(10_000);
            let mut parts = data.chunks(7).map(IoSlice::new).collect::<Vec<_>>();
            let mut left = &mut *parts;
            while !left.is_empty() {
                let count = sender.write_vectored(left).await.expect("it is open");
                IoSlice::advance_slices(&mut left, count);
            }
            expect(&mut receiver, &data).await;
        }
        assert_eq!(only_queue(&client).stats.coalesced, 0);
    });
}

/// Its driver and its timers are late alike, in any order.
#[test]
fn a_sender_that_was_stopped_finds_the_credits_that_it_was_granted_meanwhile() {
    for seed in 95..105 {
        let world = RdmaWorld::new(seed);
        let process = world.runtime().ending();
        let receiver = Interceptor::new(world.device("b0", 2));
        let server = world.endpoint_on(vec![receiver.clone()], |builder| builder.ueid(eid()));
        let client = world.endpoint_with(&[&world.device("a0", 1)], |builder| {
            builder.runtime(process.clone())
        });
        world.block_on(async {
            let listener = server.bind(SERVER).await.expect("a free port");
            let mut streams = connect(&client, &listener).await;
            receiver.set_stopped(true);
            for _ in 0..2 * RECEIVES {
                streams.0.write_all(&[1; 100]).await.expect("space");
                world.sleep(Duration::from_millis(1)).await;
            }
            world.sleep(Duration::from_secs(5)).await;
            assert_eq!(only_queue(&client).stats.waiting, 1, "for a credit");
            process.pause();
            receiver.set_stopped(false);
            world.sleep(Duration::from_secs(20)).await;
            process.resume();
            for _ in 0..2 * RECEIVES {
                expect(&mut streams.1, [1; 100]).await;
            }
            transfer(&mut streams.1, &mut streams.0, 100).await;
        });
    }
}

/// As many as a link group has.
const CONNECTIONS: u64 = 255;

/// Of each connection.
const MESSAGES: u8 = 40;

/// Of each link of a device in memory.
const RECEIVES: u32 = 128;

#[cfg(feature = "metrics")]
mod recorded {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use metrics::{
        Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder,
        SharedString, Unit,
    };

    use super::*;

    /// The last value of each metric, by name and direction.
    #[derive(Clone, Default)]
    struct Values(Arc<Mutex<BTreeMap<String, f64>>>);

    struct Metric(Values, String);

    impl Metric {
        fn new(values: &Values, key: &Key) -> Arc<Self> {
            let direction = key.labels().find(|label| label.key() == "direction");
            let direction = direction.map(|label| format!(" {}", label.value()));
            let name = format!("{}{}", key.name(), direction.unwrap_or_default());
            Arc::new(Self(values.clone(), name))
        }

        fn store(&self, value: f64) {
            let mut values = self.0.0.lock().expect("the lock is not poisoned");
            values.insert(self.1.clone(), value);
        }
    }

    impl CounterFn for Metric {
        fn increment(&self, _: u64) {}
        fn absolute(&self, value: u64) {
            self.store(value as f64);
        }
    }

    impl GaugeFn for Metric {
        fn increment(&self, _: f64) {}
        fn decrement(&self, _: f64) {}
        fn set(&self, value: f64) {
            self.store(value);
        }
    }

    impl Recorder for Values {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(Metric::new(self, key))
        }
        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(Metric::new(self, key))
        }
        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    #[test]
    fn metrics_are_those_of_the_links() {
        for features in [Features::RECEIVE_CREDITS, Features::empty()] {
            let world = RdmaWorld::new(94);
            let (client, server, receiver) =
                hosts(&world, |builder| builder.vendor_features(features));
            world.block_on(async {
                let mut streams = connect_all(&client, &server).await;
                send_to_stopped(&world, &receiver, &mut streams).await;
                let values = Values::default();
                metrics::with_local_recorder(&values, || smc::metrics::record(&client, "it"));
                let values = values.0.lock().expect("the lock is not poisoned");
                let value = |name: &str| values.get(name).copied();
                let stats = only_queue(&client).stats;
                for (name, count) in [
                    ("smc_messages_total", stats.messages),
                    ("smc_messages_coalesced_total", stats.coalesced),
                    ("smc_credits_total sent", stats.credits_granted),
                    ("smc_credits_total received", stats.credits_received),
                    ("smc_credit_waits_total", stats.credit_waits),
                    ("smc_rnr_exceeded_total", 0),
                    ("smc_send_queue", 0),
                    ("smc_send_queue_max", stats.waiting_max),
                    ("smc_held_messages_max", 0),
                ] {
                    assert_eq!(value(name), Some(count as f64), "{name}");
                }
                let naks = value("smc_rnr_naks_total received");
                assert_eq!(naks, stats.rnr_naks.map(|count| count as f64));
                assert_eq!(naks.is_some(), features.is_empty());
                assert_eq!(value("smc_rnr_naks_total sent"), None);
                assert_eq!(stats.credit_waits > 0, !features.is_empty());
                assert!(value("smc_receives_low").is_some());
            });
        }
    }
}
