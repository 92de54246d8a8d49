//! Evaluations as charts and as pages.

use std::fmt::Write;

use veilgrad_accounting::display::percent;

use super::evaluation::{Evaluation, NOTICE};
use super::regression::Regression;
use crate::report::chart::{Line, Scale, escape, matrix};
use crate::report::layout::{document, figure};

/// How many classes a confusion matrix is drawn for: more would be too small to read.
const MOST_DRAWN: usize = 30;

/// Captions and charts: reliability, ROC curve of two classes, confusion matrix.
pub(super) fn charts(evaluation: &Evaluation) -> Vec<(String, String)> {
    let metrics = &evaluation.metrics;
    let diagonal = [(0.0, 0.0), (1.0, 1.0)];
    let bins = metrics.calibration.bins.iter().filter(|bin| bin.count > 0);
    let points: Vec<(f64, f64)> = bins.map(|bin| (bin.probability, bin.fraction)).collect();
    let reliability = Line {
        title: "Reliability of probabilities",
        x: "predicted probability",
        y: "fraction that is right",
        y_scale: Scale::Linear,
        points: &points,
        beside: Some(("calibrated", &diagonal)),
    };
    let caption = format!("Reliability of {}", evaluation.calibrated());
    let mut charts = vec![(caption, reliability.svg())];
    if let Some(auc) = metrics.auc.filter(|_| !metrics.roc.is_empty()) {
        let curve = Line {
            title: "ROC curve",
            x: "false positive rate",
            y: "true positive rate",
            y_scale: Scale::Linear,
            points: &metrics.roc,
            beside: Some(("guessing", &diagonal)),
        };
        charts.push((format!("ROC curve, area {auc:.4}"), curve.svg()));
    }
    if evaluation.classes.len() <= MOST_DRAWN {
        let drawn = matrix("Confusion matrix", &evaluation.classes, &metrics.confusion);
        charts.push(("Confusion matrix: share of each class".to_owned(), drawn));
    }
    charts
}

/// Captions and charts of predicted numbers: predictions by label, and how large errors are.
pub(super) fn number_charts(regression: &Regression) -> Vec<(String, String)> {
    let groups = regression.groups();
    let ends = [groups.first(), groups.last()].into_iter().flatten();
    let diagonal: Vec<(f64, f64)> = ends.map(|(label, _)| (*label, *label)).collect();
    let by_label = Line {
        title: "Mean prediction of examples with similar labels",
        x: "label",
        y: "prediction",
        y_scale: Scale::Linear,
        points: &groups,
        beside: Some(("exact", &diagonal)),
    };
    let errors = Line {
        title: "Share of examples with an absolute error of at most a value",
        x: "absolute error",
        y: "share of examples",
        y_scale: Scale::Linear,
        points: &regression.error_curve(),
        beside: None,
    };
    vec![
        ("Mean prediction by label, in tenths of the examples".to_owned(), by_label.svg()),
        ("How many examples have a small error".to_owned(), errors.svg()),
    ]
}

/// A self-contained page of predicted numbers.
pub(super) fn number_page(regression: &Regression) -> String {
    let body = beginning(&regression.figures(), &number_charts(regression));
    document("Evaluation", &(body + "</div>\n"))
}

/// The beginning of a page: what the numbers may be used for, figures, and charts.
fn beginning(figures: &[(&str, String)], charts: &[(String, String)]) -> String {
    // Writing to a string does not fail.
    let mut body = format!("<h1>Evaluation</h1>\n<p class=\"warning\">{}</p>\n", escape(NOTICE));
    body.push_str("<div class=\"numbers\">\n");
    for (name, value) in figures {
        // The number, and what it is about.
        let (number, about) = value.split_once(" (").unwrap_or((value, ""));
        let about = if about.is_empty() { String::new() } else { format!(" ({about}") };
        let (number, about) = (escape(number), escape(&about));
        let _ = writeln!(
            body,
            "<div class=\"number\"><b>{number}</b><span>{}{about}</span></div>",
            escape(name)
        );
    }
    body.push_str("</div>\n<h2>Charts</h2>\n<div class=\"charts\">\n");
    for (caption, svg) in charts {
        figure(&mut body, caption, svg);
    }
    body
}

/// A self-contained page of predicted classes.
pub(super) fn page(evaluation: &Evaluation) -> String {
    let mut body = beginning(&evaluation.figures(), &charts(evaluation));
    body.push_str(
        "</div>\n<h2>Classes</h2>\n<div class=\"scroll\"><table><thead><tr><th>class</th>\
         <th class=\"n\">precision</th><th class=\"n\">recall</th><th class=\"n\">F1</th>\
         <th class=\"n\">examples</th></tr></thead>\n",
    );
    for (name, class) in evaluation.classes.iter().zip(&evaluation.metrics.classes) {
        let _ = writeln!(
            body,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td></tr>",
            escape(name),
            percent(class.precision),
            percent(class.recall),
            percent(class.f1),
            class.support
        );
    }
    body.push_str(
        "</table></div>\n<h2>Confusion matrix</h2>\n<p>Rows are classes, columns are predictions.</p>\n\
         <div class=\"scroll\"><table><thead><tr><th></th>",
    );
    for name in &evaluation.classes {
        let _ = write!(body, "<th class=\"n\">{}</th>", escape(name));
    }
    body.push_str("</tr></thead>\n");
    for (name, row) in evaluation.classes.iter().zip(&evaluation.metrics.confusion) {
        let _ = write!(body, "<tr><th scope=\"row\">{}</th>", escape(name));
        for count in row {
            let _ = write!(body, "<td class=\"n\">{count}</td>");
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</table></div>\n");
    document("Evaluation", &body)
}
