//! Which scopes a subject may subscribe to, and since when (V7).
//!
//! Evaluated once, at the position of the tail read that first asks for the subject, then followed in the tail. All sessions of a
//! subject share one immutable value; a change makes a new one.

mod fixed;

pub use fixed::StaticGrants;

use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_log::{GrantChange, HeldGrant};
use tidegate_model::{Lsn, Point, ScopeName, Subject};

/// A subject's scopes at some position.
#[derive(Debug, Default)]
pub struct SubjectGrants {
    /// Grows with each change of this subject's grants, so that a session knows which of two values is newer.
    version: u64,
    scopes: BTreeMap<ScopeName, Point>,
}

/// What changed from one value to the next.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct GrantDiff {
    /// Gone, or taken away and given again in between.
    pub removed: Vec<ScopeName>,
    /// New, or given again.
    pub added: Vec<ScopeName>,
}

impl SubjectGrants {
    /// Grants that hold as given, for tests and sessions of their own.
    pub fn new(scopes: impl IntoIterator<Item = (ScopeName, Point)>) -> SubjectGrants {
        SubjectGrants { version: 0, scopes: scopes.into_iter().collect() }
    }

    /// Since where the scope has been granted without a gap; `None`: it is not.
    pub fn since(&self, scope: &ScopeName) -> Option<Point> {
        self.scopes.get(scope).copied()
    }

    /// The scopes, sorted.
    pub fn scopes(&self) -> impl ExactSizeIterator<Item = &ScopeName> + Clone {
        self.scopes.keys()
    }

    /// Whether `self` came after `other`.
    pub fn is_newer_than(&self, other: &SubjectGrants) -> bool {
        self.version > other.version
    }

    /// What still holds, without a gap, in a later value: never anything that `later` has newly given.
    pub fn kept_in(&self, later: &SubjectGrants) -> SubjectGrants {
        let mut scopes = self.scopes.clone();
        scopes.retain(|scope, since| later.scopes.get(scope).is_some_and(|at| at <= since));
        SubjectGrants { version: self.version, scopes }
    }

    /// From `self` to `next`.
    pub fn diff(&self, next: &SubjectGrants) -> GrantDiff {
        let mut diff = GrantDiff::default();
        for (scope, since) in &self.scopes {
            match next.scopes.get(scope) {
                Some(next) if next <= since => {}
                _ => diff.removed.push(scope.clone()),
            }
        }
        for (scope, since) in &next.scopes {
            if self.scopes.get(scope).is_none_or(|before| before < since) {
                diff.added.push(scope.clone());
            }
        }
        diff
    }
}

/// A subject as the hub follows it.
#[derive(Debug)]
pub struct Followed {
    /// By rows.
    dynamic: BTreeMap<ScopeName, Point>,
    /// By static rules.
    fixed: BTreeMap<ScopeName, Point>,
    /// Changes through here are in `dynamic`: the snapshot that it came from may be ahead of the tail.
    as_of: Option<Lsn>,
    now: Arc<SubjectGrants>,
}

impl Followed {
    /// Begins with what a snapshot at `as_of` said.
    pub fn new(subject: &Subject, held: &[HeldGrant], as_of: Option<Lsn>, rules: &StaticGrants) -> Followed {
        let since = |lsn: Option<Lsn>| match lsn {
            Some(commit_lsn) => Point::TransactionEnd { commit_lsn },
            None => Point::GenerationStart,
        };
        let dynamic = held.iter().map(|grant| (grant.scope.clone(), since(grant.since))).collect();
        let mut followed = Followed { dynamic, fixed: rules.of(subject), as_of, now: Arc::default() };
        followed.renew();
        followed
    }

    /// The value now.
    pub fn now(&self) -> &Arc<SubjectGrants> {
        &self.now
    }

    /// Takes a change from the tail; true if it changed anything.
    pub fn apply(&mut self, change: &GrantChange) -> bool {
        if self.as_of.is_some_and(|as_of| change.commit_lsn <= as_of) {
            return false;
        }
        if change.granted {
            let since = Point::TransactionEnd { commit_lsn: change.commit_lsn };
            self.dynamic.entry(change.scope.clone()).or_insert(since);
        } else {
            self.dynamic.remove(&change.scope);
        }
        self.renew()
    }

