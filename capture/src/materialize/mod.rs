//! The middle of the flow, with its I/O: takes paired transactions in commit order and makes them durable, one database transaction
//! per group (R2). What it computes is `tidegate-stream`'s; here are the awaits: lock and compare the epoch, read what is needed,
//! write, move the boundary, commit.
//!
//! A failure leaves nothing behind but an open question: a lost COMMIT may have succeeded. So the caller ends the session and
//! begins another, which reads progress first and gets the transactions again from the slot.

mod cache;
mod read;
mod write;

pub(crate) use read::fresh_ids;

use crate::columns::SqlLsn;
use crate::config::Limits;
use crate::error::Doing;
use crate::failpoints::fail_point;
use crate::intake::piece_limits;
use crate::ownership::Claim;
use crate::poison::{self, Blocking};
use crate::{CaptureError, Refusal, visibility};
use cache::Cache;
use sqlx::{Acquire, PgConnection, Row};
use std::collections::HashSet;
use tidegate_model::{
    GenerationId, Lsn, RegistryGeneration, RelationId, RowDigest, RowVersion, ScopeDigest, ScopeId, StateId,
};
use tidegate_stream::{
    Batch, Carry, Marker, OldRow, PairedTransaction, PieceLimits, RowColumns, RowNeeds, ScopeTotals, Writes,
};
use uuid::Uuid;
use write::End;

/// Which state is written, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The active generation: everything is written, and exposed by the commit.
    Live { generation: GenerationId, state: StateId },
    /// A candidate that catches up (B3): projections, edges and totals only (B10).
    Candidate { reset: Uuid, state: StateId },
}

impl Target {
    pub(crate) fn state(&self) -> StateId {
        match *self {
            Target::Live { state, .. } | Target::Candidate { state, .. } => state,
        }
    }

    /// Whether effects are written, and so positions in the scopes.
    pub(crate) fn delivers(&self) -> bool {
        matches!(self, Target::Live { .. })
    }
}

/// What one commit made durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Materialized {
    /// The new processed boundary (A2).
    pub(crate) processed: Lsn,
    /// Newest source transaction in it.
    pub(crate) commit_lsn: Lsn,
    pub(crate) registry: RegistryGeneration,
    pub(crate) transactions: usize,
    pub(crate) effects: usize,
    pub(crate) events: u64,
    pub(crate) markers: Vec<Marker>,
    /// A poison record that this commit cleared.
    pub(crate) resolved: Option<i64>,
}

/// Materializes groups of one target, one after another (R5).
pub(crate) struct Materializer {
    claim: Claim,
    target: Target,
    /// The boundary as this session left it; compared inside each transaction.
    processed: Lsn,
    piece: PieceLimits,
    cache: Cache,
    /// Relations whose projection exists in this state.
    projections: HashSet<RelationId>,
    /// A poisoned transaction that an operator wants tried again.
    retrying: Option<Blocking>,
}

impl Materializer {
    pub(crate) async fn new(
        connection: &mut PgConnection,
        claim: Claim,
        target: Target,
        processed: Lsn,
        retrying: Option<Blocking>,
        limits: &Limits,
    ) -> Result<Materializer, CaptureError> {
        let projections = projections_of(connection, target.state()).await?;
        Ok(Materializer {
            claim,
            target,
            processed,
            piece: piece_limits(limits),
            cache: Cache::new(limits.cache_bytes_max),
            projections,
            retrying,
        })
    }

    /// The boundary has moved without a transaction.
    pub(crate) fn idle(&mut self, processed: Lsn) {
        debug_assert!(processed >= self.processed, "the processed boundary never moves back");
        self.processed = processed;
    }

    /// The record that an operator wants tried again, where reading on is what it is about.
    pub(crate) fn retried_at_boundary(&self) -> Option<i64> {
        self.retrying.as_ref().filter(|poison| poison.at_boundary).map(|poison| poison.id)
    }

    /// That record is cleared.
    pub(crate) fn resolved(&mut self) {
        self.retrying = None;
    }

    /// Makes a group durable. It is empty afterwards only in the sense that its transactions are used up: after an error the
    /// session must end.
    pub(crate) async fn materialize(
        &mut self,
        connection: &mut PgConnection,
        group: &mut [PairedTransaction],
    ) -> Result<Materialized, CaptureError> {
        let done = self.attempt(connection, group).await;
        if done.is_err() {
            self.cache.clear();
        }
        done
    }

