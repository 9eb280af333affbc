//! Early data over loop devices, with handshakes on TCP and on UNIX sockets.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_lite::AsyncReadExt as _;
use futures_lite::future::{poll_once, zip};
use smc::{Builder, Domain, Endpoint, Error, ListenOptions, LoopDevice, Stream, UnixListener};
use smc_core::negotiate::Assume;
use smc_testkit::on::On;
use smc_testkit::streams::{expect, transfer_both_ways};
use tempfile::TempDir;

use super::{ANSWER, REQUEST, answer, is_taken, listen, request, with_data};

/// A directory of one test, for sockets and devices.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    /// With a loop device, as processes of one host have it.
    fn builder(&self, on: On, nocopy: bool) -> Builder {
        let domain = Domain::directory(self.directory.path().join("smc"));
        let device = LoopDevice::builder().domain(domain).nocopy(nocopy);
        on.endpoint().device(Arc::new(device.build().unwrap()))
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("app.sock")
    }

    /// A client, and a server with a listener on the UNIX socket that takes so much early data.
    fn serve_unix(&self, on: On, nocopy: bool, max: usize) -> ([Endpoint; 2], UnixListener) {
        let both = [(); 2].map(|()| self.builder(on, nocopy).build().unwrap());
        let options = ListenOptions::new().max_early_data(max);
        let listener = both[1].bind_unix_with(self.path(), &options).unwrap();
        (both, listener)
    }
}

fn on_each(scenario: impl AsyncFn(On, bool)) {
    for on in On::ALL {
        for nocopy in [true, false] {
            on.run(scenario(on, nocopy));
        }
    }
}

#[test]
fn early_data_goes_over_loop_devices_with_handshakes_on_tcp() {
    on_each(async |on, nocopy| {
        let place = Place::new();
        let endpoint = || {
            let builder = place.builder(on, nocopy);
            builder
                .negotiation(Arc::new(Assume::new()))
                .build()
                .unwrap()
        };
        let [client, server] = [(); 2].map(|()| endpoint());
        let (listener, at) = listen(&server, 4096).await;
        drop(request(&client, at, &listener).await);
        for _ in 0..10 {
            let streams = request(&client, at, &listener).await;
            assert!(is_taken(&streams));
            let [mut ours, mut theirs] = streams;
            transfer_both_ways(&mut ours, &mut theirs, 100_000).await;
        }
    });
}

async fn request_unix(
    client: &Endpoint,
    to: &Path,
    listening: impl Future<Output = Stream>,
) -> [Stream; 2] {
    let connecting = async {
        let options = with_data(&REQUEST);
        let mut ours = client.connect_unix_with(to, &options).await.unwrap();
        expect(&mut ours, ANSWER).await;
        ours
    };
    let serving = async {
        let mut theirs = listening.await;
        answer(&mut theirs).await;
        theirs
    };
    zip(connecting, serving).await.into()
}

#[test]
fn early_data_goes_over_unix_sockets() {
    for (max, takes) in [(4096, true), (REQUEST.len() - 1, false)] {
        on_each(async |on, nocopy| {
            let place = Place::new();
            let ([client, _server], listener) = place.serve_unix(on, nocopy, max);
            let at = place.path();
            let accept = async || listener.accept().await.unwrap().0;
            let first = request_unix(&client, &at, accept()).await;
            assert!(!is_taken(&first), "there was no precedent");
            for _ in 0..10 {
                let streams = request_unix(&client, &at, accept()).await;
                assert_eq!(is_taken(&streams), takes);
                let [mut ours, mut theirs] = streams;
                transfer_both_ways(&mut ours, &mut theirs, 100_000).await;
            }
        });
    }
}

/// A listener without SMC in the place of one that is gone.
fn plain_listener(at: &Path) -> smol::net::unix::UnixListener {
    let _is_left = std::fs::remove_file(at);
    smol::net::unix::UnixListener::bind(at).unwrap()
}

#[test]
fn early_data_is_written_to_a_plain_unix_socket_in_the_place_of_the_listener() {
    let place = Place::new();
    let on = On::Smol;
    on.run(async {
        let ([client, _server], listener) = place.serve_unix(on, true, 4096);
        let at = place.path();
        let accept = async || listener.accept().await.unwrap().0;
        drop(request_unix(&client, &at, accept()).await);
        drop(listener);
        let plain = plain_listener(&at);
        let options = with_data(&REQUEST);
        let connecting = client.connect_unix_with(&at, &options);
        let (ours, theirs) = zip(connecting, plain.accept()).await;
        let (ours, (mut theirs, _)) = (ours.unwrap(), theirs.unwrap());
        assert!(!ours.early_data_accepted());
        expect(&mut theirs, REQUEST).await;
    });
}

/// The server may have the data when it goes, before it has answered.
#[test]
fn a_connect_to_a_unix_socket_fails_where_the_data_may_have_been_delivered() {
    let place = Place::new();
    let on = On::TokioAlone;
    on.run(async {
        let ([client, server], listener) = place.serve_unix(on, true, 4096);
        let at = place.path();
        let accept = async || listener.accept().await.unwrap().0;
        drop(request_unix(&client, &at, accept()).await);
        let options = with_data(&REQUEST);
        let mut connecting = Box::pin(client.connect_unix_with(&at, &options));
        for _ in 0..3 {
            assert!(poll_once(&mut connecting).await.is_none());
        }
        drop((listener, server));
        let plain = plain_listener(&at);
        let failed = connecting.await;
        assert!(
            matches!(failed, Err(Error::Closed(_) | Error::Io(_))),
            "{failed:?}"
        );
        let more = poll_once(plain.accept()).await;
        assert!(more.is_none(), "it is not sent again");
    });
}

#[test]
fn a_stream_on_a_unix_socket_ends_whose_client_is_gone_after_its_proposal() {
    let on = On::TokioAlone;
    for nocopy in [true, false] {
        let place = Place::new();
        on.run(async {
            let ([client, _server], listener) = place.serve_unix(on, nocopy, 4096);
            let at = place.path();
            let accept = async || listener.accept().await.unwrap().0;
            drop(request_unix(&client, &at, accept()).await);
            let options = with_data(&REQUEST);
            let mut connecting = Box::pin(client.connect_unix_with(&at, &options));
            // As far as it comes without an answer.
            for _ in 0..3 {
                assert!(poll_once(&mut connecting).await.is_none());
            }
            let mut theirs = accept().await;
            assert!(theirs.is_early());
            expect(&mut theirs, REQUEST).await;
            drop(connecting);
            theirs.read(&mut [0]).await.unwrap_err();
        });
    }
}
