//! Loading, pinning and removing, by users with and without privileges.

#![allow(unsafe_code, reason = "a system call that no crate wraps")]

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use smc_core::negotiate::Delivery;
use smc_core::wire::option;
use smc_negotiate_syn::{Setup, SetupError, SynOption};

use smc_testkit::process::Role;

use crate::lab::{Lab, in_lab, move_to, start};
use crate::world::{Sniffer, Speaks, accept, run};

in_lab! {
    a_user_without_privileges,
    a_user_who_is_not_permitted,
    users_cannot_freeze_the_map,
    a_map_that_was_frozen_is_made_anew,
    installing_again_and_undoing,
    a_second_instance_is_refused,
    a_program_ends_with_its_process,
    two_instances_do_no_harm,
    what_is_missing_is_named,
    a_cgroup_that_went_away,
    a_directory_that_other_users_can_change,
}

fn a_user_without_privileges(lab: Lab) {
    if let Some(role) = Role::current() {
        return run(|world| async move {
            let option = SynOption::open().unwrap();
            let dialled = world.dial(&option, role.name().parse().unwrap()).await;
            role.send(dialled.delivery == Delivery::OnTcp);
            let server = world.server(&option, "127.0.0.1:0");
            role.send(server.at());
            role.send(accept(&server).await.1 == Speaks::Clc);
            role.stay();
        });
    }
    let installed = Setup::new().cgroup(&lab.cgroup).install().unwrap();
    assert!(installed.is_new);
    run(|world| async move {
        let option = SynOption::pinned().unwrap();
        let server = world.server(&option, "127.0.0.1:0");
        let mut user = start(&server.at().to_string(), Some(OVERFLOW_USER));
        assert_eq!(accept(&server).await.1, Speaks::Clc);
        assert_eq!(user.recv(), "true");
        let to = user.parse();
        let dialled = world.dial(&option, to).await;
        assert_eq!(dialled.delivery, Delivery::OnTcp);
        assert_eq!(user.recv(), "true");
    });
}

fn a_user_who_is_not_permitted(lab: Lab) {
    if let Some(role) = Role::current() {
        let Err(pinned) = SynOption::pinned() else {
            return role.send("let in");
        };
        role.send(&pinned);
        role.send(matches!(pinned, SetupError::NotPermitted { .. }));
        let loaded = SynOption::load().unwrap_err();
        role.send(matches!(loaded, SetupError::NotPermitted { .. }));
        let opened = SynOption::open().unwrap_err();
        role.send(matches!(opened, SetupError::NotPermitted { .. }));
        let installed = Setup::new().directory("/sys/fs/bpf/other").install();
        role.send(installed.is_err());
        return;
    }
    let setup = Setup::new().cgroup(&lab.cgroup);
    let status = setup.clone().mode(0o600).install().unwrap().status;
    assert_eq!((status.mode, &status.closed), (0o600, &None));
    let mut user = start("user", Some(OVERFLOW_USER));
    let reason = user.recv();
    assert!(reason.starts_with("not permitted to open"), "{reason}");
    for _ in 0..4 {
        assert_eq!(user.recv(), "true");
    }
    // A group that may.
    let grouped = setup
        .clone()
        .mode(0o660)
        .group(OVERFLOW_USER)
        .install()
        .unwrap();
    assert!(!grouped.is_new);
    assert_eq!(grouped.status.gid, OVERFLOW_USER);
    let mut user = start("user", Some(OVERFLOW_USER));
    assert_eq!(user.recv(), "let in");

    // The map is for all users, the directory of it is not.
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions("/sys/fs/bpf", fs::Permissions::from_mode(0o700)).unwrap();
    let status = setup.install().unwrap().status;
    assert_eq!(status.closed.as_deref(), Some(Path::new("/sys/fs/bpf")));
}

fn users_cannot_freeze_the_map(lab: Lab) {
    if let Some(role) = Role::current() {
        return role.send(match freeze(Path::new(role.name())) {
            Ok(()) => "frozen",
            Err(Freeze::NotOpened(_)) => "not opened",
            Err(Freeze::Refused(_)) => "refused",
        });
    }
    let setup = Setup::new().cgroup(&lab.cgroup).mode(0o666);
    let map = setup.install().unwrap().status.map;
    let mut user = start(&map.display().to_string(), Some(OVERFLOW_USER));
    assert_eq!(user.recv(), "refused");
    run(|world| async move {
        let option = SynOption::pinned().unwrap();
        let server = world.server(&option, "127.0.0.1:0");
        let dialled = world.dial(&option, server.at()).await;
        assert_eq!(dialled.delivery, Delivery::OnTcp);
    });
    assert_eq!(Setup::new().status().unwrap().is_frozen, Some(false));
}

