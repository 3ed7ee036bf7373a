//! One socket that speaks the protocol: bytes to frames and back.

use anyhow::{Context, bail};
use futures_util::{SinkExt, StreamExt};
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_protocol::{
    Bin, ClientFrame, ClientId, Hello, IntoOwned, Limits, MutationNumber, PROTOCOL_VERSION, Ping,
    RegistryGeneration, SOCKET_PATH, SUBPROTOCOL, Secret, ServerFrame, Subscribe, SubscriptionKind, Welcome,
};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Bytes, Message};

static REFERENCE: AtomicU64 = AtomicU64::new(1);

/// A number for a request, unique in this process.
pub fn next_reference() -> u64 {
    REFERENCE.fetch_add(1, Ordering::Relaxed)
}

/// Who connects.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Access token; none: anonymous.
    pub token: Option<String>,
    /// Client id.
    pub client: ClientId,
    /// Whether the id was never used before.
    pub new: bool,
    /// Mutations whose `materialized` is awaited.
    pub awaited: Vec<u64>,
    /// Outcomes up to this number are stored.
    pub acked: u64,
}

impl Identity {
    /// A client that was never seen before.
    pub fn fresh(token: Option<String>) -> Identity {
        Identity { token, client: ClientId(uuid::Uuid::new_v4()), new: true, awaited: Vec::new(), acked: 0 }
    }
}

/// An open session.
pub struct Connection {
    socket: WebSocketStream<TcpStream>,
}

impl Connection {
    /// Opens a socket to `address` (`host:port`), says hello, and waits for the welcome.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses the session; the error then names its code.
    pub async fn open(address: &str, identity: &Identity) -> anyhow::Result<(Connection, Welcome<'static>)> {
        let mut request =
            format!("ws://{address}{SOCKET_PATH}").into_client_request().context("make the request")?;
        request.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static(SUBPROTOCOL));
        let stream = TcpStream::connect(address).await.context("connect to the gateway")?;
        stream.set_nodelay(true).context("set up the socket")?;
        let config = WebSocketConfig::default()
            .read_buffer_size(8192)
            .write_buffer_size(4096)
            .max_message_size(Some(64 << 20))
            .max_frame_size(Some(64 << 20));
        let (socket, _) = tokio_tungstenite::client_async_with_config(request, stream, Some(config))
            .await
            .context("upgrade to a WebSocket")?;
        let mut connection = Connection { socket };
        let hello = Hello {
            versions: vec![PROTOCOL_VERSION],
            token: identity.token.as_deref().map(|token| Secret(Cow::Borrowed(token))),
            user: None,
            client: identity.client,
            new: identity.new,
            sv: None::<RegistryGeneration>,
            awaited: identity.awaited.iter().map(|number| MutationNumber(*number)).collect(),
            acked: MutationNumber(identity.acked),
        };
        connection.send(&hello.into()).await?;
        match connection.next().await? {
            Some(ServerFrame::Welcome(welcome)) => Ok((connection, welcome)),
            Some(ServerFrame::ErrorFrame(error)) => bail!("the gateway refused the session: {}", error.code),
            Some(other) => bail!("the gateway answered hello with {}", other.name()),
            None => bail!("the gateway closed the socket instead of answering hello"),
        }
    }

    /// Subscribes to a scope from `cursor` on; `name` absent: all assigned scopes.
    ///
    /// # Errors
    /// When the socket is gone.
    pub async fn subscribe(&mut self, name: Option<&str>, cursor: Option<&[u8]>) -> anyhow::Result<()> {
        let subscribe = Subscribe {
            reference: next_reference(),
            kind: SubscriptionKind::Scope,
            name: name.map(Cow::Borrowed),
            cursor: cursor.map(Bin::from),
            token: None,
            mismatch: None,
        };
        self.send(&subscribe.into()).await
    }

    /// Sends one frame.
    ///
    /// # Errors
    /// When the socket is gone.
    pub async fn send(&mut self, frame: &ClientFrame<'_>) -> anyhow::Result<()> {
        self.socket.send(Message::Binary(Bytes::from(frame.encode()))).await.context("send to the gateway")
    }

    /// Asks for a sign of life.
    ///
    /// # Errors
    /// When the socket is gone.
    pub async fn ping(&mut self) -> anyhow::Result<()> {
        self.send(&Ping { id: next_reference() }.into()).await
    }

    /// The bytes of the next frame; `None` when the gateway closed.
    ///
    /// # Errors
    /// When the socket broke.
    pub async fn next_bytes(&mut self) -> anyhow::Result<Option<Bytes>> {
        loop {
            match self.socket.next().await {
                Some(Ok(Message::Binary(bytes))) => return Ok(Some(bytes)),
                Some(Ok(Message::Close(_))) | None => return Ok(None),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error).context("receive from the gateway"),
            }
        }
    }

    /// The next frame; `None` when the gateway closed.
    ///
    /// # Errors
    /// When the socket broke or the frame is not of the protocol.
    pub async fn next(&mut self) -> anyhow::Result<Option<ServerFrame<'static>>> {
        let Some(bytes) = self.next_bytes().await? else { return Ok(None) };
        let frame = decode(&bytes)?;
        Ok(Some(frame.into_owned()))
    }
}

/// Reads a frame from the gateway.
///
/// # Errors
/// When it is not of the protocol.
pub fn decode(bytes: &[u8]) -> anyhow::Result<ServerFrame<'_>> {
    ServerFrame::decode(bytes, &Limits::FROM_SERVER).context("decode the gateway's frame")
}
