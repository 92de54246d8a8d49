//! Charts as SVG.

use std::fmt::Write;

use crate::output::visible;

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 48.0;

/// How a value is placed on its axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    Linear,
    /// Powers of ten at equal distances; only for positive values.
    Log,
}

/// A line over two axes.
pub(crate) struct Line<'a> {
    /// The text for screen readers.
    pub(crate) title: &'a str,
    pub(crate) x: &'a str,
    pub(crate) y: &'a str,
    pub(crate) y_scale: Scale,
    pub(crate) points: &'a [(f64, f64)],
    /// A dashed line to compare with, if there is one, and its name.
    pub(crate) beside: Option<(&'a str, &'a [(f64, f64)])>,
}

impl Line<'_> {
    pub(crate) fn svg(&self) -> String {
        let to_scale = |point: &(f64, f64)| match self.y_scale {
            Scale::Linear => Some(*point),
            Scale::Log => (point.1 > 0.0).then(|| (point.0, point.1.log10())),
        };
        let finite = |point: &(f64, f64)| point.0.is_finite() && point.1.is_finite();
        let line = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
            points.iter().filter_map(to_scale).filter(finite).collect()
        };
        let points = line(self.points);
        let beside = self.beside.map(|(name, points)| (name, line(points)));
        let all: Vec<(f64, f64)> =
            points.iter().chain(beside.iter().flat_map(|(_, points)| points)).copied().collect();
        if all.is_empty() {
            return String::new();
        }
        let (x_ticks, y_ticks) = (
            ticks(all.iter().map(|point| point.0), Scale::Linear),
            ticks(all.iter().map(|point| point.1), self.y_scale),
        );
        let span = |ticks: &[f64]| match (ticks.first(), ticks.last()) {
            (Some(low), Some(high)) if low < high => (*low, *high),
            (Some(low), _) => (low - 0.5, low + 0.5),
            _ => (0.0, 1.0),
        };
        let ((x_low, x_high), (y_low, y_high)) = (span(&x_ticks), span(&y_ticks));
        let x = |value: f64| LEFT + (value - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| {
            HEIGHT - BOTTOM - (value - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)
        };
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
            escape(self.title)
        );
        let (floor, end) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        // Writing to a string does not fail.
        for tick in &y_ticks {
            let (at, label) = (y(*tick), label(*tick, self.y_scale));
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{end}\" y2=\"{at:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                LEFT - 8.0,
                at + 4.0
            );
        }
        for tick in &x_ticks {
            let (at, label) = (x(*tick), label(*tick, Scale::Linear));
            let _ = writeln!(
                svg,
                "<line class=\"tick\" x1=\"{at:.1}\" y1=\"{floor}\" x2=\"{at:.1}\" y2=\"{:.1}\"/>\
                 <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
                floor + 5.0,
                floor + 19.0
            );
        }
        let _ = writeln!(
            svg,
            "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{floor}\" x2=\"{end}\" y2=\"{floor}\"/>\
             <text class=\"name\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text class=\"name\" transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            (LEFT + end) / 2.0,
            HEIGHT - 8.0,
            escape(self.x),
            (TOP + floor) / 2.0,
            escape(self.y)
        );
        let path = |points: &[(f64, f64)]| {
            let mut path = String::new();
            for (index, (px, py)) in points.iter().enumerate() {
                let command = if index == 0 { 'M' } else { 'L' };
                let _ = write!(path, "{command}{:.1} {:.1}", x(*px), y(*py));
            }
            path
        };
        if let Some((name, points)) = &beside {
            let _ = writeln!(svg, "<path class=\"beside\" d=\"{}\"/>", path(points));
            // In the middle, where the lines are far apart.
            if let (Some((ax, ay)), Some((bx, by))) = (points.first(), points.last()) {
                let _ = writeln!(
                    svg,
                    "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                    x(0.5 * (ax + bx)) + 10.0,
                    y(0.5 * (ay + by)) + 18.0,
                    escape(name)
                );
            }
        }
        let _ = writeln!(svg, "<path class=\"line\" d=\"{}\"/>\n</svg>", path(&points));
        svg
    }
}

const CAPTION: f64 = 30.0;

