//! The shortest schedule that still fails: delta debugging of its events, then of its numbers.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::schedule::Schedule;

/// Makes a schedule shorter for as long as it fails. `fails` runs it.
///
/// What a schedule leaves open follows from its seed, so that a shorter one runs in another order:
/// each is tried with a few seeds.
pub(crate) fn minimise(
    mut schedule: Schedule,
    mut fails: impl FnMut(&Schedule) -> bool,
) -> Schedule {
    let mut attempts = ATTEMPTS_MAX;
    let mut still_fails = |shorter: &mut Schedule| {
        let seed = shorter.setting.seed;
        (0..SEEDS).any(|other| {
            shorter.setting.seed = seed.wrapping_add(other);
            attempts > 0 && {
                attempts -= 1;
                fails(shorter)
            }
        })
    };
    loop {
        let before = schedule.clone();
        remove_events(&mut schedule, &mut still_fails);
        while schedule.setting.hosts.len() > 1 {
            let mut shorter = schedule.clone();
            shorter.setting.hosts.pop();
            if !still_fails(&mut shorter) {
                break;
            }
            schedule = shorter;
        }
        for at in 0..schedule.events.len() {
            shrink(
                &mut schedule,
                |schedule| &mut schedule.events[at],
                &mut still_fails,
            );
        }
        for at in 0..schedule.setting.hosts.len() {
            shrink(
                &mut schedule,
                |schedule| &mut schedule.setting.hosts[at],
                &mut still_fails,
            );
        }
        shrink(
            &mut schedule,
            |schedule| &mut schedule.setting.network,
            &mut still_fails,
        );
        if schedule == before {
            return schedule;
        }
    }
}

/// Removes runs of events, long ones first.
fn remove_events(schedule: &mut Schedule, still_fails: &mut impl FnMut(&mut Schedule) -> bool) {
    let mut len = schedule.events.len().div_ceil(2);
    while len > 0 {
        let mut at = 0;
        while at < schedule.events.len() {
            let mut shorter = schedule.clone();
            let end = (at + len).min(shorter.events.len());
            shorter.events.drain(at..end);
            match still_fails(&mut shorter) {
                true => *schedule = shorter,
                false => at += len,
            }
        }
        len /= 2;
    }
}

/// Makes the numbers of a part smaller, and switches off what is on.
fn shrink<P: Serialize + DeserializeOwned>(
    schedule: &mut Schedule,
    part: impl Fn(&mut Schedule) -> &mut P,
    still_fails: &mut impl FnMut(&mut Schedule) -> bool,
) {
    let value = |part: &P| serde_json::to_value(part).expect("numbers, names and lists");
    let mut number = 0;
    loop {
        let whole = value(part(schedule));
        let Some(leaf) = nth(&mut whole.clone(), &mut { number }).map(|leaf| leaf.clone()) else {
            return;
        };
        let smaller = smaller(&leaf);
        let found = smaller.into_iter().find_map(|leaf| {
            let mut whole = whole.clone();
            *nth(&mut whole, &mut { number })? = leaf;
            let mut shorter = schedule.clone();
            *part(&mut shorter) = serde_json::from_value(whole).ok()?;
            still_fails(&mut shorter).then_some(shorter)
        });
        match found {
            Some(shorter) => *schedule = shorter,
            None => number += 1,
        }
    }
}

/// What stands for less than a value.
fn smaller(value: &Value) -> Vec<Value> {
    match value {
        Value::Bool(true) => vec![false.into()],
        Value::Number(number) => {
            let number = number.as_u64().unwrap_or(0);
            let mut all = vec![0, number / 2, number.saturating_sub(1)];
            all.retain(|smaller| *smaller < number);
            all.dedup();
            all.into_iter().map(Value::from).collect()
        }
        _ => Vec::new(),
    }
}

/// The number or truth value of this index in a tree.
fn nth<'v>(value: &'v mut Value, number: &mut usize) -> Option<&'v mut Value> {
    match value {
        Value::Object(fields) => fields.values_mut().find_map(|field| nth(field, number)),
        Value::Array(items) => items.iter_mut().find_map(|item| nth(item, number)),
        Value::Number(_) | Value::Bool(_) => match number.checked_sub(1) {
            None => Some(value),
            Some(rest) => {
                *number = rest;
                None
            }
        },
        _ => None,
    }
}

/// Runs of schedules that are made.
const ATTEMPTS_MAX: usize = 2000;

/// Seeds with which a schedule is tried.
const SEEDS: u64 = 4;
