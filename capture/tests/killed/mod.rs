//! A6, B12, and all that a crash may interrupt: the worker dies at each fail point, and the server does while the worker stands
//! there. At the moment itself slot, progress and acknowledgement stand where the order of A4 allows; afterwards nothing is lost
//! and nothing is there twice.

mod moment;
mod server;
mod worker;

use moment::{Baseline, Left};
use tidegate_capture::failpoints as at;

/// How a worker is brought to a point.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    /// It starts, and finds a write waiting for it.
    Start,
    /// It streams, and a write comes.
    Write,
    /// It streams, a write comes, and the server has been told.
    Told,
    /// It streams, and others write.
    Noise,
    /// It streams, and what comes cannot be materialized.
    Poison,
    /// There is no stream yet.
    FirstStart(Baseline),
}

/// One fail point: how a worker comes there, and what it leaves behind when it dies.
#[derive(Clone, Copy)]
pub struct Point {
    pub name: &'static str,
    pub way: Way,
    pub left: Left,
}

macro_rules! points {
    ($($test:ident: $name:ident, $way:expr, $left:ident;)*) => {
        /// Every point with its test.
        const TESTED: &[(&str, Point)] = &[$((stringify!($test), Point { name: at::$name, way: $way, left: Left::$left })),*];

        $(
            tidegate_embedded::pg_test!(
                Slots,
                async fn $test(world: crate::world::points::Armed) {
                    super::worker::dies_at(&world, Point { name: at::$name, way: $way, left: Left::$left }).await;
                }
            );
        )*
    };
}

/// Names of the points that a worker passes while it streams, its own trouble left out.
pub fn stream_points() -> impl Iterator<Item = &'static str> {
    at_each_point::points(false).filter(|point| !matches!(point.way, Way::Poison)).map(|point| point.name)
}

mod at_each_point {
    use super::*;

    points! {
        a6_killed_at_ownership_claimed: OWNERSHIP_CLAIMED, Way::Start, Nothing;
        a6_killed_at_slot_reconciled: SLOT_RECONCILED, Way::Start, Nothing;
        a6_killed_at_stream_started: STREAM_STARTED, Way::Start, Nothing;
        a6_killed_at_event_received: EVENT_RECEIVED, Way::Start, Nothing;
        a6_killed_at_transaction_assembled: TRANSACTION_ASSEMBLED, Way::Start, Nothing;
        a6_killed_at_transaction_paired: TRANSACTION_PAIRED, Way::Start, Nothing;
        a6_killed_at_materialize_begun: MATERIALIZE_BEGUN, Way::Write, Nothing;
        a6_killed_at_materialize_read: MATERIALIZE_READ, Way::Write, Nothing;
        a6_killed_at_materialize_written: MATERIALIZE_WRITTEN, Way::Write, Nothing;
        a6_killed_at_materialize_committed: MATERIALIZE_COMMITTED, Way::Write, Durable;
        a6_killed_at_idle_recorded: IDLE_RECORDED, Way::Noise, Observed;
        a6_killed_at_status_reported: STATUS_REPORTED, Way::Write, OnItsWay;
        a6_killed_at_slot_read_back: SLOT_READ_BACK, Way::Told, Told;
        a6_killed_at_acknowledged: ACKNOWLEDGED, Way::Write, Acknowledged;
        a6_killed_at_poison_before_record: POISON_BEFORE_RECORD, Way::Poison, Nothing;
        a6_killed_at_baseline_recorded: BASELINE_RECORDED, Way::FirstStart(Baseline::Recorded), Unborn;
        a6_killed_at_baseline_slot_created: BASELINE_SLOT_CREATED, Way::FirstStart(Baseline::RecordedWithSlot), Unborn;
        a6_killed_at_baseline_slot_recorded: BASELINE_SLOT_RECORDED, Way::FirstStart(Baseline::SlotCreated), Unborn;
        a6_killed_at_baseline_copied: BASELINE_COPIED, Way::FirstStart(Baseline::SlotCreated), Unborn;
        a6_killed_at_baseline_staged: BASELINE_STAGED, Way::FirstStart(Baseline::Staged), Unborn;
        a6_killed_at_baseline_marked: BASELINE_MARKED, Way::FirstStart(Baseline::Staged), Unborn;
        a6_killed_at_baseline_caught_up: BASELINE_CAUGHT_UP, Way::FirstStart(Baseline::CaughtUp), Unborn;
        a6_killed_at_baseline_verified: BASELINE_VERIFIED, Way::FirstStart(Baseline::Verified), Unborn;
        a6_killed_at_baseline_activating: BASELINE_ACTIVATING, Way::FirstStart(Baseline::Verified), Unborn;
        a6_killed_at_baseline_activated: BASELINE_ACTIVATED, Way::FirstStart(Baseline::Activated), Born;
    }

    /// Points of a kind, for the tests that go through them one after the other.
    pub fn points(baseline: bool) -> impl Iterator<Item = Point> {
        TESTED
            .iter()
            .map(|(_, point)| *point)
            .filter(move |p| matches!(p.way, Way::FirstStart(_)) == baseline)
    }

    #[test]
    fn a6_every_fail_point_has_its_test() {
        let tested: Vec<&str> = TESTED.iter().map(|(_, point)| point.name).collect();
        assert_eq!(tested, at::ALL);
        for (test, point) in TESTED {
            assert_eq!(*test, format!("a6_killed_at_{}", point.name.to_lowercase()));
        }
    }
}
