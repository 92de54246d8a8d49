//! Model files in the safetensors format: they hold no code, and every framework reads them.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Write;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensorError, SafeTensors};

use crate::error::ModelError;
use crate::model::Model;

/// The metadata key of our texts.
const TEXTS: &str = "veilgrad";

/// Errors of writing and reading models and checkpoints.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// Reading or writing failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The file is not a safetensors file that this library wrote.
    #[error("not a valid file: {0}")]
    Format(String),
    /// The file does not fit the model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The checkpoint belongs to another ledger.
    #[error(transparent)]
    Ledger(#[from] veilgrad_events::LedgerError),
}

impl From<SafeTensorError> for FileError {
    fn from(error: SafeTensorError) -> Self {
        Self::Format(error.to_string())
    }
}

/// Named arrays of f32, named bytes and named texts.
#[derive(Default)]
pub(crate) struct Arrays {
    pub(crate) arrays: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    pub(crate) bytes: BTreeMap<String, Vec<u8>>,
    pub(crate) texts: BTreeMap<String, String>,
}

impl Arrays {
    pub(crate) fn insert(&mut self, name: String, shape: &[usize], values: &[f32]) {
        self.arrays.insert(name, (shape.to_vec(), values.to_vec()));
    }

    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>, FileError> {
        // As one text: safetensors metadata has no fixed order, and equal contents should give equal bytes.
        let lines = self.texts.iter().map(|(name, value)| format!("{name}={value}\n"));
        self.with_text((!self.texts.is_empty()).then(|| lines.collect()))
    }

