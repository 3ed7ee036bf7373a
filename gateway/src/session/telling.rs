//! What a session says around its pages: schema versions before their first use, what has come round, and scopes given and taken
//! (V6, V7).

use std::sync::Arc;
use tidegate_model::{Point, RegistryGeneration, ScopeName};
use tidegate_protocol::{MutationNumber, Schema};

use super::Session;
use crate::grants::SubjectGrants;
use crate::hub::Page;
use crate::registry::{manifest, reachable};

impl Session {
    pub(super) fn send_page(&mut self, page: &Page) {
        self.tell_schema(page.sv);
        self.allowance = self.allowance.saturating_sub(page.frame().len());
        self.outbox.scoped(page.scope, page.plain_frame(), false);
    }

    /// A schema version comes before its first use; again when grants have brought tables that it did not show.
    pub(super) fn tell_schema(&mut self, sv: RegistryGeneration) {
        if self
            .proven
            .as_ref()
            .is_some_and(|(proven, grants)| *proven == sv && Arc::ptr_eq(grants, &self.grants))
        {
            return;
        }
        let Some(snapshot) = self.around.registries.get(sv) else {
            self.fail("a page needs a registry generation that is not loaded");
            return;
        };
        let tables = reachable(&snapshot, self.grants.scopes());
        let told = self.told.entry(sv).or_default();
        if !tables.is_subset(told) || tables.is_empty() && told.is_empty() {
            told.extend(tables);
            let schema = manifest(&snapshot, told);
            self.outbox.frame(Schema { sv, schema });
        }
        self.proven = Some((sv, self.grants.clone()));
    }

    pub(super) fn tell_materialized(&mut self, at: Point) {
        let numbers = self.awaited.announce(at);
        if !numbers.is_empty() {
            self.outbox.materialized(numbers.into_iter().map(MutationNumber).collect());
        }
    }

    /// V7: removals take effect at once, before any page; additions are told after the pages of their transaction.
    pub(super) fn take_grants(&mut self, grants: &Arc<SubjectGrants>) {
        if Arc::ptr_eq(grants, &self.grants) {
            return;
        }
        let grants = match &self.revoked {
            // What was taken ahead of its turn stays taken while older messages arrive.
            Some(revoked) if revoked.is_newer_than(grants) => Arc::new(grants.kept_in(revoked)),
            _ => {
                self.revoked = None;
                grants.clone()
            }
        };
        let diff = self.grants.diff(&grants);
        self.grants = grants;
        self.remove(&diff.removed);
        self.added.extend(diff.added);
    }

    /// Removals that come ahead of their turn. Additions keep theirs.
    pub(super) fn take_removals(&mut self, grants: &Arc<SubjectGrants>) {
        let removed = self.grants.diff(grants).removed;
        if !removed.is_empty() {
            self.revoked = Some(grants.clone());
            self.grants = Arc::new(self.grants.kept_in(grants));
            self.remove(&removed);
        }
    }

    pub(super) fn remove(&mut self, removed: &[ScopeName]) {
        for scope in removed {
            self.added.retain(|added| added != scope);
            self.unsubscribe(scope);
        }
        if !removed.is_empty() {
            self.outbox.removed(removed.to_vec());
        }
    }

    pub(super) fn tell_added(&mut self) {
        if self.added.is_empty() {
            return;
        }
        self.outbox.added(std::mem::take(&mut self.added));
    }
}
