//! CDC of SMC-R and of SMC-D.

use super::Problem;
use super::dissector::Dissector;
use crate::cdc::direct::Block;
use crate::cdc::rdma::Padded;
use crate::cdc::{ByteOrder, CdcD, CdcR};

pub(super) fn dissect_rdma(w: &mut Dissector<'_, '_>) {
    if w.fields::<CdcR>().is_some() {
        report_excess(w, |w| w.fields_from::<Padded>(0).map(drop));
    }
    w.verdict(CdcR::parse(w.bytes()));
}

pub(super) fn dissect_direct(w: &mut Dissector<'_, '_>, order: ByteOrder) {
    w.order(Some(order));
    report_excess(w, |w| w.fields::<Block>().map(drop));
    w.verdict(CdcD::parse(w.bytes(), order));
}

/// Reports what is behind the fields, if all of them are there.
fn report_excess<'a, 'v>(
    w: &mut Dissector<'a, 'v>,
    fields: impl FnOnce(&mut Dissector<'a, 'v>) -> Option<()>,
) {
    let is_complete = fields(w).is_some();
    if is_complete && w.left() > 0 {
        let (offset, len) = (w.at(), w.left());
        w.problem(Problem::Excess { offset, len });
    }
}
