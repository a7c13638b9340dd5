//! GPUs as NVIDIA's management library (NVML) tells of them. It comes with the driver and is opened at run time; nothing
//! is started on a GPU by asking it.

use std::env;

use nvml_wrapper::enum_wrappers::device::{Clock, P2pCapabilitiesIndex, P2pStatus, TopologyLevel};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::GpuModel;
use super::visible::visible;

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Gpu {
    /// As the driver calls it.
    pub(crate) name: String,
    /// None of a GPU that is only thought of.
    pub(crate) uuid: Option<String>,
    /// Memory in bytes.
    pub(crate) total: u64,
    /// What nobody has taken of it.
    pub(crate) free: u64,
    /// Domain, bus and device.
    pub(crate) pci: (u32, u32, u32),
    /// Cores times clock: CUDA's first device is the fastest.
    pub(crate) speed: u64,
}

/// What joins two GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Link {
    /// NVLink.
    Nvlink,
    /// PCI Express without a host bridge between.
    Pcie,
    /// PCI Express over a host bridge or between processors.
    Host,
}

/// The GPUs that a process sees, in CUDA's order: a device number is a place here.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gpus {
    pub(crate) visible: Vec<Gpu>,
    /// By device numbers, the lower one first; pairs that NVML says nothing of are left out.
    links: Vec<((u32, u32), Link)>,
}

impl Gpus {
    /// So many idle GPUs of one model.
    pub(super) fn alike(model: &'static GpuModel, number: u32) -> Gpus {
        let gpu = Gpu { name: model.key.to_owned(), total: model.bytes(), free: model.bytes(), ..Gpu::default() };
        Gpus { visible: vec![gpu; number as usize], links: Vec::new() }
    }

    /// The GPU of a device number.
    pub(crate) fn get(&self, device: u32) -> Option<&Gpu> {
        self.visible.get(device as usize)
    }

    /// What joins two devices.
    pub(crate) fn link(&self, a: u32, b: u32) -> Option<Link> {
        let pair = (a.min(b), a.max(b));
        self.links.iter().find(|(found, _)| *found == pair).map(|(_, link)| *link)
    }
}

/// Asks NVML.
///
/// # Errors
/// There is no NVML here, or it does not answer: why, in words.
pub(super) fn look() -> Result<Gpus, String> {
    let nvml = Nvml::init().map_err(|error| match error {
        NvmlError::LibloadingError(missing) => format!("NVIDIA's management library (NVML) is not here: {missing}"),
        other => format!("NVIDIA's management library (NVML): {other}"),
    })?;
    ask(&nvml).map_err(|error| format!("NVIDIA's management library (NVML): {error}"))?.map_err(str::to_owned)
}

fn ask(nvml: &Nvml) -> Result<Result<Gpus, &'static str>, NvmlError> {
    let found = (0..nvml.device_count()?).map(|index| gpu(&nvml.device_by_index(index)?));
    let found: Vec<Gpu> = found.collect::<Result<_, NvmlError>>()?;
    let [devices, order] = ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"].map(|name| env::var(name).ok());
    let visible = match visible(found, devices.as_deref(), order.as_deref()) {
        Ok(visible) => visible,
        Err(why) => return Ok(Err(why)),
    };
    let mut links = Vec::new();
    for b in 1..visible.len() {
        for a in 0..b {
            let link = link(nvml, &visible[a], &visible[b])?;
            links.extend(link.map(|link| ((a as u32, b as u32), link)));
        }
    }
    Ok(Ok(Gpus { visible, links }))
}

fn gpu(device: &Device) -> Result<Gpu, NvmlError> {
    let (memory, pci) = (device.memory_info()?, device.pci_info()?);
    // Only for the order among GPUs of several models; what does not tell its speed counts as slow.
    let speed = u64::from(device.num_cores().unwrap_or(0)) * u64::from(device.max_clock_info(Clock::SM).unwrap_or(0));
    Ok(Gpu {
        name: device.name()?,
        uuid: Some(device.uuid()?),
        total: memory.total,
        free: memory.free,
        pci: (pci.domain, pci.bus, pci.device),
        speed,
    })
}

/// None where NVML cannot tell: of a virtual machine's GPUs, say.
fn link(nvml: &Nvml, a: &Gpu, b: &Gpu) -> Result<Option<Link>, NvmlError> {
    let device = |gpu: &Gpu| nvml.device_by_uuid(gpu.uuid.as_deref().unwrap_or_default());
    let (a, b) = (device(a)?, device(b)?);
    if matches!(a.p2p_status(&b, P2pCapabilitiesIndex::NvLink), Ok(P2pStatus::Ok)) {
        return Ok(Some(Link::Nvlink));
    }
    let ancestor = a.topology_common_ancestor(b).ok();
    Ok(ancestor.map(|ancestor| match ancestor {
        TopologyLevel::Internal | TopologyLevel::Single | TopologyLevel::Multiple => Link::Pcie,
        TopologyLevel::HostBridge | TopologyLevel::Node | TopologyLevel::System => Link::Host,
    }))
}