fn a_map_that_was_frozen_is_made_anew(lab: Lab) {
    let setup = Setup::new().cgroup(&lab.cgroup);
    let status = setup.install().unwrap().status;
    if let Err(error) = freeze(&status.map) {
        println!("skipped: this kernel freezes no such map, and those before 6.2 do: {error:?}");
        return;
    }
    assert_eq!(setup.status().unwrap().is_frozen, Some(true));
    let again = setup.install().unwrap();
    assert!(again.is_new);
    assert_eq!(again.status.is_frozen, Some(false));
}

/// What a map was not frozen for.
#[derive(Debug)]
enum Freeze {
    NotOpened(#[expect(dead_code, reason = "for its Debug")] io::Error),
    Refused(#[expect(dead_code, reason = "for its Debug")] io::Error),
}

/// `BPF_MAP_FREEZE`: no process can write to the map any more.
fn freeze(map: &Path) -> Result<(), Freeze> {
    const OBJECT_GET: libc::c_int = 7;
    const MAP_FREEZE: libc::c_int = 22;
    let path = CString::new(map.as_os_str().as_bytes()).unwrap();
    let open = [path.as_ptr().expose_provenance() as u64, 0];
    // SAFETY: the 16 bytes of attributes of BPF_OBJ_GET are the address of a path, which lives
    // until the call is over, and two words that are zero.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, OBJECT_GET, &raw const open, 16) };
    if fd < 0 {
        return Err(Freeze::NotOpened(io::Error::last_os_error()));
    }
    // SAFETY: the descriptor is new.
    let fd = unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap()) };
    let attr = [fd.as_raw_fd()];
    // SAFETY: the four bytes of attributes of BPF_MAP_FREEZE are a descriptor.
    let result = unsafe { libc::syscall(libc::SYS_bpf, MAP_FREEZE, &raw const attr, 4) };
    match result {
        0 => Ok(()),
        _ => Err(Freeze::Refused(io::Error::last_os_error())),
    }
}

fn installing_again_and_undoing(lab: Lab) {
    let directory = "/sys/fs/bpf/deep/in/there";
    let setup = Setup::new().cgroup(&lab.cgroup).directory(directory);
    assert!(matches!(
        setup.status(),
        Err(SetupError::NotInstalled { .. })
    ));
    assert!(!setup.undo().unwrap());
    let first = setup.install().unwrap();
    assert!(first.is_new);
    let status = &first.status;
    assert_eq!(status.cgroup.as_deref(), Some(&*lab.cgroup));
    assert_eq!(status.is_attached, Some(true));
    assert_eq!(status.is_effective, Some(true));
    assert_eq!((status.mode, status.others.len()), (0o666, 0));
    let again = setup.install().unwrap();
    assert!(!again.is_new);
    assert_eq!(again.status.program, status.program);

    let below = lab.cgroup_below("below");
    let other = setup.clone().cgroup(&below).install();
    assert!(matches!(other, Err(SetupError::OtherCgroup { .. })));

    // Half of it is gone: it is made anew.
    fs::remove_file(format!("{directory}/map")).unwrap();
    assert!(setup.install().unwrap().is_new);

    run(|world| async move {
        let option = SynOption::pinned_in(directory).unwrap();
        let server = world.server(&option, "127.0.0.1:0");
        assert!(setup.undo().unwrap());
        assert!(!setup.undo().unwrap());
        assert!(!Path::new(directory).exists());
        let gone = SynOption::pinned_in(directory).unwrap_err();
        assert!(matches!(gone, SetupError::NotInstalled { .. }));
        // A process that still uses it is plain.
        assert_eq!(option.is_effective().unwrap(), Some(false));
        let dialled = world.dial(&option, server.at()).await;
        assert_eq!(dialled.delivery, Delivery::Plain);
        assert_ne!(accept(&server).await.1, Speaks::Clc);
    });
}

fn a_second_instance_is_refused(lab: Lab) {
    let first = SynOption::load().unwrap();
    let refused = |result: Result<_, SetupError>| {
        assert!(matches!(result, Err(SetupError::AlreadyAttached { .. })));
    };
    refused(SynOption::load().map(drop));
    let below = lab.cgroup_below("below");
    refused(SynOption::load_for(&below).map(drop));
    let setup = Setup::new().cgroup(&lab.cgroup);
    refused(setup.install().map(drop));
    assert!(!Path::new(Setup::DIRECTORY).exists());
    drop(first);

    setup.install().unwrap();
    refused(SynOption::load().map(drop));
    // What is pinned is taken instead.
    let opened = SynOption::open().unwrap();
    assert_eq!(opened.is_effective().unwrap(), Some(true));
}

