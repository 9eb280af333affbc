//! The option of SMC in a SYN that the kernel has kept: any bytes that a peer can put there.

#![no_main]

use libfuzzer_sys::fuzz_target;
use smc_negotiate_syn::fuzz::has_option;
use smc_wire::option;

fuzz_target!(|data: &[u8]| {
    if has_option(data) {
        // The option is somewhere among these bytes.
        let exid = option::EXID;
        assert!(data.windows(exid.len()).any(|bytes| bytes == exid));
    }
    // The same with headers in order, so that the input is the options.
    let options = &data[..data.len().min(40) & !3];
    let mut tcp = [0; 20];
    tcp[12] = u8::try_from((20 + options.len()) * 4).expect("at most 60 bytes");
    let mut ip = [0; 20];
    (ip[0], ip[9]) = (0x45, 6);
    let segment = [&ip[..], &tcp, options].concat();
    assert_eq!(has_option(&segment), option::find(options).is_some());
});
