//! Health of the SSD tier: whether it accepts writes and serves reads. A state machine without I/O
//! or clock; the caller reports the device's results and the time.
//!
//! | state | writes | reads | left when |
//! | --- | --- | --- | --- |
//! | `on` | yes | yes | a sync or the manifest fails, [`BURSTS_MAX`] bursts of failed writes come within [`WINDOW`], no operation completes for too long, too many segments are quarantined |
//! | `read-only` | no | yes | a probe succeeds (`on`); another sync fails before the tier was healthy for [`WINDOW`] (`off`) |
//! | `off` | no | no | a probe succeeds (`on`) |
//!
//! A burst is all failures in one segment: writes in flight together fail together, and the segment
//! is sealed at the first failure. Probes are made after a pause, which doubles unless the tier was
//! healthy for [`WINDOW`].
//! Decision 0009 has the reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_layouts::ids::{Incarnation, SegmentId};

/// Interval in which failures are counted, and for which the tier must be on to count as healthy.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);
/// Bursts of failed writes within [`WINDOW`] after which the tier becomes read-only.
pub(crate) const BURSTS_MAX: usize = 3;

/// Operations that the SSD tier accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TierState {
    On,
    /// Reads are served; nothing is written.
    ReadOnly,
    /// Nothing is read either, and the index drops its SSD locations.
    Off,
}

impl TierState {
    /// The value of `ssd_state`.
    pub fn name(self) -> &'static str {
        match self {
            TierState::On => "on",
            TierState::ReadOnly => "read-only",
            TierState::Off => "off",
        }
    }
}

/// Limits from the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HealthLimits {
    /// Pause before the first probe, and the longest pause.
    pub probe: Duration,
    pub probe_max: Duration,
    /// Failing reads in a segment after which it is quarantined.
    pub quarantine_after: u32,
    /// Segments of the store.
    pub segments: u32,
}

/// The state, and the failures that determine it.
#[derive(Debug)]
pub(crate) struct Health {
    limits: HealthLimits,
    state: TierState,
    changes: u64,
    /// Times of bursts of failed writes, and the segment of the last one.
    bursts: Vec<Mono>,
    last_burst: Option<(SegmentId, Incarnation)>,
    sync_failed: bool,
    on_since: Mono,
    pause: Duration,
    probe_at: Mono,
    /// Failing reads by segment.
    suspects: BTreeMap<SegmentId, u32>,
    quarantined: BTreeSet<SegmentId>,
}

impl Health {
    /// A tier that was just opened, in state `on`.
    pub fn new(limits: HealthLimits, now: Mono) -> Health {
        Health {
            limits,
            state: TierState::On,
            changes: 0,
            bursts: Vec::new(),
            last_burst: None,
            sync_failed: false,
            on_since: now,
            pause: limits.probe,
            probe_at: now,
            suspects: BTreeMap::new(),
            quarantined: BTreeSet::new(),
        }
    }

    pub fn state(&self) -> TierState {
        self.state
    }

    /// Whether anything but probes is written.
    pub fn writes(&self) -> bool {
        self.state == TierState::On
    }

    /// Whether anything is read.
    pub fn reads(&self) -> bool {
        self.state != TierState::Off
    }

    /// Number of changes of state.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Segments with failed reads that are still read.
    pub fn suspects(&self) -> usize {
        self.suspects.len()
    }

    /// Segments that are no longer read.
    pub fn quarantined(&self) -> usize {
        self.quarantined.len()
    }

    /// The quarantined segments.
    pub fn quarantined_segments(&self) -> impl Iterator<Item = SegmentId> {
        self.quarantined.iter().copied()
    }

    pub fn is_quarantined(&self, segment: SegmentId) -> bool {
        !self.quarantined.is_empty() && self.quarantined.contains(&segment)
    }

    /// Whether the tier has been on for [`WINDOW`].
    fn was_healthy(&self, now: Mono) -> bool {
        self.state == TierState::On && now.since(self.on_since) >= WINDOW
    }

