//! Frames on their way to one client, in order. What a revoked grant must not let through is still in here, and can be dropped.
//!
//! A removal overtakes (V7): it goes to the front, so that the client lets go of the scope before it meets the cut of pages that it
//! has only in part.

use bytes::Bytes;
use std::collections::VecDeque;
use tidegate_model::ScopeName;
use tidegate_protocol::{CUT, Materialized, MutationNumber, ScopeNumber, Scopes, ServerFrame};

/// One frame.
#[derive(Clone, Debug)]
struct OutFrame {
    body: Body,
    /// The scope whose subscription it belongs to.
    scope: Option<ScopeNumber>,
    /// Whether it applies what was sent before it: dropping it takes a `cut` in its place.
    cuts: bool,
}

#[derive(Clone, Debug)]
enum Body {
    Bytes(Bytes),
    /// The next one is its cut: nothing comes between.
    Materialized(Bytes),
    /// Encoded when it is sent: what it gives may be taken before that.
    Added(Vec<ScopeName>),
    Removed(Vec<ScopeName>),
}

impl Body {
    /// Of the frame, about.
    fn len(&self) -> usize {
        match self {
            Body::Bytes(bytes) | Body::Materialized(bytes) => bytes.len(),
            Body::Added(names) | Body::Removed(names) => {
                32 + names.iter().map(|name| name.0.len() + 4).sum::<usize>()
            }
        }
    }
}

/// Frames for which an empty queue keeps its memory.
const QUEUE_KEPT: usize = 4;

/// The version of the set of assigned scopes that `welcome` tells.
pub const FIRST_SET: u64 = 1;

/// The queue.
#[derive(Debug)]
pub struct Outbox {
    frames: VecDeque<OutFrame>,
    bytes: usize,
    /// Version of the set of assigned scopes, as told.
    set: u64,
    /// Frames at the front that nothing may overtake: `welcome`, and the cut of a `materialized` that was sent.
    fixed: usize,
}

impl Default for Outbox {
    fn default() -> Outbox {
        // The first frame is `welcome`.
        Outbox { frames: VecDeque::new(), bytes: 0, set: FIRST_SET, fixed: 1 }
    }
}

impl Outbox {
    fn push(&mut self, body: Body, scope: Option<ScopeNumber>, cuts: bool) {
        self.bytes += body.len();
        self.frames.push_back(OutFrame { body, scope, cuts });
    }

