//! What is said about a file that can be applied, and what a database holds.

use sqlx::Connection;
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::TestServer;
use tidegate_migrations::definition::{
    Definitions, GrantDefinition, ScopeDefinition, TableDefinition, apply,
};
use tidegate_migrations::notice::notices;
use tidegate_migrations::testing::LoadedDatabase;
use tidegate_migrations::{Installed, installed};

fn table(name: &str, scopes: &[&str]) -> TableDefinition {
    let scopes =
        scopes.iter().map(|name| ScopeDefinition { name: (*name).to_owned(), condition: None, join: None });
    TableDefinition {
        name: name.to_owned(),
        columns: None,
        exclude: None,
        write: None,
        unrestricted: false,
        scopes: scopes.collect(),
    }
}

fn grant(scope: &str) -> GrantDefinition {
    GrantDefinition { scope: scope.to_owned(), from: None, condition: None, anonymous: false }
}

pg_test!(
    NoSlots,
    async fn a_file_hears_of_grants_astray_unseen_tables_and_what_it_lacks(db: LoadedDatabase) {
        let tables = "create table public.news (id text primary key); create table public.\"Odd\" (id text primary key)";
        sqlx::raw_sql(tables).execute(&db.pool).await.expect("tables");
        let first = Definitions {
            tables: vec![table("public.news", &["news:{id}"])],
            grants: vec![grant("news:7"), grant("nows")],
        };
        // The same is said before and after.
        for _ in 0..2 {
            let said = notices(&db.pool, &first).await.expect("notices");
            assert_eq!(
                said.warnings,
                [r#"grant "nows" fits the scopes of no registered table (there are "news:{id}")"#]
            );
            assert_eq!(said.kept, []);
            apply(&db.pool, &first).await.expect("applied");
        }
        let second =
            Definitions { tables: vec![table("public.\"Odd\"", &[])], grants: vec![grant("news:8")] };
        apply(&db.pool, &second).await.expect("applied");
        let said = notices(&db.pool, &second).await.expect("notices");
        assert_eq!(said.warnings, [r#"table public."Odd" has no scope: no client can ever see its rows"#]);
        let kept: Vec<_> = said.kept.iter().map(|kept| (kept.kind.as_str(), kept.name.as_str())).collect();
        assert_eq!(kept, [("table", "public.news"), ("grant", "news:7"), ("grant", "nows")]);
    }
);

pg_test!(
    NoSlots,
    async fn looking_for_the_schema_installs_nothing(server: TestServer) {
        let db = LoadedDatabase::new(&server).await;
        let mut connection = sqlx::PgConnection::connect(&db.url()).await.expect("connect");
        assert_eq!(installed(&mut connection).await.expect("looked"), Installed::Current);
        let cleared = "update tidegate.schema_stamp set content_hash = null";
        sqlx::query(cleared).execute(&mut connection).await.expect("cleared");
        assert_eq!(installed(&mut connection).await.expect("looked"), Installed::Other);
        sqlx::query("select tidegate.uninstall()").execute(&mut connection).await.expect("uninstalled");
        assert_eq!(installed(&mut connection).await.expect("looked"), Installed::Missing);
        assert_eq!(installed(&mut connection).await.expect("looked"), Installed::Missing);
    }
);
