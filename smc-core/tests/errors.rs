//! What errors and causes say.

use std::io;
use std::time::Duration;

use smc_core::device::DeviceError;
use smc_core::error::{FallbackCause, FallbackReason, Limit, Refusal, SetupStep};
use smc_core::wire::types::DeclineCode;

const EACCES: i32 = 13;
const EMFILE: i32 = 24;

#[test]
fn a_device_error_of_the_system_has_operation_path_and_errno() {
    let denied = io::Error::from_raw_os_error(EACCES);
    let error = DeviceError::os_at("create directory", "/run/smc", &denied);
    let text = "create directory /run/smc: permission denied (os error 13)";
    assert_eq!(error.to_string(), text);
    assert_eq!(
        DeviceError::os("map memory", &io::ErrorKind::NotFound.into()).to_string(),
        "map memory: entity not found"
    );
}

#[test]
fn a_lack_of_descriptors_has_the_limit() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let limit = limit.current.expect("descriptors are limited");
    let error = DeviceError::os("make doorbell", &io::Error::from_raw_os_error(EMFILE));
    let text =
        format!("make doorbell: too many open files (os error 24), RLIMIT_NOFILE is {limit}");
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_device_error_is_an_io_error_of_the_same_kind() {
    let denied = DeviceError::os("map memory", &io::Error::from_raw_os_error(EACCES));
    let rows = [
        (denied, io::ErrorKind::PermissionDenied),
        (
            DeviceError::NotPermitted("no".into()),
            io::ErrorKind::PermissionDenied,
        ),
        (DeviceError::NoMemory, io::ErrorKind::OutOfMemory),
        (DeviceError::Invalid("no"), io::ErrorKind::InvalidInput),
        (DeviceError::PeerGone, io::ErrorKind::ConnectionAborted),
        (DeviceError::Exhausted, io::ErrorKind::Other),
    ];
    for (error, kind) in rows {
        let text = error.to_string();
        let error = io::Error::from(error);
        assert_eq!((error.kind(), error.to_string()), (kind, text));
    }
}

#[test]
fn a_reason_is_its_codes_and_its_cause() {
    use FallbackCause as Cause;
    let failed = Cause::Device {
        step: SetupStep::Register,
        error: DeviceError::OverLimit {
            needed: 4096,
            left: 1000,
            limit: Limit::new("memory limit", 1024),
        },
    };
    let rows = [
        (
            FallbackReason::local(DeclineCode::IPSEC),
            "0x03020000 an IPsec policy applies to the connection",
        ),
        (
            FallbackReason::peer_declined(DeclineCode::MAX_DMB),
            "0x05000000/0x030d0000 peer declined: the device cannot register more buffers",
        ),
        (
            FallbackReason::because(DeclineCode::MEM, failed),
            "0x01010000 register the receive buffer: \
             4096 bytes are needed and 1000 are left: memory limit is 1024",
        ),
        (Cause::Policy.into(), "0x03060000 policy is to use TCP"),
        (
            Cause::NotAnnounced {
                searched: ["/run/smc-0".into(), "/tmp/smc-0".into()].into(),
            }
            .into(),
            "0x03010000 no SMC listener is announced at this address \
             in /run/smc-0, /tmp/smc-0",
        ),
        (
            Cause::NoAnswer {
                within: Duration::from_millis(200),
            }
            .into(),
            "0x03010000 listener has not answered within 200ms",
        ),
        (
            Cause::Refused(Refusal::User { uid: 1000 }).into(),
            "0x03010000 listener refused the offer: user 1000 is not allowed",
        ),
        (
            FallbackReason::peer_declined(DeclineCode(0x1234)),
            "0x05000000/0x00001234 peer declined",
        ),
    ];
    for (reason, text) in rows {
        assert_eq!(reason.to_string(), text);
    }
}
