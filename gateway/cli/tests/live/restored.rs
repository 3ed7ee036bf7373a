//! OP-03, P9: a data folder that was put back. System identifier, timeline and generation are what they were; clients come with
//! cursors of a future that was lost. None of them is ever taken for a place in the history that there is, and none waits for ever.

use super::client::{Client, Write};
use super::judge::Judge;
use super::model_client::Seen;
use super::world::{MEMBERS, World};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tidegate_embedded::Stop;
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::{TestContext, TestServer};
use tidegate_model::Point;

/// A cold copy of a private server's data folder.
struct Copy {
    data: PathBuf,
    kept: PathBuf,
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    // Owners too: the server runs as another user.
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp runs");
    assert!(copied.success(), "copy the data folder");
}

impl Copy {
    /// Stops the server, copies, starts it again.
    fn take(server: &TestServer) -> Copy {
        let dir = server.cluster().dir().to_owned();
        let (data, kept) = (dir.join("data"), dir.join("kept"));
        server.stop(Stop::Fast).expect("stopped");
        copy(&data, &kept);
        server.start().expect("started");
        Copy { data, kept }
    }

    /// Stops the server, puts the copy in place, starts it again.
    fn put_back(&self, server: &TestServer) {
        server.stop(Stop::Immediate).expect("stopped");
        std::fs::remove_dir_all(&self.data).expect("the lost future goes");
        copy(&self.kept, &self.data);
        server.start().expect("started");
    }
}

/// Anna with a row that will be there again, and the copy.
async fn before(server: TestServer) -> (World, Copy) {
    let world = World::prepare(server).await;
    world.sql(MEMBERS).await;
    let worker = world.worker().await;
    world.sql("insert into items values (1, 'L1', 1, 'kept')").await;
    world.settle().await;
    worker.stop().await;
    let copy = Copy::take(&world.server);
    world.until("the database to answer", "select true").await;
    (world, copy)
}

/// What Anna's clients hold of the future that will be lost: a cursor each, and one the token of an unfinished rebuild.
async fn lost_future(world: &World, wal: &str) -> (Client, Client) {
    let worker = world.worker().await;
    let mut config = world.config();
    (config.limits.rebuild_rows_max, config.limits.outbox_bytes_max) = (1, 1);
    let serving = world.gateway_with(config).await;
    world.sql(wal).await;
    world.sql("insert into items values (2, 'L1', 2, 'lost'), (3, 'L1', 3, 'lost too')").await;
    world.settle().await;
    let mut anna = Client::connected(&serving, Some("anna")).await;
    anna.join("list:L1").await;
    anna.join("list:L2").await;
    assert_eq!(anna.list("L1").len(), 3);
    let mut unfinished = Client::connected(&serving, Some("anna")).await;
    unfinished.subscribe("list:L1").await;
    unfinished.until_seen("a page", |seen| matches!(seen, Seen::Rebuild { .. })).await;
    for client in [&mut anna, &mut unfinished] {
        client.disconnect();
    }
    serving.stop().await;
    worker.stop().await;
    (anna, unfinished)
}

/// Both are told that their history was left, and end with what there is.
async fn rebuild_once(world: &World, anna: &mut Client, unfinished: &mut Client) {
    // A wait would end as `cursor_ahead`, which is not what happens.
    let mut config = world.config();
    config.limits.ahead_max = Duration::from_secs(3600);
    let serving = world.gateway_with(config).await;
    for client in [anna, unfinished] {
        // A new installation here: this database never heard of the old one's id.
        (client.id.0, client.new) = (uuid::Uuid::new_v4(), true);
        client.connect(&serving).await;
        assert_eq!(client.join("list:L1").await, "other_history");
        assert_eq!(client.list("L1"), world.list("L1").await);
        client.disconnect();
        client.connect(&serving).await;
        assert_eq!(client.join("list:L1").await, "resume", "one rebuild, and no more");
        client.disconnect();
    }
    serving.stop().await;
}

pg_test!(
    Private { "wal_level" = "logical" },
    async fn p9_cl06_op03_a_cursor_beyond_the_wal_of_a_restored_database_rebuilds_at_once(server: TestServer) {
        // So far that what the restored server writes by itself does not reach it.
        let (world, copy) = before(server).await;
        let far = "select pg_switch_wal(); create table public.noise as select generate_series(1, 1000) n; select pg_switch_wal()";
        let (mut anna, mut unfinished) = lost_future(&world, far).await;
        copy.put_back(&world.server);
        world.until("the database to answer", "select true").await;
        let worker = world.worker().await;
        world.settle().await;
        let point = Judge::of(&world).await.stands(&anna, "list:L1");
        let written: bool = world
            .scalar(&format!(
                "select pg_current_wal_flush_lsn() > '{}'::pg_lsn",
                point.commit_lsn().expect("a transaction")
            ))
            .await;
        assert!(!written, "the case is what it is meant to be");
        rebuild_once(&world, &mut anna, &mut unfinished).await;
        worker.stop().await;
    }
);

