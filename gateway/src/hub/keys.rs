//! The keys that seal cursors, as the database has them now (P9).

use sqlx::PgPool;
use std::sync::{PoisonError, RwLock};
use tidegate_model::{Cursor, CursorError, CursorKeys, RebuildToken, ScopeName};

/// How old a key is before it seals. Every gateway learns of a new key much sooner, and opens with it at once, so no gateway ever
/// refuses what another has sealed.
const SETTLED: &str = "1 minute";

/// Keys that can be replaced while they are used.
#[derive(Debug)]
pub struct KeyRing(RwLock<Keys>);

#[derive(Debug)]
struct Keys {
    sealing: CursorKeys,
    opening: CursorKeys,
}

/// Why there are no keys.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// PostgreSQL refused or was not reachable.
    #[error("read the cursor keys: {0}")]
    Database(#[from] sqlx::Error),
    /// There is none.
    #[error("the database has no cursor key")]
    None,
}

impl KeyRing {
    /// The same keys for both, for tests.
    pub fn new(keys: CursorKeys) -> KeyRing {
        KeyRing(RwLock::new(Keys { sealing: keys.clone(), opening: keys }))
    }

    /// Reads them.
    pub async fn load(pool: &PgPool) -> Result<KeyRing, KeyError> {
        Ok(KeyRing(RwLock::new(read(pool).await?)))
    }

    /// Reads them again.
    pub async fn reload(&self, pool: &PgPool) -> Result<(), KeyError> {
        let keys = read(pool).await?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(())
    }

    fn with<T>(&self, act: impl FnOnce(&Keys) -> T) -> T {
        act(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Seals a cursor.
    pub fn seal_cursor(&self, scope: &ScopeName, cursor: &Cursor) -> Vec<u8> {
        self.with(|keys| keys.sealing.seal_cursor(scope, cursor))
    }

    /// Opens a cursor.
    ///
    /// # Errors
    /// See [`CursorError`].
    pub fn open_cursor(&self, scope: &ScopeName, sealed: &[u8]) -> Result<Cursor, CursorError> {
        self.with(|keys| keys.opening.open_cursor(scope, sealed))
    }

    /// Seals a rebuild continuation.
    pub fn seal_rebuild(&self, scope: &ScopeName, token: &RebuildToken) -> Vec<u8> {
        self.with(|keys| keys.sealing.seal_rebuild(scope, token))
    }

    /// Opens a rebuild continuation.
    ///
    /// # Errors
    /// See [`CursorError`].
    pub fn open_rebuild(&self, scope: &ScopeName, sealed: &[u8]) -> Result<RebuildToken, CursorError> {
        self.with(|keys| keys.opening.open_rebuild(scope, sealed))
    }
}

async fn read(pool: &PgPool) -> Result<Keys, KeyError> {
    let rows: Vec<(i32, Vec<u8>, bool)> = sqlx::query_as(
        "select key_id, secret, created_at < pg_catalog.clock_timestamp() - $1::text::interval from tidegate.cursor_key",
    )
    .bind(SETTLED)
    .fetch_all(pool)
    .await?;
    let keys: Vec<(u32, [u8; 32], bool)> = rows
        .into_iter()
        .filter_map(|(id, secret, settled)| Some((u32::try_from(id).ok()?, secret.try_into().ok()?, settled)))
        .collect();
    let all = || keys.iter().map(|(id, secret, _)| (*id, *secret));
    let settled = keys.iter().filter(|(_, _, settled)| *settled).map(|(id, secret, _)| (*id, *secret));
    let opening = CursorKeys::new(all()).ok_or(KeyError::None)?;
    // A database that has just been made has only a young key: nobody can know an older one.
    let oldest = keys.iter().min_by_key(|(id, ..)| *id).map(|(id, secret, _)| (*id, *secret));
    let sealing = CursorKeys::new(settled).or_else(|| CursorKeys::new(oldest)).ok_or(KeyError::None)?;
    Ok(Keys { sealing, opening })
}
