//! Set-ups whose link group, link or device is lost before they have come to their end.

use std::io::ErrorKind;
use std::time::Duration;

use futures_lite::future::zip;
use futures_lite::{AsyncReadExt, AsyncWriteExt};
use smc::Stream;
use smc_core::device::LinkFailure;
use smc_testkit::memory_rdma::MemoryRdma;
use smc_testkit::runtime::Options;
use smc_testkit::streams::{connect, patterned, transfer_both_ways};
use smc_testkit::world::{RdmaWorld, SERVER, is_smcr};

/// TCP is much slower than the link: what a client sends comes long before its CONFIRM.
fn slow_tcp(seed: u64) -> RdmaWorld {
    let latency = Duration::from_millis(20);
    RdmaWorld::with_options(
        seed,
        Options::default().with_latency(latency, Duration::ZERO),
    )
}

fn fail_links(device: &MemoryRdma) {
    for link in device.links() {
        device.fail_link(link.local.qpn, LinkFailure::RetryExceeded);
    }
}

async fn read_all(mut stream: Stream) -> (Vec<u8>, std::io::Result<usize>) {
    let mut got = Vec::new();
    let end = stream.read_to_end(&mut got).await;
    (got, end)
}

/// How a link group ends.
#[derive(Clone, Copy, Debug)]
enum End {
    LinkOfServerFails,
    ClientEndsGroup,
    ServerEndsGroup,
    ClientIsGone,
}

const ENDS: [End; 4] = [
    End::LinkOfServerFails,
    End::ClientEndsGroup,
    End::ServerEndsGroup,
    End::ClientIsGone,
];

#[test]
fn a_group_that_ends_before_confirm_is_read_loses_no_data_of_the_connection() {
    for end in ENDS {
        for is_closed in [true, false] {
            let world = slow_tcp(120);
            world.network().set_retry_time(Duration::from_millis(1));
            let (a, b) = (world.device("a0", 1), world.device("b0", 2));
            let (client, server) = (world.endpoint(&[&a]), world.endpoint(&[&b]));
            world.block_on(async {
                let listener = server.bind(SERVER).await.expect("a free port");
                let (_ours, mut theirs) = connect(&client, &listener).await;
                let connecting = async {
                    let mut stream = client.connect(SERVER).await.expect("connects");
                    stream.write_all(&patterned(5000)).await.expect("writes");
                    if is_closed {
                        stream.close().await.expect("delivers");
                    }
                    world.sleep(Duration::from_millis(1)).await;
                    match end {
                        End::LinkOfServerFails => fail_links(&b),
                        End::ClientEndsGroup => client.shutdown(),
                        End::ServerEndsGroup => server.shutdown(),
                        End::ClientIsGone => {
                            a.leave();
                            // Without an answer to this the link of the server fails.
                            theirs.write_all(b"request").await.expect("writes");
                        }
                    }
                    stream
                };
                let accepting = async {
                    let (stream, _) = listener.accept().await.expect("accepts");
                    assert!(is_smcr(&stream), "{end:?}");
                    read_all(stream).await
                };
                let (stream, (got, read)) = zip(connecting, accepting).await;
                assert!(got == patterned(5000), "{end:?}: {} bytes", got.len());
                match read {
                    Ok(_) => assert!(is_closed, "{end:?}: not the end of the stream"),
                    Err(error) => {
                        assert!(!is_closed, "{end:?}: {error}");
                        let kind = error.kind();
                        let kinds = [ErrorKind::ConnectionAborted, ErrorKind::ConnectionReset];
                        assert!(kinds.contains(&kind), "{end:?}: {error}");
                    }
                }
                // The client is notified as well, if it still exists.
                if !matches!(end, End::ClientIsGone) && !is_closed {
                    let (_, read) = read_all(stream).await;
                    read.expect_err("is aborted");
                }
                drop(theirs);
                world.sleep(Duration::from_secs(10)).await;
                assert!(server.connections().is_empty(), "{end:?}");
                assert!(server.rdma_groups().is_empty(), "{end:?}");
            });
        }
    }
}

/// The group goes on over the other link, and so does a connection that was to use this one.
#[test]
fn a_device_that_is_removed_before_confirm_is_read_costs_no_connection() {
    for which in 0..4 {
        let world = slow_tcp(121);
        let hosts = world.hosts_with_two_links();
        world.block_on(async {
            let listener = hosts.listen().await;
            let mut kept = vec![hosts.connect(&listener).await];
            world.sleep(Duration::from_secs(1)).await;
            // The next connection uses the second link, the one after it the first.
            for _ in 0..2 {
                let connecting = async {
                    let mut stream = hosts.client.connect(SERVER).await.expect("connects");
                    stream.write_all(b"hello").await.expect("writes");
                    world.sleep(Duration::from_millis(1)).await;
                    if kept.len() == 1 + which % 2 {
                        hosts.devices[which].remove();
                    }
                    stream
                };
                let accepting = async { listener.accept().await.expect("accepts").0 };
                let (mut ours, mut theirs) = zip(connecting, accepting).await;
                assert!(is_smcr(&theirs), "{which}");
                let mut word = [0; 5];
                theirs.read_exact(&mut word).await.expect("reads");
                transfer_both_ways(&mut ours, &mut theirs, 50_000).await;
                kept.push((ours, theirs));
            }
        });
    }
}

/// The answer to CONFIRM LINK and the failure of the link are reported together: the client may
/// have used the connection in between.
#[test]
fn a_link_that_fails_behind_its_confirmation_was_confirmed() {
    let world = RdmaWorld::new(122);
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    let (client, server) = (world.endpoint(&[&a]), world.endpoint(&[&b]));
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let connecting = async {
            b.set_lag(true);
            let stream = client.connect(SERVER).await.expect("connects");
            world.sleep(Duration::from_millis(1)).await;
            fail_links(&b);
            stream
        };
        let accepting = async { listener.accept().await.expect("accepts").0 };
        let (ours, theirs) = zip(connecting, accepting).await;
        assert!(is_smcr(&ours) && is_smcr(&theirs));
        for stream in [theirs, ours] {
            let (_, read) = read_all(stream).await;
            read.expect_err("is aborted");
        }
    });
}
