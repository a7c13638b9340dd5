//! GPUs by their data sheets: for planning on another machine, and for how fast this one's are.

/// A model of GPU.
#[derive(Debug, PartialEq)]
pub(crate) struct GpuModel {
    /// As `--gpu` takes it; its words are in the name that the driver reports.
    pub(crate) key: &'static str,
    /// Memory that the driver reports, in MiB.
    mib: u64,
    /// Dense bfloat16 products summed in float32, in 10^12 operations a second.
    pub(crate) tflops: f64,
    /// Memory bandwidth in 10^9 bytes a second.
    pub(crate) gb_per_s: f64,
}

/// NVIDIA's data sheets; memory as `nvidia-smi` shows it. Where a name fits several, the first counts.
static MODELS: [GpuModel; 13] = [
    model("b200", 183_359, 2250.0, 7700.0),
    model("h200", 143_771, 989.0, 4800.0),
    model("h100-pcie", 81_559, 756.0, 2000.0),
    model("h100", 81_559, 989.0, 3350.0),
    model("a100-80gb", 81_920, 312.0, 2039.0),
    model("a100-40gb", 40_960, 312.0, 1555.0),
    model("l40s", 46_068, 362.0, 864.0),
    model("l4", 23_034, 121.0, 300.0),
    model("a10", 23_028, 125.0, 600.0),
    model("rtx-a6000", 49_140, 155.0, 768.0),
    model("rtx-5090", 32_607, 209.0, 1792.0),
    model("rtx-4090", 24_564, 165.0, 1008.0),
    model("rtx-3090", 24_576, 71.0, 936.0),
];

const fn model(key: &'static str, mib: u64, tflops: f64, gb_per_s: f64) -> GpuModel {
    GpuModel { key, mib, tflops, gb_per_s }
}

impl GpuModel {
    /// The model of a GPU that the driver calls so, as `NVIDIA H100 80GB HBM3`.
    pub(crate) fn of(name: &str) -> Option<&'static GpuModel> {
        let name = name.to_ascii_lowercase();
        let words: Vec<&str> = name.split(|c: char| !c.is_ascii_alphanumeric()).collect();
        MODELS.iter().find(|model| model.key.split('-').all(|word| words.contains(&word)))
    }

    /// The model of that key.
    ///
    /// # Errors
    /// There is none; which there are.
    pub(crate) fn named(key: &str) -> Result<&'static GpuModel, String> {
        let found = MODELS.iter().find(|model| model.key == key.to_ascii_lowercase());
        let known = || MODELS.iter().map(|model| model.key).collect::<Vec<_>>().join(", ");
        found.ok_or_else(|| format!("known are {}", known()))
    }

    /// Memory in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.mib << 20
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_known_by_the_names_that_drivers_report() {
        let key = |name: &str| GpuModel::of(name).map(|model| model.key);
        let names = [
            ("NVIDIA H200", "h200"),
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("NVIDIA H100 PCIe", "h100-pcie"),
            ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
            ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
            ("NVIDIA L40S", "l40s"),
            ("NVIDIA L4", "l4"),
            ("NVIDIA GeForce RTX 4090", "rtx-4090"),
            ("NVIDIA RTX A6000", "rtx-a6000"),
        ];
        for (name, expected) in names {
            assert_eq!(key(name), Some(expected), "{name}");
        }
        assert_eq!((key("NVIDIA GeForce GTX 1080"), key("NVIDIA L40"), key("")), (None, None, None));
    }

    #[test]
    fn an_unknown_model_is_refused_with_the_known_ones() {
        assert_eq!(GpuModel::named("H200").unwrap().key, "h200");
        assert!(GpuModel::named("h300").unwrap_err().starts_with("known are b200, h200, "));
    }
}
