//! The model file that a run starts from, and the parameters that it leaves as they are.

use veilgrad_nn::Model;

use super::config;
use super::model_file;
use crate::error::Error;
use crate::hash::sha256;
use crate::report::Start;

/// Loads the parameters of `[model] init`, and freezes those that are not to be trained. Fills in the hash of the file.
///
/// # Guarantee
/// The file is taken for public. If it says that it was trained privately, the result names the ledger of that training, so
/// that statements can say what they do not cover.
pub(crate) fn apply(config: &mut config::Model, model: &mut Model) -> Result<Option<Start>, Error> {
    let start = match config.init.clone() {
        None => None,
        Some(path) => {
            let name = path.display().to_string();
            let bytes =
                std::fs::read(&path).map_err(|cause| Error::File { path: name.clone(), cause })?;
            let sha256 = sha256(&bytes);
            if let Some(declared) = config.init_sha256.replace(sha256.clone())
                && declared != sha256
            {
                return Err(Error::Usage(format!(
                    "[model] init_sha256 is {declared}, and {name} has {sha256}"
                )));
            }
            let origin = model_file::origin(&name, &bytes)?;
            let refused = origin.as_ref().and_then(|origin| match origin {
                origin if origin.insecure => Some("comes from a run that is stamped INSECURE"),
                origin if origin.whitened => {
                    Some("is for inputs that were whitened by [privacy.precondition]")
                }
                _ => None,
            });
            if let Some(why) = refused {
                return Err(Error::Usage(format!("[model] init: {name} {why}")));
            }
            let data_error = |cause: String| Error::Data { path: name.clone(), cause };
            model
                .load_safetensors_except(&bytes, &config.fresh)
                .map_err(|error| data_error(error.to_string()))?;
            Some(Start { sha256, trained: origin.map(|origin| origin.ledger) })
        }
    };
    for pattern in &config.frozen {
        let wrong = |error| Error::Usage(format!("[model] frozen: {error}"));
        model.freeze(pattern).map_err(wrong)?;
    }
    Ok(start)
}
