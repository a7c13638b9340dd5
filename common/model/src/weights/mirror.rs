//! A safetensors file in memory whose tensors are written again and again, in place.
//!
//! The file is mapped, and locked for the GPU's copies: it takes a state at the speed of the GPU's link, where writing a
//! file anew copies each tensor to the host first and goes through the file system after that.

#![expect(unsafe_code, reason = "tensors are laid over a mapped file")]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;

use memmap2::MmapRaw;
use nix::fcntl::posix_fallocate;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use tch::{Device, Kind, TchError, Tensor};

use super::SaveError;
use super::save::metadata;
use crate::cuda::Gpu;
use crate::cuda::locked::Locked;

const ELEMENT: usize = size_of::<f32>();

/// The mapped file.
pub struct Mirror {
    /// Before what it locks.
    locked: Option<Locked>,
    map: MmapRaw,
    /// Where the tensors' bytes begin.
    start: usize,
    /// Of all tensors.
    elements: usize,
}

impl Mirror {
    /// Makes the file for float32 tensors of these names and shapes, which lie in it in this order, one behind the other; all
    /// its bytes are there from now on. `device` is where they come from.
    ///
    /// # Errors
    /// The file is there already, or there is no room for it: then there is none.
    pub fn create(path: &Path, tensors: &[(String, Vec<i64>)], device: Device) -> Result<Mirror, SaveError> {
        let failed = |source: io::Error| SaveError { path: path.into(), source: source.into() };
        let (header, elements) = header(tensors).map_err(|source| SaveError { path: path.into(), source })?;
        let bytes = header.len() + elements * ELEMENT;
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).map_err(failed)?;
        let map = fill(&file, &header, bytes).inspect_err(|_| drop(fs::remove_file(path))).map_err(failed)?;
        Ok(Mirror { locked: lock(&map, device), map, start: header.len(), elements })
    }

    /// Writes the tensors: contiguous float32 ones, which hold the elements of all of the file's in its order. Waits until they
    /// are there. Nobody may read the file meanwhile.
    ///
    /// # Errors
    /// The GPU fails.
    ///
    /// # Panics
    /// If they have more or fewer elements than the file.
    pub fn write(&mut self, tensors: &[&Tensor]) -> Result<(), TchError> {
        let mut written = 0;
        for tensor in tensors {
            self.place(written, tensor.numel()).f_copy_(&tensor.f_view([-1])?)?;
            written += tensor.numel();
        }
        assert_eq!(written, self.elements, "elements written, and elements of the file");
        Ok(())
    }

    /// Whether a GPU writes it at the speed of its link.
    pub fn is_locked(&self) -> bool {
        self.locked.is_some()
    }

    /// So many elements of the file.
    fn place(&mut self, first: usize, count: usize) -> Tensor {
        assert!(first + count <= self.elements, "{count} elements behind {first} of {}", self.elements);
        // SAFETY: inside the mapping, as just checked.
        let data = unsafe { self.map.as_mut_ptr().add(self.start + first * ELEMENT) };
        // SAFETY: that many float32 lie there, aligned since the header's length is a multiple of eight. The tensor is dropped by
        // `write`, which has the mapping to itself.
        unsafe { Tensor::from_blob(data, &[count as i64], &[1], Kind::Float, Device::Cpu) }
    }
}

/// The length and the JSON that begin the file, and how many elements follow.
fn header(tensors: &[(String, Vec<i64>)]) -> Result<(Vec<u8>, usize), safetensors::SafeTensorError> {
    let mut end = 0;
    let info = |(name, shape): &(String, Vec<i64>)| {
        let shape: Vec<usize> = shape.iter().map(|size| *size as usize).collect();
        let start = end;
        end += shape.iter().product::<usize>() * ELEMENT;
        (name.clone(), TensorInfo { dtype: Dtype::F32, shape, data_offsets: (start, end) })
    };
    let infos = tensors.iter().map(info).collect();
    let mut json = serde_json::to_vec(&Metadata::new(Some(metadata()), infos)?)?;
    json.resize(json.len().next_multiple_of(8), b' ');
    let length = (json.len() as u64).to_le_bytes();
    Ok(([&length, &json[..]].concat(), end / ELEMENT))
}

