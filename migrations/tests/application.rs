//! SQL as an application or its operator runs it: on a session of its own, so that nothing is left in a pool's.

use crate::stream::failure;
use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

/// Statements, with what became of them.
pub async fn run(pool: &PgPool, sql: &str) -> Result<(), sqlx::Error> {
    let mut session = pool.connect_options().connect().await?;
    let result = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut session).await.map(drop);
    session.close().await?;
    result
}

/// Statements that succeed.
pub async fn ok(pool: &PgPool, sql: &str) {
    run(pool, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// Message and hint of a refusal.
pub async fn refused(pool: &PgPool, code: &str, sql: &str) -> (String, String) {
    let error = run(pool, sql).await.expect_err(sql);
    let (message, hint) = failure(&error, code);
    assert!(!hint.is_empty(), "{message}: no hint");
    (message, hint)
}

/// The one text that a query gives.
pub async fn text(pool: &PgPool, sql: &str) -> String {
    sqlx::query_scalar(AssertSqlSafe(sql))
        .fetch_one(pool)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"))
}