pg_test!(
    Private { "wal_level" = "logical" },
    async fn p9_cl06_op03_a_cursor_that_a_restored_database_has_passed_in_silence_rebuilds(server: TestServer) {
        let (world, copy) = before(server).await;
        let (mut anna, mut unfinished) = lost_future(&world, "select true").await;
        let point = Judge::of(&world).await.stands(&anna, "list:L1");
        let lost = point.commit_lsn().expect("a transaction");
        copy.put_back(&world.server);
        world.until("the database to answer", "select true").await;
        // Nothing that is registered is written. Only what the worker processed tells that nothing was there.
        let mut config = world.capture_config();
        (config.limits.idle_ack_interval, config.limits.idle_ack_bytes_min) = (Duration::ZERO, 1);
        let worker = world.worker_with(config).await;
        world.sql("create table public.noise as select generate_series(1, 10000) n").await;
        let passed = "select processed_end_lsn > ':lost' and materialized_commit_lsn < ':lost' from tidegate.progress";
        world.until("the worker to pass it", &passed.replace(":lost", &lost.to_string())).await;
        rebuild_once(&world, &mut anna, &mut unfinished).await;
        worker.stop().await;
    }
);

pg_test!(
    Private { "wal_level" = "logical" },
    async fn p9_cl06_op03_a_cursor_that_the_stream_of_a_restored_database_has_passed_is_compared(
        server: TestServer
    ) {
        let (world, copy) = before(server).await;
        let (mut anna, mut unfinished) = lost_future(&world, "select true").await;
        let point = Judge::of(&world).await.stands(&anna, "list:L1");
        copy.put_back(&world.server);
        world.until("the database to answer", "select true").await;
        let worker = world.worker().await;
        // Other transactions, at the same positions and beyond.
        let mut id = 100;
        while tip(&world).await <= point {
            id += 1;
            world.sql(&format!("insert into items values ({id}, 'L1', 1, 'another future')")).await;
            world.settle().await;
        }
        rebuild_once(&world, &mut anna, &mut unfinished).await;
        // A scope that was the same in both: its rows are right, so it goes on.
        let serving = world.gateway().await;
        anna.connect(&serving).await;
        assert_eq!(anna.join("list:L2").await, "resume");
        assert_eq!(anna.list("L2"), world.list("L2").await);
        worker.stop().await;
        serving.stop().await;
    }
);

async fn tip(world: &World) -> Point {
    let tip: String = world.scalar("select materialized_commit_lsn::text from tidegate.progress").await;
    Point::TransactionEnd { commit_lsn: tip.parse().expect("a position") }
}

pg_test!(
    Private { "wal_level" = "logical" },
    async fn p9_op03_a_folder_put_back_under_a_running_gateway_ends_its_sessions_and_no_write_is_taken_for_another(
        server: TestServer
    ) {
        let (world, copy) = before(server).await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        let number = anna.write(&world, &[Write::insert(2, "lost")]).await;
        anna.outcome(number).await;
        anna.until_round(number).await;
        worker.stop().await;
        copy.put_back(&world.server);
        world.until("the database to answer", "select true").await;
        let worker = world.worker().await;
        assert_eq!(anna.close_code().await, 4000, "the gateway itself notices");
        // V3: this database never knew the client, so it does not judge its numbers.
        anna.acked = number;
        within_expired(&mut anna, &serving).await;
        let mut again = Client::new(Some("anna"));
        again.model = anna.model.clone();
        again.connect(&serving).await;
        assert_eq!(again.join("list:L1").await, "other_history");
        assert_eq!(again.list("L1"), world.list("L1").await);
        worker.stop().await;
        serving.stop().await;
    }
);

/// Its numbers are refused by name once the gateway follows the stream again.
async fn within_expired(anna: &mut Client, serving: &super::world::Serving) {
    super::world::within("the refusal", async {
        loop {
            anna.open(serving).await;
            anna.hello().await;
            match anna.next().await {
                Some(Seen::Error { code, .. }) if code == "client_expired" => return,
                Some(Seen::Error { code, .. }) if code == "unavailable" => {}
                other => panic!("expected a refusal, got {other:?}"),
            }
        }
    })
    .await;
}
