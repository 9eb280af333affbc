use std::vec::Vec;

use super::*;
use crate::bounded::Bounded;
use crate::types::{Chid, Gid, IsmGid};

const ISM: Chid = Chid(0x07c2);
const VIRTIO: Chid = Chid(0xff00);

fn entry(gid: u64, chid: Chid) -> GidEntry {
    GidEntry {
        gid: IsmGid(gid),
        chid,
    }
}

fn native(gid: u64) -> OfferedDevice {
    OfferedDevice {
        gid: Gid::native(gid),
        chid: ISM,
    }
}

fn emulated(hi: u64, lo: u64, chid: Chid) -> OfferedDevice {
    OfferedDevice {
        gid: Gid::new(hi, lo),
        chid,
    }
}

fn devices(entries: &[GidEntry]) -> Vec<OfferedDevice> {
    let extension = DirectExtension {
        entries: Bounded::from_slice(entries).unwrap(),
        ..DirectExtension::default()
    };
    extension.devices().collect()
}

#[test]
fn emulated_devices_take_two_entries() {
    let list = [
        entry(1, ISM),
        entry(2, Chid::LOOPBACK),
        entry(3, Chid::LOOPBACK),
        entry(4, VIRTIO),
        entry(5, VIRTIO),
    ];
    let expected = [
        native(1),
        emulated(2, 3, Chid::LOOPBACK),
        emulated(4, 5, VIRTIO),
    ];
    assert_eq!(devices(&list), expected);
}

#[test]
fn half_an_emulated_device_is_skipped() {
    assert_eq!(devices(&[entry(2, Chid::LOOPBACK)]), []);
    assert_eq!(
        devices(&[entry(2, Chid::LOOPBACK), entry(1, ISM)]),
        [native(1)]
    );
    let mixed = [entry(2, Chid::LOOPBACK), entry(4, VIRTIO), entry(5, VIRTIO)];
    assert_eq!(devices(&mixed), [emulated(4, 5, VIRTIO)]);
    let odd = [
        entry(2, VIRTIO),
        entry(3, VIRTIO),
        entry(4, VIRTIO),
        entry(1, ISM),
    ];
    assert_eq!(devices(&odd), [emulated(2, 3, VIRTIO), native(1)]);
}

#[test]
fn devices_are_written_as_they_are_read() {
    let offered = [
        native(1),
        emulated(2, 3, Chid::LOOPBACK),
        emulated(4, 0, VIRTIO),
        native(6),
        native(7),
    ];
    let mut extension = DirectExtension::default();
    for device in offered {
        extension.push_device(device).unwrap();
    }
    assert_eq!(extension.entries.len(), 7);
    assert_eq!(extension.devices().collect::<Vec<_>>(), offered);
    // One entry is left: not enough for an emulated device, enough for a native one.
    let too_much = emulated(8, 9, VIRTIO);
    assert_eq!(extension.push_device(too_much), Err(too_much));
    assert_eq!(extension.entries.len(), 7);
    assert_eq!(extension.push_device(native(8)), Ok(()));
    assert_eq!(extension.push_device(native(9)), Err(native(9)));
}

#[test]
fn native_devices_have_no_extended_gid() {
    let device = emulated(1, 2, ISM);
    let mut extension = DirectExtension::default();
    assert_eq!(extension.push_device(device), Err(device));
    assert!(extension.entries.is_empty());
}
