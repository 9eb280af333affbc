//! Two ends of a UNIX socket, for tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_lite::future::zip;
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use smc::{Builder, Domain, Endpoint, LoopDevice, Stream, UnixListener};
use smc_testkit::on::On;
use tempfile::TempDir;

/// Directories of one test, for sockets and devices.
pub(crate) struct Place {
    pub(crate) directory: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn builder(&self, on: On) -> Builder {
        let domain = Domain::directory(self.directory.path().join("smc"));
        let device = LoopDevice::builder().domain(domain).build().unwrap();
        on.endpoint().device(Arc::new(device))
    }

    pub(crate) fn endpoint(&self, on: On) -> Endpoint {
        self.builder(on).build().unwrap()
    }

    /// A client, a server, and its listener at the path.
    pub(crate) fn ends(&self, on: On) -> (Endpoint, Endpoint, PathBuf, UnixListener) {
        let [client, server] = [(); 2].map(|()| self.endpoint(on));
        let at = self.path();
        let listener = server.bind_unix(&at).unwrap();
        (client, server, at, listener)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("app.sock")
    }

    /// An abstract name that no other test has, behind a zero byte.
    pub(crate) fn abstract_name(&self) -> PathBuf {
        let name = self.path();
        PathBuf::from(format!("\0{}", name.display()))
    }
}

pub(crate) async fn connect_pair(
    client: &Endpoint,
    listener: &UnixListener,
    to: &Path,
) -> [Stream; 2] {
    let (client, server) = zip(client.connect_unix(to), listener.accept()).await;
    [client.unwrap(), server.unwrap().0]
}

pub(crate) async fn exchange([client, server]: &mut [Stream; 2]) {
    client.write_all(b"request").await.unwrap();
    let mut request = [0; 7];
    server.read_exact(&mut request).await.unwrap();
    assert_eq!(&request, b"request");
    server.write_all(b"answer").await.unwrap();
    let mut answer = [0; 6];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"answer");
}
