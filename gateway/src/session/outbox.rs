//! Frames on their way to one client, in order. What a revoked grant must not let through is still in here, and can be dropped.

use bytes::Bytes;
use std::collections::VecDeque;
use tidegate_protocol::{CUT, ScopeNumber, ServerFrame};

/// One frame.
#[derive(Clone, Debug)]
pub struct OutFrame {
    /// Its bytes.
    pub bytes: Bytes,
    /// The scope whose content it carries.
    scope: Option<ScopeNumber>,
    /// Whether it applies what was sent before it: dropping it takes a `cut` in its place.
    cuts: bool,
}

/// Frames for which an empty queue keeps its memory.
const QUEUE_KEPT: usize = 4;

/// The queue.
#[derive(Debug, Default)]
pub struct Outbox {
    frames: VecDeque<OutFrame>,
    bytes: usize,
}

impl Outbox {
    fn push(&mut self, bytes: Bytes, scope: Option<ScopeNumber>, cuts: bool) {
        self.bytes += bytes.len();
        self.frames.push_back(OutFrame { bytes, scope, cuts });
    }

    /// A frame that concerns no scope's content.
    pub fn frame<'a>(&mut self, frame: impl Into<ServerFrame<'a>>) {
        self.push(frame.into().encode().into(), None, false);
    }

    /// A frame of a scope. `cuts`: it applies what was sent before it.
    pub fn scoped(&mut self, scope: ScopeNumber, bytes: Bytes, cuts: bool) {
        self.push(bytes, Some(scope), cuts);
    }

    /// The cut.
    pub fn cut(&mut self) {
        self.push(Bytes::from_static(CUT), None, true);
    }

    /// V7: drops what is queued of a scope.
    pub fn drop_scope(&mut self, scope: ScopeNumber) {
        for frame in &mut self.frames {
            if frame.scope == Some(scope) && frame.cuts {
                *frame = OutFrame { bytes: Bytes::from_static(CUT), scope: None, cuts: true };
            }
        }
        self.frames.retain(|frame| frame.scope != Some(scope));
        self.bytes = self.frames.iter().map(|frame| frame.bytes.len()).sum();
    }

    /// The next frame to send.
    pub fn pop(&mut self) -> Option<Bytes> {
        let frame = self.frames.pop_front();
        if self.frames.is_empty() && self.frames.capacity() > QUEUE_KEPT {
            self.frames = VecDeque::new();
        }
        let frame = frame?;
        self.bytes -= frame.bytes.len();
        Some(frame.bytes)
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

    #[test]
    fn v7_dropping_a_scope_keeps_the_cuts_that_its_frames_were() {
        let mut outbox = Outbox::default();
        let (a, b) = (ScopeNumber(1), ScopeNumber(2));
        outbox.scoped(a, Bytes::from_static(b"page a"), false);
        outbox.scoped(b, Bytes::from_static(b"page b"), false);
        outbox.scoped(a, Bytes::from_static(b"fin a"), true);
        outbox.drop_scope(a);
        assert_eq!(outbox.bytes(), 6 + CUT.len());
        assert_eq!(outbox.pop().as_deref(), Some(&b"page b"[..]));
        assert_eq!(outbox.pop().as_deref(), Some(CUT));
        assert_eq!(outbox.pop(), None);
    }
}
