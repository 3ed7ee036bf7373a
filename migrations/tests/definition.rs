//! The parsers of 0006: the closed `where` language, templates, and the shape of definitions.

use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgPool;
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::{TestContext, TestServer};
use tidegate_migrations::definition::refusal_of;
use tidegate_migrations::testing::LoadedDatabase;
use tidegate_model::{Predicate, WireValue};

const SETUP: &str = r#"
    create type public.mood as enum ('calm', 'loud');
    create domain public.short as varchar(20);
    -- Not every build has ICU, which alone makes such collations: this one only says that it is non-deterministic.
    create collation public.ci (provider = libc, locale = 'C');
    set local allow_system_table_mods = on;
    update pg_collation set collisdeterministic = false where collname = 'ci';
    create table public.items (id bigint primary key, n int, small smallint, s text, d public.short, u uuid, b boolean, e public.mood,
        price numeric, at timestamptz, c char(3), loose text collate public.ci, tags text[], j jsonb,
        "Odd ""name""" text, twice int generated always as (n * 2) stored);
"#;

struct Items(LoadedDatabase);

impl TestContext for Items {
    async fn prepare(server: TestServer) -> Self {
        let db = LoadedDatabase::new(&server).await;
        sqlx::raw_sql(SETUP).execute(&db.pool).await.expect("set up");
        Items(db)
    }
}

async fn parse_in(pool: &PgPool, source: &str, subject: bool) -> Result<Value, String> {
    sqlx::query_scalar(
        "select tidegate.parse_where($1, jsonb_build_object('what', 'where', 'table', 'items', 'subject', $2,
             'columns', tidegate.relation_columns('public.items'::regclass), 'captured', null))",
    )
    .bind(source)
    .bind(subject)
    .fetch_one(pool)
    .await
    .map_err(|error| {
        let refusal = refusal_of(&error).unwrap_or_else(|| panic!("{source}: {error}"));
        assert_eq!(refusal.code, "TG001");
        assert!(refusal.hint.is_some_and(|hint| !hint.is_empty()), "{source}: no hint");
        refusal.message
    })
}

async fn parse(pool: &PgPool, source: &str) -> Value {
    parse_in(pool, source, false).await.unwrap_or_else(|message| panic!("{source}: {message}"))
}

fn column(name: &str) -> Value {
    json!({ "column": name })
}

fn int(value: i64) -> Value {
    json!({ "literal": value, "type": "int" })
}

fn string(value: &str) -> Value {
    json!({ "literal": value, "type": "string" })
}

fn compare(op: &str, left: Value, right: Value) -> Value {
    json!({ "op": op, "left": left, "right": right })
}

