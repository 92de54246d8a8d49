//! Rows that are not as declared.

use std::path::Path;

use veilgrad_data::table::{Defect, is_table};

use super::load::{array, data_error, labelled_schema};
use crate::error::Error;
use crate::train::config::Config;
use crate::train::inputs::declared_shape;

/// Rows of the training data that are not as declared, each with its file. **Private**: only for the owner of the data.
pub(crate) fn defects(config: &Config, mut found: impl FnMut(&Path, Defect)) -> Result<(), Error> {
    let data = &config.data;
    for (path, labels) in data.examples() {
        match is_table(path) {
            true => {
                let defects = labelled_schema(config).defects(path, |defect| found(path, defect));
                defects.map_err(data_error)?;
            }
            false => array_defects(config, path, labels.unwrap_or(path), &mut found)?,
        }
    }
    Ok(())
}

/// The defects of an array and of the file with its labels.
fn array_defects(
    config: &Config,
    path: &Path,
    file: &Path,
    found: &mut impl FnMut(&Path, Defect),
) -> Result<(), Error> {
    let data = &config.data;
    let (declaration, arrays) = (config.declaration(), data.arrays.as_ref());
    let size = declared_shape(&declaration)?.iter().product();
    let inputs = array(path, arrays.map(|arrays| arrays.inputs.as_str()), size)?;
    let what = match &declaration.missing {
        Some(policy) => format!("has a value that is not a number: counts as {policy}"),
        None => "has a value that is not a number: the example contributes zero".to_owned(),
    };
    for (row, values) in (1..).zip(inputs.rows()) {
        if values.iter().any(|value| value.is_nan()) {
            found(path, Defect { row, column: None, rule: what.clone() });
        }
    }
    let labels = array(file, arrays.map(|arrays| arrays.labels.as_str()), 1)?;
    let classes = data.classes.count() as f32;
    for (row, label) in (1..).zip(&labels.values) {
        if data.label_bounds.is_some() {
            if label.is_nan() {
                let rule = "is not a number: the example contributes zero".to_owned();
                found(file, Defect { row, column: None, rule });
            }
        } else if !((0.0..classes).contains(label) && label.fract() == 0.0) {
            let rule = "is none of the declared classes: the example contributes zero".to_owned();
            found(file, Defect { row, column: None, rule });
        }
    }
    Ok(())
}