    /// A frame that concerns no subscription.
    pub fn frame<'a>(&mut self, frame: impl Into<ServerFrame<'a>>) {
        self.push(Body::Bytes(frame.into().encode().into()), None, false);
    }

    /// A frame of a subscription. `cuts`: it applies what was sent before it.
    pub fn scoped(&mut self, scope: ScopeNumber, bytes: Bytes, cuts: bool) {
        self.push(Body::Bytes(bytes), Some(scope), cuts);
    }

    /// What the cut that follows makes visible.
    pub fn materialized(&mut self, numbers: Vec<MutationNumber>) {
        let frame: ServerFrame<'_> = Materialized { numbers }.into();
        self.push(Body::Materialized(frame.encode().into()), None, false);
    }

    /// The cut.
    pub fn cut(&mut self) {
        self.push(Body::Bytes(Bytes::from_static(CUT)), None, true);
    }

    /// Scopes were given.
    pub fn added(&mut self, names: Vec<ScopeName>) {
        self.push(Body::Added(names), None, false);
    }

    /// V7: scopes were taken. Told before everything that waits; that they were given and taken meanwhile is not told at all.
    pub fn removed(&mut self, names: Vec<ScopeName>) {
        for frame in &mut self.frames {
            if let Body::Added(added) = &mut frame.body {
                added.retain(|name| !names.contains(name));
            }
        }
        self.frames.retain(|frame| !matches!(&frame.body, Body::Added(added) if added.is_empty()));
        let at = self.fixed.min(self.frames.len());
        self.frames.insert(at, OutFrame { body: Body::Removed(names), scope: None, cuts: false });
        self.count();
    }

    /// V7: drops what is queued of a subscription.
    pub fn drop_scope(&mut self, scope: ScopeNumber) {
        for frame in &mut self.frames {
            if frame.scope == Some(scope) && frame.cuts {
                *frame = OutFrame { body: Body::Bytes(Bytes::from_static(CUT)), scope: None, cuts: true };
            }
        }
        self.frames.retain(|frame| frame.scope != Some(scope));
        self.count();
    }

    fn count(&mut self) {
        self.bytes = self.frames.iter().map(|frame| frame.body.len()).sum();
    }

    /// The next frame to send.
    pub fn pop(&mut self) -> Option<Bytes> {
        let frame = self.frames.pop_front();
        if self.frames.is_empty() && self.frames.capacity() > QUEUE_KEPT {
            self.frames = VecDeque::new();
        }
        let frame = frame?;
        self.bytes -= frame.body.len();
        self.fixed = usize::from(matches!(frame.body, Body::Materialized(_)));
        Some(match frame.body {
            Body::Bytes(bytes) | Body::Materialized(bytes) => bytes,
            Body::Added(names) => self.scopes(&names, &[]),
            Body::Removed(names) => self.scopes(&[], &names),
        })
    }

    fn scopes(&mut self, added: &[ScopeName], removed: &[ScopeName]) -> Bytes {
        self.set += 1;
        let names = |names: &[ScopeName]| names.iter().map(|name| name.0.clone().into()).collect();
        let frame: ServerFrame<'_> =
            Scopes { added: names(added), removed: names(removed), set: self.set }.into();
        frame.encode().into()
    }

    /// Bytes queued.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_protocol::Limits;

    const WELCOME: &[u8] = b"welcome";

    fn welcome() -> Outbox {
        let mut outbox = Outbox::default();
        outbox.push(Body::Bytes(Bytes::from_static(WELCOME)), None, false);
        outbox
    }

    /// What is sent: scopes frames by what they say, others by their bytes.
    fn sent(outbox: &mut Outbox) -> Vec<String> {
        let text = |bytes: Bytes| match ServerFrame::decode(&bytes, &Limits::FROM_SERVER) {
            Ok(ServerFrame::Scopes(scopes)) => {
                format!("+{:?} -{:?} {}", scopes.added, scopes.removed, scopes.set)
            }
            Ok(frame) => frame.name().to_owned(),
            Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
        };
        std::iter::from_fn(|| outbox.pop().map(text)).collect()
    }

    fn names(names: &[&str]) -> Vec<ScopeName> {
        names.iter().map(|name| ScopeName((*name).into())).collect()
    }

    #[test]
    fn v7_dropping_a_scope_keeps_the_cuts_that_its_frames_were() {
        let mut outbox = Outbox::default();
        let (a, b) = (ScopeNumber(1), ScopeNumber(2));
        outbox.scoped(a, Bytes::from_static(b"page a"), false);
        outbox.scoped(b, Bytes::from_static(b"page b"), false);
        outbox.scoped(a, Bytes::from_static(b"fin a"), true);
        outbox.drop_scope(a);
        assert_eq!(outbox.bytes(), 6 + CUT.len());
        assert_eq!(sent(&mut outbox), ["page b", "cut"]);
        assert_eq!(outbox.bytes(), 0);
    }

    #[test]
    fn v7_v5_a_removal_comes_before_the_cut_of_pages_that_were_sent_in_part() {
        let mut outbox = welcome();
        let a = ScopeNumber(1);
        outbox.scoped(a, Bytes::from_static(b"first part"), false);
        outbox.scoped(a, Bytes::from_static(b"second part"), true);
        outbox.pop();
        outbox.pop();
        outbox.drop_scope(a);
        outbox.removed(names(&["a"]));
        assert_eq!(sent(&mut outbox), [r#"+[] -["a"] 2"#, "cut"]);
    }

    #[test]
    fn v7_v6_a_removal_never_comes_between_materialized_and_its_cut_nor_before_welcome() {
        let mut outbox = welcome();
        outbox.materialized(vec![MutationNumber(1)]);
        outbox.cut();
        outbox.removed(names(&["a"]));
        assert_eq!(outbox.pop().as_deref(), Some(WELCOME));
        outbox.removed(names(&["b"]));
        assert_eq!(sent(&mut outbox), [r#"+[] -["b"] 2"#, r#"+[] -["a"] 3"#, "materialized", "cut"]);
        outbox.materialized(vec![MutationNumber(2)]);
        outbox.cut();
        outbox.pop();
        outbox.removed(names(&["c"]));
        assert_eq!(sent(&mut outbox), ["cut", r#"+[] -["c"] 4"#]);
    }

    #[test]
    fn v7_what_was_given_and_taken_before_it_was_told_is_told_as_taken_only() {
        let mut outbox = welcome();
        outbox.added(names(&["a", "b"]));
        outbox.added(names(&["c"]));
        outbox.removed(names(&["b", "c"]));
        outbox.added(names(&["c"]));
        let expected = ["welcome", r#"+[] -["b", "c"] 2"#, r#"+["a"] -[] 3"#, r#"+["c"] -[] 4"#];
        assert_eq!(sent(&mut outbox), expected);
        assert_eq!(outbox.bytes(), 0);
    }
}
