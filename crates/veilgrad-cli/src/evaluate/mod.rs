//! `veilgrad evaluate`: exact metrics of a model on public examples. Nothing here is private.

mod evaluation;
mod metrics;
mod page;
mod regression;

use crate::argument::{Common, Evaluate};
use crate::error::Error;
use crate::output::{print_answer, write_file};
use crate::report::chart::picture;
use crate::train::data;
use crate::train::model_file::{self, ModelFile};
use evaluation::Evaluation;
use regression::Regression;

pub(crate) fn run(arguments: &Evaluate, common: &Common) -> Result<(), Error> {
    let ModelFile { model, whitening, declaration, .. } = model_file::read(&arguments.model)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (labels, label) = (arguments.labels.as_deref(), arguments.label.as_deref());
    let examples = data::labelled(&declaration, &arguments.data, labels, label)?;
    let outputs = examples.outputs(&declaration, &model, whitening.as_ref(), threads)?;
    let nothing = || {
        let path = arguments.data.display().to_string();
        let cause = "has no example with a declared label and a prediction".to_owned();
        Error::Data { path, cause }
    };
    if let Some(bounds) = declaration.label_bounds {
        let found = Regression::new(&outputs, examples.numbers(), bounds).ok_or_else(nothing)?;
        if let Some(path) = &arguments.html {
            write_file(path, page::number_page(&found).as_bytes())?;
        }
        if let Some(path) = &arguments.svg {
            write_file(path, picture(&page::number_charts(&found)).as_bytes())?;
        }
        return print_answer(common.json, &found.document(), &found.text());
    }
    let classes = declaration.classes.names();
    let evaluation = Evaluation::new(classes, &outputs, examples.labels()).ok_or_else(nothing)?;
    if let Some(path) = &arguments.html {
        write_file(path, page::page(&evaluation).as_bytes())?;
    }
    if let Some(path) = &arguments.svg {
        write_file(path, picture(&page::charts(&evaluation)).as_bytes())?;
    }
    print_answer(common.json, &evaluation.document(), &evaluation.text())
}
