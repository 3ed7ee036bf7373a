//! Answers that are lost, at every place where one can be (V3, V6, WR-01): the first outcome stays, nothing runs twice, and each
//! socket is told once when the write has come round.

use super::client::{Client, Write};
use super::hold::{GatewayHold, WorkerHold};
use super::judge::{Judge, ran};
use super::link::{Link, Weather};
use super::model_client::Seen;
use super::world::{MEMBERS, World};
use tidegate_capture::failpoints as capture;
use tidegate_embedded::pg_test;
use tidegate_gateway::failpoints as gateway;
use tidegate_gateway::push::PushConfig;
use tidegate_protocol::{Base, MutationStatus};

fn a_few() -> [Write; 3] {
    [Write::insert(1, "first"), Write::insert(2, "second").on(Base::None), Write::update(1, "third").after(1)]
}

/// After a reconnect: the push again, its first outcome, and everything told once, where it belongs.
async fn settles(world: &World, anna: &mut Client, first: u64, writes: &[Write]) {
    let judge = Judge::of(world).await;
    anna.subscribe("list:L1").await;
    anna.resend(world, first, writes).await;
    let results = anna.outcome(first).await;
    assert!(results.iter().all(|result| result.status == MutationStatus::Accepted), "{results:?}");
    for number in first..first + writes.len() as u64 {
        anna.until_round(number).await;
        judge.came_round_once(world, anna, number).await;
        assert_eq!(ran(world, anna, number).await, 1, "V3: {number} ran once");
    }
    anna.until_list(world, "L1").await;
    // And once more on the same socket: the same outcome, and nothing more is told.
    anna.resend(world, first, writes).await;
    assert_eq!(anna.outcome(first).await, results, "V3: the first outcome");
    anna.ping().await;
}