    /// A write to a segment failed; true if this made the tier read-only.
    pub fn write_failed(
        &mut self,
        segment: SegmentId,
        incarnation: Incarnation,
        now: Mono,
    ) -> bool {
        if self.last_burst.replace((segment, incarnation)) == Some((segment, incarnation)) {
            return false;
        }
        self.bursts.retain(|at| now.since(*at) < WINDOW);
        self.bursts.push(now);
        self.bursts.len() >= BURSTS_MAX && self.stop_writing(now)
    }

    /// A sync failed; true if the state changed.
    pub fn sync_failed(&mut self, now: Mono) -> bool {
        let again = self.sync_failed && !self.was_healthy(now);
        self.sync_failed = true;
        if again && self.state != TierState::Off {
            self.stop_writing(now);
            return self.change(TierState::Off);
        }
        self.stop_writing(now)
    }

    /// Writes are impossible, for a reason other than a failed sync; true if this made the tier
    /// read-only.
    pub fn stop_writing(&mut self, now: Mono) -> bool {
        if self.state != TierState::On {
            return false;
        }
        self.pause = match self.changes {
            0 => self.limits.probe,
            _ if self.was_healthy(now) => self.limits.probe,
            _ => self.next_pause(),
        };
        self.probe_at = now.after(self.pause);
        self.change(TierState::ReadOnly)
    }

    fn next_pause(&self) -> Duration {
        (self.pause * 2).min(self.limits.probe_max)
    }

    fn change(&mut self, to: TierState) -> bool {
        let changes = self.state != to;
        self.changes += u64::from(changes);
        self.state = to;
        changes
    }

    /// A record of a segment could not be read, or was not the expected one; true if this
    /// quarantined the segment. Too many quarantined segments make the tier read-only.
    pub fn read_failed(&mut self, segment: SegmentId, now: Mono) -> bool {
        if self.quarantined.contains(&segment) {
            return false;
        }
        let failures = self.suspects.entry(segment).or_default();
        *failures += 1;
        if *failures < self.limits.quarantine_after {
            return false;
        }
        self.suspects.remove(&segment);
        self.quarantined.insert(segment);
        if self.is_worn() {
            self.stop_writing(now);
        }
        true
    }

    /// Whether more than a quarter of the segments is quarantined: further writes would wear out
    /// the rest. Only reopening the store clears this.
    fn is_worn(&self) -> bool {
        self.quarantined.len() * 4 > self.limits.segments as usize
    }

    /// A segment got a new incarnation: failed reads of the previous one no longer count.
    pub fn reused(&mut self, segment: SegmentId) {
        self.suspects.remove(&segment);
    }

    /// Whether a probe of the device is due.
    pub fn probe_due(&self, now: Mono) -> bool {
        self.state != TierState::On && now >= self.probe_at && !self.is_worn()
    }

    /// The probe failed, by a sync or otherwise; true if the state changed.
    pub fn probe_failed(&mut self, sync: bool, now: Mono) -> bool {
        self.pause = self.next_pause();
        self.probe_at = now.after(self.pause);
        sync && self.sync_failed(now)
    }

