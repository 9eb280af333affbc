//! CDC of SMC-R and of SMC-D.

use super::dissector::Dissector;
use crate::cdc::direct::Block;
use crate::cdc::rdma::Padded;
use crate::cdc::{ByteOrder, CdcD, CdcR};

pub(super) fn dissect_rdma(w: &mut Dissector<'_, '_>) {
    if w.fields::<CdcR>().is_some() && w.fields_from::<Padded>(0).is_some() {
        w.excess();
    }
    w.verdict(CdcR::parse(w.bytes()));
}

pub(super) fn dissect_direct(w: &mut Dissector<'_, '_>, order: ByteOrder) {
    w.order(Some(order));
    if w.fields::<Block>().is_some() {
        w.excess();
    }
    w.verdict(CdcD::parse(w.bytes(), order));
}