/// The style of pictures; pages have their own style sheet.
const PICTURE_STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#57606a}.name,.caption{fill:#1b1f24}\
    .caption{font-weight:600}.paper{fill:#fff}.grid{stroke:#d0d7de}.tick,.axis{stroke:#57606a}\
    .line{fill:none;stroke:#1f5fbf;stroke-width:2.5}.beside{fill:none;stroke:#57606a;stroke-dasharray:5 5}\
    .cell{fill:#1f5fbf}.on{fill:#fff}.whisker{stroke:#1b1f24;stroke-width:1.5}";

/// Charts side by side in one SVG file, each below its caption.
pub(crate) fn picture(charts: &[(String, String)]) -> String {
    let (width, height) = (WIDTH * charts.len() as f64, CAPTION + HEIGHT);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\">\n\
         <style>{PICTURE_STYLE}</style>\n<rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>\n"
    );
    for (place, (caption, chart)) in charts.iter().enumerate() {
        let left = WIDTH * place as f64;
        // Writing to a string does not fail.
        let _ = writeln!(
            svg,
            "<text class=\"caption\" x=\"{:.1}\" y=\"20\">{}</text>",
            left + LEFT,
            escape(caption)
        );
        let placed =
            format!("<svg x=\"{left}\" y=\"{CAPTION}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" ");
        svg.push_str(&chart.replacen("<svg ", &placed, 1));
    }
    svg.push_str("</svg>\n");
    svg
}

/// Horizontal bars from zero: name, size and label of each.
pub(crate) fn bars(title: &str, bars: &[(String, f64, String)]) -> String {
    let bar =
        |(name, value, text): &(String, f64, String)| (name.clone(), *value, 0.0, text.clone());
    bars_with_errors(title, &bars.iter().map(bar).collect::<Vec<_>>())
}

/// Horizontal bars from zero with error bars: name, size, error and label of each.
pub(crate) fn bars_with_errors(title: &str, bars: &[(String, f64, f64, String)]) -> String {
    const ROW: f64 = 34.0;
    const NAME: f64 = 100.0;
    let most = bars.iter().map(|(_, value, error, _)| value + error.max(0.0)).fold(0.0, f64::max);
    if !(most > 0.0 && most.is_finite()) {
        return String::new();
    }
    let height = ROW * bars.len() as f64;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">\n",
        escape(title)
    );
    for (row, (name, value, error, text)) in bars.iter().enumerate() {
        let top = ROW * row as f64;
        let length = |value: f64| (value / most).max(0.0) * (WIDTH - NAME - 160.0);
        let (width, end) = (length(*value), length(value + error.max(0.0)));
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{NAME}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"18\" rx=\"2\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            NAME - 8.0,
            top + 22.0,
            escape(&short(name)),
            top + 8.0,
            NAME + end + 8.0,
            top + 22.0,
            escape(text)
        );
        if *error > 0.0 {
            let (left, right) = (NAME + length(value - error), NAME + end);
            let (y, above, below) = (top + 17.0, top + 12.0, top + 22.0);
            let _ = writeln!(
                svg,
                "<path class=\"whisker\" d=\"M{left:.1} {y}H{right:.1}M{left:.1} {above}V{below}M{right:.1} {above}V{below}\"/>"
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// A matrix of counts as coloured cells: the darker, the larger its share of the row.
pub(crate) fn matrix(title: &str, names: &[String], counts: &[Vec<u64>]) -> String {
    /// With more columns, counts and names would overlap.
    const MOST_LABELLED: usize = 12;
    let side = names.len().max(1) as f64;
    let (width, height) = ((WIDTH - 2.0 * LEFT) / side, (HEIGHT - TOP - BOTTOM) / side);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
        escape(title)
    );
    let labelled = names.len() <= MOST_LABELLED;
    let left = 1.5 * LEFT;
    // Writing to a string does not fail.
    for (row, (name, cells)) in names.iter().zip(counts).enumerate() {
        let (top, all) = (TOP + height * row as f64, cells.iter().sum::<u64>().max(1));
        let middle = top + 0.5 * height + 4.0;
        if labelled {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>",
                left - 8.0,
                escape(&shortened(name, 10))
            );
        }
        for (column, count) in cells.iter().enumerate() {
            let (start, share) = (left + width * column as f64, *count as f64 / all as f64);
            let _ = write!(
                svg,
                "<rect class=\"cell\" x=\"{start:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
                 fill-opacity=\"{:.3}\"/>",
                0.06 + 0.94 * share
            );
            if labelled {
                let class = if share > 0.5 { "on" } else { "name" };
                let _ = write!(
                    svg,
                    "<text class=\"{class}\" x=\"{:.1}\" y=\"{middle:.1}\" text-anchor=\"middle\">{count}</text>",
                    start + 0.5 * width
                );
            }
        }
        svg.push('\n');
    }
    let floor = HEIGHT - BOTTOM;
    for (column, name) in names.iter().enumerate().filter(|_| labelled) {
        let most = ((width / 8.0) as usize).clamp(2, 12);
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            left + width * (column as f64 + 0.5),
            floor + 17.0,
            escape(&shortened(name, most))
        );
    }
    let _ = writeln!(
        svg,
        "<text class=\"name\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">prediction</text>\
         <text class=\"name\" transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">class</text>\n</svg>",
        left + 0.5 * width * side,
        HEIGHT - 8.0,
        0.5 * (TOP + floor)
    );
    svg
}

/// A name, truncated to fit next to a bar.
fn short(name: &str) -> String {
    shortened(name, 13)
}

/// The first characters of a name, at most `most`.
fn shortened(name: &str, most: usize) -> String {
    match name.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// Tick positions at round numbers that enclose all values: usually at most eight.
fn ticks(values: impl Iterator<Item = f64>, scale: Scale) -> Vec<f64> {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values {
        low = low.min(value);
        high = high.max(value);
    }
    // A linear axis has its zero, so that lengths compare as values do; a logarithmic one has none.
    if scale == Scale::Linear {
        (low, high) = (low.min(0.0), high.max(0.0));
    }
    let span = if high > low { high - low } else { 1.0 };
    let rough = span / 6.0;
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let mut step = steps.into_iter().find(|step| *step >= rough).unwrap_or(10.0 * power);
    if scale == Scale::Log {
        step = step.ceil();
    }
    let (first, last) = ((low / step).floor(), (high / step).ceil());
    (0..=((last - first) as u32).min(12)).map(|index| (first + f64::from(index)) * step).collect()
}

fn label(value: f64, scale: Scale) -> String {
    match scale {
        Scale::Log => format!("1e{value:.0}"),
        Scale::Linear if value == 0.0 => "0".to_owned(),
        Scale::Linear if value.abs() >= 1e6 => format!("{value:.0e}"),
        Scale::Linear => {
            let text = format!("{value:.6}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    }
}

/// Text escaped for HTML, also inside quoted attributes.
pub(crate) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in visible(text).chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_enclose_everything() {
        for (low, high) in [(0.0, 1.0), (0.3, 2.38), (-7.2, -1.1), (3.0, 3.0), (1.0, 14_040.0)] {
            let found = ticks([low, high].into_iter(), Scale::Linear);
            assert!(found[0] <= low && *found.last().unwrap() >= high, "{found:?}");
            // Zero is on the axis, and begins it where no value is negative.
            assert!(found.contains(&0.0) && (low < 0.0 || found[0] == 0.0), "{found:?}");
            assert!((1..=13).contains(&found.len()), "{found:?}");
        }
        assert_eq!(ticks([0.0, 2.4].into_iter(), Scale::Linear).len(), 6);
    }

    #[test]
    fn names_cannot_leave_their_text() {
        let svg = bars("a\"b", &[("<script>".to_owned(), 1.0, "'x'".to_owned())]);
        assert!(!svg.contains("<script>") && svg.contains("a&quot;b"), "{svg}");
        let long = bars("t", &[("äöü".repeat(9), 1.0, String::new())]);
        assert!(long.contains(">äöüäöüäöüäöüä…<"), "{long}");
    }

    #[test]
    fn a_matrix_shows_every_count_and_shades_shares_of_rows() {
        let names = ["<no>".to_owned(), "yes".to_owned()];
        let svg = matrix("t", &names, &[vec![3, 1], vec![0, 7]]);
        for shown in [">3<", ">1<", ">0<", ">7<", "&lt;no&gt;", "0.765", "1.000"] {
            assert!(svg.contains(shown), "{shown}: {svg}");
        }
        assert!(!svg.contains("<no>"));
        // Too many to label.
        let many: Vec<String> = (0..20).map(|i| i.to_string()).collect();
        assert!(!matrix("t", &many, &vec![vec![5; 20]; 20]).contains(">5<"));
    }

    #[test]
    fn error_bars_reach_as_far_as_the_error_and_not_below_zero() {
        let bar =
            |value, error| bars_with_errors("t", &[("a".to_owned(), value, error, String::new())]);
        // The longest bar with its error has 220 units, from 100.
        assert!(bar(8.0, 3.0).contains("M200.0 17H320.0"), "{}", bar(8.0, 3.0));
        assert!(bar(1.0, 3.0).contains("M100.0 17H320.0"), "{}", bar(1.0, 3.0));
        assert!(!bars("t", &[("a".to_owned(), 1.0, String::new())]).contains("whisker"));
    }

    #[test]
    fn nothing_to_draw_is_no_picture() {
        assert_eq!(bars("t", &[]), "");
        let points = [(0.0, f64::NAN)];
        let line = Line {
            title: "t",
            x: "x",
            y: "y",
            y_scale: Scale::Linear,
            points: &points,
            beside: None,
        };
        assert_eq!(line.svg(), "");
    }
}
