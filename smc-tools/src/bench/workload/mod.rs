//! What the two processes do, as one code for all transports.
//!
//! Every client's part warms up before it measures, and knows at the end that everything arrived:
//! receivers count, and report how much came.

mod connect;
mod echo;
mod fanin;
mod http;
pub(super) mod one_way;
mod pingpong;
mod window;

use std::sync::Arc;

use anyhow::Result;
use hyper::body::Bytes;

use super::figure::{Figure, Sample};
use super::meter::Meter;
use super::plan::{Cell, Workload};
use super::transport::{Accept, Connect};

/// The client's part.
pub(super) async fn drive<C: Connect>(cell: &Cell, to: C, meter: Meter) -> Result<Sample> {
    let to = Arc::new(to);
    match cell.case.workload {
        Workload::Rate => one_way::drive(cell, &*to, meter, Figure::Messages).await,
        Workload::Bulk => one_way::drive(cell, &*to, meter, Figure::Bytes).await,
        Workload::Pingpong => pingpong::drive(cell, &*to, meter).await,
        Workload::Http => http::drive(cell, &*to, meter).await,
        Workload::Connect => connect::drive(cell, to, meter).await,
        Workload::Fanin => fanin::drive(cell, to, meter).await,
    }
}

/// The server's part, which has no end.
pub(super) async fn serve<A: Accept>(cell: &Cell, at: A) -> Result<()> {
    let at = Arc::new(at);
    let page = match cell.case.workload {
        Workload::Http => http::page(cell.settings.body),
        _ => Bytes::new(),
    };
    // Connections that are just being closed come on top of those that the client has.
    let most = cell.case.connections().saturating_mul(2) + DESCRIPTORS;
    let open = Arc::new(());
    loop {
        let stream = at.accept().await?;
        let one = Arc::clone(&open);
        if Arc::strong_count(&open) > most {
            continue;
        }
        let served = serve_connection(cell.clone(), Arc::clone(&at), stream, page.clone());
        cell.runtime.detach(async move {
            served.await;
            drop(one);
        });
    }
}

/// The client detects errors here, because the expected answer is missing.
async fn serve_connection<A: Accept>(cell: Cell, at: Arc<A>, stream: A::Stream, page: Bytes) {
    let settings = &cell.settings;
    let _noticed = match cell.case.workload {
        Workload::Rate | Workload::Bulk => one_way::serve(&*at, stream, settings.read).await,
        Workload::Pingpong | Workload::Fanin => echo::serve(stream, settings.ping).await,
        // Boxed: the task of each connection is moved, and this future is much larger than others.
        Workload::Http => Box::pin(http::serve(stream, page)).await,
        Workload::Connect => connect::serve(stream).await,
    };
}

/// Descriptors that an end needs.
pub(super) fn descriptors(cell: &Cell) -> usize {
    cell.case.connections() + DESCRIPTORS
}

/// What a process, its runtime and its device have open besides connections, and some that are
/// just being closed.
const DESCRIPTORS: usize = 256;
