use std::string::ToString;

use super::*;

#[test]
fn sixteen_sizes() {
    for code in 0..16 {
        let size = SizeCode::new(code).unwrap();
        assert_eq!(size.bytes(), 1 << (code + 14));
        assert_eq!(size.byte_len(), 1 << (code + 14));
        assert_eq!(size.ring_r().size(), size.bytes());
        assert_eq!(size.ring_d().size(), size.bytes() - 32);
        assert_eq!(SizeCode::from_high_nibble(code << 4 | 0x0f), size);
    }
    assert_eq!(SizeCode::new(16), None);
    assert_eq!(SizeCode::LINUX_DEFAULT.to_string(), "64 KiB");
    assert_eq!(SizeCode::MAX.to_string(), "512 MiB");
}

#[test]
fn lengths_are_rounded_up() {
    let code = |len| SizeCode::for_len(len).map(SizeCode::code);
    assert_eq!(
        [code(0), code(1), code(16_384), code(16_385)],
        [0, 0, 0, 1].map(Some)
    );
    assert_eq!(code(65_536), Some(2));
    assert_eq!(code(1 << 29), Some(15));
    assert_eq!(code((1 << 29) + 1), None);
    assert_eq!(code(usize::MAX), None);
}
