//! Several network namespaces.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use smc_testkit::user::is_root;

use super::*;

#[test]
fn loopback_is_another_one_in_every_namespace() {
    let Some(net) = Net::new(&["here", "there"]) else {
        return;
    };
    run_once(TempDir::new(), |world| async move {
        let mut smc = net.child(&world, "here", "listens", "127.0.0.1:0");
        let to = smc.recv();
        // The same address, elsewhere, without SMC.
        let mut plain = net.plain(&world, "there", &to);
        assert_eq!(plain.recv(), to);
        let mut caller = net.child(&world, "there", "dials", &to);
        assert_eq!(caller.recv(), "plain");
        assert_eq!(plain.recv(), "plain");
    });
}

#[test]
fn a_listener_in_another_namespace_is_reached_through_the_network() {
    let Some(net) = Net::new(&["client", "server"]) else {
        return;
    };
    net.wire("client", "10.99.0.1/24", "server", "10.99.0.2/24");
    run_once(TempDir::new(), |world| async move {
        for at in ["10.99.0.2:0", "0.0.0.0:0"] {
            let mut smc = net.child(&world, "server", "listens", at);
            let to = format!("10.99.0.2:{}", port_of(&smc.recv()));
            let mut caller = net.child(&world, "client", "dials", &to);
            assert_eq!(caller.recv(), "offered");
            assert_eq!(smc.recv(), "clc");
        }
    });
}

#[test]
fn an_address_that_exists_twice_leads_to_the_one_that_the_network_reaches() {
    let Some(net) = Net::new(&["client", "plain", "server", "other"]) else {
        return;
    };
    net.wire("client", "10.99.0.1/24", "plain", "10.99.0.2/24");
    net.wire("other", "10.99.0.1/24", "server", "10.99.0.2/24");
    run_once(TempDir::new(), |world| async move {
        let mut smc = net.child(&world, "server", "listens", "10.99.0.2:0");
        let to = smc.recv();
        let mut plain = net.plain(&world, "plain", &to);
        assert_eq!(plain.recv(), to);
        let mut caller = net.child(&world, "client", "dials", &to);
        assert_eq!(caller.recv(), "plain");
        assert_eq!(plain.recv(), "plain");
        // From where the network leads to it, it is found.
        let mut other = net.child(&world, "other", "dials", &to);
        assert_eq!(other.recv(), "offered");
        assert_eq!(smc.recv(), "clc");
    });
}

#[test]
fn a_network_that_changes_addresses_makes_connections_plain() {
    let Some(net) = Net::new(&["client", "router", "server"]) else {
        return;
    };
    net.wire("client", "10.98.0.1/24", "router", "10.98.0.2/24");
    net.wire("router", "10.99.0.1/24", "server", "10.99.0.2/24");
    net.ip("client", "route add default via 10.98.0.2");
    net.ip("server", "route add default via 10.99.0.1");
    let routed = net.exec("router", "sysctl -qw net.ipv4.ip_forward=1");
    run_once(TempDir::new(), |world| async move {
        let mut smc = net.child(&world, "server", "listens", "10.99.0.2:0");
        let to = smc.recv();
        if !routed {
            return println!("skipped: why: packets cannot be forwarded here");
        }
        let nat = "iptables -t nat -A POSTROUTING -s 10.98.0.0/24 -j MASQUERADE";
        if net.exec("router", nat) {
            let mut changed = net.child(&world, "client", "dials", &to);
            assert_eq!(changed.recv(), "plain");
            assert_eq!(smc.recv(), "plain");
            net.exec("router", &nat.replace("-A", "-D"));
        } else {
            println!("skipped: why: addresses cannot be changed here");
            let mut unchanged = net.child(&world, "client", "dials", &to);
            assert_eq!(unchanged.recv(), "offered");
            assert_eq!(smc.recv(), "clc");
        }
    });
}

/// Network namespaces, gone when this is dropped.
struct Net(String);

impl Net {
    /// Namespaces with these names, or why there are none.
    fn new(names: &[&str]) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let net = Self(format!("smc{}-{count}-", std::process::id()));
        if !is_root("make network namespaces") {
            return None;
        }
        for name in names {
            if !run_command(&format!("ip netns add {}", net.name(name))) {
                println!("skipped: why: network namespaces cannot be made here");
                return None;
            }
            net.ip(name, "link set lo up");
        }
        Some(net)
    }

    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.0)
    }

    /// Joins two namespaces.
    fn wire(&self, one: &str, one_addr: &str, two: &str, two_addr: &str) {
        let [a, b] = [self.name(one), self.name(two)];
        let (left, right) = (format!("to-{two}"), format!("to-{one}"));
        assert!(run_command(&format!(
            "ip link add {left} netns {a} type veth peer name {right} netns {b}"
        )));
        for (name, link, addr) in [(one, left, one_addr), (two, right, two_addr)] {
            self.ip(name, &format!("addr add {addr} dev {link}"));
            self.ip(name, &format!("link set {link} up"));
        }
        // Until the kernel has noticed that both ends are up, packets are lost.
        for (name, link) in [(one, format!("to-{two}")), (two, format!("to-{one}"))] {
            let args = format!("-n {} link show dev {link}", self.name(name));
            let is_up = || {
                let shown = Command::new("ip").args(args.split(' ')).output().unwrap();
                String::from_utf8_lossy(&shown.stdout).contains("state UP")
            };
            assert!((0..10_000).any(|_| is_up()), "{link} does not come up");
        }
    }

    fn ip(&self, name: &str, command: &str) {
        assert!(
            run_command(&format!("ip -n {} {command}", self.name(name))),
            "{command}"
        );
    }

    fn exec(&self, name: &str, command: &str) -> bool {
        run_command(&format!("ip netns exec {} {command}", self.name(name)))
    }

    fn child(&self, world: &World, name: &str, test: &str, args: &str) -> Child {
        world.child(Placement::In(&self.name(name)), test, args)
    }

    /// A listener that is not announced in `world`.
    fn plain(&self, world: &World, name: &str, at: &str) -> Child {
        let hidden = world.dir.path.join("hidden");
        fs::create_dir(&hidden).unwrap();
        fs::set_permissions(&hidden, fs::Permissions::from_mode(0o700)).unwrap();
        start(Placement::In(&self.name(name)), "listens", &hidden, at)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let listed = Command::new("ip").args(["netns", "list"]).output();
        let listed = listed.map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
        for line in listed
            .unwrap_or_default()
            .lines()
            .filter(|line| line.starts_with(&self.0))
        {
            let name = line.split_whitespace().next().unwrap_or_default();
            run_command(&format!("ip netns del {name}"));
        }
    }
}

fn run_command(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output();
    output.is_ok_and(|output| output.status.success())
}

fn port_of(addr: &str) -> u16 {
    addr.parse::<SocketAddr>().unwrap().port()
}
