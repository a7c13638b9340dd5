//! What can be wrong with a folder of weights.

use std::path::{Path, PathBuf};

use common::model_config::ModelConfigError;

/// Each names the file or folder and what is wrong in it.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// A file cannot be read.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The files are not there, or nobody can tell which they are.
    #[error(transparent)]
    Files(#[from] ModelConfigError),
    /// The file is not what its name says.
    #[error("{path}: not a safetensors file: {reason}")]
    Header {
        /// The file.
        path: PathBuf,
        /// The parser's words.
        reason: String,
    },
    /// The header promises more than there is.
    #[error("{path}: is cut short: {found} bytes of {expected} (an unfinished download?)")]
    Short {
        /// The file.
        path: PathBuf,
        /// Bytes there are.
        found: u64,
        /// Bytes there should be.
        expected: u64,
    },
    /// A tensor of integers or of a quantised type.
    #[error("{path}: {name} has type {found}, supported: F32, BF16, F16")]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its type.
        found: String,
    },
    /// The folder holds another model than its config.json says.
    #[error("{folder}: the weights do not fit config.json: {}", mismatch(missing, wrong))]
    Mismatch {
        /// The folder.
        folder: PathBuf,
        /// Names that no file has.
        missing: Vec<String>,
        /// Names with found and expected shape.
        wrong: Vec<String>,
    },
    /// The device has too little memory, mostly.
    #[error("{folder}: no memory for the weights that config.json describes: {source}")]
    Memory {
        /// The folder.
        folder: PathBuf,
        /// libtorch's words.
        source: tch::TchError,
    },
    /// No memory for it, mostly.
    #[error("{name}: {source}")]
    Tensor {
        /// The tensor.
        name: String,
        /// libtorch's words.
        source: tch::TchError,
    },
}

impl WeightsError {
    pub(crate) fn memory(folder: &Path, source: tch::TchError) -> WeightsError {
        WeightsError::Memory { folder: folder.into(), source }
    }
}

/// Names listed in one message at most.
const LISTED: usize = 6;

fn mismatch(missing: &[String], wrong: &[String]) -> String {
    let parts = [
        (missing, if missing.len() == 1 { "tensor is missing" } else { "tensors are missing" }),
        (wrong, if wrong.len() == 1 { "has another shape" } else { "have another shape" }),
    ];
    let said = parts.iter().filter(|(names, _)| !names.is_empty()).map(|(names, words)| {
        let more = if names.len() > LISTED { ", ..." } else { "" };
        format!("{} {words}: {}{more}", names.len(), names[..names.len().min(LISTED)].join(", "))
    });
    said.collect::<Vec<_>>().join("; ")
}
