//! K3, H6, TX-04: TRUNCATE, which no row trigger sees, and publications that would not tell of it.

use crate::application::{ok, refused, text};
use crate::fence::Tables;
use crate::wal::Event;
use tidegate_embedded::pg_test;
use tidegate_migrations::testing::LoadedDatabase;

macro_rules! refused_truncates {
    ($($test:ident: $sql:expr => $table:expr;)*) => {
        $(pg_test!(
            BriefSlots,
            async fn $test(t: Tables) {
                t.0.ok("insert into list values ('a'); insert into item (id, list_id) values (1, 'a'); insert into person values (1)").await;
                t.0.check().await;
                let (message, hint) = t.0.fails("0A000", $sql).await;
                assert_eq!(message, format!("TRUNCATE of public.{} is not supported: tidegate streams this table", $table));
                assert_eq!(hint, "Use DELETE.");
                assert_eq!(text(t.0.pool(), "select (select count(*) from item) || ' ' || (select count(*) from list)").await, "1 1");
                assert!(t.0.decode().await.is_empty());
            }
        );)*
    };
}

refused_truncates! {
    k3_tx04_truncate_is_refused: "truncate item" => "item";
    k3_tx04_truncate_only_with_restart_identity_is_refused: "truncate only item restart identity" => "item";
    k3_tx04_truncate_cascade_is_refused: "truncate list cascade" => "list";
    k3_tx04_truncate_of_a_table_that_is_not_registered_cascading_into_one_that_is_is_refused:
        "create table public.plain (id text primary key); alter table item add foreign key (title) references plain; truncate plain cascade" => "item";
    k3_tx04_truncate_of_several_tables_is_refused: "create table public.plain (id int); truncate plain, person, task" => "person";
    k3_tx04_truncate_after_writes_of_the_same_transaction_is_refused: "begin; insert into item (id) values (2); delete from item; truncate item" => "item";
    k3_tx04_truncate_in_the_replica_role_is_refused: "set session_replication_role = replica; truncate item" => "item";
    k3_tx04_truncate_of_a_capture_dependency_is_refused: "truncate member" => "member";
}

pg_test!(
    BriefSlots,
    async fn k3_tx04_a_transaction_goes_on_after_a_truncate_that_it_caught(t: Tables) {
        t.0.ok("do $$ begin insert into item (id) values (1); begin truncate item; exception when feature_not_supported then null; end; update item set rev = 2; end $$").await;
        assert_eq!(t.0.check().await, ["item I 1", "item U 1"]);
    }
);

pg_test!(
    BriefSlots,
    async fn k3_tx04_a_truncate_whose_guard_was_disabled_is_told_by_the_stream(t: Tables) {
        t.0.ok("insert into item (id) values (1)").await;
        t.0.check().await;
        t.0.ok("alter table item disable trigger \"!tidegate_truncate\"; truncate item").await;
        let transactions = t.0.decode().await;
        let oid: i64 = sqlx::query_scalar("select 'item'::regclass::oid::bigint")
            .fetch_one(t.0.pool())
            .await
            .expect("oid");
        assert_eq!(transactions, [[Event::Truncate(vec![u32::try_from(oid).expect("oid")])]]);
    }
);

pg_test!(
    NoSlots,
    async fn h6_tx04_a_publication_that_would_not_deliver_is_refused_at_registration(db: LoadedDatabase) {
        let pool = &db.pool;
        ok(pool, "create table public.item (id int primary key); create table public.next (id int primary key); select tidegate.register_table('public.item', '{}')").await;
        let put_back = "Put the publication back as it was: every registered table, all four operations, nothing filtered.";
        for (broken, message, repaired) in [
            (
                "alter publication tidegate set (publish = 'insert, update, delete')",
                "the publication tidegate does not publish insert, update, delete and truncate",
                "alter publication tidegate set (publish = 'insert, update, delete, truncate')",
            ),
            (
                "alter publication tidegate set (publish = 'insert')",
                "the publication tidegate does not publish insert, update, delete and truncate",
                "alter publication tidegate set (publish = 'insert, update, delete, truncate')",
            ),
            (
                "alter publication tidegate drop table item",
                "public.item: the table is not in the publication",
                "alter publication tidegate add table item",
            ),
            (
                "alter publication tidegate set table item where (id > 0)",
                "item: the publication filters rows of the table",
                "alter publication tidegate set table item",
            ),
            (
                "alter publication tidegate set table item (id)",
                "item: the publication has a column list for the table",
                "alter publication tidegate set table item",
            ),
            (
                "alter publication tidegate set (publish_via_partition_root = true)",
                "the publication tidegate publishes through partition roots",
                "alter publication tidegate set (publish_via_partition_root = false)",
            ),
        ] {
            ok(pool, broken).await;
            for call in [
                "select tidegate.register_table('public.next', '{}')",
                "select tidegate.register_grant('{\"scope\": \"catalog\"}')",
            ] {
                let (given, hint) = refused(pool, "TG002", call).await;
                assert_eq!(
                    (given.trim_start_matches("public."), hint.as_str()),
                    (message.trim_start_matches("public."), put_back),
                    "{broken}"
                );
            }
            ok(pool, repaired).await;
        }
        ok(pool, "drop publication tidegate").await;
        let (given, hint) =
            refused(pool, "TG002", "select tidegate.register_table('public.next', '{}')").await;
        assert_eq!(given, "the publication tidegate is missing");
        assert!(hint.starts_with("Create it again with every registered table"), "{hint}");
        ok(pool, "create publication tidegate for table item").await;
        assert_eq!(text(pool, "select tidegate.register_table('public.next', '{}')").await, "new");
        // A table too many harms nothing that is registered.
        ok(pool, "create table public.extra (id int primary key); alter publication tidegate add table extra; select tidegate.register_table('public.extra', '{}')").await;
    }
);
