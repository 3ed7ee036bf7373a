//! DT-02, capture's half: 64-bit numbers keep their last digit.

use crate::world::{LISTS_AND_ITEMS, World};
use tidegate_embedded::pg_test;

const KEYS: [&str; 3] = ["-9223372036854775808", "9007199254740992", "9007199254740993"];

pg_test!(
    Slots,
    async fn dt02_neighbours_beyond_2_to_the_53_stay_three_rows(world: World) {
        world.sql(LISTS_AND_ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql("insert into list values ('L1', 'one')").await;
        world
            .sql("insert into item values (9007199254740992, 'L1', 'x'), (9007199254740993, 'L1', 'y'), (-9223372036854775808, 'L1', 'z')")
            .await;
        world.settle().await;
        let keys = |rows: Vec<Vec<Option<String>>>| {
            rows.into_iter().map(|row| row[0].clone().expect("a key")).collect::<Vec<_>>()
        };
        assert_eq!(keys(world.projected_rows("item").await), KEYS);
        // One event each; the effects' keys are told apart in the wire form as well.
        assert_eq!(
            world.effects().await[1..],
            [
                "list:L1 upsert 9007199254740992",
                "list:L1 upsert 9007199254740993",
                "list:L1 upsert -9223372036854775808"
            ]
        );
        assert_eq!(
            world.scalar::<i64>("select count(distinct key) from tidegate.effect where table_id = 2").await,
            3
        );
        // An edit of the middle one names exactly that one.
        world.sql("update item set title = 'edited' where id = 9007199254740993").await;
        world.sql("delete from item where id = 9007199254740992").await;
        world.settle().await;
        assert_eq!(
            world.effects().await[4..],
            ["list:L1 upsert 9007199254740993", "list:L1 delete 9007199254740992"]
        );
        let rows = world.projected_rows("item").await;
        let titles: Vec<_> = rows.iter().map(|row| row[2].as_deref()).collect();
        assert_eq!(titles, [Some("z"), Some("edited")]);
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn dt02_dt05_json_is_kept_as_the_text_that_it_is(world: World) {
        world.sql(LISTS_AND_ITEMS).await;
        world.sql("insert into list values ('L1', 'one'); insert into item (id, list_id, meta) values (1, 'L1', '{\"n\":9007199254740993}')").await;
        let worker = world.start();
        world.until_streaming().await;
        // The same from the baseline and from the stream; white space, repeated keys and escapes are part of the text.
        let texts = [
            r#"{"n":9007199254740993}"#,
            r#"{ "n" : 1e400, "n" : -0.0 }"#,
            r#"{"a":"x\u0000y","half":"\ud83d"}"#,
        ];
        for (id, text) in (2..).zip(texts) {
            world.sql(&format!("insert into item (id, list_id, meta) values ({id}, 'L1', '{text}')")).await;
        }
        world.settle().await;
        let rows = world.projected_rows("item").await;
        let meta: Vec<_> = rows.iter().map(|row| row[4].as_deref().expect("json")).collect();
        assert_eq!(meta, [texts[0], texts[0], texts[1], texts[2]]);
        let delivered = world.effect_rows("item").await;
        assert_eq!(delivered.iter().map(|row| row[4].as_deref().expect("json")).collect::<Vec<_>>(), texts);
        world.assert_consistent().await;
        worker.stop().await;
    }
);
