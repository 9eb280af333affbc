//! Whole endpoints that negotiate by option: streams, fallback, and never a byte too much.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use futures_lite::{AsyncWriteExt, future};
use smc::runtime::smol::SmolRuntime;
use smc::{Builder, Domain, Endpoint, FallbackCause, FallbackReason, Policy, Stream};
use smc_core::negotiate::{Chain, Negotiation};
use smc_core::runtime::Runtime;
use smc_core::wire::types::DeclineCode;
use smc_negotiate_local::Local;
use smc_negotiate_syn::SynOption;
use smc_testkit::memory_device::MemFabric;
use smc_testkit::streams::{connect, expect, expect_rest};

use crate::lab::{Lab, in_lab};
use crate::world::{World, run};

in_lab! {
    smc_over_the_option,
    smc_on_smol,
    plain_peers_see_plain_tcp,
    a_server_that_wants_no_smc_declines,
    an_endpoint_without_a_device_declines,
    the_same_host_first_then_the_option,
    a_listener_that_was_passed_sends_no_option,
}

fn smc_over_the_option(_: Lab) {
    run(|world| async move {
        let option = Arc::new(SynOption::load().unwrap());
        let hosts = Hosts::new(&world.rt, option);
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let (ours, theirs) = hosts.connect_pair(at).await;
            assert!(ours.mode().is_smc(), "{}", ours.mode());
            assert!(theirs.mode().is_smc(), "{}", theirs.mode());
            talk(ours, theirs).await;
        }
    });
}

fn smc_on_smol(_: Lab) {
    let rt: Arc<dyn Runtime> = Arc::new(SmolRuntime::new());
    smol::block_on(async {
        let hosts = Hosts::new(&rt, Arc::new(SynOption::load().unwrap()));
        let (ours, theirs) = hosts.connect_pair("127.0.0.1:0").await;
        assert!(ours.mode().is_smc(), "{}", ours.mode());
        talk(ours, theirs).await;
    });
}

fn plain_peers_see_plain_tcp(_: Lab) {
    run(|world| async move {
        let hosts = Hosts::new(&world.rt, Arc::new(SynOption::load().unwrap()));

        let listener = hosts.server.bind("127.0.0.1:0").await.unwrap();
        let mut plain = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        assert_eq!(stream.fallback_reason(), Some(NOT_SPOKEN));
        plain.write_all(b"to a server").unwrap();
        expect(&mut stream, b"to a server").await;
        stream.write_all(b"to a client").await.unwrap();
        let mut word = [0; 11];
        plain.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"to a client");

        let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = plain.local_addr().unwrap();
        let mut stream = hosts.client.connect(at).await.unwrap();
        assert_eq!(stream.fallback_reason(), Some(NOT_SPOKEN));
        let (mut plain, _) = plain.accept().unwrap();
        stream.write_all(b"to a server").await.unwrap();
        plain.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"to a server");
        plain.write_all(b"to a client").unwrap();
        expect(&mut stream, b"to a client").await;
    });
}

fn a_server_that_wants_no_smc_declines(_: Lab) {
    run(|world| async move {
        let mut hosts = Hosts::new(&world.rt, Arc::new(SynOption::load().unwrap()));
        hosts.server = hosts.endpoint(true, Policy::Never);
        let (ours, theirs) = hosts.connect_pair("127.0.0.1:0").await;
        let by_policy = FallbackReason::because(DeclineCode::OPTUNSUPP, FallbackCause::Policy);
        assert_eq!(theirs.fallback_reason(), Some(by_policy.clone()));
        assert!(ours.fallback_reason().is_some());
        talk(ours, theirs).await;
        // A client without SMC sends no option in its SYN.
        let never = hosts.endpoint(true, Policy::Never);
        hosts.server = hosts.endpoint(true, Policy::Prefer);
        hosts.client = never;
        let (ours, theirs) = hosts.connect_pair("127.0.0.1:0").await;
        assert_eq!(ours.fallback_reason(), Some(by_policy));
        assert_eq!(theirs.fallback_reason(), Some(NOT_SPOKEN));
        talk(ours, theirs).await;
    });
}

fn an_endpoint_without_a_device_declines(_: Lab) {
    run(|world| async move {
        let mut hosts = Hosts::new(&world.rt, Arc::new(SynOption::load().unwrap()));
        for (client_has, server_has) in [(false, true), (true, false), (false, false)] {
            hosts.client = hosts.endpoint(client_has, Policy::Prefer);
            hosts.server = hosts.endpoint(server_has, Policy::Prefer);
            let (ours, theirs) = hosts.connect_pair("127.0.0.1:0").await;
            assert!(ours.fallback_reason().is_some());
            assert!(theirs.fallback_reason().is_some());
            assert_ne!(theirs.fallback_reason(), Some(NOT_SPOKEN));
            talk(ours, theirs).await;
        }
    });
}

