//! One transaction, in one round trip: what goes to `tidegate.push` and what comes back.

use super::failure::Failure;
use super::prepare::{Prepared, Statement, answered_version};
use super::reply::{ConflictNow, PushReply};
use super::run::Runner;
use super::target::Targets;
use super::{ClientPusher, sqlstate};
use sqlx::FromRow;
use sqlx::postgres::types::Oid;
use std::sync::Arc;
use tidegate_model::RowVersion;
use tidegate_protocol::{MutationNumber, MutationOp, MutationResult, MutationStatus};
use uuid::Uuid;

/// What `tidegate.push` returns.
#[derive(FromRow)]
pub(super) struct Ran {
    pub(super) state: String,
    pub(super) stop: Option<String>,
    statuses: Vec<Option<String>>,
    codes: Vec<Option<String>>,
    messages: Vec<Option<String>>,
    versions: Vec<Option<Uuid>>,
    current: Option<Vec<Option<Uuid>>>,
}

/// The same for every mutation of a push.
pub(super) struct Context<'a> {
    pub(super) client: &'a ClientPusher,
    pub(super) role: &'a str,
    pub(super) claims: &'a str,
    pub(super) acked: i64,
    pub(super) prune: bool,
    pub(super) atomic: bool,
}

impl Runner {
    /// The usual push: one mutation, accepted. `None`: it is not usual, or its statement failed for a reason of its own; nothing has
    /// changed, and [`Runner::transact`] decides.
    pub(super) async fn transact_one(
        &self,
        context: &Context<'_>,
        targets: &Targets,
        mutation: &Prepared,
    ) -> Result<Option<MutationResult<'static>>, Failure> {
        let Ok(statement) = &mutation.statement else { return Ok(None) };
        let mut connection = self.pool.acquire().await?;
        let ran = sqlx::query_as::<_, (bool, Option<Uuid>)>(include_str!("push_one.sql"))
            .bind(&context.client.identity.subject.0)
            .bind(context.client.client.0)
            .bind(context.acked)
            .bind(targets.generation.0)
            .bind(self.config.unmaterialized_max.cast_signed())
            .bind(context.role)
            .bind(context.claims)
            .bind(mutation.number)
            .bind(mutation.fingerprint.as_slice())
            .bind(statement.target.relation_id)
            .bind(Oid(statement.target.oid))
            .bind(&statement.target.name)
            .bind(statement.target.secured)
            .bind(mutation.op == MutationOp::Delete)
            .bind(&statement.key)
            .bind(statement.base)
            .bind(statement.after)
            .bind(&statement.sql)
            .bind(&statement.values)
            .fetch_one(&mut *connection)
            .await
            .map_err(Failure::from);
        match ran {
            Ok((false, _)) => Ok(None),
            Ok((true, version)) => Ok(Some(MutationResult {
                number: MutationNumber(mutation.number.cast_unsigned()),
                status: MutationStatus::Accepted,
                version: answered_version(mutation.op, version),
                code: None,
                message: None,
                row: None,
            })),
            Err(failure) if failure.useless_connection() => {
                drop(connection.detach());
                Err(Failure::Connection)
            }
            Err(Failure::Database { sqlstate, .. }) if !sqlstate::is_transient(&sqlstate) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// One transaction, one round trip.
    pub(super) async fn transact(
        &self,
        context: &Context<'_>,
        targets: &Targets,
        unit: &[Prepared],
        failed: Option<&str>,
    ) -> Result<Ran, Failure> {
        let mut relations = Vec::new();
        let mut relation_of = |mutation: &Prepared| {
            let target = &mutation.statement.as_ref().ok()?.target;
            let known = relations.iter().position(|known| Arc::ptr_eq(known, target));
            let index = known.unwrap_or_else(|| {
                relations.push(target.clone());
                relations.len() - 1
            });
            i32::try_from(index + 1).ok()
        };
        let relation: Vec<Option<i32>> = unit.iter().map(&mut relation_of).collect();
        let statement = |mutation: &Prepared| mutation.statement.clone().ok();
        let statements: Vec<_> = unit.iter().map(statement).collect();
        let of = |field: fn(&Statement) -> &str| -> Vec<Option<&str>> {
            statements.iter().map(|statement| statement.as_ref().map(field)).collect()
        };
        let refusals: Vec<_> = unit.iter().map(|mutation| mutation.statement.as_ref().err()).collect();
        let mut connection = self.pool.acquire().await?;
        let ran = sqlx::query(include_str!("push.sql"))
            .bind(&context.client.identity.subject.0)
            .bind(context.client.client.0)
            .bind(context.client.new)
            .bind(context.acked)
            .bind(context.prune)
            .bind(targets.generation.0)
            .bind(self.config.unmaterialized_max.cast_signed())
            .bind(context.role)
            .bind(context.claims)
            .bind(&self.transient)
            .bind(targets.defers)
            .bind(context.atomic)
            .bind(unit.first().map_or(0, |mutation| mutation.number))
            .bind(relations.iter().map(|target| target.relation_id).collect::<Vec<_>>())
            .bind(relations.iter().map(|target| Oid(target.oid)).collect::<Vec<_>>())
            .bind(relations.iter().map(|target| target.name.as_str()).collect::<Vec<_>>())
            .bind(relations.iter().map(|target| target.secured).collect::<Vec<_>>())
            .bind(relations.iter().map(|target| target.probe.as_str()).collect::<Vec<_>>())
            .bind(unit.iter().map(|mutation| mutation.fingerprint.as_slice()).collect::<Vec<_>>())
            .bind(relation)
            .bind(unit.iter().map(|mutation| mutation.op.as_str()).collect::<Vec<_>>())
            .bind(of(|statement| &statement.key))
            .bind(statements.iter().map(|s| s.as_ref().and_then(|s| s.base)).collect::<Vec<_>>())
            .bind(statements.iter().map(|s| s.as_ref().and_then(|s| s.after)).collect::<Vec<_>>())
            .bind(of(|statement| &statement.sql))
            .bind(statements.iter().map(|s| s.as_ref().and_then(|s| s.insert.as_deref())).collect::<Vec<_>>())
            .bind(of(|statement| &statement.values))
            .bind(refusals.iter().map(|r| r.map(|r| r.code.as_str())).collect::<Vec<_>>())
            .bind(refusals.iter().map(|r| r.and_then(|r| r.message.as_deref())).collect::<Vec<_>>())
            .bind(vec![failed; unit.len()])
            .fetch_one(&mut *connection)
            .await
            .and_then(|row| Ran::from_row(&row))
            .map_err(Failure::from);
        if ran.as_ref().err().is_some_and(Failure::useless_connection) {
            drop(connection.detach());
            return Err(Failure::Connection);
        }
        ran
    }
}

/// Turns what a unit came to into results; gives how many were decided: a prefix.
pub(super) fn collect(unit: &[Prepared], ran: &Ran, reply: &mut PushReply) -> usize {
    let mut decided = 0;
    for (i, mutation) in unit.iter().enumerate() {
        let Some(status) = ran.statuses.get(i).and_then(Option::as_deref).and_then(MutationStatus::parse)
        else {
            break;
        };
        let number = MutationNumber(mutation.number.cast_unsigned());
        let version = ran.versions.get(i).copied().flatten();
        reply.results.push(MutationResult {
            number,
            status,
            version: answered_version(mutation.op, version),
            code: ran.codes.get(i).cloned().flatten().map(Into::into),
            message: ran.messages.get(i).cloned().flatten().map(Into::into),
            row: None,
        });
        let current = ran.current.as_ref().and_then(|current| current.get(i).copied().flatten());
        if let (MutationStatus::Conflict, Some(key), Some(current)) = (status, mutation.row_key(), current) {
            reply.conflicts.push(ConflictNow {
                number,
                table: mutation.table,
                key,
                current: RowVersion(current),
            });
        }
        decided += 1;
    }
    decided
}
