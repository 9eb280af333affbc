//! The TCP option: any option area.

#![no_main]

use libfuzzer_sys::fuzz_target;
use smc_wire::option::{EXID, KIND, SmcOption, find};

fuzz_target!(|data: &[u8]| {
    let _ = SmcOption::parse(data);
    if let Some(found) = find(data) {
        let bytes = found.bytes;
        assert_eq!(&data[found.offset..][..bytes.len()], bytes);
        assert_eq!(
            (bytes[0], usize::from(bytes[1]), &bytes[2..6]),
            (KIND, bytes.len(), &EXID[..])
        );
        assert!(SmcOption::parse(&data[found.offset..]).is_ok());
    }
});
