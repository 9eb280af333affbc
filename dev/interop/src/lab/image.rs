//! Initial RAM disks: a base per kernel that is made once, and on top of it this program with
//! what it needs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Context as _, Result};
use fs_err as fs;

use super::cpio::Archive;
use super::kernel::{Kernel, Version, output, text};
use crate::guest;
use crate::lock;

/// What a machine boots.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) vmlinuz: PathBuf,
    pub(crate) initrd: PathBuf,
}

/// Makes everything ready to boot a kernel: what lasts at home, the image in a folder. `guests` are
/// further programs that are to be in `/bin`.
pub(crate) fn prepare(
    home: &Path,
    folder: &Path,
    version: Version,
    guests: &[&Path],
) -> Result<Image> {
    // What lasts is made once, also if several labs want it at a time.
    static MAKING: Mutex<()> = Mutex::new(());
    let making = lock(&MAKING);
    fs::create_dir_all(home)?;
    let kernel = Kernel::obtain(home, version)?;
    let base = home.join(format!("base-{}-{RECIPE}.cpio", kernel.release));
    if !base.exists() {
        fs::write(&base, base_of(&kernel)?)?;
    }
    drop(making);
    let initrd = folder.join(format!("initrd-{version}.cpio"));
    let mut bytes = fs::read(&base)?;
    bytes.extend(programs(guests)?);
    fs::write(&initrd, bytes)?;
    Ok(Image {
        vmlinuz: kernel.vmlinuz,
        initrd,
    })
}

/// Folders, the devices of the first process, and modules.
fn base_of(kernel: &Kernel) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for folder in ["dev", "etc", "proc", "run", "sys", "tmp"] {
        archive.folder(folder);
    }
    archive.device("dev/console", 5, 1);
    archive.device("dev/null", 1, 3);
    let mut list = String::new();
    for module in &kernel.modules {
        let inside = module
            .strip_prefix(&kernel.root)
            .context("a module of another kernel")?
            .to_string_lossy();
        let inside = format!("/{}", inside.trim_end_matches(".xz"));
        // Unpacked here, which is many times faster than in the guest.
        let contents = if module.extension().is_some_and(|end| end == "xz") {
            output(Command::new("xz").arg("-dc").arg(module))?
        } else {
            fs::read(module)?
        };
        archive.file(&inside, &contents);
        list.push_str(&inside);
        list.push('\n');
    }
    archive.file(guest::MODULES, list.as_bytes());
    Ok(archive.finish())
}

/// This program as the first process, and what it and the scenarios run.
fn programs(guests: &[&Path]) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    let mut libraries = BTreeSet::new();
    // Not by its name, under which a newer build may have come meanwhile.
    let ourselves = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
    archive.copy("/init", &ourselves)?;
    needed(&ourselves, &mut libraries)?;
    for program in ["ip", "rdma", "tc"] {
        let path = find(program)?;
        archive.copy(&format!("/bin/{program}"), &path)?;
        needed(&path, &mut libraries)?;
    }
    for guest in guests {
        archive.copy(&in_guest(guest)?, guest)?;
        needed(guest, &mut libraries)?;
    }
    // The userspace stack loads these by name; without them there is no RDMA device.
    for folder in LIBRARIES.map(Path::new) {
        let verbs = folder.join("libibverbs.so.1");
        if !verbs.exists() {
            continue;
        }
        needed(&verbs, &mut libraries)?;
        libraries.insert(verbs);
        for provider in providers(&folder.join("libibverbs"))? {
            needed(&provider, &mut libraries)?;
            archive.copy(&provider.to_string_lossy(), &provider)?;
        }
    }
    let driver = Path::new("/etc/libibverbs.d/rxe.driver");
    if driver.exists() {
        archive.copy(&driver.to_string_lossy(), driver)?;
    }
    for library in libraries {
        archive.copy(&library.to_string_lossy(), &library)?;
    }
    Ok(archive.finish())
}

/// The libraries by which libibverbs drives soft-RoCE. Without a folder there are none: the package
/// of libibverbs does not bring those that provide devices.
fn providers(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if folder.exists() {
        for entry in fs::read_dir(folder)? {
            found.push(entry?.path());
        }
    }
    found.retain(|path| path.to_string_lossy().contains("librxe"));
    Ok(found)
}

/// Where a program of the host is in a guest.
pub(crate) fn in_guest(program: &Path) -> Result<String> {
    let name = program.file_name().context("not a program")?;
    Ok(format!("/bin/{}", name.to_string_lossy()))
}

/// The libraries that a program or library loads, and the loader.
fn needed(program: &Path, libraries: &mut BTreeSet<PathBuf>) -> Result<()> {
    let shown = text(Command::new("ldd").arg(program))?;
    for word in shown
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
    {
        libraries.insert(PathBuf::from(word));
    }
    Ok(())
}

/// A program of the host.
pub(crate) fn find(program: &str) -> Result<PathBuf> {
    ["/usr/bin", "/usr/sbin", "/bin", "/sbin"]
        .iter()
        .map(|folder| Path::new(folder).join(program))
        .find(|path| path.exists())
        .with_context(|| {
            format!("{program} is not installed (packages iproute2, rdma-core, strace, util-linux)")
        })
}

/// Counts up when bases are made differently.
const RECIPE: u32 = 9;

const LIBRARIES: [&str; 2] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_package_of_providers_there_are_none() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("libibverbs");
        assert_eq!(providers(&missing).unwrap(), Vec::<PathBuf>::new());
        fs::create_dir(&missing).unwrap();
        fs::write(missing.join("libmlx5-rdmav34.so"), "").unwrap();
        fs::write(missing.join("librxe-rdmav34.so"), "").unwrap();
        let rxe = missing.join("librxe-rdmav34.so");
        assert_eq!(providers(&missing).unwrap(), [rxe]);
    }

    #[test]
    fn an_error_names_the_operation_and_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = format!("{:#}", providers(&file).unwrap_err());
        assert!(error.contains("read directory"), "{error}");
        assert!(error.contains(&file.display().to_string()), "{error}");

        let missing = folder.path().join("missing");
        let copied = Archive::default().copy("/bin/missing", &missing);
        let error = format!("{:#}", anyhow::Error::from(copied.unwrap_err()));
        assert!(error.contains(&missing.display().to_string()), "{error}");
    }
}
