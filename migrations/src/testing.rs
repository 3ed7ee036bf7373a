//! Databases with the schema loaded, for tests: one template per content of the schema and server, one database per test.

use crate::{Schema, connect_and_load};
use sqlx::postgres::{PgPool, PgPoolOptions};
use tidegate_embedded::testing::{Template, TestContext, TestDatabase, TestServer};

/// A fresh database with the schema loaded, and a pool on it. Goes away with the value; close the pool's users first.
pub struct LoadedDatabase {
    /// Superuser connections.
    pub pool: PgPool,
    /// The database.
    pub database: TestDatabase,
}

impl LoadedDatabase {
    /// Makes one on this server.
    ///
    /// # Panics
    /// If it cannot be made: a test that cannot run fails.
    pub async fn new(server: &TestServer) -> LoadedDatabase {
        LoadedDatabase::prepared(server, "").await
    }

    /// Makes one in which these statements have run: once per server, then it is copied.
    ///
    /// # Panics
    /// If it cannot be made.
    pub async fn prepared(server: &TestServer, setup: &str) -> LoadedDatabase {
        let template = loaded_template(server, setup).await;
        let database = server.create_database_from(&template).unwrap_or_else(|error| panic!("{error}"));
        let pool = pool(&database.url());
        LoadedDatabase { pool, database }
    }

    /// A connection string for the superuser.
    pub fn url(&self) -> String {
        self.database.url()
    }
}

impl TestContext for LoadedDatabase {
    async fn prepare(server: TestServer) -> Self {
        Self::new(&server).await
    }
}

/// The template with the schema loaded and the statements run. Its key holds the content hash and the statements, so that what
/// changes makes a new one.
///
/// # Panics
/// If it cannot be made.
async fn loaded_template(server: &TestServer, setup: &str) -> Template {
    let hash = Schema::full().content_hash();
    let key = hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + setup;
    let setup = setup.to_owned();
    let built = server
        .template_async(&key, |url| async move {
            let pool = pool(&url);
            let loaded = connect_and_load(&pool).await;
            if loaded.is_ok() && !setup.is_empty() {
                let prepared = sqlx::raw_sql(sqlx::AssertSqlSafe(setup)).execute(&pool).await;
                prepared.unwrap_or_else(|error| panic!("prepare a template: {error}"));
            }
            pool.close().await;
            loaded.map(drop)
        })
        .await;
    built.unwrap_or_else(|error| panic!("{error}"))
}

/// A lazy pool of a test's size on this address.
///
/// # Panics
/// If the address is not one.
pub fn pool(url: &str) -> PgPool {
    PgPoolOptions::new().max_connections(8).connect_lazy(url).unwrap_or_else(|error| panic!("{error}"))
}
