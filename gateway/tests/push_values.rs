//! Values of pushes: DT-02, DT-05, DT-08, and every wire type.

use crate::fixture::{Fixture, Write, codes, insert, statuses, text, update, upsert};
use sqlx::{Connection, Executor};
use tidegate_embedded::pg_test;
use tidegate_protocol::{Elements, Invalid, InvalidReason, MutationOp, Value};

pg_test!(
    NoSlots,
    async fn dt02_sixty_four_bit_keys_and_counters_are_exact(f: Fixture) {
        let keys = [9007199254740992, 9007199254740993, i64::MIN, i64::MAX];
        let mut client = f.client("ann", true);
        let reply =
            client.push(&f.push(1, false, keys.iter().map(|key| insert(*key, "ann", "x")).collect())).await;
        assert_eq!(statuses(&reply), ["accepted"; 4]);
        let counter = Write {
            cols: vec![("big".into(), Value::Int(9007199254740993))],
            ..update(9007199254740993, "")
        };
        let rounded = Write {
            cols: vec![("big".into(), Value::F64(9007199254740992.0))],
            ..update(9007199254740992, "")
        };
        let wide = Write { cols: vec![("rev".into(), Value::Int(1 << 31))], ..update(i64::MAX, "") };
        let json =
            Write { cols: vec![("meta".into(), text("{\"n\":9007199254740993}"))], ..update(i64::MAX, "") };
        let reply = client.push(&f.push(5, false, vec![counter, rounded, wide, json])).await;
        assert_eq!(codes(&reply), ["", "invalid_value", "invalid_value", ""]);
        let rows = f.column("select concat_ws('|', id, big, meta) from public.item order by id").await;
        assert_eq!(
            rows,
            [
                "-9223372036854775808",
                "9007199254740992",
                "9007199254740993|9007199254740993",
                "9223372036854775807|{\"n\":9007199254740993}"
            ]
        );
    }
);

pg_test!(
    NoSlots,
    async fn dt05_what_postgresql_cannot_hold_is_refused_alone_and_stored(f: Fixture) {
        let bad = |reason| Value::Invalid(Invalid { reason, raw: vec![0xa3, 0xed, 0xa0, 0xbd].into() });
        let set = |id, value| Write {
            cols: vec![("owner".into(), text("ann")), ("title".into(), value)],
            ..insert(id, "ann", "")
        };
        let long = "\u{1f600}".repeat(65 * 1024 / 4);
        let mut client = f.client("ann", true);
        let push = f.push(
            1,
            false,
            vec![
                set(1, bad(InvalidReason::NotUtf8)),
                set(2, bad(InvalidReason::Nul)),
                set(3, text("fine")),
                set(4, Value::Str(long.clone().into())),
                Write { key: bad(InvalidReason::NotUtf8), ..set(5, text("x")) },
                Write {
                    cols: vec![("owner".into(), text("ann")), ("meta".into(), text("{\"a\":\"x\\u0000y\"}"))],
                    ..insert(6, "ann", "")
                },
            ],
        );
        let reply = client.push(&push).await;
        assert_eq!(codes(&reply), ["invalid_value", "invalid_value", "", "", "invalid_value", ""]);
        assert_eq!(client.push(&push).await.results, reply.results, "the refusal is stored");
        let stored = f.column("select title from public.item where id = 4").await;
        assert_eq!(stored, [long]);

        // Two normal forms of one letter are two keys.
        let table = f.table("word").await;
        let word = |key: &'static str| Write {
            table: Some(table),
            key: text(key),
            cols: vec![],
            ..insert(0, "ann", "")
        };
        let reply = client
            .push(&f.push(7, false, vec![word("\u{e9}"), word("e\u{301}"), word(""), word("\u{e9}")]))
            .await;
        assert_eq!(codes(&reply), ["", "", "", "row_exists"]);
        assert_eq!(f.count("select count(*) from public.word").await, 3);
    }
);

