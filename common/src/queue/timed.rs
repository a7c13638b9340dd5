//! A place's times: who enters which phase when, and a guard for a phase inside another one.

use std::env;
use std::fs;
use std::thread;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use super::activity::{Phase, Track};
use super::gpu::Mark;
use super::header::Facts;
use super::place::{Place, now};
use super::ring::layout::{NUM_SPANS, NUM_TRACKS, Span, TrackRecord};
use super::snapshot::{Profile, profile};
use super::track::{COUNTED, Interrupted, Times};
use crate::shm::Mapped;
use crate::sync::Ordering;

/// The environment variable by which tests make phases longer: `data=50,backward=20` in milliseconds. A planted
/// bottleneck has to be named by the telemetry.
const DELAYS: &str = "TANDEM_TEST_DELAYS";

/// Phases that are to take longer; none but in tests.
pub(super) struct Delays(Vec<(Phase, Duration)>);

impl Delays {
    /// What the environment says.
    pub(super) fn of_environment() -> Delays {
        Delays(Delays::parse(&env::var(DELAYS).unwrap_or_default()))
    }

    fn parse(text: &str) -> Vec<(Phase, Duration)> {
        let named = |name: &str| Phase::ALL.iter().copied().find(|phase| phase.name() == name);
        let delay = |(name, time): (&str, &str)| Some((named(name)?, Duration::from_millis(time.parse().ok()?)));
        text.split(',').filter_map(|part| delay(part.split_once('=')?)).collect()
    }

    fn wait(&self, phase: Phase) {
        self.0.iter().filter(|(delayed, _)| *delayed == phase).for_each(|(_, time)| thread::sleep(*time));
    }
}

/// The unit of times in `/proc`: USER_HZ, which Linux never changed.
const TICKS_PER_SECOND: u64 = 100;

/// A participant's track.
pub(super) fn times<'a>(memory: &'a impl Mapped, facts: &Facts, code: u8, track: Track) -> Times<'a> {
    let geometry = &facts.geometry;
    let number = (usize::from(code) - 1) * NUM_TRACKS + track as usize;
    Times {
        track: memory.view(geometry.tracks + number * size_of::<TrackRecord>()),
        spans: memory.slice(geometry.spans + number * NUM_SPANS * size_of::<Span>(), NUM_SPANS),
    }
}

impl Place {
    pub(super) fn times(&self, track: Track) -> Times<'_> {
        times(&self.shared.segment, &self.shared.facts, self.holder.code, track)
    }

    /// Where its time went so far.
    pub(super) fn profile(&self) -> Profile {
        profile(&self.shared.segment, &self.shared.facts, (self.holder.code, true), now())
    }

    /// The phase before it is over. The main track's is also the participant's.
    pub(super) fn set_phase(&self, track: Track, phase: Phase) -> Interrupted {
        let times = self.times(track);
        if !COUNTED {
            return times.present();
        }
        let now = now();
        self.show_phase(track, phase, now);
        let interrupted = times.enter(phase as u32, now);
        self.delays.wait(phase);
        interrupted
    }

    /// What the spans from here on are about.
    pub(super) fn set_about(&self, track: Track, number: u64) {
        if COUNTED {
            self.times(track).about(number, now());
        }
    }

    /// A nested phase is over.
    pub(super) fn resume(&self, track: Track, interrupted: Interrupted) {
        if !COUNTED {
            return;
        }
        let now = now();
        interrupted.phase().into_iter().for_each(|phase| self.show_phase(track, Phase::from_number(phase), now));
        self.times(track).resume(interrupted, now);
    }

    fn show_phase(&self, track: Track, phase: Phase, now: u64) {
        if track != Track::Main {
            return;
        }
        self.record().phase.store(phase as u32, Ordering::Relaxed);
        self.record().phase_since_ns.store(now, Ordering::Relaxed);
        if let Some(marker) = self.marker.get() {
            let about = self.times(track).track.about.load(Ordering::Relaxed);
            marker(Mark { phase: phase.on_gpu(), about });
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let now = now();
        let used =
            [Track::Main, Track::Side].into_iter().map(|track| self.times(track)).filter(|times| times.is_used());
        used.for_each(|times| times.stop(now));
    }
}

/// A phase that lasts as long as this guard; the one that it interrupted goes on when it is dropped. Guards may be
/// nested: the time of each is its own alone.
#[must_use = "the phase is over when this is dropped"]
pub struct Timed<'a> {
    place: &'a Place,
    track: Track,
    interrupted: Interrupted,
}

impl Timed<'_> {
    pub(super) fn new(place: &Place, track: Track, phase: Phase) -> Timed<'_> {
        Timed { place, track, interrupted: place.set_phase(track, phase) }
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        self.place.resume(self.track, self.interrupted);
    }
}

/// When this process was started, to a hundredth of a second; now, if the kernel does not say.
pub(super) fn process_started() -> u64 {
    let now = now();
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let field = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(19));
    let ticks: Option<u64> = field.and_then(|ticks| ticks.parse().ok());
    let since_boot = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |time| Duration::from(time).as_nanos() as u64);
    let age = ticks.and_then(|ticks| since_boot.checked_sub(ticks * (1_000_000_000 / TICKS_PER_SECOND)));
    now - age.unwrap_or(0).min(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_given_by_phase() {
        let wanted = [(Phase::Data, Duration::from_millis(50)), (Phase::Backward, Duration::from_millis(2))];
        assert_eq!(Delays::parse("data=50,no_such=3,backward=2,loss="), wanted);
        assert_eq!(Delays::parse(""), []);
    }

    #[test]
    fn a_process_has_started_before_now() {
        let (started, now) = (process_started(), now());
        assert!(started <= now && now - started < 3_600_000_000_000, "{started} {now}");
    }
}
