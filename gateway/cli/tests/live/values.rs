//! DT-02, DT-08 on the wire and through the log: keys of 64 bits that differ in their last digit, and null, empty and omitted, from a
//! push to another client's copy and back.

use super::client::{Client, Write, text};
use super::judge::list_by_sql;
use super::world::{MEMBERS, World};
use tidegate_embedded::pg_test;
use tidegate_protocol::{Base, MutationOp, MutationStatus, Value};

pg_test!(
    Slots,
    async fn dt02_three_keys_that_a_double_cannot_tell_apart_are_three_rows_everywhere(world: World) {
        world.sql(MEMBERS).await;
        let (worker, serving) = world.start().await;
        let keys = [9_007_199_254_740_992, 9_007_199_254_740_993, i64::MIN];
        world
            .sql("insert into items values (9007199254740992, 'L1', 1, 'x'), (9007199254740993, 'L1', 2, 'y'), (-9223372036854775808, 'L1', 3, 'z')")
            .await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        let mut ben = Client::connected(&serving, Some("ben")).await;
        anna.join("list:L1").await;
        ben.join("list:L1").await;
        // The middle one, by the version that she holds; then again after a reconnect, from what her store has.
        for body in ["first edit", "second edit"] {
            let held = anna.rows("list:L1");
            assert_eq!(held.len(), 3);
            let version = held
                .iter()
                .find(|((_, key), _)| *key == tidegate_model::RowKey::Int(keys[1]))
                .expect("the middle one")
                .1
                .0;
            let number = anna.write(&world, &[Write::update(keys[1], body).on(Base::Version(version))]).await;
            assert_eq!(anna.outcome(number).await[0].status, MutationStatus::Accepted);
            anna.until_round(number).await;
            for client in [&mut anna, &mut ben] {
                client.until_list(&world, "L1").await;
                assert_eq!(client.rows("list:L1"), list_by_sql(&world, "L1").await);
            }
            let bodies: Vec<_> =
                ben.list("L1").into_iter().map(|(id, _, body)| (id, body.expect("a body"))).collect();
            assert_eq!(bodies, [(keys[2], "z".into()), (keys[0], "x".into()), (keys[1], body.into())]);
            anna.disconnect();
            anna.connect(&serving).await;
            assert_eq!(anna.join("list:L1").await, "resume");
        }
        // As keys of deletes and inserts, and the largest of them.
        let writes = [Write::delete(keys[0]), Write::insert(i64::MAX, "largest"), Write::insert(-1, "small")];
        let first = anna.write(&world, &writes).await;
        assert!(anna.outcome(first).await.iter().all(|result| result.status == MutationStatus::Accepted));
        anna.until_round(first + 2).await;
        for client in [&mut anna, &mut ben] {
            client.until_list(&world, "L1").await;
            let ids: Vec<i64> = client.list("L1").into_iter().map(|(id, ..)| id).collect();
            assert_eq!(ids, [i64::MIN, -1, keys[1], i64::MAX]);
        }
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn dt08_null_empty_and_omitted_are_three_things_and_scopes_of_odd_values_are_apart(world: World) {
        let lists = ["L1", "", "a/b", "a.b", "a\"b", "a%2Fb"];
        for (n, list) in lists.iter().enumerate() {
            world.sql(&format!("insert into members values ({n}, 'anna', '{list}')")).await;
            world.sql(&format!("insert into items values ({n}, '{list}', {n}, null)")).await;
        }
        world.sql("insert into items values (100, null, 100, 'in no list')").await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        let names: Vec<String> = ["L1", "", "a%2Fb", "a.b", "a%22b", "a%252Fb"]
            .iter()
            .map(|name| format!("list:{name}"))
            .collect();
        for name in &names {
            anna.join(name).await;
            assert_eq!(anna.rows(name).len(), 1, "{name}");
        }
        // Null, empty, the word, and left alone.
        let set = |value| Write::new(MutationOp::Update, 0, vec![("body", value)]);
        let untouched = Write::new(MutationOp::Update, 0, vec![("n", Value::Int(7))]);
        for (write, expected) in [
            (set(text("")), Some("")),
            (set(text("NULL")), Some("NULL")),
            (untouched.clone(), Some("NULL")),
            (set(Value::Nil), None),
            (untouched, None),
            (set(text("")), Some("")),
        ] {
            let number = anna.write(&world, &[write]).await;
            assert_eq!(anna.outcome(number).await[0].status, MutationStatus::Accepted);
            anna.until_round(number).await;
            anna.until_list(&world, "L1").await;
            assert_eq!(anna.list("L1")[0].2.as_deref(), expected);
            let stored: Option<String> = world.scalar("select body from items where id = 0").await;
            assert_eq!(stored.as_deref(), expected);
        }
        // Into no list, into the one with the empty name, and back.
        let into = |value| Write::new(MutationOp::Update, 0, vec![("list_id", value)]);
        for (value, of_l1, of_empty) in [(Value::Nil, 0, 1), (text(""), 0, 2), (text("L1"), 1, 1)] {
            let number = anna.write(&world, &[into(value)]).await;
            anna.outcome(number).await;
            anna.until_round(number).await;
            assert_eq!((anna.rows("list:L1").len(), anna.rows("list:").len()), (of_l1, of_empty));
        }
        worker.stop().await;
        serving.stop().await;
    }
);
