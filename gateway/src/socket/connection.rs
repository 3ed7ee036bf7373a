//! The task of one socket. The awaits are here and in this order: what was revoked, what the hub has, what is to be written, what
//! came back from the database, what the client says, what time it is.

use axum::extract::ws::WebSocket;
use bytes::Bytes;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};
use tidegate_model::Subject;
use tidegate_protocol::{ClientFrame, CloseCode, ErrorCode, ErrorFrame, Limits as FrameLimits, Push, Void};
use tokio::sync::watch;
use tokio::time::Sleep;

mod commands;

use super::begin::{self, Begun, Refused};
use super::goodbye::{GOODBYE, drained, goodbye, refuse};
use super::rate::Rate;
use super::transport::{Incoming, Transport};
use crate::gateway::Shared;
use crate::hub::Message;
use crate::push::ClientPusher;
use crate::session::Input;

/// Counts a socket for as long as it lives.
struct Counted(Arc<Shared>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.sockets.closed();
    }
}

struct Admitted<'s>(&'s Shared, Subject);

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.0.sockets.dismiss(&self.1);
    }
}

/// Serves one socket until it ends.
pub(super) async fn run(shared: Arc<Shared>, mut socket: WebSocket) {
    shared.sockets.opened();
    let _counted = Counted(shared.clone());
    let limits =
        FrameLimits { frame_bytes_max: shared.limits.frame_bytes_max as usize, ..FrameLimits::FROM_CLIENT };
    let deadline = tokio::time::Instant::now() + shared.limits.hello_timeout;
    let mut draining = shared.draining.clone();
    let first = tokio::select! {
        first = std::future::poll_fn(|context| socket.poll_incoming(context)) => first,
        () = tokio::time::sleep_until(deadline) => {
            return refuse(&shared, &mut socket, Refused::new(ErrorCode::HelloRequired, "no hello in time")).await;
        }
        () = drained(&mut draining) => {
            return goodbye(&shared, &mut socket, CloseCode::GoingAway).await;
        }
    };
    let bytes = match first {
        Incoming::Frame(bytes) => bytes,
        Incoming::Text => {
            return refuse(
                &shared,
                &mut socket,
                Refused::new(ErrorCode::MalformedFrame, "frames are binary"),
            )
            .await;
        }
        Incoming::TooLarge => {
            return refuse(
                &shared,
                &mut socket,
                Refused::new(ErrorCode::FrameTooLarge, "the frame is too large"),
            )
            .await;
        }
        Incoming::Ended | Incoming::Closed => return,
    };
    let begun = match begin::hello(&bytes, &limits) {
        Ok(hello) => match begin::identify(&shared, &hello) {
            Ok(identity) => {
                if !shared.sockets.admit(&identity.subject, shared.limits.subject_sockets_max) {
                    let refused =
                        Refused::new(ErrorCode::ConnectionLimit, "too many sockets of this subject");
                    return refuse(&shared, &mut socket, refused).await;
                }
                let admitted = Admitted(&shared, identity.subject.clone());
                match tokio::time::timeout_at(deadline, begin::begin(&shared, hello, identity)).await {
                    Ok(begun) => begun.map(|begun| (begun, admitted)),
                    Err(_) => {
                        Err(Refused::new(ErrorCode::Unavailable, "the session could not begin in time"))
                    }
                }
            }
            Err(refused) => Err(refused),
        },
        Err(refused) => Err(refused),
    };
    match begun {
        Ok((begun, _admitted)) => {
            let code = Connection::new(&shared, &mut socket, begun, limits).serve(draining).await;
            if let Some(code) = code {
                goodbye(&shared, &mut socket, code).await;
            }
        }
        Err(refused) => refuse(&shared, &mut socket, refused).await,
    }
}

/// What the database has under way for one socket.
type Work = Pin<Box<dyn Future<Output = Done> + Send>>;

