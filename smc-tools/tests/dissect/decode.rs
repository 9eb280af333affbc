//! Messages from the command line.

use crate::support::{ACCEPT, CDC, CONFIRM_LINK, DECLINE, messages, smc, stderr, stdout};

#[test]
fn one_message_of_each_family() {
    for (family, hex, kind) in [
        ("clc", ACCEPT, "ACCEPT"),
        ("clc", DECLINE, "DECLINE"),
        ("llc", CONFIRM_LINK, "CONFIRM_LINK"),
        ("cdc", CDC, "CDC"),
        ("tcp-option", "fe06e2d4c3d9", "OPTION"),
        ("tcp-option", "0101 fe06 e2d4c3d9", "OPTION"),
    ] {
        let output = smc(&["--decode", family, "--json", "--hex", hex]);
        assert!(output.status.success(), "{}", stderr(&output));
        let found = messages(&output);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0]["family"], family);
        assert_eq!(found[0]["type"], kind);
        assert_eq!(found[0]["hex"], hex.replace(' ', ""));
        assert!(found[0].get("error").is_none());

        let output = smc(&["--decode", family, hex]);
        assert!(output.status.success());
        assert!(stdout(&output).lines().count() > 3, "{}", stdout(&output));
    }
}

#[test]
fn digits_may_be_several_arguments() {
    let expected = stdout(&smc(&["--decode", "clc", DECLINE]));
    assert!(expected.starts_with("DECLINE v1 len 28 0x03030000"));
    let (first, rest) = DECLINE.split_at(10);
    let rest = format!("0x{}", rest.to_uppercase());
    assert_eq!(stdout(&smc(&["--decode", "clc", first, &rest])), expected);
}

#[test]
fn cdc_of_smcd_in_either_byte_order() {
    let little = "fe00000000000000 0100 e8030000 0000 0000 64000000 80 40 0000000000000000";
    let big = "fe00000000000000 0001 000003e8 0000 0000 00000064 80 40 0000000000000000";
    let native = if cfg!(target_endian = "little") {
        little
    } else {
        big
    };
    for arguments in [
        &["--decode", "cdc", "--json", native][..],
        &["--decode", "cdc", "--json", "--big-endian", big],
    ] {
        let output = smc(arguments);
        assert!(output.status.success(), "{}", stderr(&output));
        let fields = &messages(&output)[0]["fields"];
        assert_eq!(
            fields["producer"],
            serde_json::json!({ "wrap": 1, "count": 1000 })
        );
        assert_eq!(fields["consumer"]["count"], 100);
        assert_eq!(fields["writer_blocked"], true);
        assert_eq!(fields["closed"], true);
    }
}

#[test]
fn what_does_not_decode() {
    let too_long = format!("{DECLINE}00");
    let wrong_length = CONFIRM_LINK.replacen("012c", "012b", 1);
    for (family, hex, reason) in [
        ("clc", "", "there are no hex digits"),
        ("clc", "0x", "there are no hex digits"),
        ("clc", "e2d4 zz", "'z' at character 6 is not a hex digit"),
        ("clc", "e2 00x6", "'x' at character 6 is not a hex digit"),
        (
            "clc",
            "e2d4c",
            "a digit is missing: after 2 whole bytes, the one at character 5 is alone",
        ),
        ("clc", "00d4c3d904001c10", "eyecatcher at offset 0"),
        ("clc", &DECLINE[..40], "bytes needed at offset 20"),
        ("clc", &DECLINE[..10], "bytes needed at offset 5"),
        (
            "clc",
            &too_long,
            "1 bytes behind the end of the message at offset 28",
        ),
        ("llc", &CONFIRM_LINK[..40], "needed at offset"),
        ("llc", &wrong_length, "length"),
        ("llc", CDC, "no LLC message has the type 0xfe"),
        (
            "cdc",
            &CDC[..86],
            "a CDC message has 44 bytes (SMC-R) or 32 (SMC-D), this has 43",
        ),
        ("tcp-option", "0101", "there is no SMC option"),
        (
            "tcp-option",
            "fe06e2d4c3c4",
            "experiment identifier at offset 2",
        ),
        ("tcp-option", "fe06e2d4", "bytes needed"),
    ] {
        let output = smc(&["--decode", family, hex]);
        assert_eq!(output.status.code(), Some(1), "{family} {hex}");
        let error = stderr(&output);
        assert!(error.starts_with("smc dissect: cannot decode: "), "{error}");
        assert!(error.contains(reason), "{error} should contain {reason}");
    }
    let output = smc(&["--decode", "llc", "--json", &CONFIRM_LINK[..40]]);
    assert_eq!(output.status.code(), Some(1));
    let object = &messages(&output)[0];
    assert_eq!(object["type"], "CONFIRM_LINK");
    assert!(
        object["error"]
            .as_str()
            .is_some_and(|error| error.contains("needed at offset"))
    );
    assert_eq!(object["fields"]["mac"], "52:54:00:00:00:01");
}
