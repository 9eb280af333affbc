//! Directories that several users share.

use super::*;

/// A shared directory.
struct Shared(World);

impl Shared {
    fn new() -> Self {
        let world = World::new();
        world.make("base", 0o1777);
        Self(world)
    }

    fn base(&self) -> PathBuf {
        self.0.at("base")
    }

    fn at(&self, name: impl ToString) -> PathBuf {
        self.base().join(name.to_string())
    }

    /// Makes a directory in it; for another user as root alone.
    fn make(&self, name: impl ToString, uid: u32, mode: u32) -> PathBuf {
        let path = self.0.make(&format!("base/{}", name.to_string()), mode);
        chown(&path, Some(uid), Some(uid)).unwrap();
        path
    }

    fn of(&self, users: &[u32]) -> Domain {
        Domain::shared(self.base(), users.iter().copied())
    }

    fn mode(&self, name: impl ToString) -> u32 {
        self.at(name).metadata().unwrap().mode() & 0o7777
    }
}

fn is_root() -> bool {
    let is_root = own() == 0;
    if !is_root {
        println!("skipped: why: needs root to give a directory to another user");
    }
    is_root
}

#[test]
fn each_user_has_a_directory_in_which_only_that_user_can_write() {
    let shared = Shared::new();
    let alone = shared.of(&[own()]);
    let mut publication = publish(&alone);
    assert_eq!(
        publication.directories().collect::<Vec<_>>(),
        [shared.at(own())]
    );
    assert_eq!(shared.mode(own()), 0o1700, "there are no others");
    assert_connects(&mut publication, &alone);

    // Opened by the first process that has others.
    let with_others = shared.of(&[own(), OTHER, THIRD]);
    let mut second = Publication::new(with_others.clone(), "d-2.sock".into()).unwrap();
    assert_eq!(shared.mode(own()), 0o755);
    assert_connects(&mut publication, &with_others);
    alone.connect("d-2.sock").unwrap();
    second.accept().unwrap();

    // What an administrator lets others do is left as it is.
    shared.0.make(&format!("base/{}", own()), 0o710);
    let _third = Publication::new(with_others, "d-3.sock".into()).unwrap();
    assert_eq!(shared.mode(own()), 0o710);
}

/// The owner of the shared directory can give it the name, whatever it is.
#[test]
fn a_private_directory_that_is_given_the_users_name_is_not_opened_to_others() {
    let shared = Shared::new();
    let domain = shared.of(&[OTHER]);
    let private = shared.make("private", own(), 0o700);
    fs::write(private.join("notes"), "").unwrap();
    fs::rename(private, shared.at(own())).unwrap();
    let mut publication = publish(&domain);
    let error = publication.error().unwrap();
    assert_eq!(*error.path, *shared.at(own()));
    assert_eq!(error.problem, DirectoryProblem::Closed { mode: 0o700 });
    assert_eq!(shared.mode(own()), 0o700);
    assert_eq!(names(&shared.base()).unwrap().count(), 1, "no other one");

    fs::rename(shared.at(own()), shared.at("private")).unwrap();
    handle_events_until(&mut publication, |it| it.error().is_none());
    assert_eq!(shared.mode(own()), 0o755);
    assert_eq!(shared.mode("private"), 0o700);
}

#[test]
fn a_directory_of_a_user_that_is_removed_is_made_again() {
    let shared = Shared::new();
    let domain = shared.of(&[OTHER]);
    let mut publication = publish(&domain);
    let path = shared.at(own()).join(NAME);
    for _ in 0..2 {
        fs::remove_dir_all(shared.at(own())).unwrap();
        handle_events_until(&mut publication, |_| path.exists());
        assert_eq!(shared.mode(own()), 0o755);
        assert_connects(&mut publication, &domain);
    }
}

/// An attempt to make one takes the lock of the directory above, which other users can hold.
#[test]
fn a_directory_that_is_there_is_not_made() {
    let shared = Shared::new();
    let domain = shared.of(&[OTHER]);
    let mut publication = publish(&domain);
    let base = shared.base();
    let attempts = || {
        let attempts = ATTEMPTS.lock().unwrap();
        attempts
            .iter()
            .filter(|path| path.starts_with(&base))
            .count()
    };
    let made = attempts();
    assert_ne!(made, 0, "there was none");
    let path = shared.at(own()).join(NAME);
    fs::remove_file(&path).unwrap();
    handle_events_until(&mut publication, |_| path.exists());
    let _second = Publication::new(domain.clone(), "d-2.sock".into()).unwrap();
    assert_eq!(attempts(), made);

    fs::remove_dir_all(shared.at(own())).unwrap();
    handle_events_until(&mut publication, |_| path.exists());
    assert_ne!(attempts(), made, "it was missing");
}