    /// Takes the static rules of another registry generation; true if that changed anything.
    pub fn set_rules(&mut self, subject: &Subject, rules: &StaticGrants) -> bool {
        self.fixed = rules.of(subject);
        self.renew()
    }

    fn renew(&mut self) -> bool {
        let mut scopes = self.dynamic.clone();
        for (scope, since) in &self.fixed {
            let at = scopes.entry(scope.clone()).or_insert(*since);
            *at = (*at).min(*since);
        }
        let changed = scopes != self.now.scopes;
        if changed {
            self.now = Arc::new(SubjectGrants { version: self.now.version + 1, scopes });
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `since`: of grant 1.
    fn rules(grants: &str, since: Option<u64>) -> StaticGrants {
        let json = format!(r#"{{"generation":1,"relations":[],"grants":{grants}}}"#);
        let registry = tidegate_model::Snapshot::from_json(&json).expect("a snapshot");
        StaticGrants::new(&registry, &since.map(|lsn| (1, Lsn(lsn))).into_iter().collect())
    }

    fn change(commit: u64, granted: bool, scope: &str) -> GrantChange {
        let subject = Subject("anna".into());
        GrantChange { commit_lsn: Lsn(commit), granted, subject, scope: ScopeName(scope.into()) }
    }

    fn names(scopes: &[ScopeName]) -> Vec<&str> {
        scopes.iter().map(|scope| scope.0.as_str()).collect()
    }

    #[test]
    fn v7_changes_that_the_evaluation_already_saw_are_not_applied_again() {
        let held = [HeldGrant {
            subject: Subject("anna".into()),
            scope: ScopeName("a".into()),
            since: Some(Lsn(5)),
        }];
        let mut followed = Followed::new(&Subject("anna".into()), &held, Some(Lsn(10)), &rules("[]", None));
        assert!(!followed.apply(&change(7, false, "a")), "the snapshot at 10 saw it given again");
        assert!(followed.apply(&change(11, false, "a")));
        assert!(followed.apply(&change(12, true, "a")));
        assert_eq!(
            followed.now().since(&ScopeName("a".into())),
            Some(Point::TransactionEnd { commit_lsn: Lsn(12) })
        );
    }

    #[test]
    fn v7_a_scope_taken_and_given_again_counts_as_removed_and_added() {
        let mut followed = Followed::new(&Subject("anna".into()), &[], None, &rules("[]", None));
        followed.apply(&change(1, true, "a"));
        let before = followed.now().clone();
        followed.apply(&change(2, false, "a"));
        followed.apply(&change(3, true, "a"));
        followed.apply(&change(3, true, "b"));
        let diff = before.diff(followed.now());
        assert_eq!((names(&diff.removed), names(&diff.added)), (vec!["a"], vec!["a", "b"]));
        assert_eq!(followed.now().diff(followed.now()), GrantDiff::default());
    }

    #[test]
    fn v7_a_static_rule_that_comes_later_holds_from_there_and_outlives_rows() {
        let subject = Subject("anna".into());
        let user = r#"[{"grant_id":1,"scope":"user:{subject.id}","template":[{"text":"user:"},{"subject":"id"}],
                        "relation_id":null,"subject_column":null,"where":null,"anonymous":false}]"#;
        let mut followed = Followed::new(&subject, &[], None, &rules("[]", None));
        let at = Point::TransactionEnd { commit_lsn: Lsn(9) };
        assert!(followed.set_rules(&subject, &rules(user, Some(9))));
        assert_eq!(followed.now().since(&ScopeName("user:anna".into())), Some(at));
        assert!(!followed.apply(&change(10, true, "user:anna")), "already held");
        assert!(!followed.apply(&change(11, false, "user:anna")), "the rule still holds");
    }

    #[test]
    fn v7_a_static_rule_that_was_away_counts_as_taken_and_given_again() {
        let subject = Subject("anna".into());
        let all = r#"[{"grant_id":1,"scope":"all","template":[{"text":"all"}],
                       "relation_id":null,"subject_column":null,"where":null,"anonymous":true}]"#;
        let mut followed = Followed::new(&subject, &[], None, &rules(all, None));
        let before = followed.now().clone();
        assert!(followed.set_rules(&subject, &rules(all, Some(9))), "nobody looked while it was away");
        let diff = before.diff(followed.now());
        assert_eq!((names(&diff.removed), names(&diff.added)), (vec!["all"], vec!["all"]));
    }
}
