use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use rustix::net::accept;
use tempfile::TempDir;

use super::*;

const GID: Gid = Gid::new(0xab, 0xcd);

fn mine() -> Policy {
    Policy::new(Vec::new())
}

fn open(path: &Path) -> Result<Directory, DeviceError> {
    Directory::open(Some(path.to_owned()), &mine())
}

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn a_missing_directory_is_made_for_the_own_user_alone() {
    let parent = TempDir::new().unwrap();
    let path = parent.path().join("a").join("b");
    open(&path).unwrap();
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o700
    );
}

#[test]
fn a_directory_that_others_can_change_is_refused() {
    let dir = TempDir::new().unwrap();
    for mode in [0o777, 0o720, 0o702, 0o1777] {
        fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
        assert!(
            matches!(open(dir.path()), Err(DeviceError::NotPermitted(_))),
            "{mode:o}"
        );
    }
    // Sticky is good enough among users who allow each other.
    let others = Policy::new(vec![12_345]);
    Directory::open(Some(dir.path().to_owned()), &others).unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
    assert!(Directory::open(Some(dir.path().to_owned()), &others).is_err());
}

#[test]
fn a_published_device_can_be_found() {
    let dir = TempDir::new().unwrap();
    let directory = open(dir.path()).unwrap();
    assert_eq!(directory.connect(GID).unwrap_err(), Errno::NOENT);
    let listener = directory.publish(GID, &mine()).unwrap();
    directory.connect(GID).unwrap();
    accept(&listener).unwrap();
    let socket = dir.path().join(socket_name(GID));
    assert_eq!(
        fs::metadata(socket).unwrap().permissions().mode() & 0o777,
        0o600
    );
    directory.remove(GID);
    assert!(names(dir.path()).is_empty());
}

#[test]
fn long_paths_serve() {
    let parent = TempDir::new().unwrap();
    let directory = open(&parent.path().join("x".repeat(200))).unwrap();
    let listener = directory.publish(GID, &mine()).unwrap();
    directory.connect(GID).unwrap();
    accept(&listener).unwrap();
}

#[test]
fn only_sockets_that_nobody_listens_on_are_swept() {
    let dir = TempDir::new().unwrap();
    let directory = open(dir.path()).unwrap();
    let _alive = directory.publish(GID, &mine()).unwrap();
    let dead = Gid::new(1, 2);
    drop(directory.publish(dead, &mine()).unwrap());
    assert_eq!(directory.connect(dead).unwrap_err(), Errno::CONNREFUSED);
    // Neither ours nor sockets.
    drop(UnixListener::bind(dir.path().join("other.sock")).unwrap());
    fs::write(dir.path().join("d-file.sock"), "a file").unwrap();
    directory.sweep();
    let mut left = names(dir.path());
    left.sort();
    assert_eq!(
        left,
        [socket_name(GID).as_str(), "d-file.sock", "other.sock"]
    );
}

#[test]
fn devices_of_another_environment_are_found_and_swept() {
    let (here, there) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut directory = open(here.path()).unwrap();
    directory.elsewhere.push(there.path().to_owned());
    let listener = open(there.path()).unwrap().publish(GID, &mine()).unwrap();
    directory.connect(GID).unwrap();
    assert!(!directory.remove_if_stale(GID));
    drop(listener);
    assert!(directory.remove_if_stale(GID));
    assert!(names(there.path()).is_empty());
    assert!(directory.remove_if_stale(GID), "there is none");
}

#[test]
fn a_draft_is_swept_when_it_is_old() {
    let dir = TempDir::new().unwrap();
    let directory = open(dir.path()).unwrap();
    let draft = dir.path().join(".n-draft");
    drop(UnixListener::bind(&draft).unwrap());
    directory.sweep();
    assert_eq!(
        names(dir.path()),
        [".n-draft"],
        "its device may be starting"
    );
    let long_ago = fs::FileTimes::new().set_modified(SystemTime::UNIX_EPOCH);
    fs::remove_file(&draft).unwrap();
    fs::File::create(&draft)
        .unwrap()
        .set_times(long_ago)
        .unwrap();
    directory.sweep();
    assert!(names(dir.path()).is_empty());
}
