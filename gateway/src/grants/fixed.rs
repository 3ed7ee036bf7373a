//! Grants that need no look at any row: rules that hold for everybody who is somebody, or for all.

use sqlx::PgPool;
use std::collections::{BTreeMap, HashMap};
use tidegate_model::{GenerationId, Lsn, Point, RegistryGeneration, ScopeName, Snapshot, Subject};

/// The static rules of one registry generation, each with the point from which it has been in force without a gap (V7). Read from
/// the log's own record, so it does not matter who was looking, or which gateway ran, while a rule was away.
#[derive(Debug)]
pub struct StaticGrants {
    generation: RegistryGeneration,
    /// One rule each.
    rules: Vec<(Snapshot, Point)>,
}

impl StaticGrants {
    /// `since`: by grant, the transaction that put it in force; of those that are not in it, the baseline did.
    pub fn new(registry: &Snapshot, since: &HashMap<i32, Lsn>) -> StaticGrants {
        let rules = registry.grants.iter().filter(|grant| grant.relation_id.is_none()).map(|grant| {
            let alone = Snapshot {
                generation: registry.generation,
                relations: Vec::new(),
                grants: vec![grant.clone()],
            };
            let at = since.get(&grant.grant_id);
            (alone, at.map_or(Point::GenerationStart, |lsn| Point::TransactionEnd { commit_lsn: *lsn }))
        });
        StaticGrants { generation: registry.generation, rules: rules.collect() }
    }

    /// Reads since when each holds. The generation must be in force already.
    ///
    /// # Errors
    /// PostgreSQL refused or was not reachable.
    pub async fn load(
        pool: &PgPool,
        stream: GenerationId,
        registry: &Snapshot,
    ) -> Result<StaticGrants, sqlx::Error> {
        let rows: Vec<(i32, Option<String>)> = sqlx::query_as(include_str!("static_since.sql"))
            .bind(registry.generation.0)
            .bind(stream.0)
            .fetch_all(pool)
            .await?;
        let since = rows.into_iter().filter_map(|(grant, lsn)| Some((grant, lsn?.parse().ok()?))).collect();
        Ok(StaticGrants::new(registry, &since))
    }

    /// Which registry generation's they are.
    pub fn generation(&self) -> RegistryGeneration {
        self.generation
    }

    /// A subject's scopes by them.
    pub fn of(&self, subject: &Subject) -> BTreeMap<ScopeName, Point> {
        let mut scopes: BTreeMap<ScopeName, Point> = BTreeMap::new();
        for (rule, since) in &self.rules {
            for scope in rule.static_scopes(subject) {
                // Two rules that overlap leave no gap.
                let at = scopes.entry(scope).or_insert(*since);
                *at = (*at).min(*since);
            }
        }
        scopes
    }
}
