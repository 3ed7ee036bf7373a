//! What the effect log returns: values, cut loose from the connection that they came from.

use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;
use tidegate_model::{
    ClientId, Lsn, RegistryGeneration, RowVersion, ScopeDigest, ScopeId, ScopeName, Subject, TableId,
};

use super::{Anchor, EffectPosition, TailPosition};

/// One thing to do in one scope.
#[derive(Clone, Debug)]
pub struct Effect {
    /// The scope.
    pub scope: ScopeId,
    /// Its place in the scope.
    pub position: EffectPosition,
    /// The table.
    pub table: TableId,
    /// The key in its wire form.
    pub key: Bytes,
    /// Version of the row.
    pub version: RowVersion,
    /// The row in its wire form; `None`: it leaves the scope.
    pub row: Option<Bytes>,
    /// Registry generation under which the row was encoded.
    pub schema_version: RegistryGeneration,
    /// The scope after this effect.
    pub after: ScopeState,
}

/// Digest and size of a scope at some position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScopeState {
    /// Its digest.
    pub digest: ScopeDigest,
    /// Its rows.
    pub row_count: u64,
}

impl ScopeState {
    /// A scope without rows.
    pub const EMPTY: ScopeState = ScopeState { digest: ScopeDigest::EMPTY, row_count: 0 };
}

/// A client installation of a subject.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClientKey {
    /// Who.
    pub subject: Subject,
    /// Which installation.
    pub client: ClientId,
}

/// A subject's scope, given or taken by a source transaction (V7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantChange {
    /// The transaction.
    pub commit_lsn: Lsn,
    /// Whether it was given; else it was taken.
    pub granted: bool,
    /// Whose.
    pub subject: Subject,
    /// Which.
    pub scope: ScopeName,
}

/// A client's mutation whose fences a source transaction brought round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Materialized {
    /// The transaction.
    pub commit_lsn: Lsn,
    /// Whose.
    pub client: ClientKey,
    /// Mutation number.
    pub number: u64,
}

/// Mutations that were accepted and are neither materialized nor covered, as of one snapshot: what V2's gate looks at.
#[derive(Clone, Debug, Default)]
pub struct Pending {
    by_client: HashMap<ClientKey, Arc<[u64]>>,
    /// There were more than a read may bring: nothing is known of clients that are not listed.
    truncated: bool,
}

impl Pending {
    /// Takes (client, number) pairs in any order. `truncated`: they are not all.
    pub fn new(pairs: impl IntoIterator<Item = (ClientKey, u64)>, truncated: bool) -> Pending {
        let mut numbers_of: HashMap<ClientKey, Vec<u64>> = HashMap::new();
        for (client, number) in pairs {
            numbers_of.entry(client).or_default().push(number);
        }
        let by_client = numbers_of
            .into_iter()
            .map(|(client, mut numbers)| {
                numbers.sort_unstable();
                numbers.dedup();
                (client, numbers.into())
            })
            .collect();
        Pending { by_client, truncated }
    }

    /// The client's pending mutations, ascending; `None` when nothing is known of it, which holds its pages back just as well.
    pub fn of(&self, client: &ClientKey) -> Option<&[u64]> {
        // The usual case costs no hash.
        let listed = if self.by_client.is_empty() { None } else { self.by_client.get(client) };
        match listed {
            // A client's list may itself be cut short.
            Some(_) | None if self.truncated => None,
            Some(numbers) => Some(numbers),
            None => Some(&[]),
        }
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.by_client.is_empty() && !self.truncated
    }
}

/// A stretch of the whole log.
#[derive(Debug)]
pub struct EffectBatch {
    /// What the snapshot was bound to.
    pub anchor: Anchor,
    /// Where the stretch begins (exclusive).
    pub after: TailPosition,
    /// Where it ends (inclusive).
    pub through: TailPosition,
    /// Whether it reached the newest materialized transaction.
    pub at_tip: bool,
    /// By scope, then position.
    pub effects: Vec<Effect>,
    /// Where the stretch ends inside a large transaction: the scope of the effect that comes next.
    pub continues: Option<ScopeId>,
    /// In commit order. A large transaction's come with its first part (V7).
    pub grants: Vec<GrantChange>,
    /// In no order. A large transaction's come with its last part.
    pub materialized: Vec<Materialized>,
    /// As of the snapshot.
    pub pending: Pending,
    /// SHA-256 of the names of the scopes that have effects here, where that was asked for.
    pub names: Vec<(ScopeId, [u8; 32])>,
    /// What the read was asked to tell besides; `None` from a part of a large transaction, which tells nothing.
    pub told: Option<Told>,
}

/// What a tail read should tell besides the log's entries, in the same snapshot.
#[derive(Clone, Debug, Default)]
pub struct Interest {
    /// Whether to name the scopes that have effects.
    pub names: bool,
    /// SHA-256 of the names of scopes to tell about.
    pub scopes: Vec<[u8; 32]>,
    /// SHA-256 of the subjects whose grants to tell.
    pub subjects: Vec<[u8; 32]>,
}

/// Answers to an [`Interest`], as of the anchor's newest transaction.
#[derive(Debug, Default)]
pub struct Told {
    /// The scopes asked for.
    pub scopes: Vec<[u8; 32]>,
    /// Those of them that exist.
    pub facts: HashMap<[u8; 32], ScopeFacts>,
    /// The subjects asked for.
    pub subjects: Vec<[u8; 32]>,
    /// Every grant by rows that they hold.
    pub held: Vec<HeldGrant>,
}

/// A grant that rows give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldGrant {
    /// Whose.
    pub subject: Subject,
    /// Which scope.
    pub scope: ScopeName,
    /// The transaction from whose end it has held without a gap; `None`: since the baseline.
    pub since: Option<Lsn>,
}

impl crate::Batch for EffectBatch {
    type Position = TailPosition;

    fn through(&self) -> &TailPosition {
        &self.through
    }

    fn at_tip(&self) -> bool {
        self.at_tip
    }

    fn is_empty(&self) -> bool {
        self.after == self.through
    }
}

/// What a scope is at the snapshot's newest transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScopeFacts {
    /// Its id in the projected state.
    pub scope: ScopeId,
    /// Now.
    pub state: ScopeState,
    /// Its last effect; `None`: its content came with the baseline.
    pub tail: Option<EffectPosition>,
    /// Its last removed effect, and the scope there; `None`: none was removed.
    pub floor: Option<(EffectPosition, ScopeState)>,
}

/// A stretch of one scope.
#[derive(Debug)]
pub struct ScopeRead {
    /// What the snapshot was bound to.
    pub anchor: Anchor,
    /// The scope now; `None`: it does not exist (any more).
    pub facts: Option<ScopeFacts>,
    /// The last effect before the place asked for, and the scope after it.
    pub before: Option<(EffectPosition, ScopeState)>,
    /// In order.
    pub effects: Vec<Effect>,
    /// Whether the effects are all through the place asked for.
    pub complete: bool,
    /// Whether the last effect's transaction goes on beyond the stretch.
    pub more: bool,
    /// Effects at and after the place asked for, counted up to the limit asked for.
    pub replay_count: u64,
}
