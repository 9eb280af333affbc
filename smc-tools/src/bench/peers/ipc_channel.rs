//! ipc-channel: two channels of bytes, one for each direction. A receiver blocks in the kernel.

use std::thread;

use anyhow::{Result, anyhow};
use ipc_channel::IpcError;
use ipc_channel::ipc::{self, IpcBytesReceiver, IpcBytesSender, IpcOneShotServer, IpcSender};

use super::super::figure::Sample;
use super::super::meter::Meter;
use super::super::plan::Cell;
use super::Messages;

/// The client's part.
pub(in crate::bench) fn drive(cell: &Cell, server: String, meter: Meter) -> Result<Sample> {
    let (there, from_here) = ipc::bytes_channel()?;
    let (to_here, back) = ipc::bytes_channel()?;
    let pipe = Pipe {
        out: there,
        input: back,
    };
    IpcSender::connect(server)?
        .send((to_here, from_here))
        .map_err(failed)?;
    super::drive(cell, &pipe, "ipc-channel, bytes", meter)
}

/// The server's part, on a thread that ends with its client. Returns where to connect to.
pub(in crate::bench) fn serve(cell: &Cell) -> Result<String> {
    let (server, name) = IpcOneShotServer::new()?;
    let cell = cell.clone();
    thread::spawn(move || {
        let (_first, (out, input)) = server.accept().map_err(failed)?;
        super::serve(&cell, &Pipe { out, input })
    });
    Ok(name)
}

struct Pipe {
    out: IpcBytesSender,
    input: IpcBytesReceiver,
}

impl Messages for Pipe {
    fn send(&self, data: &[u8]) -> Result<()> {
        Ok(self.out.send(data)?)
    }

    fn take<T>(&self, show: impl FnOnce(&[u8]) -> T) -> Result<T> {
        Ok(show(&self.input.recv().map_err(failed)?))
    }
}

fn failed(error: IpcError) -> anyhow::Error {
    anyhow!("ipc-channel: {error:?}")
}