pg_test!(
    NoSlots,
    async fn k_where_gives_the_agreed_ast(t: Items) {
        let pool = &t.0.pool;
        let n1 = compare("eq", column("n"), int(1));
        let b = json!({"op": "column", "arg": {"column": "b"}});
        let not_b = json!({"op": "not", "arg": b});
        let is_null = |name: &str| json!({"op": "is_null", "arg": {"column": name}});
        for (source, ast) in [
            ("n = 1", n1.clone()),
            ("items.n=1", n1.clone()),
            ("  N\n=\t1 ", n1.clone()),
            ("((n = 1))", n1.clone()),
            ("1 = n", n1.clone()),
            ("1 < n", compare("gt", column("n"), int(1))),
            ("n <> -1", compare("ne", column("n"), int(-1))),
            ("n != 1", compare("ne", column("n"), int(1))),
            ("small >= 9223372036854775807", compare("ge", column("small"), int(i64::MAX))),
            ("id <= -9223372036854775808", compare("le", column("id"), int(i64::MIN))),
            ("n < id", compare("lt", column("n"), column("id"))),
            ("s = 'it''s {x} \\ \"'", compare("eq", column("s"), string("it's {x} \\ \""))),
            ("s = d", compare("eq", column("s"), column("d"))),
            (
                "u = 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'",
                compare("eq", column("u"), string("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
            ),
            ("e <> 'loud'", compare("ne", column("e"), string("loud"))),
            ("n = null", compare("eq", column("n"), json!({"literal": null, "type": "null"}))),
            ("b = true", compare("eq", column("b"), json!({"literal": true, "type": "bool"}))),
            ("b", b.clone()),
            ("not b", not_b.clone()),
            ("not not b", json!({"op": "not", "arg": not_b})),
            ("b and not b and n = 1", json!({"op": "and", "args": [b, not_b, n1]})),
            ("b or b and n = 1", json!({"op": "or", "args": [b, {"op": "and", "args": [b, n1]}]})),
            ("(b or b) and n = 1", json!({"op": "and", "args": [{"op": "or", "args": [b, b]}, n1]})),
            (
                "not b = false",
                json!({"op": "not", "arg": compare("eq", column("b"), json!({"literal": false, "type": "bool"}))}),
            ),
            ("at is null", is_null("at")),
            ("price is not null", json!({"op": "not", "arg": is_null("price")})),
            ("j IS NULL OR tags IS NULL", json!({"op": "or", "args": [is_null("j"), is_null("tags")]})),
            (
                "n in (1, -2, null)",
                json!({"op": "in", "left": column("n"), "list": [int(1), int(-2), {"literal": null, "type": "null"}]}),
            ),
            (
                "n not in (1)",
                json!({"op": "not", "arg": {"op": "in", "left": column("n"), "list": [int(1)]}}),
            ),
            ("e in ('calm')", json!({"op": "in", "left": column("e"), "list": [string("calm")]})),
            ("\"Odd \"\"name\"\"\" = ''", compare("eq", column("Odd \"name\""), string(""))),
            ("items.\"n\" = 1", n1.clone()),
        ] {
            let parsed = parse(pool, source).await;
            assert_eq!(parsed, ast, "{source}");
            serde_json::from_value::<Predicate>(parsed).expect(source);
        }
    }
);

pg_test!(
    NoSlots,
    async fn k_where_refuses_with_position_and_what_was_expected(t: Items) {
        for (source, message) in [
            (
                "",
                "where, position 1: expected a column, a literal, \"not\" or \"(\", found the end of the text",
            ),
            (
                "n",
                "where, position 2: expected a comparison, \"in\" or \"is\" after column \"n\" (integer), found the end of the text",
            ),
            ("n =", "where, position 4: expected a column or a literal, found the end of the text"),
            ("n = and", "where, position 5: expected a column or a literal, found \"and\""),
            ("n = 1 2", "where, position 7: expected \"and\", \"or\" or the end of the text, found \"2\""),
            (
                "n = 1 and",
                "where, position 10: expected a column, a literal, \"not\" or \"(\", found the end of the text",
            ),
            ("(n = 1", "where, position 7: expected \")\", \"and\" or \"or\", found the end of the text"),
            ("n = 1)", "where, position 6: expected \"and\", \"or\" or the end of the text, found \")\""),
            ("n is 1", "where, position 6: expected \"null\" or \"not null\", found \"1\""),
            ("n is not 1", "where, position 10: expected \"null\", found \"1\""),
            ("n in 1", "where, position 6: expected \"(\", found \"1\""),
            ("n in ()", "where, position 7: expected a literal, found \")\""),
            ("n in (id)", "where, position 7: expected a literal, found \"id\""),
            ("n in (1;", "where, position 8: unexpected \";\""),
            ("n in (1 2)", "where, position 9: expected \",\" or \")\", found \"2\""),
            ("n = 1.5", "where, position 5: only whole numbers can be compared"),
            ("n = 12e3", "where, position 5: only whole numbers can be compared"),
            ("n = 9223372036854775808", "where, position 5: 9223372036854775808 does not fit 64 bits"),
            ("s = 'open", "where, position 5: the string that begins here has no end"),
            ("\"open = 1", "where, position 1: the quoted name that begins here has no end"),
            ("s = {user.id}", "where, position 5: the only placeholder here is {subject.id}"),
            ("s = {subject.id}", "where, position 5: {subject.id} has no meaning in the rule of a table"),
            ("nope = 1", "where, position 1: no column \"nope\""),
            ("lists.n = 1", "where, position 1: \"lists\" is not the table \"items\""),
            ("items. = 1", "where, position 8: expected a column name, found \"=\""),
            (
                "twice = 2",
                "where, position 1: column \"twice\" is generated, and its value is not part of the stream",
            ),
            ("n = 'a'", "where, position 1: column \"n\" (integer) cannot be compared with a string"),
            ("s = 1", "where, position 1: column \"s\" (text) cannot be compared with an integer"),
            ("b = 1", "where, position 1: column \"b\" (boolean) cannot be compared with an integer"),
            ("s = u", "where, position 1: column \"s\" (text) cannot be compared with column \"u\" (uuid)"),
            ("s < 'a'", "where, position 1: only integers can be ordered"),
            ("b < true", "where, position 1: only integers can be ordered"),
            ("price > 1", "where, position 1: column \"price\" (numeric) cannot be compared in a condition"),
            ("1 < price", "where, position 1: column \"price\" (numeric) cannot be compared in a condition"),
            (
                "at = 'now'",
                "where, position 1: column \"at\" (timestamp with time zone) cannot be compared in a condition",
            ),
            ("c = 'abc'", "where, position 1: column \"c\" (character(3)) cannot be compared in a condition"),
            (
                "loose in ('a')",
                "where, position 1: column \"loose\" (text) cannot be compared in a condition",
            ),
            ("u = 'not a uuid'", "where, position 1: the string is not a uuid, but column \"u\" is"),
            ("e = 'silent'", "where, position 1: \"silent\" is not a value of column \"e\""),
            (
                "n between 1 and 2",
                "where, position 3: expected a comparison, \"in\" or \"is\" after column \"n\" (integer), found \"between\"",
            ),
            ("lower(s) = 'a'", "where, position 1: no column \"lower\""),
            (
                "s like 'a'",
                "where, position 3: expected a comparison, \"in\" or \"is\" after column \"s\" (text), found \"like\"",
            ),
            (
                "true",
                "where, position 5: expected a comparison, \"in\" or \"is\" after a boolean, found the end of the text",
            ),
            ("n = 1 -- comment", "where, position 7: unexpected \"-\""),
        ] {
            assert_eq!(parse_in(&t.0.pool, source, false).await.expect_err(source), message, "{source}");
        }
        let deep = format!("{}b{}", "(".repeat(60), ")".repeat(60));
        assert!(parse_in(&t.0.pool, &deep, false).await.expect_err("deep").ends_with("nested too deeply"));
        let long = "b or ".repeat(2100) + "b";
        assert_eq!(
            parse_in(&t.0.pool, &long, false).await.expect_err("long"),
            "where is longer than 10000 characters"
        );
        let wide = "b or ".repeat(1500) + "b";
        assert_eq!(parse(&t.0.pool, &wide).await["args"].as_array().expect("args").len(), 1501);
    }
);

pg_test!(
    NoSlots,
    async fn k_templates_are_unambiguous_or_refused(t: Items) {
        let template = async |text: &str| -> Result<Value, String> {
            sqlx::query_scalar(
            "select tidegate.parse_template($1, 'items', tidegate.relation_columns('public.items'::regclass), null, false, 'scope')",
        )
        .bind(text)
        .fetch_one(&t.0.pool)
        .await
        .map_err(|error| refusal_of(&error).unwrap_or_else(|| panic!("{error}")).message)
        };
        for (text, parts) in [
            ("catalog", json!([{"text": "catalog"}])),
            ("list:{n}", json!([{"text": "list:"}, {"column": "n"}])),
            ("{items.s}/{ u }", json!([{"column": "s"}, {"text": "/"}, {"column": "u"}])),
            (
                "a b:{\"Odd \"\"name\"\"\"}:é",
                json!([{"text": "a b:"}, {"column": "Odd \"name\""}, {"text": ":é"}]),
            ),
            ("{loose}", json!([{"column": "loose"}])),
        ] {
            assert_eq!(template(text).await, Ok(parts), "{text}");
        }
        for (text, message) in [
            ("", "scope: the scope name is empty"),
            ("{n}{s}", "scope: two placeholders follow each other without a separator"),
            ("{n}a", "scope: after a placeholder comes \"a\", which its value could contain"),
            ("{n}%", "scope: after a placeholder comes \"%\", which its value could contain"),
            ("{n}-x", "scope: after a placeholder comes \"-\", which its value could contain"),
            ("{n", "scope: unbalanced \"{\" in the scope name"),
            ("n}", "scope: unbalanced \"}\" in the scope name"),
            ("{}", "scope: placeholder {} names no column of \"items\""),
            ("{lists.n}", "scope: placeholder {lists.n} names no column of \"items\""),
            ("{nope}", "scope: no column \"nope\""),
            ("{price}", "scope: column \"price\" of type numeric cannot be part of a scope name"),
            ("{e}", "scope: column \"e\" of type mood cannot be part of a scope name"),
            ("{c}", "scope: column \"c\" of type character(3) cannot be part of a scope name"),
            ("{subject.id}", "scope: {subject.id} has no meaning in the scope of a table"),
        ] {
            assert_eq!(
                template(text).await.expect_err(text).replace("public.mood", "mood"),
                message,
                "{text}"
            );
        }
    }
);

/// A small generator of conditions and its own random numbers: a failing seed is a test.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits") % bound
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    fn condition(&mut self, depth: usize) -> String {
        if depth > 0 && self.below(3) > 0 {
            let (left, right) = (self.condition(depth - 1), self.condition(depth - 1));
            return match self.below(4) {
                0 => format!("{left} and {right}"),
                1 => format!("({left} or {right})"),
                2 => format!("not ({left})"),
                _ => format!("{left} or not {right}"),
            };
        }
        let ints = ["n", "small", "id", "0", "1", "-1", "2", "null"];
        let strings = ["s", "d", "'a'", "'b'", "''", "null"];
        let not = self.pick(&["", "not "]);
        match self.below(8) {
            0 | 1 => format!(
                "{} {} {}",
                self.pick(&ints),
                self.pick(&["=", "<>", "<", "<=", ">", ">="]),
                self.pick(&ints)
            ),
            2 => format!("{} {} {}", self.pick(&strings), self.pick(&["=", "!="]), self.pick(&strings)),
            3 => format!(
                "{} {not}in ({}, {})",
                self.pick(&["n", "small", "1"]),
                self.pick(&ints[3..]),
                self.pick(&ints[3..])
            ),
            4 => format!("s {not}in ({}, 'a')", self.pick(&strings[2..])),
            5 => format!("{} is {not}null", self.pick(&["n", "s", "b", "u", "price", "at"])),
            6 => format!("e {} '{}'", self.pick(&["=", "<>"]), self.pick(&["calm", "loud"])),
            _ => self
                .pick(&["b", "b = true", "not b", "u = 'A0EEBC999C0B4EF8BB6D6BB9BD380A11'", "b <> null"])
                .to_owned(),
        }
    }
}

pg_test!(
    NoSlots,
    async fn k_our_evaluation_agrees_with_postgresql(t: Items) {
        let seed = u64::from(std::process::id()) << 20 | 0x5_7a11;
        println!("seed {seed}");
        let mut random = Random(seed);
        sqlx::raw_sql("insert into items (id, n, small, s, d, u, b, e, price)
        select row_number() over (), n, 1, s, case when n = 1 then s end, case when b then 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid end, b,
            case when n = 1 then 'calm' when n = 2 then 'loud' end::mood, n
        from (values (0), (1), (2), (null)) as a (n), (values ('a'), (''), (null)) as s (s), (values (true), (false), (null)) as b (b)")
        .execute(&t.0.pool).await.expect("rows");
        for _ in 0..400 {
            let source = random.condition(3);
            let predicate: Predicate =
                serde_json::from_value(parse(&t.0.pool, &source).await).expect("a predicate");
            type Row = (Value, Option<bool>);
            let rows: Vec<Row> = sqlx::query_as(AssertSqlSafe(format!(
                "select to_jsonb(items), ({source})::boolean from items order by id"
            )))
            .fetch_all(&t.0.pool)
            .await
            .unwrap_or_else(|error| panic!("{source}: {error}"));
            for (row, truth) in rows {
                let value = |name: &str| match &row[name] {
                    Value::Null => WireValue::Nil,
                    Value::Bool(value) => WireValue::Bool(*value),
                    Value::Number(value) => WireValue::Int(value.as_i64().expect("an integer")),
                    Value::String(text) => WireValue::Str(text),
                    other => panic!("{other}"),
                };
                assert_eq!(predicate.evaluate(&value), truth, "seed {seed}: {source} of {row}");
            }
        }
    }
);
