//! Local negotiation between endpoints with and without devices, over real sockets.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future;
use smc_core::FallbackReason;
use smc_core::io::Endpoint;
use smc_core::io::negotiate::Local;
use smc_core::wire::types::DeclineCode;

use crate::world::{World, anywhere, reason};

fn ours(code: DeclineCode) -> Option<FallbackReason> {
    Some(FallbackReason::local(code))
}

fn told(code: DeclineCode) -> Option<FallbackReason> {
    Some(FallbackReason::peer_declined(code))
}

#[test]
fn whoever_lacks_a_device_falls_back_without_waiting() {
    // A client without devices does not wait until the server has seen its DECLINE.
    let unheard = || vec![ours(DeclineCode::PEERNOSMC), told(DeclineCode::NOSMCDEV)];
    let nodev = || vec![ours(DeclineCode::NOSMCDEV)];
    let (no_ism, told_no_ism) = (DeclineCode::NOISM2SUPP, told(DeclineCode::NOISM2SUPP));
    // Who has a device, and the reasons of the client's stream and of the server's.
    let rows = [
        (true, true, vec![None], vec![None]),
        (true, false, vec![told_no_ism], vec![ours(no_ism)]),
        (false, true, nodev(), unheard()),
        (false, false, nodev(), unheard()),
    ];
    for (client_has, server_has, client_reasons, server_reasons) in rows {
        let Some(world) = World::real() else {
            println!("skipped: no adapter for real sockets is compiled in");
            return;
        };
        println!("client has a device: {client_has}, server has one: {server_has}");
        let dir = TempDir::new();
        let (client, server) = (
            endpoint(&world, &dir, client_has),
            endpoint(&world, &dir, server_has),
        );
        world.block_on(async {
            let listener = server.bind(anywhere()).await.unwrap();
            let at = listener.local_addr().unwrap();
            for _ in 0..10 {
                let since = world.rt.now();
                let connect = client.connect(at);
                let (ours, theirs) = future::zip(connect, listener.accept()).await;
                let (ours, (theirs, _)) = (ours.unwrap(), theirs.unwrap());
                assert!(
                    world.rt.now() - since < Duration::from_secs(2),
                    "it has waited"
                );
                let reasons = (reason(&ours), reason(&theirs));
                assert!(client_reasons.contains(&reasons.0), "{reasons:?}");
                assert!(server_reasons.contains(&reasons.1), "{reasons:?}");
                world.chat(ours, theirs).await;
            }
        });
    }
}

fn endpoint(world: &World, dir: &TempDir, has_device: bool) -> Endpoint {
    let negotiation = Arc::new(Local::new().with_directory(&dir.0));
    world.endpoint(|builder| {
        let builder = builder.negotiation(negotiation);
        match has_device {
            true => builder.device(Arc::new(world.device("device"))),
            false => builder,
        }
    })
}

/// A directory that only this user can reach.
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> Self {
        use std::os::unix::fs::DirBuilderExt;
        use std::sync::atomic::{AtomicU32, Ordering};

        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("smc-fallback-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .unwrap();
        Self(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _best_effort = std::fs::remove_dir_all(&self.0);
    }
}
