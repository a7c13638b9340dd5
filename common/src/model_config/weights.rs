//! Which files hold a model's weights.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::error::ModelConfigError;
use super::fields::read_json;

/// The single file's name, in target folders and in checkpoints.
pub const WEIGHTS_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

/// The files of weights in a Hugging Face folder: `model.safetensors`, or the shards that `model.safetensors.index.json`
/// lists. What is in them is not looked at.
///
/// # Errors
/// Neither is there; an index that cannot be read; a shard that is not there.
pub fn weight_files(folder: &Path) -> Result<Vec<PathBuf>, ModelConfigError> {
    let single = folder.join(WEIGHTS_FILE);
    if single.exists() {
        return Ok(vec![single]);
    }
    let index = folder.join(INDEX_FILE);
    if !index.exists() {
        return Err(ModelConfigError::NoWeights { folder: folder.into() });
    }
    let Index { weight_map } = read_json(&index)?;
    let names: BTreeSet<String> = weight_map.into_values().collect();
    names.iter().map(|name| there(folder.join(name))).collect()
}

fn there(path: PathBuf) -> Result<PathBuf, ModelConfigError> {
    match fs::metadata(&path) {
        Ok(_) => Ok(path),
        Err(source) => Err(ModelConfigError::File { path, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_lie_in_one_file_or_in_the_shards_of_an_index_and_all_have_to_be_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let refused = || weight_files(folder.path()).unwrap_err().to_string();
        assert!(refused().contains("neither model.safetensors nor model.safetensors.index.json"), "{}", refused());
        fs::write(path(INDEX_FILE), r#"{"weight_map": {"a": "two", "b": "one", "c": "two"}}"#).unwrap();
        fs::write(path("one"), "").unwrap();
        assert!(refused().contains("two: No such file"), "{}", refused());
        fs::write(path("two"), "").unwrap();
        assert_eq!(weight_files(folder.path()).unwrap(), [path("one"), path("two")]);
        fs::write(path(INDEX_FILE), "{").unwrap();
        assert!(refused().contains(INDEX_FILE), "{}", refused());
        fs::write(path(WEIGHTS_FILE), "").unwrap();
        assert_eq!(weight_files(folder.path()).unwrap(), [path(WEIGHTS_FILE)]);
    }
}