    pub(crate) fn with_text(&self, text: Option<String>) -> Result<Vec<u8>, FileError> {
        let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let arrays: Vec<(&String, &Vec<usize>, Vec<u8>)> =
            self.arrays.iter().map(|(name, (shape, v))| (name, shape, bytes(v))).collect();
        let floats = arrays.iter().map(|(name, shape, bytes)| {
            Ok((name.as_str(), TensorView::new(Dtype::F32, (*shape).clone(), bytes)?))
        });
        let bytes = self.bytes.iter().map(|(name, bytes)| {
            Ok((name.as_str(), TensorView::new(Dtype::U8, vec![bytes.len()], bytes)?))
        });
        let views = floats.chain(bytes).collect::<Result<Vec<_>, SafeTensorError>>()?;
        let texts = text.map(|text| HashMap::from([(TEXTS.to_owned(), text)]));
        Ok(safetensors::serialize(views, texts)?)
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, FileError> {
        let lines = Model::text_of(bytes)?;
        // Split at the last '=': names of groups may contain '=', values do not.
        let pairs = lines.iter().flat_map(|lines| lines.lines()).filter_map(|l| l.rsplit_once('='));
        let texts = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let mut found = Self { texts, ..Self::default() };
        for (name, view) in SafeTensors::deserialize(bytes)?.iter() {
            let (name, data) = (name.to_owned(), view.data());
            match view.dtype() {
                Dtype::F32 => {
                    let values = data.as_chunks::<4>().0.iter().map(|v| f32::from_le_bytes(*v));
                    found.arrays.insert(name, (view.shape().to_vec(), values.collect()));
                }
                Dtype::U8 => drop(found.bytes.insert(name, data.to_vec())),
                _ => return Err(FileError::Format(format!("'{name}' is not f32"))),
            }
        }
        Ok(found)
    }

    /// Loads parameters into a model, except those that match one of these names or globs, in the file or in the model.
    fn load_except(&mut self, fresh: &[String], model: &mut Model) -> Result<(), FileError> {
        let patterns: Vec<(&String, Option<glob::Pattern>)> =
            fresh.iter().map(|text| (text, glob::Pattern::new(text).ok())).collect();
        let is_fresh = |name: &str| {
            let matches = |(text, glob): &(&String, Option<glob::Pattern>)| {
                *text == name || glob.as_ref().is_some_and(|glob| glob.matches(name))
            };
            patterns.iter().any(matches)
        };
        for pattern in fresh {
            model.matching(pattern)?;
        }
        self.arrays.retain(|name, _| !is_fresh(name));
        for (name, shape, values) in model.parameters().filter(|(name, ..)| is_fresh(name)) {
            self.arrays.insert(name.to_owned(), (shape.to_vec(), values.to_vec()));
        }
        self.load("", model)
    }

    /// Loads the arrays named `prefix` + parameter into a model. Every parameter must be there, and no others.
    pub(crate) fn load(&self, prefix: &str, model: &mut Model) -> Result<(), FileError> {
        let loaded = self.arrays.iter().filter_map(|(n, a)| Some((n.strip_prefix(prefix)?, a)));
        let loaded: BTreeMap<&str, _> = loaded.collect();
        let network = model.network.clone();
        for parameter in &network.parameters {
            let fits = loaded.get(parameter.name.as_str()).filter(|(s, _)| *s == parameter.shape);
            let finite = fits.filter(|(_, values)| values.iter().all(|value| value.is_finite()));
            let (_, values) =
                finite.ok_or_else(|| ModelError::Parameter(parameter.name.clone()))?;
            if let Some(to) = model.parameter_mut(&parameter.name) {
                to.copy_from_slice(values);
            }
        }
        match loaded.keys().find(|name| network.parameters.iter().all(|p| p.name != **name)) {
            Some(unknown) => Err(ModelError::Parameter((*unknown).to_owned()).into()),
            None => Ok(()),
        }
    }
}

/// Writes a file atomically and durably, readable by its owner alone.
///
/// # Errors
/// When the file system fails; an older file at `path` is then unchanged.
pub fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    // A file or symlink left at this path must not decide the mode or the place of the new file.
    match std::fs::remove_file(&partial) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&partial)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    drop(file);
    if let Err(error) = written.and_then(|()| std::fs::rename(&partial, path)) {
        // Frees the space of the partial file: the disk may be full.
        let _ = std::fs::remove_file(&partial);
        return Err(error);
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

impl Model {
    /// The parameters as a safetensors file: names, shapes and values, and nothing else.
    ///
    /// # Errors
    /// None in practice: only the serialiser's signature can fail.
    pub fn to_safetensors(&self) -> Result<Vec<u8>, FileError> {
        self.to_arrays().to_bytes()
    }

    /// The parameters as a safetensors file, with a public text as metadata; [`text_of`](Self::text_of) reads it.
    ///
    /// # Errors
    /// As for [`to_safetensors`](Self::to_safetensors).
    pub fn to_safetensors_with(&self, text: String) -> Result<Vec<u8>, FileError> {
        self.to_arrays().with_text(Some(text))
    }

    /// The text in the metadata of a safetensors file, if there is one.
    ///
    /// # Errors
    /// When the bytes are not a safetensors file.
    pub fn text_of(bytes: &[u8]) -> Result<Option<String>, FileError> {
        let (_, metadata) = SafeTensors::read_metadata(bytes)?;
        Ok(metadata.metadata().as_ref().and_then(|texts| texts.get(TEXTS)).cloned())
    }

    pub(crate) fn to_arrays(&self) -> Arrays {
        let mut arrays = Arrays::default();
        for (name, shape, values) in self.parameters() {
            arrays.insert(name.to_owned(), shape, values);
        }
        arrays
    }

    /// Loads parameters from a safetensors file.
    ///
    /// # Errors
    /// When a parameter is missing, unknown, of another shape or not finite; the model may then hold
    /// some of them.
    pub fn load_safetensors(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        let arrays = Arrays::from_bytes(bytes)?;
        if let Some(name) = arrays.bytes.keys().next() {
            return Err(FileError::Format(format!("'{name}' is not f32")));
        }
        arrays.load("", self)
    }

    /// Loads parameters from a safetensors file, except those that match one of these names or globs: they keep their
    /// values, whatever the file has under their names.
    ///
    /// # Errors
    /// As for [`load_safetensors`](Self::load_safetensors), and when one of `fresh` matches no parameter.
    pub fn load_safetensors_except(
        &mut self,
        bytes: &[u8],
        fresh: &[String],
    ) -> Result<(), FileError> {
        let mut arrays = Arrays::from_bytes(bytes)?;
        if let Some(name) = arrays.bytes.keys().next() {
            return Err(FileError::Format(format!("'{name}' is not f32")));
        }
        arrays.load_except(fresh, self)
    }
}
