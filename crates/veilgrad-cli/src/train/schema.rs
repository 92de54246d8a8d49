//! The columns of a table, from their declaration.

use veilgrad_data::table::{Column, Kind, Schema, Target, TextFormat};
use veilgrad_nn::EmbeddedColumn;

use super::config::Declaration;

/// The number that a policy puts in place of a missing one.
pub(crate) fn missing_number(policy: &str, [low, high]: [f64; 2]) -> Option<f64> {
    match policy {
        "zero" => Some(0.0),
        "mean-of-bounds" => Some(0.5 * low + 0.5 * high),
        _ => None,
    }
}

/// The schema of the feature columns; callers add label and user.
pub(crate) fn schema(declaration: &Declaration) -> Schema {
    let columns = declaration.columns.iter().map(|column| {
        let kind = match (&column.categories, column.bounds.unwrap_or([0.0, 1.0])) {
            (Some(words), _) => {
                let missing = |word: &String| Some(word) == column.missing.as_ref();
                let (words, missing) = (words.clone(), words.iter().position(missing));
                match column.embedding {
                    Some(_) => Kind::Index { words, missing },
                    None => Kind::Category { words, missing },
                }
            }
            (None, [low, high]) => {
                let policy = column.missing.as_ref().or(declaration.missing.as_ref());
                let missing = policy.and_then(|policy| missing_number(policy, [low, high]));
                Kind::Number { low, high, missing }
            }
        };
        Column { name: column.name.clone(), kind }
    });
    let target = match declaration.label_bounds {
        Some([low, high]) => Target::Number { low, high },
        None => Target::Classes(declaration.classes.names()),
    };
    let text = TextFormat {
        delimiter: declaration.delimiter.and_then(|character| u8::try_from(character).ok()),
        header: declaration.header.clone(),
    };
    Schema { columns: columns.collect(), label: String::new(), target, user: None, text }
}

/// The columns of a table that are embedded, by their places in a row of inputs.
pub(crate) fn embedded(declaration: &Declaration) -> Vec<EmbeddedColumn> {
    let mut place = 0;
    let columns = declaration.columns.iter().filter_map(|declared| {
        let (column, entries) = (place, declared.categories.as_ref().map_or(1, Vec::len));
        place += if declared.embedding.is_some() { 1 } else { entries };
        declared.embedding.map(|dimension| EmbeddedColumn { column, entries, dimension })
    });
    columns.collect()
}
