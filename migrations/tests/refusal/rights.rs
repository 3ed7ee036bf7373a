//! F1, X6: who may register, and what the owner of our schema must be able to read.

use crate::application::{ok, refused};
use crate::register::snapshot;
use tidegate_embedded::pg_test;
use tidegate_migrations::testing::LoadedDatabase;

/// A role of this test alone.
struct Role<'a> {
    db: &'a LoadedDatabase,
    name: String,
}

impl<'a> Role<'a> {
    async fn create(db: &'a LoadedDatabase, attributes: &str) -> Role<'a> {
        let name = format!("{}_role", db.database.name());
        ok(&db.pool, &format!("create role {name} nosuperuser {attributes}")).await;
        Role { db, name }
    }

    async fn drop(self) {
        let name = &self.name;
        ok(
            &self.db.pool,
            &format!("reassign owned by {name} to postgres; drop owned by {name}; drop role {name}"),
        )
        .await;
    }
}

const REGISTER: &str = "select tidegate.register_table('public.t', '{}')";

pg_test!(
    NoSlots,
    async fn f1_a_role_that_is_no_member_of_the_schemas_owner_may_not_register(db: LoadedDatabase) {
        ok(&db.pool, "create table public.t (id int primary key)").await;
        let role = Role::create(&db, "").await;
        let name = &role.name;
        ok(&db.pool, &format!("grant usage on schema tidegate to {name}; grant select on all tables in schema tidegate to {name}; alter table t owner to {name}")).await;
        let given = refused(&db.pool, "TG003", &format!("set role {name}; {REGISTER}")).await;
        assert_eq!(
            given,
            (
                format!("role {name} may not register tables"),
                "Register as role postgres, which owns the schema tidegate, or as a member of it.".to_owned()
            )
        );
        role.drop().await;
    }
);

pg_test!(
    NoSlots,
    async fn f1_a_table_of_another_owner_is_refused_with_what_to_grant(db: LoadedDatabase) {
        let role = Role::create(&db, "").await;
        let name = &role.name;
        // It owns our schema, and not the table.
        ok(&db.pool, &format!("create table public.t (id int primary key); alter schema tidegate owner to {name}; grant select on t to {name};
            grant all on all tables in schema tidegate to {name}; grant all on all sequences in schema tidegate to {name}")).await;
        let given = refused(&db.pool, "TG003", &format!("set role {name}; {REGISTER}")).await;
        assert_eq!(
            given,
            (
                format!("public.t belongs to role postgres, which {name} is not a member of"),
                format!("Run: grant postgres to {name}; or register as a superuser.")
            )
        );
        ok(&db.pool, "alter schema tidegate owner to postgres").await;
        role.drop().await;
    }
);

pg_test!(
    NoSlots,
    async fn f9_a_table_that_the_schemas_owner_may_not_read_is_refused(db: LoadedDatabase) {
        let role = Role::create(&db, "").await;
        let name = &role.name;
        ok(
            &db.pool,
            &format!("create table public.t (id int primary key); alter schema tidegate owner to {name}"),
        )
        .await;
        let given = refused(&db.pool, "TG001", REGISTER).await;
        assert_eq!(
            given,
            (
                format!("role {name}, which owns the schema tidegate, may not read public.t"),
                format!("Run: grant select on public.t to {name}")
            )
        );
        // The freeze guard would be blind.
        ok(&db.pool, &format!("grant select on t to {name}; alter table t enable row level security")).await;
        let given = refused(&db.pool, "TG001", REGISTER).await;
        assert_eq!(
            given,
            (
                format!(
                    "row-level security of public.t applies to role {name}, which owns the schema tidegate"
                ),
                format!("Run: alter role {name} bypassrls")
            )
        );
        ok(&db.pool, &format!("alter table t owner to {name}; alter table t force row level security")).await;
        assert_eq!(refused(&db.pool, "TG001", REGISTER).await, given, "forced on its owner too");
        assert_eq!(snapshot(&db.pool).await.generation.0, 0);
        ok(&db.pool, "alter schema tidegate owner to postgres").await;
        role.drop().await;
    }
);
