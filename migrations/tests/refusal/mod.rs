//! K, F1: what is refused, in which words, and what to do instead. One test for each thing.

mod definition;
mod key;
mod relation;
mod rights;
mod types;
mod write;

use crate::application::{ok, refused};
use crate::register::snapshot;
use sqlx::postgres::PgPool;

/// Registers, is refused with exactly this, and nothing is written.
pub async fn refuse_table(
    pool: &PgPool,
    setup: &str,
    name: &str,
    definition: &str,
    message: &str,
    hint: &str,
) {
    let before = snapshot(pool).await.generation;
    if !setup.is_empty() {
        ok(pool, setup).await;
    }
    let call = format!("select tidegate.register_table('{name}', '{definition}')");
    let given = refused(pool, "TG001", &call).await;
    assert_eq!((given.0.as_str(), given.1.as_str()), (message, hint), "{call}");
    assert_eq!(snapshot(pool).await.generation, before, "nothing was written");
}

/// One test for each line: its name, the set-up, the table, its definition; the message and the hint.
macro_rules! refused_tables {
    ($($test:ident: $setup:expr, $name:expr, $definition:expr => $message:expr, $hint:expr;)*) => {
        $(tidegate_embedded::pg_test!(
            NoSlots,
            async fn $test(db: tidegate_migrations::testing::LoadedDatabase) {
                crate::refusal::refuse_table(&db.pool, $setup, $name, $definition, $message, $hint).await;
            }
        );)*
    };
}
pub(crate) use refused_tables;
