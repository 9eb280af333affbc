//! The printers: the first byte chooses the family, the rest is the message.

#![no_main]

use libfuzzer_sys::fuzz_target;
use smc_wire::cdc::ByteOrder;
use smc_wire::pretty::{self, Family, Field, Group, Problem, Visitor};

fuzz_target!(|data: &[u8]| {
    let Some((&first, bytes)) = data.split_first() else {
        return;
    };
    let family = match first % 6 {
        0 => Family::TcpOption,
        1 => Family::Clc,
        2 => Family::Llc,
        3 => Family::CdcR,
        4 => Family::CdcD(ByteOrder::Little),
        _ => Family::CdcD(ByteOrder::Big),
    };
    let line = pretty::line(family, bytes).to_string();
    assert!(!line.is_empty() && !line.contains('\n'), "{line}");
    let tree = pretty::tree(family, bytes).to_string();
    assert!(tree.is_empty() || tree.ends_with('\n'), "{tree}");
    let mut checker = Checker {
        size: bytes.len(),
        groups: vec![Vec::new()],
    };
    pretty::describe(family, bytes, &mut checker);
    assert_eq!(checker.groups.len(), 1, "groups that are entered are left");
});

/// Checks what the printer promises: names that are unique in their group, lists that are counted.
struct Checker {
    size: usize,
    groups: Vec<Vec<(&'static str, Option<usize>)>>,
}

impl Checker {
    fn name(&mut self, name: &'static str, index: Option<usize>) {
        let names = self
            .groups
            .last_mut()
            .expect("the message itself is a group");
        match index {
            None | Some(0) => assert!(names.iter().all(|known| known.0 != name), "two of {name}"),
            Some(index) => assert_eq!(names.last(), Some(&(name, Some(index - 1)))),
        }
        names.push((name, index));
    }
}

impl Visitor for Checker {
    fn enter(&mut self, group: &Group) {
        self.name(group.name, group.index);
        self.groups.push(Vec::new());
    }

    fn field(&mut self, field: &Field<'_>) {
        self.name(field.name, field.index);
        assert!(!field.bytes.is_empty() && field.offset + field.bytes.len() <= self.size);
        let _ = field.value.to_string();
    }

    fn leave(&mut self) {
        self.groups.pop();
    }

    fn problem(&mut self, problem: &Problem) {
        let _ = problem.to_string();
    }
}
