//! What errors of devices say.

use std::io;

use smc_core::device::DeviceError;

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
