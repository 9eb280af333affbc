//! Plots as SVG, which a page takes in so that it needs nothing from elsewhere.

use std::ops::Range;

use anyhow::Result;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use super::super::figure::Figure;
use super::super::transport::Kind;

/// Lines over two axes.
#[derive(Clone, Debug)]
pub(super) struct Plot {
    pub(super) title: &'static str,
    pub(super) x: Axis,
    /// What is along the vertical axis: logarithmic, or from zero if more of it is better.
    pub(super) y: Figure,
    pub(super) y_label: &'static str,
    pub(super) lines: Vec<Line>,
    /// Whether points are marked, because there is nothing between them.
    pub(super) has_dots: bool,
}

/// What is along the horizontal axis, which is logarithmic.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) label: &'static str,
    pub(super) marks: Vec<f64>,
    pub(super) show: fn(&f64) -> String,
}

/// Points in ascending order of x.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) transport: Kind,
    pub(super) points: Vec<(f64, f64)>,
}

impl Plot {
    /// Empty if there is nothing to see.
    pub(super) fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        let points = self.lines.iter().flat_map(|line| &line.points);
        let (x, y): (Vec<_>, Vec<_>) = points.copied().unzip();
        let Some((x, y)) = span(&x).zip(span(&y)) else {
            return Ok(svg);
        };
        if self.y.is_higher_better() {
            self.draw(&mut svg, x, 0.0..y.end)?;
        } else {
            let marks = round_values(&y);
            self.draw(&mut svg, x, y.log_scale().with_key_points(marks))?;
        }
        Ok(svg)
    }

    fn draw(
        &self,
        svg: &mut String,
        x: Range<f64>,
        y: impl AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
    ) -> Result<()> {
        let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        let (picture, key) = area.split_horizontally(SIZE.0 - KEY);
        let marks = self.x.marks.iter().copied();
        let marks = marks.filter(|mark| x.contains(mark)).collect();
        let mut chart = ChartBuilder::on(&picture)
            .caption(self.title, (FONT, 20))
            .margin(8)
            .x_label_area_size(50)
            .y_label_area_size(84)
            .build_cartesian_2d(x.log_scale().with_key_points(marks), y)?;
        chart
            .configure_mesh()
            .bold_line_style(RGBColor(0xdd, 0xdd, 0xdd))
            .light_line_style(TRANSPARENT)
            .label_style((FONT, 15))
            .x_desc(self.x.label)
            .x_label_formatter(&self.x.show)
            .y_desc(self.y_label)
            .y_label_formatter(&|value| self.y.show(*value))
            .draw()?;
        for (line, at) in self.lines.iter().zip((30..).step_by(20)) {
            let style = color(line.transport).filled().stroke_width(2);
            let dot = if self.has_dots { 3 } else { 0 };
            chart.draw_series(LineSeries::new(line.points.clone(), style).point_size(dot))?;
            key.draw(&Rectangle::new([(8, at), (22, at + 4)], style))?;
            let name = line.transport.to_string();
            key.draw(&Text::new(name, (28, at - 5), (FONT, 15)))?;
        }
        area.present()?;
        Ok(())
    }
}

/// The positive values with some space around them.
fn span(values: &[f64]) -> Option<Range<f64>> {
    let positive = values.iter().filter(|value| **value > 0.0);
    positive
        .map(|value| value / 1.2..value * 1.2)
        .reduce(|one, other| one.start.min(other.start)..one.end.max(other.end))
}

/// The values of 1, 2, 5, 10 and so on that are in a range.
fn round_values(range: &Range<f64>) -> Vec<f64> {
    let [first, last] = [range.start, range.end].map(|end| end.log10().floor() as i32);
    let decades = (first..=last).map(|exponent| 10_f64.powi(exponent));
    let values = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|step| step * decade));
    values.filter(|value| range.contains(value)).collect()
}

/// Colours that colour-blind readers can distinguish.
fn color(kind: Kind) -> RGBColor {
    match kind {
        Kind::Loop => RGBColor(0x00, 0x72, 0xb2),
        Kind::LoopCopy => RGBColor(0x56, 0xb4, 0xe9),
        Kind::LoopInplace => RGBColor(0x00, 0x9e, 0x73),
        Kind::LoopObserved => RGBColor(0x00, 0x3f, 0x5c),
        Kind::LoopUnix => RGBColor(0x00, 0x80, 0x80),
        Kind::Ism | Kind::Rdma => BLACK,
        Kind::IsmCopy => RGBColor(0xf0, 0xe4, 0x42),
        Kind::Tcp => RGBColor(0xd5, 0x5e, 0x00),
        Kind::Unix => RGBColor(0xcc, 0x79, 0xa7),
        Kind::Fallback => RGBColor(0xe6, 0x9f, 0x00),
        #[cfg(feature = "peers")]
        Kind::Iceoryx2 => RGBColor(0x99, 0x99, 0x99),
        #[cfg(feature = "peers")]
        Kind::IpcChannel => RGBColor(0x66, 0x33, 0x99),
    }
}

const SIZE: (u32, u32) = (860, 380);
/// Space for the names of the lines, to the right of them.
const KEY: u32 = 140;
const FONT: &str = "system-ui, sans-serif";

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(y: Figure, points: &[(f64, f64)]) -> Plot {
        Plot {
            title: "title",
            x: Axis {
                label: "a<b",
                marks: vec![10.0, 1e9],
                show: |value| format!("mark {value}"),
            },
            y,
            y_label: y.heading(),
            lines: vec![Line {
                transport: Kind::Tcp,
                points: points.to_vec(),
            }],
            has_dots: true,
        }
    }

    #[test]
    fn all_points_lie_inside_the_picture() {
        for figure in [Figure::Bytes, Figure::P50] {
            let points = [(1.0, 5.0), (10.0, 500.0), (1000.0, 20.0)];
            let svg = plot(figure, &points).svg().unwrap();
            let line = svg.split("stroke=\"#D55E00\"").nth(1).unwrap();
            let places = line.split("points=\"").nth(1).unwrap();
            let places = places.split('"').next().unwrap().trim();
            assert_eq!(places.split(' ').count(), 3);
            for place in places.split([' ', ',']) {
                let place: u32 = place.parse().unwrap();
                assert!((0..SIZE.0).contains(&place), "{place}");
            }
            assert!(svg.contains("a&lt;b") && !svg.contains("NaN"), "{svg}");
            assert!(svg.contains("mark 10\n") && !svg.contains("mark 1000000000"));
        }
    }

    #[test]
    fn marks_are_round() {
        assert_eq!(round_values(&(0.7..30.0)), [1.0, 2.0, 5.0, 10.0, 20.0]);
    }

    #[test]
    fn without_points_there_is_no_picture() {
        assert_eq!(plot(Figure::P50, &[]).svg().unwrap(), "");
        assert_eq!(plot(Figure::P50, &[(0.0, 1.0)]).svg().unwrap(), "");
        assert_eq!(plot(Figure::P50, &[(1.0, 0.0)]).svg().unwrap(), "");
    }
}
