//! A3, A7: when a boundary may move without a transaction.

use crate::world::observer::Observer;
use crate::world::standing::SLOT;
use crate::world::tap::{Held, Passed, Tap};
use crate::world::{ITEMS, World};
use tidegate_capture::Config;
use tidegate_embedded::pg_test;
use tidegate_model::Lsn;

/// The same worker, connected through the tap.
fn tapped(mut config: Config, tap: &Tap) -> Config {
    config.database_url = tap.url();
    config
}

/// Boundaries that came without a transaction, since the history began.
async fn idle_boundaries(world: &World) -> Vec<Lsn> {
    let sql = "select processed::text from (select id, processed, processed is distinct from lag(processed) over w as moved,
            materialized is distinct from lag(materialized) over w as materialized from public.progress_history window w as (order by id)) h
        where moved and not materialized and id > 1 order by h.id";
    let rows: Vec<String> = sqlx::query_scalar(sql).fetch_all(world.pool()).await.expect("the history");
    rows.iter().map(|text| text.parse().expect("a position")).collect()
}

pg_test!(
    Slots,
    async fn a3_the_only_idle_observation_is_a_keepalive_of_this_connection(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.stop_and_release(worker).await;
        let tap = Tap::before(&world).await;
        let worker = world.start_with(tapped(world.eager(), &tap));
        world.until_streaming().await;
        world.settle().await;
        world.keep_history().await;
        // The server's end of WAL moves on and can be asked for by anybody; this connection says nothing.
        tap.hold(Held { stream: true, status: false });
        world.sql("select pg_logical_emit_message(false, 'nobody', 'x')").await;
        let held = world.until_still().await;
        world.write_noise().await;
        world.until_beats().await;
        let flush = world.lsn("select pg_current_wal_flush_lsn()").await;
        assert!(flush > held.processed);
        assert_eq!(world.standing().await.processed, held.processed, "what others could know moves nothing");
        tap.resume();
        let passed = format!("select processed_end_lsn >= '{flush}'::pg_lsn from tidegate.progress");
        world.until("the boundary to follow", &passed).await;
        world.sql("insert into items values ('a', 'L1')").await;
        world.settle().await;
        world.write_noise().await;
        world.until_beats().await;
        worker.stop().await;
        let ends: Vec<Lsn> = tap
            .passed()
            .iter()
            .filter_map(|passed| match passed {
                Passed::KeepAlive { end, .. } => Some(*end),
                _ => None,
            })
            .collect();
        let idle = idle_boundaries(&world).await;
        assert!(!idle.is_empty());
        for boundary in idle {
            assert!(ends.contains(&boundary), "{boundary} is the end of no keepalive that passed");
        }
    }
);

pg_test!(
    Slots,
    async fn a3_a_keepalive_inside_of_a_transaction_is_no_idle_observation(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.stop_and_release(worker).await;
        let tap = Tap::before(&world).await;
        let worker = world.start_with(tapped(world.eager(), &tap));
        world.until_streams(&worker).await;
        let observer = Observer::start(&world).await;
        // The tap stops the stream behind each message of the transaction in turn. Then comes a keepalive that wants an answer and
        // names an end past the transaction's own. PostgreSQL sends such ones while it decodes what takes long.
        for (round, kind) in [b'B', b'I', b'M'].into_iter().enumerate() {
            tap.stop_after(kind);
            let before = tap.passed().len();
            world.sql(&format!("insert into items values ('{round}', 'L1')")).await;
            tap.until("its message", |passed| passed[before..].contains(&Passed::Data(kind))).await;
            let open = observer.transactions(&world).await.last().expect("a transaction").commit_lsn;
            let still = world.until_still().await;
            world.write_noise().await;
            let end = world.lsn("select pg_current_wal_flush_lsn()").await;
            let told = tap.passed().len();
            tap.send_keepalive(end);
            tap.until("the keepalive and its answer", |passed| {
                let at = passed[told..].iter().position(|p| *p == Passed::KeepAlive { end, asks: true });
                at.is_some_and(|at| passed[told + at..].iter().any(|p| matches!(p, Passed::Status { .. })))
            })
            .await;
            world.until_beats().await;
            assert!(still.processed <= open && still.acknowledged == still.processed, "{still:?}");
            assert_eq!(world.standing().await, still, "open after {}", char::from(kind));
            assert!(tap.told().iter().all(|told| *told <= open));
            tap.resume();
            world.settle().await;
            assert_eq!(world.effects().await.len(), round + 1);
        }
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn a3_a_keepalive_behind_a_transaction_that_waits_is_no_idle_observation(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.stop_and_release(worker).await;
        let tap = Tap::before(&world).await;
        let worker = world.start_with(tapped(world.eager(), &tap));
        world.until_streaming().await;
        world.settle().await;
        let lock = world.lock_projection(1).await;
        // One on its way into a commit, one received and queued behind it.
        world.sql("insert into items values ('a', 'L1')").await;
        world.until_locked_out().await;
        let before = world.standing().await;
        world.sql("insert into items values ('b', 'L1')").await;
        world.write_noise().await;
        let end = world.lsn("select pg_current_wal_flush_lsn()").await;
        let behind = |passed: &Passed| matches!(passed, Passed::KeepAlive { end: seen, .. } if *seen >= end);
        tap.until("a keepalive behind both", |passed| passed.iter().any(behind)).await;
        world.until_beats().await;
        let during = world.standing().await;
        assert_eq!((during.processed, during.transactions), (before.processed, before.transactions));
        assert!(tap.told().iter().all(|told| *told <= before.processed));
        lock.rollback().await.expect("rollback");
        let passed = format!("select processed_end_lsn >= '{end}'::pg_lsn from tidegate.progress");
        world.until("the boundary to follow", &passed).await;
        assert_eq!(world.effects().await, ["list:L1 upsert a", "list:L1 upsert b"]);
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn a7_idle_ack_stops_at_active_poison(world: World) {
        world.sql(ITEMS).await;
        let config = world.eager();
        let worker = world.start_with(config.clone());
        world.until_streaming().await;
        world.sql("select pg_logical_emit_message(true, 'tidegate.marker', 'malformed')").await;
        world.until("poison", "select exists (select from tidegate.poison where status = 'active')").await;
        let before =
            world.text(&format!("select {SLOT}::text || processed_end_lsn from tidegate.progress")).await;
        world
            .sql("create table public.noise as select g, repeat('x', 500) from generate_series(1, 2000) g")
            .await;
        worker.kill().await;
        let worker = world.start_with(config);
        world.until("blocked", "select h.state = 'blocked' from tidegate.worker_heartbeat h join tidegate.worker using (epoch) where epoch > 1").await;
        assert_eq!(
            world.text(&format!("select {SLOT}::text || processed_end_lsn from tidegate.progress")).await,
            before
        );
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn a7_a_record_that_appears_beside_a_running_stream_stops_idle_acknowledgement(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start_with(world.eager());
        world.until_streaming().await;
        world.settle().await;
        let recorded = "with here as (select generation, processed_end_lsn from tidegate.progress for update),
            recorded as (insert into tidegate.poison (generation, commit_lsn, failure_class, explanation)
                select generation, processed_end_lsn, 'stream_unreadable', 'a test' from here returning commit_lsn)
            select commit_lsn::text from recorded";
        let at: Lsn = world.text(recorded).await.parse().expect("a position");
        world.write_noise().await;
        world.until("blocked", "select state = 'blocked' from tidegate.worker_heartbeat").await;
        let now = world.standing().await;
        assert!(now.processed == at && now.slot <= at, "{now:?}, recorded at {at}");
        worker.stop().await;
    }
);
