//! WR-03: what a client with an optimistic copy relies on. It may drop the copy exactly at `materialized`, which comes once, with the
//! rows, also when capture stands still, the client reloads, types fast, or writes what has no effect.

use super::client::{Client, Write, text};
use super::hold::WorkerHold;
use super::judge::{Judge, ran};
use super::model_client::Seen;
use super::world::{MEMBERS, World};
use tidegate_capture::failpoints as capture;
use tidegate_embedded::pg_test;
use tidegate_protocol::{MutationOp, MutationStatus};

fn shown(client: &Client, id: i64) -> Option<String> {
    client.list("L1").into_iter().find(|row| row.0 == id).and_then(|row| row.2)
}

/// Reads until the number is announced and its cut applied: the row that the cut shows is the written one, so that a copy dropped
/// there leaves no gap. Before that, the row is never the written one without the announcement.
async fn drops_without_flicker(client: &mut Client, number: u64, id: i64, written: &str) {
    loop {
        let told = client.model.materialized.contains(&number);
        let there = shown(client, id).as_deref() == Some(written);
        assert!(told || !there, "WR-03: the row came without its announcement");
        if there {
            return;
        }
        client.next().await.expect("the socket stays open");
        if client.model.materialized.contains(&number) && !told {
            client.next().await.expect("its cut");
            assert_eq!(
                shown(client, id).as_deref(),
                Some(written),
                "WR-03: announced with the rows that it made"
            );
            return;
        }
    }
}

