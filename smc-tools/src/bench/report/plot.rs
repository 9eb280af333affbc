//! Plots as SVG, drawn here so that a page needs nothing from elsewhere.

use std::fmt::Write as _;

/// Lines over two axes.
#[derive(Clone, Debug)]
pub(super) struct Plot {
    pub(super) title: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) lines: Vec<Line>,
}

/// What is along an axis, and how far.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) label: &'static str,
    pub(super) scale: Scale,
    /// Marks by value, if they are known beforehand.
    pub(super) marks: Option<Vec<(f64, String)>>,
    pub(super) show: fn(f64) -> String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// From zero.
    Linear,
    Log,
}

/// Points in ascending order of x.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) color: &'static str,
    pub(super) points: Vec<(f64, f64)>,
    /// Whether points are marked, because there is nothing between them.
    pub(super) has_dots: bool,
}

impl Plot {
    /// `None` if there is nothing to see.
    pub(super) fn svg(&self) -> Option<String> {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let x = Span::of(points().map(|point| point.0), &self.x)?;
        let y = Span::of(points().map(|point| point.1), &self.y)?;
        let at = |point: &(f64, f64)| {
            (
                LEFT + x.place(point.0) * (WIDTH - LEFT - RIGHT),
                HEIGHT - BOTTOM - y.place(point.1) * (HEIGHT - TOP - BOTTOM),
            )
        };
        let mut svg = Svg::new(&self.title);
        for (value, text) in x.marks(&self.x) {
            let (place, _) = at(&(value, y.low));
            svg.rule((place, TOP), (place, HEIGHT - BOTTOM));
            svg.text((place, HEIGHT - BOTTOM + 18.0), "middle", &text);
        }
        for (value, text) in y.marks(&self.y) {
            let (_, place) = at(&(x.low, value));
            svg.rule((LEFT, place), (WIDTH - RIGHT, place));
            svg.text((LEFT - 8.0, place + 4.0), "end", &text);
        }
        svg.text(
            ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 8.0),
            "middle",
            self.x.label,
        );
        svg.text((LEFT, TOP - 10.0), "start", self.y.label);
        for (index, line) in self.lines.iter().enumerate() {
            let points: Vec<_> = line.points.iter().map(at).collect();
            svg.line(&points, line);
            svg.key(index as f64, line);
        }
        Some(svg.end())
    }
}

/// The part of an axis that is shown.
struct Span {
    low: f64,
    high: f64,
    scale: Scale,
}

impl Span {
    fn of(values: impl Iterator<Item = f64>, axis: &Axis) -> Option<Self> {
        let fits = |value: &f64| value.is_finite() && (axis.scale == Scale::Linear || *value > 0.0);
        let (low, high) = values.filter(fits).fold(None, |span, value| {
            let (low, high) = span.unwrap_or((value, value));
            Some((f64::min(low, value), f64::max(high, value)))
        })?;
        Some(match axis.scale {
            Scale::Linear => Self {
                low: 0.0,
                high: if high > 0.0 { high * 1.05 } else { 1.0 },
                scale: Scale::Linear,
            },
            Scale::Log => Self {
                low: low / 1.2,
                high: high * 1.2,
                scale: Scale::Log,
            },
        })
    }

    /// From 0 to 1.
    fn place(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        }
    }

    fn marks(&self, axis: &Axis) -> Vec<(f64, String)> {
        let marks = match &axis.marks {
            Some(marks) => marks.clone(),
            None => self
                .round_values()
                .into_iter()
                .map(|value| (value, (axis.show)(value)))
                .collect(),
        };
        let (low, high) = (self.low * 0.999, self.high * 1.001);
        let is_inside = |mark: &(f64, String)| (low..=high).contains(&mark.0);
        marks.into_iter().filter(is_inside).collect()
    }

    fn round_values(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let step = round_step(self.high / 5.0);
                (0..=10).map(|count| f64::from(count) * step).collect()
            }
            Scale::Log => {
                let decades = (self.high / self.low).log10();
                let steps: &[f64] = if decades > 3.0 {
                    &[1.0]
                } else {
                    &[1.0, 2.0, 5.0]
                };
                let first = self.low.log10().floor() as i32;
                let decades = (first..=first + decades.ceil() as i32 + 1).map(|e| 10_f64.powi(e));
                decades
                    .flat_map(|decade| steps.iter().map(move |step| step * decade))
                    .collect()
            }
        }
    }
}