/// A look-up of a name that the kernel does not have in its cache takes the lock.
#[test]
fn names_that_are_not_in_a_directory_in_memory_are_not_looked_up_with_its_lock() {
    let Some(memory) = in_memory() else {
        return println!("skipped: why: no look-ups in the kernel's cache alone on /dev/shm");
    };
    let base = memory.path().join("base");
    fs::create_dir(&base).unwrap();
    fs::set_permissions(&base, Permissions::from_mode(0o1777)).unwrap();
    let domain = Domain::shared(base, [OTHER]);
    let mut publication = publish(&domain);
    let before = LOCKED.get();
    assert_connects(&mut publication, &domain);
    for user in [own(), OTHER] {
        let connected = domain.connect_to(user, "missing.sock");
        assert_eq!(connected.unwrap_err(), Errno::NOENT);
        assert_eq!(domain.search_paths_of(user).len(), 1);
    }
    assert_eq!(LOCKED.get(), before);
}

/// A directory of a file system in memory, where the kernel can look up names in its cache alone.
fn in_memory() -> Option<TempDir> {
    let dir = TempDir::new_in("/dev/shm").ok()?;
    let before = LOCKED.get();
    let opened = fs::File::open(dir.path()).unwrap();
    let missing = open_name(opened.as_fd(), "missing".as_ref(), OFlags::PATH);
    assert_eq!(missing.unwrap_err(), Errno::NOENT);
    (LOCKED.get() == before).then_some(dir)
}

#[test]
fn a_shared_directory_is_not_made_and_has_to_be_sticky() {
    let shared = Shared::new();
    let base = shared.base();
    let domain = shared.of(&[OTHER]);
    let problem = |publication: &Publication| {
        let error = publication.error().unwrap();
        assert_eq!(*error.path, *base);
        assert_eq!(
            *domain.unusable_of(own()).unwrap().path,
            *base,
            "to a client"
        );
        error.problem.clone()
    };
    fs::remove_dir(&base).unwrap();
    let mut publication = publish(&domain);
    assert!(matches!(problem(&publication), DirectoryProblem::Os(_)));
    assert!(!base.exists());

    fs::write(&base, "").unwrap();
    assert_eq!(problem(&publish(&domain)), DirectoryProblem::NotDirectory);
    fs::remove_file(&base).unwrap();

    shared.0.make("base", 0o777);
    let writable = DirectoryProblem::Writable { mode: 0o777 };
    assert_eq!(problem(&publish(&domain)), writable);
    assert_eq!(domain.connect(NAME).unwrap_err(), Errno::NOENT);

    for mode in [0o1777, 0o755] {
        shared.0.make("base", mode);
        handle_events_until(&mut publication, |it| it.error().is_none());
        assert_connects(&mut publication, &domain);
    }
}

#[test]
fn a_shared_directory_of_a_user_who_is_not_listed_is_not_used() {
    if !is_root() {
        return;
    }
    let shared = Shared::new();
    for (owner, is_right) in [(OTHER, true), (THIRD, false), (0, true)] {
        chown(shared.base(), Some(owner), Some(owner)).unwrap();
        let publication = publish(&shared.of(&[OTHER]));
        let problem = publication.error().map(|error| error.problem.clone());
        let expected = DirectoryProblem::Owner { uid: owner };
        assert_eq!(problem, (!is_right).then_some(expected));
    }
}

#[test]
fn only_directories_of_users_who_are_listed_are_looked_in() {
    if !is_root() {
        return;
    }
    let shared = Shared::new();
    let domain = shared.of(&[OTHER]);
    shared.make(THIRD, THIRD, 0o755);
    assert_eq!(domain.search_paths(), [shared.at(0), shared.at(OTHER)]);
    let sees = |name: &dyn ToString| domain.check(&shared.at(name.to_string())).is_ok();
    shared.make(OTHER, OTHER, 0o755);
    assert!(sees(&OTHER));
    assert!(!sees(&THIRD), "of a user who is not listed");
    for mode in [0o775, 0o757, 0o1777] {
        shared.make(OTHER, OTHER, mode);
        assert!(!sees(&OTHER), "others can write: {mode:o}");
    }
    shared.make(OTHER, THIRD, 0o755);
    assert!(!sees(&OTHER), "made by another user");
    fs::remove_dir(shared.at(OTHER)).unwrap();
    symlink(shared.make("real", OTHER, 0o755), shared.at(OTHER)).unwrap();
    assert!(!sees(&OTHER), "a link");
    assert!(domain.open(&shared.at(OTHER)).is_err());
    shared.make(0, OTHER, 0o755);
    assert!(!sees(&0), "the own one, made by another user");
}

