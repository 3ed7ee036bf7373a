//! What the hub hands to one session. Bounded: when the session does not keep up, batches are dropped and the session is told
//! that it missed some; it reads them again later, from windows or the log. The hub never waits for a session.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::{Batch, Feed, FeedKey, Snapshot};
use crate::grants::SubjectGrants;

/// One thing for a session.
#[derive(Clone, Debug)]
pub enum Message {
    /// The subject's grants, as the tail follows them from now on. Comes first.
    Registered(Arc<SubjectGrants>),
    /// A feed that the session asked for; its batches follow.
    Attached(Arc<Feed>),
    /// A batch that concerns the session.
    Batch(Arc<Batch>),
    /// Answer to a request for one: every batch through here that concerns the session came before, unless `missed`.
    Sync {
        /// The tail's last read.
        snapshot: Arc<Snapshot>,
        /// The subject's grants there.
        grants: Arc<SubjectGrants>,
        /// Batches were dropped since the last of these.
        missed: bool,
    },
    /// Scopes were taken from the subject: comes before everything else, so that a slow client gets nothing more of them (V7). What
    /// was given comes in order.
    Revoked(Arc<SubjectGrants>),
    /// Batches were dropped; no more come until the session asks to be in step again.
    Missed,
    /// The history that the session knows has been left: nothing more comes.
    Ended(&'static str),
}

/// Messages for which an empty queue keeps its memory: enough for what comes one at a time.
const QUEUE_KEPT: usize = 4;

/// One session's mailbox.
#[derive(Debug)]
pub struct Mailbox {
    inner: Mutex<Inner>,
    batches_max: usize,
}

#[derive(Debug, Default)]
struct Inner {
    messages: VecDeque<Message>,
    batches: usize,
    /// Sequence number of the last batch put in, so that one which concerns a session twice comes once.
    last_batch: u64,
    missed: bool,
    revoked: Option<Arc<SubjectGrants>>,
    waker: Option<Waker>,
}

impl Mailbox {
    /// An empty one that holds so many batches.
    pub fn new(batches_max: usize) -> Mailbox {
        Mailbox { inner: Mutex::default(), batches_max }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a batch in, once, unless the session has missed one and not caught up since.
    pub(super) fn batch(&self, batch: &Arc<Batch>) {
        let mut inner = self.inner();
        if inner.missed || inner.last_batch == batch.snapshot.seq {
            return;
        }
        if inner.batches >= self.batches_max {
            inner.drop_batches();
        } else {
            inner.last_batch = batch.snapshot.seq;
            inner.batches += 1;
            inner.messages.push_back(Message::Batch(batch.clone()));
        }
        inner.wake();
    }

    /// Tells at once that scopes were taken.
    pub(super) fn revoked(&self, grants: &Arc<SubjectGrants>) {
        let mut inner = self.inner();
        inner.revoked = Some(grants.clone());
        inner.wake();
    }

    /// Puts anything else in: answers, of which a session has few outstanding.
    pub(super) fn put(&self, message: Message) {
        let mut inner = self.inner();
        inner.messages.push_back(message);
        inner.wake();
    }

    /// Answers a request to be in step.
    pub(super) fn sync(&self, snapshot: &Arc<Snapshot>, grants: &Arc<SubjectGrants>) {
        let mut inner = self.inner();
        let missed = std::mem::take(&mut inner.missed);
        let (snapshot, grants) = (snapshot.clone(), grants.clone());
        inner.messages.push_back(Message::Sync { snapshot, grants, missed });
        inner.wake();
    }

    /// The next message, if there is one.
    pub fn pop(&self) -> Option<Message> {
        let mut inner = self.inner();
        let message = inner.messages.pop_front();
        if matches!(message, Some(Message::Batch(_))) {
            inner.batches -= 1;
        }
        if inner.messages.is_empty() && inner.messages.capacity() > QUEUE_KEPT {
            // An idle session keeps no long queue.
            inner.messages = VecDeque::new();
        }
        message
    }

    /// What does not wait for its turn.
    pub fn pop_urgent(&self) -> Option<Message> {
        self.inner().revoked.take().map(Message::Revoked)
    }

    /// Ready once there may be a message; with `urgent_only`, one that does not wait for its turn.
    pub fn poll(&self, context: &mut Context<'_>, urgent_only: bool) -> Poll<()> {
        let mut inner = self.inner();
        if inner.revoked.is_none() && (urgent_only || inner.messages.is_empty()) {
            if inner.waker.as_ref().is_none_or(|waker| !waker.will_wake(context.waker())) {
                inner.waker = Some(context.waker().clone());
            }
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }

    /// Waits for the next message.
    pub async fn next(&self) -> Message {
        std::future::poll_fn(|context| match self.pop_urgent().or_else(|| self.pop()) {
            Some(message) => Poll::Ready(message),
            None => match self.poll(context, false) {
                Poll::Ready(()) => {
                    // Came in between: look again.
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
                Poll::Pending => Poll::Pending,
            },
        })
        .await
    }
}

impl Inner {
    /// Makes room, and says so: at the end, and in every answer that one of the dropped batches came before.
    fn drop_batches(&mut self) {
        self.missed = true;
        self.batches = 0;
        let mut dropped = false;
        self.messages.retain_mut(|message| match message {
            Message::Batch(_) => {
                dropped = true;
                false
            }
            Message::Sync { missed, .. } => {
                *missed |= dropped;
                true
            }
            _ => true,
        });
        self.messages.push_back(Message::Missed);
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}

/// A request to the hub. Every session has at most one of each kind per scope under way.
#[derive(Debug)]
pub enum Request {
    /// Follow a client's session; answered by [`Message::Registered`].
    Register {
        /// The session.
        member: super::MemberId,
        /// Whose.
        client: tidegate_log::ClientKey,
        /// Where its messages go.
        mailbox: Arc<Mailbox>,
    },
    /// Feed a scope to it; answered by [`Message::Attached`].
    Attach {
        /// The session.
        member: super::MemberId,
        /// Which feed.
        feed: FeedKey,
    },
    /// Feed it to it no longer.
    Detach {
        /// The session.
        member: super::MemberId,
        /// Which feed.
        feed: FeedKey,
    },
    /// Bring it in step; answered by [`Message::Sync`] from a read that begins after this request arrived.
    Sync {
        /// The session.
        member: super::MemberId,
        /// Whether to read at once; else the next read will do, whatever causes it.
        urgent: bool,
    },
    /// The session is gone.
    Leave {
        /// The session.
        member: super::MemberId,
    },
}
