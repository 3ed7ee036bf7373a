//! What one read of the tail brings to sessions: its snapshot, and the batch that those whom it concerns share.

use std::collections::HashMap;
use std::sync::Arc;
use tidegate_log::{Anchor, ClientKey, Pending};
use tidegate_model::{Lsn, Point, Subject};
use tidegate_protocol::ScopeNumber;

use super::page::Page;
use crate::grants::SubjectGrants;

/// What one read of the tail was: position and the gate's facts (V2), taken in one statement.
#[derive(Debug)]
pub struct Snapshot {
    /// Number of the read; a later one began later.
    pub seq: u64,
    /// Everything through here was read.
    pub through: Point,
    /// The newest transaction that was durable then: no row that anybody read before is newer.
    pub tip: Point,
    /// Accepted mutations that were neither materialized nor covered.
    pub pending: Pending,
    /// What it was bound to.
    pub anchor: Anchor,
}

/// One batch, as all sessions that it concerns share it.
#[derive(Debug)]
pub struct Batch {
    /// Its read.
    pub snapshot: Arc<Snapshot>,
    /// Whether it ends at a transaction's end, so that a cut may follow.
    pub complete: bool,
    /// Pages of scopes that somebody here subscribes to, in order.
    pub pages: HashMap<ScopeNumber, Vec<Arc<Page>>>,
    /// Mutations that its transactions brought round, with their transactions.
    pub materialized: HashMap<ClientKey, Vec<(u64, Lsn)>>,
    /// Grants of subjects here for whom they changed, as of its end.
    pub grants: HashMap<Subject, Arc<SubjectGrants>>,
}
