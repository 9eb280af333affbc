//! The system calls: `bpf(2)`, and two socket options that other crates do not have.
//!
//! All unsafe code of the negotiation is in this file. `bpf(2)` takes a command and a block of
//! attributes, whose layout depends on the command and is part of the kernel's interface
//! (`linux/bpf.h`). Attributes hold addresses as numbers; each function here borrows what it gives
//! the address of until the call is over, and the kernel keeps none of them. A block may be shorter
//! than the kernel's: what is missing counts as zero.

#![allow(unsafe_code, reason = "system calls that no crate wraps")]

use std::ffi::{CStr, CString};
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::slice::{from_mut, from_ref};

use crate::asm::Insn;
use crate::btf;

/// What a value of the map begins with: flags and verdict.
pub(super) type SocketEntry = [u32; 2];

/// A value of the map: a [`SocketEntry`], and a lock (`struct bpf_spin_lock`) which nothing takes.
/// A map with one in its values cannot be frozen (`BPF_MAP_FREEZE`) from Linux 6.2 on: every
/// process that may write to a map could freeze it else, from Linux 6.5 on, and no socket be
/// marked any more.
pub(super) type Value = [u32; 3];

/// A map that marks sockets: storage of a [`SocketEntry`] per socket, which accepted sockets copy.
#[derive(Debug)]
pub(super) struct Map(OwnedFd);

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Makes a private map.
pub(super) fn create_map(name: &str) -> io::Result<Map> {
    let types = load_types()?;
    let attr = MapCreate {
        map_type: MAP_SK_STORAGE,
        key_size: size_of::<u32>() as u32,
        value_size: size_of::<Value>() as u32,
        map_flags: MAP_FLAGS,
        name: object_name(name),
        btf_fd: number(&types),
        btf_key_type_id: btf::TYPE_KEY,
        btf_value_type_id: btf::TYPE_VALUE,
        ..MapCreate::default()
    };
    // SAFETY: the attributes are those of BPF_MAP_CREATE and hold no address.
    unsafe { make(MAP_CREATE, attr) }.map(Map)
}

/// Opens a map by its name in the bpf file system; `None` if it is something else.
pub(super) fn open_map(at: &Path, name: &str) -> io::Result<Option<Map>> {
    let fd = open(at)?;
    let wanted = MapInfo {
        map_type: MAP_SK_STORAGE,
        key_size: size_of::<u32>() as u32,
        value_size: size_of::<Value>() as u32,
        map_flags: MAP_FLAGS,
        name: object_name(name),
        ..MapInfo::default()
    };
    let mut found = MapInfo::default();
    // SAFETY: a map's information is numbers and characters, as `MapInfo` is; for a descriptor of
    // another kind the beginning of its information is, and addresses in it are only read as
    // requests if they are not zero, which all of `found` is.
    unsafe { info(fd.as_fd(), &mut found) }?;
    (found.id, found.max_entries) = (0, 0);
    Ok((found == wanted).then_some(Map(fd)))
}

/// Writes the entry of a socket.
pub(super) fn set_entry(map: &Map, socket: BorrowedFd<'_>, entry: SocketEntry) -> io::Result<()> {
    let key = socket.as_raw_fd();
    let [flags, verdict] = entry;
    let value: Value = [flags, verdict, 0];
    let mut attr = Element {
        map_fd: number(&map.0),
        key: address(from_ref(&key)),
        value: address(&value),
        ..Element::default()
    };
    // SAFETY: the attributes are those of BPF_MAP_UPDATE_ELEM. The map has keys of four bytes and
    // values of twelve, as every `Map` does; the kernel only reads both.
    unsafe { bpf(MAP_UPDATE, &mut attr) }.map(drop)
}

