//! A forecast as a page for people: headings, and beneath each lines with a name in front.

use std::fmt::Write as _;

use common::footprint::Part;

use super::Forecast;
use super::words::{bytes, count, counted, duration};
use crate::machine::{Gpus, Link};

/// Parts of a process that are named, the largest first; the others are one number.
const NAMED: usize = 4;

/// A page under way.
#[derive(Default)]
struct Page(String);

impl Page {
    fn heading(&mut self, text: &str) {
        let gap = if self.0.is_empty() { "" } else { "\n" };
        writeln!(self.0, "{gap}{text}").expect("text takes any text");
    }

    fn line(&mut self, name: &str, text: &str) {
        writeln!(self.0, "  {name:<14}{text}").expect("text takes any text");
    }
}

impl Forecast<'_> {
    /// The page.
    pub(crate) fn page(&self) -> String {
        let mut page = Page::default();
        self.run(&mut page);
        self.processes(&mut page);
        self.gpus(&mut page);
        self.machine(&mut page);
        self.time(&mut page);
        self.outcome(&mut page);
        page.0
    }

    fn run(&self, page: &mut Page) {
        page.heading("Run");
        for line in self.plan.lines() {
            let (name, text) = line.split_once(": ").unwrap_or(("", &line));
            page.line(name, text);
        }
        let whole = self.plan.whole();
        page.line(
            "training",
            &format!("{} rows and {} tokens over all epochs", count(whole.rows), count(whole.tokens)),
        );
    }

    fn processes(&self, page: &mut Page) {
        page.heading("Processes, at their peak");
        for process in self.needs.workers.iter().chain(&self.needs.evaluation) {
            let (all, host) = (bytes(sum(process.parts())), bytes(process.host_bytes()));
            match process.device {
                Some(device) => {
                    page.line(&process.name, &format!("GPU {device}, {all}; {host} of the machine's memory"))
                }
                None => page.line(&process.name, &format!("processor, {all}")),
            }
            page.line("", &named(process.parts()));
        }
    }

    fn gpus(&self, page: &mut Page) {
        let needed = self.needs.gpus();
        if needed.is_empty() {
            return;
        }
        page.heading("GPUs");
        for (&device, &needed) in &needed {
            let gpu = self.machine.gpus.as_ref().ok().and_then(|gpus| gpus.get(device));
            let room = gpu.map_or(String::new(), |gpu| {
                let uuid = gpu.uuid.as_ref().map_or(String::new(), |uuid| format!(", {uuid}"));
                format!(" of {} free, {} in all ({}{uuid})", bytes(gpu.free), bytes(gpu.total), gpu.name)
            });
            page.line(&format!("GPU {device}"), &format!("{}{room}", bytes(needed)));
        }
        match &self.machine.gpus {
            Err(why) => page.line("unknown", why),
            Ok(gpus) => links(gpus, &needed.into_keys().collect::<Vec<_>>(), page),
        }
    }

    fn machine(&self, page: &mut Page) {
        let needs = &self.needs;
        let host = self.machine.host.as_ref();
        let room = |found: Option<String>| found.map_or(String::new(), |found| format!(" of {found}"));
        page.heading("Machine");
        let memory = room(host.map(|host| format!("{} {}", bytes(host.memory.bytes), host.memory.bound)));
        page.line("memory", &format!("{}{memory}", bytes(self.host_bytes())));
        let snapshots = match needs.snapshots {
            0 => String::new(),
            taken => format!(" and {} for snapshots", bytes(taken)),
        };
        let shared = room(host.map(|host| format!("{} free", bytes(host.shared_memory))));
        page.line("/dev/shm", &format!("{}{snapshots}{shared}", bytes(needs.shared_memory)));
        let saved = format!("{} of {}", counted(needs.checkpoints, "checkpoint"), bytes(needs.checkpoint));
        let free = host.and_then(|host| host.disk.as_ref().ok());
        let disk = room(free.map(|free| format!("{} free", bytes(*free))));
        page.line("disk", &format!("{}{disk}: {saved} at a time", bytes(needs.disk())));
        page.line("token store", &format!("{}, on its disk by now", bytes(needs.token_store)));
    }

    fn time(&self, page: &mut Page) {
        page.heading("Time");
        let (pace, seconds) = match (&self.pace, self.seconds()) {
            (Ok(pace), Some(seconds)) => (pace, seconds),
            (Err(why), _) => return page.line("training", why),
            (Ok(_), None) => return,
        };
        let speed = count(pace.tokens_per_s as u64);
        page.line("training", &format!("{} at {speed} tokens/s, {}", duration(seconds), pace.source));
        page.line("besides", "the start, checkpoints, and decoding of held-out prompts");
        let [target, drafter] = [pace.speeds.target, pace.speeds.drafter].map(|speed| count(speed as u64));
        let (waits, share) = pace.wait(self.config());
        let share = format!("{waits}s wait {:.0} % of their time", share * 100.0);
        page.line("limit", &format!("the {}s: {share}", pace.limit));
        page.line("each alone", &format!("a target makes {target} tokens/s, a drafter {drafter}"));
        self.split().into_iter().for_each(|split| page.line("split", &split));
    }

    fn outcome(&self, page: &mut Page) {
        let findings = &self.findings;
        if !findings.warnings.is_empty() {
            page.heading("Warnings");
            findings.warnings.iter().for_each(|warning| writeln!(page.0, "  {warning}").expect("text takes any text"));
        }
        if !findings.refusals.is_empty() {
            page.heading("Refused");
        }
        for refusal in &findings.refusals {
            writeln!(page.0, "  {}\n    hint: {}", refusal.what, refusal.hint).expect("text takes any text");
        }
    }
}

/// What joins the run's GPUs, each kind of link once.
fn links(gpus: &Gpus, devices: &[u32], page: &mut Page) {
    let pairs = devices.iter().enumerate().flat_map(|(place, a)| devices[place + 1..].iter().map(move |b| (*a, *b)));
    let linked: Vec<_> = pairs.filter_map(|(a, b)| Some((a, b, gpus.link(a, b)?))).collect();
    let kinds = [
        (Link::Nvlink, "NVLink"),
        (Link::Pcie, "PCI Express"),
        (Link::Host, "PCI Express across a host bridge or processors"),
    ];
    for (kind, name) in kinds {
        let of_kind: Vec<String> =
            linked.iter().filter(|(.., link)| *link == kind).map(|(a, b, _)| format!("{a}-{b}")).collect();
        if !of_kind.is_empty() {
            page.line(&format!("link {}", of_kind.join(", ")), name);
        }
    }
}

fn sum<'a>(parts: impl IntoIterator<Item = &'a Part>) -> u64 {
    parts.into_iter().map(|part| part.bytes).sum()
}

/// `weights 1.0 GiB, gradients 300.0 MiB, other 200.0 MiB`
fn named(parts: &[Part]) -> String {
    let mut largest: Vec<&Part> = parts.iter().collect();
    largest.sort_by_key(|part| std::cmp::Reverse(part.bytes));
    let (first, others) = largest.split_at(NAMED.min(largest.len()));
    let first = first.iter().map(|part| format!("{} {}", part.what, bytes(part.bytes)));
    let others = Some(sum(others.iter().copied())).filter(|others| *others > 0);
    first.chain(others.map(|others| format!("other {}", bytes(others)))).collect::<Vec<_>>().join(", ")
}
