//! Checks of `[model]`.

use super::refuse::refuse;
use crate::train::config::{Features, Kind, Layer, Model};

/// More layers or wider ones are taken for mistakes.
const MOST_LAYERS: usize = 64;
pub(super) const WIDEST: usize = 1 << 24;

impl Model {
    pub(super) fn check(&self) -> Result<(), String> {
        let widths = || self.hidden.iter().chain(self.filters.iter().flatten());
        if self.hidden.len() > MOST_LAYERS || widths().any(|width| !(1..=WIDEST).contains(width)) {
            return Err(format!(
                "[model] widths must be 1 to {WIDEST}, of {MOST_LAYERS} layers at most"
            ));
        }
        if let Some(norm) = self.input_norm.filter(|norm| !(*norm > 0.0 && *norm <= 1e6)) {
            return Err(format!("[model] input_norm {norm} is not in (0, 1e6]"));
        }
        if self.kind == Kind::Mlp && self.hidden.is_empty() {
            return Err("[model] kind = \"mlp\" needs hidden = [widths]".to_owned());
        }
        self.check_layers()?;
        let without_hidden = matches!(self.kind, Kind::Linear | Kind::Layers);
        let useless = [
            ("layers", self.kind != Kind::Layers && !self.layers.is_empty()),
            ("hidden", without_hidden && !self.hidden.is_empty()),
            ("filters", self.kind != Kind::Cnn && self.filters.is_some()),
            ("batch_norm", self.kind != Kind::Mlp && self.batch_norm),
            ("features", self.kind == Kind::Cnn && self.features != Features::None),
        ];
        match useless.iter().find(|(_, useless)| *useless) {
            Some((key, _)) => Err(format!("[model] {key} is not for this kind of model")),
            None => Ok(()),
        }
    }
    /// The numbers of listed layers, one by one; whether layers fit each other is checked when the model is built.
    fn check_layers(&self) -> Result<(), String> {
        if self.kind == Kind::Layers && !(1..=MOST_LAYERS).contains(&self.layers.len()) {
            return Err(format!(
                "[model] kind = \"layers\" needs 1 to {MOST_LAYERS} of [[model.layers]]"
            ));
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
            if let Some((key, value)) = widths.iter().find(|(_, v)| !(1..=WIDEST).contains(v)) {
                let name = layer.name();
                return Err(format!(
                    "[[model.layers]] {number} ({name}): {key} {value} is not in 1 to {WIDEST}"
                ));
            }
        }
        Ok(())
    }

    /// What the run starts from. It is no part of a declaration.
    pub(super) fn check_start(&self) -> Result<(), String> {
        if let Some(hash) = &self.init_sha256
            && !(hash.len() == 64
                && hash.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')))
        {
            return Err(format!("[model] init_sha256 {hash:?} is not 64 hexadecimal digits"));
        }
        refuse([
            (
                self.init.is_none() && self.init_sha256.is_some(),
                "[model] init_sha256 is that of [model] init, which is missing",
            ),
            (
                self.init.is_none() && !self.fresh.is_empty(),
                "[model] fresh is for [model] init: without it, every parameter starts afresh",
            ),
        ])
    }
}
