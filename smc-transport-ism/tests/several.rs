//! Endpoints with several devices, and with different ones.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;

use smc::{Builder, Domain, Endpoint, Mode, Stream};
use smc_core::device::{Device, Direct as _};
use smc_core::negotiate::Assume;
use smc_testkit::on::On;
use smc_testkit::streams::{pair, ping_pong};
use smc_transport_ism::{FabricAddress, IsmDevice};
use smc_transport_loop::LoopDevice;
use smc_wire::types::DeclineCode;

/// Fabrics and a runtime directory that endpoints may share.
struct Host {
    dir: tempfile::TempDir,
    /// One device for each fabric, which keeps it.
    fabrics: Vec<IsmDevice>,
}

impl Host {
    fn new() -> Self {
        Self::with_fabrics(&[])
    }

    /// With fabrics of different CHIDs. A fabric's CHID is one of 255, drawn at random: those of
    /// any two fabrics may be equal, and only one of the two is offered then.
    fn with_fabrics(names: &[&str]) -> Self {
        let mut host = Self {
            dir: tempfile::tempdir().unwrap(),
            fabrics: Vec::new(),
        };
        for name in names {
            let fabric = loop {
                let fabric = host.fabric(name);
                if host
                    .fabrics
                    .iter()
                    .all(|known| known.chid() != fabric.chid())
                {
                    break fabric;
                }
            };
            host.fabrics.push(fabric);
        }
        host
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn fabric(&self, name: &str) -> IsmDevice {
        let address = FabricAddress::directory(self.path().join(name)).with_len(8 << 20);
        IsmDevice::builder(address).name(name).build().unwrap()
    }

    /// `loop`, or the name of a fabric.
    fn device(&self, name: &str) -> Arc<dyn Device> {
        if name == "loop" {
            let device = LoopDevice::builder()
                .domain(Domain::directory(self.path()))
                .name(name);
            return Arc::new(device.build().unwrap());
        }
        Arc::new(self.fabric(name))
    }

    fn endpoint(&self, devices: &[&str]) -> Endpoint {
        // As between machines: the only information about the peer is that it supports SMC.
        let mut builder = Builder::smol().negotiation(Arc::new(Assume::new()));
        for name in devices {
            builder = builder.device(self.device(name));
        }
        builder.build().unwrap()
    }

    /// The server's device that endpoints with these devices select; `None` for TCP.
    async fn selected(&self, client: &[&str], server: &[&str]) -> Option<String> {
        let mut streams = pair(&self.endpoint(client), &self.endpoint(server)).await;
        ping_pong(&mut streams).await;
        let (client, server) = streams;
        assert_eq!(name(&client), name(&server));
        name(&server)
    }
}

fn name(stream: &Stream) -> Option<String> {
    match stream.mode() {
        Mode::SmcD { device, .. } => Some(device.to_string()),
        Mode::Tcp { reason, .. } => {
            let codes = [Some(reason.local), reason.peer];
            assert!(codes.contains(&Some(DeclineCode::NOSMCD2DEV)), "{reason:?}");
            None
        }
        mode => panic!("{mode}"),
    }
}

#[test]
fn endpoints_select_a_common_device() {
    On::Smol.run(async {
        let host = Host::with_fabrics(&["a", "b", "c"]);
        let cases: [(&[&str], &[&str], Option<&str>); 8] = [
            (&["loop", "a"], &["loop", "a"], Some("loop")),
            (&["a", "loop"], &["loop", "a"], Some("a")),
            (&["loop", "a"], &["a"], Some("a")),
            (&["loop", "a"], &["b", "loop"], Some("loop")),
            (&["a"], &["loop", "b", "a"], Some("a")),
            (&["b", "a", "loop", "c"], &["c"], Some("c")),
            (&["loop"], &["a"], None),
            (&["a"], &["b"], None),
        ];
        for (client, server, expected) in cases {
            let selected = host.selected(client, server).await;
            assert_eq!(selected.as_deref(), expected, "{client:?} and {server:?}");
        }
    });
}

/// Each device needs two of eight entries: the fifth device is not offered.
#[test]
fn four_devices_fit_the_proposal() {
    On::Smol.run(async {
        let all = ["a", "b", "c", "d", "e"];
        let host = Host::with_fabrics(&all);
        assert_eq!(host.selected(&all, &["d"]).await.as_deref(), Some("d"));
        assert_eq!(host.selected(&all, &["e"]).await, None);
    });
}

/// Two hosts have different fabrics with the same name.
#[test]
fn fabrics_of_two_hosts_have_no_common_device() {
    On::Smol.run(async {
        let (here, there) = (Host::new(), Host::new());
        let (client, server) = (here.endpoint(&["a"]), there.endpoint(&["a"]));
        let (client, _server) = pair(&client, &server).await;
        assert!(!client.mode().is_smc(), "{}", client.mode());
    });
}
