//! Agreement on socket reuse (docs/spec/extensions.md#socket-reuse).

use smc_wire::clc::Proposal;
use smc_wire::types::{Features, Release};

use super::*;

fn config(features: Features) -> HandshakeConfig {
    HandshakeConfig {
        vendor_features: features,
        ..host()
    }
}

#[test]
fn a_link_group_of_smc_d_has_it_if_both_ends_state_it() {
    let (with, none) = (Features::SOCKET_REUSE, Features::empty());
    for (client, server, agreed) in [
        (with, with, with),
        (with, none, none),
        (none, with, none),
        (none, none, none),
    ] {
        let first = Pair::new(config(client), config(server)).completed();
        for side in [&first.client, &first.server] {
            assert_eq!(side.established().group_features, agreed);
        }
    }
}

#[test]
fn it_is_stated_with_an_offer_of_smc_d_alone() {
    let stated = |config: &HandshakeConfig| {
        let proposal = ClientProposal::new(config, &TcpPath::default()).ok()?;
        let proposal = Proposal::parse(proposal.bytes()).unwrap();
        Some(proposal.smcd?.vendor_features())
    };
    let with = config(Features::SOCKET_REUSE);
    assert_eq!(stated(&with), Some(Features::SOCKET_REUSE));
    let older = HandshakeConfig {
        release: Release::V2_0,
        ..with
    };
    assert_eq!(stated(&older), Some(Features::empty()));
}
