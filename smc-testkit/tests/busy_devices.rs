//! Streams over a device that is too busy to tell the peer anything.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::AsyncWriteExt;
use smc_core::Endpoint;
use smc_core::device::Device;
use smc_core::io::negotiate::Assume;
use smc_testkit::memory_device::MemFabric;
use smc_testkit::middleware::{Fault, Faults};
use smc_testkit::runtime::VirtualRuntime;

#[test]
fn closing_ends_with_the_peers_abort_while_the_shutdown_is_not_delivered() {
    let runtime = VirtualRuntime::new(1);
    let fabric = MemFabric::new(1);
    let endpoint = |device: Arc<dyn Device>| {
        Endpoint::builder()
            .runtime(runtime.handle())
            .negotiation(Arc::new(Assume::new()))
            .device(device)
            .build()
            .unwrap()
    };
    let busy = Fault::new(fabric.device("mem0"), 1, Faults::default().with_busy(1000));
    let (client, server) = (endpoint(busy), endpoint(fabric.device("mem1")));
    let clock = runtime.handle();
    let outcome = runtime.try_block_on(async {
        let listener = server.bind("127.0.0.1:80").await.unwrap();
        let mut stream = client.connect("127.0.0.1:80").await.unwrap();
        let (peer, _) = listener.accept().await.unwrap();
        assert!(stream.mode().is_smc() && peer.mode().is_smc());
        let closing = async {
            let start = clock.now();
            (stream.close().await, clock.now() - start)
        };
        let aborting = async {
            clock.timer(clock.now() + Duration::from_secs(1)).await;
            peer.set_linger(Some(Duration::ZERO)).unwrap();
            drop(peer);
        };
        futures_lite::future::zip(closing, aborting).await.0
    });
    let (closed, took) = outcome.unwrap();
    assert_eq!(closed.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(took < Duration::from_secs(2), "{took:?}");
}
