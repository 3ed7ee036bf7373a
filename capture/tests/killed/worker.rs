//! The worker dies.

use super::moment::{self, BOTH, LATER, WRITE};
use super::{Point, Way};
use crate::poison::retry;
use crate::world::points::{Armed, Pause, is_killed, kill_at};
use crate::world::standing::SLOT;
use crate::world::{ITEMS, World};
use tidegate_capture::Config;
use tidegate_capture::poison::RetryRequest;

/// Kills a worker at the point, looks, starts another one, and compares everything.
pub async fn dies_at(world: &Armed, point: Point) {
    if let Way::FirstStart(baseline) = point.way {
        world.sql(ITEMS).await;
        world
            .sql("insert into items select g::text, 'L' || g % 7, g, 'x' from generate_series(1, 200) g")
            .await;
        kill_at(point.name);
        is_killed(world.start(), point.name).await;
        baseline.check(world, 0).await;
        world.sql("update items set n = n + 1 where id = '1'; insert into items values ('new', 'L0')").await;
        let worker = world.start();
        world.until_streams(&worker).await;
        world.sql("insert into items values ('last', 'L0')").await;
        world.settle().await;
        moment::check_born(world).await;
        worker.stop().await;
        return;
    }
    let (before, observer) = moment::stream(world).await;
    match point.way {
        Way::Start | Way::Noise => {
            let config = begin(world, point.way).await;
            kill_at(point.name);
            is_killed(world.start_with(config), point.name).await;
        }
        Way::Write => {
            let worker = world.start_with(world.without_idle());
            world.until_streams(&worker).await;
            kill_at(point.name);
            world.sql(WRITE).await;
            is_killed(worker, point.name).await;
        }
        Way::Told => {
            let worker = world.start_apart_with(world.without_idle());
            world.until_streams(&worker).await;
            let mut pause = Pause::at(point.name);
            world.sql(WRITE).await;
            pause.reached().await;
            world
                .until(
                    "the slot to move",
                    &format!("select {SLOT} = processed_end_lsn from tidegate.progress"),
                )
                .await;
            pause.release_into_kill();
            is_killed(worker, point.name).await;
        }
        Way::Poison => {
            let worker = world.start_with(world.without_idle());
            world.until_streams(&worker).await;
            kill_at(point.name);
            lay_trap(world).await;
            world.sql(WRITE).await;
            is_killed(worker, point.name).await;
        }
        Way::FirstStart(_) => unreachable!("handled above"),
    }
    point.left.check(&before, &world.standing().await);
    world.sql(written_later(point.way)).await;
    let worker = world.start_with(world.without_idle());
    if matches!(point.way, Way::Poison) {
        recover_from_poison(world).await;
    }
    world.settle().await;
    moment::check_whole(world, &observer).await;
    worker.stop().await;
}

/// Writes what a worker that is yet to start will find, and gives its configuration.
pub async fn begin(world: &World, way: Way) -> Config {
    match way {
        Way::Noise => {
            world.write_noise().await;
            world.eager()
        }
        _ => {
            world.sql(WRITE).await;
            world.without_idle()
        }
    }
}

/// What is written after the crash; where nothing was written before it, everything.
pub fn written_later(way: Way) -> &'static str {
    if matches!(way, Way::Noise) { BOTH } else { LATER }
}

/// The projection refuses what the next transaction writes, as a damaged index would.
pub async fn lay_trap(world: &World) {
    let state: i32 = world.scalar("select state_id from tidegate.stream_generation").await;
    world.sql(&format!("alter table tidegate_projection.s{state}_p1 add constraint trap check (version is null) not valid")).await;
}

/// The stream is blocked where it was; repaired and retried, it goes on.
pub async fn recover_from_poison(world: &World) {
    world
        .until(
            "poison",
            "select exists (select from tidegate.poison where status = 'active' and attempts = 1)",
        )
        .await;
    assert_eq!(world.scalar::<i64>("select count(*) from tidegate.effect").await, 0, "Q2");
    let state: i32 = world.scalar("select state_id from tidegate.stream_generation").await;
    world.sql(&format!("alter table tidegate_projection.s{state}_p1 drop constraint trap")).await;
    assert_eq!(retry(world).await, RetryRequest::Accepted);
}
