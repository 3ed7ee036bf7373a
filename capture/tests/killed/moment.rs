//! What a worker that dies at a point leaves behind, and the checks that its successor has lost and repeated nothing.

use crate::world::observer::Observer;
use crate::world::standing::Standing;
use crate::world::{ITEMS, World};

/// Where slot, progress and acknowledgement stand, against where they stood before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Nothing has moved.
    Nothing,
    /// The write is durable and the boundary is its end; nobody has been told.
    Durable,
    /// As `Durable`, and a status update is on its way: whether it has arrived is open.
    OnItsWay,
    /// As `Durable`, and the slot has moved; the acknowledgement has not.
    Told,
    /// All three are level with the write.
    Acknowledged,
    /// The boundary is an idle observation; nobody has been told.
    Observed,
    /// There is no stream.
    Unborn,
    /// There is a stream, which stands at the barrier.
    Born,
}

impl Left {
    pub fn check(self, before: &Standing, now: &Standing) {
        let unmoved = now.slot == before.slot && now.acknowledged == before.acknowledged;
        assert!(now.acknowledged <= now.slot && now.slot <= now.processed, "A4, A5: {now:?}");
        match self {
            Left::Nothing => assert_eq!(now, before),
            Left::Observed => {
                assert!(unmoved && now.processed > before.processed, "{now:?}");
                assert_eq!((now.newest, now.effects), (before.newest, before.effects));
            }
            Left::Durable | Left::OnItsWay | Left::Told | Left::Acknowledged => {
                assert_eq!(
                    (now.transactions, now.effects),
                    (before.transactions + 1, before.effects + WRITE_EFFECTS)
                );
                assert_eq!(now.newest.map(|(_, end)| end), Some(now.processed), "A2");
                match self {
                    Left::Durable => assert!(unmoved, "{now:?}"),
                    Left::OnItsWay => {
                        assert_eq!(now.acknowledged, before.acknowledged);
                        assert!(now.slot == before.slot || now.slot == now.processed, "{now:?}");
                    }
                    Left::Told => {
                        assert_eq!((now.slot, now.acknowledged), (now.processed, before.acknowledged))
                    }
                    _ => assert_eq!((now.slot, now.acknowledged), (now.processed, now.processed)),
                }
            }
            Left::Unborn | Left::Born => unreachable!("no stream stood anywhere before"),
        }
    }
}

/// How far a baseline had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    Recorded,
    RecordedWithSlot,
    SlotCreated,
    Staged,
    CaughtUp,
    Verified,
    Activated,
}

impl Baseline {
    /// Phase of its record, slots of this database, generations.
    fn facts(self) -> (&'static str, i64, i64) {
        match self {
            Baseline::Recorded => ("recorded", 0, 0),
            Baseline::RecordedWithSlot => ("recorded", 1, 0),
            Baseline::SlotCreated => ("slot_created", 1, 0),
            Baseline::Staged => ("staged", 1, 0),
            Baseline::CaughtUp => ("caught_up", 1, 0),
            Baseline::Verified => ("verified", 1, 0),
            Baseline::Activated => ("activated", 1, 1),
        }
    }

    /// `others`: slots and generations that were there before, and stay (B11).
    pub async fn check(self, world: &World, others: i64) {
        let (phase, slots, generations) = self.facts();
        let newest = "select phase from tidegate.stream_reset order by started_at desc limit 1";
        assert_eq!(world.text(newest).await, phase);
        assert_eq!(world.scalar::<i64>(SLOTS).await, others + slots);
        assert_eq!(
            world.scalar::<i64>("select count(*) from tidegate.stream_generation").await,
            others + generations
        );
        if self == Baseline::Activated {
            // B9: both boundaries begin at the barrier's end; the slot may still stand at the consistent point.
            let at = world.standing().await;
            assert_eq!(at.acknowledged, at.processed);
            let bounds = format!(
                "select barrier_end_lsn = '{}' and consistent_lsn <= '{}' from tidegate.stream_generation order by id desc limit 1",
                at.processed, at.slot
            );
            assert!(world.scalar::<bool>(&bounds).await && at.slot <= at.processed, "{at:?}");
        }
    }
}

/// Slots of this database that are not a test's own.
pub const SLOTS: &str = "select count(*) from pg_replication_slots where database = current_database() and slot_name like 'tidegate%'";

/// Two rows come and one moves, in one transaction.
pub const WRITE: &str = "begin; insert into items values ('a', 'L1'), ('b', 'L2');
    update items set n = 1, list_id = 'L2' where id = 'old'; commit";
const WRITE_EFFECTS: i64 = 4;
/// Written after the crash.
pub const LATER: &str = "update items set n = 2 where id = 'b'";
/// One after the other.
pub const BOTH: &str = "begin; insert into items values ('a', 'L1'), ('b', 'L2');
    update items set n = 1, list_id = 'L2' where id = 'old'; commit; update items set n = 2 where id = 'b'";

/// A stream with a row in it; everything is acknowledged, and its worker has gone.
pub async fn stream(world: &World) -> (Standing, Observer) {
    world.sql(ITEMS).await;
    world.sql("insert into items values ('old', 'L1')").await;
    let worker = world.start_with(world.without_idle());
    world.until_streaming().await;
    world.settle().await;
    world.until_acknowledged().await;
    world.stop_and_release(worker).await;
    let observer = Observer::start(world).await;
    (world.standing().await, observer)
}

/// Nothing is lost, nothing is there twice: against the tables, and against what the server says was committed.
pub async fn check_whole(world: &World, observer: &Observer) {
    observer.assert_recorded(world).await;
    world.assert_consistent().await;
    let mut effects = world.effects().await;
    effects.sort();
    let expected = [
        "list:L1 delete old",
        "list:L1 upsert a",
        "list:L2 upsert b",
        "list:L2 upsert b",
        "list:L2 upsert old",
    ];
    assert_eq!(effects, expected);
}

/// A baseline that was interrupted and resumed, or started over, has left one slot and one state, and rows that agree.
pub async fn check_born(world: &World) {
    world
        .until(
            "the clean-up",
            "select bool_and(phase in ('cleaned', 'discarded')) from tidegate.stream_reset",
        )
        .await;
    world.assert_consistent().await;
    assert_eq!(world.scalar::<i64>(SLOTS).await, 1, "no slot without a use is left");
    let states = "select count(distinct substring(relname from '^s[0-9]+')) from pg_class where relnamespace = 'tidegate_projection'::regnamespace and relkind = 'r'";
    assert_eq!(world.scalar::<i64>(states).await, 1, "no stage is left");
}
