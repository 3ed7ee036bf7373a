//! What random scripts have shown to the client: scripts in which nothing happens prove nothing.

use super::model_client::Seen;
use tidegate_protocol::SubscriptionMode;

type Kind = (&'static str, fn(&Seen) -> bool);

const KINDS: [Kind; 8] = [
    ("a page", |seen| matches!(seen, Seen::Page { .. })),
    ("a page of several effects", |seen| matches!(seen, Seen::Page { effects, .. } if effects.len() > 1)),
    ("a join", |seen| matches!(seen, Seen::Joined { .. })),
    ("rows of a rebuild", |seen| matches!(seen, Seen::Rebuild { .. })),
    ("a resume", |seen| matches!(seen, Seen::Subscribed { mode: SubscriptionMode::Resume, .. })),
    ("a cut", |seen| matches!(seen, Seen::Cut)),
    ("a write that came round", |seen| matches!(seen, Seen::Materialized(_))),
    ("a scope taken away", |seen| matches!(seen, Seen::Scopes { removed, .. } if !removed.is_empty())),
];

/// Scripts that have shown each kind at least once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Coverage([u32; KINDS.len()]);

impl Coverage {
    /// Counts one script by what the client saw while it ran.
    pub fn count(&mut self, seen: &[Seen]) {
        for (scripts, (_, is_kind)) in self.0.iter_mut().zip(KINDS) {
            *scripts += u32::from(seen.iter().any(is_kind));
        }
    }

    /// Each kind in at least a fifth of all scripts.
    pub fn assert_enough(&self, scripts: u32) {
        for (shown, (kind, _)) in self.0.iter().zip(KINDS) {
            println!("{kind}: in {shown} of {scripts} scripts");
        }
        for (shown, (kind, _)) in self.0.iter().zip(KINDS) {
            assert!(*shown >= scripts / 5, "{kind}: in {shown} of {scripts} scripts only");
        }
    }
}
