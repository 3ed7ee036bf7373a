//! Where acknowledgement, slot and boundary stand (A), at one moment and over time.

use super::World;
use sqlx::postgres::{PgConnection, PgPool};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_model::Lsn;
use tokio::task::JoinHandle;

/// The three positions of A4, and what is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Recorded acknowledgement.
    pub acknowledged: Lsn,
    /// The slot's confirmed position.
    pub slot: Lsn,
    /// Recorded processed boundary.
    pub processed: Lsn,
    /// Identity and end of the newest recorded transaction.
    pub newest: Option<(Lsn, Lsn)>,
    pub transactions: i64,
    pub effects: i64,
}

/// The slot of the active generation.
pub const SLOT: &str = "(select s.confirmed_flush_lsn from pg_replication_slots s join tidegate.stream_generation g using (slot_name)
    join tidegate.progress p on p.generation = g.id)";

async fn lsn(connection: &mut PgConnection, sql: &str) -> Result<Option<Lsn>, sqlx::Error> {
    let text: Option<Option<String>> =
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql.to_owned())).fetch_optional(connection).await?;
    Ok(text.flatten().map(|text| text.parse().expect("a position")))
}

/// Each position is read before the one that it must not pass, because a slot's is not part of any snapshot.
async fn positions(connection: &mut PgConnection) -> Result<Option<[Lsn; 3]>, sqlx::Error> {
    let acknowledged = "select coalesce(acknowledged_end_lsn, consistent_lsn)::text from tidegate.progress p
        join tidegate.stream_generation g on g.id = p.generation";
    let acknowledged = lsn(connection, acknowledged).await?;
    let slot = lsn(connection, &format!("select {SLOT}::text")).await?;
    let processed = lsn(connection, "select processed_end_lsn::text from tidegate.progress").await?;
    Ok(acknowledged.zip(slot).zip(processed).map(|((a, s), p)| [a, s, p]))
}

impl World {
    /// Where everything stands now. The stream exists.
    pub async fn standing(&self) -> Standing {
        let mut connection = self.pool().acquire().await.expect("a connection");
        let [acknowledged, slot, processed] =
            positions(&mut connection).await.expect("positions").expect("a stream with its slot");
        let newest: Option<(String, String)> = sqlx::query_as(
            "select t.commit_lsn::text, t.end_lsn::text from tidegate.source_transaction t
             order by t.generation desc, t.commit_lsn desc limit 1",
        )
        .fetch_optional(&mut *connection)
        .await
        .expect("a record");
        let newest = newest.map(|(commit, end)| (commit.parse().expect("lsn"), end.parse().expect("lsn")));
        let (transactions, effects) = sqlx::query_as(
            "select (select count(*) from tidegate.source_transaction), (select count(*) from tidegate.effect)",
        )
        .fetch_one(&mut *connection)
        .await
        .expect("counts");
        Standing { acknowledged, slot, processed, newest, transactions, effects }
    }

    /// Waits until slot and acknowledgement have reached the boundary, and says where.
    pub async fn until_acknowledged(&self) -> Standing {
        let sql = format!(
            "select acknowledged_end_lsn = processed_end_lsn and {SLOT} = processed_end_lsn from tidegate.progress"
        );
        self.until("the acknowledgement", &sql).await;
        self.standing().await
    }

    /// Where everything stands once nothing has moved for some beats of the heartbeat.
    pub async fn until_still(&self) -> Standing {
        let mut before = self.standing().await;
        loop {
            self.until_beats().await;
            let now = self.standing().await;
            if now == before {
                return now;
            }
            before = now;
        }
    }

    /// From now on every state of the progress row is kept in `public.progress_history`, in order, by the transaction that makes it.
    pub async fn keep_history(&self) {
        self.sql(
            "create table public.progress_history (id bigint generated always as identity, processed pg_lsn, acknowledged pg_lsn,
                 materialized pg_lsn, xid xid8, synchronous text);
             create function public.keep_history() returns trigger language plpgsql as $f$
             begin
                 insert into public.progress_history (processed, acknowledged, materialized, xid, synchronous)
                 values (new.processed_end_lsn, new.acknowledged_end_lsn, new.materialized_commit_lsn, pg_current_xact_id(),
                         current_setting('synchronous_commit'));
                 return null;
             end $f$;
             create trigger keep_history after update on tidegate.progress for each row execute function public.keep_history();
             insert into public.progress_history (processed, acknowledged, materialized)
             select processed_end_lsn, acknowledged_end_lsn, materialized_commit_lsn from tidegate.progress",
        )
        .await;
    }
}

/// Looks again and again while a test runs: never is anything acknowledged that is not durable, nor recorded that is not told.
pub struct Watch {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Vec<[Lsn; 3]>>,
}

impl Watch {
    pub fn start(pool: &PgPool) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let (pool, stopped) = (pool.clone(), stop.clone());
        let task = tokio::spawn(async move {
            let mut seen: Vec<[Lsn; 3]> = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                // A server that a test has shut down is no fault of the worker.
                let Ok(mut connection) = pool.acquire().await else { continue };
                let Ok(Some(positions)) = positions(&mut connection).await else { continue };
                let [acknowledged, slot, processed] = positions;
                assert!(
                    acknowledged <= slot && slot <= processed,
                    "acknowledged {acknowledged}, slot {slot}, processed {processed}"
                );
                if seen.last() != Some(&positions) {
                    seen.push(positions);
                }
                // Others want the processor, too.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            seen
        });
        Watch { stop, task }
    }

    /// Every different state that it has seen: acknowledged, slot, processed.
    pub async fn stop(self) -> Vec<[Lsn; 3]> {
        self.stop.store(true, Ordering::Relaxed);
        let seen = self.task.await.expect("in order at every moment");
        assert!(!seen.is_empty(), "it has looked");
        seen
    }
}