    async fn attempt(
        &mut self,
        connection: &mut PgConnection,
        group: &mut [PairedTransaction],
    ) -> Result<Materialized, CaptureError> {
        let mut transaction = connection.begin().await.doing("begin materialization")?;
        self.hold(&mut transaction).await?;
        fail_point!(MATERIALIZE_BEGUN);
        let fresh = self.missing_projections(group);
        for relation in &fresh {
            create_projection(&mut transaction, self.target.state(), *relation).await?;
        }
        let resolves =
            self.retrying.as_ref().filter(|p| group.iter().any(|t| p.is_settled_by(t.header().commit_lsn)));
        let resolved = resolves.map(|poison| poison.id);

        let last = *group.last().ok_or(Refusal::Inconsistent("an empty group"))?.header();
        let registry = group.last().map(|last| last.registry().generation).unwrap_or(RegistryGeneration(0));
        let mut done = Materialized {
            processed: last.end_lsn,
            commit_lsn: last.commit_lsn,
            registry,
            transactions: group.len(),
            effects: 0,
            events: group.iter().map(|transaction| transaction.header().event_count).sum(),
            markers: Vec::new(),
            resolved,
        };
        let end = End { commit_lsn: last.commit_lsn, end_lsn: last.end_lsn, registry };
        let sources: Vec<u32> = group.iter().map(|transaction| transaction.header().xid).collect();
        let mut through = Vec::new();
        if let [large] = group
            && !large.fits(&self.piece)
        {
            let mut carry = Carry::default();
            while let Some(piece) = large.next_piece(&self.piece)? {
                let mut batch = Batch::resume(carry);
                batch.push(piece);
                carry = self.batch(&mut transaction, batch, &sources, end, &mut done).await?.1;
            }
        } else {
            let mut batch = Batch::new();
            for transaction in group.iter_mut() {
                while let Some(piece) = transaction.next_piece(&self.piece)? {
                    batch.push(piece);
                }
            }
            through.push(self.batch(&mut transaction, batch, &sources, end, &mut done).await?.0);
        }
        self.record_candidate(&mut transaction, last.end_lsn, registry).await?;
        if let Some(id) = resolved {
            poison::resolve(&mut transaction, id).await?;
        }
        fail_point!(MATERIALIZE_WRITTEN);
        transaction.commit().await.doing("commit materialization")?;
        // Durable. From here on only memory changes.
        self.processed = last.end_lsn;
        self.projections.extend(fresh);
        if resolved.is_some() {
            self.retrying = None;
        }
        match through.pop() {
            Some(writes) => self.write_through(writes),
            // A large transaction would only sweep the cache.
            None => self.cache.clear(),
        }
        fail_point!(MATERIALIZE_COMMITTED);
        Ok(done)
    }

    /// One batch: both rounds of questions, then every list. The boundary moves with the batch that completes it.
    async fn batch(
        &mut self,
        transaction: &mut PgConnection,
        mut batch: Batch,
        sources: &[u32],
        end: End,
        done: &mut Materialized,
    ) -> Result<(Writes, Carry), CaptureError> {
        let state = self.target.state();
        let needs: RowNeeds = batch.row_needs();
        read::rows(transaction, state, &mut self.cache, &needs, &mut batch).await?;
        let projected = batch.project()?;
        let answers = read::scopes(transaction, state, &mut self.cache, projected.needs()).await?;
        fail_point!(MATERIALIZE_READ);
        let (mut writes, carry) = projected.finish(answers)?;
        if !writes.fences.fence_id.is_empty() {
            visibility::wait(transaction, sources).await?;
        }
        write::all(transaction, &self.target, &writes, carry.is_complete().then_some(end)).await?;
        done.effects += writes.effects.len();
        done.markers.append(&mut writes.markers);
        Ok((writes, carry))
    }

    /// Locks the worker row, compares the epoch, and makes sure that progress is where this session left it.
    async fn hold(&self, transaction: &mut PgConnection) -> Result<(), CaptureError> {
        let row = match self.target {
            Target::Live { generation, .. } => {
                sqlx::query(
                    "select w.epoch, (select p.processed_end_lsn from tidegate.progress p where p.generation = $1)
                     from tidegate.worker w for update of w",
                )
                .bind(generation.0)
                .fetch_one(transaction)
                .await
            }
            Target::Candidate { reset, .. } => {
                sqlx::query(
                    "select w.epoch, (select r.caught_up_lsn from tidegate.stream_reset r where r.reset_id = $1)
                     from tidegate.worker w for update of w",
                )
                .bind(reset)
                .fetch_one(transaction)
                .await
            }
        };
        let row = row.doing("lock the worker row")?;
        let epoch: i64 = row.try_get(0).doing("lock the worker row")?;
        let processed: Option<SqlLsn> = row.try_get(1).doing("lock the worker row")?;
        if epoch != self.claim.epoch {
            return Err(CaptureError::OwnershipLost);
        }
        if processed.map(|lsn| lsn.0) != Some(self.processed) {
            return Err(CaptureError::Waiting(
                "progress is not where this session left it: read it again".into(),
            ));
        }
        Ok(())
    }

