//! From the first frame to a session: who it is, whether there is room, what it may see, where its writes stand. In this order:
//! nothing expensive before the token is judged and the session admitted.

use std::sync::Arc;
use std::time::{Instant, SystemTime};
use tidegate_log::ClientKey;
use tidegate_protocol::{
    ClientFrame, CloseCode, ErrorCode, ErrorFrame, Hello, Limits as FrameLimits, PROTOCOL_VERSION,
};
use uuid::Uuid;

use crate::auth::Identity;
use crate::failpoints;
use crate::gateway::Shared;
use crate::hub::{Epoch, Message, Seat};
use crate::push::{self, ClientHello, ClientPusher};
use crate::session::{Beginning, Session, Surroundings};

/// A session that has begun.
pub(super) struct Begun {
    pub identity: Arc<Identity>,
    pub client: ClientKey,
    pub epoch: Arc<Epoch>,
    pub seat: Seat,
    pub pusher: Option<ClientPusher>,
    pub session: Session,
}

/// Why none did: what to tell, and how to close.
pub(super) struct Refused {
    pub error: Box<ErrorFrame<'static>>,
    pub close: CloseCode,
}

impl Refused {
    pub fn new(code: ErrorCode, message: &'static str) -> Refused {
        let close = code.closes().unwrap_or(CloseCode::GoingAway);
        Refused {
            error: Box::new(ErrorFrame { of: Some("hello".into()), ..ErrorFrame::new(code, message) }),
            close,
        }
    }
}

/// Judges the first frame.
pub(super) fn hello<'f>(bytes: &'f [u8], limits: &FrameLimits) -> Result<Hello<'f>, Refused> {
    match ClientFrame::decode(bytes, limits) {
        Ok(ClientFrame::Hello(hello)) if hello.versions.contains(&PROTOCOL_VERSION) => Ok(hello),
        Ok(ClientFrame::Hello(_)) => {
            Err(Refused::new(ErrorCode::UnsupportedVersion, "this server speaks protocol version 3"))
        }
        Ok(_) => Err(Refused::new(ErrorCode::HelloRequired, "the first frame must be hello")),
        Err(tidegate_protocol::DecodeError::UnknownFrame(_)) => {
            Err(Refused::new(ErrorCode::HelloRequired, "the first frame must be hello"))
        }
        Err(error) => Err(Refused::new(error.code(), "hello cannot be read")),
    }
}

/// Who says hello.
pub(super) fn identify(shared: &Shared, hello: &Hello<'_>) -> Result<Arc<Identity>, Refused> {
    let token = hello.token.as_ref().map(|token| token.0.as_ref());
    match shared.auth.authenticate(token, hello.user.as_deref(), SystemTime::now()) {
        Ok(identity) => Ok(Arc::new(identity)),
        Err(error) => {
            metrics::counter!("tidegate_sessions_refused_total", "code" => error.code().as_str())
                .increment(1);
            Err(Refused::new(error.code(), "the token was refused"))
        }
    }
}

/// Begins a session for somebody who was admitted.
pub(super) async fn begin(
    shared: &Shared,
    hello: Hello<'_>,
    identity: Arc<Identity>,
) -> Result<Begun, Refused> {
    // A storm of reconnects queues here, before anything that costs the database.
    let _beginning = shared.beginning.acquire().await;
    let unavailable = || Refused::new(ErrorCode::Unavailable, "the stream is not available yet");
    let epoch = shared.hub.epoch().ok_or_else(unavailable)?;
    let client = ClientKey { subject: identity.subject.clone(), client: hello.client };
    // V7: registered first, then evaluated at a stated position, then followed. V6: registered before `last` is read.
    let seat = epoch.register(client.clone()).await.ok_or_else(unavailable)?;
    failpoints::reach(failpoints::SESSION_REGISTERED, &client.subject.0).await;
    let grants = match seat.mailbox.next().await {
        Message::Registered(grants) => grants,
        _ => return Err(unavailable()),
    };
    failpoints::reach(failpoints::SESSION_EVALUATED, &client.subject.0).await;
    let pusher =
        shared.pusher.as_ref().map(|pusher| pusher.client(identity.clone(), hello.client, hello.new));
    let known = push::hello(
        &shared.reads,
        ClientHello {
            subject: &identity.subject,
            client: hello.client,
            new: hello.new,
            awaited: &hello.awaited,
            acked: hello.acked,
        },
    );
    let last = match known.await {
        Ok(marks) => marks.last.0,
        Err(error) => {
            let close = error.code.closes().unwrap_or(CloseCode::GoingAway);
            return Err(Refused { error: Box::new(error.frame(None, "hello")), close });
        }
    };
    let around = Surroundings {
        press: epoch.press.clone(),
        registries: epoch.registries.clone(),
        bounds: shared.session.clone(),
    };
    let beginning = Beginning {
        session: Uuid::new_v4(),
        client: client.clone(),
        grants,
        last,
        awaited: hello.awaited.iter().map(|number| number.0).collect(),
        registry: epoch.registry(),
    };
    let session = Session::new(around, beginning, Instant::now());
    Ok(Begun { identity, client, epoch, seat, pusher, session })
}
