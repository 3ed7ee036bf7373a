//! V3: a row's writes that build on each other before anybody knows what the first one produced, in one push and in pieces, sent
//! again whole, and with somebody else's write in between.

use super::client::{Client, Write};
use super::hold::GatewayHold;
use super::judge::{Judge, ran};
use super::world::{MEMBERS, World};
use tidegate_embedded::pg_test;
use tidegate_gateway::failpoints as gateway;
use tidegate_protocol::{MutationResult, MutationStatus, RowVersion};

use MutationStatus::{Accepted, Conflict, Rejected};

/// `insert → update → update` of one row, the first under number `first`.
fn chain(id: i64, first: u64) -> [Write; 3] {
    [
        Write::insert(id, "one"),
        Write::update(id, "two").after(first),
        Write::update(id, "three").after(first + 1),
    ]
}

fn verdicts<'r>(results: &'r [MutationResult<'static>]) -> Vec<(u64, MutationStatus, &'r str)> {
    results.iter().map(|r| (r.number.0, r.status, r.code.as_deref().unwrap_or(""))).collect()
}

/// The version that the row has now, by the fences' own table.
async fn version(world: &World, id: i64) -> Option<RowVersion> {
    let relation: i32 =
        world.scalar("select relation_id from tidegate.relation where table_name = 'items'").await;
    let sql = format!("select version from tidegate.row_version_{relation} where key = {id}");
    Some(RowVersion(world.scalar(&sql).await))
}

