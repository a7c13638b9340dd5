//! One safetensors file: its header in memory, its tensors on disk.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use tch::{Kind, Tensor};

use super::WeightsError;

/// Headers beyond this are no headers: the format's own limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;

pub(super) struct TensorFile {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    data_start: u64,
}

impl TensorFile {
    pub(super) fn open(path: &Path) -> Result<TensorFile, WeightsError> {
        let io = |source| WeightsError::File { path: path.into(), source };
        let no_header = |reason: &str| WeightsError::Header { path: path.into(), reason: reason.to_owned() };
        let file = File::open(path).map_err(io)?;
        let found = file.metadata().map_err(io)?.len();
        let mut length = [0; 8];
        if found >= 8 {
            file.read_exact_at(&mut length, 0).map_err(io)?;
        }
        let length = u64::from_le_bytes(length);
        if length == 0 || length > MAX_HEADER_BYTES {
            return Err(no_header("no header length at its start"));
        }
        let data_start = 8 + length;
        let short = |expected| WeightsError::Short { path: path.into(), found, expected };
        if data_start > found {
            return Err(short(data_start));
        }
        let mut header = vec![0; length as usize];
        file.read_exact_at(&mut header, 8).map_err(io)?;
        let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| no_header(&error.to_string()))?;
        let data_len = metadata.tensors().values().map(|info| info.data_offsets.1).max().unwrap_or(0) as u64;
        match data_start + data_len {
            expected if expected > found => Err(short(expected)),
            _ => Ok(TensorFile { path: path.into(), file, metadata, data_start }),
        }
    }

    pub(super) fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.metadata.info(name)
    }

    /// The tensor `name`, which the caller has found here, in its own type on the CPU. `buffer` is scratch.
    pub(super) fn read(&self, name: &str, buffer: &mut Vec<u8>) -> Result<Tensor, WeightsError> {
        let info = self.info(name).expect("the caller has located the tensor in this file");
        let kind = match info.dtype {
            Dtype::F32 => Kind::Float,
            Dtype::BF16 => Kind::BFloat16,
            Dtype::F16 => Kind::Half,
            other => {
                let found = format!("{other:?}");
                return Err(WeightsError::Dtype { path: self.path.clone(), name: name.to_owned(), found });
            }
        };
        let (start, end) = info.data_offsets;
        let elements: usize = info.shape.iter().product();
        if end.checked_sub(start) != Some(elements * kind.elt_size_in_bytes()) {
            let reason = format!("{name}'s bytes {start}..{end} do not hold its shape {:?}", info.shape);
            return Err(WeightsError::Header { path: self.path.clone(), reason });
        }
        buffer.resize(end - start, 0);
        self.file
            .read_exact_at(buffer, self.data_start + start as u64)
            .map_err(|source| WeightsError::File { path: self.path.clone(), source })?;
        let shape: Vec<i64> = info.shape.iter().map(|size| *size as i64).collect();
        Tensor::f_from_data_size(buffer, &shape, kind)
            .map_err(|source| WeightsError::Tensor { name: name.to_owned(), source })
    }
}
