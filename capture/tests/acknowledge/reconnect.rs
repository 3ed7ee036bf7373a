//! A9: each connection begins level with the durable acknowledgement, and says where it starts.

use crate::world::tap::{Held, Passed, Tap};
use crate::world::{ITEMS, World};
use tidegate_capture::{CaptureError, Config};
use tidegate_embedded::pg_test;
use tidegate_model::Lsn;

fn tapped(world: &World, tap: &Tap) -> Config {
    let mut config = world.without_idle();
    config.database_url = tap.url();
    config
}

/// Explicit start positions that passed.
fn starts(tap: &Tap) -> Vec<Lsn> {
    let start = |passed: Passed| match passed {
        Passed::Start { at, .. } => Some(at),
        _ => None,
    };
    tap.passed().into_iter().filter_map(start).collect()
}

pg_test!(
    Slots,
    async fn a9_every_connection_starts_explicitly_at_the_durable_acknowledgement(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start_with(world.without_idle());
        world.until_streaming().await;
        world.settle().await;
        let at = world.until_acknowledged().await;
        world.stop_and_release(worker).await;
        let mut tap = Tap::before(&world).await;
        let worker = world.start_with(tapped(&world, &tap));
        world.until_streams(&worker).await;
        assert_eq!(starts(&tap), [at.acknowledged]);
        let slot = world.text("select slot_name::text from tidegate.stream_generation").await;
        assert!(tap.passed().contains(&Passed::Start { slot, at: at.acknowledged }));
        // After a crash with the boundary ahead of the acknowledgement it is the acknowledgement all the same.
        tap.hold(Held { stream: false, status: true });
        world.sql("insert into items values ('ahead', 'L1')").await;
        world.settle().await;
        worker.kill().await;
        let ahead = world.standing().await;
        assert!(ahead.acknowledged < ahead.processed && ahead.slot == ahead.acknowledged, "{ahead:?}");
        // What the dead worker's wire has held back is lost with it.
        tap.cut();
        let tap = Tap::before(&world).await;
        let worker = world.start_with(tapped(&world, &tap));
        world.until_streams(&worker).await;
        assert_eq!(starts(&tap), [ahead.acknowledged]);
        // A reconnect of the same worker: the same again, further on.
        world.sql("insert into items values ('a', 'L1')").await;
        world.settle().await;
        let at = world.until_acknowledged().await;
        world.sql("select pg_terminate_backend(walsender_pid) from tidegate.worker").await;
        tap.until("another start", |passed| {
            passed.iter().filter(|p| matches!(p, Passed::Start { .. })).count() == 2
        })
        .await;
        assert_eq!(starts(&tap)[1], at.acknowledged);
        world.sql("insert into items values ('b', 'L1')").await;
        world.settle().await;
        assert_eq!(world.effects().await, ["list:L1 upsert ahead", "list:L1 upsert a", "list:L1 upsert b"]);
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn a9_a_slot_that_is_not_level_after_reconciliation_blocks_and_says_so(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start_with(world.without_idle());
        world.until_streaming().await;
        world.settle().await;
        let before = world.until_acknowledged().await;
        world.stop_and_release(worker).await;
        // Somebody moves the slot on between the moment when the worker adopts its position and the moment when it looks again, up
        // to twice. Each time what it has recorded is not where the slot stands.
        let step = "pg_replication_slot_advance((select slot_name from tidegate.stream_generation), {to})";
        world.sql("create table public.meddling (left_to_do int); insert into meddling values (2);
            create table public.reasons (id bigint generated always as identity, state text, reason text);
            create function public.note() returns trigger language plpgsql as $f$
            begin insert into public.reasons (state, reason) values (new.state, new.reason); return null; end $f$;
            create trigger note after insert or update on tidegate.worker_heartbeat for each row execute function public.note();").await;
        world.sql(&format!("create function public.meddle() returns trigger language plpgsql as $f$
            begin
                update public.meddling set left_to_do = left_to_do - 1 where left_to_do > 0;
                if found then perform {}; end if;
                return null;
            end $f$;
            create trigger meddle after update of acknowledged_end_lsn on tidegate.progress for each row execute function public.meddle()",
            step.replace("{to}", "new.acknowledged_end_lsn + 8"))).await;
        // The boundary is ahead, as after a crash before the slot moved; the slot stands between.
        world.write_noise().await;
        world
            .sql(&format!(
                "update tidegate.progress set processed_end_lsn = pg_current_wal_flush_lsn(); select {}",
                step.replace("{to}", &format!("'{}'::pg_lsn + 8", before.slot))
            ))
            .await;
        let tap = Tap::before(&world).await;
        let worker = world.start_with(tapped(&world, &tap));
        world.until("the reason", "select count(*) = 2 from (select distinct id from public.reasons
            where state = 'retrying' and reason = 'the slot is not at the acknowledgement after reconciliation') r").await;
        world.until_streams(&worker).await;
        // It never streamed from a place that was not level, and does once nobody meddles any more.
        let at = world.standing().await;
        assert_eq!(starts(&tap), [at.acknowledged]);
        assert_eq!(world.scalar::<i32>("select left_to_do from meddling").await, 0);
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn a9_op03_another_server_or_slot_is_refused(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.stop_and_release(worker).await;
        for (damage, repair, expected) in [
            ("system_identifier = '1'", None, "system identifier"),
            ("timeline = 77", None, "timeline"),
            ("database_oid = 1", None, "another database"),
            ("slot_name = 'tidegate_missing'", None, "does not exist"),
            (
                "slot_name = 'foreign_slot'",
                Some("select pg_create_logical_replication_slot('foreign_slot', 'test_decoding')"),
                "foreign_slot",
            ),
        ] {
            if let Some(sql) = repair {
                // The plugin is not in every package.
                if sqlx::raw_sql(sql).execute(world.pool()).await.is_err() {
                    continue;
                }
            }
            world
                .sql("create table if not exists public.saved as select * from tidegate.stream_generation")
                .await;
            world.sql(&format!("update tidegate.stream_generation set {damage}")).await;
            let error = world.start().ended().await;
            assert!(
                matches!(error, CaptureError::Refused(_)) && error.to_string().contains(expected),
                "{damage}: {error}"
            );
            let shown = "select state = 'stopped' and reason <> '' from tidegate.worker_heartbeat join tidegate.worker using (epoch)";
            world.until("the reason to show", shown).await;
            world.sql("update tidegate.stream_generation g set system_identifier = s.system_identifier, timeline = s.timeline,
            database_oid = s.database_oid, slot_name = s.slot_name from public.saved s").await;
        }
        let worker = world.start();
        world.until_streaming().await;
        worker.stop().await;
    }
);