pg_test!(
    Slots,
    async fn v3_a_chain_in_one_push_and_in_pieces_has_the_same_outcomes_sent_again_whole(world: World) {
        world.sql(MEMBERS).await;
        let (worker, serving) = world.start().await;
        let judge = Judge::of(&world).await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;

        // In one push.
        let whole = chain(1, 1);
        let first = anna.write(&world, &whole).await;
        let outcome = anna.outcome(first).await;
        assert_eq!(verdicts(&outcome), [(1, Accepted, ""), (2, Accepted, ""), (3, Accepted, "")]);
        let versions: Vec<_> = outcome.iter().map(|result| result.version).collect();
        assert!(
            versions.iter().all(Option::is_some) && versions[0] != versions[1] && versions[1] != versions[2]
        );
        assert_eq!(versions[2], version(&world, 1).await, "the last one's version is the row's");

        // In pieces, each sent before the one before it is answered.
        let pieces = chain(2, 4);
        for (number, write) in (4..).zip(&pieces) {
            anna.resend(&world, number, std::slice::from_ref(write)).await;
        }
        anna.next_number = 7;
        for number in 4..7 {
            assert_eq!(verdicts(&anna.outcome(number).await), [(number, Accepted, "")]);
        }
        assert_eq!(anna.results.last().expect("an outcome").version, version(&world, 2).await);

        // Sent again, whole or from the middle, as they were sent.
        anna.resend(&world, first, &whole).await;
        assert_eq!(anna.outcome(first).await, outcome);
        for (number, write) in (4..).zip(&pieces).skip(1) {
            anna.resend(&world, number, std::slice::from_ref(write)).await;
            assert_eq!(verdicts(&anna.outcome(number).await), [(number, Accepted, "")]);
        }
        for number in 1..7 {
            anna.until_round(number).await;
            assert_eq!(ran(&world, &anna, number).await, 1, "V3: {number} ran once");
        }
        anna.until_list(&world, "L1").await;
        for number in 1..7 {
            judge.came_round_once(&world, &anna, number).await;
        }
        let bodies: Vec<_> =
            anna.list("L1").into_iter().map(|(id, _, body)| (id, body.expect("a body"))).collect();
        assert_eq!(bodies, [(1, "three".into()), (2, "three".into())]);
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v3_a_chain_that_somebody_wrote_into_ends_there_and_what_builds_on_it_is_told_why(world: World) {
        world.sql(MEMBERS).await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        let pieces = chain(1, 1);
        anna.resend(&world, 1, &pieces[..1]).await;
        assert_eq!(verdicts(&anna.outcome(1).await), [(1, Accepted, "")]);
        // Sent, and before they run the application writes the row.
        let mut hold = GatewayHold::of(gateway::PUSH_RUN, "anna");
        anna.resend(&world, 2, &pieces[1..]).await;
        hold.reached().await;
        world.sql("update items set body = 'the application''s' where id = 1").await;
        drop(hold);
        let outcome = anna.outcome(2).await;
        assert_eq!(verdicts(&outcome), [(2, Conflict, "conflict"), (3, Rejected, "dependency_rejected")]);
        assert!(
            outcome.iter().all(|result| result.row.is_none() && result.version.is_none()),
            "V1: {outcome:?}"
        );
        // What is built on it later is refused likewise; what is not, runs.
        anna.next_number = 4;
        let later = [Write::update(1, "on the third").after(3), Write::insert(2, "apart")];
        let first = anna.write(&world, &later).await;
        let refused = anna.outcome(first).await;
        assert_eq!(verdicts(&refused), [(4, Rejected, "dependency_rejected"), (5, Accepted, "")]);
        // On another socket: the same, although the row has moved on again.
        world.sql("update items set body = 'again' where id = 1").await;
        anna.disconnect();
        anna.connect(&serving).await;
        anna.resend(&world, 2, &pieces[1..]).await;
        assert_eq!(anna.outcome(2).await, outcome);
        anna.resend(&world, first, &later).await;
        assert_eq!(anna.outcome(first).await, refused);
        anna.join("list:L1").await;
        anna.until_list(&world, "L1").await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v3_a_chain_cut_in_the_middle_goes_on_at_another_gateway(world: World) {
        world.sql(MEMBERS).await;
        let (worker, serving) = world.start().await;
        let elsewhere = world.gateway().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        let pieces = chain(1, 1);
        // The first has run and its answer is lost; the others wait behind it and never ran.
        let mut hold = GatewayHold::of(gateway::PUSH_ENDED, "anna");
        for (number, write) in (1..).zip(&pieces) {
            anna.resend(&world, number, std::slice::from_ref(write)).await;
        }
        hold.reached().await;
        anna.disconnect();
        drop(hold);
        anna.connect(&elsewhere).await;
        anna.join("list:L1").await;
        for (number, write) in (1..).zip(&pieces) {
            anna.resend(&world, number, std::slice::from_ref(write)).await;
        }
        for number in 1..4 {
            assert_eq!(verdicts(&anna.outcome(number).await), [(number, Accepted, "")]);
            assert_eq!(ran(&world, &anna, number).await, 1);
        }
        assert_eq!(anna.results.last().expect("an outcome").version, version(&world, 1).await);
        anna.until_list(&world, "L1").await;
        worker.stop().await;
        serving.stop().await;
        elsewhere.stop().await;
    }
);

pg_test!(
    Slots,
    async fn v3_a_number_is_settled_once_whether_it_is_sent_voided_forked_or_skipped(world: World) {
        world.sql(MEMBERS).await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.resend(&world, 2, &[Write::insert(2, "skipped one")]).await;
        assert_eq!(anna.error().await, "gap");
        anna.resend(&world, 1, &[Write::insert(1, "one")]).await;
        let accepted = anna.outcome(1).await;
        anna.void(90, &[1, 2]).await;
        let settled = anna.outcome(90).await;
        assert_eq!(settled[0], accepted[0], "it ran: its first outcome");
        assert_eq!(settled[1].status, MutationStatus::Discarded);
        // Discarded for ever, whatever content comes under its number.
        anna.resend(&world, 2, &[Write::insert(2, "too late")]).await;
        assert_eq!(verdicts(&anna.outcome(2).await), [(2, MutationStatus::Discarded, "discarded")]);
        anna.resend(&world, 1, &[Write::insert(1, "another one")]).await;
        assert_eq!(anna.error().await, "client_forked");
        assert_eq!(anna.close_code().await, 4001);
        assert_eq!(world.scalar::<i64>("select count(*) from items").await, 1);
        worker.stop().await;
        serving.stop().await;
    }
);