    /// Relations that an activation brought: those of every registry of the group, touched or not, so that a reader finds an
    /// empty table rather than none.
    fn missing_projections(&self, group: &[PairedTransaction]) -> Vec<RelationId> {
        let mut missing: Vec<RelationId> = Vec::new();
        let mut seen = None;
        for registry in group.iter().map(PairedTransaction::registry) {
            if seen.replace(registry.generation) == Some(registry.generation) {
                continue;
            }
            for relation in &registry.relations {
                let id = relation.relation_id;
                if !self.projections.contains(&id) && !missing.contains(&id) {
                    missing.push(id);
                }
            }
        }
        missing
    }

    /// A candidate's boundary, in place of progress.
    async fn record_candidate(
        &self,
        transaction: &mut PgConnection,
        end_lsn: Lsn,
        registry: RegistryGeneration,
    ) -> Result<(), CaptureError> {
        let Target::Candidate { reset, .. } = self.target else { return Ok(()) };
        sqlx::query("update tidegate.stream_reset set caught_up_lsn = $2, registry_generation = $3 where reset_id = $1")
            .bind(reset)
            .bind(SqlLsn(end_lsn))
            .bind(registry.0)
            .execute(transaction)
            .await
            .doing("record how far the candidate has caught up")?;
        Ok(())
    }

    /// What has just become durable is what the next batch would read.
    fn write_through(&mut self, writes: Writes) {
        for projection in writes.projections {
            for key_index in &projection.delete {
                self.cache.remove_row(projection.relation, key_index);
            }
            for rows in [projection.insert, projection.update] {
                put_rows(&mut self.cache, projection.relation, rows);
            }
        }
        let new = writes.new_scopes;
        for (hash, id) in new.name_hash.iter().zip(&new.totals.scope_id) {
            self.cache.put_scope(*hash, ScopeId(*id));
        }
        for columns in [new.totals, writes.scopes] {
            for ((id, row_count), digest) in
                columns.scope_id.iter().zip(&columns.row_count).zip(&columns.digest)
            {
                let digest = ScopeDigest(u128::from_be_bytes(*digest));
                self.cache.put_totals(ScopeId(*id), ScopeTotals { row_count: *row_count, digest });
            }
        }
    }
}

fn put_rows(cache: &mut Cache, relation: RelationId, rows: RowColumns) {
    let columns = rows.key_index.into_iter().zip(rows.version).zip(rows.row).zip(rows.digest);
    for ((((key_index, version), row), digest), (scope_ids, grants)) in
        columns.zip(rows.scope_ids.iter().zip(&rows.grants))
    {
        let grants = match grants {
            None => Some(Vec::new()),
            Some(json) => read::grants(json),
        };
        let Some(grants) = grants else { continue };
        let scopes =
            scope_ids.trim_matches(['{', '}']).split(',').filter_map(|id| id.parse().ok().map(ScopeId));
        let old = OldRow {
            version: RowVersion(version),
            // A copy: the image may be a slice of a much larger buffer.
            row: bytes::Bytes::copy_from_slice(&row),
            digest: RowDigest(digest),
            scopes: scopes.collect(),
            grants,
        };
        cache.put_row(relation, bytes::Bytes::copy_from_slice(&key_index), old);
    }
}

/// Creates the projection of one relation in one state.
pub(crate) async fn create_projection(
    connection: &mut PgConnection,
    state: StateId,
    relation: RelationId,
) -> Result<(), CaptureError> {
    sqlx::query("select tidegate.create_projection($1, $2)")
        .bind(state.0)
        .bind(relation.0)
        .execute(connection)
        .await
        .doing("create a projection")?;
    Ok(())
}

/// Relations whose projection exists in a state.
pub(crate) async fn projections_of(
    connection: &mut PgConnection,
    state: StateId,
) -> Result<HashSet<RelationId>, CaptureError> {
    let prefix = format!("s{state}_p");
    let names: Vec<String> = sqlx::query_scalar(
        "select c.relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
         where n.nspname = 'tidegate_projection' and c.relkind = 'r' and starts_with(c.relname::text, $1)",
    )
    .bind(&prefix)
    .fetch_all(connection)
    .await
    .doing("list projections")?;
    Ok(names.iter().filter_map(|name| name[prefix.len()..].parse().ok().map(RelationId)).collect())
}