/// Reads the entry of a socket, `None` if it has none.
pub(super) fn entry(map: &Map, socket: BorrowedFd<'_>) -> io::Result<Option<SocketEntry>> {
    let key = socket.as_raw_fd();
    let mut value = Value::default();
    let mut attr = Element {
        map_fd: number(&map.0),
        key: address(from_ref(&key)),
        value: address_mut(&mut value),
        ..Element::default()
    };
    // SAFETY: the attributes are those of BPF_MAP_LOOKUP_ELEM. The map has keys of four bytes,
    // which are only read, and values of twelve, which `value` has; it is not accessed by anything
    // else, and any bytes make a `Value`.
    match unsafe { bpf(MAP_LOOKUP, &mut attr) } {
        Ok(_) => {
            let [flags, verdict, _lock] = value;
            Ok(Some([flags, verdict]))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether user space can no longer write to a map.
pub(super) fn is_frozen(map: &Map) -> io::Result<bool> {
    let at = format!("/proc/self/fdinfo/{}", map.0.as_raw_fd());
    let lines = std::fs::read_to_string(at)?;
    let frozen = lines.lines().find_map(|line| line.strip_prefix("frozen:"));
    Ok(frozen.is_some_and(|frozen| frozen.trim() != "0"))
}

/// Loads a `sock_ops` program into the kernel. The error has the log of the verifier.
pub(super) fn load_program(code: &[Insn], name: &str) -> Result<OwnedFd, (io::Error, String)> {
    let load = |log: &mut [u8]| {
        let attr = ProgramLoad {
            program_type: PROGRAM_SOCK_OPS,
            insn_cnt: count(code),
            insns: address(code),
            license: address(LICENSE.to_bytes_with_nul()),
            log_level: u32::from(!log.is_empty()),
            log_size: count(log),
            log_buf: if log.is_empty() { 0 } else { address_mut(log) },
            name: object_name(name),
            expected_attach_type: CGROUP_SOCK_OPS,
            ..ProgramLoad::default()
        };
        // SAFETY: the attributes are those of BPF_PROG_LOAD. The kernel reads as many instructions
        // as `code` has and a string that ends with a zero, and writes at most `log_size` bytes
        // into `log`, which only this call uses.
        unsafe { make(PROGRAM_LOAD, attr) }
    };
    load(&mut []).map_err(|error| {
        // Only now, as asking for a log costs time, and fails where it is too long.
        let mut log = vec![0; LOG_LEN];
        let _ = load(&mut log);
        let log = CStr::from_bytes_until_nul(&log).unwrap_or_default();
        (error, log.to_string_lossy().trim().to_owned())
    })
}

/// Lets a program run for the sockets of a cgroup, until the result is dropped.
pub(super) fn attach(program: &OwnedFd, cgroup: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let attr = LinkCreate {
        program_fd: number(program),
        target_fd: number(&cgroup),
        attach_type: CGROUP_SOCK_OPS,
    };
    // SAFETY: the attributes are those of BPF_LINK_CREATE for a cgroup and hold no address.
    unsafe { make(LINK_CREATE, attr) }
}

/// Ends a link, also if other processes hold it.
pub(super) fn detach(link: &OwnedFd) -> io::Result<()> {
    // SAFETY: the only attribute of BPF_LINK_DETACH is the descriptor.
    unsafe { bpf(LINK_DETACH, &mut number(link)) }.map(drop)
}

/// Numbers of the `sock_ops` programs that run for sockets of a cgroup: attached to it or above.
pub(super) fn programs(cgroup: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut ids = [0_u32; PROGRAMS_MAX];
    let mut attr = Query {
        target_fd: number(&cgroup),
        attach_type: CGROUP_SOCK_OPS,
        query_flags: QUERY_EFFECTIVE,
        prog_ids: address_mut(&mut ids),
        prog_cnt: count(&ids),
        ..Query::default()
    };
    // SAFETY: the attributes are those of BPF_PROG_QUERY. The kernel writes at most `prog_cnt`
    // numbers into `ids`, which only this call uses and which has as many, and to fields of `attr`.
    unsafe { bpf(PROGRAM_QUERY, &mut attr) }?;
    let found = usize::try_from(attr.prog_cnt).unwrap_or(PROGRAMS_MAX);
    Ok(ids[..found.min(PROGRAMS_MAX)].to_vec())
}

/// A program by its number. Needs `CAP_SYS_ADMIN`.
pub(super) fn program(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: the first attribute of BPF_PROG_GET_FD_BY_ID is the number, and the others are zero.
    unsafe { make(PROGRAM_BY_ID, id) }
}

/// Information of the kernel about a program.
pub(super) fn program_info(program: &OwnedFd) -> io::Result<ProgramInfo> {
    let mut found = ProgramInfo::default();
    // SAFETY: `ProgramInfo` begins as the kernel's does and has no invalid bytes; the addresses in
    // it are zero, so the kernel writes nothing anywhere else.
    unsafe { info(program.as_fd(), &mut found) }?;
    Ok(found)
}

/// Information of the kernel about a link to a cgroup.
pub(super) fn link_info(link: &OwnedFd) -> io::Result<LinkInfo> {
    let mut found = LinkInfo::default();
    // SAFETY: `LinkInfo` is what the kernel has for cgroups and has no invalid bytes; for other
    // links the bytes in the place of `cgroup_id` may be taken for an address, which is zero.
    unsafe { info(link.as_fd(), &mut found) }?;
    Ok(found)
}

/// Gives an object a name in the bpf file system.
pub(super) fn pin(object: &impl AsFd, at: &Path) -> io::Result<()> {
    let path = c_path(at)?;
    let mut attr = Object {
        pathname: address(path.as_bytes_with_nul()),
        bpf_fd: number(&object.as_fd()),
        file_flags: 0,
    };
    // SAFETY: the attributes are those of BPF_OBJ_PIN; the kernel reads the path up to its zero.
    unsafe { bpf(OBJECT_PIN, &mut attr) }.map(drop)
}

/// Opens an object by its name in the bpf file system.
pub(super) fn open(at: &Path) -> io::Result<OwnedFd> {
    let path = c_path(at)?;
    let attr = Object {
        pathname: address(path.as_bytes_with_nul()),
        ..Object::default()
    };
    // SAFETY: the attributes are those of BPF_OBJ_GET; the kernel reads the path up to its zero.
    unsafe { make(OBJECT_GET, attr) }
}

/// Has a listener keep the SYN of its connections (`TCP_SAVE_SYN`).
pub(super) fn save_syn(listener: BorrowedFd<'_>) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the kernel reads an int at the address of one.
    let result = unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_SAVE_SYN,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    check(result.into()).map(drop)
}

/// The headers of the SYN that made this connection, from the IP header on (`TCP_SAVED_SYN`).
///
/// Empty if none was kept. The kernel gives it away once.
pub(super) fn saved_syn(socket: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut syn = vec![0_u8; SYN_MAX];
    let mut len = count(&syn);
    // SAFETY: the kernel writes at most `len` bytes into `syn`, which only this call uses and which
    // has as many, and their number into `len`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_SAVED_SYN,
            syn.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    check(result.into())?;
    syn.truncate(usize::try_from(len).unwrap_or(SYN_MAX));
    Ok(syn)
}

/// Information of the kernel about a program, the beginning of `struct bpf_prog_info`.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct ProgramInfo {
    pub(super) program_type: u32,
    pub(super) id: u32,
    /// A digest of the instructions.
    pub(super) tag: [u8; 8],
    lengths: [u32; 2],
    addresses: [u64; 2],
    load_time: u64,
    created_by: u32,
    map_count: u32,
    map_ids: u64,
    name: [u8; NAME_LEN],
}

impl ProgramInfo {
    /// Whether this is the program's name.
    pub(super) fn is_called(&self, name: &str) -> bool {
        self.program_type == PROGRAM_SOCK_OPS && self.name == object_name(name)
    }
}

/// Information of the kernel about a link, `struct bpf_link_info` for cgroups.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct LinkInfo {
    pub(super) link_type: u32,
    pub(super) id: u32,
    pub(super) program: u32,
    padding: u32,
    /// The inode of the cgroup; 0 if it is gone or the link was detached.
    pub(super) cgroup: u64,
    pub(super) attach_type: u32,
    padding2: u32,
}

impl LinkInfo {
    /// Whether it links a `sock_ops` program to a cgroup.
    pub(super) fn is_sock_ops(&self) -> bool {
        self.link_type == LINK_CGROUP && self.attach_type == CGROUP_SOCK_OPS
    }
}

#[derive(Default)]
#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    name: [u8; NAME_LEN],
    ifindex: u32,
    btf_fd: u32,
    btf_key_type_id: u32,
    btf_value_type_id: u32,
}

