//! The LISTEN connection: turns NOTIFY into wakes. Losing it only delays (S5): the subscription looks by itself now and then.

use sqlx::PgPool;
use sqlx::postgres::PgListener;
use std::time::Duration;
use tidegate_model::Wake;

use super::{EffectLog, TailPosition};
use std::sync::Arc;

/// Longest pause between attempts to listen again.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Listens for one effect log, on a connection of its own.
#[derive(Debug)]
pub struct WakeListener {
    pool: PgPool,
    log: Arc<EffectLog>,
}

impl WakeListener {
    /// `pool` gives up one connection for as long as [`run`](Self::run) runs.
    pub fn new(pool: PgPool, log: Arc<EffectLog>) -> WakeListener {
        WakeListener { pool, log }
    }

    /// Listens until dropped. A connection that breaks is replaced; whatever was missed meanwhile is one wake.
    pub async fn run(self) {
        let mut pause = Duration::from_millis(100);
        loop {
            match self.listen(&mut pause).await {
                Ok(never) => match never {},
                Err(error) => {
                    tracing::warn!(%error, retry_ms = pause.as_millis() as u64, "listening for wakes broke off")
                }
            }
            self.log.wake().wake();
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    async fn listen(&self, pause: &mut Duration) -> Result<std::convert::Infallible, sqlx::Error> {
        let mut listener = PgListener::connect_with(&self.pool).await?;
        listener.listen(Wake::CHANNEL).await?;
        *pause = Duration::from_millis(100);
        // What was committed before LISTEN took hold sent its NOTIFY to nobody.
        self.log.wake().wake();
        loop {
            match listener.try_recv().await? {
                Some(notification) => self.report(notification.payload()),
                None => self.log.wake().wake(),
            }
        }
    }

    fn report(&self, payload: &str) {
        match Wake::parse(payload) {
            Some(wake) if wake.generation == self.log.lineage().stream => {
                self.log.wake().wake_at(TailPosition::end_of(wake.commit_lsn));
            }
            // Another generation, or not ours: looking finds out.
            _ => self.log.wake().wake(),
        }
    }
}