enum Done {
    Input(Input<'static>),
    Pushed(Box<ClientPusher>, Input<'static>),
    /// The history has ended, or the gateway drains.
    Leave(CloseCode),
}

/// Answered in the order in which they were asked.
enum Asked {
    Run(Run),
    /// Not to be run, but its refusal waits for its turn.
    Refuse(ErrorFrame<'static>),
}

enum Run {
    Push(Push<'static>),
    Void(Void),
}

struct Connection<'c> {
    shared: &'c Arc<Shared>,
    socket: &'c mut WebSocket,
    begun: Begun,
    limits: FrameLimits,
    work: Vec<Work>,
    /// Pushes and voids that wait for the one under way.
    asked: VecDeque<Asked>,
    frames: Rate,
    mutations: Rate,
    timer: Pin<Box<Sleep>>,
    heard_at: Instant,
    /// Since when bytes have been waiting for the client; `None`: nothing waits.
    writing_since: Option<Instant>,
    unwritten: bool,
    crowded: bool,
}

enum Event {
    Message(Message),
    Room,
    Done(Done),
    Frame(Bytes),
    Text,
    TooLarge,
    Closed,
    Timer,
}

impl<'c> Connection<'c> {
    fn new(
        shared: &'c Arc<Shared>,
        socket: &'c mut WebSocket,
        begun: Begun,
        limits: FrameLimits,
    ) -> Connection<'c> {
        let now = Instant::now();
        // The token may expire before anything else is due.
        let expires_in =
            begun.identity.expires_at.map(|at| at.duration_since(SystemTime::now()).unwrap_or_default());
        let first_look = (shared.limits.heartbeat / 2).min(expires_in.unwrap_or(Duration::MAX));
        Connection {
            shared,
            socket,
            begun,
            limits,
            work: Vec::new(),
            asked: VecDeque::new(),
            frames: Rate::new(shared.limits.frames_per_second, now),
            mutations: Rate::new(shared.limits.mutations_per_second, now),
            timer: Box::pin(tokio::time::sleep(first_look)),
            heard_at: now,
            writing_since: None,
            unwritten: true,
            crowded: false,
        }
    }

    /// Until it ends; gives the code to say goodbye with, if there is still somebody to say it to.
    async fn serve(mut self, mut draining: watch::Receiver<bool>) -> Option<CloseCode> {
        self.work.push(Box::pin(async move {
            drained(&mut draining).await;
            Done::Leave(CloseCode::GoingAway)
        }));
        loop {
            if let Some(code) = self.carry_out().await {
                // What was said before, such as the error that explains it, goes out first.
                let _ =
                    tokio::time::timeout(GOODBYE, std::future::poll_fn(|context| self.poll_write(context)))
                        .await;
                return Some(code);
            }
            let event = std::future::poll_fn(|context| self.poll_event(context)).await;
            let now = Instant::now();
            match event {
                Event::Message(message) => self.begun.session.handle(Input::Message(message), now),
                Event::Room => self.begun.session.handle(Input::Room, now),
                Event::Done(Done::Input(input)) => self.begun.session.handle(input, now),
                Event::Done(Done::Pushed(pusher, input)) => {
                    self.begun.pusher = Some(*pusher);
                    self.begun.session.handle(input, now);
                    self.next_push();
                }
                Event::Done(Done::Leave(code)) => return Some(code),
                Event::Frame(bytes) => self.on_frame(&bytes, now),
                Event::Text => {
                    self.begun.session.error(ErrorFrame::new(ErrorCode::MalformedFrame, "frames are binary"));
                }
                Event::TooLarge => {
                    self.begun
                        .session
                        .error(ErrorFrame::new(ErrorCode::FrameTooLarge, "the frame is too large"));
                }
                Event::Closed => return None,
                Event::Timer => {
                    if let Some(code) = self.on_timer(now) {
                        return Some(code);
                    }
                }
            }
        }
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        if let Some(message) = self.begun.seat.mailbox.pop_urgent() {
            return Poll::Ready(Event::Message(message));
        }
        // Everything that the hub has is taken before anything is written: what came together goes out together.
        let wants = self.begun.session.wants_messages();
        if wants && let Some(message) = self.begun.seat.mailbox.pop() {
            return Poll::Ready(Event::Message(message));
        }
        if self.begun.seat.mailbox.poll(context, !wants).is_ready() {
            context.waker().wake_by_ref();
        }
        if self.poll_write(context) == Poll::Ready(false) {
            return Poll::Ready(Event::Closed);
        }
        if self.crowded && self.begun.session.outbox.bytes() < self.shared.limits.outbox_bytes_max {
            self.crowded = false;
            return Poll::Ready(Event::Room);
        }
        for index in 0..self.work.len() {
            if let Poll::Ready(done) = self.work[index].as_mut().poll(context) {
                drop(self.work.swap_remove(index));
                return Poll::Ready(Event::Done(done));
            }
        }
        // A client that pushes faster than pushes run is not read meanwhile.
        if self.asked.len() < self.shared.limits.pushes_waiting_max
            && let Poll::Ready(incoming) = self.socket.poll_incoming(context)
        {
            return Poll::Ready(match incoming {
                Incoming::Frame(bytes) => Event::Frame(bytes),
                Incoming::Text => Event::Text,
                Incoming::TooLarge => Event::TooLarge,
                Incoming::Ended | Incoming::Closed => Event::Closed,
            });
        }
        self.timer.as_mut().poll(context).map(|()| Event::Timer)
    }

    /// Feeds what is queued and flushes once. Ready with false when the connection is gone.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        let limit = self.shared.limits.outbox_bytes_max;
        while !self.begun.session.outbox.is_empty() {
            self.crowded |= self.begun.session.outbox.bytes() >= limit;
            match self.socket.poll_room(context) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(false),
                Poll::Pending => {
                    self.writing_since.get_or_insert_with(Instant::now);
                    return Poll::Pending;
                }
            }
            self.writing_since = None;
            self.unwritten = true;
            if let Some(frame) = self.begun.session.outbox.pop()
                && self.socket.feed(frame).is_err()
            {
                return Poll::Ready(false);
            }
        }
        if !self.unwritten {
            return Poll::Ready(true);
        }
        match self.socket.poll_written(context) {
            Poll::Ready(Ok(())) => {
                self.unwritten = false;
                self.writing_since = None;
                Poll::Ready(true)
            }
            Poll::Ready(Err(_)) => Poll::Ready(false),
            Poll::Pending => {
                self.writing_since.get_or_insert_with(Instant::now);
                Poll::Pending
            }
        }
    }

