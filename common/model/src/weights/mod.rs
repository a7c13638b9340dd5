//! Named tensors out of a Hugging Face folder: `model.safetensors`, or shards listed in `model.safetensors.index.json`.
//!
//! Tensors are read one by one, in file order, through one buffer: a folder larger than the machine's memory loads on a
//! GPU, and a file that shrinks meanwhile is an error rather than a signal. What is missing or of the wrong shape is
//! listed in one message.

mod error;
mod file;
mod mirror;
mod save;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use common::model_config::weight_files;
use tch::{Device, Kind, Tensor};

pub use error::WeightsError;
use file::TensorFile;
pub use mirror::Mirror;
pub use save::{SaveError, save};

/// Reads the tensors named in `expected`, each of the given shape, as `kind` on `device`. Others are passed over.
///
/// # Errors
/// No or unreadable files; names that are missing and shapes that differ; no memory.
pub fn load(
    folder: &Path,
    expected: &[(String, Vec<i64>)],
    kind: Kind,
    device: Device,
) -> Result<BTreeMap<String, Tensor>, WeightsError> {
    let files = open(folder)?;
    let places = locate(folder, &files, expected)?;
    let mut tensors = BTreeMap::new();
    let mut buffer = Vec::new();
    for (file, name) in places {
        let tensor = files[file].read(name, &mut buffer)?;
        let tensor = tensor.f_to_device(device).and_then(|tensor| tensor.f_to_kind(kind));
        let tensor = tensor.map_err(|source| WeightsError::Tensor { name: name.to_owned(), source })?;
        tensors.insert(name.to_owned(), tensor);
    }
    Ok(tensors)
}

/// Reads each named tensor of `folder` into the memory given for it, in that memory's type.
///
/// # Errors
/// As [`load`].
pub fn load_into(folder: &Path, memory: &[(String, Tensor)]) -> Result<(), WeightsError> {
    fill(folder, &open(folder)?, memory)
}

/// The same out of the one file `path`.
///
/// # Errors
/// As [`load`].
pub fn load_file_into(path: &Path, memory: &[(String, Tensor)]) -> Result<(), WeightsError> {
    fill(path, &[TensorFile::open(path)?], memory)
}

fn fill(place: &Path, files: &[TensorFile], memory: &[(String, Tensor)]) -> Result<(), WeightsError> {
    let expected: Vec<_> = memory.iter().map(|(name, tensor)| (name.clone(), tensor.size())).collect();
    let memory: HashMap<&str, &Tensor> = memory.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let mut buffer = Vec::new();
    for (file, name) in locate(place, files, &expected)? {
        let tensor = files[file].read(name, &mut buffer)?;
        let copied = memory[name].shallow_clone().f_copy_(&tensor);
        copied.map_err(|source| WeightsError::Tensor { name: name.to_owned(), source })?;
    }
    Ok(())
}

fn open(folder: &Path) -> Result<Vec<TensorFile>, WeightsError> {
    weight_files(folder)?.iter().map(|path| TensorFile::open(path)).collect()
}

/// Which file holds what, in reading order.
fn locate<'a>(
    folder: &Path,
    files: &[TensorFile],
    expected: &'a [(String, Vec<i64>)],
) -> Result<Vec<(usize, &'a str)>, WeightsError> {
    let (mut places, mut missing, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
    for (name, shape) in expected {
        let found = files.iter().enumerate().find_map(|(file, tensors)| Some((file, tensors.info(name)?)));
        match found {
            None => missing.push(name.clone()),
            Some((_, info)) if !info.shape.iter().map(|size| *size as i64).eq(shape.iter().copied()) => {
                wrong.push(format!("{name} {:?} instead of {shape:?}", info.shape));
            }
            Some((file, info)) => places.push((file, info.data_offsets.0, name.as_str())),
        }
    }
    if !missing.is_empty() || !wrong.is_empty() {
        return Err(WeightsError::Mismatch { folder: folder.into(), missing, wrong });
    }
    places.sort_unstable();
    Ok(places.into_iter().map(|(file, _, name)| (file, name)).collect())
}

#[cfg(test)]
mod tests {
    use common::model_config::WEIGHTS_FILE;

    use super::*;

    fn expected(entries: &[(&str, &[i64])]) -> Vec<(String, Vec<i64>)> {
        entries.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec())).collect()
    }

    fn write(path: &Path, tensors: &[(&str, Tensor)]) {
        Tensor::write_safetensors(tensors, path).unwrap();
    }

    fn load_as(
        folder: &Path,
        entries: &[(&str, &[i64])],
        kind: Kind,
    ) -> Result<BTreeMap<String, Tensor>, WeightsError> {
        load(folder, &expected(entries), kind, Device::Cpu)
    }

    #[test]
    fn single_and_sharded_folders_give_the_same_tensors() {
        let (a, b) = (Tensor::arange(6, (Kind::Float, Device::Cpu)).view([2, 3]), Tensor::from_slice(&[0.5f32, -1.5]));
        let folder = tempfile::tempdir().unwrap();
        write(
            &folder.path().join(WEIGHTS_FILE),
            &[("a", a.copy()), ("b", b.to_kind(Kind::BFloat16)), ("other", b.copy())],
        );
        let shards = tempfile::tempdir().unwrap();
        write(&shards.path().join("one.safetensors"), &[("b", b.copy())]);
        write(&shards.path().join("two.safetensors"), &[("a", a.copy())]);
        let index = r#"{"metadata": {}, "weight_map": {"a": "two.safetensors", "b": "one.safetensors"}}"#;
        std::fs::write(shards.path().join("model.safetensors.index.json"), index).unwrap();
        for folder in [folder.path(), shards.path()] {
            let tensors = load_as(folder, &[("a", &[2, 3]), ("b", &[2])], Kind::Float).unwrap();
            assert_eq!((&tensors["a"], &tensors["b"]), (&a, &b));
            assert_eq!(tensors.len(), 2);
        }
    }

    #[test]
    fn one_message_lists_what_is_missing_and_what_has_another_shape() {
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join(WEIGHTS_FILE), &[("a", Tensor::from_slice(&[1f32, 2.0]))]);
        let error = load_as(folder.path(), &[("a", &[3]), ("norm", &[1]), ("head", &[1])], Kind::Float).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("2 tensors are missing: norm, head"), "{message}");
        assert!(message.contains("1 has another shape: a [2] instead of [3]"), "{message}");
    }

    #[test]
    fn files_that_hold_no_weights_say_why() {
        let folder = tempfile::tempdir().unwrap();
        let message = load_as(folder.path(), &[], Kind::Float).unwrap_err().to_string();
        assert!(message.contains("neither model.safetensors nor model.safetensors.index.json"), "{message}");

        let path = folder.path().join(WEIGHTS_FILE);
        write(&path, &[("a", Tensor::from_slice(&[1f32, 2.0]))]);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 3]).unwrap();
        let message = load_as(folder.path(), &[("a", &[2])], Kind::Float).unwrap_err().to_string();
        assert!(message.contains("is cut short"), "{message}");
        std::fs::write(&path, b"<html>not found</html>").unwrap();
        let message = load_as(folder.path(), &[("a", &[2])], Kind::Float).unwrap_err().to_string();
        assert!(message.contains("not a safetensors file"), "{message}");

        write(&path, &[("a", Tensor::from_slice(&[1i64, 2]))]);
        let message = load_as(folder.path(), &[("a", &[2])], Kind::Float).unwrap_err().to_string();
        assert!(message.contains("a has type I64"), "{message}");
    }
}
