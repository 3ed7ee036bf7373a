//! The server dies, as after a power cut (`-m immediate`), while the worker stands at a point and knows nothing of it.
//!
//! One server and one worker process go through all the points of a kind, each with a database of its own: a server for each point
//! would take most of the time to start.

use super::at_each_point::points;
use super::moment::{self, Left, WRITE};
use super::worker::{begin, lay_trap, recover_from_poison, written_later};
use super::{Point, Way};
use crate::reset::{self, poisoned};
use crate::world::points::{Armed, Pause};
use crate::world::standing::{SLOT, Standing};
use crate::world::{ITEMS, World};
use std::time::Instant;
use tidegate_embedded::{Stop, pg_test};

/// The crash, and the server's return. The worker still stands where it stood.
async fn crash(world: &World) {
    world.server.restart(Stop::Immediate).expect("restart");
    world.until("the server", "select true").await;
}

/// What was durable before a crash is there after it; a slot may fall back, and nothing else.
fn check_survived(before: &Standing, after: &Standing) {
    assert_eq!(Standing { slot: after.slot, ..*before }, *after);
    assert!(after.slot <= before.slot, "{after:?}");
}

async fn server_dies_at(world: &World, point: Point) {
    let (before, observer) = moment::stream(world).await;
    let (worker, mut pause) = match point.way {
        Way::Start | Way::Noise => {
            let config = begin(world, point.way).await;
            let pause = Pause::at(point.name);
            (world.start_apart_with(config), pause)
        }
        _ => {
            let worker = world.start_apart_with(world.without_idle());
            world.until_streams(&worker).await;
            if matches!(point.way, Way::Poison) {
                lay_trap(world).await;
            }
            let pause = Pause::at(point.name);
            world.sql(WRITE).await;
            (worker, pause)
        }
    };
    pause.reached().await;
    if matches!(point.way, Way::Told) {
        world
            .until("the slot to move", &format!("select {SLOT} = processed_end_lsn from tidegate.progress"))
            .await;
    }
    let then = world.standing().await;
    // A paused worker's own stream goes on reporting, so the slot may be past what a dead worker leaves.
    match point.left {
        Left::Durable | Left::OnItsWay => Left::OnItsWay.check(&before, &then),
        left => left.check(&before, &then),
    }
    crash(world).await;
    check_survived(&then, &world.standing().await);
    pause.release();
    world.sql(written_later(point.way)).await;
    if matches!(point.way, Way::Poison) {
        recover_from_poison(world).await;
    }
    world.settle().await;
    moment::check_whole(world, &observer).await;
    world.until_acknowledged().await;
    worker.stop().await;
}

pg_test!(
    Private,
    async fn a6_server_killed_at_every_point_of_the_stream(world: Armed) {
        for point in points(false) {
            let since = Instant::now();
            server_dies_at(&world.another().await, point).await;
            println!("{}: {:?}", point.name, since.elapsed());
        }
    }
);

pg_test!(
    Private,
    async fn a6_b12_server_killed_at_every_point_of_a_first_start(world: Armed) {
        for point in points(true) {
            let Way::FirstStart(baseline) = point.way else { unreachable!("points of a baseline") };
            let world = world.another().await;
            world.sql(ITEMS).await;
            world
                .sql("insert into items select g::text, 'L' || g % 7, g, 'x' from generate_series(1, 200) g")
                .await;
            let mut pause = Pause::at(point.name);
            let worker = world.start_apart();
            pause.reached().await;
            baseline.check(&world, 0).await;
            crash(&world).await;
            baseline.check(&world, 0).await;
            world
                .sql("update items set n = n + 1 where id = '1'; insert into items values ('new', 'L0')")
                .await;
            pause.release();
            world.until_streams(&worker).await;
            world.sql("insert into items values ('last', 'L0')").await;
            world.settle().await;
            moment::check_born(&world).await;
            worker.stop().await;
            println!("{}", point.name);
        }
    }
);

pg_test!(
    Private,
    async fn a6_b9_b12_server_killed_at_every_point_of_a_reset(world: Armed) {
        for point in points(true) {
            let Way::FirstStart(baseline) = point.way else { unreachable!("points of a baseline") };
            let world = world.another().await;
            poisoned(&world).await.kill().await;
            let old = "select format('%s %s %s', generation, processed_end_lsn, acknowledged_end_lsn) from tidegate.progress";
            let before = world.text(old).await;
            let mut pause = Pause::at(point.name);
            reset::request(&world).await;
            let worker = world.start_apart();
            pause.reached().await;
            baseline.check(&world, 1).await;
            crash(&world).await;
            baseline.check(&world, 1).await;
            if point.left == Left::Unborn {
                assert_eq!(world.text(old).await, before, "B11: the old stream is as it was");
            }
            world.sql("insert into items values ('new', 'L0')").await;
            pause.release();
            world.until("the new generation", reset::SECOND).await;
            world.sql("insert into items values ('last', 'L0')").await;
            world.settle().await;
            moment::check_born(&world).await;
            worker.stop().await;
            println!("{}", point.name);
        }
    }
);
