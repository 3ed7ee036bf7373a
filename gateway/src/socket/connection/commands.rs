//! What a session commands, carried out: requests to the hub at once, what takes the database as work beside the socket, pushes one
//! after the other.

use std::sync::Arc;
use std::time::SystemTime;
use tidegate_log::Bounds;
use tidegate_model::Subject;
use tidegate_protocol::{CloseCode, ErrorFrame, MutationNumber};

use super::super::work;
use super::{Asked, Connection, Done, Run};
use crate::failpoints;
use crate::hub::Request;
use crate::session::{Command, Input};

impl Connection<'_> {
    /// Carries out what the session commands; gives the code to close with.
    pub(super) async fn carry_out(&mut self) -> Option<CloseCode> {
        while let Some(command) = self.begun.session.commands.pop_front() {
            let member = self.begun.seat.member;
            let epoch = &self.begun.epoch;
            match command {
                Command::Attach(feed) => self.begun.seat.request(Request::Attach { member, feed }).await,
                Command::Detach(feed) => self.begun.seat.request(Request::Detach { member, feed }).await,
                Command::Sync { urgent } => self.begun.seat.request(Request::Sync { member, urgent }).await,
                Command::ReadScope { id, feed, after, through, replay_count_max } => {
                    let (epoch, limits, whom) = (epoch.clone(), self.shared.limits, self.whom());
                    let bounds = Bounds {
                        units_max: u32::MAX,
                        entries_max: limits.page_effects_max as u32,
                        bytes_max: limits.page_bytes_max as u64,
                    };
                    self.work.push(Box::pin(async move {
                        failpoints::reach(failpoints::SCOPE_ASKED, &whom.0).await;
                        match work::read_scope(&epoch, &feed, after, through, replay_count_max, bounds).await
                        {
                            Some(pages) => {
                                failpoints::reach(failpoints::SCOPE_READ, &whom.0).await;
                                Done::Input(Input::ScopeRead(id, pages))
                            }
                            None => Done::Leave(CloseCode::GoingAway),
                        }
                    }));
                }
                Command::ReadRebuild(id, feed, from) => {
                    let (epoch, whom) = (epoch.clone(), self.whom());
                    self.work.push(Box::pin(async move {
                        failpoints::reach(failpoints::REBUILD_ASKED, &whom.0).await;
                        match work::read_rebuild(&epoch, &feed, from).await {
                            Some(Ok((position, page))) => {
                                failpoints::reach(failpoints::REBUILD_READ, &whom.0).await;
                                Done::Input(Input::RebuildRead(id, position, page))
                            }
                            Some(Err(work::LostRun)) => Done::Input(Input::RunLost(id)),
                            None => Done::Leave(CloseCode::GoingAway),
                        }
                    }));
                }
                Command::Settle(numbers) => {
                    let (pool, client) = (self.shared.reads.clone(), self.begun.client.clone());
                    let generation = epoch.lineage().generation;
                    self.work.push(Box::pin(async move {
                        match work::settle(&pool, &client, generation, &numbers).await {
                            Some(settled) => Done::Input(Input::Settled(settled)),
                            None => Done::Leave(CloseCode::GoingAway),
                        }
                    }));
                }
                Command::Push(push) => {
                    self.asked.push_back(Asked::Run(Run::Push(push)));
                    self.next_push();
                }
                Command::Void(void) => {
                    self.asked.push_back(Asked::Run(Run::Void(void)));
                    self.next_push();
                }
                Command::Auth { reference, token } => self.renew(reference, &token),
                Command::Close(code) => return Some(code),
            }
        }
        None
    }

    /// On whose behalf its work is done.
    fn whom(&self) -> Subject {
        self.begun.client.subject.clone()
    }

    pub(super) fn refuse(&mut self, error: ErrorFrame<'static>) {
        self.asked.push_back(Asked::Refuse(error));
        self.next_push();
    }

    /// Starts the next push, if none is under way: a client's pushes run, and are answered, one after the other.
    pub(super) fn next_push(&mut self) {
        // The pusher is away while a push is under way; a gateway without one only refuses.
        if self.begun.pusher.is_none() && self.shared.pusher.is_some() {
            return;
        }
        let run = loop {
            match self.asked.pop_front() {
                Some(Asked::Refuse(error)) => self.begun.session.error(error),
                Some(Asked::Run(run)) => break run,
                None => return,
            }
        };
        let Some(mut pusher) = self.begun.pusher.take() else { return };
        let whom = self.whom();
        self.work.push(Box::pin(async move {
            failpoints::reach(failpoints::PUSH_RUN, &whom.0).await;
            let (reference, of, numbers, reply) = match run {
                Run::Push(push) => {
                    let numbers: Vec<MutationNumber> =
                        push.mutations.iter().map(|mutation| mutation.number).collect();
                    (push.reference, "push", numbers, pusher.push(&push).await)
                }
                Run::Void(void) => {
                    let reply = pusher.void(&void).await;
                    (void.reference, "void", void.numbers, reply)
                }
            };
            failpoints::reach(failpoints::PUSH_ENDED, &whom.0).await;
            let numbers = numbers.into_iter().map(|number| number.0).collect();
            Done::Pushed(Box::new(pusher), Input::Pushed { reference, of, numbers, reply })
        }));
    }

    /// A fresh token: same subject, later expiry.
    fn renew(&mut self, reference: u64, token: &str) {
        match self.shared.auth.refresh(&self.begun.identity, token, SystemTime::now()) {
            Ok(identity) => {
                self.begun.identity = Arc::new(identity);
                // A push under way ends under the claims that it began with.
                let renewed =
                    self.begun.pusher.as_mut().map(|pusher| pusher.renew(self.begun.identity.clone()));
                if let Some(Err(error)) = renewed {
                    let frame = error.frame(Some(reference), "auth");
                    self.begun.session.error(frame);
                }
            }
            Err(error) => {
                let frame =
                    ErrorFrame::new(error.code(), "the token was refused").answering(reference, "auth");
                self.begun.session.error(frame);
            }
        }
    }
}
