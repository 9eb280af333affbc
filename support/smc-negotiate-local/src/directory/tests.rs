use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

#[test]
fn names_contain_all_properties() {
    for scope in [
        Scope::Any,
        Scope::AnyV4,
        Scope::AnyV6,
        Scope::One(Ipv4Addr::new(10, 0, 0, 1).into()),
        Scope::One(Ipv6Addr::LOCALHOST.into()),
    ] {
        for shared in [false, true] {
            let entry = ListenerEntry {
                port: 8080,
                scope,
                shared,
                netns: NetNs(0xf000_0075),
                cookie: 0x1001,
                salt: 7,
            };
            assert_eq!(ListenerEntry::parse(&entry.to_string()), Some(entry));
        }
    }
    for name in [
        "l-8080-7f000001-f0000075-1001-00000007.sock",
        "s-8080-7f000001-f0000075-1001-00000007.sock",
    ] {
        assert_eq!(ListenerEntry::parse(name).unwrap().to_string(), name);
    }
    for other in [
        "l-08080-7f000001-f0000075-1001-00000007.sock",
        "l-8080-7f000001-f0000075-1001-00000007-1.sock",
        "l-8080-7f000001-f0000075-1001.sock",
        "l-99999-any-1-1-00000001.sock",
        "l-80-some-1-1-00000001.sock",
        "d-80-any-1-1-00000001.sock",
        "",
    ] {
        assert_eq!(ListenerEntry::parse(other), None, "{other}");
    }
}

#[test]
fn scopes_cover_what_the_socket_gets() {
    let v4: IpAddr = Ipv4Addr::new(10, 0, 0, 1).into();
    let v6: IpAddr = Ipv6Addr::LOCALHOST.into();
    let of = |at: &str, only_v6| Scope::of(at.parse().unwrap(), only_v6);
    assert!(of("[::]:1", false).covers(v4) && of("[::]:1", false).covers(v6));
    assert!(!of("[::]:1", true).covers(v4) && of("[::]:1", true).covers(v6));
    assert!(of("0.0.0.0:1", false).covers(v4) && !of("0.0.0.0:1", false).covers(v6));
    assert!(of("[::ffff:10.0.0.1]:1", false).covers(v4));
    assert!(!of("10.0.0.2:1", false).covers(v4));
}

#[test]
fn changes_are_seen_at_once() {
    let dir = TempDir::new();
    let mut directory = Directory::new(dir.path.clone());
    for salt in 0..50 {
        let entry = ListenerEntry {
            port: 1,
            scope: Scope::Any,
            shared: false,
            netns: NetNs(1),
            cookie: 1,
            salt,
        };
        fs::write(dir.path.join(entry.to_string()), "").unwrap();
        assert_eq!(
            directory.entries(&dir.domain()).unwrap().len(),
            usize::try_from(salt + 1).unwrap()
        );
    }
    fs::write(dir.path.join("something else"), "").unwrap();
    assert_eq!(directory.entries(&dir.domain()).unwrap().len(), 50);
    fs::remove_dir_all(&dir.path).unwrap();
    assert!(directory.entries(&dir.domain()).unwrap().is_empty());
}

#[test]
fn a_directory_that_others_can_change_is_not_read() {
    let dir = TempDir::new();
    let name = ListenerEntry {
        port: 1,
        scope: Scope::Any,
        shared: false,
        netns: NetNs(1),
        cookie: 1,
        salt: 1,
    }
    .to_string();
    fs::write(dir.path.join(name), "").unwrap();
    let mut directory = Directory::new(dir.path.clone());
    assert_eq!(directory.entries(&dir.domain()).unwrap().len(), 1);
    fs::set_permissions(&dir.path, fs::Permissions::from_mode(0o770)).unwrap();
    assert!(directory.entries(&dir.domain()).unwrap().is_empty(), "mode");
    fs::set_permissions(&dir.path, fs::Permissions::from_mode(0o700)).unwrap();

    let link = dir
        .path
        .with_file_name(format!("{}-0000000000000001", own_user()));
    symlink(&dir.path, &link).unwrap();
    assert!(
        Directory::new(link.clone())
            .entries(&dir.domain())
            .unwrap()
            .is_empty(),
        "link"
    );
}

/// The directory of this user in a shared one.
struct TempDir {
    base: tempfile::TempDir,
    path: PathBuf,
}

impl TempDir {
    fn new() -> Self {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join(own_user().to_string());
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        Self { base, path }
    }

    fn domain(&self) -> Domain {
        Domain::shared(self.base.path(), [])
    }
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}