#[derive(Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct MapInfo {
    map_type: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    name: [u8; NAME_LEN],
}

#[derive(Default)]
#[repr(C)]
struct Element {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
}

#[derive(Default)]
#[repr(C)]
struct ProgramLoad {
    program_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    flags: u32,
    name: [u8; NAME_LEN],
    ifindex: u32,
    expected_attach_type: u32,
}

#[derive(Default)]
#[repr(C)]
struct TypesLoad {
    btf: u64,
    log_buf: u64,
    size: u32,
    log_size: u32,
}

#[repr(C)]
struct LinkCreate {
    program_fd: u32,
    target_fd: u32,
    attach_type: u32,
}

#[derive(Default)]
#[repr(C)]
struct Query {
    target_fd: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    prog_cnt: u32,
    padding: u32,
}

#[derive(Default)]
#[repr(C)]
struct Object {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

#[repr(C)]
struct InfoByFd {
    fd: u32,
    len: u32,
    info: u64,
}

/// Describes the types of the map's keys and values, which per-socket storage requires.
fn load_types() -> io::Result<OwnedFd> {
    let types = btf::type_description();
    let attr = TypesLoad {
        btf: address(&types),
        size: count(&types),
        ..TypesLoad::default()
    };
    // SAFETY: the attributes are those of BPF_BTF_LOAD; the kernel reads as many bytes as there
    // are.
    unsafe { make(TYPES_LOAD, attr) }
}

/// Asks for an object's information.
///
/// # Safety
///
/// `T` has only integers and no padding, and any address that the kernel may take out of it is
/// zero or valid.
unsafe fn info<T>(fd: BorrowedFd<'_>, info: &mut T) -> io::Result<()> {
    let mut attr = InfoByFd {
        fd: number(&fd),
        len: size_of::<T>() as u32,
        info: address_mut(from_mut(info)),
    };
    // SAFETY: the attributes are those of BPF_OBJ_GET_INFO_BY_FD. The kernel writes at most `len`
    // bytes into `info`, which is borrowed for it; the caller vouches for its fields.
    unsafe { bpf(OBJECT_INFO, &mut attr) }.map(drop)
}

/// A command that makes a descriptor.
///
/// # Safety
///
/// As [`bpf`], and the command has to return a new descriptor.
unsafe fn make<A>(command: libc::c_int, mut attr: A) -> io::Result<OwnedFd> {
    // SAFETY: the caller vouches for command and attributes.
    let fd = unsafe { bpf(command, &mut attr) }?;
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the caller vouches that it is a descriptor, and it has no other owner yet.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The system call.
///
/// # Safety
///
/// `attr` has to be laid out as the attributes of `command`, without padding, and every address in
/// it has to be that of what the command reads or writes there, borrowed until this returns.
unsafe fn bpf<A>(command: libc::c_int, attr: &mut A) -> io::Result<libc::c_long> {
    let len = size_of::<A>() as libc::c_uint;
    // SAFETY: the kernel reads and writes at most `len` bytes at `attr`, which is borrowed for it;
    // the caller vouches for what they mean.
    check(unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attr, len) })
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

/// The address of the first of them.
fn address<T>(of: &[T]) -> u64 {
    of.as_ptr().expose_provenance() as u64
}

fn address_mut<T>(of: &mut [T]) -> u64 {
    of.as_mut_ptr().expose_provenance() as u64
}

/// A descriptor as attributes have it.
fn number(fd: &impl AsRawFd) -> u32 {
    // Descriptors are not negative.
    fd.as_raw_fd() as u32
}

/// How many there are; all slices here are far shorter than 4 GiB.
pub(super) fn count<T>(all: &[T]) -> u32 {
    u32::try_from(all.len()).unwrap_or(u32::MAX)
}

/// A name of at most 15 characters, with zeros behind it.
fn object_name(name: &str) -> [u8; NAME_LEN] {
    let mut padded = [0; NAME_LEN];
    for (to, from) in padded.iter_mut().take(NAME_LEN - 1).zip(name.bytes()) {
        *to = from;
    }
    padded
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Commands.
const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP: libc::c_int = 1;
const MAP_UPDATE: libc::c_int = 2;
const PROGRAM_LOAD: libc::c_int = 5;
const OBJECT_PIN: libc::c_int = 6;
const OBJECT_GET: libc::c_int = 7;
const PROGRAM_BY_ID: libc::c_int = 13;
const OBJECT_INFO: libc::c_int = 15;
const PROGRAM_QUERY: libc::c_int = 16;
const TYPES_LOAD: libc::c_int = 18;
const LINK_CREATE: libc::c_int = 28;
const LINK_DETACH: libc::c_int = 34;

const MAP_SK_STORAGE: u32 = 24;
/// `BPF_F_NO_PREALLOC`, which storage requires, and `BPF_F_CLONE`.
const MAP_FLAGS: u32 = 1 | 1 << 9;
const PROGRAM_SOCK_OPS: u32 = 13;
const CGROUP_SOCK_OPS: u32 = 3;
const LINK_CGROUP: u32 = 3;
const QUERY_EFFECTIVE: u32 = 1;

/// None of the functions that the program calls is for GPL programs only.
const LICENSE: &CStr = c"MIT OR Apache-2.0";

const NAME_LEN: usize = 16;

/// Programs on the way from a cgroup to the root; the kernel allows 64 for each cgroup.
const PROGRAMS_MAX: usize = 1024;

/// Enough for the end of a verifier's log, where the reason is.
const LOG_LEN: usize = 64 * 1024;

/// Headers of a SYN: IPv6 with extension headers, and TCP.
const SYN_MAX: usize = 512;

// Where it would show first if a layout were not the kernel's.
const _: () = {
    assert!(offset_of!(MapCreate, btf_value_type_id) == 56);
    assert!(offset_of!(ProgramLoad, expected_attach_type) == 68);
    assert!(offset_of!(ProgramInfo, name) == 64);
    assert!(offset_of!(LinkInfo, cgroup) == 16);
    assert!(offset_of!(MapInfo, name) == 24);
    assert!(size_of::<Query>() == 32);
};
