//! tonic: streams for `serve_with_incoming`.

use ::tonic::transport::server::Connected;

use super::SmcConnectInfo;
use crate::stream::Stream;
use crate::tokio::{TcpStream, UnixStream};

impl Connected for Stream {
    type ConnectInfo = SmcConnectInfo;

    fn connect_info(&self) -> SmcConnectInfo {
        self.into()
    }
}

impl Connected for TcpStream {
    type ConnectInfo = SmcConnectInfo;

    fn connect_info(&self) -> SmcConnectInfo {
        SmcConnectInfo::from(&**self)
    }
}

impl Connected for UnixStream {
    type ConnectInfo = SmcConnectInfo;

    fn connect_info(&self) -> SmcConnectInfo {
        SmcConnectInfo::from(&**self)
    }
}