pg_test!(
    Slots,
    async fn wr01_v3_a_socket_cut_before_the_push_ran_leaves_it_to_be_sent_again(world: World) {
        world.sql(MEMBERS).await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        let mut hold = GatewayHold::of(gateway::PUSH_RUN, "anna");
        let first = anna.write(&world, &a_few()).await;
        hold.reached().await;
        anna.disconnect();
        // Its socket is gone, and the push with it: nobody else could have run it.
        drop(hold);
        anna.connect(&serving).await;
        assert_eq!(anna.seen.last(), Some(&Seen::Welcome { last: 0 }));
        settles(&world, &mut anna, first, &a_few()).await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn wr01_v3_v6_committed_and_the_socket_cut_before_the_reply(world: World) {
        world.sql(MEMBERS).await;
        let (worker, serving) = world.start().await;
        let elsewhere = world.gateway().await;
        for (round, next) in [&serving, &elsewhere].into_iter().enumerate() {
            let mut anna = Client::connected(&serving, Some("anna")).await;
            let mut hold = GatewayHold::of(gateway::PUSH_ENDED, "anna");
            let first = anna.write(&world, &a_few()).await;
            hold.reached().await;
            anna.disconnect();
            drop(hold);
            anna.connect(next).await;
            assert_eq!(
                anna.seen.last(),
                Some(&Seen::Welcome { last: 3 }),
                "round {round}: it is known to have run"
            );
            settles(&world, &mut anna, first, &a_few()).await;
            world.sql("delete from items").await;
        }
        worker.stop().await;
        serving.stop().await;
        elsewhere.stop().await;
    }
);

pg_test!(
    Slots,
    async fn wr01_v3_v6_committed_and_the_gateway_killed_before_the_reply(world: World) {
        world.sql(MEMBERS).await;
        let worker = world.worker().await;
        let doomed = world.gateway_apart(world.config()).await;
        let mut anna = Client::connected(&doomed, Some("anna")).await;
        let mut hold = GatewayHold::of(gateway::PUSH_ENDED, "anna");
        let first = anna.write(&world, &a_few()).await;
        hold.reached().await;
        doomed.kill().await;
        assert_eq!(anna.next().await, None, "the socket broke without a word");
        drop(hold);
        let serving = world.gateway().await;
        anna.connect(&serving).await;
        settles(&world, &mut anna, first, &a_few()).await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn wr01_v6_the_outcome_came_and_the_socket_was_cut_before_it_came_round(world: World) {
        world.sql(MEMBERS).await;
        let (worker, serving) = world.start_apart().await;
        let judge = Judge::of(&world).await;
        let elsewhere = world.gateway().await;
        for next in [&serving, &elsewhere] {
            let mut anna = Client::connected(&serving, Some("anna")).await;
            anna.join("list:L1").await;
            let mut hold = WorkerHold::at(capture::MATERIALIZE_WRITTEN);
            let first = anna.write(&world, &a_few()).await;
            let outcome = anna.outcome(first).await;
            hold.reached().await;
            anna.disconnect();
            assert_eq!(anna.awaited.len(), 3);
            // Awaited, not sent again.
            anna.connect(next).await;
            anna.subscribe("list:L1").await;
            drop(hold);
            for number in first..first + 3 {
                anna.until_round(number).await;
                judge.came_round_once(&world, &anna, number).await;
            }
            anna.until_list(&world, "L1").await;
            anna.resend(&world, first, &a_few()).await;
            assert_eq!(anna.outcome(first).await, outcome, "V3: the first outcome");
            anna.ping().await;
            // Where it has come round before anybody came back, it is told all the same.
            anna.disconnect();
            anna.awaited = (first..first + 3).collect();
            anna.connect(next).await;
            anna.subscribe("list:L1").await;
            for number in first..first + 3 {
                anna.until_round(number).await;
            }
            anna.ping().await;
            for number in first..first + 3 {
                judge.came_round_once(&world, &anna, number).await;
            }
            world.sql("delete from items").await;
        }
        worker.stop().await;
        serving.stop().await;
        elsewhere.stop().await;
    }
);

pg_test!(
    Slots,
    async fn wr01_v3_a_commit_whose_answer_is_lost_is_settled_and_told_once(world: World) {
        world.sql(MEMBERS).await;
        let worker = world.worker().await;
        let link = Link::to(world.server.port()).await;
        let mut config = world.config();
        config.push = Some(PushConfig { connections_max: 2, ..world.push_config(link.port) });
        let serving = world.gateway_with(config).await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        // Every connection that pushes is warm: its next answer is that of a push.
        for round in 0..4 {
            let number = anna.write(&world, &[Write::upsert(9, &format!("warm {round}"))]).await;
            anna.outcome(number).await;
        }
        link.set(Weather::Lossy);
        let writes = [Write::insert(1, "once"), Write::insert(9, "is there already")];
        let first = anna.write(&world, &writes).await;
        link.lost(1).await;
        link.set(Weather::Fair);
        // The gateway asks again by itself, or says that it cannot: then so does the client.
        let told = |seen: &Seen| matches!(seen, Seen::Outcome { .. } | Seen::Error { .. });
        if let Seen::Error { code, .. } = anna.until_seen("an answer", told).await {
            assert_eq!(code, "unavailable", "an error, not an outcome");
            anna.resend(&world, first, &writes).await;
            anna.outcome(first).await;
        }
        let results = anna.results[anna.results.len() - 2..].to_vec();
        assert_eq!(results[0].status, MutationStatus::Accepted);
        assert_eq!(
            (results[1].status, results[1].code.as_deref()),
            (MutationStatus::Conflict, Some("row_exists"))
        );
        anna.until_round(first).await;
        Judge::of(&world).await.came_round_once(&world, &anna, first).await;
        assert_eq!(ran(&world, &anna, first).await, 1);
        anna.resend(&world, first, &writes).await;
        assert_eq!(anna.outcome(first).await, results, "rejections are first outcomes too");
        anna.until_list(&world, "L1").await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn wr01_v3_a_push_whose_connection_breaks_before_its_commit_runs_once_in_the_end(world: World) {
        world.sql(MEMBERS).await;
        world.sql("insert into items values (1, 'L1', 1, 'old')").await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        let mut owner = world.pool().begin().await.expect("a transaction");
        sqlx::query("select from items where id = 1 for update").execute(&mut *owner).await.expect("a lock");
        let first = anna.write(&world, &[Write::update(1, "new")]).await;
        // It is inside of its transaction, its number recorded, when its server process goes.
        let waiting = "from pg_stat_activity where datname = current_database() and application_name = 'tidegate push' and wait_event_type = 'Lock'";
        world.until("the push to wait", &format!("select count(*) = 1 {waiting}")).await;
        world.sql(&format!("select pg_terminate_backend(pid) {waiting}")).await;
        owner.rollback().await.expect("the end");
        let told = |seen: &Seen| matches!(seen, Seen::Outcome { .. } | Seen::Error { .. });
        if let Seen::Error { code, .. } = anna.until_seen("an answer", told).await {
            assert_eq!(code, "unavailable");
            anna.resend(&world, first, &[Write::update(1, "new")]).await;
            anna.outcome(first).await;
        }
        assert_eq!(anna.results.last().map(|result| result.status), Some(MutationStatus::Accepted));
        anna.until_round(first).await;
        assert_eq!(ran(&world, &anna, first).await, 1);
        anna.until_list(&world, "L1").await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn wr01_v3_one_number_at_two_gateways_at_the_same_time_runs_once(world: World) {
        world.sql(MEMBERS).await;
        let (worker, serving) = world.start().await;
        let elsewhere = world.gateway().await;
        let judge = Judge::of(&world).await;
        let mut here = Client::connected(&serving, Some("anna")).await;
        let mut there = here.twin();
        there.connect(&elsewhere).await;
        here.join("list:L1").await;
        there.join("list:L1").await;
        for round in 0..5 {
            let mut hold = GatewayHold::of(gateway::PUSH_RUN, "anna");
            let writes =
                [Write::upsert(1, &format!("one {round}")), Write::upsert(2, &format!("two {round}"))];
            let first = here.write(&world, &writes).await;
            there.resend(&world, first, &writes).await;
            hold.reached().await;
            hold.reached().await;
            drop(hold);
            let outcomes = [here.outcome(first).await, there.outcome(first).await];
            assert_eq!(outcomes[0], outcomes[1], "V3: one outcome, wherever it is asked for");
            for (client, number) in [(&mut here, first), (&mut there, first + 1)] {
                client.until_round(number).await;
                client.until_list(&world, "L1").await;
                judge.came_round_once(&world, client, number).await;
                assert_eq!(ran(&world, client, number).await, 1);
            }
        }
        worker.stop().await;
        serving.stop().await;
        elsewhere.stop().await;
    }
);

pg_test!(
    Slots,
    async fn wr01_f10_a_compare_and_swap_sent_again_keeps_its_outcome_though_its_base_is_stale_by_itself(
        world: World,
    ) {
        world.sql(MEMBERS).await;
        let (worker, serving) = world.start().await;
        let elsewhere = world.gateway().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        let number = anna.write(&world, &[Write::insert(1, "a")]).await;
        let base = anna.outcome(number).await[0].version.expect("a version");
        let swap = [Write::update(1, "b").on(Base::Version(base))];
        let first = anna.write(&world, &swap).await;
        let accepted = anna.outcome(first).await;
        assert_eq!(accepted[0].status, MutationStatus::Accepted);
        // Somebody writes over it: what came later has no part in what was decided.
        world.sql("update items set body = 'c' where id = 1").await;
        let lost = anna.write(&world, &swap).await;
        let conflict = anna.outcome(lost).await;
        assert_eq!(
            (conflict[0].status, conflict[0].code.as_deref()),
            (MutationStatus::Conflict, Some("conflict"))
        );
        for serving in [&serving, &elsewhere] {
            anna.disconnect();
            anna.connect(serving).await;
            anna.resend(&world, first, &swap).await;
            assert_eq!(anna.outcome(first).await, accepted);
            anna.resend(&world, lost, &swap).await;
            assert_eq!(anna.outcome(lost).await, conflict);
            anna.join("list:L1").await;
            assert_eq!(anna.list("L1"), world.list("L1").await);
        }
        worker.stop().await;
        serving.stop().await;
        elsewhere.stop().await;
    }
);
