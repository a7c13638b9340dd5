//! Writing one safetensors file. Tensors are copied to the host one at a time, as they are written.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensorError, View};
use tch::{Kind, Tensor};

/// A file of weights that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}: {source}")]
pub struct SaveError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub source: SafeTensorError,
}

/// Writes named tensors as `kind` into the file `path`, which transformers takes for its own.
///
/// # Errors
/// The file cannot be written.
pub fn save(path: &Path, tensors: &[(String, Tensor)], kind: Kind) -> Result<(), SaveError> {
    let views = tensors.iter().map(|(name, tensor)| (name, OnHost::new(tensor, kind)));
    safetensors::serialize_to_file(views, Some(metadata()), path)
        .map_err(|source| SaveError { path: path.into(), source })
}

/// Of every file: without this entry transformers refuses it.
pub(super) fn metadata() -> HashMap<String, String> {
    HashMap::from([("format".to_owned(), "pt".to_owned())])
}

struct OnHost<'a> {
    tensor: &'a Tensor,
    kind: Kind,
    shape: Vec<usize>,
}

impl OnHost<'_> {
    fn new(tensor: &Tensor, kind: Kind) -> OnHost<'_> {
        OnHost { tensor, kind, shape: tensor.size().iter().map(|size| *size as usize).collect() }
    }
}

impl View for OnHost<'_> {
    fn dtype(&self) -> Dtype {
        match self.kind {
            Kind::Float => Dtype::F32,
            Kind::BFloat16 => Dtype::BF16,
            other => unreachable!("weights are float32 or bfloat16, not {other:?}"),
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let host = self.tensor.detach().to_kind(self.kind).contiguous().to_device(tch::Device::Cpu);
        let mut bytes = vec![0; self.data_len()];
        host.copy_data_u8(&mut bytes, host.numel());
        bytes.into()
    }

    fn data_len(&self) -> usize {
        self.shape.iter().product::<usize>() * self.kind.elt_size_in_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::load_file_into;
    use tch::Device;

    #[test]
    fn what_is_saved_is_what_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.safetensors");
        let strided = Tensor::from_slice(&[1.5f32, -2.0, 3.0, 0.25, 5.0, 6.0]).view([2, 3]).tr();
        for kind in [Kind::Float, Kind::BFloat16] {
            save(&path, &[("x".to_owned(), strided.shallow_clone())], kind).unwrap();
            let loaded = Tensor::zeros([3, 2], (Kind::Float, Device::Cpu));
            load_file_into(&path, &[("x".to_owned(), loaded.shallow_clone())]).unwrap();
            assert_eq!(loaded, strided);
        }
        let header = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
        assert!(header.contains(r#""format":"pt""#) && header.contains(r#""dtype":"BF16""#), "{header}");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let path = Path::new("/nowhere/at/all.safetensors");
        let error = save(path, &[("x".to_owned(), Tensor::from(1f32))], Kind::Float).unwrap_err();
        assert!(error.to_string().contains("cannot write /nowhere/at/all.safetensors"), "{error}");
    }
}