/// Gives the file all its bytes and its header, and maps it.
fn fill(file: &File, header: &[u8], bytes: usize) -> io::Result<MmapRaw> {
    // A file system that is full says so here; behind a mapping it would end the process.
    posix_fallocate(file, 0, bytes as libc::off_t)?;
    file.write_all_at(header, 0)?;
    MmapRaw::map_raw(file)
}

/// For a GPU's copies; without it they are slower.
fn lock(map: &MmapRaw, device: Device) -> Option<Locked> {
    let Device::Cuda(ordinal) = device else { return None };
    let locked = Gpu::open(ordinal).and_then(|gpu| {
        let start = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at address 0");
        // SAFETY: the mapping is the mirror's, which unlocks it first.
        unsafe { Locked::over(&gpu, start, map.len()) }
    });
    locked.map_err(|error| tracing::warn!("copies of the state to shared memory are slow: {error}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights;

    #[test]
    fn what_was_written_last_is_what_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.safetensors");
        let tensors = [("b".to_owned(), vec![2, 3]), ("a".to_owned(), vec![5]), ("step".to_owned(), vec![])];
        let mut mirror = Mirror::create(&path, &tensors, Device::Cpu).unwrap();
        for round in 1..3 {
            let flat = Tensor::arange(11, (Kind::Float, Device::Cpu)) * round;
            mirror.write(&[&flat, &Tensor::from(round as f32)]).unwrap();
            let places = tensors
                .each_ref()
                .map(|(name, shape)| (name.clone(), Tensor::zeros(shape, (Kind::Float, Device::Cpu))));
            weights::load_file_into(&path, &places).unwrap();
            let [(_, b), (_, a), (_, step)] = &places;
            assert_eq!((b, a), (&flat.narrow(0, 0, 6).view([2, 3]), &flat.narrow(0, 6, 5)));
            assert_eq!(step.double_value(&[]), round as f64);
        }
        let file = std::fs::read(&path).unwrap();
        safetensors::SafeTensors::deserialize(&file).expect("the format's own reader takes it");
    }

    #[test]
    #[should_panic(expected = "elements written, and elements of the file")]
    fn a_file_is_written_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.safetensors");
        let mut mirror = Mirror::create(&path, &[("a".to_owned(), vec![5])], Device::Cpu).unwrap();
        let _ = mirror.write(&[&Tensor::zeros(4, (Kind::Float, Device::Cpu))]);
    }

    #[test]
    fn a_file_that_is_there_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.safetensors");
        std::fs::write(&path, "theirs").unwrap();
        let error = Mirror::create(&path, &[("a".to_owned(), vec![5])], Device::Cpu).err().unwrap().to_string();
        assert!(error.contains("state.safetensors") && error.contains("exists"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"theirs");
    }

    #[test]
    fn a_file_without_room_is_an_error_and_takes_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.safetensors");
        // No file may be as large.
        let error = Mirror::create(&path, &[("a".to_owned(), vec![1 << 30, 1 << 30])], Device::Cpu).err().unwrap();
        assert!(error.to_string().contains("state.safetensors"), "{error}");
        assert!(!path.exists());
    }

    /// Out of a GPU's memory too; without one there is nothing to copy.
    #[test]
    #[expect(clippy::print_stderr, reason = "a skipped test says why")]
    fn a_gpus_tensors_arrive_bit_for_bit() {
        let Some(device) = crate::runtime::test_gpu() else { return eprintln!("skipped: no GPU") };
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = folder.path().join("state.safetensors");
        let tensors = [("a".to_owned(), vec![3000, 33]), ("b".to_owned(), vec![])];
        let mut mirror = Mirror::create(&path, &tensors, device).unwrap();
        assert!(mirror.is_locked());
        for round in 0..3 {
            let (a, b) = (Tensor::randn([3000, 33], (Kind::Float, device)), Tensor::from(round as f32));
            mirror.write(&[&a, &b]).unwrap();
            let places = tensors
                .each_ref()
                .map(|(name, shape)| (name.clone(), Tensor::zeros(shape, (Kind::Float, Device::Cpu))));
            weights::load_file_into(&path, &places).unwrap();
            assert_eq!((&places[0].1, &places[1].1), (&a.to_device(Device::Cpu), &b));
        }
    }
}
