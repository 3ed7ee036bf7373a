//! Operations: everything that is not a live batch. The gate before them (V2), and rounds, in which a session that missed batches
//! catches up in all joined scopes together (V5).

use std::collections::BTreeSet;
use std::sync::Arc;
use tidegate_model::Point;
use tidegate_protocol::{CapturePending, MutationNumber, ScopeNumber};

use super::subscription::{Newest, Start, Subscription};
use super::{Command, Session};
use crate::grants::SubjectGrants;
use crate::hub::Snapshot;

#[derive(Debug)]
pub(super) enum Gate {
    /// No operation is under way.
    Closed,
    /// The snapshot has been asked for.
    Asked,
    /// These mutations were pending in it and have not come round. `None`: not known.
    Held(Option<BTreeSet<u64>>),
    /// What was read through here may be sent.
    Open(Point),
}

impl Session {
    pub(super) fn on_sync(&mut self, snapshot: &Snapshot, grants: &Arc<SubjectGrants>, missed: bool) {
        self.inside = false;
        self.take_grants(grants);
        if missed {
            self.fall_behind();
            let unseen = self.awaited.unseen();
            if !unseen.is_empty() {
                self.settle(unseen);
            }
        }
        let pending = snapshot.pending.of(&self.client);
        let held = match &mut self.gate {
            Gate::Asked => match pending {
                Some([]) => None,
                pending => Some(pending.map(|numbers| numbers.iter().copied().collect())),
            },
            // From now on the set only shrinks.
            Gate::Held(held) => match (held.take(), pending) {
                (Some(mut set), Some(pending)) => {
                    set.retain(|number| pending.contains(number));
                    (!set.is_empty()).then_some(Some(set))
                }
                (Some(set), None) => Some(Some(set)),
                (None, Some([])) => None,
                (None, pending) => Some(pending.map(|numbers| numbers.iter().copied().collect())),
            },
            Gate::Closed | Gate::Open(_) => return,
        };
        let asked = matches!(self.gate, Gate::Asked);
        match held {
            None => {
                self.gate = Gate::Open(snapshot.through);
                self.anchor = Some(snapshot.anchor);
                self.allowance = self.around.bounds.outbox_bytes_max;
                for subscription in self.scopes.values_mut().filter(|s| s.rows == Newest::Unknown) {
                    subscription.rows = Newest::AtMost(snapshot.tip);
                }
            }
            Some(set) => {
                if asked {
                    self.tell_pending(
                        set.as_ref().map(|set| set.iter().copied().collect::<Vec<_>>()).as_deref(),
                    );
                }
                self.gate = Gate::Held(set);
                self.commands.push_back(Command::Sync { urgent: false });
            }
        }
    }

    /// V2: nothing goes out before these have come round.
    pub(super) fn hold(&mut self, pending: Option<&[u64]>) {
        self.tell_pending(pending);
        // A snapshot that was asked for will be answered; no second request.
        let asked = matches!(self.gate, Gate::Asked | Gate::Held(_));
        self.gate = Gate::Held(pending.map(|numbers| numbers.iter().copied().collect()));
        if !asked {
            self.commands.push_back(Command::Sync { urgent: false });
        }
    }

    pub(super) fn tell_pending(&mut self, numbers: Option<&[u64]>) {
        const TOLD_MAX: usize = 100;
        let numbers =
            numbers.unwrap_or_default().iter().take(TOLD_MAX).copied().map(MutationNumber).collect();
        let retry_ms = self.around.bounds.retry.as_millis() as u32;
        self.outbox.frame(CapturePending { numbers, retry_ms });
    }

    /// Batches went by. An operation that is under way ends: its snapshot is from before them, and a round through there would bring
    /// nothing of what was missed and count as having brought all (P6).
    pub(super) fn fall_behind(&mut self) {
        if matches!(self.gate, Gate::Open(_)) {
            self.gate = Gate::Closed;
        }
        if !self.behind {
            self.behind = true;
            for subscription in self.scopes.values_mut().filter(|subscription| subscription.is_joined()) {
                subscription.at = subscription.at.max(self.delivered);
            }
        }
    }

    /// Goes on as far as is possible now.
    pub(super) fn advance(&mut self) {
        if self.closing {
            return;
        }
        if matches!(self.gate, Gate::Open(_)) {
            self.operate();
        }
        if matches!(self.gate, Gate::Closed) && !self.closing && self.has_room() {
            let urgent = self.behind
                || self.owes_cut(self.delivered)
                || self.scopes.values().any(|subscription| subscription.wants_operation());
            let ahead = self.awaited.any_due() || self.scopes.values().any(Subscription::is_ahead);
            if urgent || ahead {
                self.gate = Gate::Asked;
                self.asked += 1;
                self.commands.push_back(Command::Sync { urgent });
            }
        }
    }

    /// An operation goes on: the gate is open through some transaction's end.
    pub(super) fn operate(&mut self) {
        let Gate::Open(through) = self.gate else { return };
        if self.settling > 0 {
            return;
        }
        // V5: the client may hold a part of what it was sent of a scope that begins anew: it hears of that before anything is cut.
        if self.starting.values().any(Start::is_untold) {
            self.gate = Gate::Closed;
            return;
        }
        if self.behind && !self.round(through) {
            return;
        }
        // In step: whatever concerned the session through here has come before.
        if !self.behind {
            self.delivered = self.delivered.max(through);
        }
        let numbers: Vec<ScopeNumber> = self
            .scopes
            .iter()
            // V2: the snapshot was asked for after the subscription began, or it says nothing about what its client knew then.
            .filter(|(_, subscription)| !subscription.is_joined() && subscription.begun_at < self.asked)
            .map(|(n, _)| *n)
            .collect();
        // Pages of a transaction whose end has not been read are staged at the client: nothing joins before its cut.
        if !self.staged && !self.inside {
            for number in numbers {
                self.go_on(number);
            }
            if self.owes_cut(self.delivered) {
                self.tell_materialized(self.delivered);
                self.outbox.cut();
            }
            self.tell_added();
        }
        if matches!(self.gate, Gate::Open(_))
            && !self.scopes.values().any(|subscription| subscription.busy.is_some())
        {
            self.gate = Gate::Closed;
        }
    }

    /// Whether what has come round needs a cut without pages. While a scope is on its way to join, its `joined` says it instead: a
    /// client that dropped its optimistic copy before would show the row from before its write until then (WR-03).
    pub(super) fn owes_cut(&self, at: Point) -> bool {
        let on_its_way = |subscription: &Subscription| !subscription.is_joined() && !subscription.is_ahead();
        self.awaited.is_due(at) && self.starting.is_empty() && !self.scopes.values().any(on_its_way)
    }

    /// Brings all joined scopes to `through`, then cuts. False while that takes another read, or room.
    pub(super) fn round(&mut self, through: Point) -> bool {
        let numbers: Vec<ScopeNumber> = self
            .scopes
            .iter()
            .filter(|(_, subscription)| subscription.is_joined())
            .map(|(n, _)| *n)
            .collect();
        for number in numbers {
            if !self.bring(number, through) {
                return false;
            }
        }
        self.behind = false;
        self.delivered = self.delivered.max(through);
        if self.staged || self.owes_cut(self.delivered) {
            self.tell_materialized(self.delivered);
            self.outbox.cut();
            self.staged = false;
        }
        self.tell_added();
        true
    }
}
