//! Two link groups, joined by a simulated network, under a clock that only the test moves.

mod add_link;
mod agreement;
mod authentication;
mod confirm_link;
mod credits;
mod delete_link;
mod ends;
mod failover;
mod hostile;
mod keys;
mod notices;
mod rtokens;
mod send_queue;
mod simulation;
mod summary;
mod tables;
mod world;

use std::time::Duration;

use smc_wire::llc::{DeleteLinkReason, MessageType};

use super::*;
use crate::proto::group::GroupEndCause;
use world::{CLIENT, SERVER, World};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
