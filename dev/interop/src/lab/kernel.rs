//! Kernels to test against: Debian's packages, downloaded and unpacked, never installed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use fs_err as fs;

/// A line of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Version {
    /// SMC-R v2.1 over soft-RoCE.
    #[value(name = "6.12")]
    V6_12,
    /// SMC-R v2.0; its soft-RoCE cannot carry SMC-R, so this is for negotiation only.
    #[value(name = "6.1")]
    V6_1,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V6_12 => "6.12",
            Self::V6_1 => "6.1",
        })
    }
}

/// An unpacked kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) vmlinuz: PathBuf,
    /// The folder that has `lib/modules`.
    pub(crate) root: PathBuf,
    pub(crate) release: String,
    /// Files of modules, in the order in which they need each other.
    pub(crate) modules: Vec<PathBuf>,
}

impl Kernel {
    /// The newest kernel of a line that can be had, or the one that is there already.
    pub(crate) fn obtain(home: &Path, version: Version) -> Result<Self> {
        let root = home.join(format!("linux-{version}"));
        let complete = root.join("complete");
        if !complete.exists() {
            fs::create_dir_all(&root)?;
            let package = download(&root, version)?;
            run(Command::new("dpkg").arg("-x").arg(&package).arg(&root))?;
            fs::remove_file(&package)?;
            let release = only_entry(&root.join("lib/modules"))?;
            run(Command::new("depmod").arg("-b").arg(&root).arg(&release))?;
            fs::write(&complete, "")?;
        }
        let release = only_entry(&root.join("lib/modules"))?;
        Ok(Self {
            vmlinuz: root.join(format!("boot/vmlinuz-{release}")),
            modules: modules(&root, &release)?,
            root,
            release,
        })
    }
}

fn download(to: &Path, version: Version) -> Result<PathBuf> {
    let names = text(Command::new("apt-cache").args(["pkgnames", "linux-image-"]))?;
    let prefix = format!("linux-image-{version}.");
    let mut names: Vec<_> = names
        .lines()
        .filter(|name| name.starts_with(&prefix) && name.ends_with("-amd64"))
        .filter(|name| !name.contains("-rt-") && !name.contains("-cloud-"))
        .collect();
    names.sort_by_key(|name| numbers(name));
    // The lists may name packages that the archive has dropped since.
    for name in names.iter().rev().take(DOWNLOADS) {
        println!("downloading {name}");
        let fetched = run(Command::new("apt-get")
            .args(["-q", "download", name])
            .current_dir(to));
        match fetched {
            Ok(()) => return find_package(to, name),
            Err(error) => println!("{error:#}"),
        }
    }
    bail!("no package linux-image-{version}.*-amd64 to download; try apt-get update");
}

fn find_package(folder: &Path, name: &str) -> Result<PathBuf> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let file = entry.file_name().to_string_lossy().into_owned();
        if file.starts_with(name) && file.ends_with(".deb") {
            return Ok(entry.path());
        }
    }
    bail!("apt-get has left no file for {name}");
}

fn modules(root: &Path, release: &str) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for name in MODULES {
        let shown = text(Command::new("modprobe").arg("-d").arg(root).args([
            "-S",
            release,
            "--show-depends",
            name,
        ]))?;
        for path in shown
            .lines()
            .filter_map(|line| line.strip_prefix("insmod "))
        {
            let path = PathBuf::from(path.trim());
            if !all.contains(&path) {
                all.push(path);
            }
        }
    }
    Ok(all)
}

/// The numbers in a name, for sorting: 6.12.9 comes before 6.12.10.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

fn only_entry(folder: &Path) -> Result<String> {
    let entry = fs::read_dir(folder)?
        .next()
        .with_context(|| format!("{} is empty", folder.display()))??;
    Ok(entry.file_name().to_string_lossy().into_owned())
}

/// Runs a command of the host and gives its output.
pub(super) fn text(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&output(command)?).into_owned())
}

/// The same if that is no text.
pub(super) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let what = format!("{command:?}");
    let output = command.output().with_context(|| what.clone())?;
    ensure!(
        output.status.success(),
        "{what}: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(output.stdout)
}

fn run(command: &mut Command) -> Result<()> {
    text(command).map(drop)
}

/// What guests load. Soft-RoCE asks for the generic CRC by name and gets no modules by itself.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_console",
    "virtio_net",
    "8021q",
    "macvlan",
    "xfrm_user",
    "ah4",
    "crc32_generic",
    "ipv6",
    "ib_uverbs",
    "rdma_rxe",
    "smc",
    "smc_diag",
    "netlink_diag",
    "sch_netem",
    "sch_prio",
    "cls_flower",
    "vfio_iommu_type1",
    "vfio_pci",
];

const DOWNLOADS: usize = 3;