/// The next of 1, 2, 5, 10 and so on.
fn round_step(at_least: f64) -> f64 {
    let decade = 10_f64.powf(at_least.log10().floor());
    let steps = [1.0, 2.0, 5.0];
    let step = steps
        .iter()
        .map(|step| step * decade)
        .find(|step| *step >= at_least);
    step.unwrap_or(decade * 10.0)
}

/// The text of a picture.
struct Svg(String);

impl Svg {
    fn new(title: &str) -> Self {
        let mut svg = Self(format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             xmlns=\"http://www.w3.org/2000/svg\">\n<title>{}</title>\n",
            escape(title)
        ));
        svg.add(format_args!(
            "<text x=\"{LEFT}\" y=\"20\" class=\"title\">{}</text>",
            escape(title)
        ));
        svg
    }

    fn rule(&mut self, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.add(format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"rule\"/>"
        ));
    }

    fn text(&mut self, at: (f64, f64), anchor: &str, text: &str) {
        self.add(format_args!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            at.0,
            at.1,
            escape(text)
        ));
    }

    fn line(&mut self, points: &[(f64, f64)], line: &Line) {
        let places: Vec<_> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        self.add(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>",
            places.join(" "),
            line.color
        ));
        if line.has_dots {
            for (x, y) in points {
                self.add(format_args!(
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{}\"/>",
                    line.color
                ));
            }
        }
    }

    fn key(&mut self, index: f64, line: &Line) {
        let (x, y) = (WIDTH - RIGHT + 16.0, TOP + 10.0 + index * 20.0);
        self.add(format_args!(
            "<rect x=\"{x}\" y=\"{:.1}\" width=\"14\" height=\"4\" fill=\"{}\"/>",
            y - 6.0,
            line.color
        ));
        self.text((x + 20.0, y), "start", &line.name);
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        let _infallible = writeln!(self.0, "{element}");
    }

    fn end(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}

/// Text for markup.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 140.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 50.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(scale: Scale, points: &[(f64, f64)]) -> Plot {
        let axis = Axis {
            label: "a<b",
            scale,
            marks: None,
            show: |value| value.to_string(),
        };
        Plot {
            title: "title".to_owned(),
            x: axis.clone(),
            y: axis,
            lines: vec![Line {
                name: "line".to_owned(),
                color: "#000",
                points: points.to_vec(),
                has_dots: true,
            }],
        }
    }

    #[test]
    fn all_points_lie_inside_the_picture() {
        for scale in [Scale::Linear, Scale::Log] {
            let points = [(1.0, 5.0), (10.0, 500.0), (1000.0, 20.0)];
            let svg = plot(scale, &points).svg().unwrap();
            let places = svg
                .split("points=\"")
                .nth(1)
                .unwrap()
                .split('"')
                .next()
                .unwrap();
            assert_eq!(places.split(' ').count(), 3);
            for place in places.split([' ', ',']) {
                assert!((0.0..WIDTH).contains(&place.parse().unwrap()), "{place}");
            }
            assert!(svg.contains("a&lt;b") && !svg.contains("NaN"));
        }
    }

    #[test]
    fn without_points_there_is_no_picture() {
        assert!(plot(Scale::Log, &[]).svg().is_none());
        assert!(plot(Scale::Log, &[(0.0, 1.0)]).svg().is_none());
    }

    #[test]
    fn marks_are_round() {
        assert_eq!(round_step(0.7), 1.0);
        assert_eq!(round_step(30.0), 50.0);
        assert_eq!(round_step(501.0), 1000.0);
    }
}