    /// The probe succeeded.
    pub fn probe_ok(&mut self, now: Mono) {
        self.bursts.clear();
        self.last_burst = None;
        self.on_since = now;
        self.change(TierState::On);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const I: Incarnation = Incarnation(1);

    fn at(seconds: u64) -> Mono {
        Mono(seconds * SECOND)
    }

    fn health() -> Health {
        let limits = HealthLimits {
            probe: Duration::from_secs(1),
            probe_max: Duration::from_secs(60),
            quarantine_after: 3,
            segments: 8,
        };
        Health::new(limits, at(0))
    }

    #[test]
    fn third_burst_of_failed_writes_makes_tier_read_only() {
        let mut h = health();
        for _ in 0..5 {
            assert!(!h.write_failed(SegmentId(1), I, at(1)), "writes that were in flight together");
        }
        assert!(!h.write_failed(SegmentId(2), I, at(2)));
        assert!(h.writes());
        assert!(
            h.write_failed(SegmentId(1), Incarnation(2), at(3)),
            "another incarnation is another burst"
        );
        assert_eq!((h.state(), h.changes()), (TierState::ReadOnly, 1));
        assert!(!h.write_failed(SegmentId(3), I, at(3)), "already read-only");
    }

    #[test]
    fn rounds_outside_the_window_do_not_add_up() {
        let mut h = health();
        for n in 0..20 {
            assert!(!h.write_failed(SegmentId(n), I, at(u64::from(n) * 31)), "n={n}");
        }
        assert_eq!(h.state(), TierState::On);
    }

    #[test]
    fn second_failed_sync_turns_tier_off() {
        let mut h = health();
        assert!(h.sync_failed(at(1)));
        assert_eq!(h.state(), TierState::ReadOnly);
        assert!(h.probe_failed(true, at(2)));
        assert_eq!((h.state(), h.reads()), (TierState::Off, false));
        assert!(!h.sync_failed(at(3)));
        h.probe_ok(at(4));
        assert_eq!((h.state(), h.changes()), (TierState::On, 3));
        // Not healthy for long enough: off at once.
        assert!(h.sync_failed(at(30)));
        assert_eq!(h.state(), TierState::Off);
        h.probe_ok(at(40));
        // Healthy for `WINDOW`: earlier failures no longer count.
        assert!(h.sync_failed(at(101)));
        assert_eq!(h.state(), TierState::ReadOnly);
    }

    #[test]
    fn failed_probe_without_failed_sync_keeps_tier_readable() {
        let mut h = health();
        h.stop_writing(at(1));
        for n in 0..5 {
            assert!(!h.probe_failed(false, at(n)));
        }
        assert_eq!(h.state(), TierState::ReadOnly);
    }

    #[test]
    fn pause_doubles_to_its_limit_and_resets_after_a_healthy_window() {
        let mut h = health();
        h.stop_writing(at(10));
        let mut now = 10;
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert!(!h.probe_due(Mono((now + pause) * SECOND - 1)), "pause={pause}");
            now += pause;
            assert!(h.probe_due(at(now)), "pause={pause}");
            h.probe_failed(false, at(now));
        }
        h.probe_ok(at(now));
        assert!(!h.probe_due(at(now + 1000)), "the tier is on");
        // It fails again soon: the pause is not reset.
        h.stop_writing(at(now + 5));
        assert!(!h.probe_due(at(now + 6)) && h.probe_due(at(now + 65)));
        h.probe_ok(at(now + 65));
        h.stop_writing(at(now + 65 + 60));
        assert!(h.probe_due(at(now + 65 + 61)));
    }

    #[test]
    fn segment_is_suspect_then_quarantined() {
        let mut h = health();
        assert!(!h.read_failed(SegmentId(1), at(1)));
        assert!(!h.read_failed(SegmentId(1), at(2)));
        assert!(!h.read_failed(SegmentId(2), at(2)));
        assert_eq!((h.suspects(), h.quarantined()), (2, 0));
        assert!(h.read_failed(SegmentId(1), at(3)));
        assert!(!h.read_failed(SegmentId(1), at(3)), "already quarantined");
        assert_eq!((h.suspects(), h.quarantined()), (1, 1));
        assert!(h.is_quarantined(SegmentId(1)) && !h.is_quarantined(SegmentId(2)));
        h.reused(SegmentId(2));
        assert_eq!(h.suspects(), 0);
    }

    #[test]
    fn tier_with_over_a_quarter_quarantined_stays_read_only() {
        let mut h = health();
        for s in 0..3 {
            assert_eq!(h.state(), TierState::On);
            (0..3).for_each(|_| {
                h.read_failed(SegmentId(s), at(1));
            });
        }
        assert_eq!(h.state(), TierState::ReadOnly);
        assert!(!h.probe_due(at(10_000)));
    }
}
