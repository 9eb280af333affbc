//! A subscriber that keeps the events of a thread.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata, Subscriber};

/// The fields of a span or an event.
pub(crate) type Fields = BTreeMap<&'static str, String>;

/// An event, with the spans that it was in, the innermost first.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) level: Level,
    pub(crate) text: String,
    pub(crate) fields: Fields,
    spans: Vec<(&'static str, Fields)>,
}

impl Event {
    pub(crate) fn has_span(&self, name: &str) -> bool {
        self.spans.iter().any(|(span, _)| *span == name)
    }

    pub(crate) fn span(&self, name: &str) -> &Fields {
        let span = self.spans.iter().find(|(span, _)| *span == name);
        &span
            .unwrap_or_else(|| panic!("{self} has no span {name}"))
            .1
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {:?}", self.level, self.text, self.fields)?;
        for (name, fields) in &self.spans {
            write!(f, " in {name} {fields:?}")?;
        }
        Ok(())
    }
}

/// The events of this crate that a thread has had.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    events: Vec<Event>,
    /// By identifier less one: name, fields and parent.
    spans: Vec<(&'static str, Fields, Option<u64>)>,
    entered: Vec<u64>,
}

impl Log {
    pub(crate) fn record<T>(&self, scenario: impl FnOnce() -> T) -> T {
        tracing::subscriber::with_default(self.clone(), scenario)
    }

    fn select(&self, which: impl Fn(&Event) -> bool) -> Vec<Event> {
        let recorded = self.0.lock().unwrap();
        let events = recorded.events.iter();
        events.filter(|event| which(event)).cloned().collect()
    }

    pub(crate) fn all(&self, text: &str) -> Vec<Event> {
        self.select(|event| event.text == text)
    }

    pub(crate) fn within(&self, span: &str) -> Vec<Event> {
        self.select(|event| event.has_span(span))
    }

    pub(crate) fn at_least(&self, level: Level) -> Vec<Event> {
        self.select(|event| event.level <= level)
    }
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for event in self.select(|_| true) {
            writeln!(f, "{event}")?;
        }
        Ok(())
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("smc")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Values::default();
        span.record(&mut fields);
        let mut recorded = self.0.lock().unwrap();
        let parent = match span.is_contextual() {
            true => recorded.entered.last().copied(),
            false => span.parent().map(Id::into_u64),
        };
        recorded
            .spans
            .push((span.metadata().name(), fields.0, parent));
        Id::from_u64(recorded.spans.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Values::default();
        event.record(&mut fields);
        let mut recorded = self.0.lock().unwrap();
        let mut spans = Vec::new();
        let mut next = recorded.entered.last().copied();
        while let Some(id) = next {
            let (name, fields, parent) = &recorded.spans[usize::try_from(id).unwrap() - 1];
            spans.push((*name, fields.clone()));
            next = *parent;
        }
        let text = fields.0.remove("message").unwrap_or_default();
        recorded.events.push(Event {
            level: *event.metadata().level(),
            text,
            fields: fields.0,
            spans,
        });
    }

    fn enter(&self, span: &Id) {
        self.0.lock().unwrap().entered.push(span.into_u64());
    }

    fn exit(&self, span: &Id) {
        let left = self.0.lock().unwrap().entered.pop();
        assert_eq!(left, Some(span.into_u64()), "spans are left in order");
    }
}

/// The values of a span or an event.
#[derive(Default)]
struct Values(Fields);

impl Visit for Values {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}
