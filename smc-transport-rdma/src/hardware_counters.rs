//! The counters that the hardware has for the ports of a device, as sysfs has them.

use std::fs;
use std::path::Path;

/// The counters of all ports of a device: `<port>/<name>`, and the value. Those that cannot be read
/// are left out.
pub(crate) fn read(device: &str) -> Vec<(String, u64)> {
    read_below(&Path::new(DEVICES).join(device).join("ports"))
}

fn read_below(ports: &Path) -> Vec<(String, u64)> {
    let mut counters = Vec::new();
    for port in fs::read_dir(ports).into_iter().flatten().flatten() {
        let number = port.file_name();
        let files = fs::read_dir(port.path().join("hw_counters"));
        for file in files.into_iter().flatten().flatten() {
            let name = file.file_name();
            let value = fs::read_to_string(file.path()).unwrap_or_default();
            if let Ok(value) = value.trim().parse() {
                let name = Path::new(&number).join(name);
                counters.push((name.to_string_lossy().into_owned(), value));
            }
        }
    }
    counters
}

const DEVICES: &str = "/sys/class/infiniband";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_all_ports_have_the_number_of_the_port() {
        let dir = tempfile::tempdir().unwrap();
        for (port, name, text) in [
            ("1", "rcvd_rnr_err", "7\n"),
            ("2", "rcvd_rnr_err", "18446744073709551615\n"),
            ("2", "lifespan", "no number\n"),
        ] {
            let port = dir.path().join(port).join("hw_counters");
            fs::create_dir_all(&port).unwrap();
            fs::write(port.join(name), text).unwrap();
        }
        fs::create_dir(dir.path().join("3")).unwrap();
        let mut found = read_below(dir.path());
        found.sort();
        let counter = |name: &str, value| (name.to_owned(), value);
        let expected = [
            counter("1/rcvd_rnr_err", 7),
            counter("2/rcvd_rnr_err", u64::MAX),
        ];
        assert_eq!(found, expected);
        assert_eq!(read("no such device"), []);
    }
}