fn the_same_host_first_then_the_option(_: Lab) {
    let directories = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let paths = directories.each_ref().map(|dir| dir.path().to_owned());
    run(|world: World| {
        let directories = paths.clone();
        async move {
            let option = SynOption::load().unwrap();
            let chain = |directory: &PathBuf| {
                let local = Local::in_domain(Domain::directory(directory));
                let links: [Arc<dyn Negotiation>; 2] = [Arc::new(local), Arc::new(option.clone())];
                Arc::new(Chain::new(links))
            };
            let sniffer = crate::world::Sniffer::start();
            let mut hosts = Hosts::new(&world.rt, chain(&directories[0]));
            for is_local in [true, false] {
                let listener = hosts.server.bind("127.0.0.1:0").await.unwrap();
                let (ours, theirs) = hosts.meet_at(&listener).await;
                assert!(ours.mode().is_smc(), "{}", ours.mode());
                talk(ours, theirs).await;
                let port = listener.local_addr().unwrap().port();
                for syn in sniffer.handshakes(port) {
                    let has_option = smc_core::wire::option::find(&syn.options).is_some();
                    assert_eq!(has_option, !is_local);
                }
                // One that does not find the other's directory.
                hosts.negotiation = chain(&directories[1]);
                hosts.client = hosts.endpoint(true, Policy::Require);
            }
        }
    });
}

fn a_listener_that_was_passed_sends_no_option(_: Lab) {
    run(|world| async move {
        let hosts = Hosts::new(&world.rt, Arc::new(SynOption::load().unwrap()));
        let passed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let listener = hosts.server.listen_on(passed).unwrap();
        let (ours, theirs) = hosts.meet_at(&listener).await;
        for stream in [&ours, &theirs] {
            // The listener also reports why its option could not be set.
            let reason = stream.fallback_reason().unwrap();
            assert_eq!(reason.local, DeclineCode::PEERNOSMC, "{reason}");
        }
        talk(ours, theirs).await;
    });
}

struct Hosts {
    rt: Arc<dyn Runtime>,
    negotiation: Arc<dyn Negotiation>,
    fabric: MemFabric,
    client: Endpoint,
    server: Endpoint,
}

impl Hosts {
    fn new(rt: &Arc<dyn Runtime>, negotiation: Arc<dyn Negotiation>) -> Self {
        let fabric = MemFabric::new(7);
        let endpoint = || endpoint(rt, &fabric, &negotiation, true, Policy::Prefer);
        Self {
            client: endpoint(),
            server: endpoint(),
            rt: Arc::clone(rt),
            negotiation,
            fabric,
        }
    }

    fn endpoint(&self, has_device: bool, policy: Policy) -> Endpoint {
        endpoint(
            &self.rt,
            &self.fabric,
            &self.negotiation,
            has_device,
            policy,
        )
    }

    async fn connect_pair(&self, at: &str) -> (Stream, Stream) {
        let listener = self.server.bind(at).await.unwrap();
        self.meet_at(&listener).await
    }

    async fn meet_at(&self, listener: &smc::Listener) -> (Stream, Stream) {
        connect(&self.client, listener).await
    }
}

fn endpoint(
    rt: &Arc<dyn Runtime>,
    fabric: &MemFabric,
    negotiation: &Arc<dyn Negotiation>,
    has_device: bool,
    policy: Policy,
) -> Endpoint {
    let builder = Builder::new()
        .runtime(Arc::clone(rt))
        .negotiation(Arc::clone(negotiation))
        .policy(policy);
    let builder = match has_device {
        true => builder.device(fabric.device("memory")),
        false => builder,
    };
    builder.build().unwrap()
}

/// Both send and get what the other one sent, and nothing else.
async fn talk(mut ours: Stream, mut theirs: Stream) {
    ours.write_all(b"from the client").await.unwrap();
    theirs.write_all(b"from the server").await.unwrap();
    let (a, b) = future::zip(ours.close(), theirs.close()).await;
    a.and(b).unwrap();
    expect_rest(&mut theirs, b"from the client").await;
    expect_rest(&mut ours, b"from the server").await;
}

const NOT_SPOKEN: FallbackReason =
    FallbackReason::because(DeclineCode::PEERNOSMC, FallbackCause::NoSynOption);