    fn on_frame(&mut self, bytes: &[u8], now: Instant) {
        self.heard_at = now;
        if let Err(wait) = self.frames.take(1, now) {
            let error = ErrorFrame::new(ErrorCode::RateLimited, "too many frames").after_ms(millis(wait));
            return self.begun.session.error(error);
        }
        let frame = match ClientFrame::decode(bytes, &self.limits) {
            Ok(frame) => frame,
            Err(error) => {
                tracing::debug!(%error, "unreadable frame");
                return self.begun.session.error(ErrorFrame::new(error.code(), error.to_string()));
            }
        };
        let mutations = match &frame {
            ClientFrame::Push(push) => Some((push.mutations.len(), push.reference, "push")),
            ClientFrame::Void(void) => Some((void.numbers.len(), void.reference, "void")),
            _ => None,
        };
        if let Some((count, reference, of)) = mutations {
            if self.shared.pusher.is_none() {
                let error = ErrorFrame::new(ErrorCode::Unavailable, "this gateway takes no pushes");
                return self.refuse(error.answering(reference, of));
            }
            if let Err(wait) = self.mutations.take(count, now) {
                let error =
                    ErrorFrame::new(ErrorCode::RateLimited, "too many mutations").after_ms(millis(wait));
                return self.begun.session.error(error.answering(reference, of));
            }
        }
        self.begun.session.handle(Input::Frame(frame), now);
    }

    /// Looks at every deadline and sleeps until the next.
    fn on_timer(&mut self, now: Instant) -> Option<CloseCode> {
        let limits = &self.shared.limits;
        if self.writing_since.is_some_and(|since| now.duration_since(since) >= limits.send_timeout) {
            metrics::counter!("tidegate_sockets_too_slow_total").increment(1);
            return Some(CloseCode::TooSlow);
        }
        let silence_max = limits.heartbeat * 2;
        if now.duration_since(self.heard_at) >= silence_max {
            return Some(CloseCode::IdleTimeout);
        }
        let expires_in =
            self.begun.identity.expires_at.map(|at| at.duration_since(SystemTime::now()).unwrap_or_default());
        if expires_in == Some(Duration::ZERO) {
            self.begun.session.error(ErrorFrame::new(ErrorCode::AuthExpired, "the token has expired"));
            return None;
        }
        // Coarse on purpose: a timer that were moved with every frame would cost more than it is worth.
        let next = [
            Some(limits.heartbeat / 2),
            Some(silence_max.saturating_sub(now.duration_since(self.heard_at))),
            Some(limits.send_timeout / 2),
            expires_in,
        ];
        let wait = next.into_iter().flatten().min().unwrap_or(limits.heartbeat).max(Duration::from_millis(1));
        self.timer.as_mut().reset(tokio::time::Instant::now() + wait);
        None
    }
}

fn millis(wait: Duration) -> u32 {
    u32::try_from(wait.as_millis()).unwrap_or(u32::MAX).max(1)
}
