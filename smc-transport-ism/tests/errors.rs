//! Error messages of a device that cannot be created.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{Permissions, create_dir, set_permissions, write};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use smc_transport_ism::{FabricAddress, IsmDevice};
use tempfile::TempDir;

/// A name, what is in the place of the fabric, and the error message.
type Row = (&'static str, fn(&Path), &'static str);

#[test]
fn errors_have_operation_path_and_errno() {
    // The contents of a new directory, and the error message; `{}` stands for its path.
    let rows: [Row; 4] = [
        (
            "a file",
            |path| write(path, "").unwrap(),
            "open directory {}: not a directory (os error 20)",
        ),
        (
            "others can write to it",
            |path| {
                create_dir(path).unwrap();
                set_permissions(path, Permissions::from_mode(0o777)).unwrap();
            },
            "not permitted: {} can be changed by other users: mode 0777",
        ),
        (
            "a link as the lock",
            |path| {
                create_dir(path).unwrap();
                set_permissions(path, Permissions::from_mode(0o700)).unwrap();
                symlink("elsewhere", path.join("lock")).unwrap();
            },
            "open {}/lock: too many levels of symbolic links (os error 40)",
        ),
        (
            "a directory as the memory",
            |path| {
                create_dir(path).unwrap();
                set_permissions(path, Permissions::from_mode(0o700)).unwrap();
                create_dir(path.join("memory")).unwrap();
            },
            "make the fabric's memory in {}: is a directory (os error 21)",
        ),
    ];
    for (name, prepare, message) in rows {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("fabric");
        prepare(&path);
        let error = IsmDevice::builder(FabricAddress::directory(&path))
            .build()
            .unwrap_err();
        let message = message.replace("{}", &path.display().to_string());
        assert_eq!(error.to_string(), message, "{name}");
    }
}
