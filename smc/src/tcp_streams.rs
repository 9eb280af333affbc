//! The streams of an endpoint that are TCP, for tools.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::address::Address;
use crate::conn::next_stream_id;
use crate::error::FallbackReason;
use crate::info::ConnectionInfo;
use crate::mutex::Mutex;
use crate::proto::Role;
use crate::stream::Mode;

/// Streams of an endpoint that are TCP, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct TcpStreams(Mutex<BTreeMap<u64, TcpRecord>>);

/// The record of a stream that is TCP.
#[derive(Clone, Debug)]
pub(crate) struct TcpRecord {
    pub(crate) role: Role,
    pub(crate) local: Option<Address>,
    pub(crate) peer: Address,
    pub(crate) reason: FallbackReason,
}

/// Removes the record when the stream is dropped.
#[derive(Debug)]
pub(crate) struct TcpEntry {
    streams: Arc<TcpStreams>,
    id: u64,
}

impl TcpStreams {
    pub(crate) fn add(self: &Arc<Self>, record: TcpRecord) -> TcpEntry {
        let id = next_stream_id();
        self.0.lock().insert(id, record);
        TcpEntry {
            streams: Arc::clone(self),
            id,
        }
    }

    pub(crate) fn infos(&self) -> Vec<ConnectionInfo> {
        let streams = self.0.lock();
        let infos = streams.iter().map(|(id, record)| ConnectionInfo {
            id: *id,
            role: record.role,
            mode: Mode::without_smc(&record.peer, record.reason.clone()),
            local: record.local.clone(),
            peer: record.peer.clone(),
            smc: None,
        });
        infos.collect()
    }
}

impl Drop for TcpEntry {
    fn drop(&mut self) {
        self.streams.0.lock().remove(&self.id);
    }
}
