//! Whole streams over SMC-R: endpoints on in-memory RDMA devices, with virtual time.

mod closing;
mod concurrency;
mod credits;
mod declines;
mod delivery;
mod driver_thread;
mod early;
mod failover;
mod forged;
mod groups;
mod hostile;
mod interceptor;
mod ipv6;
mod links;
mod memory;
mod networks;
mod relayed;
mod setups;
mod simulation;
mod single_link;
mod slow_receivers;
mod spare;
mod streams;

use smc::info::RdmaGroupInfo;

/// Whether the keys that the hosts of these groups know of each other, without connections, are
/// those of RMBs that stay announced; of none if they keep none.
fn are_kept(groups: &[RdmaGroupInfo], keeps_rkeys: bool) -> bool {
    let sum = |of: fn(&RdmaGroupInfo) -> usize| groups.iter().map(of).sum::<usize>();
    let kept = sum(|group| group.kept);
    sum(|group| group.retiring) == 0
        && sum(|group| group.rtokens) == kept
        && (keeps_rkeys || kept == 0)
}