fn a_program_ends_with_its_process(_: Lab) {
    if let Some(role) = Role::current() {
        let _loaded = SynOption::open().unwrap();
        role.send("loaded");
        return role.stay();
    }
    let mut owner = start("owner", None);
    assert_eq!(owner.recv(), "loaded");
    SynOption::load().unwrap_err();
    owner.kill();
    in_time(|| SynOption::load().ok());
}

fn two_instances_do_no_harm(lab: Lab) {
    let below = lab.cgroup_below("below");
    move_to(&below);
    run(|world| async move {
        // In this order the second one does not see the first.
        let inner = SynOption::load().unwrap();
        let outer = SynOption::load_for(&lab.cgroup).unwrap();
        for (client, server) in [(&inner, &outer), (&outer, &inner), (&inner, &inner)] {
            let sniffer = Sniffer::start();
            let server = world.server(server, "127.0.0.1:0");
            let dialled = world.dial(client, server.at()).await;
            assert_eq!(dialled.delivery, Delivery::OnTcp);
            assert_eq!(accept(&server).await.1, Speaks::Clc);
            for syn in sniffer.handshakes(server.at().port()) {
                let windows = syn.options.windows(option::BYTES.len());
                let found = windows.filter(|window| **window == option::BYTES).count();
                assert_eq!(found, 1, "{:02x?}", syn.options);
            }
        }
    });
}

fn what_is_missing_is_named(lab: Lab) {
    let setup = Setup::new().cgroup(&lab.cgroup);
    let error = setup
        .clone()
        .directory("/tmp/smc/bpf")
        .install()
        .unwrap_err();
    assert!(error.to_string().contains("mount -t bpf"), "{error}");
    let error = setup.clone().cgroup("/tmp").install().unwrap_err();
    assert_eq!(
        error.to_string(),
        "/tmp is not a directory of a cgroup v2 hierarchy"
    );
    let error = setup.cgroup("/nowhere").install().unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("cannot open the cgroup /nowhere: "),
        "{error}"
    );
    let error = SynOption::pinned().unwrap_err();
    assert!(error.to_string().contains("smc setup"), "{error}");
    // Pinned, but not for this cgroup.
    let here = lab.cgroup_below("here");
    let elsewhere = lab.cgroup_below("elsewhere");
    move_to(&elsewhere);
    let status = Setup::new().cgroup(&here).install().unwrap().status;
    assert_eq!(status.is_effective, Some(false));
    let error = SynOption::pinned().unwrap_err();
    assert!(matches!(error, SetupError::NotAttached { .. }));
}

fn a_cgroup_that_went_away(lab: Lab) {
    let here = lab.cgroup_below("here");
    let setup = Setup::new().cgroup(&here);
    setup.install().unwrap();
    fs::remove_dir(&here).unwrap();
    fs::create_dir(&here).unwrap();
    let again = in_time(|| setup.install().ok());
    assert!(
        again.is_new,
        "the other one was for a cgroup of the same name"
    );
    assert_eq!(again.status.cgroup, Some(here));
}

/// What the kernel makes possible when it has time to clear away.
fn in_time<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    for _ in 0..2000 {
        if let Some(done) = attempt() {
            return done;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("the kernel has not cleared away");
}

const OVERFLOW_USER: u32 = 65534;

fn a_directory_that_other_users_can_change(lab: Lab) {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
    let dir = "/sys/fs/bpf/theirs";
    let setup = Setup::new().cgroup(&lab.cgroup).directory(dir);
    // A file of the same name elsewhere, which a link leads to.
    let other = tempfile::TempDir::new().unwrap();
    let kept = other.path().join("map");
    fs::write(&kept, "kept").unwrap();
    fs::set_permissions(&kept, fs::Permissions::from_mode(0o600)).unwrap();
    let refused = |what: &str| {
        for error in [setup.install().unwrap_err(), setup.undo().unwrap_err()] {
            assert!(error.to_string().contains(what), "{error}");
        }
        assert_eq!(fs::metadata(&kept).unwrap().mode() & 0o777, 0o600);
    };
    fs::create_dir(dir).unwrap();
    chown(dir, Some(OVERFLOW_USER), None).unwrap();
    refused("belongs to user");
    chown(dir, Some(0), None).unwrap();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o1777)).unwrap();
    refused("has mode 1777");
    fs::remove_dir(dir).unwrap();
    symlink(other.path(), dir).unwrap();
    let error = setup.undo().unwrap_err();
    assert!(error.to_string().contains(dir), "{error}");
    assert!(kept.exists());
    fs::remove_file(dir).unwrap();
    // Where only directories above are open to other users, it is installed.
    fs::set_permissions("/sys/fs/bpf", fs::Permissions::from_mode(0o1777)).unwrap();
    assert!(setup.install().unwrap().is_new);
    assert!(setup.undo().unwrap());
}
