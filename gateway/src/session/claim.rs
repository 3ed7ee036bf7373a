//! What a client says it holds, against the history that there is (P3, P9): it resumes, goes on with its rebuild, begins a rebuild,
//! waits, or is refused by name. Nothing is promised before this is decided.

use std::sync::Arc;
use tidegate_log::ScopeState;
use tidegate_model::{Cursor, CursorError, Lsn, Point, RebuildToken, ScopeName};
use tidegate_protocol::{ErrorCode, RebuildReason, ScopeNumber, SubscriptionMode};

use super::Session;
use super::subscription::{Newest, Phase, Start, Subscription, Wish};
use crate::hub::Feed;
use crate::rebuild::RebuildFrom;

/// Where a client says that it stands, by a seal of ours.
#[derive(Debug)]
pub(super) enum Claim {
    /// It holds the scope as it was at a point.
    Cursor(Box<Cursor>),
    /// It holds some rows of an unfinished rebuild.
    Token(RebuildToken),
}

impl Claim {
    /// What must be part of the history.
    fn point(&self) -> Point {
        match self {
            Claim::Cursor(cursor) => cursor.point,
            Claim::Token(token) => token.earliest,
        }
    }
}

impl Session {
    pub(super) fn begin(&mut self, feed: Arc<Feed>, start: Start) {
        let Start { reference, wish, .. } = start;
        let name = feed.name.clone();
        let number = feed.number;
        let Some(since) = self.grants.since(&name) else { return };
        let lineage = self.around.press.lineage;
        let subscription = Subscription {
            feed,
            at: Point::GenerationStart,
            state: None,
            phase: Phase::Catching,
            busy: None,
            rows: Newest::Passed,
            parked: None,
            begun_at: self.asked,
            reference,
        };
        self.scopes.insert(number, subscription);
        let (claim, generation, server) = match wish {
            Wish::Nothing => return self.rebuild(number, RebuildReason::New),
            Wish::Again(reason) => return self.rebuild(number, reason),
            Wish::Mismatch => {
                tracing::warn!("a client reported that a scope's digest did not match");
                metrics::counter!("tidegate_digest_mismatches_total").increment(1);
                return self.rebuild(number, RebuildReason::DigestMismatch);
            }
            Wish::Token(sealed) => match self.around.press.keys.open_rebuild(&name, &sealed) {
                Err(error) => {
                    let message = "the continuation token is truncated, forged or of another scope";
                    tracing::debug!(%error, "refused a continuation token");
                    return self.refuse(number, ErrorCode::TokenInvalid, message);
                }
                Ok(token) => {
                    let (generation, server) = (token.generation, token.server);
                    (Claim::Token(token), generation, server)
                }
            },
            Wish::Cursor(sealed) => match self.around.press.keys.open_cursor(&name, &sealed) {
                Err(error) => return self.refuse_cursor(number, &name, &sealed, error),
                Ok(cursor) => (Claim::Cursor(Box::new(cursor)), cursor.generation, cursor.server),
            },
        };
        // P3, P9: another generation or history is never translated.
        if generation != lineage.stream {
            self.rebuild(number, RebuildReason::OtherGeneration);
        } else if server != lineage.server {
            self.rebuild(number, RebuildReason::OtherHistory);
        } else if claim.point() < since {
            self.rebuild(number, RebuildReason::Regranted);
        } else {
            self.set_phase(number, Phase::Checking { claim, ahead: None });
        }
    }

    fn refuse_cursor(&mut self, number: ScopeNumber, name: &ScopeName, sealed: &[u8], error: CursorError) {
        let keys = &self.around.press.keys;
        let of_another = error == CursorError::Forged
            && self.grants.scopes().any(|scope| scope != name && keys.open_cursor(scope, sealed).is_ok());
        if of_another {
            self.refuse(number, ErrorCode::CursorWrongScope, "the cursor belongs to another scope");
        } else {
            self.refuse(
                number,
                ErrorCode::CursorInvalid,
                "the cursor is truncated, forged or unreadable here",
            );
        }
    }

    /// P9: compares history, not just offset.
    pub(super) fn check(&mut self, number: ScopeNumber) {
        let (delivered, now, ahead_max) = (self.delivered, self.now, self.around.bounds.ahead_max);
        let Some(subscription) = self.scopes.get_mut(&number) else { return };
        let Phase::Checking { claim, ahead } = &mut subscription.phase else { return };
        let point = claim.point();
        if point > delivered {
            // What can never come is of a history that was put back, although its timeline has the same number. It is told at once:
            // waiting until the stream has passed it could take for ever.
            let lost = point
                .commit_lsn()
                .is_some_and(|commit| self.anchor.as_ref().is_some_and(|anchor| anchor.lacks(commit)));
            if lost {
                self.rebuild(number, RebuildReason::OtherHistory);
            } else if now.duration_since(*ahead.get_or_insert(now)) >= ahead_max {
                // Merely ahead of what this process has read: never a rebuild.
                let message = "the cursor is ahead of what this gateway has read";
                self.refuse(number, ErrorCode::CursorAhead, message);
            }
            return;
        }
        *ahead = None;
        match claim {
            Claim::Cursor(cursor) => {
                let replay_count_max = self.around.bounds.replay_min.max(cursor.row_count) + 1;
                match subscription.feed.state_at(point) {
                    Some(state) => self.compare(number, Some(state)),
                    None => {
                        let feed = subscription.feed.clone();
                        let through = delivered.commit_lsn().unwrap_or(Lsn::ZERO);
                        self.read(number, feed, point, through, replay_count_max);
                    }
                }
            }
            Claim::Token(token) => {
                let from = RebuildFrom::Token(token.clone());
                self.go_on_rebuilding(number, from);
            }
        }
    }

    /// `state`: the scope at the cursor's point, where recorded.
    pub(super) fn compare(&mut self, number: ScopeNumber, state: Option<ScopeState>) {
        let Some(subscription) = self.scopes.get_mut(&number) else { return };
        let Phase::Checking { claim: Claim::Cursor(cursor), .. } = &subscription.phase else { return };
        let held = ScopeState { digest: cursor.digest, row_count: cursor.row_count };
        if state.is_some_and(|state| state != held) {
            self.rebuild(number, RebuildReason::OtherHistory);
            return;
        }
        subscription.at = cursor.point;
        subscription.state = Some(held);
        subscription.phase = Phase::Catching;
        self.subscribed(number, SubscriptionMode::Resume, None);
    }
}
