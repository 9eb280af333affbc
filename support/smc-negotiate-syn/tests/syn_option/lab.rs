//! A place for one test: a process in its own cgroup, network and bpf file system.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs};

use smc_testkit::process::{Child, command_by};
use smc_testkit::user::is_root;

/// Makes tests of functions that take a [`Lab`].
macro_rules! in_lab {
    ($($name:ident,)*) => {
        mod in_lab {$(
            #[test]
            fn $name() {
                let path = concat!(module_path!(), "::", stringify!($name));
                $crate::lab::enter(path, super::$name);
            }
        )*}
    };
}
pub(crate) use in_lab;

/// Runs a scenario in a lab, in another process, or prints why that is not possible.
pub(crate) fn enter(path: &str, scenario: impl FnOnce(Lab)) {
    let (_, name) = path.split_once("::").unwrap();
    if env::var(NAME).is_ok_and(|inside| inside == name) {
        let cgroup = env::var(CGROUP).unwrap().into();
        return scenario(Lab { cgroup });
    }
    let Some(cgroup) = Directory::new() else {
        return;
    };
    let path = cgroup.0.to_str().unwrap();
    let unshare = ["unshare", "--mount", "--net", "--propagation", "private"];
    let launcher = [&unshare[..], &["sh", "-euc", ENTER, "lab", path]].concat();
    let output = command_by(&launcher, name)
        .env(NAME, name)
        .env(CGROUP, &cgroup.0)
        .output()
        .unwrap();
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    match output.status.code() {
        Some(0) => said[0]
            .lines()
            .filter(|line| line.contains("skipped: "))
            .for_each(|line| println!("{line}")),
        Some(NO_LAB) => println!("skipped: why: no lab can be had here: {}", said[1].trim()),
        _ => panic!("in its lab: {}\n{}\n{}", output.status, said[0], said[1]),
    }
}

/// What a scenario knows of its place.
pub(crate) struct Lab {
    /// The cgroup that it is in.
    pub(crate) cgroup: PathBuf,
}

impl Lab {
    /// A cgroup within the lab's.
    pub(crate) fn cgroup_below(&self, name: &str) -> PathBuf {
        let path = self.cgroup.join(name);
        fs::create_dir(&path).unwrap();
        path
    }
}

/// Has this process, and the sockets that it makes from now on, in a cgroup.
pub(crate) fn move_to(cgroup: &Path) {
    fs::write(cgroup.join("cgroup.procs"), std::process::id().to_string()).unwrap();
}

/// Another process of a scenario: the same test again, in another role.
pub(crate) fn start(role: &str, uid: Option<u32>) -> Child {
    let user = uid.map(|id| [format!("--reuid={id}"), format!("--regid={id}")]);
    let mut launcher = vec!["setpriv"];
    match &user {
        Some([uid, gid]) => launcher.extend([
            uid.as_str(),
            gid.as_str(),
            "--clear-groups",
            "--inh-caps=-all",
            "--bounding-set=-all",
        ]),
        None => launcher.push("--nnp"),
    }
    Child::spawn(command_by(&launcher, &env::var(NAME).unwrap()), role, "")
}

/// A cgroup that goes away with those below it.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Option<Self> {
        if !is_root("load an eBPF program") {
            return None;
        }
        if !Path::new("/sys/fs/bpf").is_dir() {
            println!("skipped: why: the kernel has no bpf file system");
            return None;
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("smc-option-{}-{count}", std::process::id());
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mounts = mounts.lines().filter(|line| line.contains(" - cgroup2 "));
        let cgroups = mounts.map(|line| Path::new(line.split(' ').nth(4).unwrap()).join(&name));
        let made = cgroups
            .into_iter()
            .find(|path| fs::create_dir(path).is_ok());
        if made.is_none() {
            println!("skipped: why: no cgroup can be made, as there is no hierarchy of version 2");
        }
        made.map(Self)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let below = fs::read_dir(&self.0).into_iter().flatten().flatten();
        for entry in below.filter(|entry| entry.path().is_dir()) {
            let _ = fs::remove_dir(entry.path());
        }
        let _ = fs::remove_dir(&self.0);
    }
}

/// Makes a lab of new namespaces and runs the rest of the arguments in it. A shell is what has
/// joined the cgroup before the test begins.
const ENTER: &str = r#"
{ echo $$ > "$1/cgroup.procs" && ip link set lo up &&
  mount -t bpf -o mode=0755 bpf /sys/fs/bpf; } || exit 77
shift
exec "$@"
"#;
const NO_LAB: i32 = 77;

const NAME: &str = "SMC_OPTION_TEST";
const CGROUP: &str = "SMC_OPTION_TEST_CGROUP";
