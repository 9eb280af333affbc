//! The results of negotiation, by the handshakes of TCP alone.

use std::fs;

use smc_core::negotiate::{Delivery, Negotiation};
use smc_core::wire::option;
use smc_negotiate_syn::SynOption;

use crate::lab::{Lab, in_lab};
use crate::world::{Sniffer, Speaks, accept, run};

in_lab! {
    both_are_marked,
    one_is_not_marked,
    over_ipv6,
    with_syn_cookies,
    a_program_that_is_gone,
    many_at_a_time,
    a_listener_that_was_bound_elsewhere,
}

fn both_are_marked(_: Lab) {
    run(|world| async move {
        let option = SynOption::load().unwrap();
        assert_eq!(option.is_effective().unwrap(), Some(true));
        let sniffer = Sniffer::start();
        let server = world.server(&option, "127.0.0.1:0");
        let dialled = world.dial(&option, server.at()).await;
        assert_eq!(dialled.delivery, Delivery::OnTcp);
        assert_eq!(accept(&server).await.1, Speaks::Clc);

        let [syn, answer] = &sniffer.handshakes(server.at().port())[..] else {
            panic!("not one handshake");
        };
        assert!(!syn.is_answer && answer.is_answer);
        for options in [&syn.options, &answer.options] {
            let windows = options.windows(option::BYTES.len());
            let found = windows.filter(|window| **window == option::BYTES).count();
            assert_eq!(found, 1, "{options:02x?}");
            // Padded to a multiple of four, and the other options are still there.
            assert_eq!(options.len(), 20 + 8, "{options:02x?}");
            assert!(option::find(options).is_some());
        }
    });
}

fn one_is_not_marked(_: Lab) {
    run(|world| async move {
        let option = SynOption::load().unwrap();
        let sniffer = Sniffer::start();

        let marked = world.server(&option, "127.0.0.1:0");
        let _plain = world.dial_plain(marked.at()).await;
        assert_eq!(accept(&marked).await.1, Speaks::Plain);
        let handshake = sniffer.handshakes(marked.at().port());
        assert!(
            handshake
                .iter()
                .all(|it| option::find(&it.options).is_none())
        );

        let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = plain.local_addr().unwrap();
        let dialled = world.dial(&option, at).await;
        assert_eq!(dialled.delivery, Delivery::Plain);
        let handshake = sniffer.handshakes(at.port());
        let with = |it: &crate::world::Syn| option::find(&it.options).is_some();
        assert!(handshake.iter().all(|it| with(it) != it.is_answer));
    });
}

fn over_ipv6(_: Lab) {
    run(|world| async move {
        let option = SynOption::load().unwrap();
        let server = world.server(&option, "[::]:0");
        for to in ["::1", "127.0.0.1"] {
            let to = (to.parse::<std::net::IpAddr>().unwrap(), server.at().port());
            let dialled = world.dial(&option, to.into()).await;
            assert_eq!(dialled.delivery, Delivery::OnTcp, "{to:?}");
            assert_eq!(accept(&server).await.1, Speaks::Clc, "{to:?}");
            let _plain = world.dial_plain(to.into()).await;
            assert_eq!(accept(&server).await.1, Speaks::Plain, "{to:?}");
        }
    });
}

fn with_syn_cookies(_: Lab) {
    fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2").unwrap();
    run(|world| async move {
        let option = SynOption::load().unwrap();
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let server = world.server(&option, at);
            let dialled = world.dial(&option, server.at()).await;
            assert_eq!(dialled.delivery, Delivery::Plain);
            assert_eq!(accept(&server).await.1, Speaks::Plain);
        }
    });
}

fn a_program_that_is_gone(lab: Lab) {
    let here = lab.cgroup_below("here");
    let elsewhere = lab.cgroup_below("elsewhere");
    crate::lab::move_to(&elsewhere);
    run(|world| async move {
        let option = SynOption::load_for(&here).unwrap();
        assert_eq!(option.is_effective().unwrap(), Some(false));
        let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let dialled = world.dial(&option, plain.local_addr().unwrap()).await;
        assert_eq!(dialled.delivery, Delivery::Plain);
        let marked = world.rt.bind(
            "127.0.0.1:0".parse().unwrap(),
            &Default::default(),
            &mut |socket| {
                option.prepare(socket);
                Ok(())
            },
        );
        let marked = marked.unwrap();
        let at = marked.local_addr().unwrap();
        option.publish(&world.rt, at, marked.fd()).unwrap_err();

        // From the other cgroup it works, with the same object.
        crate::lab::move_to(&here);
        assert_eq!(option.is_effective().unwrap(), Some(true));
    });
}

fn many_at_a_time(_: Lab) {
    const COUNT: usize = 400;
    const BATCH: usize = 50;
    let is_plain = |round| round % 3 == 0;
    run(|world| async move {
        let option = SynOption::load().unwrap();
        let server = world.server(&option, "127.0.0.1:0");
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..COUNT {
            if is_plain(round) {
                ours.push(world.dial_plain(server.at()).await);
            } else {
                let dialled = world.dial(&option, server.at()).await;
                assert_eq!(dialled.delivery, Delivery::OnTcp);
                ours.push(dialled.socket);
            }
            // Some wait in the backlog meanwhile.
            while round % BATCH == BATCH - 1 && theirs.len() <= round {
                let (socket, verdict) = accept(&server).await;
                let expected = match is_plain(theirs.len()) {
                    true => Speaks::Plain,
                    false => Speaks::Clc,
                };
                assert_eq!(verdict, expected, "connection {}", theirs.len());
                theirs.push(socket);
            }
        }
        assert_eq!((ours.len(), theirs.len()), (COUNT, COUNT));
    });
}

fn a_listener_that_was_bound_elsewhere(_: Lab) {
    run(|world| async move {
        let option = SynOption::load().unwrap();
        // Bound elsewhere, so that it could not be marked in time.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let fd = std::os::fd::AsFd::as_fd(&listener);
        let error = option.publish(&world.rt, at, Some(fd)).unwrap_err();
        assert!(error.to_string().contains("SYN option"), "{error}");
        let error = option.publish(&world.rt, at, None).unwrap_err();
        assert!(error.to_string().contains("SYN option"), "{error}");
    });
}
