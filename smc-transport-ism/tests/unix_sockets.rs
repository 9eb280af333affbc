//! Clients at UNIX sockets that name devices which are not theirs. A fabric does not know whose a
//! device is.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use rustix::net::SocketAddrUnix;
use smc::{Endpoint, UnixListener};
use smc_core::device::{Device as _, Direct};
use smc_core::proto::group::DeviceIndex;
use smc_core::proto::handshake::{ClientProposal, DirectDevice, HandshakeConfig, TcpPath};
use smc_testkit::on::On;
use smc_testkit::unix::marked_client;
use smc_testkit::user::{is_root, run_as};
use smc_transport_ism::{FabricAddress, IsmDevice};
use smc_wire::clc::{AcceptConfirm, AcceptKind, Message};
use smc_wire::types::DeclineCode;
use tempfile::TempDir;

/// A listener on a device of its own.
struct Service {
    _endpoint: Endpoint,
    listener: UnixListener,
    /// An abstract name, behind a zero byte.
    name: String,
    /// A PROPOSAL from its device.
    proposal: Vec<u8>,
}

impl Service {
    fn new(directory: &TempDir, name: &str) -> Self {
        let fabric = FabricAddress::directory(directory.path().join("fabric"));
        let device = IsmDevice::builder(fabric).build().unwrap();
        let proposal = proposal_from(device.operations().direct().unwrap());
        let endpoint = On::Smol.endpoint().device(Arc::new(device)).build();
        let endpoint = endpoint.unwrap();
        let name = format!("{}-{name}", directory.path().display());
        let listener = endpoint.bind_unix(PathBuf::from(format!("\0{name}")));
        Self {
            _endpoint: endpoint,
            listener: listener.unwrap(),
            name,
            proposal,
        }
    }

    /// Sends a PROPOSAL on a socket that is bound as a client's; returns the answer as well.
    fn answer_to(&self, proposal: &[u8]) -> (UnixStream, Message) {
        let marked = format!("{}\0smc", self.name);
        let marked = SocketAddrUnix::new_abstract_name(marked.as_bytes()).unwrap();
        let mut client = marked_client(&marked).unwrap();
        client.write_all(proposal).unwrap();
        let mut answer = [0; 1024];
        let count = client.read(&mut answer).unwrap();
        (client, Message::parse(&answer[..count]).unwrap())
    }
}

fn proposal_from(device: &dyn Direct) -> Vec<u8> {
    let device = DirectDevice::new(DeviceIndex(0), device.gid(), device.chid());
    let config = HandshakeConfig::new(vec![device]);
    let proposal = ClientProposal::new(&config, &TcpPath::default()).unwrap();
    proposal.bytes().to_vec()
}

/// Each gets the token of the other one's buffer, so that they have a stream with each other.
#[test]
fn services_that_a_client_without_a_device_has_joined_are_apart_when_its_sockets_are_closed() {
    let directory = tempfile::tempdir().unwrap();
    let services = ["one", "other"].map(|name| Service::new(&directory, name));
    let mut met = Vec::new();
    for (service, of) in services.iter().zip(services.iter().rev()) {
        let (client, answer) = service.answer_to(&of.proposal);
        let Message::Accept(accept) = answer else {
            panic!("{answer:?}");
        };
        met.push((client, accept));
    }
    let accepts: Vec<_> = met.iter().map(|(_, accept)| accept.clone()).collect();
    for ((client, _), of_other) in met.iter_mut().zip(accepts.iter().rev()) {
        client.write_all(&confirm(of_other.clone())).unwrap();
    }
    On::Smol.run(async {
        let mut streams = Vec::new();
        for service in &services {
            streams.push(service.listener.accept().await.unwrap().0);
        }
        for stream in &mut streams {
            assert!(stream.mode().is_smc());
            stream.write_all(b"220 ready").await.unwrap();
        }
        for stream in &mut streams {
            stream.read_exact(&mut [0; 9]).await.unwrap();
        }
        drop(met);
        for stream in &mut streams {
            let end = stream.read(&mut [0]).await.unwrap_err().kind();
            // The end of the socket, or the abort of the other one.
            let ends = [ErrorKind::ConnectionAborted, ErrorKind::ConnectionReset];
            assert!(ends.contains(&end), "{end}");
        }
    });
}

fn confirm(mut accept: AcceptConfirm) -> Vec<u8> {
    accept.kind = AcceptKind::Confirm;
    let mut bytes = vec![0; accept.encoded_len()];
    accept.emit(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_client_of_another_user_cannot_name_the_device_of_the_listener() {
    if !is_root("connect as another user") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let service = Service::new(&directory, "service");
    let answer = run_as(990, || service.answer_to(&service.proposal).1).unwrap();
    let Message::Decline(decline) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(decline.diagnosis, DeclineCode::NOSMCD2DEV);
}
