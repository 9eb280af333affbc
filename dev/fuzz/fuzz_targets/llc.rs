//! LLC: any bytes as one received message; what parses is emitted and parses again to the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use smc_wire::llc::{ByteOrder, Header, MAX_MESSAGE_LEN, Message, detect_order};

fuzz_target!(|data: &[u8]| {
    let data = &data[..data.len().min(MAX_MESSAGE_LEN)];
    let detected = detect_order(data);
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let Ok(message) = Message::parse_from(data, order) else {
            assert!(
                Message::parse(data).is_err(),
                "the order is no reason to refuse"
            );
            continue;
        };
        let header = Header::parse(data, Some(order)).expect("the header of a message that parses");
        let dialect = header.dialect();
        if dialect.is_v2() {
            assert_eq!(dialect.order(), detected.unwrap_or(order));
        }
        let mut buffer = [0; MAX_MESSAGE_LEN];
        let len = message
            .emit(&mut buffer)
            .expect("what was received can be sent");
        assert_eq!(len, message.encoded_len());
        let again = Message::parse_from(&buffer[..len], dialect.order());
        assert_eq!(again.expect("what was sent can be received"), message);
    }
});