pg_test!(
    Slots,
    async fn wr03_v6_a_worker_that_stands_still_while_the_client_pushes_and_reloads(world: World) {
        world.sql(MEMBERS).await;
        world.sql("insert into items values (1, 'L1', 1, 'old')").await;
        let (worker, serving) = world.start_apart().await;
        let judge = Judge::of(&world).await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        let mut hold = WorkerHold::at(capture::MATERIALIZE_WRITTEN);
        let number = anna.write(&world, &[Write::update(1, "new")]).await;
        anna.outcome(number).await;
        hold.reached().await;
        // Again and again, with what its store has; each time the old row stays, and nothing says that the write is there.
        for _ in 0..3 {
            anna.disconnect();
            anna.connect(&serving).await;
            anna.subscribe("list:L1").await;
            anna.until_seen("capture_pending", |seen| *seen == Seen::CapturePending(vec![number])).await;
            anna.ping().await;
            assert!(!anna.model.is_joined("list:L1"));
            assert_eq!(shown(&anna, 1).as_deref(), Some("old"));
        }
        drop(hold);
        drops_without_flicker(&mut anna, number, 1, "new").await;
        judge.came_round_once(&world, &anna, number).await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn wr03_v6_fast_typing_under_lag_is_announced_key_by_key_with_what_each_made(world: World) {
        world.sql(MEMBERS).await;
        world.sql("insert into items values (1, 'L1', 1, '')").await;
        let (worker, serving) = world.start_apart().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        let typed = "optimistic copies";
        // Each transaction is held for as long as it takes to type on: the lag is many keys long.
        let mut hold = WorkerHold::at(capture::MATERIALIZE_WRITTEN);
        let mut numbers = Vec::new();
        for end in 1..=typed.len() {
            let number = match numbers.last() {
                None => anna.write(&world, &[Write::update(1, &typed[..end])]).await,
                Some(before) => anna.write(&world, &[Write::update(1, &typed[..end]).after(*before)]).await,
            };
            numbers.push(number);
            if end % 3 == 0 {
                hold.reached().await;
                hold.let_one_go();
            }
        }
        drop(hold);
        for number in &numbers {
            anna.until_round(*number).await;
        }
        anna.until_list(&world, "L1").await;
        assert_eq!(shown(&anna, 1).as_deref(), Some(typed));
        assert!(anna.results.iter().all(|result| result.status == MutationStatus::Accepted));
        for number in numbers {
            assert_eq!(ran(&world, &anna, number).await, 1);
            Judge::of(&world).await.came_round_once(&world, &anna, number).await;
        }
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn wr03_v6_what_changes_nothing_leaves_the_scope_or_is_rewritten_is_announced_too(world: World) {
        world.sql(MEMBERS).await;
        world.sql("insert into items values (1, 'L1', 1, 'as it is'), (2, 'L9', 2, 'elsewhere'), (3, 'L1', 3, 'x')").await;
        world
            .sql(
                "create function public.rewrite() returns trigger language plpgsql as $$ begin
                   if new.body = 'shout' then new.body := 'SHOUT'; end if; return new; end $$;
                 create trigger rewrite before insert or update on items for each row execute function public.rewrite()",
            )
            .await;
        let (worker, serving) = world.start().await;
        let judge = Judge::of(&world).await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        let moved = Write::new(MutationOp::Update, 3, vec![("list_id", text("L9"))]);
        let writes = [
            // To the same values.
            Write::update(1, "as it is"),
            // A row that no scope of hers has, before or after.
            Write::update(2, "still elsewhere"),
            // What a trigger makes of it.
            Write::insert(4, "shout"),
            // Out of her scope.
            moved,
            // There and gone: no effect at all.
            Write::insert(5, "short"),
            Write::delete(5),
        ];
        for write in &writes {
            let number = anna.write(&world, std::slice::from_ref(write)).await;
            let result = anna.outcome(number).await.remove(0);
            assert_eq!(result.status, MutationStatus::Accepted, "{result:?}");
            anna.until_round(number).await;
            judge.came_round_once(&world, &anna, number).await;
        }
        anna.until_list(&world, "L1").await;
        assert_eq!(shown(&anna, 4).as_deref(), Some("SHOUT"));
        // The same in one push, of which nothing is left.
        let first =
            anna.write(&world, &[Write::insert(6, "a"), Write::update(6, "b"), Write::delete(6)]).await;
        assert!(anna.outcome(first).await.iter().all(|result| result.status == MutationStatus::Accepted));
        for number in first..first + 3 {
            anna.until_round(number).await;
            judge.came_round_once(&world, &anna, number).await;
        }
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn wr03_q2_pushed_while_the_stream_is_blocked_it_is_committed_and_not_yet_visible(world: World) {
        world.sql(MEMBERS).await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        // A message of ours that cannot be read blocks the stream there (Q2).
        world.sql("select pg_logical_emit_message(true, 'tidegate.marker', 'malformed')").await;
        world
            .until(
                "the stream to block",
                "select exists (select from tidegate.poison where status = 'active')",
            )
            .await;
        let number = anna.write(&world, &[Write::insert(1, "hers")]).await;
        assert_eq!(anna.outcome(number).await[0].status, MutationStatus::Accepted, "committed");
        anna.disconnect();
        anna.connect(&serving).await;
        anna.subscribe("list:L1").await;
        anna.until_seen("capture_pending", |seen| *seen == Seen::CapturePending(vec![number])).await;
        anna.ping().await;
        assert!(anna.awaited.contains(&number) && !anna.model.is_joined("list:L1"), "not yet visible");
        // An operator resets the stream: the write is covered by the new baseline, and told with its rebuild.
        let mut connection = world.pool().acquire().await.expect("a connection");
        tidegate_capture::reset::request(&mut connection, "test", "wr03").await.expect("asked");
        drop(connection);
        assert_eq!(anna.close_code().await, 4000, "the old stream is left");
        anna.connect(&serving).await;
        assert_eq!(anna.join("list:L1").await, "other_generation");
        anna.until_round(number).await;
        anna.until_list(&world, "L1").await;
        let told = anna.seen.iter().filter(|seen| **seen == Seen::Materialized(vec![number])).count();
        assert_eq!(told, 1, "V6");
        assert_eq!(ran(&world, &anna, number).await, 1);
        worker.stop().await;
        serving.stop().await;
    }
);
