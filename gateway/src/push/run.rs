//! The awaits of a push and their order: admission, one transaction or several, and what follows a failure.
//!
//! A failure decides nothing: the push is run again, by us or by the client, and V3 gives the first outcome if it had committed
//! after all (WR-01).

use super::admission::Admission;
use super::failure::{ATTEMPTS_MAX, Failure, client_expired, internal, repeat_or_tell, unavailable};
use super::prepare::{Prepared, prepare};
use super::reply::{PushError, PushReply, RETRY_MS};
use super::start::{load_snapshot, load_targets};
use super::target::Targets;
use super::transact::{Context, collect};
use super::{ClientPusher, PushConfig, sqlstate};
use sqlx::PgPool;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;
use tidegate_model::{RegistryGeneration, Snapshot};
use tidegate_protocol::{ErrorCode, Push, RejectionCode};

/// Acknowledged outcomes that pile up before they are deleted: one deletion per so many pushes.
const PRUNE_STEP: u64 = 64;

/// What all pushes of this process share.
pub(super) struct Runner {
    pub(super) config: PushConfig,
    pub(super) pool: PgPool,
    pub(super) admission: Admission,
    pub(super) targets: RwLock<Arc<Targets>>,
    /// See `sqlstate`.
    pub(super) transient: String,
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Runner {
    pub(super) async fn close(&self) {
        self.pool.close().await;
    }

    pub(super) async fn push(&self, client: &mut ClientPusher, push: &Push<'_>) -> PushReply {
        let started = Instant::now();
        let reply = self.judge_and_run(client, push).await;
        metrics::histogram!("tidegate_push_seconds").record(started.elapsed());
        for result in &reply.results {
            metrics::counter!("tidegate_push_mutations_total", "status" => result.status.as_str())
                .increment(1);
        }
        if let Some(error) = &reply.error {
            metrics::counter!("tidegate_push_errors_total", "code" => error.code.as_str()).increment(1);
        }
        reply
    }

    async fn judge_and_run(&self, client: &mut ClientPusher, push: &Push<'_>) -> PushReply {
        let count = push.mutations.len();
        if count > self.config.batch_mutations_max as usize {
            return PushError::new(ErrorCode::BatchTooLarge, "more mutations than the batch limit").into();
        }
        let Some(first) = push.mutations.first() else {
            return PushError::new(ErrorCode::MalformedFrame, "a push has at least one mutation").into();
        };
        let consecutive = push
            .mutations
            .iter()
            .zip(first.number.0..)
            .take_while(|(mutation, expected)| mutation.number.0 == *expected)
            .count();
        if first.number.0 == 0 || (push.atomic && consecutive < count) {
            return PushError::new(ErrorCode::Gap, "numbers are consecutive and start at 1").into();
        }
        let permit = match self.admission.enter(&client.identity.subject).await {
            Ok(permit) => permit,
            Err(error) => return error.into(),
        };
        let prune = push.acked.0 >= client.pruned + PRUNE_STEP;
        let anonymous = client.identity.subject.is_anonymous();
        let role =
            if anonymous { self.config.anonymous_role.as_deref() } else { Some(self.config.role.as_str()) };
        let claims = match (anonymous, role) {
            (true, Some(role)) => serde_json::json!({ "role": role }).to_string(),
            _ => client.identity.claims.to_string(),
        };
        let mut reply = PushReply::default();
        let context = Context {
            client,
            role: role.unwrap_or(&self.config.role),
            claims: &claims,
            acked: push.acked.0.cast_signed(),
            prune,
            atomic: push.atomic,
        };
        let error = self.run_all(&context, push, consecutive, role.is_none(), &mut reply).await;
        drop(permit);
        if prune && error.is_none() {
            client.pruned = push.acked.0;
        }
        reply.error = error;
        if reply.error.is_none() && consecutive < count {
            reply.error = Some(PushError::new(ErrorCode::Gap, "numbers are consecutive"));
        }
        reply
    }

    /// Runs the push as few transactions as it can: one if it is atomic, or if nothing speaks against it; else one per mutation.
    async fn run_all(
        &self,
        context: &Context<'_>,
        push: &Push<'_>,
        count: usize,
        forbidden: bool,
        reply: &mut PushReply,
    ) -> Option<PushError> {
        let mut done = 0;
        let mut one_by_one = false;
        let mut attempt = 1;
        let mut failed = None;
        let mut reloaded = false;
        // Whether it may still go the short way.
        let mut usual = count == 1;
        // The registry that the mutations were written under, where it makes a difference.
        let mut written: Option<Snapshot> = None;
        let mut prepared: Option<(RegistryGeneration, Vec<Prepared>)> = None;
        while done < count {
            let targets = match self.targets_for(push.sv).await {
                Ok(targets) => targets,
                Err(error) => return Some(error),
            };
            let tables = push.mutations.iter().map(|mutation| mutation.table);
            if written.is_none() && targets.outdates(push.sv, tables) {
                match self.written_under(push.sv).await {
                    Ok(snapshot) => written = Some(snapshot),
                    Err(error) => return Some(error),
                }
            }
            let mutations = match &mut prepared {
                Some((generation, mutations)) if *generation == targets.generation => mutations,
                stale => {
                    let mut mutations = prepare(push, &targets, written.as_ref());
                    if forbidden {
                        for mutation in &mut mutations {
                            mutation.statement = Err(RejectionCode::PermissionDenied.into());
                        }
                    }
                    &mut stale.insert((targets.generation, mutations)).1
                }
            };
            // Deferred constraints and triggers fire at the end of a transaction, and must not fall on a neighbour.
            let together = push.atomic || !(one_by_one || targets.defers);
            let end = if together { count } else { done + 1 };
            let unit = &mutations[done..end];
            if let [mutation] = unit
                && usual
                && !targets.defers
                && !context.prune
            {
                match self.transact_one(context, &targets, mutation).await {
                    Ok(Some(result)) => {
                        reply.results.push(result);
                        done += 1;
                        continue;
                    }
                    Ok(None) => usual = false,
                    Err(failure) => match repeat_or_tell(failure, &mut attempt) {
                        Ok(()) => continue,
                        Err(error) => return Some(error),
                    },
                }
            }
            match self.transact(context, &targets, unit, failed.as_deref()).await {
                Ok(ran) if ran.state == "registry_changed" => {
                    attempt += 1;
                    if attempt > ATTEMPTS_MAX {
                        return Some(unavailable());
                    }
                    if let Err(error) = self.reload().await {
                        return Some(error);
                    }
                }
                Ok(ran) if ran.state == "client_expired" => return Some(client_expired()),
                Ok(ran) if ran.state != "ok" => {
                    return Some(PushError::new(
                        ErrorCode::ClientForked,
                        "a number came back with other content",
                    ));
                }
                Ok(ran) => {
                    let decided = collect(unit, &ran, reply);
                    done += decided;
                    failed = None;
                    match ran.stop.as_deref() {
                        Some("capture_behind") => {
                            let message = "too many accepted mutations are not yet visible";
                            return Some(PushError::retry_after(ErrorCode::CaptureBehind, message, RETRY_MS));
                        }
                        Some(_) => {
                            return Some(PushError::new(ErrorCode::Gap, "an earlier number is missing"));
                        }
                        None if decided < unit.len() => return Some(internal()),
                        None => {}
                    }
                }
                // What may fail only together, or hold others up, is run alone: nobody pays for a neighbour.
                Err(Failure::Database { sqlstate, .. }) if unit.len() > 1 && !push.atomic && !one_by_one => {
                    tracing::debug!(%sqlstate, mutations = unit.len(), "push failed as one transaction; runs one by one");
                    one_by_one = true;
                }
                // Somebody has made something deferrable since we looked: look again, it then counts in the mutation.
                Err(Failure::Database { inside: false, .. }) if !targets.defers && !reloaded => {
                    reloaded = true;
                    if let Err(error) = self.reload().await {
                        return Some(error);
                    }
                }
                // The commit itself refused: stored like any refusal, by a transaction of its own.
                Err(Failure::Database { sqlstate, inside: false })
                    if sqlstate::may_refuse_commit(&sqlstate) && failed.is_none() =>
                {
                    failed = Some(sqlstate);
                }
                Err(failure) => {
                    if let Err(error) = repeat_or_tell(failure, &mut attempt) {
                        return Some(error);
                    }
                }
            }
        }
        None
    }

    /// The registry that pushes written under `version` need.
    async fn targets_for(&self, version: RegistryGeneration) -> Result<Arc<Targets>, PushError> {
        let targets = self.targets();
        if version <= targets.generation {
            return Ok(targets);
        }
        self.reload().await?;
        let targets = self.targets();
        if version > targets.generation {
            let message = "the schema version of the push is not known here yet";
            return Err(PushError::retry_after(ErrorCode::SchemaUnknown, message, RETRY_MS));
        }
        Ok(targets)
    }

    /// The registry in generation `version`, which is past.
    async fn written_under(&self, version: RegistryGeneration) -> Result<Snapshot, PushError> {
        let mut connection = self.pool.acquire().await.map_err(|_| unavailable())?;
        let snapshot = load_snapshot(&mut connection, version).await.map_err(|error| {
            tracing::error!(error, "load the registry that a push was written under");
            unavailable()
        })?;
        // A generation that never was had no tables.
        Ok(snapshot.unwrap_or(Snapshot { generation: version, relations: Vec::new(), grants: Vec::new() }))
    }

    fn targets(&self) -> Arc<Targets> {
        self.targets.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn reload(&self) -> Result<(), PushError> {
        let mut connection = self.pool.acquire().await.map_err(|_| unavailable())?;
        let targets = load_targets(&mut connection).await.map_err(|error| {
            tracing::error!(error, "load the registry for pushes");
            unavailable()
        })?;
        let mut current = self.targets.write().unwrap_or_else(PoisonError::into_inner);
        if targets.generation >= current.generation {
            *current = Arc::new(targets);
        }
        Ok(())
    }
}
