//! Checks of `[model]`.

use crate::problem::Problems;
use crate::train::config::{Features, Kind, Layer, Model};

/// More layers or wider ones are taken for mistakes.
const MOST_LAYERS: usize = 64;
pub(super) const WIDEST: usize = 1 << 24;

impl Model {
    pub(super) fn check(&self, problems: &mut Problems) {
        let filters = self.filters.iter().flatten();
        for (key, wrong) in [
            ("hidden", self.hidden.iter().any(|width| !(1..=WIDEST).contains(width))),
            ("hidden", self.hidden.len() > MOST_LAYERS),
            ("filters", filters.into_iter().any(|width| !(1..=WIDEST).contains(width))),
        ] {
            let text = || {
                format!(
                    "[model] {key}: widths must be 1 to {WIDEST}, of {MOST_LAYERS} layers at most"
                )
            };
            problems.refuse(wrong, &format!("model.{key}"), text());
        }
        if let Some(norm) = self.input_norm.filter(|norm| !(*norm > 0.0 && *norm <= 1e6)) {
            let text = format!("[model] input_norm {norm} is not in (0, 1e6]");
            problems.add("model.input_norm", text);
        }
        problems.relying_on(&["model.hidden"], |problems| {
            problems.refuse(
                self.kind == Kind::Mlp && self.hidden.is_empty(),
                "model.kind",
                "[model] kind = \"mlp\" needs hidden = [widths]",
            );
        });
        self.check_layers(problems);
        let without_hidden = matches!(self.kind, Kind::Linear | Kind::Layers);
        for (key, useless) in [
            ("layers", self.kind != Kind::Layers && !self.layers.is_empty()),
            ("hidden", without_hidden && !self.hidden.is_empty()),
            ("filters", self.kind != Kind::Cnn && self.filters.is_some()),
            ("batch_norm", self.kind != Kind::Mlp && self.batch_norm),
            ("features", self.kind == Kind::Cnn && self.features != Features::None),
        ] {
            let text = format!("[model] {key} is not for this kind of model");
            problems.relying_on(&["model.kind"], |problems| {
                problems.refuse(useless, &format!("model.{key}"), text);
            });
        }
    }

    /// The numbers of listed layers, one by one; whether layers fit each other is checked when the model is built.
    fn check_layers(&self, problems: &mut Problems) {
        if self.kind == Kind::Layers && !(1..=MOST_LAYERS).contains(&self.layers.len()) {
            let text =
                format!("[model] kind = \"layers\" needs 1 to {MOST_LAYERS} of [[model.layers]]");
            problems.relying_on(&["model.layers"], |problems| problems.add("model.kind", text));
        }
        for (number, layer) in (1..).zip(&self.layers) {
            let widths = match *layer {
                Layer::Linear { outputs } => vec![("outputs", outputs)],
                Layer::Conv { filters, kernel, stride, .. } => {
                    vec![("filters", filters), ("kernel", kernel), ("stride", stride)]
                }
                Layer::MaxPool { size, stride } | Layer::AveragePool { size, stride } => {
                    vec![("size", size), ("stride", stride.unwrap_or(1))]
                }
                Layer::GroupNorm { groups } => vec![("groups", groups)],
                _ => Vec::new(),
            };
            for (key, value) in widths.iter().filter(|(_, v)| !(1..=WIDEST).contains(v)) {
                let name = layer.name();
                let text = format!(
                    "[[model.layers]] {number} ({name}): {key} {value} is not in 1 to {WIDEST}"
                );
                problems.add(format!("model.layers[{number}].{key}"), text);
            }
        }
    }

    /// What the run starts from. It is no part of a declaration.
    pub(super) fn check_start(&self, problems: &mut Problems) {
        if let Some(hash) = &self.init_sha256
            && !(hash.len() == 64
                && hash.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')))
        {
            let text = format!("[model] init_sha256 {hash:?} is not 64 hexadecimal digits");
            problems.add("model.init_sha256", text);
        }
        problems.relying_on(&["model.init"], |problems| {
            problems.refuse(
                self.init.is_none() && self.init_sha256.is_some(),
                "model.init_sha256",
                "[model] init_sha256 is that of [model] init, which is missing",
            );
            problems.refuse(
                self.init.is_none() && !self.fresh.is_empty(),
                "model.fresh",
                "[model] fresh is for [model] init: without it, every parameter starts afresh",
            );
        });
    }
}
