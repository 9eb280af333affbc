use smc_wire::types::{Rkey, RmbAddr};

use super::super::rtokens::Rtokens;
use super::*;

const ONE: LinkId = LinkId(1);
const TWO: LinkId = LinkId(2);

#[test]
fn an_identical_pair_has_one_entry() {
    let mut table = Rtokens::default();
    let id = table.add(ONE, Rkey(7), RmbAddr(0x1000)).unwrap();
    assert_eq!(table.add(ONE, Rkey(7), RmbAddr(0x1000)), Ok(id));
    // Neither half of it makes a pair.
    assert_ne!(table.add(ONE, Rkey(7), RmbAddr(0x2000)), Ok(id));
    assert_ne!(table.add(ONE, Rkey(8), RmbAddr(0x1000)), Ok(id));
    assert_ne!(table.add(TWO, Rkey(7), RmbAddr(0x1000)), Ok(id));
    assert_eq!(table.len(), 4);
}

#[test]
fn an_entry_has_a_key_for_each_link() {
    let mut table = Rtokens::default();
    let id = table.add(ONE, Rkey(7), RmbAddr(0x1000)).unwrap();
    assert_eq!(table.get(id, TWO), None);
    table.set(id, TWO, Rkey(9), RmbAddr(0x9000));
    table.set(id, TWO, Rkey(10), RmbAddr(0x9000));
    assert_eq!(table.get(id, TWO), Some((Rkey(10), RmbAddr(0x9000))));
    assert_eq!(table.find(TWO, Rkey(10)), Some(id));
    assert_eq!(table.find(TWO, Rkey(9)), None);
    // A link that goes takes its keys along; deletion concerns all links.
    table.clear_link(ONE);
    assert_eq!(table.get(id, ONE), None);
    assert!(!table.delete(ONE, Rkey(7)));
    assert!(table.delete(TWO, Rkey(10)));
    assert_eq!(table.get(id, TWO), None);
    assert_eq!(table.len(), 0);
}

#[test]
fn what_was_told_but_not_used_yet_does_not_give_way() {
    let mut table = Rtokens::default();
    for at in 0..255 {
        table.add(ONE, Rkey(at), RmbAddr(0)).unwrap();
    }
    assert!(table.is_full());
    assert_eq!(
        table.add(ONE, Rkey(999), RmbAddr(0)),
        Err(RtokenError::TableFull)
    );
    let id = table.find(ONE, Rkey(3)).unwrap();
    table.add_user(id);
    assert!(table.is_full());
    table.release(id);
    assert!(!table.is_full());
    table.add(ONE, Rkey(999), RmbAddr(0)).unwrap();
    assert!(table.is_full());
    assert_eq!(table.find(ONE, Rkey(3)), None);
}

#[test]
fn an_entry_in_use_survives_its_links() {
    let mut table = Rtokens::default();
    let id = table.add(ONE, Rkey(7), RmbAddr(0)).unwrap();
    table.add(ONE, Rkey(8), RmbAddr(0)).unwrap();
    table.add_user(id);
    table.clear_link(ONE);
    assert_eq!(table.len(), 1);
    table.release(id);
    assert_eq!(table.len(), 0);
}
