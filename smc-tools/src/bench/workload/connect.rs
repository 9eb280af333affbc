//! `connect`: connections that are made, used once and closed.

use std::sync::Arc;

use anyhow::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::super::figure::{Figure, Sample};
use super::super::meter::Meter;
use super::super::plan::Cell;
use super::super::transport::{Connect, Duplex};
use super::window::Window;

pub(super) async fn drive<C: Connect>(cell: &Cell, to: Arc<C>, meter: Meter) -> Result<Sample> {
    let mut sample = Sample {
        path: to.path(&to.connect().await?),
        ..Sample::default()
    };
    let window = Window::new(cell.settings.time);
    let clients = (0..cell.case.load).map(|_| {
        let to = Arc::clone(&to);
        cell.runtime.spawn(async move {
            let mut counter = window.counter();
            while counter.is_open() {
                once(&*to).await?;
                counter.done();
            }
            Ok(counter)
        })
    });
    let clients = clients.collect();
    window
        .gather(cell, meter, clients, Some(Figure::Connections), &mut sample)
        .await?;
    Ok(sample)
}

/// Sends a message back and waits until the client closes.
pub(super) async fn serve<S: Duplex>(mut stream: S) -> Result<()> {
    let mut message = [0; MESSAGE_LEN];
    stream.read_exact(&mut message).await?;
    stream.write_all(&message).await?;
    let _end = stream.read(&mut message).await?;
    Ok(())
}

async fn once<C: Connect>(to: &C) -> Result<()> {
    let mut stream = to.connect().await?;
    let mut message = [0x5a; MESSAGE_LEN];
    stream.write_all(&message).await?;
    stream.read_exact(&mut message).await?;
    stream.shutdown().await?;
    Ok(())
}

const MESSAGE_LEN: usize = 64;
