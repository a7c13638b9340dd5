//! Which GPU a device number means: CUDA's order, and `CUDA_VISIBLE_DEVICES`, applied to what NVML lists.
//!
//! CUDA sorts by PCI address if `CUDA_DEVICE_ORDER` is `PCI_BUS_ID`; else (`FASTEST_FIRST`) it puts the fastest GPU first,
//! which changes nothing among equals. Entries of `CUDA_VISIBLE_DEVICES` are places in that order, or UUIDs or their
//! beginnings; the first that means no GPU ends the list, and one named twice empties it.

use super::Gpu;

const MIG: &str = "CUDA_VISIBLE_DEVICES names a MIG slice, whose memory is not looked at";

/// The GPUs that a process sees, in the order of its device numbers.
///
/// # Errors
/// They cannot be told from here; why.
pub(super) fn visible(
    mut gpus: Vec<Gpu>,
    devices: Option<&str>,
    order: Option<&str>,
) -> Result<Vec<Gpu>, &'static str> {
    gpus.sort_by_key(|gpu| gpu.pci);
    if order != Some("PCI_BUS_ID") {
        let fastest = gpus.iter().enumerate().rev().max_by_key(|(_, gpu)| gpu.speed).map_or(0, |(place, _)| place);
        gpus[..].get_mut(..=fastest).into_iter().for_each(|gpus| gpus.rotate_right(1));
    }
    let Some(devices) = devices else { return Ok(gpus) };
    let mut seen = Vec::new();
    for entry in devices.split(',').map(str::trim) {
        if entry.starts_with("MIG-") {
            return Err(MIG);
        }
        match place(&gpus, entry) {
            Some(place) if seen.contains(&place) => return Ok(Vec::new()),
            Some(place) => seen.push(place),
            None => break,
        }
    }
    Ok(seen.into_iter().map(|place| gpus[place].clone()).collect())
}

/// The one GPU that an entry means.
fn place(gpus: &[Gpu], entry: &str) -> Option<usize> {
    if let Ok(place) = entry.parse() {
        return (place < gpus.len()).then_some(place);
    }
    let begins = |gpu: &Gpu| gpu.uuid.as_ref().is_some_and(|uuid| uuid.starts_with(entry));
    let mut places = (0..gpus.len()).filter(|place| begins(&gpus[*place]));
    let found = places.next().filter(|_| entry.starts_with("GPU-"))?;
    places.next().is_none().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// GPUs at these buses, listed as given, of these speeds; named after their bus.
    fn gpus(listed: &[(u32, u64)]) -> Vec<Gpu> {
        let gpu = |(bus, speed): &(u32, u64)| Gpu {
            name: bus.to_string(),
            uuid: Some(format!("GPU-{bus}{bus}")),
            pci: (0, *bus, 0),
            speed: *speed,
            ..Gpu::default()
        };
        listed.iter().map(gpu).collect()
    }

    fn names(devices: Option<&str>, order: Option<&str>, listed: &[(u32, u64)]) -> String {
        let gpus = visible(gpus(listed), devices, order).unwrap();
        gpus.iter().map(|gpu| gpu.name.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_fastest_is_first_unless_the_bus_decides() {
        let mixed = [(9, 30), (4, 10), (2, 20)];
        assert_eq!(names(None, None, &mixed), "9 2 4");
        assert_eq!(names(None, Some("FASTEST_FIRST"), &mixed), "9 2 4");
        assert_eq!(names(None, Some("PCI_BUS_ID"), &mixed), "2 4 9");
        assert_eq!(names(None, None, &[(9, 5), (4, 5), (2, 5)]), "2 4 9", "equals go by their bus");
        assert_eq!(names(None, None, &[]), "");
    }

    #[test]
    fn visible_devices_are_places_or_beginnings_of_uuids() {
        let equal = [(1, 5), (2, 5), (3, 5), (12, 5)];
        let seen = |devices: &str| names(Some(devices), None, &equal);
        assert_eq!((seen("2,0"), seen(" 1 "), seen("0,1,2,3")), ("3 1".into(), "2".into(), "1 2 3 12".into()));
        assert_eq!((seen("GPU-33"), seen("GPU-22,GPU-3")), ("3".into(), "2 3".into()));
        assert_eq!(seen("GPU-1"), "", "two GPUs begin like this");
        assert_eq!(
            (seen(""), seen("-1"), seen("4"), seen("33")),
            (String::new(), String::new(), String::new(), String::new())
        );
        assert_eq!(seen("0,2,-1,1"), "1 3", "the list ends at what is no GPU");
        assert_eq!(seen("0,1,0"), "", "CUDA refuses a list with a repetition");
        assert!(visible(gpus(&equal), Some("MIG-12"), None).is_err());
    }
}
