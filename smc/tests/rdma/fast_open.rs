//! PROPOSALs in the SYN (docs/spec/extensions.md#fast-open).

use std::future::poll_fn;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use futures_lite::AsyncReadExt as _;
use futures_lite::future::zip;
use smc::{ConnectOptions, FallbackCause, ListenOptions};
use smc_core::negotiate::{Assume, Candidate, Delivery, Negotiation, Offer, Published, Withdrawn};
use smc_core::runtime::{Runtime, Socket, SocketOptions};
use smc_testkit::world::{RdmaHosts, SERVER};

use crate::single_link::{LATENCY, world};

/// The SYN-ACKs that a client gets: whether they have the SMC option.
#[derive(Clone, Debug, Default)]
struct SynAcks {
    is_plain: Arc<AtomicBool>,
}

#[async_trait]
impl Negotiation for SynAcks {
    async fn look_up(
        &self,
        _: &Arc<dyn Runtime>,
        _: SocketAddr,
    ) -> Result<Candidate, FallbackCause> {
        let syn_acks = self.clone();
        Ok(Candidate::new(move |_, _, _| {
            Ok(Box::new(syn_acks.clone()))
        }))
    }

    fn publish(
        &self,
        runtime: &Arc<dyn Runtime>,
        at: SocketAddr,
        listener: Option<BorrowedFd<'_>>,
    ) -> Result<Arc<dyn Published>, FallbackCause> {
        Assume::new().publish(runtime, at, listener)
    }
}

impl Offer for SynAcks {
    fn connected(&mut self, _: &dyn Socket) -> Delivery {
        match self.is_plain.load(Ordering::Relaxed) {
            true => Delivery::Plain,
            false => Delivery::OnTcp,
        }
    }

    fn withdraw(&mut self) -> Withdrawn {
        Withdrawn::Taken
    }
}

/// One with early data that takes several packets.
#[test]
fn a_listener_without_smc_gets_no_more_of_a_proposal_than_its_syn_has() {
    for takes_data_in_syns in [true, false] {
        let world = world(1);
        let syn_acks = SynAcks::default();
        let RdmaHosts { client, server, .. } = world.hosts_with(|builder| {
            let negotiation = Arc::new(syn_acks.clone());
            builder.fast_open(true).negotiation(negotiation)
        });
        world.block_on(async {
            let options = ListenOptions::new().max_early_data(REQUEST.len());
            let listener = server.bind_with(SERVER, &options).await.expect("listens");
            let options = ConnectOptions::new().early_data(REQUEST);
            for number in 0..3 {
                let sent = world.runtime().copy_next(SERVER);
                let accepting = async {
                    let (mut theirs, _) = listener.accept().await.expect("accepts");
                    let mut request = [0; REQUEST.len()];
                    theirs.read_exact(&mut request).await.expect("is asked");
                    theirs
                };
                let connecting = client.connect_with(SERVER, &options);
                let (ours, theirs) = zip(connecting, accepting).await;
                let ours = ours.expect("connects");
                assert_eq!(ours.early_data_accepted(), number > 0);
                drop((ours, theirs));
                let sent = sent.lock().expect("is not poisoned").len();
                assert_eq!(sent > REQUEST.len(), number > 0, "{sent}");
                world.sleep(LATENCY * 20).await;
            }
            drop(listener);

            syn_acks.is_plain.store(true, Ordering::Relaxed);
            let mut of_listener = SocketOptions::default();
            of_listener.fast_open = takes_data_in_syns;
            let runtime = world.runtime().handle();
            let plain = runtime.bind(SERVER, &of_listener, &mut |_| Ok(()));
            let plain = plain.expect("listens");
            let sent = world.runtime().copy_next(SERVER);
            // It may have been another one, which has taken the data.
            client.connect_with(SERVER, &options).await.unwrap_err();
            world.sleep(LATENCY * 20).await;
            assert_eq!(sent.lock().expect("is not poisoned").len(), OF_SYN);
            let (_reset, _) = poll_fn(|cx| plain.poll_accept(cx)).await.expect("accepts");

            let again = client.connect_with(SERVER, &options).await;
            let reason = again.expect("connects").mode().fallback_reason();
            assert!(reason.is_some());
        });
    }
}

const REQUEST: [u8; 4000] = [b'?'; 4000];

/// What a SYN takes.
const OF_SYN: usize = 1400;
