//! What of a PROPOSAL cannot be used for formal reasons, and EIDs in common.

use smc_wire::clc::Proposal;
use smc_wire::types::{Eid, Release};

use crate::proto::handshake::{DeclineCause, HandshakeConfig, RdmaConfig};

/// What remains of an offer after screening (docs/spec/handshake.md#screening).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Screened {
    pub(super) d_v2: bool,
    pub(super) r_v2: bool,
}

/// Strikes from the offer what cannot be used for formal reasons.
///
/// # Errors
///
/// Nothing is left: the reason of what was struck last.
pub(super) fn screen(
    proposal: &Proposal,
    config: &HandshakeConfig,
) -> Result<Screened, DeclineCause> {
    let Proposal { v1, v2, ext, .. } = proposal;
    let Some(ext) = ext else {
        return match (v1.is_neither(), v2.is_neither()) {
            (false, _) => Ok(Screened::default()),
            (true, false) => Err(DeclineCause::NO_V2_EXTENSION),
            (true, true) => Err(DeclineCause::NOTHING_OFFERED),
        };
    };

    let mut last = DeclineCause::NOTHING_OFFERED;
    let mut d_v2 = v2.has_d();
    if d_v2 {
        let trouble = if !config.is_v2_capable() {
            Some(DeclineCause::NO_DEVICE_FOR_V2)
        } else if ext.direct.is_none() {
            Some(DeclineCause::NO_DIRECT_EXTENSION)
        } else if ext.ueids.is_empty() && !ext.has_seid {
            Some(DeclineCause::NO_EID)
        } else {
            None
        };
        if let Some(cause) = trouble {
            (d_v2, last) = (false, cause);
        }
    }
    let mut r_v2 = v2.has_r();
    if r_v2 && ext.ueids.is_empty() {
        (r_v2, last) = (false, DeclineCause::NO_EID);
    }
    if v1.is_neither() && !d_v2 && !r_v2 {
        Err(last)
    } else {
        Ok(Screened { d_v2, r_v2 })
    }
}

/// Limits of SMC-R in v2.1. They are checked before it is clear that SMC-R is used at all.
pub(super) fn check_limits(
    proposal: &Proposal,
    screened: Screened,
    release: Release,
) -> Result<(), DeclineCause> {
    let Some(ext) = proposal.ext.as_ref().filter(|_| screened.r_v2) else {
        return Ok(());
    };
    if release < Release::V2_1 {
        return Ok(());
    }
    if ext.max_conns < RdmaConfig::MIN_CONNS {
        return Err(DeclineCause::MAX_CONNS);
    }
    if ext.max_links < MIN_LINKS {
        return Err(DeclineCause::MAX_LINKS);
    }
    Ok(())
}

/// The EID for SMC-D v2: the system EID if both sides have the same, else the first common UEID.
pub(super) fn common_eid(proposal: &Proposal, config: &HandshakeConfig) -> Option<Eid> {
    let seid = proposal.seid().filter(|seid| config.seid == Some(*seid));
    seid.or_else(|| common_ueid(proposal, config))
}

/// The first UEID of the client that this side has too.
pub(super) fn common_ueid(proposal: &Proposal, config: &HandshakeConfig) -> Option<Eid> {
    let ext = proposal.ext.as_ref()?;
    ext.ueids
        .iter()
        .copied()
        .find(|ueid| config.ueids.contains(ueid))
}

/// Links per link group that a client of SMC-R has to support at least (v2.1).
const MIN_LINKS: u8 = 1;
