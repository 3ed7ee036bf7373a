//! One transaction of a batch, once its scopes and pairs are known: net effects with the totals after each, fences, its record (R6).

use super::{Change, PendingTransaction, RowState};
use crate::Failure;
use crate::carry::{Carry, Unfinished};
use crate::effects::{EffectOrdinals, NetEffect, order};
use crate::pair::PieceEnd;
use crate::transaction::Header;
use crate::writes::{EffectOperation, Marker, Writes};
use bytes::Bytes;
use tidegate_model::{RowDigest, ScopeId};

/// One transaction, or one piece of it: its effects and its records.
pub(super) fn materialize(
    transaction: PendingTransaction,
    rows: &mut [RowState],
    carry: &mut Carry,
    writes: &mut Writes,
) -> Result<(), Failure> {
    let commit_lsn = transaction.header.commit_lsn;
    let mut sums = carry.unfinished.take().unwrap_or_default();
    let changes = &transaction.changes;
    let mut edges = Vec::with_capacity(changes.len());
    for change in changes {
        let scopes = match &change.after {
            None => Vec::new(),
            Some(image) => {
                let ids: Result<Vec<ScopeId>, Failure> =
                    image.scopes.iter().map(|slot| carry.scopes.id(*slot)).collect();
                let mut ids = ids?;
                ids.sort_unstable();
                ids
            }
        };
        edges.push(scopes);
        change.revoked.iter().for_each(|slot| carry.pairs.add(*slot, -1));
        change.granted.iter().for_each(|slot| carry.pairs.add(*slot, 1));
    }
    let mut effects = net_effects(changes, &edges, rows);
    order(&mut effects);
    let mut ordinals = EffectOrdinals::default();
    for effect in &effects {
        let ordinal = ordinals.next(effect);
        let change = &changes[effect.change];
        let totals = carry.scopes.apply(
            effect.scope,
            effect.before,
            effect.after,
            (commit_lsn, effect.event_ordinal, ordinal),
        )?;
        let row = change
            .after
            .as_ref()
            .filter(|_| effect.operation == EffectOperation::Upsert)
            .map(|image| image.row.clone());
        let key = rows[change.row].wire_key.clone();
        sums.effect_count += 1;
        // Key, version and row: what a frame carries of it, give or take its framing.
        sums.effect_bytes += (key.len() + 16 + row.as_ref().map_or(0, Bytes::len)) as i64;
        let columns = &mut writes.effects;
        columns.scope_id.push(effect.scope.0);
        columns.commit_lsn.push(commit_lsn);
        columns.event_ordinal.push(effect.event_ordinal as i64);
        columns.effect_ordinal.push(ordinal);
        columns.op.push(effect.operation as i16);
        columns.table_id.push(effect.table.0);
        columns.key.push(key);
        columns.version.push(change.delta.version.0);
        columns.row.push(row);
        columns.schema_version.push(change.delta.layout.snapshot().generation.0);
        columns.digest_after.push(totals.digest.to_bytes());
        columns.count_after.push(totals.row_count);
    }
    drop(effects);
    for (change, scopes) in changes.iter().zip(edges) {
        rows[change.row].live = change.after.as_ref().map(|image| (image.digest, scopes));
    }
    write_fences(&transaction, writes);
    match transaction.end {
        None => carry.unfinished = Some(sums),
        Some(end) => {
            carry.pairs.settle(commit_lsn, &mut writes.grant_effects)?;
            write_record(&transaction.header, end, sums, writes);
        }
    }
    Ok(())
}

/// R6: from the row before and after the transaction, at most one effect per scope.
fn net_effects<'r>(changes: &[Change], edges: &[Vec<ScopeId>], rows: &'r [RowState]) -> Vec<NetEffect<'r>> {
    let mut effects = Vec::with_capacity(changes.len());
    for (index, (change, after)) in changes.iter().zip(edges).enumerate() {
        let row = &rows[change.row];
        let Some(table) = row.table else { continue };
        let (old_digest, before): (Option<RowDigest>, &[ScopeId]) = match &row.live {
            None => (None, &[]),
            Some((digest, scopes)) => (Some(*digest), scopes),
        };
        let new_digest = change.after.as_ref().map(|image| image.digest);
        let effect = |scope: ScopeId, operation, before, after| NetEffect {
            event_ordinal: change.delta.last_ordinal,
            scope,
            table,
            key: &row.key,
            operation,
            before,
            after,
            change: index,
        };
        for scope in after {
            let stays = before.binary_search(scope).is_ok();
            effects.push(effect(*scope, EffectOperation::Upsert, old_digest.filter(|_| stays), new_digest));
        }
        for scope in before.iter().filter(|scope| after.binary_search(scope).is_err()) {
            effects.push(effect(*scope, EffectOperation::Delete, old_digest, None));
        }
    }
    effects
}

fn write_fences(transaction: &PendingTransaction, writes: &mut Writes) {
    for fence in &transaction.write_fences {
        writes.fences.fence_id.push(fence.fence.0);
        writes.fences.mutation_id.push(fence.mutation.0);
        writes.fences.relation_id.push(fence.relation.0);
        writes.fences.key.push(fence.key.clone());
        writes.fences.version.push(fence.version.0);
        writes.fences.materialized_commit_lsn.push(transaction.header.commit_lsn);
    }
}

fn write_record(header: &Header, end: PieceEnd, sums: Unfinished, writes: &mut Writes) {
    let columns = &mut writes.transactions;
    columns.commit_lsn.push(header.commit_lsn);
    columns.end_lsn.push(header.end_lsn);
    columns.xid.push(i64::from(header.xid));
    columns.committed_at_pg_micros.push(header.committed_at_pg_micros);
    columns.event_count.push(header.event_count as i64);
    columns.effect_count.push(sums.effect_count);
    columns.effect_bytes.push(sums.effect_bytes);
    columns.manifest.push(end.manifest);
    for (generation, first_event_ordinal) in end.activations {
        writes.activations.registry_generation.push(generation);
        writes.activations.commit_lsn.push(header.commit_lsn);
        writes.activations.first_event_ordinal.push(first_event_ordinal as i64);
    }
    let marker = |nonce| Marker { nonce, commit_lsn: header.commit_lsn, end_lsn: header.end_lsn };
    writes.markers.extend(end.markers.into_iter().map(marker));
}