#[test]
fn a_name_that_another_user_has_taken_leads_to_one_with_a_random_name() {
    if !is_root() {
        return;
    }
    let shared = Shared::new();
    let domain = shared.of(&[OTHER]);
    // What a user who is not listed can make.
    shared.make(0, THIRD, 0o755);
    shared.make("0-0000000000000001", THIRD, 0o755);
    symlink(shared.base(), shared.at("0-0000000000000002")).unwrap();
    fs::write(shared.at("0-0000000000000003"), "").unwrap();
    let mut publication = publish(&domain);
    let place = publication.directories().next().unwrap().to_owned();
    assert_eq!(place.parent(), Some(&*shared.base()));
    assert_eq!(place.metadata().unwrap().mode() & 0o7777, 0o755);
    assert_eq!(
        domain.search_paths(),
        [shared.at(0), shared.at(OTHER), place.clone()]
    );
    assert_connects(&mut publication, &domain);
    // Alternate directories of other users are found the same way.
    shared.make(OTHER, THIRD, 0o755);
    let theirs = shared.make(format!("{OTHER}-00000000000000ff"), OTHER, 0o755);
    shared.make(format!("{OTHER}-00000000000000fe"), THIRD, 0o755);
    let fresh = shared.of(&[OTHER]);
    assert_eq!(fresh.search_paths()[2..], [place.clone(), theirs]);

    fs::remove_dir(shared.at(0)).unwrap();
    handle_events_until(&mut publication, |publication| {
        publication.directories().eq([shared.at(0)])
    });
    assert_connects(&mut publication, &domain);
    assert!(!place.exists(), "no random name is left behind");
}

#[test]
fn a_name_is_looked_up_in_the_directory_of_one_user() {
    if !is_root() {
        return;
    }
    let shared = Shared::new();
    for uid in [OTHER, THIRD] {
        shared.make(uid, uid, 0o755);
    }
    let domain = shared.of(&[OTHER, THIRD]);
    let bind = |uid| {
        let dir = domain.open(&shared.at(uid)).unwrap();
        NamedSocket::bind(&dir, NAME, true).unwrap()
    };
    let connect = |uid| domain.connect_to(uid, NAME).map(drop);
    let _first = bind(OTHER);
    assert_eq!(connect(OTHER), Ok(()));
    // Whatever the order in which the users are listed.
    for uid in [own(), THIRD, THIRD + 1] {
        assert_eq!(connect(uid), Err(Errno::NOENT), "{uid}");
    }
    let _second = bind(THIRD);
    assert_eq!(connect(THIRD), Ok(()));
    assert_eq!(domain.connect(NAME).map(drop), Err(Errno::NOENT));
}

#[test]
fn names_of_other_users_are_left_to_them() {
    if !is_root() {
        return;
    }
    let shared = Shared::new();
    shared.make(OTHER, OTHER, 0o755);
    let theirs = shared.at(OTHER).join(NAME);
    drop(UnixListener::bind(&theirs).unwrap());
    let domain = shared.of(&[OTHER]);
    assert_eq!(
        domain.connect_to(OTHER, NAME).unwrap_err(),
        Errno::CONNREFUSED
    );
    domain.remove_if_stale(NAME);
    domain.sweep(|_| true);
    finish_jobs(&domain);
    assert!(theirs.exists());
}

#[test]
fn a_user_who_is_not_of_the_domain_is_looked_for_without_a_thread() {
    let shared = Shared::new();
    let domain = shared.of(&[1001]);
    for user in 5000..5100 {
        assert_eq!(domain.connect_to(user, "name").unwrap_err(), Errno::NOENT);
    }
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    assert!(tasks.count() < 100);
}

#[test]
fn the_connections_of_one_call_share_the_time_that_it_waits() {
    const USER: u32 = 7001;
    if !is_root() {
        return;
    }
    let shared = Shared::new();
    let domain = shared.of(&[USER]);
    let dir = shared.make(USER, USER, 0o755);
    let (release, released) = channel::<()>();
    thread::start(thread::Lock::DirectoriesOf(USER), move || {
        assert!(released.recv().is_err());
    })
    .unwrap();
    let mut time = ConnectTime::default();
    for _ in 0..100 {
        let connected = domain.connect_in(&dir, "name", &mut time).unwrap();
        assert_eq!(connected.socket.unwrap_err(), Errno::TIMEDOUT);
        assert_eq!(format!("{time:?}"), "ConnectTime(0ns)");
    }
    drop(release);
}
