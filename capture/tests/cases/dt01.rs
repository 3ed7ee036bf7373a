//! DT-01: a large value that an update does not touch.

use crate::world::{LISTS_AND_ITEMS, World};
use tidegate_embedded::pg_test;

/// 64,000 characters that do not compress to a page: stored out of line.
const BODY: &str = "(select string_agg(md5(g::text), '') from generate_series(1, 2000) g)";

fn insert(id: i64) -> String {
    format!("insert into item select {id}, 'L1', 'a', {BODY}, null, 1")
}

/// Lengths of title and body of every projected item, and of every upserted one: what was omitted is never empty.
async fn assert_whole(world: &World) {
    world.assert_consistent().await;
    let body = world.text(&format!("select {BODY}")).await;
    for row in world.projected_rows("item").await.into_iter().chain(world.effect_rows("item").await) {
        assert_eq!(row[3].as_deref(), Some(body.as_str()), "the body of item {:?}", row[0]);
    }
}

async fn out_of_line(world: &World) -> bool {
    world.scalar("select bool_and(pg_column_size(body) > 2000) and pg_relation_size(reltoastrelid) > 50000 from item, pg_class where oid = 'item'::regclass group by reltoastrelid").await
}

pg_test!(
    Slots,
    async fn dt01_r8_an_update_does_not_empty_what_it_omits(world: World) {
        world.sql(LISTS_AND_ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql("insert into list values ('L1', 'one')").await;
        world.sql(&insert(1)).await;
        world.sql("update item set title = 'b' where id = 1").await;
        world.settle().await;
        assert!(out_of_line(&world).await);
        assert_eq!(world.effects().await, ["list:L1 upsert L1", "list:L1 upsert 1", "list:L1 upsert 1"]);
        let titles: Vec<_> = world.effect_rows("item").await.into_iter().map(|row| row[2].clone()).collect();
        assert_eq!(titles, [Some("a".to_owned()), Some("b".to_owned())]);
        assert_whole(&world).await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn dt01_r8_insert_and_update_in_one_transaction_keep_what_the_insert_wrote(world: World) {
        world.sql(LISTS_AND_ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql("insert into list values ('L1', 'one')").await;
        world.sql(&format!("begin; {}; update item set title = 'b' where id = 2; commit", insert(2))).await;
        // The script's change of the key is refused by the guard, and takes its transaction with it.
        let refused = format!(
            "begin; {}; update item set title = 'b' where id = 4; update item set id = 3 where id = 4; commit",
            insert(4)
        );
        let error = world.refused(&refused).await;
        assert_eq!(error, "27000", "F1");
        world.settle().await;
        assert!(out_of_line(&world).await);
        assert_eq!(world.effects().await, ["list:L1 upsert L1", "list:L1 upsert 2"]);
        let rows = world.effect_rows("item").await;
        assert_eq!((rows.len(), rows[0][2].as_deref()), (1, Some("b")));
        assert_whole(&world).await;
        // Several times over, with the omitted value written in between.
        world.sql("begin; update item set body = 'short' where id = 2; update item set title = 'c' where id = 2; commit").await;
        world.settle().await;
        world.assert_consistent().await;
        assert_eq!(world.projected_rows("item").await[0][3].as_deref(), Some("short"));
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn dt01_the_first_update_of_a_row_from_before_the_registration_has_the_baseline_to_take_from(
        world: World,
    ) {
        // The rows are there first; the baseline copies them in the snapshot that the slot begins with.
        world.sql(&LISTS_AND_ITEMS[..LISTS_AND_ITEMS.find("select").expect("a registration")]).await;
        world.sql("insert into list values ('L1', 'one')").await;
        world.sql(&insert(1)).await;
        world.sql(&LISTS_AND_ITEMS[LISTS_AND_ITEMS.find("select").expect("a registration")..]).await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql("update item set title = 'b' where id = 1").await;
        world.settle().await;
        assert!(out_of_line(&world).await);
        assert_eq!(world.effects().await, ["list:L1 upsert 1"]);
        assert_whole(&world).await;
        // Under a running stream there is no such row: a table that holds one is not registered without a baseline of its own,
        // not even where the row is younger than the transaction.
        let late =
            "begin; create table late (id int primary key, body text); insert into late values (1, 'x');
            select tidegate.register_table('public.late', '{\"scopes\": [{\"name\": \"all\"}]}'); commit";
        assert_eq!(world.refused(late).await, "TG002");
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn dt01_an_update_of_a_row_that_no_snapshot_saw_blocks_and_invents_nothing(world: World) {
        world.sql(LISTS_AND_ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql("insert into list values ('L1', 'one')").await;
        world.settle().await;
        // A row that neither event nor fence told of: both were switched off around it.
        world.without_events("item", &insert(1)).await;
        world.settle().await;
        world.sql("update item set title = 'b' where id = 1").await;
        world.until("poison", "select exists (select from tidegate.poison where status = 'active' and failure_class = 'update_on_missing' and relation_id = 2)").await;
        assert_eq!(world.effects().await, ["list:L1 upsert L1"]);
        assert!(world.projected_rows("item").await.is_empty());
        worker.stop().await;
    }
);
