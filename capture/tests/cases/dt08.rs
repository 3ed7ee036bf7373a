//! DT-08: null, empty and absent are three things, and no two names share a scope.

use crate::world::{LISTS_AND_ITEMS, World};
use std::collections::BTreeMap;
use tidegate_embedded::pg_test;

pg_test!(
    Slots,
    async fn dt08_every_list_is_a_scope_of_its_own_and_null_is_none(world: World) {
        world.sql(LISTS_AND_ITEMS).await;
        // Some through the baseline, all through the stream.
        world.sql("insert into list values ('', 'empty'), ('a/b', 'slash'); insert into item (id, list_id) values (1, ''), (2, null), (3, 'a/b')").await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql(r#"insert into list values ('L1', 'one'), ('a.b', 'dot'), ('a"b', 'quote'), ('a%2Fb', 'escaped'), ('a:b', 'colon'), ('NULL', 'word'), (' ', 'space')"#).await;
        world.sql(r#"insert into item (id, list_id) values (4, 'L1'), (5, 'a.b'), (6, 'a"b'), (7, 'a%2Fb'), (8, 'a:b'), (9, 'NULL'), (10, ' '), (11, null)"#).await;
        world.settle().await;
        let expected: BTreeMap<String, i64> = [
            "list:",
            "list:a%2Fb",
            "list:L1",
            "list:a.b",
            "list:a%22b",
            "list:a%252Fb",
            "list:a%3Ab",
            "list:NULL",
            "list:%20",
        ]
        .map(|name| (name.to_owned(), 2))
        .into();
        assert_eq!(world.scope_counts().await, expected, "each its list and one item; null has none");
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn dt08_a_move_to_and_from_null_leaves_and_enters(world: World) {
        world.sql(LISTS_AND_ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql("insert into list values ('L1', 'one'), ('', 'empty')").await;
        world.sql("insert into item (id, list_id) values (1, null)").await;
        for list in ["'L1'", "null", "''", "null", "'L1'", "''"] {
            world.sql(&format!("update item set list_id = {list} where id = 1")).await;
        }
        world.settle().await;
        let mut effects = world.effects().await.split_off(2);
        // Leaving and entering by one event are of two scopes, between which no order is ruled.
        effects[5..].sort();
        assert_eq!(
            effects,
            [
                "list:L1 upsert 1",
                "list:L1 delete 1",
                "list: upsert 1",
                "list: delete 1",
                "list:L1 upsert 1",
                "list: upsert 1",
                "list:L1 delete 1"
            ]
        );
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn dt08_null_empty_and_the_word_null_stay_apart_in_a_value(world: World) {
        world.sql(LISTS_AND_ITEMS).await;
        world.sql("insert into list values ('L1', null); insert into item (id, list_id, title) values (1, 'L1', null), (2, 'L1', ''), (3, 'L1', 'NULL'), (4, 'L1', '\\N')").await;
        let worker = world.start();
        world.until_streaming().await;
        let titles =
            |rows: Vec<Vec<Option<String>>>| rows.into_iter().map(|row| row[2].clone()).collect::<Vec<_>>();
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(titles(world.projected_rows("item").await), [None, some(""), some("NULL"), some("\\N")]);
        for title in ["''", "'NULL'", "null", "''"] {
            world.sql(&format!("update item set title = {title} where id = 1")).await;
        }
        // Omitted is unchanged.
        world.sql("update item set rev = 2 where id = 1").await;
        world.settle().await;
        let expected = [some(""), some("NULL"), None, some(""), some("")];
        assert_eq!(titles(world.effect_rows("item").await), expected);
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn dt08_no_two_keys_of_any_tables_share_an_identity(world: World) {
        world.sql(LISTS_AND_ITEMS).await;
        // Two columns in one name: the separator is told from the same character in a value.
        world
            .sql(
                "create table public.pair (id text primary key, a text, b text);
            select tidegate.register_table('public.pair', '{\"scopes\": [{\"name\": \"pair:{a}/{b}\"}]}')",
            )
            .await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql("insert into list values ('', 'empty'), ('1', 'one')").await;
        world.sql("insert into item (id, list_id) values (1, '1')").await;
        world
            .sql(
                "insert into pair values ('', 'x', '/y'), ('1', 'x/', 'y'), ('1/', '', 'x'), ('/1', 'x', '')",
            )
            .await;
        world.settle().await;
        let counts = world.scope_counts().await;
        let expected = [
            ("list:", 1),
            ("list:1", 2),
            ("pair:x/%2Fy", 1),
            ("pair:x%2F/y", 1),
            ("pair:/x", 1),
            ("pair:x/", 1),
        ];
        assert_eq!(counts, expected.map(|(name, count)| (name.to_owned(), count)).into());
        // The list '1' and the item 1 are two rows of one scope: a key is its table's, and its type's.
        world.sql("delete from item where id = 1; delete from pair where id in ('', '1')").await;
        world.settle().await;
        assert_eq!(world.scope_counts().await["list:1"], 1);
        assert_eq!(world.projected_rows("pair").await.len(), 2);
        world.assert_consistent().await;
        worker.stop().await;
    }
);