pg_test!(
    NoSlots,
    async fn dt08_null_empty_and_omitted_are_three_things(f: Fixture) {
        f.sql("insert into public.item (id, owner, title, body) values (1, 'ann', 'old', 'kept')").await;
        let mut client = f.client("ann", true);
        let mut seen = Vec::new();
        for (number, value) in [(1, Value::Nil), (2, text("")), (3, text("NULL")), (4, text("a\"b\\{},"))] {
            let write = Write { cols: vec![("title".into(), value)], ..update(1, "") };
            assert_eq!(statuses(&client.push(&f.push(number, false, vec![write])).await), ["accepted"]);
            seen.extend(
                f.column("select coalesce('<' || title || '>', 'null') || body from public.item").await,
            );
        }
        assert_eq!(seen, ["nullkept", "<>kept", "<NULL>kept", "<a\"b\\{},>kept"]);
        let upserted = Write { cols: vec![("owner".into(), text("ann"))], ..upsert(1, "ann", "") };
        assert_eq!(statuses(&client.push(&f.push(5, false, vec![upserted])).await), ["accepted"]);
        assert_eq!(
            f.column("select title from public.item").await,
            ["a\"b\\{},"],
            "an upsert leaves omitted columns alone"
        );
    }
);

pg_test!(
    NoSlots,
    async fn every_wire_type_round_trips(f: Fixture) {
        let table = f.table("typed").await;
        let cols = || {
            vec![
                ("b".into(), Value::Bool(true)),
                ("i2".into(), Value::Int(-32768)),
                ("f4".into(), Value::F32(0.1)),
                ("f8".into(), Value::F64(f64::NEG_INFINITY)),
                ("n".into(), text("1e-400")),
                ("u".into(), text("6BA7B810-9DAD-11D1-80B4-00C04FD430C8")),
                ("d".into(), text("0044-03-15 BC")),
                ("ts".into(), text("2026-11-30T18:55:34.123456")),
                ("tz".into(), text("294276-12-31T23:59:59.999999Z")),
                ("iv".into(), text("P-1DT2H3M")),
                ("by".into(), Value::Bin(vec![0, 255, 92].into())),
                ("e".into(), text("it's")),
                ("j".into(), text("{\"b\": 1, \"a\": [null]}")),
                ("c".into(), text("ab")),
                (
                    "a".into(),
                    Value::Array(Elements::new(&[text("x,\"y\\"), Value::Nil, text("")]).expect("plain")),
                ),
                ("m".into(), text("{{1,2},{3,4}}")),
                ("dom".into(), Value::Int(5)),
            ]
        };
        let mut client = f.client("ann", true);
        let write = Write {
            table: Some(table),
            key: text("6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
            cols: cols(),
            ..insert(0, "", "")
        };
        assert_eq!(codes(&client.push(&f.push(1, false, vec![write])).await), [""]);
        let mut session = sqlx::PgConnection::connect(&f.db.url()).await.expect("a connection");
        session.execute("set timezone = 'UTC'; set intervalstyle = 'iso_8601'").await.expect("settings");
        let row: String = sqlx::query_scalar(
            "select concat_ws('|', b, i2, f4, f8, n = '1e-400', u, d, ts, tz, iv, by, e, j, c, a, m, dom) from public.typed",
        )
        .fetch_one(&mut session)
        .await
        .expect("the row");
        assert_eq!(
            row,
            "t|-32768|0.1|-Infinity|t|6ba7b810-9dad-11d1-80b4-00c04fd430c8|0044-03-15 BC|2026-11-30 18:55:34.123456|\
             294276-12-31 23:59:59.999999+00|P-1DT2H3M|\\x00ff5c|it's|{\"b\": 1, \"a\": [null]}|ab  |{\"x,\\\"y\\\\\",NULL,\"\"}|{{1,2},{3,4}}|5"
        );
        // A domain's check is a constraint; a length is kept, never cut.
        let set = |name: &'static str, value| Write {
            table: Some(table),
            key: text("6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
            cols: vec![(name.into(), value)],
            ..update(0, "")
        };
        let reply = client
            .push(&f.push(
                2,
                false,
                vec![set("dom", Value::Int(-1)), set("c", text("abcde")), set("d", text("tomorrow-ish"))],
            ))
            .await;
        assert_eq!(codes(&reply), ["constraint_check", "invalid_value", "invalid_value"]);
    }
);

#[test]
fn op_names_are_what_the_sql_expects() {
    let names = [MutationOp::Insert, MutationOp::Update, MutationOp::Upsert, MutationOp::Delete]
        .map(MutationOp::as_str);
    assert_eq!(names, ["insert", "update", "upsert", "delete"]);
}
