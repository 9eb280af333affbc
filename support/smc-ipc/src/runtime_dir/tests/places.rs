//! The directories in which a domain publishes and searches.

use super::*;

#[test]
fn paths_longer_than_an_address_will_do() {
    let world = World::new();
    let domain = Domain::directory(world.at(&"x".repeat(200)));
    let mut publication = publish(&domain);
    assert_connects(&mut publication, &domain);
    let dir = domain.open(&world.at(&"x".repeat(200))).unwrap();
    dir.connect(NAME).unwrap();
}

#[test]
fn a_session_of_which_others_may_not_know_is_not_the_only_place() {
    let world = World::new();
    let session = Some(world.at("session"));
    let (without, with) = (world.usual(), world.usual_with("no run", session));
    let mut publication = publish(&with);
    let own = format!("tmp/smc-{}", own());
    let expected = [world.at("session/smc"), world.at(&own)];
    assert_eq!(publication.directories().collect::<Vec<_>>(), expected);
    assert_connects(&mut publication, &with);
    assert_connects(&mut publication, &without);
    drop(publication);
    assert_connects(&mut publish(&without), &with);
}

#[test]
fn a_directory_of_the_system_is_the_only_place() {
    if own() != 0 {
        return println!("skipped: why: needs root to have a directory of root");
    }
    let world = World::new();
    let domain = world.usual_with("run", Some(world.at("session")));
    let publication = publish(&domain);
    let locations: Vec<_> = publication.directories().collect();
    assert_eq!(locations, [world.at("run/smc-0")]);
    assert!(world.temporary().is_empty());
    drop(publication);
    // Others could have made it there.
    world.make("run", 0o777);
    let publication = publish(&domain);
    assert!(
        !publication
            .directories()
            .any(|dir| dir.starts_with(world.at("run")))
    );
}

#[test]
fn a_place_that_is_taken_leads_to_one_with_a_random_name() {
    let world = World::new();
    let domain = world.usual();
    let own = format!("tmp/smc-{}", own());
    world.make(&own, 0o777);
    // What others may have put there: a link, a file, a directory that they can write to.
    let trap = world.make("trap", 0o700);
    symlink(&trap, world.at(&format!("{own}-0000000000000001"))).unwrap();
    fs::write(world.at(&format!("{own}-0000000000000002")), "").unwrap();
    world.make(&format!("{own}-0000000000000003"), 0o755);
    world.make(&format!("{own}-4"), 0o700);

    let mut first = publish(&domain);
    let mut second = Publication::new(domain.clone(), "d-2.sock".into()).unwrap();
    let locations: Vec<_> = first.directories().chain(second.directories()).collect();
    assert_eq!(locations[0], locations[1]);
    assert!(
        locations[0].to_str().unwrap().contains("/smc-"),
        "{locations:?}"
    );
    assert_eq!(domain.search_paths().last().unwrap(), locations[0]);
    assert_eq!(
        domain.search_paths().len(),
        4,
        "{:?}",
        domain.search_paths()
    );
    assert_connects(&mut first, &domain);
    assert_eq!(
        names(&trap).unwrap().count() + names(&world.at(&own)).unwrap().count(),
        0
    );

    // When the place is free, it is used.
    fs::remove_dir(world.at(&own)).unwrap();
    for publication in [&mut first, &mut second] {
        handle_events_until(publication, |publication| {
            publication.directories().eq([world.at(&own)])
        });
    }
    assert_connects(&mut first, &domain);
    drop((first, second));
    let names = world.temporary();
    assert_eq!(names.len(), 5, "no random name is left behind: {names:?}");
}

#[test]
fn what_a_search_has_found_is_remembered_for_a_moment() {
    let world = World::new();
    let domain = world.usual();
    let own = format!("tmp/smc-{}", own());
    world.make(&own, 0o777);
    let alternate = world.make(&format!("{own}-0000000000000001"), 0o700);
    assert!(domain.search_paths().contains(&alternate));
    domain.cache([(super::own(), alternate.clone())].into(), LONG);
    fs::remove_dir(&alternate).unwrap();
    for domain in [&domain, &domain.clone()] {
        assert!(domain.search_paths().contains(&alternate));
    }
    // One that this process makes is known at once.
    let publication = publish(&domain);
    let place = publication.directories().next().unwrap();
    assert!(domain.search_paths().contains(&place.to_owned()));
}

#[test]
fn the_next_search_is_put_off_by_nine_times_what_one_took_however_long_that_is() {
    let domain = World::new().usual();
    for took in [Duration::from_millis(1), Duration::from_secs(10)] {
        let since = Instant::now();
        domain.cache([].into(), took);
        let (until, _) = thread::lock(&domain.alternates).take().unwrap();
        assert!(until >= since + 9 * took);
    }
}

#[test]
fn a_directory_that_another_process_makes_is_found_soon() {
    const SOON: Duration = Duration::from_secs(1);
    let world = World::new();
    let own = format!("tmp/smc-{}", own());
    world.make(&own, 0o777);
    let is_found_soon = |number| {
        let (domain, since) = (world.usual(), Instant::now());
        let before = domain.search_paths();
        let alternate = world.make(&format!("{own}-{number:016x}"), 0o700);
        sleep(SOON / 10);
        let after = domain.search_paths();
        !before.contains(&alternate) && after.contains(&alternate) && since.elapsed() < SOON
    };
    // A search takes long on a busy machine.
    assert!((1..=10).any(is_found_soon));
}

#[test]
fn without_a_place_there_is_a_reason() {
    let world = World::new();
    let domain = Domain::directory(world.at("tmp/file"));
    fs::write(world.at("tmp/file"), "").unwrap();
    let mut publication = publish(&domain);
    let error = publication.error().unwrap().clone();
    assert_eq!(error.problem, DirectoryProblem::NotDirectory);
    assert_eq!(*error.path, *world.at("tmp/file"));
    fs::remove_file(world.at("tmp/file")).unwrap();
    handle_events_until(&mut publication, |it| it.error().is_none());
    assert_connects(&mut publication, &domain);
}
